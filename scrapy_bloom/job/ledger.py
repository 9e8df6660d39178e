"""Which stored requests are done, and when what is new becomes durable."""

from __future__ import annotations

import inspect
import logging
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Protocol
from weakref import WeakKeyDictionary

from scrapy import Request
from scrapy.utils.asyncio import call_later
from scrapy.utils.python import global_object_name
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from ..errors import describe
from ..signals import before_commit
from .failure import IN_MEMORY, FailedRequest
from .in_flight import InFlight

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from scrapy.crawler import Crawler
    from scrapy.utils.asyncio import CallLaterResult

    from ..files import DirectoryLock
    from ..scrapy_compat import EngineView
    from .store import FingerprintKeeper, RequestStore

logger = logging.getLogger("scrapy_bloom.durable.ledger")


class Participant(Protocol):
    """Has something of its own to write in the commit that acknowledges requests."""

    def before_commit(self, acknowledged: Sequence[Request]) -> None:
        """Write what goes with these requests in the same transaction. Raising stops all."""

    def after_commit(self) -> None:
        """Go on from what is durable now. Whatever it raises stops the ledger."""


class HandlerError(Exception):
    """A handler of `before_commit` has not done its work."""

    def __init__(self, handler: Callable[..., object], reason: str) -> None:
        super().__init__(f"{global_object_name(handler)}, a handler of before_commit: {reason}")


class Ledger:
    """Keeps the books of a job: a request in `store` is acknowledged when the engine is
    done with it and with all that came of it in memory only, and its fingerprint enters
    the filter when it is safe.

    Commits come in groups, of `operations` requests pushed or handed out or `seconds`
    after the first of them, or later where those who have a part in them are slow. Before
    each the signal `before_commit` is sent; `participants` write in them. If any of this or
    the store fails, nothing is acknowledged any more, and the spider is closed with reason
    `bloom_error`.
    """

    preparing_share = 0.05
    """The share of the time that handlers and participants may take: else commits are rarer."""

    def __init__(
        self,
        crawler: Crawler,
        store: RequestStore,
        dupefilter: FingerprintKeeper,
        engine: EngineView,
        *,
        operations: int,
        seconds: float,
    ) -> None:
        self.store = store
        self.stopped = False
        self.failed = False
        self.participants: list[Participant] = []
        self.ends = False
        """True in the last commit that acknowledges anything."""
        self.commits = 0
        self.slowest_commit = 0.0  # seconds
        self._acknowledged: list[Request] = []
        self._crawler = crawler
        self._dupefilter = dupefilter
        self._engine = engine
        self._operations = operations
        self._seconds = seconds
        self._in_flight = InFlight()
        self._unreleased: list[bytes] = []
        self._handed_out = 0
        self._has_begun = False
        self._sent_again: set[Request] = set()
        """What has become a retry or a redirect, which is stored, and nothing else."""
        self._marked: dict[Request, FailedRequest] = {}
        """What stays in the job as failed when it is acknowledged."""
        self.reasons: WeakKeyDictionary[Request, str] = WeakKeyDictionary()  # of failures
        self._together: dict[Request, list[Request]] = {}
        self._newest: Request | None = None
        self._postponed: set[Request] = set()
        self._is_committing = False
        self._not_before = 0.0
        self._timer: CallLaterResult | None = None

    def begin(self) -> None:
        """From now on there may be something to do before a commit."""
        self._has_begun = True

    def push(self, request: Request) -> None:
        """Store `request`. Raises ValueError if it cannot be serialized."""
        self.store.push(request)
        self._unreleased += self._fingerprints(request)
        self._sent_again.update(self.sources_of(request))

    def sources_of(self, request: Request) -> Iterator[Request]:
        """Yield what is sent again as `request`, while that is scheduled."""
        return self._engine.sent_again_as(request)

    def keep(self, request: Request) -> None:
        """Note that `request` waits in memory only."""
        fingerprints = self._fingerprints(request)
        self._in_flight.keep(request, fingerprints, comes_again=request.dont_filter)

    def pushed(self) -> None:
        """Commit if it is time, after a request was pushed or kept."""
        if self.store.uncommitted >= self._operations and self._wait <= 0:
            self.commit()
        else:
            self._commit_later()

    def next(self) -> Request | None:
        """Return the next stored request, or None."""
        try:
            return self.store.next()
        except Exception as error:  # noqa: BLE001 - a damaged file may raise anything
            self.stop(error)
            return None

    def before_next(self) -> None:
        """Commit if many were handed out."""
        if self._handed_out >= self._operations and self._wait <= 0:
            self.commit()

    def hand_out(self, request: Request) -> None:
        """Note that the engine gets `request`."""
        self._handed_out += 1
        self._newest = None
        self._in_flight.start(request)
        self._commit_later()

    def has(self, request: Request) -> bool:
        """Return True if the engine has got `request` and it may not be acknowledged."""
        return request in self._in_flight

    @property
    def in_flight(self) -> int:
        """How many requests the engine has got that may not be acknowledged."""
        return len(self._in_flight)

    def together(self) -> Request:
        """Return a stand-in for all requests that the engine has got: it is acknowledged,
        and they with it, when the engine is done with them all. Cost: one step for each,
        but for the first time only until the engine gets another."""
        if self._newest is None:
            self._newest = Request("data:,")
            self._together[self._newest] = [*self._in_flight]
            self._in_flight.keep(self._newest, (), comes_again=True)
            self._commit_later()
        return self._newest

    def fail(self, request: Request, failed: FailedRequest) -> None:
        """Let a request that the engine has got be kept as failed by the commit that
        acknowledges it; what was said first stands. Does nothing for any other."""
        if self.has(request):
            self.reasons[request] = self._marked.setdefault(request, failed).reason

    def postpone(self, request: Request) -> None:
        """Acknowledge `request`, which was dispatched, no sooner than `acknowledge_postponed`: its
        items are only in memory."""
        self._postponed.add(request)

    @property
    def waits_for_postponed(self) -> bool:
        """True if the requests that are not acknowledged are postponed, or wait for postponed
        ones, and there are some."""
        return bool(self._postponed) and all(r in self._postponed for r in self._in_flight)

    @property
    def has_failures(self) -> bool:
        """True if a request that the engine has got is to stay as failed."""
        return bool(self._marked)

    def acknowledge_postponed(self, failed: Exception | None = None) -> None:
        """Acknowledge all requests, when the ledger has ended; those that were postponed as
        failed with reason `feed`, if that is not None. Raises as the store and the
        participants do."""
        for request in self._postponed:
            if failed is not None:
                self.fail(request, FailedRequest.of(request, "feed", exception=failed))
        self._postponed.clear()
        self._write_commit()
        for participant in self.participants:
            participant.after_commit()

    def finish(self, request: Request) -> None:
        """Acknowledge `request`, with the next commit: it is not fetched again. Does
        nothing while the engine still works on it, or if it is none of ours."""
        # who prepares a commit knows which requests it acknowledges
        if not self.stopped and not self._is_committing:
            with self.guarded():
                self._acknowledge(request)
            self._commit_later()

    def skip(self, request: Request, error: Exception) -> None:
        """Go on without `request`, which cannot be scheduled; what it may have come from
        stays in the job."""
        logger.error(
            "Cannot schedule %(request)s: %(error)s. The requests in progress stay in the job, and"
            " are repeated when it is resumed.",
            {"request": request, "error": error},
            exc_info=error,
            extra={"spider": self._crawler.spider},
        )
        self._in_flight.keep(request, [])
        if not request.dont_filter:
            self._dupefilter.forget(request)

    def commit(self) -> None:
        """Acknowledge what is finished and make everything durable. Never raises."""
        if self.stopped or self._is_committing:
            return
        began = monotonic()
        self._handed_out = 0
        self._is_committing = True
        try:
            self._write_commit()
            released, self._unreleased = self._unreleased, []
            # before anything else can fail: the next commit takes them for released
            self._dupefilter.release(released)
            for participant in self.participants:
                participant.after_commit()
        except BaseException as error:  # noqa: BLE001 - also Ctrl-C, which Twisted may hold back
            self.stop(error)
        finally:
            self._is_committing = False
            self.slowest_commit = max(self.slowest_commit, monotonic() - began)

    def end(self, conclude: Callable[[], None]) -> None:
        """Commit for the last time, and then what `conclude` writes, which sees what is
        left. Never raises."""
        self.ends = True
        self.commit()
        if self._timer is not None:
            self._timer.cancel()
        if not self.stopped:
            try:
                conclude()
                self.store.commit(())
            except Exception as error:  # noqa: BLE001 - the dupefilter must be closed too
                self.stop(error)
        # who crawls now, in a handler of spider_closed, comes too late
        self.stopped = True

    def close(self, lock: DirectoryLock | None = None) -> None:
        """Close the store, after the end, and release `lock`. Never raises."""
        try:
            self.store.close(clean=not self.failed)
        except Exception as error:  # noqa: BLE001 - see end
            self._fail(error)
        if lock is not None:
            lock.release(remove=True)

    def stop(self, error: BaseException) -> None:
        """Acknowledge nothing any more, and close the spider. Never raises."""
        if self.stopped:
            return
        self.stopped = True
        self._fail(error)
        self._dupefilter.close_spider("bloom_error")
        with suppress(Exception):
            self.store.rollback()

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Stop where a store fails in what is done outside a commit."""
        try:
            yield
        except self.store.failures as error:
            self.stop(error)

    def _fail(self, error: BaseException) -> None:
        self.failed = True
        is_handlers = isinstance(error, HandlerError)
        what = "A commit" if is_handlers else "The stored requests"
        logger.error(
            "%(what)s failed: %(error)s. Closing the spider; the job stays as it was at the last"
            " commit. Remove the cause, then resume it.",
            {"what": what, "error": describe(error)},
            exc_info=error.__cause__ if is_handlers else error,
            extra={"spider": self._crawler.spider},
        )

    def _write_commit(self) -> None:
        for request in self._in_flight:
            self._acknowledge(request)
        for stand_in, requests in [*self._together.items()]:
            self._acknowledge_together(stand_in, requests)
        acknowledged, self._acknowledged = self._acknowledged, []
        self._prepare(acknowledged)
        self.commits += self.store.commit(self._unreleased)

    def _prepare(self, acknowledged: Sequence[Request]) -> None:
        """Let others do what belongs before a commit, or into it."""
        began = monotonic()
        if self._has_begun:
            self._send_before_commit()
        for participant in self.participants:
            participant.before_commit(acknowledged)
        ended = monotonic()
        self._not_before = ended + (ended - began) * (1 / self.preparing_share - 1)

    def _send_before_commit(self) -> None:
        answers = self._crawler.signals.send_catch_log(
            before_commit, spider=self._crawler.spider, dont_log=Exception
        )
        for handler, answer in answers:
            if isinstance(answer, Failure):
                raise HandlerError(handler, repr(answer.value)) from answer.value
            if inspect.isawaitable(answer) or isinstance(answer, Deferred):
                if inspect.iscoroutine(answer):
                    answer.close()
                raise HandlerError(handler, "it must do its work before it returns")

    @property
    def _wait(self) -> float:
        """Seconds until the next commit may be."""
        return self._not_before - monotonic()

    def _acknowledge_together(self, stand_in: Request, requests: Iterable[Request]) -> None:
        if stand_in in self._postponed or any(map(self.has, requests)):
            return
        if self._newest is stand_in:
            self._newest = None
        del self._together[stand_in]
        self._in_flight.start(stand_in)
        self._acknowledge(stand_in)

    def _acknowledge(self, request: Request) -> None:
        if request in self._postponed:
            return
        is_sent_again = request in self._sent_again
        if not is_sent_again and self._engine.is_in_progress(request):
            return
        self._sent_again.discard(request)
        for finished in self._in_flight.finish(request, alone=is_sent_again):
            self._unreleased += finished.fingerprints
            self._acknowledged.append(finished.request)
            failed = self._marked.pop(finished.request, None)
            if failed is None:
                self.store.done(finished.request)
            elif not self.store.fail(finished.request, failed):
                self._crawler.stats.inc_value(IN_MEMORY)

    def _fingerprints(self, request: Request) -> list[bytes]:
        """Return what the filter may hold of `request` when it is safe."""
        if request.dont_filter:
            return []
        fingerprint = self._dupefilter.fingerprint(request)
        return [fingerprint] if fingerprint in self._dupefilter.held else []

    def _commit_later(self) -> None:
        if self._timer is None and not self.stopped:
            # the idle spider commits too, so a timer, not the next request; there is
            # none without a reactor, as in a script
            with suppress(RuntimeError):
                self._timer = call_later(max(self._seconds, self._wait), self._commit_now)

    def _commit_now(self) -> None:
        self._timer = None
        self.commit()
        if len(self._in_flight) or self._together:
            self._commit_later()
