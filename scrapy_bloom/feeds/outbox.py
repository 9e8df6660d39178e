"""The items that are not in their feeds yet, and the state of each feed: tables of
`requests.sqlite`, written in the commits that acknowledge requests.

An item belongs to a request, by a number of this run, until that is acknowledged, and is final
then. Other items are dropped after a crash, since their requests are repeated.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

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
    stored: dict[str, Any]
    path: str = ""
    state: str = WAITING
    items: int = 0
    length: int = 0
    digest: str = ""
    file: FeedFile = field(init=False)


@dataclass(eq=False)
class Feed:
    """A feed of a round, by the URI in FEEDS, and its batches: the last one, and others that are
    not stored. `columns` are the fields of the first item of all, None until that is known."""

    id: int
    round: int
    template: str
    options: dict[str, Any]
    columns: list[str] | None = None
    batches: list[Batch] = field(default_factory=list)


class Outbox:
    """The tables, in the `file` of the job. Each method may raise sqlite3.Error."""

    def __init__(self, file: RequestFile) -> None:
        self._file = file
        self._numbers: defaultdict[Request, int] = defaultdict(count(1).__next__)
        """Requests with items that are not final."""
        self._start_items: defaultdict[Request, list[tuple[int, bytes]]] = defaultdict(list)

    def feeds(self) -> list[Feed]:
        """Return the feeds with their batches."""
        feeds = {
            id_: Feed(id_, round_, **json.loads(facts))
            for id_, round_, facts in self._file.query("SELECT * FROM feeds")
        }
        for id_, feed, facts in self._file.query("SELECT * FROM batches ORDER BY id"):
            feeds[feed].batches.append(Batch(id_, **json.loads(facts)))
        return list(feeds.values())

    def add_feed(self, round_: int, template: str, options: dict[str, Any]) -> Feed:
        """Insert a feed of a round and return it."""
        feed = Feed(0, round_, template, options)
        feed.id = self._insert("INSERT INTO feeds VALUES (NULL, ?, ?)", round_, _facts_of(feed))
        return feed

    def save_feed(self, feed: Feed) -> None:
        """Save the columns of a feed."""
        self._file.execute("UPDATE feeds SET facts = ? WHERE id = ?", (_facts_of(feed), feed.id))

    def remove_feed(self, feed: Feed) -> None:
        """Delete a feed with its batches and items."""
        self._file.execute("DELETE FROM taken WHERE source = ?", (-feed.id,))
        for table in ("items", "batches", "feeds"):
            is_own = "id" if table == "feeds" else "feed"
            self._file.execute(f"DELETE FROM {table} WHERE {is_own} = ?", (feed.id,))  # noqa: S608 - no input

    def add_batch(self, feed: Feed, number: int, uri: str, stored: dict[str, Any]) -> Batch:
        """Insert a batch without a file as the last one of `feed`, and return it."""
        batch = Batch(0, number, uri, stored)
        batch.id = self._insert(
            "INSERT INTO batches VALUES (NULL, ?, ?)", feed.id, _facts_of(batch)
        )
        feed.batches.append(batch)
        return batch

    def save_batch(self, batch: Batch) -> None:
        """Save the state of a batch."""
        save = "UPDATE batches SET facts = ? WHERE id = ?"
        self._file.execute(save, (_facts_of(batch), batch.id))

    def end_batch(self, feed: Feed, batch: Batch) -> None:
        """Save that a batch is stored. Such ones are deleted, but for the last one, whose number is
        needed."""
        batch.state = STORED
        self.save_batch(batch)
        for each in feed.batches[:-1]:
            if each.state == STORED:
                feed.batches.remove(each)
                self._file.execute("DELETE FROM batches WHERE id = ?", (each.id,))

    def add_item(self, feed: int, request: Request, item: bytes, digest: bytes | None) -> None:
        """Insert an item of `request`; one of `start()`, by `digest`, if no earlier run took it."""
        if digest is not None:
            if self._file.meet(-feed, digest):
                return
            self._start_items[request].append((-feed, digest))
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
        for taken in start_items:
            self._file.take(*taken)

    def count_final(self, feed: Feed) -> int:
        """Return the number of final items of a feed."""
        statement = "SELECT COUNT(*) FROM items WHERE feed = ? AND request IS NULL"
        return int(self._file.query(statement, (feed.id,))[0][0])

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

    def empty(self) -> None:
        """Delete all rows, at the end of the round."""
        for table in ("items", "batches", "feeds"):
            self._file.execute(f"DELETE FROM {table}")  # noqa: S608 - no input

    def _insert(self, statement: str, *values: object) -> int:
        row = self._file.execute(statement, values).lastrowid
        assert row is not None
        return row


def _facts_of(thing: Batch | Feed) -> str:
    """Return what a row has of a batch or a feed, in JSON."""
    others = {"id", "round", "batches", "file"}
    return json.dumps({name: fact for name, fact in vars(thing).items() if name not in others})
