"""The start requests that a crawl has taken: all its workers together send each of them once."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from scrapy import Request
from scrapy.utils.defer import deferred_from_coro

from ..crawl.settings import REPEAT_START
from ..crawl.start_requests import AT_ONCE, REPEAT_KEY, StartRequests, give_turn, key_of, mark_of
from ..scrapy_private.progress import start_again

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from ..crawl.ledger import Ledger
    from .call import Reply
    from .dupefilter import RedisBloomDupeFilter
    from .request_store import RedisStore

logger = logging.getLogger(__name__)


class SharedStartRequests(StartRequests):
    """The start requests of a crawl: each goes to Redis with its mark, and those that any worker
    has sent are left out there.

    start() does not run if it has ended for the whole crawl. It runs again in a worker that learns
    that it has not: in a new round, or if Redis went back in time. Only the worker that has run
    start() reports its end.
    """

    def __init__(self, crawler: Crawler) -> None:
        if REPEAT_START.read(crawler.settings):
            raise ValueError(
                "BLOOM_REPEAT_START is True, and the start requests of a crawl in Redis are sent"
                " once: leave it out, and begin a new round with BLOOM_REDIS_ROUND"
            )
        super().__init__(crawler)
        self._log = logging.LoggerAdapter(logger, {"spider": crawler.spider})
        self._met: Counter[bytes] = Counter()
        self._began_as: tuple[str, str] | None = None
        self._is_through = False
        self._is_running = False
        self._has_passed = self._has_told_of_repeats = False
        self.failed = False
        """True if start() has raised an error."""

    def open(
        self, store: RedisStore, ledger: Ledger, dupefilter: RedisBloomDupeFilter, *, done: bool
    ) -> None:
        """Begin to work; `done` if start() has ended for the crawl."""
        self._store = store
        self._dupefilter = dupefilter
        self._ledger = ledger
        ledger.commit_hooks.append(self)
        self._round = store.round
        self._is_through = done
        store.starting = not done

    def heard(self, reply: Reply) -> None:
        """Run start() again if it has not ended, and this worker has not run it in this round and
        under its name."""
        if reply.round != self._round:
            self._round = reply.round
            self._in_memory.clear()
            self._log.info("The crawl is in round %(round)r now.", {"round": self._round})
        if not self._has_passed:
            self._is_through = reply.start_done
            self._store.starting = not reply.start_done
        elif not (reply.start_done or self._is_running or self._began_as == self._now):
            self._run()
            deferred_from_coro(self._send_again())

    def mark_stored(self) -> None:
        """Mark the offered request, which was pushed last."""
        self._store.mark(self._mark)

    def mark_in_memory(self) -> None:
        """Record that the offered request is in memory only."""
        super().mark_in_memory()
        self._tell()

    def fenced(self) -> None:
        """Forget the marks of requests in memory: a new run of start() sends them again."""
        self._in_memory.clear()

    @property
    def _now(self) -> tuple[str, str]:
        return self._store.worker, self._round

    def _begin(self) -> bool:
        again, self._has_passed = self._has_passed, True
        self._ledger.has_begun = True
        if self._is_through and not again:
            return False
        self._run()
        return True

    def _run(self) -> None:
        self._met.clear()
        self._began_as = self._now
        self._is_running, self._is_through = True, False
        self.failed = False
        self._tell()

    def _offer(self, request: Request) -> bool:
        """Offer `request`: Redis says later whether a worker has taken it."""
        key = key_of(request, self._dupefilter.fingerprint(request))
        self.offered = request
        self._met[key] += 1
        self._mark = mark_of(key, self._met[key])
        if request.meta.get(REPEAT_KEY) and not self._has_told_of_repeats:
            self._has_told_of_repeats = True
            self._log.warning(
                "%s is sent once, by one worker: bloom_repeat_start is for jobs. Have each"
                " worker log in by itself, as in a downloader middleware.",
                request,
            )
        return True

    def _take(self, mark: bytes) -> None:
        self._store.note(mark=mark)
        self._tell()

    def _end(self, *, exhausted: bool) -> None:
        self._is_running = False
        self._is_through = exhausted and self._began_as == self._now
        self._tell()
        if not (self._store.last.fenced or self._store.last.gone):
            self.heard(self._store.last)

    def _fail(self) -> None:
        self._is_running = False
        self.failed = True
        self._tell()
        self._log.warning("start() has failed: another worker, or the next one, runs it again.")

    def _tell(self) -> None:
        self._store.starting = self._is_running
        self._store.start_done = self._is_through and not self._in_memory

    async def _send_again(self) -> None:
        """Give the engine the requests of a new run of start(). Its items are dropped: only private
        names of Scrapy take them."""
        with suppress(RuntimeError):  # the engine has stopped
            again, sent = await start_again(self._crawler), 0
            if again is None:
                return
            async for thing in again:
                if isinstance(thing, Request):
                    self._crawler.engine.crawl(thing)
                    sent += 1
                    if sent % AT_ONCE == 0:
                        await give_turn()
