"""Feeds that grow in their place: Scrapy's csv and jsonlines in local files, whose last write of an
item is the item."""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.exporters import BaseItemExporter, CsvItemExporter

from .plans import OpenFeed, local_path, overwrites

if TYPE_CHECKING:
    from .outbox import Batch, Feed
    from .plans import Plans

Build = Callable[[Any], BaseItemExporter]
"""Makes the exporter of a feed over a file."""


class GrowingFeed(OpenFeed):
    """A feed in its own file, to which items are appended as soon as they are final."""

    in_place = True

    def __init__(self, plans: Plans, feed: Feed, options: dict[str, Any], directory: Path) -> None:
        super().__init__(plans, feed, options, directory)
        self.overwrites = overwrites(plans.storage_of(feed.template, options), options)
        self._text = Text(self.build, feed.head, feed.columns)

    def export(self, item: Any) -> bytes:
        """Return the text of `item`. Raises any exception of the exporter."""
        return self._text.export(item)

    def _place(self, batch: Batch) -> Path:
        return Path(batch.path or local_path(self._view.storage(batch.uri, self.options)))

    def take_head(self) -> None:
        """Give the feed what comes before its first item, known after the first export."""
        self.feed.head, self.feed.columns = self._text.head, self._text.columns


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
        is_csv = isinstance(self._exporter, CsvItemExporter)
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


def _byte_order_mark(exporter: BaseItemExporter) -> bytes:
    """Return the byte order mark of the exporter's encoding, empty without one."""
    if not isinstance(exporter, CsvItemExporter):
        return b""  # the others encode each item separately
    return codecs.getincrementalencoder(exporter.encoding or "utf-8")().encode("")
