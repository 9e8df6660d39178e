"""The feeds that earlier starts of a job have left, and FEEDS has not as they were begun."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from scrapy.exceptions import NotConfigured
from scrapy.extensions.feedexport import ItemFilter
from scrapy.utils.misc import load_object

from ..errors import BloomError, FeedError
from ..jobdir import session_of
from ..sqlite.job_file import DAMAGED, file_at
from ..startup import fetches_one_page, is_component
from .open_feed import local_path
from .outbox import Outbox
from .waiting import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from scrapy.extensions.feedexport import FeedExporter

    from ..sqlite.rounds import Round
    from .open_feed import OpenFeed, Plans
    from .outbox import Feed, Row

logger = logging.getLogger(__name__)


def goes_on_without_feeds(exporter: FeedExporter) -> bool:
    """Return True if the job of `exporter`, which has not found any FEEDS, has feeds to complete;
    then it is ready for them. Cost: reads a row of the job's file."""
    crawler = exporter.crawler
    job = session_of(crawler).directory
    if job is None or fetches_one_page(crawler):
        return False
    shares = is_component(crawler.settings["SCHEDULER"], "RedisDurableScheduler")
    found: list[object] = []
    # what is damaged, or in use, the scheduler refuses
    with suppress(BloomError, OSError, *DAMAGED):
        if not job.is_locked:
            with file_at(job.worker_feeds if shares else job.requests) as file:
                found += file.query("SELECT 1 FROM feeds LIMIT 1") if file is not None else ()
    if found:
        exporter.storages = _loaded(crawler.settings.getwithbase("FEED_STORAGES"))
        exporter.exporters = _loaded(crawler.settings.getwithbase("FEED_EXPORTERS"))
    return bool(found)


def _loaded(components: Any) -> dict[str, Any]:
    """Return the classes that a setting names, as Scrapy's exporter does."""
    found = {}
    for name, component in components.items():
        with suppress(NotConfigured):
            if component is not None:
                found[name] = load_object(component)
    return found


def sort_out(
    feeds: list[Feed],
    plans: Plans,
    round_: Round,
    opened: Callable[[Feed, dict[str, Any]], OpenFeed],
) -> tuple[list[Feed], list[OpenFeed]]:
    """Return those of `feeds` that go on in `round_`, and those that are only to be completed,
    `opened` and checked. Raises FeedError if a feed in FEEDS is another by its options or its
    place; what cannot be completed is given up when the round begins."""
    ours = [feed for feed in feeds if feed.of == round_.number]
    new = {*plans.templates} - {feed.template for feed in ours}
    _name_as_now((feed for feed in ours if feed.template not in plans.templates), plans, new)
    going_on = [feed for feed in ours if feed.template in plans.templates]
    left = []
    for feed in feeds:
        options = plans.exporter.feeds[feed.template] if feed in going_on else feed.options
        _require_same(feed, plans, options)
        if feed in going_on:
            continue
        try:
            working = opened(feed, options)
            working.check()
        except FeedError as error:
            round_.at_start.append(partial(_give_up, feed, error, round_, plans.exporter))
        else:
            working.is_left = True
            left.append(working)
            plans.exporter.filters.setdefault(feed.template, ItemFilter({}))
    batches = Outbox(round_).rows(Batch)
    for feed in (each for each in ours if each not in going_on):
        _require_others(feed, [feed, *(each for each in batches if each.of == feed.id)], plans, new)
    return going_on, left


def _require_same(feed: Feed, plans: Plans, options: dict[str, Any]) -> None:
    """Raise FeedError if `options` or its classes are others than `feed` was begun with."""
    now = plans.describe(feed.template, options)
    for name in sorted({*now, *feed.options}):
        if feed.options.get(name) != now.get(name):
            raise FeedError(
                f"feed {feed.template!r} was begun with {name} {feed.options.get(name)!r}, and now"
                f" has {now.get(name)!r}: change it back until the job is finished, or give the"
                " feed another name, or use a new JOBDIR"
            )


def _give_up(feed: Feed, why: FeedError, round_: Round, exporter: FeedExporter) -> None:
    """Forget a feed that cannot go on. Its items may be lost, so no page of the job is done, nor
    equal to what it was, for later rounds. Raises sqlite3.Error."""
    extra = {"spider": exporter.crawler.spider}
    logger.warning("Feed %s stays as it is: %s", feed.template, why, extra=extra)
    round_.file.execute("DELETE FROM feeds WHERE id = ?", (feed.id,))
    facts = ", ".join(f"{n} = SUBSTR({n}, 1, 0)" for n in ("digest", "version", "validators"))
    round_.file.execute(f"UPDATE delta_pages SET time = NULL, {facts}")  # noqa: S608 - no input


def _name_as_now(left: Iterable[Feed], plans: Plans, new: set[str]) -> None:
    """Give each feed that is `left` the name in FEEDS of its file, if that is one of the `new`."""
    for feed in left:
        path = local_path(plans.storage_of(feed.template, feed.options))
        if (now := plans.files.get(path and os.path.realpath(path), "")) in new:
            feed.template = now
            new.remove(now)


def _require_others(feed: Feed, rows: Iterable[Row], plans: Plans, new: Iterable[str]) -> None:
    """Raise FeedError if one of the `new` feeds has a file of the `rows` of a `feed` that is
    left."""
    files = {os.path.realpath(path) for row in rows for path in (row.path, row.place) if path}
    for template in new:
        now = ""
        with suppress(Exception):  # what the URI needs may not be known yet
            _, now = plans.place_of(template, plans.exporter.feeds[template])
        if now and os.path.realpath(now) in files:
            raise FeedError(
                f"feed {template!r} is the file of {feed.template!r}, which this job has begun:"
                " name it as before until the job is finished"
            )
