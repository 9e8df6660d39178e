"""The items that are not in their feeds yet, and the state of each feed: tables of
`requests.sqlite`, written in the commits that acknowledge requests.

An item belongs to a request, by a number of this run, until that is acknowledged, and is final
then. Other items are dropped after a crash, since their requests are repeated.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ..errors import FeedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from scrapy import Request

    from ..crawl.ledger import Ledger
    from ..sqlite.rounds import Round

R = TypeVar("R", bound="Row")


@dataclass(eq=False, kw_only=True)
class Row:
    """A row of `table` that belongs to a round, or a feed, the number `of`; its other values are
    JSON. `uri` and `place`, the path of a local file, are as first evaluated, by a job in `job`.
    `path` is that of the file that is written."""

    table: ClassVar[str]
    id: int = 0
    of: int
    uri: str = ""
    place: str = ""
    job: str = ""
    path: str = ""


@dataclass(eq=False, kw_only=True)
class Feed(Row):
    """A feed of a round, by the URI in FEEDS. `items`, `length` in bytes and `digest`, empty before
    the file is begun, describe it. `columns` are the fields of the first item of all."""

    table = "feeds"
    template: str
    options: dict[str, Any]
    items: int = 0
    length: int = 0
    digest: str = ""
    columns: list[str] | None = None


class Outbox:
    """The tables, in the file of a round. Each method may raise sqlite3.Error."""

    ledger: Ledger
    """In whose commits they are written; set before the opening."""

    def __init__(self, round_: Round) -> None:
        self._round, self.file = round_, round_.file
        self.job = Path(self.file.name).parent.resolve()
        self._numbers: defaultdict[Request, int] = defaultdict(count(1).__next__)
        """Requests with items that are not final."""
        self._start_items: defaultdict[Request, list[tuple[int, bytes]]] = defaultdict(list)

    def commit(self) -> None:
        """Make the tables durable. Raises FeedError after a failed commit of the ledger."""
        self._round.commit()
        if self.ledger.failed:
            raise FeedError("the stored requests failed")

    # -- feeds ---------------------------------------------------------------------

    def rows(self, kind: type[R]) -> list[R]:
        """Return the rows that earlier runs have left."""
        rows = self.file.query(f"SELECT * FROM {kind.table} ORDER BY id")  # noqa: S608 - no input
        return [kind(id=id_, of=of, **json.loads(facts)) for id_, of, facts in rows]

    def add(self, row: Row) -> None:
        """Insert a row of this job."""
        row.job = str(self.job)
        insert = f"INSERT INTO {row.table} VALUES (NULL, ?, '')"  # noqa: S608 - no input
        row.id = self.file.execute(insert, (row.of,)).lastrowid or 0
        self.save(row)

    def save(self, row: Row) -> None:
        """Save the values of a row."""
        facts = {name: fact for name, fact in vars(row).items() if name not in ("id", "of")}
        save = f"UPDATE {row.table} SET facts = ? WHERE id = ?"  # noqa: S608 - no input
        self.file.execute(save, (json.dumps(facts), row.id))

    def remove(self, row: Row) -> None:
        """Delete a row, and by triggers all that belongs to it."""
        self.file.drop(f"DELETE FROM {row.table} WHERE id = ?", (row.id,))  # noqa: S608 - no input

    # -- items ---------------------------------------------------------------------

    def add_item(self, feed: int, request: Request, item: bytes, digest: bytes | None) -> None:
        """Insert an item of `request`; one of `start()`, by `digest`, if no earlier run took it."""
        if digest is not None:
            if self.file.meet(-feed, digest):
                return
            self._start_items[request].append((-feed, digest))
        values = feed, self._numbers[request], item
        self.file.execute("INSERT INTO items VALUES (NULL, ?, ?, ?)", values)

    def finish(self, request: Request, is_left_out: Callable[[Request], bool]) -> None:
        """Make the items of `request` final with this commit, or delete them if it is left out."""
        if (number := self._numbers.pop(request, None)) is None:
            return
        start_items = self._start_items.pop(request, ())
        if is_left_out(request):
            self.file.execute("DELETE FROM items WHERE request = ?", (number,))
            return
        self.file.execute("UPDATE items SET request = NULL WHERE request = ?", (number,))
        for taken in start_items:
            self.file.take(*taken)

    def has_final(self, feed: Feed) -> bool:
        """Return True if a feed has final items."""
        statement = "SELECT 1 FROM items WHERE feed = ? AND request IS NULL LIMIT 1"
        return bool(self.file.query(statement, (feed.id,)))

    def final_items(self, feed: int, skip: int = 0) -> Iterator[bytes]:
        """Return the final items of a feed in the order of its file, but for the first ones."""
        final = "SELECT item FROM items WHERE feed = ? AND request IS NULL ORDER BY id"
        return (item for (item,) in self.file.execute(f"{final} LIMIT -1 OFFSET ?", (feed, skip)))

    def drop_final(self, feed: Feed) -> int:
        """Delete the final items of a feed, which are in its file, and return their number."""
        drop = "DELETE FROM items WHERE feed = ? AND request IS NULL"
        return self.file.execute(drop, (feed.id,)).rowcount

    def drop_unfinished(self) -> None:
        """Delete the items of requests that earlier runs have not acknowledged."""
        self.file.execute("DELETE FROM items WHERE request IS NOT NULL")

    def empty(self) -> None:
        """Delete all rows, at the end of the round."""
        for table in ("items", "batches", "feeds"):
            self.file.drop(f"DELETE FROM {table}")  # noqa: S608 - no input
