"""Feeds whose items wait pickled, and of which an exporter makes the feed when it is stored."""

from __future__ import annotations

import io
import logging
import os
import pickle
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from scrapy.exporters import CsvItemExporter
from scrapy.extensions.postprocessing import PostProcessingManager
from scrapy.utils.defer import ensure_awaitable

from ..errors import FeedError
from ..files import make_directory, replacing
from .file import FeedFile, chunks
from .open_feed import OpenFeed, is_local, local_path, overwrites
from .outbox import STORED

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.exporters import BaseItemExporter
    from scrapy.extensions.feedexport import FeedStorageProtocol

    from .outbox import Batch

logger = logging.getLogger("scrapy_bloom.durable.feeds.storing")

_TRIED_AT_ONCE = 1000
"""Items that one exporter gets to try."""


class WaitingFeed(OpenFeed):
    """A feed whose items wait in part files, one pickle after the other. A batch is stored as a
    whole, or only its new part.

    What the exporter refuses when it writes the feed cannot be asked again, so another one gets
    each item when it is scraped, and writes nowhere.
    """

    in_place = False
    _overwrites = True

    def _prepare(self, storage: FeedStorageProtocol) -> None:
        self._is_whole = self._is_local or overwrites(storage, self.options)
        self._trial: BaseItemExporter | None = None
        self._tried = 0

    def _place(self, batch: Batch) -> Path:
        return self._directory / f"{batch.id}.part"

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

    # -- a batch -------------------------------------------------------------------

    def check(self, file: str) -> None:
        """Check what was stored, too."""
        super().check(file)
        for batch in self.feed.batches:
            if batch.state != STORED:
                self._check_stored(batch)

    def _check_stored(self, batch: Batch) -> None:
        """Raise FeedError if the file in which `batch` was stored has changed since. Cost: reads
        the file."""
        stored = batch.stored
        overwrites = self.options.get("overwrite")
        if "versions" not in stored or (overwrites and "is_replaced" not in stored):
            return
        version = _version(Path(stored["path"]))
        if version not in stored["versions"]:
            raise FeedError(f"{stored['path']} is not as this job has left it")
        stored["versions"] = [version]

    def unstored(self, batch: Batch) -> int | None:
        """Return how many items of `batch` are to be stored, None if nothing is to be done."""
        stored = batch.stored.get("items")
        new = batch.items - (0 if self._is_whole else stored or 0)
        return None if stored == batch.items and (self.is_left or not new) else new

    async def store(
        self, batch: Batch, storage: FeedStorageProtocol, commit: Callable[[], None]
    ) -> None:
        """Store `batch`, or its new part; `commit` makes its state durable. Raises any exception of
        the storage."""
        if is_local(storage):
            self._replace(batch, storage, commit)
        else:
            spider = self._exporter.crawler.spider
            assert spider is not None
            file = storage.open(spider)
            try:
                self._write(batch, file)
            except BaseException:
                file.close()
                raise
            await ensure_awaitable(storage.store(file))
        batch.stored |= {"items": batch.items, "length": batch.length}

    def _write(self, batch: Batch, file: IO[bytes]) -> None:
        """Write the feed, or its new part, to `file`, which stays open."""
        watched = _Watched(file)
        target: Any = watched
        if "postprocessing" in self.options:
            target = PostProcessingManager(self.options["postprocessing"], target, self.options)
        stored = batch.stored
        since = 0 if self._is_whole else stored.get("length", 0)
        self._end_trial()  # the exporter that writes may use the same files
        exporter = self._build(target)
        if since:  # the columns of csv, which the first item has given
            exporter.fields_to_export = exporter.fields_to_export or stored.get("columns")
        exporter.start_exporting()
        with batch.file.path.open("rb") as part:
            part.seek(since)
            while part.tell() < batch.length:
                # this job's own file; its directory contains pickled requests, too
                item = pickle.load(part)  # noqa: S301
                try:
                    exporter.export_item(item)
                except Exception:
                    if watched.has_failed:
                        raise  # the feed is stored again
                    logger.exception(
                        "The exporter of %(uri)s has refused an item, whose page is done: %(item)r",
                        {"uri": batch.uri, "item": item},
                    )
        exporter.finish_exporting()
        if isinstance(exporter, CsvItemExporter):
            stored["columns"] = [*(exporter.fields_to_export or ())]
        if target is not watched:
            target.close()
            # Python's finalizer would close the plugins once more, with `file` open
            target.close = int

    def _replace(
        self, batch: Batch, storage: FeedStorageProtocol, commit: Callable[[], None]
    ) -> None:
        """Replace the feed's own file atomically by its earlier contents and the round's."""
        stored = batch.stored
        path = FeedFile(Path(stored.get("path") or local_path(storage)).resolve()).path
        make_directory(path.parent)
        if "versions" not in stored:
            before = [0, ""] if self.options.get("overwrite") else _version(path)
            stored |= {"path": str(path), "base": before[0], "versions": [before]}
        with replacing(path, mode_of(path), stored["token"]) as file:
            with suppress(FileNotFoundError), path.open("rb") as base:
                file.writelines(chunks(base, stored["base"]))
            self._write(batch, file)
            file.close()
            after = _version(Path(file.name))
            self._check_stored(batch)  # others may have written to it meanwhile
            stored["versions"] = [*stored["versions"][-1:], after]
            self._outbox.save_batch(batch)
            commit()
        stored["versions"] = stored["versions"][-1:]
        stored["is_replaced"] = True


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
