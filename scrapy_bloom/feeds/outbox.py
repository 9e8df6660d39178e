"""The items that are not in their feeds yet, and the state of each feed: tables of
`requests.sqlite`, written in the commits that acknowledge requests.

An item belongs to a request, by a number of this run, until that is acknowledged, and is final
then. Other items are dropped after a crash, since their requests are repeated.
"""

from __future__ import annotations

import json
import os
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from ..errors import encodable

if TYPE_CHECKING:
    from scrapy import Request

    from ..sqlite.job_file import RequestFile
    from .file import FeedFile

WAITING, OPEN, STORED = "waiting", "open", "stored"
"""The states of a batch: it has no file yet, a file to which items come, or all that it gets."""


@dataclass(eq=False)
class Batch:
    """One file of a feed, `file` once that was begun or checked.

    `path` is the feed's own file, or a part file in the job directory. `items`, `length` and
    `digest` describe its contents. `stored` describes what was stored of a part file, and has the
    token of the temporary file for it, the job directory, and where a local feed was to be.
    """

    id: int
    number: int
    uri: str
    path: str
    state: str = WAITING
    items: int = 0
    length: int = 0
    digest: bytes = b""
    stored: dict[str, Any] = field(default_factory=dict)
    file: FeedFile = field(init=False)


@dataclass(eq=False)
class Feed:
    """A feed of a round, by the URI in FEEDS, and its batches that are not stored; in `full` the
    last one that earlier runs have stored, until the next begins.

    `columns` are the fields of the first item of all, None until that is known. `last_batch` is the
    number of the last batch, 0 without one.
    """

    id: int
    round: int
    template: str
    options: dict[str, Any]
    columns: list[str] | None = None
    batches: list[Batch] = field(default_factory=list)
    full: list[Batch] = field(default_factory=list)
    last_batch: int = 0


class Outbox:
    """The tables, in the `file` of the job. Each method may raise sqlite3.Error."""

    def __init__(self, file: RequestFile) -> None:
        self._file = file
        self._numbers: defaultdict[Request, int] = defaultdict(count(1).__next__)
        """Requests with items that are not final."""
        self._start_items: defaultdict[Request, list[tuple[int, bytes]]] = defaultdict(list)

    def feeds(self) -> list[Feed]:
        """Return the feeds with their batches."""
        query = self._file.query
        feeds = {
            id_: Feed(id_, round_, os.fsdecode(uri), json.loads(options), json.loads(columns))
            for id_, round_, uri, options, columns in query("SELECT * FROM feeds")
        }
        columns = "feed, id, number, uri, path, state, items, length, digest, stored"
        rows = query(f"SELECT {columns} FROM batches ORDER BY number")  # noqa: S608 - no input
        for feed, id_, number, uri, path, state, *contents, stored in rows:
            feeds[feed].last_batch = number
            batch = Batch(id_, number, os.fsdecode(uri), os.fsdecode(path), state, *contents)
            batch.stored = json.loads(stored)
            (feeds[feed].full if state == STORED else feeds[feed].batches).append(batch)
        return list(feeds.values())

    def add_feed(self, round_: int, template: str, options: dict[str, Any]) -> Feed:
        """Insert a feed of a round and return it."""
        statement = "INSERT INTO feeds VALUES (NULL, ?, ?, ?, 'null')"
        row = self._insert(statement, (round_, _storable(template), json.dumps(options)))
        return Feed(row, round_, template, options)

    def save_columns(self, feed: Feed) -> None:
        """Save the columns of a feed."""
        save = "UPDATE feeds SET columns = ? WHERE id = ?"
        self._file.execute(save, (json.dumps(feed.columns), feed.id))

    def remove_feed(self, feed: Feed) -> None:
        """Delete a feed with its batches and items."""
        for table in ("items", "start_items", "batches", "feeds"):
            is_own = "id" if table == "feeds" else "feed"
            self._file.execute(f"DELETE FROM {table} WHERE {is_own} = ?", (feed.id,))  # noqa: S608 - no input

    def add_batch(self, feed: Feed, number: int, uri: str) -> Batch:
        """Insert a batch without a path as the last one of `feed`, and return it."""
        feed.last_batch = number
        stored = {"token": secrets.token_hex(8)}
        row = self._insert(
            "INSERT INTO batches VALUES (NULL, ?, ?, ?, '', 'waiting', 0, 0, x'', ?)",
            (feed.id, number, _storable(uri), json.dumps(stored)),
        )
        feed.batches.append(Batch(row, number, uri, "", stored=stored))
        return feed.batches[-1]

    def save_batch(self, batch: Batch) -> None:
        """Save the state of a batch. Stored ones are deleted, but for the last one of each feed,
        whose number is needed."""
        self._file.execute(
            "UPDATE batches SET path = :path, state = :state, items = :items, length = :length,"
            " digest = :digest, stored = :stored WHERE id = :id",
            {**vars(batch), "path": _storable(batch.path), "stored": json.dumps(batch.stored)},
        )
        if batch.state == STORED:
            others = "state = ? AND id NOT IN (SELECT MAX(id) FROM batches GROUP BY feed)"
            self._file.execute(f"DELETE FROM batches WHERE {others}", (STORED,))  # noqa: S608 - no input

    def add_item(self, feed: int, request: Request, item: bytes, digest: bytes | None) -> None:
        """Insert an item of `request`; one of `start()`, by `digest`, if no earlier run took it."""
        if digest is not None:
            meet = "UPDATE start_items SET again = again + 1 WHERE feed = ? AND digest = ?"
            if self._file.execute(f"{meet} AND again < taken", (feed, digest)).rowcount > 0:
                return
            self._start_items[request].append((feed, digest))
        values = feed, self._numbers[request], item
        self._file.execute("INSERT INTO items VALUES (NULL, ?, ?, ?)", values)

    def finish(self, request: Request, is_left_out: Callable[[Request], bool]) -> None:
        """Make the items of `request` final with this commit, or delete them if it is left out."""
        if (number := self._numbers.pop(request, None)) is None:
            return
        start_items = self._start_items.pop(request, ())
        if is_left_out(request):
            self._file.execute("DELETE FROM items WHERE request = ?", (number,))
            return
        self._file.execute("UPDATE items SET request = NULL WHERE request = ?", (number,))
        take = "INSERT INTO start_items VALUES (?, ?, 1, 1) ON CONFLICT DO UPDATE SET"
        for taken in start_items:
            self._file.execute(f"{take} taken = taken + 1, again = again + 1", taken)

    def count_final(self, feed: Feed) -> int:
        """Return the number of final items of a feed."""
        statement = "SELECT COUNT(*) FROM items WHERE feed = ? AND request IS NULL"
        ((final,),) = self._file.query(statement, (feed.id,))
        return int(final)

    def final_items(self, feed: Feed, skip: int = 0, limit: int = -1) -> Iterator[bytes]:
        """Yield the final items of a feed in the order of the file, at most `limit` of them."""
        final = "SELECT item FROM items WHERE feed = ? AND request IS NULL ORDER BY id"
        for (item,) in self._file.execute(f"{final} LIMIT ? OFFSET ?", (feed.id, limit, skip)):
            yield item

    def drop_final(self, feed: Feed, count: int) -> None:
        """Delete the first final items of a feed, which are in their file."""
        first = "SELECT id FROM items WHERE feed = ? AND request IS NULL ORDER BY id LIMIT ?"
        self._file.execute(f"DELETE FROM items WHERE id IN ({first})", (feed.id, count))  # noqa: S608 - no input

    def drop_unfinished(self) -> None:
        """Delete the items of requests that earlier runs have not acknowledged."""
        self._file.execute("DELETE FROM items WHERE request IS NOT NULL")
        self._file.execute("UPDATE start_items SET again = 0")

    def empty(self) -> None:
        """Delete all rows, at the end of the round."""
        for table in ("items", "start_items", "batches", "feeds"):
            self._file.execute(f"DELETE FROM {table}")  # noqa: S608 - no input

    def _insert(self, statement: str, values: Sequence[object]) -> int:
        row = self._file.execute(statement, values).lastrowid
        assert row is not None
        return row


def _storable(path: str) -> str | bytes:
    """Return a path or URI as SQLite takes it: as bytes if it is not UTF-8."""
    return path if path == encodable(path) else os.fsencode(path)
