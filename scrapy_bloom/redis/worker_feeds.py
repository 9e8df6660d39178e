"""Feeds of a worker: what is acknowledged is on the disk, in the feed or in a part of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from scrapy import Request, exporters
from scrapy.extensions.feedexport import FeedExporter, FeedSlot, FileFeedStorage
from scrapy.extensions.postprocessing import PostProcessingManager
from scrapy.utils.python import global_object_name

from ..crawl.ledger import CommitHook, Ledger
from ..crawl.settings import DURABLE_FEEDS
from ..jobdir import feeds_of, session_of
from ..sqlite.job_file import RequestFile, check_header, named
from ..sqlite.rounds import Round
from ..startup import announce
from ..texts import feeds_named

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from ..crawl.start_requests import StartRequests


class WorkerFeeds(CommitHook):
    """The feeds of a worker, which has its JOBDIR, if there is one, to itself.

    With DurableFeedExporter and JOBDIR, items wait in a file there until the request that
    they come from is acknowledged, and feeds that are stored at the end are put together
    beside it: a worker that is started again with that JOBDIR goes on with them, also where
    the round was over and goes on. They are on the disk before Redis hears of the
    acknowledgement, so a kill loses none and may repeat some. Else see SyncedFeeds. Raises
    FilterLockedError if another process has JOBDIR, RequestFileError for another format.
    """

    def __init__(self, crawler: Crawler, starts: StartRequests) -> None:
        self._crawler = crawler
        self._job = session_of(crawler).directory
        self._exporter = feeds_of(crawler)
        self._round: Round | None = None
        if self._job is not None and self._exporter is not None:
            check_header(self._job.worker_feeds)
            starts.items = self._exporter.start_items
        session_of(crawler).begin(self)

    def open(self, ledger: Ledger, crawl: str, *, over: bool, late: bool) -> None:
        """Take part in the commits of `ledger`, for a round of a `crawl`. If that is `over` and the
        feeds are stored, those of another round begin with an item only. A `late` worker, which has
        nothing to do, leaves them as they are. Raises RequestFileError, FeedError."""
        self._ledger = ledger
        is_kept = self._job is not None and self._exporter is not None
        self._synced = SyncedFeeds(self._crawler, tells=not is_kept)
        ledger.commit_hooks.append(self._synced)
        if self._job is None or self._exporter is None:
            return
        self._file = RequestFile.open(self._job.worker_feeds)
        self._round = Round(self._file, self._commit, crawl, goes_on=not late)
        begins = not over or self._round.is_resumed
        ledger.named = partial(named, self._job.worker_feeds)
        try:
            self._exporter.attach(ledger, self._round)
            self._exporter.durable.stores_empty = begins
        except BaseException as error:  # noqa: BLE001 - also Ctrl-C
            self._file.close(clean=True)
            raise named(self._job.worker_feeds, error) from None
        if late and self._round.follows_kept:
            self._round.awaits_feeds = False
        session_of(self._crawler).closers.insert(0, partial(self._file.close, clean=True))
        if self._round.awaits_feeds:
            if begins:
                self._round.begin()
            ledger.commit_hooks.append(self)

    @property
    def round(self) -> Round | None:
        """The round whose feeds are put together in JOBDIR, None without such feeds."""
        return self._round if self._round is not None and self._round.awaits_feeds else None

    @property
    def are_synced(self) -> bool:
        """True if a kill costs no item of an acknowledged page, and JOBDIR has none of them: each
        feed is a local file that is synced before."""
        return self.round is None and self._synced.are_safe

    def go_on_in(self, crawl: str) -> None:
        """Let the round belong to `crawl`, another round of the same: these feeds go on when failed
        pages of that are asked again. Raises sqlite3.Error."""
        if self._round is not None:
            self._round.crawl = crawl
            self._round.file.execute("UPDATE rounds SET crawl = ?", (crawl,))

    def before_commit(self, acknowledged: Sequence[Request]) -> None:
        """Make durable what the feeds have written, before Redis hears of it. Raises
        sqlite3.Error."""
        self._commit()

    def conclude(self, *, over: bool) -> None:
        """End the round of the feeds if the crawl is `over`. Raises sqlite3.Error."""
        if (round_ := self.round) is not None and over:
            round_.complete()
            self._commit()

    def close(self) -> None:
        """End the worker's use of JOBDIR, which stays open until the feeds are stored."""
        if self._round is not None and self._ledger.failed:
            self._file.rollback()
        session_of(self._crawler).end(self)

    def _commit(self) -> None:
        if self._file.changed:
            self._file.commit()


class SyncedFeeds(CommitHook):
    """Takes part in a ledger's commits: flushes and syncs the files of Scrapy's feed
    exporter before requests are acknowledged. So each item of a page that is not fetched
    again is in its feed, at least once.

    Feeds that are stored or compressed at the end are in a temporary file until then, and
    are lost with a worker that is killed: a warning at the start `tells` of them.
    """

    def __init__(self, crawler: Crawler, *, tells: bool) -> None:
        self._crawler = crawler
        self._synced: dict[FeedSlot, int] = {}
        settings = crawler.settings
        lost = [
            uri
            for uri, options in settings.getdict("FEEDS").items()
            if ("://" in str(uri) and not str(uri).startswith(("file:", "stdout:")))
            or options.get("postprocessing")
        ]
        if tells and lost and self._exporter is not None:
            why, way_out = "there is no JOBDIR", "set one"
            if not DURABLE_FEEDS.read(settings):
                why, way_out = "BLOOM_DURABLE_FEEDS is False", ""
            elif settings.get("JOBDIR"):
                why = f"{global_object_name(type(self._exporter))} is no DurableFeedExporter"
                way_out = "make it a subclass"
            announce(crawler, "items", f"not durable in {feeds_named(lost)}: {why}", way_out)

    @property
    def _exporter(self) -> FeedExporter | None:
        found: FeedExporter | None = self._crawler.get_extension(FeedExporter)
        return found

    @property
    def are_safe(self) -> bool:
        """True if each item is on the disk after the sync: each feed is a file of Scrapy's, in a
        format of Scrapy's, which writes items at once, and without batches, which are closed
        unsynced."""
        exporter = self._exporter
        return exporter is None or all(
            exporter.exporters[options["format"]].__module__ == exporters.__name__
            and exporter.storages.get(urlsplit(uri).scheme) is FileFeedStorage
            and not (options.get("postprocessing") or options["batch_item_count"])
            for uri, options in exporter.feeds.items()
        )

    def before_commit(self, acknowledged: Sequence[Request]) -> None:
        """Sync what was written since the last time. Raises OSError."""
        exporter = self._exporter
        if not acknowledged or exporter is None:
            return
        synced = {}
        for slot in exporter.slots:
            synced[slot] = slot.itemcount
            is_local = isinstance(slot.storage, FileFeedStorage)
            if slot.file is None or isinstance(slot.file, PostProcessingManager):
                continue
            if is_local and self._synced.get(slot, 0) != slot.itemcount:
                slot.file.flush()
                os.fsync(slot.file.fileno())
        self._synced = synced
