"""The two forms in which items wait for their feed: the text of csv and jsonlines, which grows in
its place, and pickled items, of which an exporter makes the feed when it is stored."""

from __future__ import annotations

import codecs
import io
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import IO, Any

from scrapy import exporters

Build = Callable[[Any], exporters.BaseItemExporter]
"""Makes the exporter of a feed over a file."""

_TRIED_AT_ONCE = 1000
"""Items that one exporter gets to try."""


def grows(exporter: type) -> bool:
    """Return True for Scrapy's exporters of csv and jsonlines, whose last write of an item is the
    item, but for no subclass: its output is unknown."""
    return exporter in (exporters.CsvItemExporter, exporters.JsonLinesItemExporter)


class Text:
    """Items as the text that one of these exporters makes of them, which `build` makes.

    `head`, the bytes before the first item, and `columns` are those of the feed, if earlier runs
    have written them; else they are known after the first export.
    """

    def __init__(
        self, build: Build, head: bytes | None = None, columns: list[str] | None = None
    ) -> None:
        self._writes = _Writes()
        self._exporter = build(self._writes)
        self._is_started = False
        self.head = b""
        if head is not None:
            self.export(dict.fromkeys(columns or ("item",), ""))
            self.head = head

    @property
    def columns(self) -> list[str] | None:
        """The columns of a csv feed, given by the first item; else None."""
        fields = self._exporter.fields_to_export
        is_csv = isinstance(self._exporter, exporters.CsvItemExporter)
        return [*fields] if is_csv and fields and not isinstance(fields, Mapping) else None

    def export(self, item: Any) -> bytes:
        """Return `item` without the head. Raises any exception of the exporter."""
        is_first, self._is_started = not self._is_started, True
        if is_first:
            self._exporter.start_exporting()
            self.head = b"".join(self._writes.take())
        try:
            self._exporter.export_item(item)
        except BaseException:
            # the exporter writes its head once, even if the item fails
            self.head += b"".join(self._writes.take())
            raise
        before, alone = self._writes.take()
        if is_first:
            mark = _byte_order_mark(self._exporter)
            if not before and mark and alone.startswith(mark):
                before, alone = mark, alone.removeprefix(mark)
            self.head += before
        return alone


class Pickled:
    """Pickled items, one after the other. The exporter, which `build` makes, writes when the feed
    is stored. What it refuses then cannot be asked again, so another one gets each item when it is
    scraped, and writes nowhere."""

    head = b""
    columns = None

    def __init__(self, build: Build) -> None:
        self._build = build
        self._trial: exporters.BaseItemExporter | None = None
        self._tried = 0

    def export(self, item: Any) -> bytes:
        """Return `item`, pickled. Raises any exception of pickle, and of the exporter."""
        data = pickle.dumps(item)
        self._require_accepted(data)
        return data

    def end_trial(self) -> None:
        """Drop the exporter that gets each item, up to the next item: that which writes may use the
        same files."""
        self._trial, self._tried = None, 0

    def _require_accepted(self, data: bytes) -> None:
        """Raise what the exporter raises for an item, pickled in `data`. One that cannot begin is
        an error of the feed when that is stored."""
        if self._tried == _TRIED_AT_ONCE:
            self.end_trial()  # one that keeps its items would keep them all
        if self._tried == 0:
            with suppress(Exception):
                trial = self._build(_Nowhere())
                trial.start_exporting()
                self._trial = trial
        self._tried += 1
        if self._trial is not None:
            self._trial.export_item(pickle.loads(data))  # noqa: S301 - pickled just now


def unpickled(file: IO[bytes], end: int) -> Iterator[Any]:
    """Yield the items that `Pickled` has pickled, from the position of `file` to `end`."""
    while file.tell() < end:
        # this job's own file; its directory contains pickled requests, too
        yield pickle.load(file)  # noqa: S301


class _Nowhere(io.BytesIO):
    """A file that keeps nothing."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


Format = Text | Pickled
"""Turns items into bytes that can be joined to a feed in any order."""


class _Writes(io.BytesIO):
    """A file that knows where its last write begins. Its position 0 has encoders write a byte order
    mark."""

    last = 0

    def write(self, data: Any) -> int:
        self.last = self.tell()
        return super().write(data)

    def take(self) -> tuple[bytes, bytes]:
        """Remove all writes, and return the last one behind the others."""
        taken = self.getvalue()
        self.seek(0)
        self.truncate()
        return taken[: self.last], taken[self.last :]


def _byte_order_mark(exporter: exporters.BaseItemExporter) -> bytes:
    """Return the byte order mark of the exporter's encoding, empty without one."""
    if not isinstance(exporter, exporters.CsvItemExporter):
        return b""  # the others encode each item separately
    return codecs.getincrementalencoder(exporter.encoding or "utf-8")().encode("")
