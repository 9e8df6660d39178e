"""Which unfiltered requests a page has given to the job, so that it does not give them again
when its callback is repeated after a crash."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from scrapy import Request

from .feeds.origins import origins_of

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from .ledger import Ledger
    from .request_file import RequestFile
    from .sqlite_store import SqliteStore

VOLATILE = frozenset({"download_latency", "retry_times"})
"""What Scrapy notes in a meta that may be copied to children, and another time otherwise."""


class TakenChildren:
    """The unfiltered requests in `file` that came of a page that is not done, by its row.

    Two of them are the same if everything is that Scrapy stores of them: where a callback
    gives them in another order the second time, none is taken for another one. `taken`
    counts those that the job has, `met` how many of them this start of the process has
    met. What belongs to a row goes with it. Any method may raise sqlite3.Error.
    """

    def __init__(self, file: RequestFile, describe: Callable[[Request], dict[str, Any]]) -> None:
        self._file = file
        self._describe = describe
        file.execute("UPDATE taken_children SET met = 0")
        self._left = {row for (row,) in file.query("SELECT DISTINCT parent FROM taken_children")}

    def meet(self, row: int, child: Request) -> bool:
        """Return True if an earlier start has taken `child` of the page in `row`; the how-
        manieth of its kind it is counts, in this start and in that."""
        if row not in self._left:
            return False
        try:
            digest = self._digest(child)
        except Exception:  # noqa: BLE001 - what cannot be stored was not taken
            return False
        met = self._file.execute(
            "UPDATE taken_children SET met = met + 1"
            " WHERE parent = ? AND digest = ? AND met < taken",
            (row, digest),
        )
        return met.rowcount == 1

    def add(self, row: int, child: Request) -> None:
        """Note with the next commit that the job has taken `child`, which is stored."""
        self._file.execute(
            "INSERT INTO taken_children VALUES (?, ?, 1, 1) ON CONFLICT DO UPDATE SET"
            " taken = taken + 1, met = met + 1",
            (row, self._digest(child)),
        )

    def move(self, row: int) -> None:
        """Let what belongs to the page in `row` belong to the request that was stored last,
        as which it is sent again."""
        if row in self._left:
            new = self._file.last_pushed
            self._left.add(new)
            self._file.execute("UPDATE taken_children SET parent = ? WHERE parent = ?", (new, row))

    def _digest(self, request: Request) -> bytes:
        described = self._describe(request)
        meta = described["meta"].items()
        described["meta"] = {key: value for key, value in meta if key not in VOLATILE}
        return blake2b(repr(described).encode("utf-8", "backslashreplace"), digest_size=16).digest()


class RepeatedChildren:
    """Spider middleware, the last one before the engine, which leaves out the requests with
    `dont_filter` that the page has given before; the filter sees to the others.

    A child is known by identity until it is scheduled, and belongs to the row of its page, or
    of the page from which that came in memory only. It is taken with the commit of its own
    row, unless that acknowledges the page.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._origins = origins_of(crawler)
        self._rows: WeakKeyDictionary[Request, int] = WeakKeyDictionary()
        """The row that each request is taken with, or that lives in memory and came of it."""
        self._stored: list[tuple[int, Request]] = []

    def open(self, taken: TakenChildren, store: SqliteStore, ledger: Ledger) -> None:
        """Begin to work."""
        self._taken = taken
        self._store = store
        self._ledger = ledger
        ledger.participants.append(self)

    async def process_spider_output_async(
        self, response: Response, result: AsyncIterator[Any]
    ) -> AsyncIterator[Any]:
        """Yield what the engine gets."""
        async for thing in result:
            if not (isinstance(thing, Request) and self._is_skipped(response, thing)):
                yield thing

    def process_spider_output(self, response: Response, result: Iterable[Any]) -> Iterator[Any]:
        """Do the same for Scrapy 2.14, which has another way for callbacks that do not wait."""
        for thing in result:
            if not (isinstance(thing, Request) and self._is_skipped(response, thing)):
                yield thing

    def stored(self, request: Request) -> None:
        """Note that `request` has a row now. Raises sqlite3.Error."""
        if request.dont_filter and (row := self._rows.get(request)) is not None:
            self._stored.append((row, request))
        for source in self._ledger.sources_of(request):
            if (row := self._store.row_of(source)) is not None:
                self._taken.move(row)

    def kept(self, request: Request) -> None:
        """Note that `request` lives in memory only."""
        for source in self._ledger.sources_of(request):
            if (row := self._row_of(source)) is not None:
                self._rows[request] = row

    def before_commit(self, acknowledged: Sequence[Request]) -> None:
        """Note what came of pages that are not done."""
        if self._stored:
            not_done = self._store.rows_handed_out
            for row, request in self._stored:
                if row in not_done:
                    self._taken.add(row, request)
            self._stored.clear()

    def after_commit(self) -> None:
        """Do nothing."""

    def _row_of(self, page: Request) -> int | None:
        row = self._store.row_of(page)
        return self._rows.get(page) if row is None else row

    def _is_skipped(self, response: Response, child: Request) -> bool:
        page = self._origins.get(response, response.request)
        row = None if page is None else self._row_of(page)
        if row is None:
            return False
        if child.dont_filter:
            with self._ledger.guarded():
                if self._taken.meet(row, child):
                    self._crawler.stats.inc_value("scheduler/children_skipped")
                    return True
        self._rows[child] = row
        return False
