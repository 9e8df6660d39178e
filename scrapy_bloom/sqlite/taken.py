"""What a source has yielded before, left out when it is repeated after a crash: start requests of
`Spider.start()`, equal ones by their order, and unfiltered children of a page, by their count. The
table `taken` belongs to the round and to the rows of pages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from ..amounts import counted
from ..crawl.delays import NOT_BEFORE
from ..crawl.failed_request import TIMES_KEYS
from ..crawl.ledger import CommitHook
from ..crawl.origins import origins_of
from ..crawl.request_text import DEFAULTS
from ..crawl.settings import REPEAT_START
from ..crawl.start_requests import REPEAT_KEY, StartRequests, key_of, mark_of
from ..scrapy_private.middlewares import OutputFilter
from ..scrapy_private.progress import EngineProgress
from .schema import START

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from ..crawl.ledger import Ledger
    from .job_file import RequestFile
    from .request_store import SqliteStore
    from .rounds import Round

logger = logging.getLogger(__name__)

VOLATILE = frozenset({"download_latency", NOT_BEFORE, REPEAT_KEY, *TIMES_KEYS})
"""Meta keys that children may copy or have, and whose values differ in a repetition."""
ROWLESS = -(1 << 62)
"""Parents below this number are pages in memory, the others are rows."""
NUMBER = (
    "INSERT INTO met VALUES (?, 1) ON CONFLICT DO UPDATE SET number = number + 1 RETURNING number"
)
PARENTS = (
    "SELECT source FROM taken WHERE source > 0 UNION SELECT source FROM taken WHERE source < ?"
)


class LocalStartRequests(StartRequests):
    """The start requests of a job. Those that its round has taken are not in the filter, to which a
    link back to a start page is new."""

    exhausted = False
    """True when there is no start request or item any more."""

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._repeats_all = REPEAT_START.read(crawler.settings)

    def open(self, fingerprint: Callable[[Request], bytes], round_: Round, ledger: Ledger) -> None:
        """Begin to work, with the round that is in `ledger`."""
        self._file, self._fingerprint = round_.file, fingerprint
        self._round, self._ledger = round_, ledger
        ledger.commit_hooks.append(self)
        # not in memory, which would grow with the start requests
        self._file.execute(
            "CREATE TEMP TABLE met (key BLOB PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID"
        )

    def _offer(self, request: Request) -> bool:
        with self._ledger.guarded():
            key = key_of(request, self._fingerprint(request))
            ((number,),) = self._file.query(NUMBER, (key,))
            mark = mark_of(key, number)  # equal ones may have another meta
            is_taken = self._file.meet(START, mark)
            if is_taken and not (self._repeats_all or request.meta.get(REPEAT_KEY)):
                self._skipped += 1
                return False
            self.offered, self._mark = request, None if is_taken else mark
        return True

    def _take(self, mark: bytes) -> None:
        self._file.take(START, mark)

    def _end(self, *, exhausted: bool) -> None:
        self.exhausted = exhausted
        if self._skipped:
            self._crawler.stats.set_value("scheduler/start_skipped", self._skipped)
            logger.info(
                "Round %(round)d of the job goes on: skipped %(skipped)s that it has taken"
                " already. BLOOM_REPEAT_START = True sends them again.",
                {"round": self._round.number, "skipped": counted(self._skipped, "start request")},
                extra={"spider": self._crawler.spider},
            )


class RepeatedChildren(OutputFilter, CommitHook):
    """Spider middleware, the last one before the engine, that leaves out requests with
    `dont_filter` that the page has yielded before; the filter handles the others.

    A child is taken in the commit of its own row, unless that acknowledges its page, which is known
    by its row, or by its fingerprint if it is in memory. Those with equal fields are equal.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler, self._engine = crawler, EngineProgress(crawler)
        self._origins = origins_of(crawler)
        self._parents: WeakKeyDictionary[Request, int] = WeakKeyDictionary()  # of children
        self._stored: list[tuple[int, Request]] = []
        self._in_memory: dict[Request, int] = {}
        """The number of each unacknowledged page in memory."""

    def open(
        self,
        file: RequestFile,
        store: SqliteStore,
        ledger: Ledger,
        fingerprint: Callable[[Request], bytes],
    ) -> None:
        """Skip repeated children from now on, in the commits of `ledger`. Raises sqlite3.Error."""
        self._file, self._store = file, store
        self._ledger, self._fingerprint = ledger, fingerprint
        # the pages with rows in the table, as far as is known
        self._left = {parent for (parent,) in file.query(PARENTS, (ROWLESS,))}
        ledger.commit_hooks.append(self)

    def stored(self, request: Request, sources: Iterable[Request]) -> None:
        """Record that `request`, as which `sources` are sent again, has a row now."""
        if request.dont_filter and (parent := self._parents.get(request)) is not None:
            self._stored.append((parent, request))
        new = self._store.last_pushed
        for row in map(self._store.dispatched.get, sources):
            if row in self._left:
                self._left.add(new)
                move = "UPDATE taken SET source = ? WHERE source = ?"
                self._file.execute(move, (new, row))

    def in_memory(self, request: Request) -> None:
        """Record that `request` is in memory only."""
        if request not in self._in_memory and (parent := self._parent_in_memory(request)):
            self._in_memory[request] = parent

    def before_commit(self, acknowledged: Sequence[Request]) -> None:
        """Record the stored children of unacknowledged pages; forget those of acknowledged ones."""
        if self._stored:
            not_done = {*self._store.dispatched.values()}
            for parent, request in self._stored:
                if parent in not_done or parent < ROWLESS:
                    if parent < ROWLESS:
                        self._left.add(parent)
                    self._count(self._file.take, parent, request)
            self._stored.clear()
        if self._in_memory:
            ended = {self._in_memory.pop(each, 0) for each in acknowledged} & self._left
            # of pages that are alike the last
            for parent in ended and ended.difference(self._in_memory.values()):
                if parent < ROWLESS:
                    self._left.remove(parent)
                    self._file.execute("DELETE FROM taken WHERE source = ?", (parent,))

    def _parent_in_memory(self, page: Request) -> int | None:
        """Return the row of the request that is sent again as `page`, or else a number below
        ROWLESS from its fingerprint, None without one."""
        for source in self._engine.sent_again_as(page):
            if (row := self._store.dispatched.get(source)) is not None:
                return row
        with suppress(Exception):  # of a fingerprinter, which unfiltered requests do not need
            return ROWLESS - 1 - int.from_bytes(self._fingerprint(page)[:8], "big") % -ROWLESS
        return None

    def _skips(self, child: Request, response: Response) -> bool:
        page = self._origins.get(response, response.request)
        if page is None or not child.dont_filter:
            return False
        self._ledger.in_flight.page_of[child] = page
        parent = self._store.dispatched.get(page, self._in_memory.get(page))
        if parent is None:
            return False
        with self._ledger.guarded():
            if parent in self._left and self._count(self._file.meet, parent, child):
                self._crawler.stats.inc_value("scheduler/children_skipped")
                return True
        self._parents[child] = parent
        return False

    def _count(
        self, count: Callable[[int, bytes], bool | None], parent: int, child: Request
    ) -> bool | None:
        """Meet or take `child`, if it can be described."""
        try:
            digest = self._digest(parent, child)
        except Exception:  # noqa: BLE001 - of its objects, or a callback that was changed
            return None
        return count(parent, digest)

    def _digest(self, parent: int, request: Request) -> bytes:
        from ..crawl.forms import digest_of

        described = {**DEFAULTS, **self._store.codec.fields(request)}
        # another page may be the first to yield the parent again
        left_out = VOLATILE.union({"depth"} if parent < ROWLESS else ())
        described["meta"] = {k: v for k, v in described["meta"].items() if k not in left_out}
        described["headers"] = [*described["headers"].items()]
        return digest_of(described, sorted(described.items()))
