"""Feeds of a worker: what is acknowledged is on the disk, where a feed is a local file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from scrapy.extensions.feedexport import FeedExporter, FileFeedStorage
from scrapy.extensions.postprocessing import PostProcessingManager

from ..startup import announce

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.extensions.feedexport import FeedSlot


class SyncedFeeds:
    """Takes part in a ledger's commits: flushes and syncs the files of Scrapy's feed
    exporter before requests are acknowledged. So each item of a page that is not fetched
    again is in its feed, at least once.

    Feeds that are stored or compressed at the end are in a temporary file until then, and
    are lost with a worker that is killed: the line at the start names them.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._synced: dict[FeedSlot, int] = {}
        lost = sorted(
            uri
            for uri, options in crawler.settings.getdict("FEEDS").items()
            if not _is_local(str(uri)) or options.get("postprocessing")
        )
        if lost and self._exporter is not None:
            announce(crawler, "feeds", f"a kill loses what is in {', '.join(lost)} by then")

    @property
    def _exporter(self) -> FeedExporter | None:
        found: FeedExporter | None = self._crawler.get_extension(FeedExporter)
        return found

    def before_commit(self, acknowledged: Sequence[Request]) -> None:
        """Sync what was written since the last time. Raises OSError."""
        exporter = self._exporter
        if not acknowledged or exporter is None:
            return
        synced = {}
        for slot in exporter.slots:
            synced[slot] = slot.itemcount
            if self._synced.get(slot, 0) != slot.itemcount:
                _sync(slot)
        self._synced = synced

    def after_commit(self) -> None:
        """Do nothing."""


def _sync(slot: FeedSlot) -> None:
    is_local = isinstance(slot.storage, FileFeedStorage)
    if slot.file is not None and is_local and not isinstance(slot.file, PostProcessingManager):
        slot.file.flush()
        os.fsync(slot.file.fileno())


def _is_local(uri: str) -> bool:
    return "://" not in uri or uri.startswith(("file:", "stdout:"))
