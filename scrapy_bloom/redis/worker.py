"""A worker: one process of a crawl in Redis, from its first call to its last."""

from __future__ import annotations

import json
import logging
import shlex
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from scrapy import signals
from scrapy.exceptions import DontCloseSpider
from scrapy.utils.asyncio import call_later

from ..amounts import counted
from ..crawl.budget import BUDGET
from ..crawl.choice import Filter
from ..crawl.failed_request import ASKING_CAPPED, RETRYING, class_and_message, is_first
from ..crawl.failure_hooks import Failures
from ..crawl.holds import probe_seconds
from ..crawl.ledger import Ledger
from ..crawl.ledger_scheduler import require_same_spider
from ..crawl.records import KEPT
from ..crawl.settings import ANY_SPIDER
from ..crawl.stats import counts_of, set_stats
from ..errors import SharedFilterError, message_of, unforeseen
from ..scrapy_private.idle import IdleChecks
from ..scrapy_private.middlewares import put_before_engine
from ..scrapy_private.progress import EngineProgress
from ..scrapy_private.slots import slot_keys
from ..startup import announce
from .call import Entry, Policy, Reply
from .client import RedisClient, ScriptError
from .codec import RedisCodec, is_storable_slot
from .desk import RedisDesk
from .layout import in_one_slot
from .lifecycle import NO_BUDGET, CrawlState, budget_in, gone, open_crawl
from .request_store import MOST_CLAIMED, Observers, RedisStore
from .scripts import NEW
from .seeds import SeedList
from .settings import RedisSettings, WorkerSettings
from .taken_starts import SharedStartRequests
from .transport import Transport, in_reactor
from .worker_feeds import WorkerFeeds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.utils.asyncio import CallLaterResult

    from ..crawl.budget import Name
    from ..crawl.queue_order import QueueSettings
    from .dupefilter import RedisBloomDupeFilter

logger = logging.getLogger(__name__)

COMMIT_OPERATIONS = 50
"""A commit is due after so many requests were pushed, dispatched or finished …"""
COMMIT_SECONDS = 0.1
"""… or this long after the first of them, whichever comes first."""
TICK_SECONDS = 0.1
STATS_SECONDS = 1.0
REMINDER_SECONDS = 60.0
CUT_OFF_SLOTS = 3
"""A worker closes when so many slots do not answer it that have answered others …"""
CUT_OFF_SECONDS = 600.0
"""… in so many seconds."""
SLOT_GRACE_SECONDS = 5.0
"""With BLOOM_REDIS_SLOT_WORKERS a worker owns a slot for so long after its last request."""


class Worker:
    """Joins a crawl, and passes Redis's answers on to the engine, the stats and the log. Raises
    ValueError for a setting, JobDirectoryError where Scrapy lacks what it needs."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._log = logging.LoggerAdapter(logger, {"spider": crawler.spider})
        self._settings = WorkerSettings.read(crawler.settings)
        self.idle_checks = IdleChecks(crawler)
        self.start_requests = SharedStartRequests(crawler)
        put_before_engine(crawler, self.start_requests)
        self._failures = Failures(crawler)
        self.feeds = WorkerFeeds(crawler, self.start_requests)
        self.on_round: list[Callable[[], object]] = []
        """What is called when the crawl is in another round than before."""
        self._timer: CallLaterResult | None = None
        self._outage_since, self._reminded = 0.0, -inf
        self._quiet_since = 0.0
        self._stats_set = 0.0
        self._is_open = self._is_cut_off = False
        self._answered: dict[str, float] = {}
        """When other workers have had an answer of slots that have given none to this one since."""

    def open(
        self,
        dupefilter: RedisBloomDupeFilter,
        *,
        in_memory: Callable[[], int],
        held: Callable[[str], None],
    ) -> None:
        """Join the crawl. Raises BloomError if that cannot be."""
        crawler, settings, spider = self._crawler, self._settings, self._crawler.spider
        assert spider is not None
        self._dupefilter = dupefilter
        self._in_memory = in_memory
        self._redis = redis = RedisSettings.read(crawler.settings, spider.name)
        self.key = in_one_slot(redis.key)
        self._engine = EngineProgress(crawler)
        codec = RedisCodec(
            crawler.settings, spider, lambda request: slot_keys(crawler)(request), crawler.stats
        )
        self.budget = codec.budget
        generation = dupefilter.shared.generation
        with ExitStack() as undo:
            # before the crawl is changed
            self._seeds = SeedList.of(crawler, redis, self.key, dupefilter, settings)
            if self._seeds is not None:
                undo.callback(self._seeds.close)
            client = RedisClient(redis.url, redis.timeout, settings.lease / 12, waits=True)
            undo.enter_context(client)
            self._server = client.name
            self._name = f"the queue {self.key!r} in Redis at {client.name}"
            self._desk = RedisDesk(client, self.key, starts=True)
            self._state = self._join(client, generation)
            # from now on the lease is renewed between the calls of this client
            client.patience = min(redis.timeout, settings.lease / 4)
            undo.pop_all()
        where = client, self.key, generation, settings.lease
        self._transport = Transport(*where, in_reactor(), self._on_outage)
        self.store = RedisStore(
            self._transport,
            dupefilter,
            codec,
            _policy(crawler, settings, codec.queues),
            capacity=crawler.settings.getint("CONCURRENT_REQUESTS") or MOST_CLAIMED,
            observers=Observers(
                self._on_heard,
                self._on_fenced,
                self._on_answered,
                self._on_change,
                self._on_unreadable,
                self._on_gone,
                held,
            ),
            round_=self._state.round,
            counted=lambda: tuple(counts_of(crawler).values()),
        )
        self.ledger = Ledger(
            crawler,
            self.store,
            dupefilter,
            self._engine,
            operations=COMMIT_OPERATIONS,
            seconds=COMMIT_SECONDS,
        )
        done = self._state.start_done or self._state.over
        self._is_late = self._state.over and not settings.idle and self._seeds is None
        self._generation = generation
        crawl = f"{generation} {self._state.round}"
        self.feeds.open(self.ledger, crawl, over=self._state.over, late=self._is_late)
        self.start_requests.open(self.store, self.ledger, dupefilter, done=done)
        self._failures.open(self.ledger)
        self._announce()
        self._is_open = True

    @property
    def begins_round(self) -> bool:
        """True if this worker has begun the round."""
        return self._state.begins

    @property
    def is_at_rest(self) -> bool:
        """True if no requests are left by the last reply, and the worker has not failed."""
        if self.ledger.stopped or (self._seeds is not None and not self._seeds.is_empty):
            return False
        if self.start_requests.failed:
            return self.store.is_still
        return self.store.is_quiet

    @property
    def only_waits(self) -> bool:
        """True if by the last reply nothing is left but requests that are not due or held."""
        if self.ledger.stopped or (self._seeds is not None and not self._seeds.is_moved):
            return False
        return self.store.only_later

    def begin(self) -> None:
        """Make the first call, and one each TICK_SECONDS if it is due."""
        self._crawler.signals.connect(self._spider_idle, signals.spider_idle)
        if self._is_late:
            self._log.warning(
                "%(name)s: the crawl is over%(round)s. Set BLOOM_REDIS_ROUND to any other text,"
                " such as a date, to begin a new round, or BLOOM_REDIS_IDLE to wait for requests.",
                {
                    "name": self._name,
                    "round": f" (round {self._state.round!r})" if self._state.round else "",
                },
            )
            self._dupefilter.close_spider("bloom_over")
        if self._seeds is not None:
            self._seeds.open(in_reactor(), lambda: not self.store.pending, self.ledger.stop)
        self._tick()

    def end(self, *, finished: bool) -> None:
        """Leave the crawl, and end it if it is `finished`. Never raises: an error of a step is
        logged, and the next step follows."""
        steps: list[Callable[[], object]] = [self.feeds.close]
        if self._is_open:
            is_over = finished or self._is_late
            steps = [
                self._stop,
                lambda: self.ledger.end(lambda: self.feeds.conclude(over=is_over)),
                *steps,
                lambda: self._leave(finished=finished),
                lambda: self._crawler.stats.set_value("scheduler/calls", self.store.calls),
                self._transport.close,
            ]
        for step in steps:
            try:
                step()
            except Exception as error:  # noqa: BLE001, PERF203 - what follows is due, too
                finished = False  # the crawl goes on with what was not done
                self._log.error(
                    "This worker did not close cleanly: %s",
                    message_of(error),
                    exc_info=unforeseen(error),
                )

    def _stop(self) -> None:
        """Make no more calls, and take no more seeds."""
        if self._timer is not None:
            self._timer.cancel()
        if self._seeds is not None:
            self._seeds.close()

    def _leave(self, *, finished: bool) -> None:
        over = finished and not self.start_requests.failed and not self.ledger.failed
        if self.store.last.gone:
            pass
        elif self.store.leave(over=over, seconds=self._redis.timeout):
            self._transport.stop()  # a heartbeat would share the client
            self._set_stats()
            with suppress(SharedFilterError):  # it has just answered: then the next worker says it
                place = f"{self._server} --key {shlex.quote(self.key[1:-1])}"
                self._failures.report("crawl", place, self._desk.reasons())
        else:
            self._log.warning(
                "%(name)s does not answer: what this worker holds comes back when its lease has"
                " run out, and then yields again what could not be sent (%(unsent)s).",
                {"name": self._name, "unsent": counted(self.store.unsent, "request")},
            )

    def _join(self, client: RedisClient, generation: str) -> CrawlState:
        """Find or make the crawl. The first worker of a start retries failed requests, if the
        settings say so, and asks what was to be retried of those over the budget."""
        crawler = self._crawler
        assert crawler.spider is not None
        join = partial(
            open_crawl,
            client,
            self.key,
            generation,
            self._settings,
            crawler.spider.name,
            any_spider=ANY_SPIDER.read(crawler.settings),
            budget=(budget := budget_text(BUDGET.read(crawler.settings))),
        )
        state = join()
        remedy = "give each spider a BLOOM_REDIS_KEY of its own"
        require_same_spider(self._name, state.spider, crawler, remedy)
        state = require_budget(client, self.key, state, budget, join)
        if not state.workers:
            retry = partial(self._desk.change, Filter(KEPT), "retry")
            if self._failures.retries:
                self._failures.tell(RETRYING, retry().states.total())
            self._failures.tell(ASKING_CAPPED, self._desk.retry_ordered())
            revived = self._desk.revive(Filter(KEPT))
            self._failures.tell("Asking %(requests)s of dead hosts again", revived)
            # the crawl goes on with these; or its new round has waited for them in vain
            begins, state = state.begins, join()
            state = replace(state, begins=begins or state.begins)
        return state

    def _set_stats(self) -> None:
        """Set the stats of the crawl, as the last reply had it, and of this worker."""
        set_stats(
            self._crawler,
            self.ledger,
            self.store.waiting + self.store.unsent + self.store.claims.spare + self._in_memory(),
            slowest=self.store.slowest_call,
        )

    def _announce(self) -> None:
        state = self._state
        others = counted(state.workers, "other worker")
        waits = state.waits and f", {state.waits}"
        announce(self._crawler, "requests", f"{self._name}, with {others}{waits}")
        wanted = self._settings.round
        if wanted and state.round != wanted:
            self._log.warning(
                "%(name)s is in round %(round)r, which is not over: this worker joins it, and not"
                " BLOOM_REDIS_ROUND = %(wanted)r.",
                {"name": self._name, "round": state.round, "wanted": wanted},
            )

    def _tick(self) -> None:
        self._timer = None
        self._transport.turn(self.store.worker)
        if monotonic() - self._stats_set >= STATS_SECONDS:
            self._stats_set = monotonic()
            self._set_stats()
        if self._engine.is_closing:
            self.store.pause(inf)  # what is not sent yet goes to other workers
        if not self.ledger.stopped:
            self.store.flush(hungry=not self.store.pending)
        with suppress(RuntimeError):  # there is no reactor in a script
            self._timer = call_later(TICK_SECONDS, self._tick)

    def _spider_idle(self) -> None:
        """Keep the spider open until the crawl was at rest for BLOOM_REDIS_IDLE seconds."""
        if self.ledger.stopped:
            return
        now = monotonic()
        self._quiet_since = self._quiet_since or now
        if now - self._quiet_since < self._settings.idle:
            raise DontCloseSpider

    def _on_heard(self, reply: Reply) -> None:
        if reply.round != self._state.round:
            self._state = replace(self._state, round=reply.round)
            with self.ledger.guarded(Exception):
                self.feeds.go_on_in(f"{self._generation} {reply.round}")
                for function in self.on_round:
                    function()
        self.start_requests.heard(reply)

    def _on_change(self) -> None:
        last = self.store.last
        if last.full:
            self._on_outage(SharedFilterError(f"{self._name} has no memory left (maxmemory)"))
        elif self._outage_since:
            self._outage_since = 0.0
            self._log.warning("%s answers again.", self._name)
        if last.answered:
            self._note_answered(last.answered)
        if last.reclaimed:
            self._crawler.stats.inc_value("scheduler/reclaimed", last.reclaimed)
        if not self.store.is_quiet:
            self._quiet_since = 0.0
        # asked in vain, the scheduler sets its alarm to the next time
        if self.store.pending or self.is_at_rest or self.store.next_due is not None:
            self._engine.wake()

    def _note_answered(self, slots: Sequence[str]) -> None:
        """Close the spider if this worker, and no other, is cut off from some hosts."""
        self._crawler.signals.connect(self._response_downloaded, signals.response_downloaded)
        now = monotonic()
        self._answered |= dict.fromkeys(slots, now)
        recent = [slot for slot, at in self._answered.items() if now - at < CUT_OFF_SECONDS]
        if len(recent) < CUT_OFF_SLOTS or self._is_cut_off:
            return
        self._is_cut_off = True
        self._log.error(
            "%(slots)s do not answer this worker, and have answered others: it takes no more"
            " requests of %(name)s, and gives back what it has. Look at the network, the DNS and"
            " the firewall of this machine, and start it again.",
            {"slots": ", ".join(recent), "name": self._name},
        )
        self._dupefilter.close_spider("bloom_cut_off")

    def _response_downloaded(self, request: Request) -> None:
        if self._answered:
            self._answered.pop(slot_keys(self._crawler)(request), None)

    def _on_answered(self, entry: Entry, answer: int, full: Name | None) -> None:
        names = ["scheduler/start_skipped" if entry.mark else "dupefilter/filtered"]
        if answer == NEW:
            names = ["scheduler/enqueued/redis", "scheduler/enqueued"]
        elif full is not None:
            names = []
            self.budget.note(self._crawler, full)
        for name in names if entry.packed is not None else ():
            self._crawler.stats.inc_value(name)

    def _on_fenced(self) -> None:
        self._crawler.stats.inc_value("scheduler/fenced")
        self.start_requests.fenced()
        self._log.warning(
            "%(name)s does not know this worker any more: it was out of touch for longer than its"
            " lease of %(lease)g s (BLOOM_REDIS_LEASE), or Redis has gone back in time. It goes on"
            " as a new one; what it had claimed is fetched again.",
            {"name": self._name, "lease": self._settings.lease},
        )
        self.store.flush()

    def _on_unreadable(self, claim: str, error: Exception) -> None:
        if not is_first(self._crawler.stats, "scheduler/unreadable"):
            return
        self._log.error(
            "Request %(claim)s of %(name)s cannot be made a request again (%(error)s): it has"
            " failed. Restore what is missing in the spider or its project; 'scrapy bloom failed'"
            " lists such requests, 'scrapy bloom retry' has them tried again. No more of them are"
            " logged (see the stat scheduler/unreadable).",
            {"claim": claim, "name": self._name, "error": class_and_message(error)},
        )

    def _on_gone(self) -> None:
        self.ledger.stop(gone(f"the crawl of {self._name}"))

    def _on_outage(self, error: SharedFilterError) -> None:
        if isinstance(error, ScriptError):
            self.ledger.stop(error)
            return
        now = monotonic()
        if not self._outage_since:
            self._outage_since = now
            self._crawler.stats.inc_value("bloom/outages")
        if self._redis.on_error == "close":
            self.ledger.stop(error)
        elif now - self._reminded >= REMINDER_SECONDS:
            self._reminded = now
            self._log.warning(
                "%(error)s. This worker goes on with what it has claimed, and waits.",
                {"error": error},
            )


def _policy(crawler: Crawler, settings: WorkerSettings, queues: QueueSettings) -> Policy:
    concurrency = crawler.settings.getint("CONCURRENT_REQUESTS") or MOST_CLAIMED
    per_domain = crawler.settings.getint("CONCURRENT_REQUESTS_PER_DOMAIN")
    slots = crawler.settings.getdict("DOWNLOAD_SLOTS").values()
    per_slot = [per_domain, *(each.get("concurrency", per_domain) for each in slots)]
    grace = max(SLOT_GRACE_SECONDS, 2 * crawler.settings.getfloat("DOWNLOAD_DELAY"))
    return Policy(
        lease=int(settings.lease * 1000),
        # the next ones of a slot are there when the first are done
        claims_per_slot=2 * (max(per_slot) if all(per_slot) else concurrency),
        newest_first=queues.newest_first,
        keeps_slot=int(1000 * grace) * settings.slot_workers,
        max_attempts=settings.max_attempts,
        longest_probe=int(1000 * probe_seconds(crawler)),
    )


def budget_text(limits: Mapping[str, int]) -> str:
    """Return the JSON of a budget, the same for equal ones."""
    storable = {slot: most for slot, most in limits.items() if is_storable_slot(slot)}
    return json.dumps(storable, sort_keys=True)


def require_budget(
    client: RedisClient, key: str, state: CrawlState, text: str, join: Callable[..., CrawlState]
) -> CrawlState:
    """Return `state`, the crawl's, with the budget `text`, which is counted in from now on: `join`
    opens the crawl again if need be. Raises SharedFilterError if living workers have another
    one."""
    desk, is_first = RedisDesk(client, key), text != NO_BUDGET and not state.workers
    begins = state.begins and state.budget == text
    if is_first and (state.budget == NO_BUDGET or (begins and desk.dead())):
        # what waits, or waits for dead hosts, is fetched in this round, too
        found = join(counted=desk.unfinished(budget_in(text)))
        state = replace(found, begins=state.begins or found.begins)
    if state.budget != text:
        raise SharedFilterError(
            f"the workers of {key!r} in Redis at {client.name} have BLOOM_BUDGET = {state.budget},"
            f" and this one has {text}: all need the same. Stop them first; if they were killed,"
            " wait until their BLOOM_REDIS_LEASE has run out"
        )
    return state
