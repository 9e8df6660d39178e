"""The durable feeds of a round in one run of the job, from the opening until they are stored."""

from __future__ import annotations

import logging
import sqlite3
from typing import TYPE_CHECKING, Any

from twisted.python.failure import Failure

from ..amounts import counted
from ..crawl.ledger import CommitHook
from ..crawl.origins import origins_of, request_of
from ..errors import FeedError, message_of, unforeseen
from .open_feed import OpenFeed
from .outbox import Feed, Outbox

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scrapy import Request

    from ..crawl.ledger import Ledger
    from ..sqlite.rounds import Round
    from .open_feed import Plans

logger = logging.getLogger(__name__)


class DurableFeeds(CommitHook):
    """The feeds of an exporter at `templates`, URIs in FEEDS, and those of earlier runs. Raises
    FeedError if a feed of the round cannot go on; changes nothing. Cost: reads the files.

    An item belongs to its request. The commit that acknowledges the request makes the item final;
    then the item is appended to its file; the next commit records that. Recovery cuts the files to
    the recorded length, and goes on from there.
    """

    ledger: Ledger
    """In whose commits the feeds are written, set before the opening."""
    stores_empty = True  # False if the place of a feed without items stays as it is

    def __init__(self, plans: Plans, round_: Round) -> None:
        self._plans = plans
        self._exporter = exporter = plans.exporter
        self._crawler = exporter.crawler
        self._logger = logging.LoggerAdapter(logger, {"spider": exporter.crawler.spider})
        self._round = round_
        self.templates = plans.templates
        self.outbox = Outbox(round_)
        self.is_left_out: Callable[[Request], bool] = lambda _: False
        self._is_open = self.all_stored = False
        self._origins = origins_of(exporter.crawler)
        # the feeds of a round that waited in vain for failed requests are complete
        feeds = [] if round_.follows_kept else self.outbox.rows(Feed)
        self.has_any = bool(self.templates or feeds or round_.follows_kept)
        """True if there are feeds to write, to complete, to give up or to forget."""
        self._feeds: list[OpenFeed] = []
        if not all(feed.of == round_.number and plans.have(feed) for feed in feeds):
            from .left import sort_out

            feeds, self._feeds = sort_out(feeds, plans, round_, self._opened)
        for feed in feeds:
            working = self._opened(feed, exporter.feeds[feed.template])
            self._feeds.append(working)
            try:
                working.check()
            except FeedError as error:
                raise FeedError(
                    f"{error}, so feed {feed.template!r} cannot go on. Put the file back as"
                    " this job has left it; or leave the feed out of FEEDS, or give it another"
                    " name, until the job is finished: what was scraped before is not written again"
                ) from error

    @property
    def is_in_place(self) -> bool:
        """True if each feed of the exporter is a file to which final items are appended."""
        is_open = self._is_open or not self.has_any
        all_durable = self._exporter.feeds.keys() <= {*self.templates}
        return is_open and all_durable and all(each.in_place for each in self._feeds)

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
        return kind(self._plans, self.outbox, feed, options)

    # -- opening -------------------------------------------------------------------

    async def open(self) -> None:
        """Go on with the feeds of the round, or begin them. An error stops the ledger."""
        if not self._round.awaits_feeds:
            return
        try:
            # before the commit hooks that make durable what the feeds write
            self.ledger.commit_hooks.insert(0, self)
            self._round.begin()  # forgets the feeds of the last one
            self.recover()
            self.outbox.commit()
            self._is_open = True
            await self._close([working for working in self._feeds if working.is_left])
            for template in self.new:
                self._begin(template)
            self.outbox.commit()
        # whatever it is, nothing may be acknowledged; Twisted may hold back a Ctrl-C
        except BaseException as error:  # noqa: BLE001
            self.ledger.stop(error)

    def recover(self) -> None:
        """Recover the feeds after the last run: drop the items of requests that are repeated, write
        final ones. Raises OSError, sqlite3.Error, FeedError."""
        self.outbox.drop_unfinished()
        for working in self._feeds:
            working.recover()

    def _begin(self, template: str) -> None:
        if self._round.is_resumed:
            what = "Feed %s begins now: the items that were scraped before are not in it"
            self._logger.info(what, template)
        options = self._exporter.feeds[template]
        described = self._plans.describe(template, options)
        feed = Feed(of=self._round.number, template=template, options=described)
        self._feeds.append(self._opened(feed, options))
        self._feeds[-1].plan()

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
            working.write()

    # -- the end -------------------------------------------------------------------

    async def finish(self) -> None:
        """Complete the feeds, and end the round if it waits for nothing else. Errors are logged.
        After a failed commit they stay as they are, since the next start knows no more."""
        if not self._is_open or self.ledger.failed:
            return
        try:
            self.outbox.commit()
            if failed := await self._close([*self._feeds]):
                self._logger.error(
                    "%s could not be stored: %s. What is missing is kept in %s; the next start of"
                    " the job tries again.",
                    *(counted(len(failed), "feed"), ", ".join(failed), self._round.file.name),
                )
                return
            self.all_stored = True
            if self._round.file.is_empty:
                self._round.feeds_stored()
        except Exception as error:
            self._logger.error(
                "The feeds could not be completed: %s. The next start of the job tries again.",
                message_of(self.ledger.named(error)),
                exc_info=unforeseen(error, sqlite3.Error, OverflowError),
            )

    async def _close(self, feeds: Sequence[OpenFeed]) -> list[str]:
        """Store these feeds, and forget those of an earlier round. Return the URIs that failed."""
        failed: list[str] = []
        for working in feeds:
            left = await working.close(stores_empty=self.stores_empty)
            if working.is_left and not left:
                self._feeds.remove(working)
                if working.feed.of != self._round.number:
                    self.outbox.remove(working.feed)
            self.outbox.commit()
            failed += left
        return failed
