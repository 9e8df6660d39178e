"""How each feed of an exporter is written, and what it was begun with."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from scrapy.exporters import CsvItemExporter, JsonLinesItemExporter
from scrapy.extensions.feedexport import (
    FeedExporter,
    FileFeedStorage,
    GCSFeedStorage,
    S3FeedStorage,
    StdoutFeedStorage,
)
from scrapy.utils.python import global_object_name

from ..errors import FeedError
from ..scrapy_private.feeds import FeedExporterView

if TYPE_CHECKING:
    from scrapy.extensions.feedexport import FeedStorageProtocol

    from .outbox import Batch, Feed


class Plans:
    """Plans the feeds of `exporter` by its settings. Raises JobDirectoryError that names what this
    release of Scrapy lacks."""

    def __init__(self, exporter: FeedExporter) -> None:
        self.exporter = exporter
        self.view = FeedExporterView(exporter)
        self._storages: dict[str, Any] = {}

    def is_durable(self, template: str) -> bool:
        """Return False for a feed that cannot be cut: standard output, a device, a pipe."""
        storage = self.storage_of(template, self.exporter.feeds[template])
        if not is_local(storage):
            return not isinstance(storage, StdoutFeedStorage)
        path = local_path(storage)
        return path.is_file() or not path.exists()

    def grows(self, template: str, options: dict[str, Any]) -> bool:
        """Return True for a local file in csv or jsonlines by Scrapy's exporter, whose last write
        of an item is the item, but for no subclass: its output is unknown."""
        exporter = self.exporter.exporters[options["format"]]
        is_plain = is_local(self.storage_of(template, options)) and "postprocessing" not in options
        return is_plain and exporter in (CsvItemExporter, JsonLinesItemExporter)

    def describe(self, template: str) -> dict[str, Any]:
        """Return the options of a feed in the form of JSON, and the classes that it uses."""
        options = self.exporter.feeds[template]
        classes = {
            "exporter": self.exporter.exporters[options["format"]],
            "storage": type(self.storage_of(template, options)),
        }
        described: dict[str, Any] = _plain({**options, **classes})
        return described

    def require_same(self, feed: Feed) -> None:
        """Raise FeedError if `feed` has options now other than those that it was begun with."""
        now = self.describe(feed.template)
        for name in sorted({*now, *feed.options}):
            if feed.options.get(name) != now.get(name):
                raise FeedError(
                    f"feed {feed.template!r} was begun with {name} {feed.options.get(name)!r}, and"
                    f" now has {now.get(name)!r}: change it back until the job is finished, or"
                    " give the feed another name, or use a new JOBDIR"
                )

    def storage_of(self, template: str, options: dict[str, Any]) -> Any:
        """Return a storage of the feed's kind, built once: that may be expensive."""
        if template not in self._storages:
            self._storages[template] = self.view.storage(template, options)
        return self._storages[template]


def is_local(storage: object) -> bool:
    """Return True for Scrapy's own storage of a feed in a local file."""
    return type(storage) is FileFeedStorage


def overwrites(storage: object, options: dict[str, Any]) -> bool:
    """Return True if `storage` replaces earlier contents, by the feed's option or else by Scrapy's
    documented default. The default of storages that are not Scrapy's counts as False."""
    if isinstance(storage, (S3FeedStorage, GCSFeedStorage)):
        return True  # they ignore the option
    is_scrapys = any(k.__module__ == FileFeedStorage.__module__ for k in type(storage).__mro__)
    return bool(options.get("overwrite", is_scrapys and getattr(storage, "overwrite", False)))


def local_path(storage: FeedStorageProtocol) -> Path:
    """Return the absolute path of a storage that `is_local`."""
    assert isinstance(storage, FileFeedStorage)
    return Path(storage.path).absolute()


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


def _plain(value: Any) -> Any:
    """Return the value of an option in the form of JSON, the same in each process."""
    return json.loads(json.dumps(value, default=_form, skipkeys=True))


def _form(value: Any) -> Any:
    """Return the form of a value that is not JSON. Sets are sorted; classes and functions become
    their names, other objects those of their types."""
    if isinstance(value, (set, frozenset)):
        return sorted(map(_plain, value), key=json.dumps)
    if isinstance(value, partial):
        return f"functools.partial of {_plain(value.func)}"
    if isinstance(value, (bytes, PurePath)):
        return str(value)
    return global_object_name(value if hasattr(value, "__qualname__") else type(value))
