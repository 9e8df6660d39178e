"""The feeds of a round: each item goes to the outbox, and from there to its file."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from hashlib import blake2b
from itertools import chain, count, islice
from typing import TYPE_CHECKING

from ..errors import FeedError
from ..job.ledger import CommitHook
from .outbox import BEGINNING, OPEN, STORED, WAITING, Batch, Feed, Outbox

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from scrapy import Request

    from .plans import OpenFeed


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
        self.feeds: list[OpenFeed] = []
        self.is_left_out: Callable[[Request], bool] = lambda _: False
        self.changed: set[Batch] = set()
        """Batches that the next commit records."""
        self._on_full = on_full
        self._numbers: defaultdict[Request, int] = defaultdict(count(1).__next__)
        """Requests with items in the outbox."""
        self._start_items: defaultdict[Request, list[tuple[int, bytes]]] = defaultdict(list)
        self._written: Counter[int] = Counter()
        """Number of items written since the last commit, by feed."""

    # -- opening -----------------------------------------------------------------

    def check(self, working: OpenFeed) -> None:
        """Make a feed of an earlier run ready for `recover`. Raises FeedError if a file is not as
        that run left it; changes nothing."""
        skip = 0
        for batch in working.feed.batches:
            working.use_file(batch, emptied=batch.state == BEGINNING)
            room = -1 if working.limit is None else max(working.limit - batch.items, 0)
            items = self.outbox.final_items(working.feed, skip, room)
            skip += room
            if batch.state == OPEN:
                placed = _placed(working.feed, batch, items)
                batch.file.check(batch.length, batch.digest, placed)

    def recover(self) -> None:
        """Recover the feeds after the last run: drop the items of requests that are repeated, write
        final ones. Raises OSError, sqlite3.Error, FeedError."""
        self.outbox.drop_unfinished()
        for working in self.feeds:
            for batch in [*working.feed.batches]:
                if working.is_full(batch):
                    self._on_full(working, batch)
                elif batch.state in (BEGINNING, OPEN):
                    batch.file.open()
        self._write()

    def begin(self, working: OpenFeed) -> None:
        """Add a feed that is new to the round."""
        self.feeds.append(working)
        self._next_batch(working)

    # -- items -------------------------------------------------------------------

    def add(
        self, working: OpenFeed, request: Request, item: bytes, *, is_start_item: bool = False
    ) -> None:
        """Add an item of `request`. An item of `start()` is not added as often as earlier runs have
        taken it already. Raises sqlite3.Error."""
        feed = working.feed.id
        if is_start_item:
            digest = blake2b(item, digest_size=16, usedforsecurity=False).digest()
            if self.outbox.has_start_item(feed, digest):
                return
            self._start_items[request].append((feed, digest))
        self.outbox.add_item(feed, self._numbers[request], item)

    def before_commit(self, acknowledged: Sequence[Request]) -> None:
        """Record the state of the files, and make the items of these requests final."""
        self._record()
        for request in acknowledged:
            if (number := self._numbers.pop(request, None)) is None:
                continue
            start_items = self._start_items.pop(request, ())
            if self.is_left_out(request):
                self.outbox.drop(number)
                continue
            self.outbox.make_final(number)
            for feed, digest in start_items:
                self.outbox.note_start_item(feed, digest)
        final = self.outbox.count_final()
        for working in self.feeds:
            if items := final.get(working.feed.id):
                self._make_room(working, items)

    def after_commit(self) -> None:
        """Append final items to their files."""
        self._written.clear()
        self.changed.clear()
        self._write()

    # -- the end -----------------------------------------------------------------

    def record(self) -> None:
        """Record the state of the files after the ledger's last commit."""
        self._record()
        self._written.clear()
        self.changed.clear()

    def begin_batch(self, working: OpenFeed, batch: Batch) -> None:
        """Begin the file of `batch`, recorded with the next commit."""
        is_emptied = working.overwrites
        working.use_file(batch, emptied=is_emptied)
        file = batch.file
        if not is_emptied:
            file.keep()
        batch.path, batch.stored["job"] = str(file.path), str(working.job)
        batch.state = BEGINNING if is_emptied else OPEN
        batch.length, batch.digest = file.length, file.digest
        self.outbox.save_batch(batch)

    def note_stored(self, working: OpenFeed, batch: Batch) -> None:
        """Let the next commit record that `batch` is stored, and forget it."""
        batch.state = STORED
        self.changed.add(batch)
        working.feed.batches.remove(batch)
        batch.file.close()

    # ----------------------------------------------------------------------------

    def _record(self) -> None:
        for feed, written in self._written.items():
            self.outbox.drop_final(feed, written)
        for batch in self.changed:
            self.outbox.save_batch(batch)
        if any(batch.state == STORED for batch in self.changed):
            self.outbox.forget_stored()

    def _next_batch(self, working: OpenFeed) -> Batch:
        number = working.feed.last_batch + 1
        return self.outbox.add_batch(working.feed, number, working.evaluate(number))

    def _batches(self, working: OpenFeed, items: int) -> Iterator[tuple[Batch, int]]:
        """Yield the batches for so many more `items`, with the number of those in each. It may be
        a new one."""
        batches = iter([batch for batch in working.feed.batches if not working.is_full(batch)])
        while items > 0:
            batch = next(batches, None) or self._next_batch(working)
            share = items if working.limit is None else min(items, working.limit - batch.items)
            items -= share
            yield batch, share

    def _make_room(self, working: OpenFeed, items: int) -> None:
        """Begin the batches for so many more `items`."""
        if working.feed.head is None:
            working.take_head()
            self.outbox.save_head(working.feed)
        for batch, _ in self._batches(working, items):
            if batch.state == WAITING:
                self.begin_batch(working, batch)

    def _write(self) -> None:
        """Append the final items of the feeds to their batches."""
        final = self.outbox.count_final()
        for working in self.feeds:
            feed = working.feed
            if feed.id not in final:
                continue
            items = self.outbox.final_items(feed)
            for batch, share in self._batches(working, final[feed.id]):
                file = batch.file
                try:
                    file.append(_placed(feed, batch, islice(items, share)))
                except OSError as error:
                    raise FeedError(f"the feed {batch.uri} cannot be written: {error}") from error
                batch.items += share
                batch.length, batch.digest, batch.state = file.length, file.digest, OPEN
                self.changed.add(batch)
                self._written[feed.id] += share
                if working.is_full(batch):
                    # one commit may fill more batches than a process can have open
                    file.close()
                    self._on_full(working, batch)


def _placed(feed: Feed, batch: Batch, items: Iterable[bytes]) -> Iterator[bytes]:
    """Yield `items` for the end of `batch`, the first ones of it after the head."""
    return chain([] if batch.items else [feed.head or b""], items)
