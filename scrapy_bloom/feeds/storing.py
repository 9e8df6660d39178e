"""Makes a whole feed of items that wait, and stores it at its destination."""

from __future__ import annotations

import logging
import os
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
from .formats import Pickled, unpickled
from .plans import is_local, local_path, overwrites

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Spider
    from scrapy.exporters import BaseItemExporter
    from scrapy.extensions.feedexport import FeedStorageProtocol

    from .outbox import Batch
    from .plans import FeedPlan

logger = logging.getLogger("scrapy_bloom.durable.feeds.storing")


class Part:
    """A batch in its part file, stored at `storage` as a whole or only its new part. `save` makes
    `batch.stored` durable."""

    def __init__(
        self,
        plan: FeedPlan,
        batch: Batch,
        storage: FeedStorageProtocol,
        save: Callable[[Batch], None],
    ) -> None:
        self._plan = plan
        self._batch = batch
        self._storage = storage
        self._options = plan.options
        self._save = save
        self._is_whole = is_local(storage) or overwrites(storage, self._options)

    @property
    def items(self) -> int:
        """Number of items to be stored."""
        stored = 0 if self._is_whole else self._batch.stored.get("items", 0)
        return self._batch.items - stored

    @property
    def is_stored(self) -> bool:
        """True if all items are stored."""
        return bool(self._batch.stored.get("items") == self._batch.items)

    async def store(self, spider: Spider) -> None:
        """Store the feed, or its new part. Raises any exception of the storage."""
        if is_local(self._storage):
            self._replace()
        else:
            file = self._storage.open(spider)
            try:
                self._write(file)
            except BaseException:
                file.close()
                raise
            await ensure_awaitable(self._storage.store(file))
        self._batch.stored |= {"items": self._batch.items, "length": self._batch.length}

    def _write(self, file: IO[bytes]) -> None:
        """Write the feed, or its new part, to `file`, which stays open."""
        watched = _Watched(file)
        target: Any = watched
        if "postprocessing" in self._options:
            target = PostProcessingManager(self._options["postprocessing"], target, self._options)
        since = 0 if self._is_whole else self._batch.stored.get("length", 0)
        plan = self._plan
        if isinstance(plan.format, Pickled):
            plan.format.end_trial()
        exporter, stored = plan.build(target), self._batch.stored
        if since:  # the columns of csv, which the first item has given
            exporter.fields_to_export = exporter.fields_to_export or stored.get("columns")
        exporter.start_exporting()
        if since < self._batch.length:  # else there may be no part
            with plan.place(self._batch).open("rb") as part:
                part.seek(since)
                for item in unpickled(part, self._batch.length):
                    self._export_item(exporter, item, watched)
        exporter.finish_exporting()
        if isinstance(exporter, CsvItemExporter):
            stored["columns"] = [*(exporter.fields_to_export or ())]
        if target is not watched:
            target.close()
            # Python's finalizer would close the plugins once more, with `file` open
            target.close = int

    def _export_item(self, exporter: BaseItemExporter, item: Any, file: _Watched) -> None:
        try:
            exporter.export_item(item)
        except Exception:
            if file.has_failed:
                raise  # the feed is stored again
            logger.exception(
                "The exporter of %(uri)s has refused an item, whose page is done: %(item)r",
                {"uri": self._batch.uri, "item": item},
            )

    def _replace(self) -> None:
        """Replace the feed's own file atomically by its earlier contents and the round's."""
        stored = self._batch.stored
        path = Path(stored.get("path") or local_path(self._storage)).resolve()
        make_directory(path.parent)
        if "path" not in stored:
            before = FeedFile(path)
            if not self._options.get("overwrite", False):
                before.keep()
            stored |= {"path": str(path), "base": before.length}
            stored["versions"] = [[before.length, before.digest.hex()]]
        with replacing(path, _mode_of(path), stored["token"]) as file:
            with suppress(FileNotFoundError), path.open("rb") as base:
                file.writelines(chunks(base, stored["base"]))
            self._write(file)
            file.close()
            after = FeedFile(Path(file.name))
            after.keep()
            stored["versions"] = [stored["versions"][-1], [after.length, after.digest.hex()]]
            self._save(self._batch)
        stored["versions"] = stored["versions"][-1:]
        stored["is_replaced"] = True


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


def follow_job(batch: Batch, job: Path, file: str) -> bool:
    """Let the files of `batch` be those beside `job` if that was copied, or moved with them; return
    True if it was not there before. `file` is in each job. Raises FeedError if a file is the
    original's."""
    stored, before = batch.stored, Path(batch.stored.get("job", job))
    if before == job:
        return False
    stored["job"], is_copy = str(job), (before / file).exists()

    def followed(path: str) -> str:
        real = Path(path).parent.resolve() / Path(path).name
        beside = os.path.normpath(job / os.path.relpath(real, before))
        if is_copy and beside == str(real):
            raise FeedError(f"{path} belongs to {before}, of which {job} is a copy")
        return beside if is_copy or not real.exists() else path

    batch.path = batch.path and followed(batch.path)
    if "path" in stored:
        stored["path"] = followed(stored["path"])
    return True


def check_stored(batch: Batch, options: dict[str, Any]) -> None:
    """Raise FeedError if the file in which `batch` was stored has changed since."""
    stored = batch.stored
    if "versions" not in stored or (
        options.get("overwrite", False) and "is_replaced" not in stored
    ):
        return
    file = FeedFile(Path(stored["path"]))
    file.keep()
    if [file.length, file.digest.hex()] not in stored["versions"]:
        raise FeedError(f"{file.path} is not as this job has left it")


def _mode_of(path: Path) -> int:
    """Return the mode of the feed at `path`, or that of a new file."""
    with suppress(FileNotFoundError):
        return stat.S_IMODE(path.stat().st_mode)
    mask = os.umask(0o077)  # there is no way only to read it
    os.umask(mask)
    return 0o666 & ~mask
