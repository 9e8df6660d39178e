"""The start requests of a round: how they are known, and followed until they are stored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.utils.asyncio import call_later
from scrapy.utils.defer import maybe_deferred_to_future
from twisted.internet.defer import Deferred

from .ledger import CommitHook

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from .ledger import Ledger
    from .origins import StartItems

AT_ONCE = 100
"""Start requests that are skipped, or sent, before the reactor has a turn."""
REPEAT_KEY = "bloom_repeat_start"
"""The meta key of a start request that is sent at each start of a job."""


def key_of(request: Request, fingerprint: bytes) -> bytes:
    """Return the key of a start request, 20 bytes that are the same in each process: of its page,
    cookies, headers that authorize, callback, cookie jar and proxy."""
    callback = getattr(request.callback, "__name__", None)
    headers = [request.headers.getlist(name) for name in ("Cookie", "Authorization")]
    jar, proxy = request.meta.get("cookiejar"), request.meta.get("proxy")
    whose = "\0".join(map(_text, (request.cookies, *headers, callback, jar, proxy)))
    whole = fingerprint + whose.encode("utf-8", "backslashreplace")
    return blake2b(whole, digest_size=20).digest()


def mark_of(key: bytes, occurrence: int) -> bytes:
    """Return the mark of a start request: its key, and its number among those with that key."""
    return key + occurrence.to_bytes(4, "big").lstrip(b"\0")


def _text(value: Any) -> str:
    """Return a text for `value` that is the same in each process, for any order of its parts."""
    if isinstance(value, dict):
        value = {f"{_text(key)}:{_text(each)}" for key, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return str(sorted(map(_text, value)))
    if value is None or isinstance(value, (str, bytes, int, float)):
        return repr(value)
    return type(value).__qualname__


class StartRequests(CommitHook, ABC):
    """Spider middleware, the last one before the engine, which marks start requests as taken: with
    the commit that stores them, or, in memory, when they are acknowledged. They are known by
    identity: their meta is copied to retries, redirects and children."""

    _skipped = 0
    items: StartItems | None = None
    """What tracks the items of `Spider.start()`."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self.offered: Request | None = None
        """The last request that the engine got from start(), until it is scheduled."""
        self._mark: Any
        """Of the offered one: None if it need not be marked."""
        self._ledger: Ledger
        self._in_memory: dict[Request, Any] = {}

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Yield the results of start() that are not skipped."""
        if not self._begin():
            return
        with self._running():
            async for thing in start:
                if self._passes(thing):
                    yield thing
                elif self._skipped % AT_ONCE == 0:
                    await give_turn()

    def process_start_requests(self, start: Iterable[Any], spider: object) -> Iterator[Any]:
        """Do the same with middlewares for Scrapy before 2.13, which Scrapy 2.14 still runs."""
        if not self._begin():
            return
        with self._running():
            for thing in start:
                if self._passes(thing):
                    yield thing

    def _begin(self) -> bool:
        """Prepare for a run of start(); return False if it need not run."""
        self._ledger.has_begun = True
        return True

    def _passes(self, thing: Any) -> bool:
        """Return True unless `thing` is a request that goes no further; track an item."""
        self.offered = None
        if isinstance(thing, Request):
            return self._offer(thing)
        if self.items is not None:
            self.items.track(thing)
        return True

    @abstractmethod
    def _offer(self, request: Request) -> bool:
        """Have `request` offered to the engine; return False if it goes no further."""

    def mark_stored(self) -> None:
        """Mark the offered request, which was stored last. Raises as the store does."""
        if self._mark is not None:
            self._take(self._mark)

    def mark_in_memory(self) -> None:
        """Record that the offered request is in memory only."""
        assert self.offered is not None
        self._in_memory[self.offered] = self._mark

    def before_commit(self, acknowledged: Sequence[Request]) -> None:
        """Mark the start requests in memory that are acknowledged."""
        for request in acknowledged if self._in_memory else ():
            if (mark := self._in_memory.pop(request, None)) is not None:
                self._take(mark)

    @contextmanager
    def _running(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self._fail()
            raise
        self.offered = None
        # a stop cancels start(), which may take that for its end
        self._end(exhausted=self._crawler.engine.running)

    @abstractmethod
    def _take(self, mark: Any) -> None:
        """Mark a start request with the next commit."""

    @abstractmethod
    def _end(self, *, exhausted: bool) -> None:
        """Note the end of start(): `exhausted`, or stopped."""

    def _fail(self) -> None:
        """Note that start() has raised an error: the round goes on at the next start."""


async def give_turn() -> None:
    """Let the reactor have a turn."""
    turn: Deferred[None] = Deferred()
    call_later(0, turn.callback, None)
    await maybe_deferred_to_future(turn)
