"""The feeds that earlier starts of a job have left, and FEEDS has not, or spells otherwise."""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING, Any

from scrapy.exceptions import NotConfigured
from scrapy.utils.misc import load_object

from ..errors import BloomError, FeedError
from ..jobdir import session_of
from ..sqlite.job_file import DAMAGED, file_at
from ..startup import fetches_one_page, is_component
from .open_feed import is_local, local_path

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy.extensions.feedexport import FeedExporter

    from .open_feed import Plans
    from .outbox import Feed


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


def name_as_now(left: Iterable[Feed], plans: Plans, new: set[str]) -> None:
    """Give each feed that is `left` the name in FEEDS of its file, if that is one of the `new`."""
    for feed in left:
        storage = plans.storage_of(feed.template, feed.options)
        path = os.path.realpath(local_path(storage)) if is_local(storage) else ""
        if (now := plans.files.get(path, "")) in new:
            feed.template = now
            new.remove(now)


def require_others(left: Iterable[Feed], plans: Plans, new: Iterable[str]) -> None:
    """Raise FeedError if one of the `new` feeds has a file of a feed that is `left`."""
    for feed, template in product(left, new):
        options = plans.exporter.feeds[template]
        for batch in feed.batches:
            now = ""
            with suppress(Exception):  # what the URI needs may not be known yet
                uri = plans.view.evaluate(template, options, batch.number)
                now = os.path.realpath(local_path(plans.view.storage(uri, options)))
            files = (batch.path, batch.stored.get("path"), batch.stored.get("place"))
            if now in {os.path.realpath(path) for path in files if path}:
                raise FeedError(
                    f"feed {template!r} is the file of {feed.template!r}, which this job has begun:"
                    " name it as before until the job is finished"
                )
