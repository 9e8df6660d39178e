"""Feeds that grow in their place: Scrapy's csv and jsonlines in local files, whose last write of an
item is the item."""

from __future__ import annotations

import codecs
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.exporters import CsvItemExporter

from .plans import OpenFeed, local_path, overwrites

if TYPE_CHECKING:
    from scrapy.exporters import BaseItemExporter

    from .outbox import Batch, Feed, Outbox
    from .plans import Plans


class GrowingFeed(OpenFeed):
    """A feed in its own file, to which items are appended as soon as they are final, as the text
    that one of these exporters makes of them.

    The feed's head, the bytes before the first item, and its columns are those that earlier runs
    have written; else they are known after the first export.
    """

    in_place = True

    def __init__(self, plans: Plans, outbox: Outbox, feed: Feed, *rest: Any) -> None:
        super().__init__(plans, outbox, feed, *rest)
        self.overwrites = overwrites(plans.storage_of(feed.template, self.options), self.options)
        self._writes = _Writes()
        self._text = self.build(self._writes)
        self._is_started = False
        if (head := feed.head) is not None:
            self.export(dict.fromkeys(feed.columns or ("item",), ""))
            feed.head = head

    @property
    def columns(self) -> list[str] | None:  # type: ignore[override]
        """The columns of a csv feed, given by the first item; else None."""
        fields = self._text.fields_to_export
        is_csv = isinstance(self._text, CsvItemExporter)
        return [*fields] if is_csv and fields and not isinstance(fields, Mapping) else None

    def _place(self, batch: Batch) -> Path:
        return Path(batch.path or local_path(self._view.storage(batch.uri, self.options)))

    def export(self, item: Any) -> bytes:
        """Return the text of `item` without the head. Raises any exception of the exporter."""
        feed, head = self.feed, b""
        is_first, self._is_started = not self._is_started, True
        if is_first:
            self._text.start_exporting()
            head = b"".join(self._writes.take())
        try:
            self._text.export_item(item)
        except BaseException:
            taken = b"".join(self._writes.take())
            if is_first:  # the exporter writes its head once, even if the item fails
                feed.head = head + taken
            raise
        before, alone = self._writes.take()
        if is_first:
            mark = _byte_order_mark(self._text)
            if not before and mark and alone.startswith(mark):
                before, alone = mark, alone.removeprefix(mark)
            feed.head = head + before
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
