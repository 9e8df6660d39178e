"""Takes apart what Scrapy's exporters write: head, separator, item and foot.

The first item that an exporter writes carries the csv head, and the others begin with
json's comma; but any of them may be the first in the feed, or never come into it.
"""

from __future__ import annotations

import codecs
import io
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, NamedTuple, Protocol

from scrapy import exporters

Build = Callable[[Any], exporters.BaseItemExporter]
"""Makes the exporter of a feed over a file."""

_ITEM_IN_ONE_WRITE = (
    exporters.CsvItemExporter,
    exporters.JsonItemExporter,
    exporters.JsonLinesItemExporter,
)
"""What these write before the last write of an item is its head or its separator."""
_ITEM_ALONE = (
    exporters.MarshalItemExporter,
    exporters.PickleItemExporter,
    exporters.PprintItemExporter,
    exporters.XmlItemExporter,
)

_NOTHING = {"item": ""}


class Format(Protocol):
    """Turns items into bytes from which a feed can be put together in any order."""

    separator: bytes
    foot: bytes
    empty: bytes
    """The whole of a feed without items."""

    @property
    def head(self) -> bytes:
        """What goes before the first item, known when one has been exported."""

    @property
    def columns(self) -> list[str] | None:
        """The columns that the first item has given to a csv feed, else None."""

    def export(self, item: Any) -> bytes:
        """Return `item` alone. Raises whatever the exporter does."""


def is_divisible(exporter: type) -> bool:
    """Return True for those of Scrapy's exporters whose output can be taken apart; what
    a subclass writes, nobody knows."""
    return exporter in _ITEM_IN_ONE_WRITE or exporter in _ITEM_ALONE


class Divided:
    """What one of Scrapy's own exporters writes, made by `build`, in its parts.

    `head` and `columns` are those that the feed has already, if it has.
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
        """The columns that the first item has given to a csv feed, else None."""
        fields = self._exporter.fields_to_export
        is_csv = isinstance(self._exporter, exporters.CsvItemExporter)
        return [*fields] if is_csv and fields and not isinstance(fields, Mapping) else None

    def export(self, item: Any) -> bytes:
        """Return `item` alone. Raises whatever the exporter does."""
        is_first, self._is_started = not self._is_started, True
        if is_first:
            self._exporter.start_exporting()
            self.head = self._writes.take()
        try:
            self._exporter.export_item(item)
        except BaseException:
            before = self._writes.take()
            if isinstance(self._exporter, exporters.CsvItemExporter):
                self.head += before  # the exporter writes it once, whatever became of the item
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
    """What `divided` writes, each write pickled, for a plugin that may see where one ends."""

    def __init__(self, divided: Divided) -> None:
        self._divided = divided
        self.separator = pickle.dumps(divided.separator)
        self.foot = pickle.dumps(divided.foot)
        self.empty = pickle.dumps(divided.empty)

    @property
    def head(self) -> bytes:
        """What goes before the first item, known when one has been exported."""
        return pickle.dumps(self._divided.head)

    @property
    def columns(self) -> list[str] | None:
        """The columns that the first item has given to a csv feed, else None."""
        return self._divided.columns

    def export(self, item: Any) -> bytes:
        """Return `item` alone. Raises whatever the exporter does."""
        return pickle.dumps(self._divided.export(item))


class Pickled:
    """Items as they are, for an exporter that is only known to write a whole feed. One that
    cannot be pickled stays in memory, and a placeholder for it goes with the others."""

    head = separator = foot = empty = b""
    columns = None

    def __init__(self) -> None:
        self._run = os.urandom(8)
        self._in_memory: list[Any] = []

    def export(self, item: Any) -> bytes:
        """Return `item` alone. Raises whatever pickle does."""
        return pickle.dumps(item)

    def keep(self, item: Any) -> bytes:
        """Return a placeholder for `item`, which stays in memory."""
        self._in_memory.append(item)
        return pickle.dumps(_InMemory(self._run, len(self._in_memory) - 1))

    @property
    def has_kept(self) -> bool:
        """True if an item is in memory."""
        return bool(self._in_memory)

    def items(self, file: IO[bytes], end: int) -> Iterator[Any]:
        """Yield the items from where `file` stands to `end`, without those that were in the
        memory of an earlier process."""
        for item in unpickled(file, end):
            if not isinstance(item, _InMemory):
                yield item
            elif item.run == self._run:
                yield self._in_memory[item.number]


class _InMemory(NamedTuple):
    run: bytes
    number: int


def unpickled(file: IO[bytes], end: int) -> Iterator[Any]:
    """Yield what was pickled by `Pickled` or `Written`, from where `file` stands to `end`."""
    while file.tell() < end:
        # this job's own file, below a directory that holds pickled requests too
        yield pickle.load(file)  # noqa: S301


class _Writes(io.RawIOBase):
    """A file that keeps each write for itself."""

    def __init__(self) -> None:
        super().__init__()
        self._writes: list[bytes] = []

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True  # where a file begins, there is the byte order mark

    def tell(self) -> int:
        return 0

    def write(self, data: Any) -> int:
        self._writes.append(bytes(data))
        return len(data)

    def pop(self) -> bytes:
        """Return the last write."""
        return self._writes.pop()

    def take(self) -> bytes:
        """Return all writes as one."""
        taken = b"".join(self._writes)
        self._writes.clear()
        return taken


def _between_and_after(build: Build) -> tuple[bytes, bytes]:
    """Return the separator and the foot of a feed, from two items of nothing."""
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
    """Return what a feed without items holds."""
    writes = _Writes()
    exporter = build(writes)
    exporter.start_exporting()
    exporter.finish_exporting()
    return writes.take()


def _byte_order_mark(exporter: exporters.BaseItemExporter) -> bytes:
    """Return what a text file of the exporter's encoding begins with."""
    if not isinstance(exporter, exporters.CsvItemExporter):
        return b""  # the others encode each item for itself
    return codecs.getincrementalencoder(exporter.encoding or "utf-8")().encode("")
