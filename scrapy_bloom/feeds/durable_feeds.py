"""The durable feeds of a round in one run of the job, from the opening until they are stored."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.extensions.feedexport import FeedExporter
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from twisted.internet.defer import DeferredList
from twisted.python.failure import Failure

from ..amounts import counted
from ..crawl.ledger import CommitHook
from ..crawl.origins import origins_of, request_of
from ..crawl.start_requests import give_turn
from ..errors import FeedError, message_of, unforeseen
from .open_feed import OpenFeed
from .outbox import OPEN, STORED, WAITING, Outbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from scrapy import Request
    from twisted.internet.defer import Deferred

    from ..crawl.ledger import Ledger
    from ..sqlite.rounds import Round
    from .open_feed import Plans
    from .outbox import Batch, Feed

logger = logging.getLogger("scrapy_bloom.durable.feeds.exporter")
scrapys_logger = logging.getLogger(FeedExporter.__module__)
"""For the lines that Scrapy's exporter logs too."""


class DurableFeeds(CommitHook):
    """The feeds of an exporter at `templates`, URIs in FEEDS, and those of earlier runs, with part
    files in `directory`. Raises FeedError if a feed of the round cannot go on; changes nothing.
    Cost: reads the files.

    An item belongs to its request. The commit that acknowledges the request makes the item final;
    then the item is appended to its file; the next commit records that. Recovery cuts the files to
    the recorded length, and goes on from there.
    """

    ledger: Ledger
    """In whose commits the feeds are written. It and `stores_empty` are set before the opening."""
    stores_empty: bool  # False if the place of a feed without items stays as it is

    def __init__(self, plans: Plans, round_: Round, directory: Path) -> None:
        self._plans = plans
        self._exporter = exporter = plans.exporter
        self._crawler = exporter.crawler
        spider = {"spider": exporter.crawler.spider}
        self._logger = logging.LoggerAdapter(logger, spider)
        self._scrapys_logger = logging.LoggerAdapter(scrapys_logger, spider)
        self._round, self._directory = round_, directory
        self.templates = plans.templates
        self.outbox = Outbox(round_.file)
        self.is_left_out: Callable[[Request], bool] = lambda _: False
        self._feeds: list[OpenFeed] = []
        self._given_up: list[tuple[Feed, BaseException]] = []
        self._is_open = self.all_stored = False
        self._origins = origins_of(exporter.crawler)
        self._stores: set[Deferred[None]] = set()  # full batches that are being stored
        self._follows_kept = round_.follows_kept
        # the feeds of a round that waited in vain for failed requests are complete
        feeds = [] if self._follows_kept else self.outbox.feeds()
        ours = [feed for feed in feeds if feed.round == round_.number]
        if left := [feed for feed in ours if feed.template not in self.templates]:
            from .left import name_as_now, require_others

            name_as_now(left, plans, {*self.templates} - {feed.template for feed in ours})
        for feed in feeds:
            is_left = feed.round != round_.number or feed.template not in self.templates
            options = feed.options if is_left else exporter.feeds[feed.template]
            plans.require_same(feed, options)
            try:
                working = self._opened(feed, options)
                working.check(Path(round_.file.name).name)
            except FeedError as error:
                if not is_left:
                    raise FeedError(
                        f"{error}, so feed {feed.template!r} cannot go on. Put the file back as"
                        " this job has left it; or leave the feed out of FEEDS, or give it another"
                        " name, until the job is finished: what was scraped before is not written"
                        " again"
                    ) from error
                self._given_up.append((feed, error))
            else:
                working.is_left = is_left
                self._feeds.append(working)
        if left := [feed for feed in left if feed.template not in self.templates]:
            require_others(left, plans, self.new)

    @property
    def has_any(self) -> bool:
        """True if there are feeds to write, to complete, to give up or to forget."""
        return bool(self.templates or self._feeds or self._given_up or self._follows_kept)

    @property
    def is_in_place(self) -> bool:
        """True if each feed of the exporter is a file to which final items are appended."""
        is_open = self._is_open or not self.has_any
        all_durable = self._exporter.feeds.keys() <= {*self.templates}
        return is_open and all_durable and all(working.in_place for working in self._feeds)

    @property
    def new(self) -> list[str]:
        """The templates of feeds that no earlier run of the round has begun."""
        going_on = {working.feed.template for working in self._feeds if not working.is_left}
        return [template for template in self.templates if template not in going_on]

    def _opened(self, feed: Feed, options: dict[str, Any]) -> OpenFeed:
        kind = OpenFeed
        if not self._plans.grows(feed.template, options):
            from .waiting import WaitingFeed

            kind = WaitingFeed
        return kind(self._plans, self.outbox, feed, options, self._directory)

    # -- opening -------------------------------------------------------------------

    def give_up(self) -> None:
        """Forget feeds that cannot go on. Their items may be lost, so no page of the job is done,
        nor equal to what it was, for later rounds. Raises sqlite3.Error."""
        facts = ", ".join(f"{n} = SUBSTR({n}, 1, 0)" for n in ("digest", "version", "validators"))
        for feed, why in self._given_up:
            self._logger.warning("Feed %s stays as it is: %s", feed.template, why)
            self.outbox.remove_feed(feed)
            self._round.file.execute(f"UPDATE delta_pages SET time = NULL, {facts}")  # noqa: S608

    async def open(self) -> None:
        """Go on with the feeds of the round, or begin them. An error stops the ledger."""
        if not self._round.awaits_feeds:
            return
        try:
            # before the commit hooks that make durable what the feeds write
            self.ledger.commit_hooks.insert(0, self)
            self._round.begin()  # forgets the feeds of the last one
            self.recover()
            self._commit()
            if self._follows_kept:
                self._remove_parts()
            self._is_open = True
            await self._close([working for working in self._feeds if working.is_left])
            for template in self.new:
                self._begin(template)
            self._commit()
        # whatever it is, nothing may be acknowledged; Twisted may hold back a Ctrl-C
        except BaseException as error:  # noqa: BLE001
            self.ledger.stop(error)

    def recover(self) -> None:
        """Recover the feeds after the last run: drop the items of requests that are repeated, write
        final ones. Raises OSError, sqlite3.Error, FeedError."""
        self.outbox.drop_unfinished()
        for working in self._feeds:
            for batch in working.feed.batches:
                self.outbox.save_batch(batch)  # whose job may have moved
                if batch.state == OPEN:
                    batch.file.prepare()
                    if working.is_full(batch):
                        self._store_soon(working, batch)
        self.after_commit()

    def _begin(self, template: str) -> None:
        if self._round.is_resumed:
            what = "Feed %s begins now: the items that were scraped before are not in it"
            self._logger.info(what, template)
        options = self._exporter.feeds[template]
        described = self._plans.describe(template, options)
        feed = self.outbox.add_feed(self._round.number, template, described)
        self._feeds.append(self._opened(feed, options))
        self._feeds[-1].next_batch()

    # -- items ---------------------------------------------------------------------

    def add(self, item: Any, response: Any, *, is_start_item: bool) -> None:
        """Add `item` to the feeds that accept it. Raises what an exporter raises; an error of the
        job's file stops the ledger."""
        if self.ledger.stopped or not self._is_open:
            return
        origin, filters, digest = self._origin(response), self._exporter.filters, None
        try:
            for working in self._feeds:
                if not working.is_left and filters[working.feed.template].accepts(item):
                    exported = working.export(item)
                    if is_start_item:
                        from ..crawl.forms import digest_of

                        digest = digest_of(item, exported, working.options["fields"])
                    with self.ledger.guarded(sqlite3.Error, OSError, OverflowError, MemoryError):
                        self.outbox.add_item(working.feed.id, origin, exported, digest)
        except KeyboardInterrupt as error:  # some feeds have the item, and Twisted may hold it back
            self.ledger.stop(error)
        self.ledger.pushed()

    def _origin(self, response: Any) -> Request:
        """Return the request whose acknowledgement makes an item of `response` final."""
        is_known = isinstance(response, Failure) or response in self._origins
        request = request_of(self._crawler, response) if is_known else None
        if request is None or request not in self.ledger.in_flight.running:
            return self.ledger.in_flight.stand_in()
        return request

    # -- commits -------------------------------------------------------------------

    def before_commit(self, acknowledged: Sequence[Request]) -> None:
        """Make the items of these requests final."""
        for request in acknowledged:
            self.outbox.finish(request, self.is_left_out)
        for working in self._feeds:
            working.make_room()

    def after_commit(self) -> None:
        """Append final items to their files."""
        for working in self._feeds:
            for batch in working.write():
                if working.is_full(batch):
                    self._store_soon(working, batch)

    def _commit(self) -> None:
        """Make the state of all files durable. Raises sqlite3.Error, FeedError."""
        self._round.commit()
        if self.ledger.failed:
            raise FeedError("the stored requests failed")

    # -- storing -------------------------------------------------------------------

    def _store_soon(self, working: OpenFeed, batch: Batch) -> None:
        """Store a full batch while the crawl goes on."""

        async def store() -> None:
            # not in the commit that has made it full, nor after the last one: see `finish`
            await give_turn()
            if not self.ledger.stopped:
                await self._store(working, batch)

        stored = deferred_from_coro(store())
        self._stores.add(stored)
        stored.addBoth(lambda _: self._stores.discard(stored))

    async def finish(self) -> None:
        """Complete the feeds, and end the round if it waits for nothing else. Errors are logged.
        After a failed commit they stay as they are, since the next start knows no more."""
        if not self._is_open or self.ledger.failed:
            return
        try:
            self._commit()
            if failed := await self._close([*self._feeds]):
                self._logger.error(
                    "%s could not be stored: %s. What is missing is kept in %s; the next start of"
                    " the job tries again.",
                    *(counted(len(failed), "feed"), ", ".join(failed), self._directory),
                )
                return
            self.all_stored = True
            if self._round.file.is_empty and self._round.feeds_stored():
                self._feeds.clear()
                self._remove_parts()
        except Exception as error:
            self._logger.error(
                "The feeds could not be completed: %s. The next start of the job tries again.",
                message_of(self.ledger.named(error)),
                exc_info=unforeseen(error, sqlite3.Error, OverflowError),
            )

    async def _close(self, feeds: Iterable[OpenFeed]) -> list[str]:
        """Store the batches of `feeds`, behind full ones, and forget those of an earlier round.
        Return the URIs of batches that failed."""
        await maybe_deferred_to_future(DeferredList([*self._stores]))
        failed: list[str] = []
        for working in feeds:
            batches = [each for each in working.feed.batches if each.state != STORED]
            left = [each.uri for each in batches if not await self._store(working, each)]
            self._commit()
            if working.is_left and not left:
                self._feeds.remove(working)
                if working.feed.round != self._round.number:
                    self.outbox.remove_feed(working.feed)
            failed += left
        return failed

    async def _store(self, working: OpenFeed, batch: Batch) -> bool:
        """Store what is new of a batch, with the signals, stats and log lines of Scrapy's exporter,
        and forget a full one. Return False after a logged error."""
        items = working.unstored(batch)
        stores_empty = self.stores_empty and working.options["store_empty"] and batch.number == 1
        if items is not None and (batch.items or stores_empty):
            slot = working.slot(batch, items)
            what = f"{slot.format} feed ({items} items) in: {slot.uri}"
            end = "failed"
            try:
                if batch.state == WAITING:  # it has no items
                    working.begin_batch(batch)
                    self._commit()
                await working.store(batch, slot.storage, self._commit)
                self.outbox.save_batch(batch)
                self._scrapys_logger.info("Stored %s", what)
                end = "success"
            except Exception:
                self._scrapys_logger.exception("Error storing %s", what)
            self._crawler.stats.inc_value(f"feedexport/{end}_count/{type(slot.storage).__name__}")
            await self._crawler.signals.send_catch_log_async(signals.feed_slot_closed, slot=slot)
            if end == "failed":
                return False
        if working.is_full(batch):
            self.outbox.end_batch(working.feed, batch)
        return True

    def _remove_parts(self) -> None:
        """Remove the part files, and their directory if nothing else is in it."""
        with suppress(OSError):
            for part in (p for p in self._directory.glob("*.part") if p.stem.isdecimal()):
                part.unlink()
            self._directory.rmdir()
