"""How each feed of an exporter is written, from its first batch to the last item in a file."""

from __future__ import annotations

import io
import json
import os
import secrets
import sys
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from itemadapter import ItemAdapter
from scrapy.exporters import CsvItemExporter, JsonLinesItemExporter
from scrapy.extensions import feedexport
from scrapy.utils.misc import build_from_crawler
from scrapy.utils.python import global_object_name

from ..errors import FeedError
from ..scrapy_private.feeds import FeedExporterView
from .file import FeedFile
from .outbox import OPEN, WAITING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from scrapy.exporters import BaseItemExporter
    from scrapy.extensions.feedexport import FeedExporter, FeedSlot, FeedStorageProtocol

    from .outbox import Batch, Feed, Outbox


class Plans:
    """Plans the feeds of `exporter` by its settings. Raises JobDirectoryError as its view does, and
    FeedError if two feeds are one file."""

    def __init__(self, exporter: FeedExporter) -> None:
        self.exporter = exporter
        self.view = FeedExporterView(exporter)
        self._storages: dict[str, Any] = {}
        self._places: dict[str, Path] = {}
        self.files: dict[str, str] = {}  # templates of local feeds, by their real paths
        self.templates = [uri for uri in exporter.feeds if self._is_durable(uri)]
        for uri in self.templates:
            if is_local(storage := self._storages[uri]):
                first = self.files.setdefault(path := os.path.realpath(local_path(storage)), uri)
                if first != uri:
                    what = f"feeds {first!r} and {uri!r} are one file, {path}"
                    raise FeedError(f"{what}: leave one of them out, or give it another name")

    def _is_durable(self, template: str) -> bool:
        """Return False for a feed that cannot be cut: standard output, a device, a pipe."""
        options = self.exporter.feeds[template]
        storage = self.storage_of(template, options)
        if not is_local(storage):
            return not isinstance(storage, feedexport.StdoutFeedStorage)
        with suppress(Exception):  # what the URI needs may not be known yet
            storage = self.view.storage(self.view.evaluate(template, options, 1), options)
            self._places[template] = local_path(storage)
        path = local_path(storage)
        return path.is_file() or path.is_dir() or not path.exists()

    def require_places(self, new: Iterable[str]) -> None:
        """Raise FeedError if one of the `new` feeds may not write its local file; write nothing."""
        for template in filter(self._places.get, new):
            path = Path(os.path.realpath(self._places[template]))
            in_place = path.exists() and self.grows(template, self.exporter.feeds[template])
            place = path if in_place else next(each for each in path.parents if each.exists())
            may = os.access(place, os.W_OK, effective_ids=os.access in os.supports_effective_ids)
            if path.is_dir() or not may:
                why = f"{path} is a directory" if path.is_dir() else f"{place} may not be written"
                raise FeedError(f"feed {template!r}: {why}; give it another name, or leave it out")

    def grows(self, template: str, options: dict[str, Any]) -> bool:
        """Return True for a local file in csv or jsonlines by Scrapy's exporter, whose last write
        of an item is the item; the output of a subclass is unknown."""
        is_plain = is_local(self.storage_of(template, options)) and "postprocessing" not in options
        exporter = self.exporter.exporters[options["format"]]
        return is_plain and exporter in (CsvItemExporter, JsonLinesItemExporter)

    def describe(self, template: str, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options of a feed in the form of JSON, and the classes that it uses."""
        exporter = self.exporter.exporters.get(options["format"])
        classes = {"exporter": exporter, "storage": type(self.storage_of(template, options))}
        described = json.dumps({**options, **classes}, default=_form, skipkeys=True)
        return dict(json.loads(described))

    def require_same(self, feed: Feed, options: dict[str, Any]) -> None:
        """Raise FeedError if `options` or its classes are others than `feed` was begun with."""
        now = self.describe(feed.template, options)
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
            try:
                self._storages[template] = self.view.storage(template, options)
            except Exception as error:
                raise FeedError(f"feed {template!r} has no storage: {error!r}") from error
        return self._storages[template]


class OpenFeed:
    """A feed that this run writes, by its `options`. Its batches are rows of `outbox`; one ends at
    `limit` items.

    Items are appended to the feed's own file as soon as they are final, as the text that the
    exporter makes of them, behind a head in each batch. WaitingFeed has part files in `directory`.
    """

    in_place = True
    _head = b""
    is_left = False  # True for a feed of an earlier run that is only to be completed

    def __init__(
        self, plans: Plans, outbox: Outbox, feed: Feed, options: dict[str, Any], directory: Path
    ) -> None:
        self.feed, self.options = feed, options
        self.limit: int = options["batch_item_count"] or sys.maxsize
        self._job = directory.parent.resolve()
        self._outbox, self._directory = outbox, directory.absolute()
        self._exporter, self._view = plans.exporter, plans.view
        storage = plans.storage_of(feed.template, options)
        self._is_local = is_local(storage)
        self._prepare(storage)

    def _prepare(self, storage: FeedStorageProtocol) -> None:
        """Prepare the export of items into a storage like this one."""
        self._overwrites = overwrites(storage, self.options)
        """Whether what was in the file is dropped."""
        self._text: BaseItemExporter | None = None
        # refuses options now, not item by item
        is_csv = isinstance(self._build(io.BytesIO()), CsvItemExporter)
        self._has_columns = is_csv and not self.options["fields"]  # given by the first item
        columns = self.feed.columns if self._has_columns else ["item"]
        if self.feed.batches and columns is not None:
            with suppress(Exception):  # what fails has failed in the first run
                self._begin({name: name for name in columns})

    def is_full(self, batch: Batch) -> bool:
        """Return True if `batch` takes no more items."""
        return batch.items >= self.limit

    def _build(self, file: Any) -> BaseItemExporter:
        """Return the exporter over `file`. Raises what its constructor raises."""
        options, exporter = self.options, self._exporter
        kind, more = exporter.exporters[options["format"]], options["item_export_kwargs"]
        given = {name: options[name] for name in ("encoding", "indent")}
        given["fields_to_export"] = options["fields"]
        return build_from_crawler(kind, exporter.crawler, file, **given, **more)

    def slot(self, batch: Batch, items: int) -> FeedSlot:
        """Return Scrapy's object for so many `items` of `batch`, with its storage."""
        self._exporter.filters.setdefault(self.feed.template, feedexport.ItemFilter({}))
        slot = self._view.slot(self.feed.template, self.options, batch.number, batch.uri)
        slot.itemcount = items
        return slot

    # -- its files ---------------------------------------------------------------------

    def check(self, file: str) -> None:
        """Make a feed of an earlier run ready to go on, in a job that has `file`. Raises FeedError
        if a file is not as that run left it. Cost: reads the files."""
        for batch in self.feed.batches:
            if batch.stored.get("job", job := str(self._job)) != job:
                from .moved import follow_job

                follow_job(batch, self._job, file)
        skip = 0
        for batch in self.feed.batches:
            room = max(self.limit - batch.items, 0)
            items = self._outbox.final_items(self.feed, skip, room)
            skip += room
            if batch.state == OPEN:
                batch.file = self._file(batch)
                batch.file.check(batch.length, batch.digest, self._placed(batch, items))

    def next_batch(self) -> Batch:
        """Add a batch to the feed."""
        number = self.feed.batches[-1].number + 1 if self.feed.batches else 1
        uri = self._view.evaluate(self.feed.template, self.options, number)
        stored = {"token": secrets.token_hex(8), "job": str(self._job)}
        if self._is_local:
            stored["place"] = str(local_path(self._view.storage(uri, self.options)))
        return self._outbox.add_batch(self.feed, number, uri, stored)

    def make_room(self) -> None:
        """Begin the batches for the final items, with the next commit."""
        for batch, _ in self._batches():
            if not batch.items:
                self._outbox.save_feed(self.feed)
            if batch.state == WAITING:
                self.begin_batch(batch)

    def begin_batch(self, batch: Batch) -> None:
        """Begin the file of `batch`, recorded with the next commit."""
        batch.file = file = self._file(batch)
        if self._overwrites:
            file.empty()
        else:
            file.read()
            file.prepare()
        batch.path, batch.state = str(file.path), OPEN
        batch.length, batch.digest = file.length, file.digest
        self._outbox.save_batch(batch)

    def write(self) -> Iterator[Batch]:
        """Append the final items, durably, recorded with the next commit; yield each batch that got
        some. Raises FeedError."""
        for batch, share in self._batches():
            file, items = batch.file, self._outbox.final_items(self.feed, 0, share)
            try:
                file.append(self._placed(batch, items))
            except OSError as error:
                raise FeedError(f"the feed {batch.uri} cannot be written: {error}") from error
            batch.items += share
            batch.length, batch.digest = file.length, file.digest
            self._outbox.save_batch(batch)
            self._outbox.drop_final(self.feed, share)
            yield batch

    def _batches(self) -> Iterator[tuple[Batch, int]]:
        """Yield the batches for the final items, also new ones, and the number in each."""
        items = self._outbox.count_final(self.feed)
        batches = iter([batch for batch in self.feed.batches if not self.is_full(batch)])
        while items > 0:
            batch = next(batches, None) or self.next_batch()
            share = min(items, self.limit - batch.items)
            items -= share
            yield batch, share

    def _placed(self, batch: Batch, items: Iterable[bytes]) -> Iterator[bytes]:
        """Yield `items` for the end of `batch`, the first ones of it after the head."""
        return chain([] if batch.items else [self._head], items)

    def _file(self, batch: Batch) -> FeedFile:
        return FeedFile(self._place(batch), private=not self.in_place)

    # -- what is otherwise in a WaitingFeed ----------------------------------------------

    def _place(self, batch: Batch) -> Path:
        """Return the path of the file that `batch` is written to."""
        path = batch.path or batch.stored.get("path")
        return Path(path or local_path(self._view.storage(batch.uri, self.options)))

    def export(self, item: Any) -> bytes:
        """Return `item` as it is in the file, without the head. Raises any exception of the
        exporter."""
        if self._text is None:
            names = [*ItemAdapter(item).field_names()]
            if self._has_columns and all(isinstance(name, str) for name in names):
                self.feed.columns = names
            return self._begin(item)
        try:
            self._text.export_item(item)
        finally:
            written = self._taken()
        return written

    def _begin(self, item: Any) -> bytes:
        """Begin to export with `item`, and return it without the head: that is there when an item
        is exported for the first time, also if it fails, and not for the second."""
        self._buffer = io.BytesIO()
        self._text = self._build(self._buffer)
        self._text.start_exporting()
        try:
            self._text.export_item(item)
        finally:
            self._head = self._taken()
        self._text.export_item(item)
        alone = self._taken()
        self._head = self._head.removesuffix(alone)
        return alone

    def _taken(self) -> bytes:
        """Return what the exporter has written since the last call."""
        written = self._buffer.getvalue()
        self._buffer.seek(0)
        self._buffer.truncate()
        return written

    def unstored(self, batch: Batch) -> int | None:
        """Return how many items of `batch` are to be stored, None if nothing is to be done."""
        return batch.items

    async def store(
        self, batch: Batch, storage: FeedStorageProtocol, commit: Callable[[], None]
    ) -> None:
        """Store `batch`, if its file is a part; `commit` makes its state durable. Raises what the
        storage raises."""


def is_local(storage: object) -> bool:
    """Return True for Scrapy's own storage of a feed in a local file."""
    return type(storage) is feedexport.FileFeedStorage


def overwrites(storage: object, options: dict[str, Any]) -> bool:
    """Return True if `storage` replaces earlier contents, by the feed's option or else by Scrapy's
    documented default; False for storages that are not Scrapy's."""
    if isinstance(storage, (feedexport.S3FeedStorage, feedexport.GCSFeedStorage)):
        return True  # they ignore the option
    is_scrapys = any(k.__module__ == feedexport.__name__ for k in type(storage).__mro__)
    return bool(options.get("overwrite", is_scrapys and getattr(storage, "overwrite", False)))


def local_path(storage: FeedStorageProtocol) -> Path:
    """Return the absolute path of a storage that `is_local`."""
    assert isinstance(storage, feedexport.FileFeedStorage)
    return Path(storage.path).absolute()


def _form(value: Any) -> Any:
    """Return the form of a value that is not JSON, the same in each process: classes and functions
    become their names, other objects those of their types."""
    if isinstance(value, partial):
        return f"functools.partial of {_form(value.func)}"
    if isinstance(value, (bytes, PurePath)):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return sorted(json.dumps(each, default=_form) for each in value)
    return global_object_name(value if hasattr(value, "__qualname__") else type(value))
