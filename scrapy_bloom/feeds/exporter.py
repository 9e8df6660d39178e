"""Scrapy's feed exporter, but for what becomes of an item when the process dies."""

from __future__ import annotations

import json
import logging
import pickle
import re
import shutil
import sqlite3
from functools import partial
from io import BytesIO
from pathlib import Path, PurePath
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from scrapy import signals
from scrapy.extensions.feedexport import FeedExporter, StdoutFeedStorage
from scrapy.utils.asyncio import call_later
from scrapy.utils.defer import (
    deferred_from_coro,
    ensure_awaitable,
    maybe_deferred_to_future,
)
from scrapy.utils.misc import build_from_crawler
from scrapy.utils.python import global_object_name
from twisted.internet.defer import Deferred, DeferredList
from twisted.python.failure import Failure

from ..errors import FeedError, describe
from ..job.failure import IN_MEMORY, FailedRequest, item_refused
from ..job.origins import StartItems, origins_of
from ..job.session import session_of
from ..reporting import counted
from ..scrapy_compat import FeedExporterView, scheduler_of
from ..startup import announce
from .feeds import Feeds, Plan, Working
from .formats import Divided, Pickled, Written, is_divisible
from .outbox import OPEN, WAITING, Outbox
from .storing import Part, check_stored, is_local, is_stream_of_bytes, local_path, overwrites

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.exporters import BaseItemExporter
    from scrapy.extensions.feedexport import FeedSlot
    from typing_extensions import Self

    from ..job.ledger import Ledger
    from ..sqlite_backend.rounds import Round
    from .formats import Format
    from .outbox import Batch, Feed

logger = logging.getLogger("scrapy_bloom.durable.feeds.exporter")
scrapys_logger = logging.getLogger(FeedExporter.__module__)
"""For the lines that Scrapy's exporter logs too."""


class DurableFeedExporter(FeedExporter):
    """Extension in the place of Scrapy's, with the same settings, whose feeds hold each
    item once when the crawl is finished, however often the process died.

    That needs DurableScheduler and JOBDIR; else it is Scrapy's, and so is a feed to
    standard output. With RedisDurableScheduler and a JOBDIR for each worker they hold each
    item at least once. Local files get an item when the request that it came from is
    acknowledged; other feeds are put together in JOBDIR and stored when the spider
    closes.

    An item that a feed cannot take is logged by Scrapy, and `item_refused` is sent.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._refused: WeakSet[Request] = WeakSet()
        self._scrapys: set[str] = set()
        """Feeds that stay as Scrapy does them."""
        self._storages: dict[str, Any] = {}
        self._ledger: Ledger | None = None
        self._round: Round | None = None
        self._directory: Path | None = None
        self._feeds: Feeds | None = None
        self._left: list[Working] = []
        """Feeds of an earlier run that are to be finished, and no more."""
        self._given_up: list[tuple[Feed, FeedError]] = []
        self.start_items = StartItems(crawler)
        """Goes into the way of what `Spider.start()` yields."""
        self._origins = origins_of(crawler)
        self._repeats = False
        self._stores_empty = True
        self._has_told_of_unpicklable = False
        self._is_open = False
        self._stores: set[Deferred[None]] = set()
        """Full batches that are being stored."""
        self._failed: list[str] = []
        self.all_stored = False
        """True when the crawl has ended and all its feeds hold what they should."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Connect the exporter, and end its use of the job when the spider is closed, also where
        a subclass has a `close_spider` that does not call this one."""
        self = super().from_crawler(crawler)
        crawler.signals.disconnect(self.close_spider, signals.spider_closed)
        crawler.signals.connect(self._spider_closed, signals.spider_closed)
        return self

    @property
    def is_in_place(self) -> bool:
        """True if each feed is a file that gets the items when they are final."""
        if self._scrapys or not (self._is_open or self._feeds is None):
            return False
        feeds = [] if self._feeds is None else self._feeds.working.values()
        return all(working.plan.in_place for working in feeds)

    # -- what Scrapy calls ---------------------------------------------------------

    def open_spider(self, spider: Spider) -> Any:
        """Go on with the feeds of the round, or begin them."""
        if self._feeds is None:
            return super().open_spider(spider)
        feeds = self.feeds
        self.feeds = {uri: options for uri, options in feeds.items() if uri in self._scrapys}
        super().open_spider(spider)
        self.feeds = feeds
        return self._open(spider)

    def item_scraped(self, item: Any, spider: Spider, response: Any = None) -> None:
        """Export `item`."""
        try:
            super().item_scraped(item, spider)
            self._add(item, response)
        except Exception as error:
            self._tell_of_refused(response, error)
            raise

    def _add(self, item: Any, response: Any) -> None:
        ledger, feeds = self._ledger, self._feeds
        if feeds is None or ledger is None or ledger.stopped or not self._is_open:
            return
        origin = self._origin(response)
        is_start_item = response is None and self.start_items.take(item)
        for template, working in feeds.working.items():
            if self.filters[template].accepts(item):
                exported = self._export(item, working.plan.format, origin, ledger)
                try:
                    feeds.add(working, origin, exported, is_start_item=is_start_item)
                except (sqlite3.Error, OSError) as error:
                    ledger.stop(error)
                    return
        ledger.pushed()

    async def close_spider(self, spider: Spider) -> None:
        """Store the feeds that are not written as the crawl goes, and complete those
        that are."""
        try:
            if self._is_open:
                await self._finish(spider)
        except Exception as error:
            logger.error(
                "The feeds could not be completed: %(error)s. The next start of the job tries"
                " again.",
                {"error": describe(error)},
                exc_info=True,
                extra={"spider": spider},
            )
        await super().close_spider(spider)

    async def _spider_closed(self, spider: Spider) -> None:
        try:
            await ensure_awaitable(self.close_spider(spider))
        finally:
            session_of(self.crawler).end(self)

    # -- what the scheduler calls --------------------------------------------------

    def attach(
        self,
        ledger: Ledger,
        round_: Round,
        directory: Path,
        *,
        repeats: bool = False,
        stores_empty: bool = True,
    ) -> None:
        """Write in the commits of `ledger` from when the spider is open, and put together in
        `directory` what is stored at the end. It `repeats` items where their requests are
        acknowledged later than they are final. Unless it `stores_empty` feeds, the place of a
        feed without items stays as it is.

        Raises FeedError if a feed of the round cannot go on; changes no feed.
        """
        self._repeats, self._stores_empty = repeats, stores_empty
        durable = self.look(round_, directory)
        assert self._feeds is not None
        round_.at_end.append(self._feeds.outbox.empty)
        self._announce(durable, "at least once" if repeats else "once")
        if not (durable or self._left or self._given_up):
            self._feeds = None
            return
        self._ledger, self._round = ledger, round_
        round_.awaits_feeds = True
        session_of(self.crawler).begin(self)

    def look(self, round_: Round, directory: Path) -> list[str]:
        """Take up the feeds of a round, and return those of FEEDS that are durable. Raises
        FeedError if one cannot go on; changes nothing. Cost: reads the files."""
        self._view = FeedExporterView(self)
        self._directory = directory
        outbox = Outbox(round_.file)
        # the feeds of a round that has waited in vain are whole
        known = [] if round_.follows_kept else outbox.feeds()
        self._scrapys = {uri for uri in self.feeds if self._is_scrapys(uri)}
        durable = [uri for uri in self.feeds if uri not in self._scrapys]
        self._feeds = Feeds(outbox, self._store_soon)
        self._left, self._given_up = [], []
        for feed in known:
            if feed.round == round_.number and feed.template in durable:
                self._require_same(feed)
                self._feeds.working[feed.template] = self._check(feed, self.feeds[feed.template])
            else:
                self._give_up_or_finish(feed)
        return durable

    def _announce(self, durable: list[str], how_often: str) -> None:
        others = sorted(self._scrapys)
        how = [f"{counted(len(durable), 'feed')} with each item {how_often}"] if durable else []
        if others:
            how.append(f"{', '.join(others)} as Scrapy does it")
            warn_of_losses(self.crawler, others, "they are no files of their own")
        announce(self.crawler, "items", ", ".join(how))

    def _require_same(self, feed: Feed) -> None:
        now = self._describe(feed.template)
        options = {**now, **self.feeds[feed.template]}
        for name in sorted({*now, *feed.options}):
            if not _is_same(feed.options.get(name), options.get(name)):
                raise FeedError(
                    f"feed {feed.template!r} was begun with {name} {feed.options.get(name)!r}, and"
                    f" now has {now.get(name)!r}: change it back until the job is finished, or"
                    " give the feed another name, or use a new JOBDIR"
                )

    def _check(self, feed: Feed, options: dict[str, Any]) -> Working:
        assert self._feeds is not None
        plan = self._plan(feed.template, options, feed)
        try:
            for batch in feed.batches:
                check_stored(batch, options)
            return self._feeds.check(feed, plan, options)
        except FeedError as error:
            raise FeedError(
                f"{error}, so feed {feed.template!r} cannot go on. Put the file back as this job"
                " has left it; or leave the feed out of FEEDS, or give it another name, until the"
                " job is finished: what was scraped before is not written again"
            ) from error

    def _give_up_or_finish(self, feed: Feed) -> None:
        try:
            self._left.append(self._check(feed, _options_of(feed)))
        except FeedError as error:
            self._given_up.append((feed, error))

    # -- opening -------------------------------------------------------------------

    async def _open(self, spider: Spider) -> None:
        ledger, feeds = self._ledger, self._feeds
        assert ledger is not None
        assert feeds is not None
        assert self._round is not None
        try:
            if follows_kept := self._round.follows_kept:
                # in the commit that forgets its feeds
                self._round.begin()
            for feed, error in self._given_up:
                logger.warning(
                    "Feed %(feed)s stays as it is: %(error)s",
                    {"feed": feed.template, "error": error.__cause__ or error},
                    extra={"spider": spider},
                )
                feeds.outbox.remove_feed(feed)
            feeds.recover(self._left)
            feeds.record()
            self._commit()
            if follows_kept and self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)
            self._is_open = True
            await self._wait_for_stores()
            await self._store_left(spider)
            for template in self.feeds:
                if template not in self._scrapys and template not in feeds.working:
                    self._begin(template, spider)
            # before the participants that make durable what the feeds write
            ledger.participants.insert(0, feeds)
            ledger.commit()
        # whatever it is, nothing may be acknowledged; Twisted may hold back a Ctrl-C
        except BaseException as error:  # noqa: BLE001
            ledger.stop(error)

    def _begin(self, template: str, spider: Spider) -> None:
        assert self._feeds is not None
        assert self._round is not None
        options = self.feeds[template]
        if self._round.is_resumed:
            logger.info(
                "Feed %(feed)s begins now: the items that were scraped before are not in it",
                {"feed": template},
                extra={"spider": spider},
            )
        feed = self._feeds.outbox.add_feed(self._round.number, template, self._describe(template))
        self._feeds.begin(feed, self._plan(template, options, feed), options)

    def _plan(self, template: str, options: dict[str, Any], feed: Feed) -> Plan:
        storage = self._storage_of(template, options)
        build = partial(self._build, options)
        form: Format = Pickled()
        if is_divisible(self.exporters[options["format"]]):
            if is_stream_of_bytes(options):
                form = Divided(build, feed.head, feed.columns)
            elif feed.head != b"":  # 0.2.0 has begun it with items as they are
                head = feed.head and pickle.loads(feed.head)  # noqa: S301 - of this job's own file
                form = Written(Divided(build, head, feed.columns))
        in_place = is_local(storage) and "postprocessing" not in options
        in_place = in_place and isinstance(form, Divided)
        return Plan(
            format=form,
            limit=options["batch_item_count"] or None,
            in_place=in_place,
            overwrites=overwrites(storage, options) if in_place else True,
            evaluate=partial(self._evaluate, template, options),
            place=partial(self._place, options, in_place),
        )

    def _build(self, options: dict[str, Any], file: Any) -> BaseItemExporter:
        """Return the exporter of a feed over `file`."""
        exporter: BaseItemExporter = build_from_crawler(
            self.exporters[options["format"]],
            self.crawler,
            file,
            fields_to_export=options["fields"],
            encoding=options["encoding"],
            indent=options["indent"],
            **options["item_export_kwargs"],
        )
        return exporter

    def _evaluate(self, template: str, options: dict[str, Any], number: int) -> str:
        before = SimpleNamespace(batch_id=number - 1) if number > 1 else None
        return self._view.evaluate(self.crawler.spider, template, options["uri_params"], before)

    def _place(self, options: dict[str, Any], in_place: bool, batch: Batch) -> Path:
        if not in_place:
            assert self._directory is not None
            return self._directory / f"{batch.id}.part"
        if batch.path:
            return Path(batch.path)
        return local_path(self._view.storage(batch.uri, options))

    # -- items ---------------------------------------------------------------------

    def _origin(self, response: Any) -> Request:
        """Return the request whose acknowledgement makes an item final that came with
        `response`."""
        assert self._ledger is not None
        if isinstance(response, Failure):
            request: Request | None = getattr(response, "request", None)
        else:
            request = None if response is None else self._origins.get(response)
        if request is None or not self._ledger.has(request):
            return self._ledger.together()
        return request

    def _export(self, item: Any, form: Format, origin: Request, ledger: Ledger) -> bytes:
        """Return `item` as it waits. Raises whatever the exporter does."""
        try:
            return form.export(item)
        except Exception as error:
            if not isinstance(form, Pickled):
                raise
            if not self._has_told_of_unpicklable:
                self._has_told_of_unpicklable = True
                logger.warning(
                    "Items of %(kind)s cannot be pickled (%(error)s): they wait in memory until"
                    " their feed, which is written by an exporter of your own, is stored. If the"
                    " process is killed before, %(what)s.",
                    {
                        "kind": global_object_name(type(item)),
                        "error": error,
                        "what": "they are lost" if self._repeats else "their pages are repeated",
                    },
                    extra={"spider": self.crawler.spider},
                )
            if not self._repeats:
                ledger.postpone(origin)
            return form.keep(item)

    def _tell_of_refused(self, response: Any, error: Exception) -> None:
        self.crawler.signals.send_catch_log(item_refused, response=response, error=error)
        request = self._request_of(response)
        ledger = self._ledger or getattr(scheduler_of(self.crawler), "ledger", None)
        if ledger is not None or request is None or request in self._refused:
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

    # -- storing -------------------------------------------------------------------

    def _store_soon(self, working: Working, batch: Batch) -> None:
        """Store a full batch while the crawl goes on."""
        spider = self.crawler.spider
        assert spider is not None

        async def store() -> None:
            assert self._feeds is not None
            # not in the commit that has made it full
            turn: Deferred[None] = Deferred()
            call_later(0, turn.callback, None)
            await maybe_deferred_to_future(turn)
            if await self._store(working, batch, spider):
                self._feeds.note_stored(working, batch)

        stored = deferred_from_coro(store())
        self._stores.add(stored)
        stored.addBoth(lambda _: self._stores.discard(stored))

    async def _finish(self, spider: Spider) -> None:
        assert self._feeds is not None
        self._feeds.record()
        self._commit()
        await self._wait_for_stores()
        self._failed.clear()
        await self._store_left(spider)
        await self._store_all(spider)
        self.all_stored = not self._failed
        if self._failed:
            logger.error(
                "%(count)s could not be stored: %(uris)s. What is missing is kept in %(folder)s;"
                " the next start of the job tries again.",
                {
                    "count": counted(len(self._failed), "feed"),
                    "uris": ", ".join(self._failed),
                    "folder": self._directory,
                },
                extra={"spider": spider},
            )

    async def _store_all(self, spider: Spider) -> None:
        """Store all feeds, and end the round if that is what it waited for."""
        assert self._feeds is not None
        assert self._round is not None
        with_memory = await self._store_memory(spider)
        for working in self._feeds.working.values():
            if working not in with_memory:
                await self._close(working, spider)
        if self._failed or self._left or not self._round.is_to_be_stored:
            return
        if not self._round.file.is_empty or not self._round.feeds_stored():
            return
        self._feeds.working.clear()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    async def _store_memory(self, spider: Spider) -> list[Working]:
        """Store the feeds with items in memory, if the round ends with them, and acknowledge the
        pages of those items; return those feeds."""
        ledger, feeds, round_ = self._ledger, self._feeds, self._round
        assert ledger is not None
        assert feeds is not None
        assert round_ is not None
        if not (round_.is_to_be_stored and ledger.waits_for_postponed):
            return []
        with_memory = []
        for working in feeds.working.values():
            form = working.plan.format
            if isinstance(form, Pickled) and form.has_kept:
                dealt = {
                    batch: [*form.items(BytesIO(data := b"".join(items)), len(data))]
                    for batch, items in feeds.deal_unfinished(working).items()
                }
                await self._close(working, spider, dealt)
                with_memory.append(working)
        if not self._failed:
            for working in with_memory:
                feeds.outbox.drop_unfinished_of(working.feed)
            # a retry stores the feed again, without what was in memory
            goes_on = round_.has_failed or ledger.has_failures
            ledger.acknowledge_postponed(FeedError(_IN_MEMORY_ONLY) if goes_on else None)
            feeds.record()
            self._commit()
        return with_memory

    async def _store_left(self, spider: Spider) -> None:
        """Store the feeds that go no further, and forget those of an earlier round: others go
        on if they are in FEEDS again."""
        assert self._feeds is not None
        assert self._round is not None
        left, self._left = self._left, []
        for working in left:
            if not await self._close(working, spider):
                self._left.append(working)
            elif working.feed.round != self._round.number:
                self._feeds.outbox.remove_feed(working.feed)

    async def _close(
        self,
        working: Working,
        spider: Spider,
        in_memory: Mapping[Batch, Sequence[Any]] = MappingProxyType({}),
    ) -> bool:
        """Store the batches of a feed, with the items of each that are `in_memory`; return
        False if one could not be."""
        assert self._feeds is not None
        all_stored = True
        for batch in [*working.feed.batches]:
            is_stored = await self._store(working, batch, spider, in_memory.get(batch, ()))
            all_stored = all_stored and is_stored
            if is_stored and working.is_full(batch):
                self._feeds.note_stored(working, batch)
        self._feeds.record()
        self._commit()
        return all_stored

    async def _wait_for_stores(self) -> None:
        await maybe_deferred_to_future(DeferredList([*self._stores], consumeErrors=True))

    async def _store(
        self, working: Working, batch: Batch, spider: Spider, in_memory: Sequence[Any] = ()
    ) -> bool:
        """Complete a batch where it belongs; return False, and say why, if it cannot be
        done. Sends signals, counts and logs as Scrapy's exporter does."""
        options = working.options
        has_items = batch.items or in_memory
        stores_empty = self._stores_empty and options["store_empty"] and batch.number == 1
        if not has_items and not stores_empty:
            return True
        slot = self._slot(working, batch)
        save = partial(self._save, batch)
        part = Part(working, batch, slot.storage, partial(self._build, options), save, in_memory)
        slot.itemcount = batch.items if working.plan.in_place else part.items
        assert self._feeds is not None
        stays = part.holds_more or working.feed.template not in self._feeds.working
        if not working.plan.in_place and part.is_stored and (stays or not slot.itemcount):
            return True
        what = f"{slot.format} feed ({slot.itemcount} items) in: {slot.uri}"
        kind = type(slot.storage).__name__
        try:
            if working.plan.in_place:
                self._complete(working, batch)
            else:
                await part.store(spider)
            self._feeds.note_changed(batch)
        except Exception:
            scrapys_logger.error("Error storing %s", what, exc_info=True, extra={"spider": spider})
            self.crawler.stats.inc_value(f"feedexport/failed_count/{kind}")
            self._failed.append(batch.uri)
            is_stored = False
        else:
            scrapys_logger.info("Stored %s", what, extra={"spider": spider})
            self.crawler.stats.inc_value(f"feedexport/success_count/{kind}")
            is_stored = True
        await self.crawler.signals.send_catch_log_async(signals.feed_slot_closed, slot=slot)
        return is_stored

    def _complete(self, working: Working, batch: Batch) -> None:
        """Write the foot of a batch in its own file."""
        assert self._feeds is not None
        if batch.state == WAITING:
            self._feeds.begin_batch(working, batch)
            self._save(batch)
        working.files[batch].finish(working.foot(batch))
        batch.state = OPEN

    def _save(self, batch: Batch) -> None:
        """Make durable how far a batch has come."""
        assert self._feeds is not None
        self._feeds.outbox.save_batch(batch)
        self._commit()

    def _commit(self) -> None:
        """Make durable what was written to the outbox. Raises sqlite3.Error, FeedError."""
        assert self._ledger is not None
        assert self._round is not None
        if self._ledger.stopped:
            self._round.commit()
            return
        self._ledger.commit()
        if self._ledger.stopped:
            raise FeedError("the stored requests failed")

    # ------------------------------------------------------------------------------

    def _slot(self, working: Working, batch: Batch) -> FeedSlot:
        template = working.feed.template
        self.filters.setdefault(template, self._view.filter(working.options))
        return self._view.slot(
            self.crawler.spider, template, working.options, batch.number, batch.uri
        )

    def _storage_of(self, template: str, options: dict[str, Any]) -> Any:
        """Return a storage of the kind that a feed has."""
        if template not in self._storages:
            self._storages[template] = self._view.storage(template, options)
        return self._storages[template]

    def _is_scrapys(self, template: str) -> bool:
        """Return True for what cannot be cut: standard output, a device, a pipe."""
        storage = self._storage_of(template, self.feeds[template])
        if not is_local(storage):
            return isinstance(storage, StdoutFeedStorage)
        path = local_path(storage)
        return path.exists() and not path.is_file()

    def _describe(self, template: str) -> dict[str, Any]:
        """Return the options of a feed as JSON has them, and the classes that it uses."""
        options = self.feeds[template]
        return {
            **{name: _plain(value) for name, value in options.items()},
            "exporter": global_object_name(self.exporters[options["format"]]),
            "storage": global_object_name(type(self._storage_of(template, options))),
        }


def warn_of_losses(crawler: Crawler, uris: list[str], why: str) -> None:
    """Say once which feeds can lose items, and `why`."""
    logger.warning(
        "If the process is killed, items can be missing from, or twice in, since %(why)s: %(uris)s",
        {"why": why, "uris": ", ".join(uris)},
        extra={"spider": crawler.spider},
    )


_IN_MEMORY_ONLY = "an item of it cannot be pickled, and is in its feed as that was stored"


def _options_of(feed: Feed) -> dict[str, Any]:
    """Return the options of a feed that is not in FEEDS any more."""
    return {
        name: value for name, value in feed.options.items() if name not in ("exporter", "storage")
    }


def _plain(value: Any) -> Any:
    """Return a value of an option as JSON has it, the same in each process. Sets are sorted;
    classes and functions have their names, other objects those of their types."""
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


def _is_same(stored: Any, value: Any) -> bool:
    """Return True if `value` is what was `stored` of an option: by this version, or by 0.2.0,
    which kept sets in any order, and `str()` of objects, with their addresses."""
    if isinstance(value, dict):
        values = {str(key): each for key, each in value.items()}
        return (
            isinstance(stored, dict)
            and stored.keys() == values.keys()
            and all(_is_same(stored[key], each) for key, each in values.items())
        )
    if isinstance(stored, list) and isinstance(value, (set, frozenset)):
        value = sorted(value, key=lambda each: json.dumps(_plain(each)))
        stored = sorted(stored, key=json.dumps)
    if isinstance(stored, list) and isinstance(value, (list, tuple)):
        return len(stored) == len(value) and all(map(_is_same, stored, value))
    if stored == _plain(value) or not isinstance(stored, str) or isinstance(value, _AS_IT_IS):
        return bool(stored == _plain(value))
    return _ADDRESS.sub("", stored) == _ADDRESS.sub("", str(value))


_AS_IT_IS = (str, int, float, bool, type(None))
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
