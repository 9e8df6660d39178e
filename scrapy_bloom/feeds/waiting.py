"""Feeds whose items wait pickled, and of which an exporter makes the feed when it is stored."""

from __future__ import annotations

import io
import logging
import os
import pickle
import secrets
import sqlite3
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from scrapy.exporters import CsvItemExporter
from scrapy.extensions import feedexport
from scrapy.extensions.postprocessing import PostProcessingManager
from scrapy.utils.defer import deferred_from_coro, ensure_awaitable, maybe_deferred_to_future
from twisted.internet.defer import DeferredList

from ..crawl.start_requests import give_turn
from ..errors import FeedError
from ..files import make_directory, replacing
from .file import FeedFile, chunks
from .open_feed import OpenFeed, local_path
from .outbox import Row

if TYPE_CHECKING:
    from scrapy.exporters import BaseItemExporter
    from scrapy.extensions.feedexport import FeedStorageProtocol
    from twisted.internet.defer import Deferred

logger = logging.getLogger(__name__)

_TRIED_AT_ONCE = 1000
"""Items that one exporter gets to try."""


@dataclass(eq=False, kw_only=True)
class Batch(Row):
    """What is stored of a feed at a time, all of it without a limit.

    `items` are stored, None before the first time, with these `columns` of csv. A local file begins
    with `base` bytes of others, has one of these `versions`, and a temporary one with the `token`.
    """

    table = "batches"
    number: int
    token: str
    items: int | None = None
    columns: list[str] | None = None
    base: int = 0
    versions: list[list[Any]] = field(default_factory=list)
    is_replaced: bool = False


class WaitingFeed(OpenFeed):
    """A feed whose items wait in the outbox, pickled, as those of a batch: rows whose feed is minus
    the id of the batch. A full one is stored while the crawl goes on, and forgotten then, and the
    last one at each stop, as a whole or only its new part.

    What the exporter refuses when it writes the feed cannot be asked again, so another one gets
    each item when it is scraped, and writes nowhere.
    """

    in_place = False

    def _prepare(self) -> None:
        storage = self._plans.storage_of(self.feed.template, self.options)
        self._is_whole = bool(local_path(storage)) or overwrites(storage, self.options)
        self._limit: int = self.options["batch_item_count"] or sys.maxsize
        self._batches: dict[int, Batch] = {}  # by number
        self._full: list[Batch] = []  # to be stored while the crawl goes on
        self._stores: set[Deferred[None]] = set()  # of full ones
        self._trial: BaseItemExporter | None = None
        self._tried = 0

    # -- one item ------------------------------------------------------------------

    def export(self, item: Any) -> bytes:
        """Return `item`, pickled. Raises any exception of pickle, and of the exporter; if that
        cannot begin, this is an error of the feed when it is stored."""
        data = pickle.dumps(item)
        if self._tried == _TRIED_AT_ONCE:
            self._end_trial()  # one that keeps its items would keep them all
        if self._tried == 0:
            with suppress(Exception):
                trial = self._build(_Nowhere())
                trial.start_exporting()
                self._trial = trial
        self._tried += 1
        if self._trial is not None:
            self._trial.export_item(pickle.loads(data))  # noqa: S301 - pickled just now
        return data

    def _end_trial(self) -> None:
        """Drop the exporter that gets each item, up to the next item."""
        self._trial, self._tried = None, 0

    # -- its batches ---------------------------------------------------------------

    def plan(self) -> None:
        """Plan the first batch, too."""
        super().plan()
        self._add_batch(1, self.feed.uri, self.feed.place)

    def _add_batch(self, number: int, uri: str, place: str) -> None:
        token, of = secrets.token_hex(8), self.feed.id
        batch = Batch(of=of, uri=uri, place=place, number=number, token=token)
        self._outbox.add(batch)
        self._batches[number] = batch

    def _items(self, batch: Batch) -> int:
        """Return how many items a batch has."""
        return min(self._limit, self.feed.items - (batch.number - 1) * self._limit)

    def check(self) -> None:
        """Check that the items are there, and what was stored."""
        super().check()
        outbox = self._outbox
        batches = [each for each in outbox.rows(Batch) if each.of == self.feed.id]
        self._batches = {batch.number: batch for batch in batches}
        for batch in batches:
            if batch.job != str(outbox.job):
                from .moved import follow_job

                follow_job(batch, outbox)
            self._check_stored(batch)
            count = "SELECT COUNT(*) FROM items WHERE feed = ? AND request IS NULL"
            if outbox.file.query(count, (-batch.id,)) != [(self._items(batch),)]:
                raise FeedError(f"items of {batch.uri} were removed from {outbox.file.name}")

    def _check_stored(self, batch: Batch) -> None:
        """Raise FeedError if the file in which `batch` was stored has changed since. Cost: reads
        the file."""
        if batch.is_replaced or (batch.versions and not self.options.get("overwrite")):
            version = _version(Path(batch.path))
            if version not in batch.versions:
                raise FeedError(f"{batch.path} is not as this job has left it")
            batch.versions = [version]

    def recover(self) -> None:
        """Have the next commit store the batches that were full, too."""
        super().recover()
        for batch in self._batches.values():
            self._outbox.save(batch)  # whose job may have moved
            if self._items(batch) == self._limit:
                self._full.append(batch)

    def make_room(self) -> None:
        """Let the final items wait in the last batch, or new ones."""
        feed, outbox = self.feed, self._outbox
        while outbox.has_final(feed):
            full, items = divmod(feed.items, self._limit)
            if (number := full + 1) not in self._batches:
                uri, place = self._plans.place_of(feed.template, self.options, number)
                self._add_batch(number, uri, place)
            batch = self._batches[number]
            first = "SELECT id FROM items WHERE feed = ? AND request IS NULL ORDER BY id LIMIT ?"
            move = f"UPDATE items SET feed = ? WHERE id IN ({first})"  # noqa: S608 - no input
            given = -batch.id, feed.id, self._limit - items
            feed.items += outbox.file.execute(move, given).rowcount
            outbox.save(feed)
            if feed.items == number * self._limit:
                self._full.append(batch)

    def write(self) -> None:
        """Store full batches while the crawl goes on."""
        for batch in self._full:
            stored = deferred_from_coro(self._store_soon(batch))
            self._stores.add(stored)
            stored.addBoth(partial(self._note_stored, stored))
        self._full.clear()

    async def _store_soon(self, batch: Batch) -> None:
        # not in the commit that has made it full, nor after the last one: see `close`
        await give_turn()
        ledger = self._outbox.ledger
        if not ledger.stopped:
            with ledger.guarded(sqlite3.Error, FeedError):
                await self._store(batch)

    def _note_stored(self, stored: Deferred[None], _: object) -> None:
        self._stores.discard(stored)

    async def close(self, *, stores_empty: bool) -> list[str]:
        """Store all batches, also those whose store has failed before."""
        self._full.clear()
        await maybe_deferred_to_future(DeferredList([*self._stores]))
        stores_empty = stores_empty and self.options["store_empty"]
        failed = []
        for batch in [*self._batches.values()]:
            if not await self._store(batch, stores_empty=stores_empty):
                failed.append(batch.uri)
            await give_turn()
        return failed

    async def _store(self, batch: Batch, *, stores_empty: bool = False) -> bool:
        """Store what is new of `batch`, and forget a full one. Return False after a logged
        error."""
        items = self._items(batch)
        new = items - (0 if self._is_whole else batch.items or 0)
        is_new = batch.items != items or bool(new and not self.is_left)
        if is_new and (items or (stores_empty and batch.number == 1)):
            write = partial(self._write_batch, batch, items)
            if not await self._stored(batch.number, batch.uri, new, write):
                return False
        if items == self._limit:
            self._outbox.remove(batch)
            del self._batches[batch.number]
        return True

    async def _write_batch(self, batch: Batch, items: int, storage: FeedStorageProtocol) -> None:
        """Write `batch` to its storage. Raises any exception of that."""
        if local_path(storage):
            self._replace(batch, storage)
        else:
            spider = self._plans.exporter.crawler.spider
            assert spider is not None
            file = storage.open(spider)
            try:
                self._write(batch, file)
            except BaseException:
                file.close()
                raise
            await ensure_awaitable(storage.store(file))
        batch.items = items
        self._outbox.save(batch)

    def _write(self, batch: Batch, file: IO[bytes]) -> None:
        """Write the batch, or its new part, to `file`, which stays open."""
        watched = _Watched(file)
        target: Any = watched
        if "postprocessing" in self.options:
            target = PostProcessingManager(self.options["postprocessing"], target, self.options)
        since = 0 if self._is_whole else batch.items or 0
        self._end_trial()  # the exporter that writes may use the same files
        exporter = self._build(target)
        if since:  # the columns of csv, which the first item has given
            exporter.fields_to_export = exporter.fields_to_export or batch.columns
        exporter.start_exporting()
        for data in self._outbox.final_items(-batch.id, since):
            # this job's own file; it contains pickled requests, too
            item = pickle.loads(data)  # noqa: S301
            try:
                exporter.export_item(item)
            except Exception:
                if watched.has_failed:
                    raise  # the batch is stored again
                logger.exception(
                    "The exporter of %(uri)s has refused an item, whose page is done: %(item)r",
                    {"uri": batch.uri, "item": item},
                )
        exporter.finish_exporting()
        if isinstance(exporter, CsvItemExporter):
            batch.columns = [*(exporter.fields_to_export or ())]
        if target is not watched:
            target.close()
            # Python's finalizer would close the plugins once more, with `file` open
            target.close = int

    def _replace(self, batch: Batch, storage: FeedStorageProtocol) -> None:
        """Replace the feed's own file atomically by its earlier contents and the batch."""
        path = FeedFile(Path(batch.path or batch.place or local_path(storage)).resolve()).path
        make_directory(path.parent)
        if not batch.versions:
            before: list[Any] = [0, ""] if self.options.get("overwrite") else _version(path)
            batch.path, batch.base, batch.versions = str(path), before[0], [before]
        with replacing(path, mode_of(path), batch.token) as file:
            with suppress(FileNotFoundError), path.open("rb") as base:
                file.writelines(chunks(base, batch.base))
            self._write(batch, file)
            file.close()
            after = _version(Path(file.name))
            self._check_stored(batch)  # others may have written to it meanwhile
            batch.versions = [*batch.versions[-1:], after]
            self._outbox.save(batch)
            self._outbox.commit()
        batch.versions = batch.versions[-1:]
        batch.is_replaced = True


class _Nowhere(io.BytesIO):
    """A file that keeps nothing."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


class _Watched:
    """A file that notes whether a write has failed: an exporter may fail for the item, too."""

    has_failed = False

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: Any) -> int:
        """Write `data` as the file does."""
        self.has_failed = True
        count = self._file.write(data)
        self.has_failed = False
        return count


def overwrites(storage: object, options: dict[str, Any]) -> bool:
    """Return True if `storage` replaces earlier contents, by the feed's option or else by Scrapy's
    documented default; False for storages that are not Scrapy's."""
    if isinstance(storage, (feedexport.S3FeedStorage, feedexport.GCSFeedStorage)):
        return True  # they ignore the option
    is_scrapys = any(k.__module__ == feedexport.__name__ for k in type(storage).__mro__)
    return bool(options.get("overwrite", is_scrapys and getattr(storage, "overwrite", False)))


def _version(path: Path) -> list[Any]:
    """Return the length and the hash of the file at `path`. Cost: reads it."""
    file = FeedFile(path)
    file.read()
    return [file.length, file.digest]


def mode_of(path: Path) -> int:
    """Return the mode of the file at `path`, or that of a new one."""
    with suppress(FileNotFoundError):
        return stat.S_IMODE(path.stat().st_mode)
    mask = os.umask(0o077)  # there is no way only to read it
    os.umask(mask)
    return 0o666 & ~mask
