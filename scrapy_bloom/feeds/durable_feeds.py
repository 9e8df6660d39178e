"""The durable feeds of a round in one run of the job, from the opening until they are stored."""

from __future__ import annotations

import logging
import shutil
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.extensions.feedexport import FeedExporter
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from twisted.internet.defer import DeferredList
from twisted.python.failure import Failure

from ..amounts import counted
from ..errors import FeedError, message_of, unforeseen
from ..job.origins import origins_of, request_of
from ..job.start_requests import give_turn
from .outbox import OPEN, WAITING, Outbox
from .plans import OpenFeed, Plans, follow_job
from .writing import FeedWriter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scrapy import Request
    from twisted.internet.defer import Deferred

    from ..job.ledger import Ledger
    from ..sqlite_backend.rounds import Round
    from .outbox import Batch, Feed

logger = logging.getLogger("scrapy_bloom.durable.feeds.exporter")
scrapys_logger = logging.getLogger(FeedExporter.__module__)
"""For the lines that Scrapy's exporter logs too."""


class DurableFeeds:
    """The feeds of an exporter at `templates`, URIs in FEEDS, and those of earlier runs, with part
    files in `directory`. Raises FeedError if a feed of the round cannot go on; changes nothing.
    Cost: reads the files."""

    def __init__(self, plans: Plans, round_: Round, directory: Path) -> None:
        self._plans = plans
        self._exporter = exporter = plans.exporter
        self._crawler = exporter.crawler
        self._round = round_
        self._directory = directory
        self.templates = [uri for uri in exporter.feeds if plans.is_durable(uri)]
        self.outbox = Outbox(round_.file)
        self.writer = FeedWriter(self.outbox, self._store_soon)
        self.all_stored = False
        """True when the crawl has ended and all feeds are stored."""
        self._origins = origins_of(exporter.crawler)
        self._given_up: list[tuple[Feed, FeedError]] = []
        self._is_open = False
        self._stores: set[Deferred[None]] = set()
        """Full batches that are being stored."""
        self._failed: list[str] = []
        self._follows_kept = round_.follows_kept
        # the feeds of a round that waited in vain for failed requests are complete
        for feed in [] if self._follows_kept else self.outbox.feeds():
            is_left = feed.round != round_.number or feed.template not in self.templates
            try:
                self._continue(feed, is_left=is_left)
            except FeedError as error:
                if not is_left:
                    raise
                self._given_up.append((feed, error))

    @property
    def has_any(self) -> bool:
        """True if there are feeds to write, to complete or to give up."""
        return bool(self.templates or self.writer.feeds or self._given_up)

    @property
    def is_in_place(self) -> bool:
        """True if each feed is a file to which final items are appended."""
        return self._is_open and all(working.in_place for working in self.writer.feeds)

    def attach(self, ledger: Ledger, *, stores_empty: bool) -> None:
        """Write in the commits of `ledger` as soon as the feeds are open. See
        `DurableFeedExporter.attach`."""
        self._ledger, self._stores_empty = ledger, stores_empty

    def _opened(self, feed: Feed, options: dict[str, Any]) -> OpenFeed:
        if self._plans.grows(feed.template, options):
            from .growing import GrowingFeed

            return GrowingFeed(self._plans, feed, options, self._directory)
        from .waiting import WaitingFeed

        return WaitingFeed(self._plans, feed, options, self._directory)

    def _continue(self, feed: Feed, *, is_left: bool) -> None:
        """Go on with a feed of an earlier run, or complete one that `is_left`. Raises FeedError if
        it is not as that run has left it."""
        if is_left:
            classes = ("exporter", "storage")
            options = {name: each for name, each in feed.options.items() if name not in classes}
        else:
            self._plans.require_same(feed)
            options = self._exporter.feeds[feed.template]
        try:
            working = self._opened(feed, options)
            for batch in feed.batches:
                if follow_job(batch, working.job, Path(self._round.file.name).name):
                    self.writer.changed.add(batch)
                working.check_stored(batch)
            self.writer.check(working)
        except FeedError as error:
            raise FeedError(
                f"{error}, so feed {feed.template!r} cannot go on. Put the file back as this job"
                " has left it; or leave the feed out of FEEDS, or give it another name, until the"
                " job is finished: what was scraped before is not written again"
            ) from error
        working.is_left = is_left
        self.writer.feeds.append(working)

    # -- opening -------------------------------------------------------------------

    async def open(self) -> None:
        """Continue the feeds of the round, or begin them, if it awaits them. An error stops the
        ledger."""
        ledger, writer = self._ledger, self.writer
        if not self._round.awaits_feeds:
            return
        try:
            if self._follows_kept:
                # in the commit that forgets its feeds
                self._round.begin()
            for feed, error in self._given_up:
                why = error.__cause__ or error
                message = "Feed %(feed)s stays as it is: %(error)s"
                self._log(logging.WARNING, message, feed=feed.template, error=why)
                self.outbox.remove_feed(feed)
            writer.recover()
            self._record()
            if self._follows_kept:
                shutil.rmtree(self._directory, ignore_errors=True)
            self._is_open = True
            await self._wait_for_stores()
            await self._close([working for working in writer.feeds if working.is_left])
            going_on = {working.feed.template for working in writer.feeds if not working.is_left}
            for template in self.templates:
                if template not in going_on:
                    self._begin(template)
            # before the commit hooks that make durable what the feeds write
            ledger.commit_hooks.insert(0, writer)
            ledger.commit()
        # whatever it is, nothing may be acknowledged; Twisted may hold back a Ctrl-C
        except BaseException as error:  # noqa: BLE001
            ledger.stop(error)

    def _begin(self, template: str) -> None:
        if self._round.is_resumed:
            self._log(
                logging.INFO,
                "Feed %(feed)s begins now: the items that were scraped before are not in it",
                feed=template,
            )
        options = self._exporter.feeds[template]
        feed = self.outbox.add_feed(self._round.number, template, self._plans.describe(template))
        self.writer.begin(self._opened(feed, options))

    # -- items ---------------------------------------------------------------------

    def add(self, item: Any, response: Any, *, is_start_item: bool) -> None:
        """Add `item` to the feeds that accept it. Raises any exception of an exporter; an error of
        the job's file stops the ledger."""
        ledger = self._ledger
        if ledger.stopped or not self._is_open:
            return
        origin = self._origin(response)
        for working in self.writer.feeds:
            if not working.is_left and working.accepts(item):
                exported = working.export(item)
                try:
                    self.writer.add(working, origin, exported, is_start_item=is_start_item)
                except (sqlite3.Error, OSError) as error:
                    ledger.stop(error)
                    return
        ledger.pushed()

    def _origin(self, response: Any) -> Request:
        """Return the request that owns an item of `response`: the item is final when that request
        is acknowledged."""
        is_known = isinstance(response, Failure) or response in self._origins
        request = request_of(self._crawler, response) if is_known else None
        if request is None or not self._ledger.has(request):
            return self._ledger.stand_in_for_all()
        return request

    # -- storing -------------------------------------------------------------------

    def _store_soon(self, working: OpenFeed, batch: Batch) -> None:
        """Store a full batch while the crawl goes on."""

        async def store() -> None:
            # not in the commit that has made it full
            await give_turn()
            await self._store(working, batch)

        stored = deferred_from_coro(store())
        self._stores.add(stored)
        stored.addBoth(lambda _: self._stores.discard(stored))

    async def _wait_for_stores(self) -> None:
        await maybe_deferred_to_future(DeferredList([*self._stores], consumeErrors=True))

    async def finish(self) -> None:
        """Complete the feeds in place, store the others, and end the round if it waits for nothing
        else. Does nothing if they were not opened. Errors are logged."""
        try:
            if self._is_open:
                await self._finish()
        except Exception as error:
            logger.error(
                "The feeds could not be completed: %(error)s. The next start of the job tries"
                " again.",
                {"error": message_of(error)},
                exc_info=unforeseen(error, sqlite3.Error),
                extra={"spider": self._crawler.spider},
            )

    async def _finish(self) -> None:
        self._record()
        await self._wait_for_stores()
        self._failed.clear()
        await self._close([*self.writer.feeds])
        may_end = not self._failed and self._round.is_to_be_stored
        if may_end and self._round.file.is_empty and self._round.feeds_stored():
            self.writer.feeds.clear()
            shutil.rmtree(self._directory, ignore_errors=True)
        self.all_stored = not self._failed
        if self._failed:
            self._log(
                logging.ERROR,
                "%(count)s could not be stored: %(uris)s. What is missing is kept in %(folder)s;"
                " the next start of the job tries again.",
                count=counted(len(self._failed), "feed"),
                uris=", ".join(self._failed),
                folder=self._directory,
            )

    def _log(self, level: int, message: str, **values: object) -> None:
        logger.log(level, message, values, extra={"spider": self._crawler.spider})

    async def _close(self, feeds: Iterable[OpenFeed]) -> None:
        """Store the batches of `feeds`. Forget those of an earlier round: others go on if they are
        in FEEDS again."""
        for working in feeds:
            all_stored = True
            for batch in [*working.feed.batches]:
                all_stored &= await self._store(working, batch)
            self._record()
            if working.is_left and all_stored:
                self.writer.feeds.remove(working)
                if working.feed.round != self._round.number:
                    self.outbox.remove_feed(working.feed)

    async def _store(self, working: OpenFeed, batch: Batch) -> bool:
        """Store a batch, and forget it if it was full. Return False after an error, which is
        logged."""
        is_stored = await self._is_stored(working, batch)
        if is_stored and working.is_full(batch):
            self.writer.note_stored(working, batch)
        return is_stored

    async def _is_stored(self, working: OpenFeed, batch: Batch) -> bool:
        """Complete a batch in its place, or store it. Return False after an error, which is logged.
        Signals, stats and log lines are those of Scrapy's exporter."""
        spider = self._crawler.spider
        stores_empty = self._stores_empty and working.options["store_empty"] and batch.number == 1
        if not (batch.items or stores_empty) or (items := working.unstored(batch)) is None:
            return True
        slot = working.slot(batch)
        slot.itemcount = items
        what = f"{slot.format} feed ({items} items) in: {slot.uri}"
        try:
            self._complete(working, batch)
            await working.store(batch, slot.storage, self._save)
            self.writer.changed.add(batch)
        except Exception:
            scrapys_logger.error("Error storing %s", what, exc_info=True, extra={"spider": spider})
            self._failed.append(batch.uri)
            end = "failed"
        else:
            scrapys_logger.info("Stored %s", what, extra={"spider": spider})
            end = "success"
        self._crawler.stats.inc_value(f"feedexport/{end}_count/{type(slot.storage).__name__}")
        await self._crawler.signals.send_catch_log_async(signals.feed_slot_closed, slot=slot)
        return end == "success"

    def _complete(self, working: OpenFeed, batch: Batch) -> None:
        """Make the file of a batch without items, and close it."""
        if batch.state == WAITING:
            self.writer.begin_batch(working, batch)
            self._save(batch)
        batch.file.open()
        batch.file.close()
        batch.state = OPEN

    # -- commits -------------------------------------------------------------------

    def _save(self, batch: Batch) -> None:
        """Make the state of a batch durable."""
        self.outbox.save_batch(batch)
        self._commit()

    def _record(self) -> None:
        """Make the state of all files durable."""
        self.writer.record()
        self._commit()

    def _commit(self) -> None:
        """Make the rows of the outbox durable. Raises sqlite3.Error, FeedError."""
        if self._ledger.stopped:
            self._round.commit()
            return
        self._ledger.commit()
        if self._ledger.stopped:
            raise FeedError("the stored requests failed")
