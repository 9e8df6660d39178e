"""Which start requests a crawl has taken, so that each is sent once by all its workers."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.utils.asyncio import call_later
from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from twisted.internet.defer import Deferred

from ..scrapy_compat import start_again
from ..settings import repeats_start
from ..sqlite_backend.start_requests import key_of

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from ..job.ledger import Ledger
    from .dupefilter import RedisBloomDupeFilter
    from .protocol import Reply
    from .request_store import RedisStore

logger = logging.getLogger("scrapy_bloom.distributed.start_requests")

SENT_AT_ONCE = 100


class SharedStartRequests:
    """Spider middleware, the last one before the engine, which knows the start requests.

    A start request is what arrives here, and is known by identity until it is scheduled:
    its meta is copied to retries, redirects and children. Its mark, its key and the
    number among those with that key in this run of start(), goes to Redis with it, where those
    that any worker has sent are left out. start() is not run where it is through for the whole
    crawl; it is run again by a worker that learns that it is not: in a new round, or where
    Redis has forgotten it. Only the worker that has run it says that it is through.
    """

    def __init__(self, crawler: Crawler) -> None:
        if repeats_start(crawler.settings):
            raise ValueError(
                "BLOOM_REPEAT_START is True, and the start requests of a crawl in Redis are sent"
                " once: leave it out, and begin a new round with BLOOM_REDIS_ROUND"
            )
        self._crawler = crawler
        self._offered: Request | None = None
        self._mark = self._old_mark = b""
        self._met: Counter[bytes] = Counter()
        self._in_memory: dict[Request, bytes] = {}
        self._began_as: tuple[int, str] | None = None
        self._is_through = False
        self._is_running = False
        self._has_passed = False
        self.failed = False
        """True if start() has raised something."""

    def open(
        self,
        store: RedisStore,
        ledger: Ledger,
        dupefilter: RedisBloomDupeFilter,
        *,
        done: bool,
    ) -> None:
        """Begin to work; `done` if start() is through for the crawl."""
        self._store = store
        self._ledger = ledger
        self._dupefilter = dupefilter
        ledger.participants.append(self)
        self._round = store.round
        self._is_through = done
        store.starting = not done

    def heard(self, reply: Reply) -> None:
        """Run start() again if it is not through, and this worker has not run it in this round
        and under its name."""
        if reply.round != self._round:
            self._round = reply.round
            self._in_memory.clear()
            logger.info(
                "The crawl is in round %(round)r now.",
                {"round": self._round},
                extra={"spider": self._crawler.spider},
            )
        if not self._has_passed:
            self._is_through = reply.start_done
            self._store.starting = not reply.start_done
        elif not (reply.start_done or self._is_running or self._began_as == self._now):
            self._begin()
            deferred_from_coro(self._send_again())

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Yield what the engine gets."""
        if self._need_not_run():
            return
        self._begin()
        try:
            async for thing in start:
                self._offer(thing)
                yield thing
        except Exception:
            self._fail()
            raise
        self._end()

    def process_start_requests(self, start: Iterable[Any], spider: object) -> Iterator[Any]:
        """Yield what the engine gets, with middlewares for Scrapy before 2.13."""
        if self._need_not_run():
            return
        self._begin()
        for thing in start:
            self._offer(thing)
            yield thing
        self._end()

    def stored(self, request: Request) -> None:
        """Mark `request`, which was pushed last, if it is a start request."""
        if request is self._offered:
            self._store.mark(self._mark, self._old_mark)

    def kept(self, request: Request) -> None:
        """Note that `request`, which may be a start request, lives in memory only."""
        if request is self._offered:
            self._in_memory[request] = self._mark
            self._tell()

    def fenced(self) -> None:
        """Mark none of those in memory: see `RedisStore`."""
        self._in_memory.clear()

    def before_commit(self, acknowledged: Sequence[Request]) -> None:
        """Mark the start requests in memory that are done."""
        if self._in_memory:
            for request in acknowledged:
                if mark := self._in_memory.pop(request, None):
                    self._store.note(mark=mark)
            self._tell()

    def after_commit(self) -> None:
        """Do nothing."""

    @property
    def _now(self) -> tuple[int, str]:
        return self._store.identities, self._round

    def _need_not_run(self) -> bool:
        again, self._has_passed = self._has_passed, True
        self._ledger.begin()
        return self._is_through and not again

    def _begin(self) -> None:
        self._met.clear()
        self._began_as = self._now
        self._is_running, self._is_through = True, False
        self.failed = False
        self._tell()

    def _offer(self, thing: Any) -> None:
        self._offered = None
        if isinstance(thing, Request):
            fingerprint = self._dupefilter.fingerprint(thing)
            self._offered = thing
            self._mark = self._next_mark(key_of(thing, fingerprint))
            self._old_mark = self._next_mark(fingerprint)

    def _next_mark(self, key: bytes) -> bytes:
        self._met[key] += 1
        return mark_of(key, self._met[key])

    def _end(self) -> None:
        self._offered = None
        self._is_running = False
        # a stop cancels start(), which may take that for its end
        self._is_through = self._began_as == self._now and self._crawler.engine.running
        self._tell()
        last = self._store.last
        if last is not None:
            self.heard(last)

    def _fail(self) -> None:
        self._is_running = False
        self.failed = True
        self._tell()
        logger.warning(
            "start() has failed: another worker, or the next one, runs it again.",
            extra={"spider": self._crawler.spider},
        )

    def _tell(self) -> None:
        self._store.starting = self._is_running
        self._store.start_done = self._is_through and not self._in_memory

    async def _send_again(self) -> None:
        """Give the engine what a new run of start() has, but for items."""
        with suppress(RuntimeError):  # the engine has stopped
            again, sent = await start_again(self._crawler), 0
            if again is None:
                return
            async for thing in again:
                if isinstance(thing, Request):
                    self._crawler.engine.crawl(thing)
                    sent += 1
                    if sent % SENT_AT_ONCE == 0:
                        await _give_turn()


def mark_of(key: bytes, occurrence: int) -> bytes:
    """Return the mark of a start request: its key, and its number among those with that key."""
    return key + occurrence.to_bytes(4, "big").lstrip(b"\0")


async def _give_turn() -> None:
    turn: Deferred[None] = Deferred()
    call_later(0, turn.callback, None)
    await maybe_deferred_to_future(turn)
