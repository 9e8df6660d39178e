"""Decides which stored requests are acknowledged, and when changes are committed."""

from __future__ import annotations

import inspect
import logging
from contextlib import ExitStack, contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from scrapy import Request
from scrapy.utils.python import global_object_name
from twisted.python.failure import Failure

from ..errors import message_of, unforeseen
from ..signals import before_commit
from .delays import Alarm
from .failed_request import IN_MEMORY
from .in_flight import InFlight

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from scrapy.crawler import Crawler

    from ..scrapy_private.progress import EngineProgress
    from .failed_request import FailedRequest
    from .in_flight import Known
    from .protocols import FingerprintKeeper, RequestStore

logger = logging.getLogger(__name__)


class CommitHook:
    """Writes its own rows in the commit that acknowledges requests. Subclasses override what they
    need. An exception stops the ledger."""

    def before_commit(self, acknowledged: Sequence[Request]) -> None:
        """Write the rows for these requests, in the same transaction."""

    def after_commit(self) -> None:
        """Continue after the commit."""


class Ledger:
    """Acknowledges the requests of a job: a request in `store`, when the engine is done with it and
    with its descendants in memory. Its fingerprint is released into the filter when it is stored.

    A commit covers `operations` pushed or dispatched requests, or comes `seconds` after the first
    of them; slow handlers and commit hooks delay it. Before each commit the signal `before_commit`
    is sent, and `commit_hooks` write their rows. If the store or any of these fails, no request is
    acknowledged any more, and the spider is closed with reason `bloom_error`.
    """

    preparing_share = 0.05
    """Most time that handlers and commit hooks may take, as a share: commits are delayed for it."""

    def __init__(
        self,
        crawler: Crawler,
        store: RequestStore,
        dupefilter: FingerprintKeeper,
        engine: EngineProgress,
        operations: int,
        seconds: float,
    ) -> None:
        self.store = store
        self.stopped = self.failed = False
        self.named: Callable[[BaseException], BaseException] = lambda error: error
        """Names the file in an error of it."""
        self.commit_hooks: list[CommitHook] = []
        self.commits = 0
        self.slowest_commit = 0.0  # seconds
        self._crawler = crawler
        self._dupefilter = dupefilter
        self._engine = engine
        self._operations = operations
        self._seconds = seconds
        self.in_flight = InFlight()
        self._unreleased: list[bytes] = []
        self._dispatched = 0
        self.has_begun = False  # True to send `before_commit` with each commit
        self.reasons: WeakKeyDictionary[Request, str] = WeakKeyDictionary()  # of failures
        self._over: list[Known] = []
        """Those that the next commit acknowledges, whatever the engine does with them."""
        engine.on_cut_off(self.fail)
        self._is_committing = False
        self._not_before = 0.0
        self._alarm = Alarm(self._commit_now)

    def stored(self, request: Request, sources: Sequence[Request]) -> None:
        """Record that the store has `request`, and that the `sources` that are sent again as it are
        done; commit if it is time."""
        self._unreleased += self._fingerprints(request)
        for source in sources:
            self._over += self.in_flight.finish(source, waits=False)
        self.pushed()

    def wait_in_memory(self, request: Request, sources: Sequence[Request]) -> None:
        """Record that `request`, sent again for `sources`, waits in memory; commit if it is due."""
        if len(sources) == 1:
            self.in_flight.page_of[request] = sources[0]
        self.in_flight.keep(request, self._fingerprints(request), comes_again=request.dont_filter)
        self.pushed()

    def pushed(self) -> None:
        """Commit if it is time."""
        if self.store.uncommitted >= self._operations and self._wait <= 0:
            self.commit()
        else:
            self.commit_later()

    def next(self) -> Request | None:
        """Return the next stored request, or None."""
        try:  # no context, which takes 2 µs
            request = self.store.next()
        except Exception as error:  # noqa: BLE001 - a damaged file may raise anything
            self.stop(error)
            return None
        if request is None and self.store.uncommitted:
            self.commit_later()  # what was due has become pending
        return request

    def before_next(self) -> None:
        """Commit if enough requests were dispatched."""
        if self._dispatched >= self._operations and self._wait <= 0:
            self.commit()

    def dispatch(self, request: Request) -> None:
        """Record that `request` is dispatched."""
        self._dispatched += 1
        self.in_flight.start(request)
        self.commit_later()

    def fail(self, request: Request, failed: FailedRequest | None = None) -> None:
        """Let the commit that acknowledges a dispatched `request` make it a failed one. The first
        record counts; what fails in a fast stop, with or without one, stays pending."""
        if (known := self.in_flight.running.get(request)) is None:
            return
        if failed is None or self._engine.cuts_off:
            known.queued += 1
        else:
            known.failed = known.failed or failed
            self.reasons[request] = known.failed.reason

    def cannot_schedule(self, request: Request, error: Exception) -> None:
        """Count `request` as failed, and leave it out: it may raise again at each repetition."""
        what = "Cannot schedule %s, which is left out: %s. Mend what makes it."
        extra = {"spider": self._crawler.spider}
        logger.error(what, request, error, exc_info=error, extra=extra)
        self._crawler.stats.inc_value(IN_MEMORY)
        if not request.dont_filter:
            self._dupefilter.forget(request)

    def commit(self) -> None:
        """Acknowledge finished requests and make all changes durable. Never raises."""
        if self.stopped or self._is_committing:
            return
        began = monotonic()
        self._dispatched = 0
        self._is_committing = True
        try:
            self._write_commit()
            released, self._unreleased = self._unreleased, []
            with ExitStack() as told:  # each is told of a commit, whatever fails behind it
                for hook in reversed(self.commit_hooks):
                    told.callback(hook.after_commit)
                # before any other failure, since the next commit counts them as released
                told.callback(self._dupefilter.release, released)
        except BaseException as error:  # noqa: BLE001 - also Ctrl-C, which Twisted may hold back
            self.stop(error)
        finally:
            self._is_committing = False
            self.slowest_commit = max(self.slowest_commit, monotonic() - began)

    def end(self, conclude: Callable[[], None]) -> None:
        """Commit, call `conclude`, which sees what is left, and commit that. Never raises."""
        self.commit()
        self._alarm.cancel()
        if not self.stopped:
            with self.guarded(Exception):  # the dupefilter must be closed, too
                conclude()
                self.store.commit(())
        # requests scheduled by handlers of spider_closed are ignored
        self.stopped = True

    def close(self) -> None:
        """Close the store, after the end. Never raises."""
        try:
            self.store.close(clean=not self.failed)
        except Exception as error:  # noqa: BLE001 - others are to be closed
            self._fail(error)

    def stop(self, error: BaseException) -> None:
        """Stop acknowledging requests, and close the spider. Never raises."""
        if self.stopped:
            return
        self.stopped = True
        self._fail(error)
        self._dupefilter.close_spider("bloom_error")
        with suppress(Exception):
            self.store.rollback()

    @contextmanager
    def guarded(self, *failures: type[Exception]) -> Iterator[None]:
        """Stop the ledger for one of these `failures` in this context, by default the store's own;
        or for a Ctrl-C, which Twisted may hold back."""
        caught: tuple[type[BaseException], ...]
        caught = KeyboardInterrupt, *(failures or self.store.failures)
        try:
            yield
        except caught as error:
            self.stop(error)

    def _fail(self, error: BaseException) -> None:
        self.failed = True
        logger.error(
            "The job failed: %s. Closing the spider; the job stays as it was at the last commit."
            " Remove the cause, then resume it.",
            message_of(self.named(error)),
            exc_info=unforeseen(error, *self.store.failures),
            extra={"spider": self._crawler.spider},
        )

    def _write_commit(self) -> None:
        over, self._over = self._over, []
        for known in [*self.in_flight.running.values()]:
            if self._is_done(known):
                over += self.in_flight.finish(known.request)
        for finished in over:
            self._unreleased += finished.fingerprints
            if finished.failed is None:
                self.store.done(finished.request)
            elif not self.store.fail(finished.request, finished.failed):
                self._crawler.stats.inc_value(IN_MEMORY)
        acknowledged = [finished.request for finished in over]
        began = monotonic()
        if self.has_begun:
            self._send_before_commit()
        for hook in self.commit_hooks:
            hook.before_commit(acknowledged)
        ended = monotonic()
        self._not_before = ended + (ended - began) * (1 / self.preparing_share - 1)
        self.commits += self.store.commit(self._unreleased)

    def _is_done(self, known: Known) -> bool:
        """Return True if the engine is done with a request, or with all before a stand-in."""
        if known.stands_in:
            return known is next(iter(self.in_flight.running.values()))
        return not self._engine.is_in_progress(known.request)

    def _send_before_commit(self) -> None:
        answers = self._crawler.signals.send_catch_log(
            before_commit, spider=self._crawler.spider, dont_log=Exception
        )
        for handler, answer in answers:
            name = f"{global_object_name(handler)}, a handler of before_commit"
            if isinstance(answer, Failure):
                raise RuntimeError(f"{name}: {answer.value!r}") from answer.value
            if inspect.isawaitable(answer):
                if inspect.iscoroutine(answer):
                    answer.close()
                raise RuntimeError(f"{name}: it must do its work before it returns")

    @property
    def _wait(self) -> float:
        """Seconds until the next commit is allowed."""
        return self._not_before - monotonic()

    def _fingerprints(self, request: Request) -> list[bytes]:
        """Return the uncommitted fingerprint of `request`, to be released when it is stored."""
        if request.dont_filter:
            return []
        fingerprint = self._dupefilter.fingerprint(request)
        return [fingerprint] if fingerprint in self._dupefilter.uncommitted else []

    def commit_later(self) -> None:
        """Commit when it is time, also if nothing happens until then."""
        if not (self._alarm.is_set or self.stopped):
            # so that an idle spider commits, too
            self._alarm.set(max(self._seconds, self._wait))

    def _commit_now(self) -> None:
        if is_time := self._wait <= 0:  # an alarm rings in a minute at most
            self.commit()
        if self.in_flight.running or not is_time:
            self.commit_later()
