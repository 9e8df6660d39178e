"""Scrapy's feed exporter, with feeds that survive the end of the process."""

from __future__ import annotations

import json
from functools import cached_property, partial
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from pydispatch.robustapply import robustApply
from scrapy import signals
from scrapy.extensions.feedexport import FeedExporter, StdoutFeedStorage
from scrapy.utils.defer import ensure_awaitable
from scrapy.utils.misc import build_from_crawler
from scrapy.utils.python import global_object_name
from twisted.python.failure import Failure

from ..errors import FeedError
from ..job.failure import IN_MEMORY, FailedRequest, item_refused
from ..job.origins import StartItems, origins_of
from ..job.session import session_of
from ..reporting import counted, feeds_named
from ..scrapy_compat import FeedExporterView, scheduler_of
from ..startup import announce
from .durable_feeds import DurableFeeds, logger
from .feeds import Plan
from .formats import Pickled, Text, grows
from .storing import is_local, local_path, overwrites

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.exporters import BaseItemExporter
    from scrapy.extensions.feedexport import FeedSlot
    from typing_extensions import Self

    from ..job.ledger import Ledger
    from ..sqlite_backend.rounds import Round
    from .feeds import Working
    from .outbox import Batch, Feed


class DurableFeedExporter(FeedExporter):
    """Extension in the place of Scrapy's, with the same settings, whose feeds hold each item once
    when the crawl is finished, regardless of how often the process died.

    That needs DurableScheduler and JOBDIR; without them it works as Scrapy's, and so does a feed to
    standard output. With RedisDurableScheduler and a JOBDIR for each worker the feeds hold each
    item at least once. Local csv and jsonlines files get an item when its request is acknowledged;
    items of other feeds wait in JOBDIR, pickled, and the feed is stored when the spider closes.

    An item that a feed refuses, or that cannot be pickled for one, is logged by Scrapy, and
    `item_refused` is sent.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self.start_items = StartItems(crawler)
        """The middleware that tracks items of `Spider.start()`."""
        self._durable: DurableFeeds | None = None
        self._scrapys: set[str] = set()
        """Feeds of a job that Scrapy's exporter writes."""
        self._origins = origins_of(crawler)
        self._refused: WeakSet[Request] = WeakSet()

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Connect the exporter. Its use of the job ends when the spider is closed, even if a
        subclass has a `close_spider` that does not call this one."""
        self = super().from_crawler(crawler)
        crawler.signals.disconnect(self.close_spider, signals.spider_closed)
        crawler.signals.connect(self._spider_closed, signals.spider_closed)
        return self

    @cached_property
    def _plans(self) -> Plans:
        return Plans(self)

    @property
    def is_in_place(self) -> bool:
        """True if each feed is a file to which final items are appended."""
        return not self._scrapys and (self._durable is None or self._durable.is_in_place)

    @property
    def all_stored(self) -> bool:
        """True when the crawl has ended and all feeds are stored."""
        return self._durable is not None and self._durable.all_stored

    # -- called by Scrapy ----------------------------------------------------------

    def open_spider(self, spider: Spider) -> Any:
        """Continue the feeds of the round, or begin them."""
        if self._durable is None:
            return super().open_spider(spider)
        feeds = self.feeds
        self.feeds = {uri: options for uri, options in feeds.items() if uri in self._scrapys}
        super().open_spider(spider)
        self.feeds = feeds
        return self._durable.open()

    def item_scraped(self, item: Any, spider: Spider, response: Any = None) -> None:
        """Export `item`."""
        try:
            super().item_scraped(item, spider)
            if self._durable is not None:
                is_start_item = response is None and self.start_items.take(item)
                self._durable.add(item, response, is_start_item=is_start_item)
        except Exception as error:
            self._tell_of_refused(response, error)
            raise

    async def close_spider(self, spider: Spider) -> None:
        """Complete the feeds that were written in place, and store the others."""
        if self._durable is not None:
            await self._durable.finish()
        await super().close_spider(spider)

    async def _spider_closed(self, **named: Any) -> None:
        try:
            # a subclass may take the reason, too, or nothing
            await ensure_awaitable(robustApply(self.close_spider, **named))
        finally:
            session_of(self.crawler).end(self)

    # -- called by the scheduler ---------------------------------------------------

    def look(self, round_: Round, directory: Path) -> DurableFeeds:
        """Return the durable feeds of a round, with part files in `directory`. Raises FeedError if
        one cannot go on; changes nothing. Cost: reads the files."""
        durable = [uri for uri in self.feeds if self._plans.is_durable(uri)]
        return DurableFeeds(self, self._plans, durable, round_, directory)

    def attach(
        self,
        ledger: Ledger,
        round_: Round,
        directory: Path,
        *,
        repeats: bool = False,
        stores_empty: bool = True,
    ) -> None:
        """Write in the commits of `ledger` as soon as the spider is open, with part files in
        `directory`.

        Items `repeats` if their requests are acknowledged later than they are final. Without
        `stores_empty` the place of a feed without items stays as it is. Raises FeedError as `look`
        does; changes no feed.
        """
        durable = self.look(round_, directory)
        self._scrapys = self.feeds.keys() - durable.templates
        round_.at_end.append(durable.outbox.empty)
        self._announce(len(durable.templates), "at least once" if repeats else "once")
        if durable.has_any:
            self._durable = durable
            durable.attach(ledger, stores_empty=stores_empty)
            round_.awaits_feeds = True
            session_of(self.crawler).begin(self)

    def leave_out(self, is_left_out: Callable[[Request], bool]) -> None:
        """Keep the items of requests for which `is_left_out` returns True out of the durable feeds.
        It is asked when a request is to be acknowledged, and may raise sqlite3.Error."""
        if self._durable is not None:
            self._durable.leave_out(is_left_out)

    def _announce(self, durable: int, how_often: str) -> None:
        others = sorted(self._scrapys)
        how = [f"{counted(durable, 'feed')} with each item {how_often}"] if durable else []
        if others:
            how.append(f"not durable in {feeds_named(others)}")
        way_out = bool(others) * "write to a file of its own"
        announce(self.crawler, "items", ", ".join(how), way_out)

    # -- refused items -------------------------------------------------------------

    def _tell_of_refused(self, response: Any, error: Exception) -> None:
        self.crawler.signals.send_catch_log(item_refused, response=response, error=error)
        request = self._request_of(response)
        has_job = self._durable or getattr(scheduler_of(self.crawler), "ledger", None) is not None
        if has_job or request is None or request in self._refused:
            return
        if not self.crawler.stats.get_value(IN_MEMORY):
            failed = FailedRequest.of(request, "feed", exception=error)
            logger.error(
                "A feed has refused an item of %(request)s: %(error)s. Its page cannot be kept as"
                " failed: there is no JOBDIR with DurableScheduler. No more such items will be"
                " shown (see the stat %(stat)s for their pages).",
                {"request": request, "error": failed.exception, "stat": IN_MEMORY},
                extra={"spider": self.crawler.spider},
            )
        self._refused.add(request)
        self.crawler.stats.inc_value(IN_MEMORY)

    def _request_of(self, response: Any) -> Request | None:
        if response is None or isinstance(response, Failure):
            return getattr(response, "request", None)
        return self._origins.get(response, response.request)


class Plans:
    """Plans the feeds of `exporter` by its settings. Raises JobDirectoryError that names what this
    release of Scrapy lacks."""

    def __init__(self, exporter: FeedExporter) -> None:
        self._exporter = exporter
        self._crawler = exporter.crawler
        self._view = FeedExporterView(exporter)
        self._storages: dict[str, Any] = {}

    def is_durable(self, template: str) -> bool:
        """Return False for a feed that cannot be cut: standard output, a device, a pipe."""
        storage = self._storage_of(template, self._exporter.feeds[template])
        if not is_local(storage):
            return not isinstance(storage, StdoutFeedStorage)
        path = local_path(storage)
        return path.is_file() or not path.exists()

    def plan(self, feed: Feed, options: dict[str, Any], directory: Path) -> Plan:
        """Return how `feed` is to be written, with part files in `directory`."""
        template = feed.template
        storage = self._storage_of(template, options)
        build = partial(self._build, options)
        in_place = is_local(storage) and "postprocessing" not in options
        in_place = in_place and grows(self._exporter.exporters[options["format"]])
        return Plan(
            format=Text(build, feed.head, feed.columns) if in_place else Pickled(build),
            limit=options["batch_item_count"] or None,
            in_place=in_place,
            job=directory.parent.resolve(),
            overwrites=overwrites(storage, options) if in_place else True,
            options=options,
            build=build,
            evaluate=partial(self._evaluate, template, options),
            place=partial(self._place, options, None if in_place else directory),
        )

    def slot(self, working: Working, batch: Batch) -> FeedSlot:
        """Return Scrapy's object for `batch`, with its storage."""
        template, options = working.feed.template, working.plan.options
        self._exporter.filters.setdefault(template, self._view.filter(options))
        return self._view.slot(self._crawler.spider, template, options, batch.number, batch.uri)

    def describe(self, template: str) -> dict[str, Any]:
        """Return the options of a feed in the form of JSON, and the classes that it uses."""
        options = self._exporter.feeds[template]
        return {
            **{name: _plain(value) for name, value in options.items()},
            "exporter": global_object_name(self._exporter.exporters[options["format"]]),
            "storage": global_object_name(type(self._storage_of(template, options))),
        }

    def require_same(self, feed: Feed) -> None:
        """Raise FeedError if `feed` has options now other than those that it was begun with."""
        now = self.describe(feed.template)
        for name in sorted({*now, *feed.options}):
            if feed.options.get(name) != now.get(name):
                raise FeedError(
                    f"feed {feed.template!r} was begun with {name} {feed.options.get(name)!r}, and"
                    f" now has {now.get(name)!r}: change it back until the job is finished, or"
                    " give the feed another name, or use a new JOBDIR"
                )

    def _build(self, options: dict[str, Any], file: Any) -> BaseItemExporter:
        exporter: BaseItemExporter = build_from_crawler(
            self._exporter.exporters[options["format"]],
            self._crawler,
            file,
            fields_to_export=options["fields"],
            encoding=options["encoding"],
            indent=options["indent"],
            **options["item_export_kwargs"],
        )
        return exporter

    def _evaluate(self, template: str, options: dict[str, Any], number: int) -> str:
        before = SimpleNamespace(batch_id=number - 1) if number > 1 else None
        return self._view.evaluate(self._crawler.spider, template, options["uri_params"], before)

    def _place(self, options: dict[str, Any], directory: Path | None, batch: Batch) -> Path:
        if directory is not None:
            return directory / f"{batch.id}.part"
        return Path(batch.path or local_path(self._view.storage(batch.uri, options)))

    def _storage_of(self, template: str, options: dict[str, Any]) -> Any:
        """Return a storage of the feed's kind, built once: that may be expensive."""
        if template not in self._storages:
            self._storages[template] = self._view.storage(template, options)
        return self._storages[template]


_AS_IT_IS = (str, int, float, bool, type(None))


def _plain(value: Any) -> Any:
    """Return the value of an option in the form of JSON, the same in each process. Sets are sorted;
    classes and functions become their names, other objects those of their types."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(_plain, value), key=json.dumps)
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, _AS_IT_IS):
        return value
    if isinstance(value, partial):
        return f"functools.partial of {_plain(value.func)}"
    if isinstance(value, (bytes, PurePath)):
        return str(value)
    return global_object_name(value if hasattr(value, "__qualname__") else type(value))
