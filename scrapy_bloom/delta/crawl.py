"""The delta store, as one crawl uses it.

Crash safety: a mark says that a page need not be fetched, so it may reach the store late or never,
but not before the page's items are safe. The order is

1. the engine is done with a request, and its items are through the pipelines;
2. one commit of the job deletes the request's row, makes its items final, and writes its mark into
   the same database. After a crash before that, the page is repeated;
3. the feeds have the items: feeds that are written in place right after that commit, the others
   when they are stored;
4. the mark is added to the delta store. After a crash before that the next start adds it from the
   job. No record of that is needed: adding twice changes nothing;
5. when the round is over, the next one adds the remaining marks, and deletes all from the job.

A feed that is given up may have had the items of any mark that waits in its job: such a mark turns
into facts that equal nothing.

A killed job that is deleted loses its waiting marks, and perhaps items: those pages are fetched
again. Without a job all marks wait in memory until the crawl has ended, with all feeds closed and
none failed.

In a crawl in Redis a worker's marks are added after a commit that has synced its feeds, if these
are local files; what it has not added when it is killed is fetched again by the next crawl. With
feeds that are put together in a JOBDIR they wait there, as above; with others, in memory. A round
of a worker may always go on, so what its JOBDIR has is forgotten there once it was added; and of
what a kill has left only the marks are added: other crawls may know more of the pages by then.

Within the round its own marks do not count, in the delta store or not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from scrapy.extensions.feedexport import FeedExporter

from ..amounts import counted
from ..bloom.removal import remove_filter
from ..crawl.ledger import CommitHook
from ..dupefilter import BloomDupeFilter
from ..errors import message_of
from ..jobdir import feeds_of, session_of
from ..scrapy_private.progress import scheduler_of
from ..sqlite.listing import waiting
from ..startup import is_component
from .file_store import FACTS
from .marks import Marks, Temporary
from .pages import Pages

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from ..crawl.ledger import Ledger
    from ..feeds.durable_feeds import DurableFeeds
    from ..redis.worker import Worker
    from ..sqlite.rounds import Round
    from .file_store import FileDeltaStore, Row
    from .redis_store import RedisDeltaStore
    from .settings import DeltaSettings

logger = logging.getLogger(__name__)

_SHARE = 0.05
"""Most time that adding to the delta store may take during the crawl, as a share."""
_LONGEST_PAUSE = 5.0
"""The most seconds between two additions of a worker, which a kill may cost."""
_IN_MEMORY = 100_000
"""Marks of a round that are added to the delta store at a time."""
_MOST_READY = 100_000
"""Marks of a worker that wait for a store that cannot be reached."""
_LAST_SECONDS = 10.0
"""How long a worker tries to add what is left when it closes."""
_AT_ONCE = 256
"""Without a ledger: callbacks between two looks for finished requests."""


class DeltaCrawl(CommitHook):
    """Moves the marks of a round to the delta `store`, which has those of earlier rounds.

    To be made after the scheduler was opened, before the first request. Raises sqlite3.Error,
    OSError, BloomError then.
    """

    least_seconds = 1.0
    """Least seconds between two additions to the delta store during the crawl."""

    def __init__(
        self, crawler: Crawler, settings: DeltaSettings, store: FileDeltaStore | RedisDeltaStore
    ) -> None:
        self.store = store
        self._crawler = crawler
        self._settings = settings
        self._logger = logging.LoggerAdapter(logger, {"spider": crawler.spider})
        scheduler: Any = scheduler_of(crawler)
        is_ours = is_component(type(scheduler), "LedgerScheduler")
        self._ledger: Ledger | None = scheduler.ledger if is_ours else None
        self._reasons: Mapping[Request, str] = self._ledger.reasons if self._ledger else {}
        """Why requests have failed."""
        self._worker: Worker | None = getattr(scheduler, "worker", None) if is_ours else None
        self._round: Round | None = getattr(scheduler, "round", None) if is_ours else None
        if self._worker is not None:
            self._is_new = self._worker.begins_round
            self._round = self._worker.feeds.round
        elif self._round is not None and self._ledger is not None:
            with self._ledger.guarded():
                self._round.begin()
            self._is_new = not self._round.is_resumed
        else:
            self._is_new = not getattr(scheduler, "has_pending_requests", bool)()
        feeds = feeds_of(crawler)
        self._feeds: DurableFeeds | None = feeds.durable if feeds else None
        if feeds is None and crawler.get_extension(FeedExporter) is not None:
            self._round = None  # Scrapy's own feeds lose items when the process is killed
        self._is_synced = self._worker is not None and self._worker.feeds.are_synced
        """True if the items of a page are safe when its request is acknowledged, without a job."""
        self._lost = 0
        """Marks that will not be added."""
        self._fresh: list[Row] = []
        """The marks of the last commit, whose items the feeds may not have yet."""
        self._ready: list[Row] = []
        """The marks of earlier commits, to be added during the crawl."""
        self._not_before = 0.0
        self._begun = 0
        self.marks = Marks(Temporary() if self._round is None else self._round.file)
        self.pages = Pages(crawler, self.marks, settings, store)
        self._begin()
        self.on_round: list[Callable[[], object]] = getattr(self._worker, "on_round", [])
        self.on_round.append(self._go_on)
        if settings.digest is not None:
            self.pages.count_verdicts()

    def _begin(self) -> None:
        """Continue the round, or begin one: add the marks of the last one to the delta store, and
        reset the filter. The commit that begins the round has that, too."""
        settings, round_ = self._settings, self._round
        scheduler: Any = scheduler_of(self._crawler)
        dupefilter = getattr(scheduler, "df", None)
        if self._is_new and isinstance(dupefilter, BloomDupeFilter):
            reset_filter(dupefilter)
            if self._ledger is not None:
                # what waits for dead hosts is asked in this round, and no duplicate of it
                for request in waiting(scheduler.round.file, scheduler.ledger.store.codec):
                    if not request.dont_filter:
                        dupefilter.filter.add(dupefilter.fingerprint(request))
        if round_ is not None:
            self._distrust()
            # that of another crawl, in which this worker was killed, and whose feeds may wait
            is_others = round_.is_resumed and round_.of_crawl != round_.crawl
            if is_others or not round_.is_resumed:
                drops = settings.reset or is_others
                if not settings.read_only and (drops or self._add(self.marks)):
                    self.marks.clear()
                self.marks.forget_verdicts()
        if settings.read_only:
            self.store.look()
        else:
            if self._is_new and settings.reset:
                self.store.clear()
            self.store.open()
            if round_ is not None:
                session_of(self._crawler).closers.append(self._close)
        if self._ledger is not None:
            # a worker's feeds commit last what the other hooks have written in its JOBDIR
            hooks, last = self._ledger.commit_hooks, self._worker and self._worker.feeds
            hooks.insert(hooks.index(last) if last in hooks else len(hooks), self)
            if self._feeds is not None and settings.digest and settings.digest.skips:
                self._feeds.is_left_out = lambda request: self.pages.is_unchanged(
                    request, self._reasons.get(request)
                )

    def _go_on(self) -> None:
        """Let what this worker has done count, since the crawl is in another round."""
        try:
            self._distrust()
        except Exception as error:  # noqa: BLE001 - it costs repetitions
            self._tell(error)
        if self._settings.reset or (self._adds_soon and not self._settings.read_only):
            self.marks.clear()
        self.marks.forget_verdicts()

    def _distrust(self) -> None:
        """Let no fact of a worker's last start, or last round, get into the store, which may have a
        newer one by now; nor stay one there that is another. Such a page is fetched again."""
        if self._worker is not None and not self._settings.read_only:
            store: Any = self.store  # in Redis
            try:
                store.forget_others(self.marks)
            finally:
                self.marks.forget(*FACTS)

    @property
    def _adds_soon(self) -> bool:
        """True if marks are added as the crawl goes on."""
        is_live = self._feeds is None or self._feeds.is_in_place
        return self._is_synced or (self._round is not None and is_live)

    # -- which requests are done -------------------------------------------------------

    def before_commit(self, acknowledged: Sequence[Request]) -> None:
        """Write the marks of the requests that this commit acknowledges."""
        for request in acknowledged:
            self._fresh += self.pages.done(request, self._reasons.get(request))

    def after_commit(self) -> None:
        """Add the marks whose items are safe to the delta store, if it is time."""
        if self._adds_soon:
            if self._ready and time.monotonic() >= self._not_before:
                self._add(self._ready)
            self._ready += self._fresh
            if (too_many := len(self._ready) - _MOST_READY) > 0 and self._is_synced:
                del self._ready[:too_many]
                self._lost += too_many
            if self._ready and self._worker is not None:
                self._worker.ledger.commit_later()  # a worker may have nothing to do for long
        self._fresh.clear()

    def begin(self, request: Request, response: Response | None = None) -> None:
        """Record that the `response` to `request` has reached the callback. Without a ledger, look
        for finished requests after some of them."""
        self.pages.begin(request, response)
        self._begun += 1
        if self._ledger is None and self._begun % _AT_ONCE == 0:
            self.pages.finish()

    def ended(self) -> None:
        """Without a ledger, finish all requests, since the spider has closed."""
        if self._ledger is None:
            self.pages.finish(all_=True)

    # -- into the delta store ------------------------------------------------------------

    def stopped(self) -> None:
        """Add the marks that wait in memory to the delta store, when all feeds are closed."""
        if self._is_synced:
            self._add_last()
        elif self._round is None and not self._settings.read_only and self._all_is_well():
            self._add(self.marks)
        if self._round is None or self._settings.read_only:  # else `_close` needs the store
            self.store.close()

    def _add_last(self) -> None:
        """Add what a worker has left, and say how many marks are lost."""
        deadline = time.monotonic() + _LAST_SECONDS
        while self._ready and not self._add(self._ready) and time.monotonic() < deadline:
            time.sleep(_LAST_SECONDS / 100)
        if lost := self._lost + len(self._ready):
            self._logger.warning(
                "%s of this crawl are not in %s, which could not be reached: the next crawl fetches"
                " those pages again.",
                counted(lost, "mark"),
                self.store.name,
            )

    def _close(self) -> None:
        """Add the job's marks to the delta store, if all feeds have the items, and delete those of
        a round that is over, and cannot go on. Called before the job is closed; never raises."""
        round_, ledger = self._round, self._ledger
        assert round_ is not None
        assert ledger is not None
        feeds = self._feeds
        has_items = feeds is None or feeds.all_stored or not feeds.has_any
        try:
            is_added = has_items and not ledger.failed and self._add(self.marks)
            if is_added and self._worker is not None:  # whose round may go on
                self.marks.forget("time", *FACTS)
                round_.commit()
            elif is_added and round_.is_over:
                self.marks.clear()
                round_.commit()
            self.store.close()
        except Exception as error:  # noqa: BLE001 - it costs repetitions
            self._tell(error)

    def _add(self, marks: Iterable[Row]) -> bool:
        """Add `marks` to the delta store; return False if that fails. A job's error is logged, the
        marks of a worker wait."""
        began, failure, left = time.monotonic(), None, iter(marks)
        try:
            while some := [*islice(left, _IN_MEMORY)]:
                self.store.add(some)
        except Exception as error:  # noqa: BLE001 - it costs repetitions
            failure = error
        ended = time.monotonic()
        pause = (ended - began) / _SHARE
        if self._is_synced:  # a job has its marks on the disk, too
            pause = min(pause, _LONGEST_PAUSE)
        self._not_before = ended + max(self.least_seconds, pause)
        if failure is None or not self._is_synced:
            self._ready = []
            if failure is not None:
                self._tell(failure)
        return failure is None

    def _tell(self, error: Exception) -> None:
        fetched = "Those pages are fetched again."
        then = fetched if self._round is None else "The next start of the job tries again."
        text = "What this crawl has done is not in %s: %s. %s"
        named = error if self._ledger is None else self._ledger.named(error)
        self._logger.error(text, self.store.name, message_of(named), then)

    def _all_is_well(self) -> bool:
        """Return True if no feed and no commit has failed."""
        stats = self._crawler.stats.get_stats()
        failed = any(str(name).startswith("feedexport/failed_count") for name in stats)
        return not failed and not (self._ledger is not None and self._ledger.failed)


def reset_filter(dupefilter: BloomDupeFilter) -> None:
    """Replace the filter of earlier rounds by an empty one, before the first request. A crash
    leaves a filter or none, which the next start replaces again.

    Raises OSError, MemoryError or BloomError.
    """
    job, seen = dupefilter._job, dupefilter._seen
    if job is not None and seen is not None and len(seen):
        seen.filter.close()
        remove_filter(job.filter)
        seen.filter = dupefilter.open_in(job)
        dupefilter.loses_requests = False
        dupefilter.forget_recent()
