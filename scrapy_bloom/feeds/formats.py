"""Divides the output of Scrapy's exporters into head, separator, items and foot.

An exporter writes csv's head with its first item, and json's comma with each later one; but in the
feed another item may come first, and some may be missing.
"""

from __future__ import annotations

import codecs
import io
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import IO, Any, NamedTuple

from scrapy import exporters

Build = Callable[[Any], exporters.BaseItemExporter]
"""Makes the exporter of a feed over a file."""

_ITEM_IN_ONE_WRITE = (
    exporters.CsvItemExporter,
    exporters.JsonItemExporter,
    exporters.JsonLinesItemExporter,
)
"""Exporters whose last write of an item is the item; writes before it are head or separator."""
_ITEM_ALONE = (
    exporters.MarshalItemExporter,
    exporters.PickleItemExporter,
    exporters.PprintItemExporter,
    exporters.XmlItemExporter,
)

_NOTHING = {"item": ""}


def is_divisible(exporter: type) -> bool:
    """Return True for those of Scrapy's exporters whose output can be divided, but for no
    subclass: its output is unknown."""
    return exporter in _ITEM_IN_ONE_WRITE or exporter in _ITEM_ALONE


class Divided:
    """The divided output of one of Scrapy's own exporters, which `build` makes: parts that can be
    joined to a feed in any order.

    `head`, the bytes before the first item, and `columns` are those of the feed, if earlier runs
    have written them; else they are known after the first export. `empty` is a feed without items.
    """

    def __init__(
        self, build: Build, head: bytes | None = None, columns: list[str] | None = None
    ) -> None:
        self.separator, self.foot = _between_and_after(build)
        self.empty = _empty(build)
        self._writes = _Writes()
        self._exporter = build(self._writes)
        self._is_started = False
        self.head = b""
        if head is not None:
            self.export(dict.fromkeys(columns or _NOTHING, ""))
            self.head = head

    @property
    def columns(self) -> list[str] | None:
        """The columns of a csv feed, given by the first item; else None."""
        fields = self._exporter.fields_to_export
        is_csv = isinstance(self._exporter, exporters.CsvItemExporter)
        return [*fields] if is_csv and fields and not isinstance(fields, Mapping) else None

    def export(self, item: Any) -> bytes:
        """Return `item` without head and separator. Raises any exception of the exporter."""
        is_first, self._is_started = not self._is_started, True
        if is_first:
            self._exporter.start_exporting()
            self.head = self._writes.take()
        try:
            self._exporter.export_item(item)
        except BaseException:
            before = self._writes.take()
            if isinstance(self._exporter, exporters.CsvItemExporter):
                self.head += before  # the exporter writes its head once, even if the item fails
            raise
        if not isinstance(self._exporter, _ITEM_IN_ONE_WRITE):
            return self._writes.take()
        alone = self._writes.pop()
        before = self._writes.take()
        if is_first:
            mark = _byte_order_mark(self._exporter)
            if not before and mark and alone.startswith(mark):
                before, alone = mark, alone.removeprefix(mark)
            self.head += before
        return alone


class Written:
    """The output of `divided`, each write pickled: a plugin may depend on the bounds of writes."""

    def __init__(self, divided: Divided) -> None:
        self._divided = divided
        self.separator = pickle.dumps(divided.separator)
        self.foot = pickle.dumps(divided.foot)
        self.empty = pickle.dumps(divided.empty)

    @property
    def head(self) -> bytes:
        """The bytes before the first item, known after the first export."""
        return pickle.dumps(self._divided.head)

    @property
    def columns(self) -> list[str] | None:
        """The columns of a csv feed, given by the first item; else None."""
        return self._divided.columns

    def export(self, item: Any) -> bytes:
        """Return `item` without head and separator. Raises any exception of the exporter."""
        return pickle.dumps(self._divided.export(item))


class Pickled:
    """Pickled items, for an exporter whose output cannot be divided. An item that cannot be pickled
    stays in memory, and a placeholder is written.

    The exporter, which `build` makes, writes when the feed is stored. What it refuses then cannot
    be asked again, so another one gets each item when it is scraped, and writes nowhere.
    """

    head = separator = foot = empty = b""
    columns = None

    def __init__(self, build: Build) -> None:
        self._build = build
        self._trial: exporters.BaseItemExporter | None = None
        self._run = os.urandom(8)
        self._in_memory: list[Any] = []

    def export(self, item: Any) -> bytes:
        """Return `item`, pickled. Raises any exception of pickle."""
        return pickle.dumps(item)

    def require_accepted(self, data: bytes) -> None:
        """Raise what the exporter raises for an item, pickled in `data`. An OSError is none of the
        item, and an exporter that cannot begin is an error of the feed when that is stored."""
        if self._trial is None:
            with suppress(Exception):
                trial = self._build(_Nowhere())
                trial.start_exporting()
                self._trial = trial
        if self._trial is not None:
            with suppress(OSError):
                self._trial.export_item(pickle.loads(data))  # noqa: S301 - pickled just now

    def end_trial(self) -> None:
        """Drop the exporter that gets each item: that which writes may use the same files."""
        self._trial = None

    def keep(self, item: Any) -> bytes:
        """Keep `item` in memory and return a placeholder for it."""
        self._in_memory.append(item)
        return pickle.dumps(_InMemory(self._run, len(self._in_memory) - 1))

    @property
    def has_kept(self) -> bool:
        """True if an item is in memory."""
        return bool(self._in_memory)

    def items(self, file: IO[bytes], end: int) -> Iterator[Any]:
        """Yield the items from the position of `file` to `end`, less those that an earlier process
        had in memory."""
        for item in unpickled(file, end):
            if not isinstance(item, _InMemory):
                yield item
            elif item.run == self._run:
                yield self._in_memory[item.number]


Format = Divided | Written | Pickled
"""Turns items into bytes that can be joined to a feed in any order."""


class _InMemory(NamedTuple):
    run: bytes
    number: int


def unpickled(file: IO[bytes], end: int) -> Iterator[Any]:
    """Yield the objects that `Pickled` or `Written` pickled, from the position of `file` to
    `end`."""
    while file.tell() < end:
        # this job's own file; its directory contains pickled requests, too
        yield pickle.load(file)  # noqa: S301


class _Nowhere(io.BytesIO):
    """A file that keeps nothing."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


class _Writes(io.RawIOBase):
    """A file that records each write separately."""

    def __init__(self) -> None:
        super().__init__()
        self._writes: list[bytes] = []

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True  # so that encoders see position 0, and write a byte order mark

    def tell(self) -> int:
        return 0

    def write(self, data: Any) -> int:
        self._writes.append(bytes(data))
        return len(data)

    def pop(self) -> bytes:
        """Remove and return the last write."""
        return self._writes.pop()

    def take(self) -> bytes:
        """Remove all writes and return them, joined."""
        taken = b"".join(self._writes)
        self._writes.clear()
        return taken


def _between_and_after(build: Build) -> tuple[bytes, bytes]:
    """Return the separator and the foot of a feed, found by exporting two empty items."""
    writes = _Writes()
    exporter = build(writes)
    exporter.start_exporting()
    exporter.export_item(_NOTHING)
    writes.take()
    exporter.export_item(_NOTHING)
    separator = b""
    if isinstance(exporter, _ITEM_IN_ONE_WRITE):
        writes.pop()
        separator = writes.take()
    writes.take()
    exporter.finish_exporting()
    return separator, writes.take()


def _empty(build: Build) -> bytes:
    """Return the contents of a feed without items."""
    writes = _Writes()
    exporter = build(writes)
    exporter.start_exporting()
    exporter.finish_exporting()
    return writes.take()


def _byte_order_mark(exporter: exporters.BaseItemExporter) -> bytes:
    """Return the byte order mark of the exporter's encoding, empty without one."""
    if not isinstance(exporter, exporters.CsvItemExporter):
        return b""  # the others encode each item separately
    return codecs.getincrementalencoder(exporter.encoding or "utf-8")().encode("")
