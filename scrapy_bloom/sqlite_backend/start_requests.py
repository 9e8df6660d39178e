"""Which start requests a round has taken, so that a resumed one does not send them again."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.utils.asyncio import call_later
from scrapy.utils.defer import maybe_deferred_to_future
from twisted.internet.defer import Deferred

from ..reporting import counted
from ..settings import repeats_start

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from ..job.ledger import Ledger
    from .request_file import RequestFile
    from .rounds import Round

logger = logging.getLogger("scrapy_bloom.durable.start_requests")

REPEAT_KEY = "bloom_repeat_start"
"""The meta key of a start request that is sent at each start of the process."""
SKIPPED_AT_ONCE = 100
"""So many start requests are skipped before the reactor has a turn."""

KEY_PREFIX = bytes(4)
"""What the keys of start requests begin with, and no fingerprint but one in 2**32."""

Occurrence = tuple[bytes, int]
"""The key of a start request, and its number among those with that key in this run."""


def key_of(request: Request, fingerprint: bytes) -> bytes:
    """Return what tells start requests apart in each process: the fingerprint, and whose they
    are by cookies, headers, callback, cookie jar and proxy."""
    callback = getattr(request.callback, "__name__", None)
    headers = [request.headers.getlist(name) for name in ("Cookie", "Authorization")]
    jar, proxy = request.meta.get("cookiejar"), request.meta.get("proxy")
    whose = "\0".join(map(_text, (request.cookies, *headers, callback, jar, proxy)))
    digest = blake2b(fingerprint + whose.encode("utf-8", "backslashreplace"), digest_size=16)
    return KEY_PREFIX + digest.digest()


def _text(value: Any) -> str:
    """Return what stands for `value` in each process, in whatever order it has its parts."""
    if isinstance(value, dict):
        value = {f"{_text(key)}:{_text(each)}" for key, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return str(sorted(map(_text, value)))
    if value is None or isinstance(value, (str, bytes, int, float)):
        return repr(value)
    return type(value).__qualname__


class TakenStartRequests:
    """The start requests in `file` that a round has taken, by occurrence.

    They stand beside the rows, and not in the filter, to which a link back to a start page
    is new. The rows of version 0.2.0 have fingerprints in the place of keys. Any method may
    raise sqlite3.Error.
    """

    def __init__(self, file: RequestFile, fingerprint: Callable[[Request], bytes]) -> None:
        self._file = file
        self._fingerprint = fingerprint

    def begin(self) -> None:
        """Begin to count the occurrences of this run."""
        # not in memory, which would grow with the start requests
        self._file.execute(
            "CREATE TEMP TABLE met_start_requests (fingerprint BLOB PRIMARY KEY,"
            " occurrences INTEGER NOT NULL) WITHOUT ROWID"
        )
        fingerprints = "SELECT 1 FROM taken_start_requests WHERE fingerprint > ? LIMIT 1"
        self._has_fingerprints = bool(self._file.query(fingerprints, (KEY_PREFIX + b"\xff" * 16,)))

    def meet(self, request: Request) -> Occurrence:
        """Return which occurrence `request` is, the next one of its key."""
        fingerprint = self._fingerprint(request)
        occurrence = self._next(key_of(request, fingerprint))
        if self._has_fingerprints:
            old = self._next(fingerprint)
            if occurrence not in self and old in self:
                self._file.execute(
                    "UPDATE taken_start_requests SET fingerprint = ?, occurrence = ?"
                    " WHERE fingerprint = ? AND occurrence = ?",
                    occurrence + old,
                )
        return occurrence

    def __contains__(self, occurrence: Occurrence) -> bool:
        """Return True if the round has taken that one."""
        taken = self._file.query(
            "SELECT 1 FROM taken_start_requests WHERE fingerprint = ? AND occurrence = ?",
            occurrence,
        )
        return bool(taken)

    def add(self, occurrence: Occurrence) -> None:
        """Note with the next commit that the round has taken that one."""
        self._file.execute("INSERT OR IGNORE INTO taken_start_requests VALUES (?, ?)", occurrence)

    def clear(self) -> None:
        """Forget them with the next commit, at the end of the round."""
        self._file.execute("DELETE FROM taken_start_requests")

    def _next(self, key: bytes) -> Occurrence:
        met = self._file.query(
            "SELECT occurrences FROM met_start_requests WHERE fingerprint = ?", (key,)
        )
        number = met[0][0] + 1 if met else 1
        self._file.execute("INSERT OR REPLACE INTO met_start_requests VALUES (?, ?)", (key, number))
        return key, number


class StartRequests:
    """Spider middleware, the last one before the engine, which leaves out the start
    requests that a round has taken.

    A start request is what arrives here, with all that other middlewares make of it, and
    is known by identity until it is scheduled: its meta is copied to retries, redirects
    and children. A request that is stored is taken with the commit of its row; one that
    lives in memory only, when it is acknowledged.
    """

    exhausted = False
    """True when there is no start request or item any more."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._repeats_all = repeats_start(crawler.settings)
        self._offered: Request | None = None
        self._occurrence: Occurrence = (b"", 0)
        self._in_memory: dict[Request, Occurrence] = {}
        self._skipped = 0

    def open(self, taken: TakenStartRequests, round_: Round, ledger: Ledger) -> None:
        """Begin to work, with the round that is in `ledger`."""
        self._taken = taken
        self._round = round_
        self._ledger = ledger
        ledger.participants.append(self)
        round_.at_end.append(taken.clear)

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Yield what the engine gets."""
        self._begin()
        async for thing in start:
            if not self._is_skipped(thing):
                yield thing
            elif self._skipped % SKIPPED_AT_ONCE == 0:
                await _give_turn()
        self._end()

    def process_start_requests(self, start: Iterable[Any], spider: object) -> Iterator[Any]:
        """Yield what the engine gets, with middlewares for Scrapy before 2.13, which Scrapy
        2.14 still runs."""
        self._begin()
        for thing in start:
            if not self._is_skipped(thing):
                yield thing
        self._end()

    def stored(self, request: Request) -> None:
        """Note that `request`, which may be a start request, has a row now. Raises
        sqlite3.Error."""
        if request is self._offered:
            self._taken.add(self._occurrence)

    def kept(self, request: Request) -> None:
        """Note that `request`, which may be a start request, lives in memory only."""
        if request is self._offered:
            self._in_memory[request] = self._occurrence

    def before_commit(self, acknowledged: Sequence[Request]) -> None:
        """Note which requests in memory were taken."""
        if self._in_memory:
            for request in acknowledged:
                if (occurrence := self._in_memory.pop(request, None)) is not None:
                    self._taken.add(occurrence)

    def after_commit(self) -> None:
        """Do nothing."""

    def _begin(self) -> None:
        self._ledger.begin()
        with self._ledger.guarded():
            self._round.begin()
            self._taken.begin()

    def _is_skipped(self, thing: Any) -> bool:
        self._offered = None
        if not isinstance(thing, Request):
            return False
        with self._ledger.guarded():
            self._occurrence = self._taken.meet(thing)
            if self._occurrence in self._taken and not self._is_repeated(thing):
                self._skipped += 1
                return True
            self._offered = thing
        return False

    def _is_repeated(self, request: Request) -> bool:
        return self._repeats_all or bool(request.meta.get(REPEAT_KEY))

    def _end(self) -> None:
        self._offered = None
        # a stop cancels start(), which may take that for its end
        self.exhausted = self._crawler.engine.running
        if self._skipped:
            self._crawler.stats.set_value("scheduler/start_skipped", self._skipped)
            logger.info(
                "Round %(round)d of the job goes on: skipped %(skipped)s that it has taken"
                " already. BLOOM_REPEAT_START = True sends them again.",
                {
                    "round": self._round.number,
                    "skipped": counted(self._skipped, "start request"),
                },
                extra={"spider": self._crawler.spider},
            )


async def _give_turn() -> None:
    turn: Deferred[None] = Deferred()
    call_later(0, turn.callback, None)
    await maybe_deferred_to_future(turn)
