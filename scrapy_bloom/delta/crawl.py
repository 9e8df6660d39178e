"""The memory between crawls, as one crawl uses it.

How no crash can cost a page: a mark says that a page need not be fetched, so it may come into
the memory late, or never, but not before what was on the page is safe. The order is

1. the engine is done with a request, and its items are through the pipelines;
2. one commit of the job writes that: the request's row goes, its items are final, and its mark
   waits in the same database. What dies before that has marked nothing, and is repeated;
3. the feeds have the items: those that are written in place get them right after that commit,
   so a commit later; the others when they are stored;
4. the mark is added to the memory. What dies between 2 and 4 leaves it waiting in the job, and
   the next start adds it; that this has been done is noted nowhere, since adding twice changes
   nothing;
5. when the round is over, the next one adds what is left, and forgets the waiting marks.

A job that is thrown away after it was killed takes the marks with it that were waiting, and
perhaps items: those pages are fetched again. Without a job there is no commit: then all marks
wait in memory until the crawl has ended, with all feeds closed and none failed.

What this round has done does not count in it, in the memory or not.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from itertools import islice
from typing import TYPE_CHECKING

from scrapy.extensions.feedexport import FeedExporter

from ..dupefilter.local import BloomDupeFilter
from ..errors import describe
from ..job.ledger_scheduler import LedgerScheduler
from ..job.session import session_of
from ..scrapy_compat import scheduler_of
from ..sqlite_backend.rounds import feeds_of
from ..sqlite_backend.scheduler import DurableScheduler
from ..startup import is_component
from .marks import Marks, Temporary
from .pages import Pages
from .settings import LIST, wish_of

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

    from ..job.ledger import Ledger
    from ..sqlite_backend.rounds import Round
    from .settings import DeltaSettings
    from .slices import DeltaStore

logger = logging.getLogger(__name__)

_SHARE = 0.05
"""Adding to the memory while the crawl goes on takes at most this share of the time."""
_IN_MEMORY = 100_000
"""So many marks of a round are brought into the memory at a time."""
_AT_ONCE = 256
"""Where nobody says which requests are done, they are looked at after so many more."""


class DeltaCrawl:
    """The marks of a round on their way into `memory`, and what earlier rounds have done.

    To be opened when the scheduler is, before the first request. Raises sqlite3.Error,
    OSError, BloomError then.
    """

    least_seconds = 1.0
    """As the crawl goes on, marks are added to the memory at most once in so many seconds."""

    def __init__(
        self,
        crawler: Crawler,
        settings: DeltaSettings,
        store: DeltaStore,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self._crawler = crawler
        self._settings = settings
        self._round: Round | None = None
        self._ledger: Ledger | None = None
        self._scheduler = scheduler = scheduler_of(crawler)
        if isinstance(scheduler, LedgerScheduler) and _is(scheduler, LedgerScheduler):
            self._ledger = scheduler.ledger
        if not self._has_scrapys_feeds():
            self._round = _round_of(scheduler)
        self._fresh: list[tuple[bytes, float]] = []
        """What the last commit has acknowledged …"""
        self._ready: list[tuple[bytes, float]] = []
        """… and those before it, while marks are added as the crawl goes on."""
        self._not_before = 0.0
        self._under_way: Counter[str] = Counter()
        """How many requests of each list are not done, where nobody else knows."""
        self._begun = 0
        self.marks = Marks(Temporary() if self._round is None else self._round.file)
        self.pages = Pages(crawler, self.marks, settings.mode, clock)
        self._begin()

    def _begin(self) -> None:
        """Go on with the round, or begin one: with what the last one has left in the memory,
        and with a filter that has seen nothing."""
        is_new = _is_new_round(self._scheduler)
        if is_new:
            dupefilter = getattr(self._scheduler, "df", None)
            if isinstance(dupefilter, BloomDupeFilter):
                dupefilter.reset_filter()
        if self._round is not None and is_new:
            if not self._settings.reset:
                self._conclude(self._round)
                self._deliver(self.marks)
            self.marks.clear()
            self._round.commit()
        if is_new and self._settings.reset:
            self.store.clear()
        self.store.open()
        if _round_of(self._scheduler) is not None:
            session_of(self._crawler).at_close(self._close)
        if self._ledger is not None:
            self._ledger.participants.append(self)

    # -- which requests are done -------------------------------------------------------

    def before_commit(self, acknowledged: Sequence[Request]) -> None:
        """Write the marks of the requests that this commit acknowledges."""
        assert self._ledger is not None
        for request in acknowledged:
            self._fresh += self.pages.done(request, self._ledger.reasons.get(request))

    def after_commit(self) -> None:
        """Add what is safe to the memory, if it is time."""
        if self._round is not None and self._is_live():
            if self._ready and time.monotonic() >= self._not_before:
                self._add(self._ready)
            self._ready += self._fresh
        self._fresh.clear()

    def scheduled(self, request: Request) -> None:
        """Note that `request` goes to the scheduler."""
        meta = request.meta
        self.pages.drop_copied_key(request)
        if "redirect_times" in meta or "retry_times" in meta:
            for source in self.pages.sent_again(request):
                self._count(source, -1)
        self._count(request, 1)

    def dropped(self, request: Request) -> None:
        """Note that the scheduler has not taken `request`."""
        self._count(request, -1)
        self.shared(request)

    def shared(self, request: Request) -> None:
        """Note that another page has led to `request` before."""
        list_, ledger = request.meta.get(LIST), self._ledger
        if isinstance(list_, str) and wish_of(request.meta) is not False:
            with nullcontext() if ledger is None else ledger.guarded():
                if ledger is None or not ledger.stopped:
                    self.marks.share(bytes.fromhex(list_), self.pages.key_of(request))

    def reached_callback(self) -> None:
        """Look now and then which requests are done, where nobody says it."""
        self._begun += 1
        if self._ledger is None and self._begun % _AT_ONCE == 0:
            self._note_done(self.pages.finished())

    def ended(self) -> None:
        """Note that the spider has closed, so that nothing is in progress any more."""
        if self._ledger is None:
            self._note_done(self.pages.left())
            for list_, count in self._under_way.items():
                if count:
                    self.marks.fail(bytes.fromhex(list_))

    def _note_done(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.pages.done(request)
            self._count(request, -1)

    def _count(self, request: Request, change: int) -> None:
        list_ = request.meta.get(LIST)
        if self._ledger is None and isinstance(list_, str):
            self._under_way[list_] += change

    # -- into the memory ---------------------------------------------------------------

    def stopped(self) -> None:
        """Add all marks to the memory where no job keeps them, when all feeds are closed."""
        if self._round is None and self._all_is_well():
            if self._ledger is None:
                self._conclude(None)
            self._add(self.marks)
        self.store.close()

    def _close(self) -> None:
        """Conclude a round that is over, and add the marks that the job keeps to the memory, if
        all feeds have the items. Called before the job is closed; never raises."""
        round_, ledger = _round_of(self._scheduler), self._ledger
        assert round_ is not None
        assert ledger is not None
        exporter = feeds_of(self._crawler)
        has_items = round_.is_over or exporter is None or exporter.all_stored
        if ledger.failed or not has_items:
            return
        try:
            if round_.is_over:
                self._conclude(round_)
                round_.commit()
            if self._round is not None and self._add(self.marks) and round_.is_over:
                self.marks.clear()
                round_.commit()
        except Exception as error:  # noqa: BLE001 - it costs repetitions
            self._tell(error)

    def _conclude(self, round_: Round | None) -> None:
        """Let the lists count: the round is over. Not if a request of it could not be read,
        which waits for the next start."""
        file = None if round_ is None else round_.file
        if file is not None and (
            file.query("SELECT 1 FROM unreadable LIMIT 1") or not file.is_empty
        ):
            self.marks.forget_lists()
        self.marks.conclude()

    def _deliver(self, marks: Iterable[tuple[bytes, float]]) -> None:
        left = iter(marks)
        while some := [*islice(left, _IN_MEMORY)]:
            self.store.add(some)

    def _add(self, marks: Iterable[tuple[bytes, float]]) -> bool:
        """Add `marks` to the memory; return False, and say why, if it cannot be done."""
        began = time.monotonic()
        try:
            self._deliver(marks)
        except Exception as error:  # noqa: BLE001 - it costs repetitions
            self._tell(error)
            return False
        finally:
            ended = time.monotonic()
            self._not_before = ended + max(self.least_seconds, (ended - began) / _SHARE)
            self._ready = []
        return True

    def _tell(self, error: Exception) -> None:
        logger.error(
            "What this crawl has done is not in %(memory)s: %(error)s. %(then)s",
            {
                "memory": self.store.name,
                "error": describe(error),
                "then": "Those pages are fetched again."
                if self._round is None
                else "The next start of the job tries again.",
            },
            extra={"spider": self._crawler.spider},
        )

    def _is_live(self) -> bool:
        exporter = feeds_of(self._crawler)
        return exporter is None or exporter.is_in_place

    def _all_is_well(self) -> bool:
        """Return True if no feed has failed, and nothing that keeps requests."""
        stats = self._crawler.stats.get_stats()
        failed = any(str(name).startswith("feedexport/failed_count") for name in stats)
        return not failed and not (self._ledger is not None and self._ledger.failed)

    def _has_scrapys_feeds(self) -> bool:
        """Return True if feeds lose items when the process is killed."""
        return (
            feeds_of(self._crawler) is None
            and self._crawler.get_extension(FeedExporter) is not None
        )


def give_up(crawler: Crawler) -> None:
    """Let no list of the round count where there is no DeltaCrawl. Never raises."""
    with suppress(Exception):
        if (round_ := _round_of(scheduler_of(crawler))) is not None:
            round_.forget_lists()


def _is_new_round(scheduler: object) -> bool:
    """Return True unless a round of the job goes on: nothing is pending of it."""
    if (round_ := _round_of(scheduler)) is not None:
        return not round_.is_resumed
    return not getattr(scheduler, "has_pending_requests", bool)()


def _round_of(scheduler: object) -> Round | None:
    if isinstance(scheduler, DurableScheduler) and _is(scheduler, DurableScheduler):
        return scheduler.round
    return None


def _is(scheduler: object, kind: type) -> bool:
    # of Scrapy's schedulers whatever has the same methods is an instance
    return is_component(type(scheduler), kind)
