"""The feeds of a round: each item goes to the outbox, and from there to its file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain, islice
from typing import TYPE_CHECKING

from ..errors import FeedError
from ..job.ledger import CommitHook
from .file import FeedFile
from .outbox import BEGINNING, OPEN, STORED, WAITING, Batch, Feed, Outbox

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from scrapy import Request

    from .plans import FeedPlan

BYTES_IN_MEMORY = 1 << 20
"""Most bytes of items of dispatched requests in memory; beyond it they go to the outbox."""
ITEM_OVERHEAD = 200
"""Bytes of memory for an item, beside its own."""


@dataclass(eq=False)
class OpenFeed:
    """A feed that this run writes, with its open files."""

    feed: Feed
    plan: FeedPlan
    files: dict[Batch, FeedFile] = field(default_factory=dict)

    def is_full(self, batch: Batch) -> bool:
        """Return True if `batch` takes no more items."""
        return self.plan.limit is not None and batch.items >= self.plan.limit


class FeedWriter(CommitHook):
    """Tracks which items of the round have been written to which feed.

    An item belongs to its request. The commit that acknowledges the request makes the item final;
    then the item is appended to its file; the next commit records that. Recovery cuts the files to
    the recorded length, and goes on from there.

    `on_full` is called with a batch that has its last item. Items of a request for which
    `is_left_out` returns True reach no file.
    """

    def __init__(self, outbox: Outbox, on_full: Callable[[OpenFeed, Batch], None]) -> None:
        self.outbox = outbox
        self.working: dict[str, OpenFeed] = {}
        self.is_left_out: Callable[[Request], bool] = lambda _: False
        self._on_full = on_full
        self._numbers: dict[Request, int] = {}
        self._waiting: list[tuple[int, int, bytes]] = []
        self._waiting_bytes = 0
        self._start_items: dict[int, list[tuple[int, bytes]]] = {}
        self._last_number = 0
        self._final: dict[int, int] = {}
        """Number of final items that are not in the file, by feed."""
        self._spilled: set[int] = set()
        """Requests with items in the outbox."""
        self.changed: set[Batch] = set()
        """Batches that the next commit records."""
        self._written: Counter[int] = Counter()
        """Number of items written since the last commit, by feed."""
        self._stored: set[Feed] = set()
        """Feeds with a batch that was stored since the last commit."""

    # -- opening -----------------------------------------------------------------

    def check(self, feed: Feed, plan: FeedPlan) -> OpenFeed:
        """Return a feed of an earlier run, ready for `recover`. Raises FeedError if a file is not
        as that run left it; changes nothing."""
        working = OpenFeed(feed, plan)
        skip = 0
        for batch in feed.batches:
            is_emptied = batch.state == BEGINNING
            file = working.files[batch] = FeedFile(
                plan.place(batch), emptied=is_emptied, private=not plan.in_place
            )
            room = -1 if plan.limit is None else max(plan.limit - batch.items, 0)
            items = self.outbox.final_items(feed, skip, room)
            skip += room
            if batch.state != OPEN:
                continue
            file.check(batch.length, batch.digest, _placed(feed, batch, items))
        return working

    def recover(self, others: Iterable[OpenFeed]) -> None:
        """Recover these feeds and `others` after the last run: drop the items of requests that are
        repeated, write final ones. Raises OSError, sqlite3.Error, FeedError."""
        self.outbox.drop_unfinished()
        self._final = self.outbox.count_final()
        for working in (*self.working.values(), *others):
            for batch in [*working.feed.batches]:
                if working.is_full(batch):
                    self._on_full(working, batch)
                elif batch.state in (BEGINNING, OPEN):
                    working.files[batch].open()
            if self._final.get(working.feed.id):
                self._write(working)

    def begin(self, feed: Feed, plan: FeedPlan) -> None:
        """Add a feed that is new to the round."""
        working = self.working[feed.template] = OpenFeed(feed, plan)
        self._next_batch(working)

    # -- items -------------------------------------------------------------------

    def add(
        self, working: OpenFeed, request: Request, item: bytes, *, is_start_item: bool = False
    ) -> None:
        """Add an item of `request`. An item of `start()` is not added as often as earlier runs have
        taken it already. Raises sqlite3.Error."""
        digest = b""
        if is_start_item:
            digest = blake2b(item, digest_size=16, usedforsecurity=False).digest()
            if self.outbox.has_start_item(working.feed.id, digest):
                return
        number = self._numbers.get(request)
        if number is None:
            self._last_number += 1
            number = self._numbers[request] = self._last_number
        self._waiting.append((working.feed.id, number, item))
        if digest:
            self._start_items.setdefault(number, []).append((working.feed.id, digest))
        self._waiting_bytes += len(item) + ITEM_OVERHEAD
        if self._waiting_bytes > BYTES_IN_MEMORY:
            self._spill()

    def before_commit(self, acknowledged: Sequence[Request]) -> None:
        """Record the state of the files, and make the items of these requests final."""
        self._record()
        self._drop_left_out(acknowledged)
        final = {self._numbers.pop(request) for request in acknowledged if request in self._numbers}
        if not final:
            self._final = {}
            return
        for number in final & self._spilled:
            self.outbox.make_final(number)
        self._spilled -= final
        for number in final:
            for feed, digest in self._start_items.pop(number, ()):
                self.outbox.note_start_item(feed, digest)
        self._keep_final(final)
        self._final = self.outbox.count_final()
        for working in self.working.values():
            if count := self._final.get(working.feed.id):
                self._make_room(working, count)

    def after_commit(self) -> None:
        """Append final items to their files."""
        self._written.clear()
        self.changed.clear()
        for working in [*self.working.values()]:
            if self._final.get(working.feed.id):
                self._write(working)

    # -- the end -----------------------------------------------------------------

    def record(self) -> None:
        """Record the state of the files after the ledger's last commit."""
        self._record()
        self._written.clear()
        self.changed.clear()

    def begin_batch(self, working: OpenFeed, batch: Batch) -> None:
        """Begin the file of `batch`, recorded with the next commit."""
        plan, path = working.plan, working.plan.place(batch)
        batch.path, batch.stored["job"] = str(path), str(plan.job)
        is_emptied = plan.overwrites
        file = FeedFile(path, emptied=is_emptied, private=not plan.in_place)
        working.files[batch] = file
        if not is_emptied:
            file.keep()
        batch.state = BEGINNING if is_emptied else OPEN
        batch.length, batch.digest = file.length, file.digest
        self.outbox.save_batch(batch)

    def note_stored(self, working: OpenFeed, batch: Batch) -> None:
        """Let the next commit record that `batch` is stored, and forget it."""
        batch.state = STORED
        self.changed.add(batch)
        self._stored.add(working.feed)
        working.feed.batches.remove(batch)
        working.files.pop(batch).close()

    # ----------------------------------------------------------------------------

    def _record(self) -> None:
        for feed, count in self._written.items():
            self.outbox.drop_final(feed, count)
        for batch in self.changed:
            self.outbox.save_batch(batch)
        while self._stored:
            self.outbox.forget_stored(self._stored.pop())

    def _spill(self) -> None:
        """Move the items in memory to the outbox."""
        for feed, number, item in self._waiting:
            self.outbox.add_item(feed, number, item)
            self._spilled.add(number)
        self._waiting.clear()
        self._waiting_bytes = 0

    def _drop_left_out(self, requests: Iterable[Request]) -> None:
        """Drop the items of those requests that are left out."""
        dropped = {
            self._numbers.pop(request)
            for request in requests
            if request in self._numbers and self.is_left_out(request)
        }
        if dropped:
            for number in dropped & self._spilled:
                self.outbox.drop(number)
            self._spilled -= dropped
            self._forget(dropped)

    def _keep_final(self, final: Container[int]) -> None:
        """Move the items of the `final` requests from memory to the outbox."""
        for feed, number, item in self._waiting:
            if number in final:
                self.outbox.add_item(feed, None, item)
        self._forget(final)

    def _forget(self, numbers: Container[int]) -> None:
        self._waiting = [each for each in self._waiting if each[1] not in numbers]
        self._waiting_bytes = sum(len(item) + ITEM_OVERHEAD for *_, item in self._waiting)

    def _next_batch(self, working: OpenFeed) -> Batch:
        number = working.feed.last_batch + 1
        return self.outbox.add_batch(working.feed, number, working.plan.evaluate(number))

    def _make_room(self, working: OpenFeed, count: int) -> None:
        """Begin the batches for `count` more items."""
        feed, plan = working.feed, working.plan
        if feed.head is None:
            feed.head, feed.columns = plan.format.head, plan.format.columns
            self.outbox.save_head(feed)
        batches = iter([batch for batch in feed.batches if not working.is_full(batch)])
        while count > 0:
            batch = next(batches, None) or self._next_batch(working)
            if batch.state == WAITING:
                self.begin_batch(working, batch)
            count -= count if plan.limit is None else plan.limit - batch.items

    def _write(self, working: OpenFeed) -> None:
        """Append the final items of a feed to its batches."""
        feed, plan = working.feed, working.plan
        items = self.outbox.final_items(feed)
        left = self._final[feed.id]
        for batch in [batch for batch in feed.batches if not working.is_full(batch)]:
            if not left:
                return
            count = left if plan.limit is None else min(left, plan.limit - batch.items)
            file = working.files[batch]
            try:
                file.append(_placed(feed, batch, islice(items, count)))
            except OSError as error:
                raise FeedError(f"the feed {batch.uri} cannot be written: {error}") from error
            batch.items += count
            batch.length, batch.digest, batch.state = file.length, file.digest, OPEN
            self.changed.add(batch)
            self._written[feed.id] += count
            left -= count
            if working.is_full(batch):
                # one commit may fill more batches than a process can have open
                file.close()
                self._on_full(working, batch)


def _placed(feed: Feed, batch: Batch, items: Iterable[bytes]) -> Iterator[bytes]:
    """Yield `items` for the end of `batch`, the first ones of it after the head."""
    return chain([] if batch.items else [feed.head or b""], items)
