"""How each feed of an exporter is written, from its first item to the last one in a file."""

from __future__ import annotations

import io
import json
import logging
import os
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from itemadapter import ItemAdapter
from scrapy import signals
from scrapy.exporters import CsvItemExporter, JsonLinesItemExporter
from scrapy.extensions import feedexport
from scrapy.utils.defer import ensure_awaitable
from scrapy.utils.misc import build_from_crawler
from scrapy.utils.python import global_object_name

from ..errors import FeedError
from ..scrapy_private.feeds import FeedExporterView
from .file import FeedFile

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from scrapy.exporters import BaseItemExporter
    from scrapy.extensions.feedexport import FeedExporter, FeedStorageProtocol

    from .outbox import Feed, Outbox

    Store = Callable[[FeedStorageProtocol], Awaitable[None] | None]

logger = logging.getLogger(feedexport.__name__)
"""For the lines that Scrapy's exporter logs too."""


class Plans:
    """Plans the feeds of `exporter` by its settings. Raises JobDirectoryError as its view does, and
    FeedError if two feeds are one file."""

    def __init__(self, exporter: FeedExporter) -> None:
        self.exporter = exporter
        self.view = FeedExporterView(exporter)
        self._storages: dict[str, Any] = {}
        self._places: dict[str, str] = {}
        self.files: dict[str, str] = {}  # templates of local feeds, by their real paths
        self.templates = [uri for uri in exporter.feeds if self._is_durable(uri)]
        for uri in self.templates:
            if path := local_path(self._storages[uri]):
                path = os.path.realpath(path)
                if (first := self.files.setdefault(path, uri)) != uri:
                    what = f"feeds {first!r} and {uri!r} are one file, {path}"
                    raise FeedError(f"{what}: leave one of them out, or give it another name")

    def _is_durable(self, template: str) -> bool:
        """Return False for a feed that cannot be cut: standard output, a device, a pipe."""
        options = self.exporter.feeds[template]
        storage = self.storage_of(template, options)
        if not (path := local_path(storage)):
            return not isinstance(storage, feedexport.StdoutFeedStorage)
        with suppress(Exception):  # what the URI needs may not be known yet
            _, path = self.place_of(template, options)
            self._places[template] = path
        return os.path.isfile(path) or os.path.isdir(path) or not os.path.exists(path)

    def place_of(self, template: str, options: dict[str, Any], number: int = 1) -> tuple[str, str]:
        """Return the URI of a batch, and the path of its local file, if it is one. Raises what the
        parameters of the URI do."""
        uri = self.view.evaluate(template, options, number)
        is_local = local_path(self.storage_of(template, options))
        return uri, local_path(self.view.storage(uri, options)) if is_local else ""

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
        """Return True for one local file in csv or jsonlines by Scrapy's exporter, whose last write
        of an item is the item; the output of a subclass is unknown."""
        is_one = not ("postprocessing" in options or options["batch_item_count"])
        exporter = self.exporter.exporters[options["format"]]
        is_plain = exporter in (CsvItemExporter, JsonLinesItemExporter)
        return is_one and is_plain and bool(local_path(self.storage_of(template, options)))

    def describe(self, template: str, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options of a feed in the form of JSON, and the classes that it uses."""
        exporter = self.exporter.exporters.get(options["format"])
        classes = {"exporter": exporter, "storage": type(self.storage_of(template, options))}
        described = json.dumps({**options, **classes}, default=_form, skipkeys=True)
        return dict(json.loads(described))

    def have(self, feed: Feed) -> bool:
        """Return True if FEEDS has `feed` as it was begun."""
        if feed.template not in self.templates:
            return False
        return self.describe(feed.template, self.exporter.feeds[feed.template]) == feed.options

    def storage_of(self, template: str, options: dict[str, Any]) -> Any:
        """Return a storage of the feed's kind, built once: that may be expensive."""
        if template not in self._storages:
            try:
                self._storages[template] = self.view.storage(template, options)
            except Exception as error:
                raise FeedError(f"feed {template!r} has no storage: {error!r}") from error
        return self._storages[template]


class OpenFeed:
    """A feed that this run writes, by its `options`, a row of `outbox`.

    Items are appended to the feed's own file as soon as they are final, as the text that the
    exporter makes of them, behind a head. In a WaitingFeed they wait until they are stored.
    """

    in_place = True
    is_left = False  # True for a feed of an earlier run that is only to be completed
    _head = b""

    def __init__(self, plans: Plans, outbox: Outbox, feed: Feed, options: dict[str, Any]) -> None:
        self.feed, self.options = feed, options
        self._plans, self._outbox = plans, outbox
        self._prepare()

    def _prepare(self) -> None:
        """Prepare the export of items. Raises what an exporter does that refuses its options."""
        self._text: Any = None
        is_csv = isinstance(self._build(io.BytesIO()), CsvItemExporter)
        self._has_columns = is_csv and not self.options["fields"]  # given by the first item
        columns = self.feed.columns if self._has_columns else ["item"]
        if self.feed.uri and columns is not None:
            with suppress(Exception):  # what fails has failed in the first run
                self._begin({name: name for name in columns})

    def _build(self, file: Any) -> BaseItemExporter:
        """Return the exporter over `file`. Raises what its constructor raises."""
        options, exporter = self.options, self._plans.exporter
        kind, more = exporter.exporters[options["format"]], options["item_export_kwargs"]
        given = {name: options[name] for name in ("encoding", "indent")}
        given["fields_to_export"] = options["fields"]
        return build_from_crawler(kind, exporter.crawler, file, **given, **more)

    # -- its file ------------------------------------------------------------------

    def plan(self) -> None:
        """Give a new feed its URI, its place and a row."""
        self.feed.uri, self.feed.place = self._plans.place_of(self.feed.template, self.options)
        self._outbox.add(self.feed)

    def check(self) -> None:
        """Make a feed of an earlier run ready to go on. Raises FeedError if its file is not as that
        run left it. Cost: reads the file."""
        feed = self.feed
        if feed.job != str(self._outbox.job):
            from .moved import follow_job

            follow_job(feed, self._outbox)
        if feed.digest:
            self._file = FeedFile(Path(feed.path))
            self._file.check(feed.length, feed.digest, self._written())

    def recover(self) -> None:
        """Go on after the last run, and write what was final there."""
        self._outbox.save(self.feed)  # whose job may have moved
        if self.feed.digest:
            self._file.prepare()
            self.write()

    def make_room(self) -> None:
        """Begin the file for the first final items, with the next commit."""
        if not self.feed.items and self._outbox.has_final(self.feed):
            self._begin_file()

    def _begin_file(self) -> None:
        """Begin the file, if it is not begun, recorded with the next commit."""
        feed = self.feed
        if not feed.digest:
            uri, options = feed.uri, self.options
            feed.path = feed.path or local_path(self._plans.view.storage(uri, options))
            self._file = FeedFile(Path(feed.path))
            if not (overwrites := bool(options.get("overwrite"))):
                self._file.read()
            self._file.prepare(empty=overwrites)
        self._save()

    def write(self) -> None:
        """Append the final items, durably, recorded with the next commit. Raises FeedError."""
        if not self._outbox.has_final(self.feed):
            return
        try:
            self._file.append(self._written())
        except OSError as error:
            what = f"the feed {self.feed.uri} cannot be written: {error}"
            raise FeedError(what) from error
        self.feed.items += self._outbox.drop_final(self.feed)
        self._save()

    def _written(self) -> Iterator[bytes]:
        """Return what the final items append to the file, the first ones behind the head."""
        head = [] if self.feed.items else [self._head]
        return chain(head, self._outbox.final_items(self.feed.id))

    def _save(self) -> None:
        self.feed.length, self.feed.digest = self._file.length, self._file.digest
        self._outbox.save(self.feed)

    # -- one item ------------------------------------------------------------------

    def export(self, item: Any) -> bytes:
        """Return `item` as it is in the file, without the head. Raises any exception of the
        exporter."""
        if self._text is None:
            self._begin(item)
        try:
            self._text.export_item(item)
        finally:
            written = self._taken()
        return written

    def _begin(self, item: Any) -> None:
        """Begin to export, and find the head: that is there when an item is exported for the first
        time, also if it fails, and not for the second."""
        names = [*ItemAdapter(item).field_names()]
        if self._has_columns and all(isinstance(name, str) for name in names):
            self.feed.columns = names
        self._buffer = io.BytesIO()
        self._text = self._build(self._buffer)
        self._text.start_exporting()
        try:
            self._text.export_item(item)
        finally:
            self._head = self._taken()
        self._text.export_item(item)
        self._head = self._head.removesuffix(self._taken())

    def _taken(self) -> bytes:
        """Return what the exporter has written since the last call."""
        written = self._buffer.getvalue()
        self._buffer.seek(0)
        self._buffer.truncate()
        return written

    # -- its end -------------------------------------------------------------------

    async def close(self, *, stores_empty: bool) -> list[str]:
        """Store what is not stored. Return the URIs where that has failed."""
        items, uri = self.feed.items, self.feed.uri
        if not (items or (stores_empty and self.options["store_empty"])):
            return []
        is_stored = await self._stored(1, uri, items, lambda _: self._begin_file())
        return [] if is_stored else [uri]

    async def _stored(self, number: int, uri: str, items: int, store: Store) -> bool:
        """Call `store` for a batch, with the signals, stats and log lines of Scrapy's exporter for
        so many `items`. Return False after a logged error."""
        crawler, end, slot = self._plans.exporter.crawler, "success", None
        what = f"{self.options['format']} feed ({items} items) in: {uri}"
        extra = {"spider": crawler.spider}
        try:
            slot = self._plans.view.slot(self.feed.template, self.options, number, uri)
            slot.itemcount = items
            await ensure_awaitable(store(slot.storage))
            logger.info("Stored %s", what, extra=extra)
        except Exception:
            logger.exception("Error storing %s", what, extra=extra)
            end = "failed"
        if slot is None:
            return False
        crawler.stats.inc_value(f"feedexport/{end}_count/{type(slot.storage).__name__}")
        await crawler.signals.send_catch_log_async(signals.feed_slot_closed, slot=slot)
        return end == "success"


def local_path(storage: Any) -> str:
    """Return the absolute path of Scrapy's own storage of a feed in a local file, else an empty
    text."""
    is_local = type(storage) is feedexport.FileFeedStorage
    return str(Path(storage.path).absolute()) if is_local else ""


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
