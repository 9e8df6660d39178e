"""Requests that wait for their time, in a job and in memory."""

import json
import math
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from scrapy import signals
from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue

from scrapy_bloom.addon import Addon
from scrapy_bloom.crawl import delays, ledger_scheduler
from scrapy_bloom.sqlite.listing import stopped_job
from scrapy_bloom.sqlite.status import JobStatus
from tests import processes
from tests.crawl.engine import Job, request


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that stands still, of the machine and of what is due."""
    found = SimpleNamespace(now=1_800_000_000.0)
    monkeypatch.setattr("time.time", lambda: found.now)
    return found


@pytest.mark.parametrize("stored", [True, False])
def test_a_request_is_sent_at_its_time(new_job, clock, stored):
    """Not before, and then it is a request as any other; stored or in memory."""
    job = new_job(**{} if stored else {"folder": None}).pushed("a")
    job.push("b", meta={delays.NOT_BEFORE: 10, "kept": 1})
    assert len(job.scheduler) == 2
    assert job.names() == ["a"]
    clock.now += 9.9
    assert job.names() == []
    assert job.scheduler.has_pending_requests()
    clock.now += 0.2
    assert job.pop().meta == {"kept": 1}
    assert not job.scheduler.has_pending_requests()


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (5, 5),
        (0.5, 0.5),
        (0, None),
        (-3, None),
        (999_999_999, 999_999_999),
        (1_800_000_060.0, 60),
        (1_000_000_000, None),
        (datetime(2027, 1, 15, 8, 1, tzinfo=timezone.utc), 60),
        (datetime(2027, 1, 15, 9, 1, tzinfo=timezone(timedelta(hours=1))), 60),
        (datetime(1970, 1, 2, tzinfo=timezone.utc), None),
    ],
)
def test_times(clock, value, seconds):
    """Seconds from now, seconds since 1970, or an aware datetime; what is past is now."""
    given = request("a", meta={delays.NOT_BEFORE: value})
    assert delays.take_delay(given) == (pytest.approx(seconds) if seconds else None)
    assert given.meta == {}


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, 10**400, True, "5", None, datetime(2027, 1, 15)]
)
def test_what_is_no_time(new_job, caplog, value):
    """One ERROR, and the request is asked at once."""
    job = new_job().pushed("a", meta={delays.NOT_BEFORE: value})
    (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert "bloom_not_before is" in record.getMessage()
    assert job.pop().meta == {}


def test_clocks_that_jump(new_job, clock):
    """Back: later. Forward: sooner. Nothing is lost."""
    job = new_job().pushed("a", meta={delays.NOT_BEFORE: 10})
    clock.now -= 1000
    assert job.names() == []
    clock.now += 5000
    assert job.names() == ["a"]


def test_a_seen_request_stays_dropped(new_job):
    """A delay decides nothing of identity; a delayed request counts as seen from the push on."""
    job = new_job().pushed("a")
    assert not job.push("a", meta={delays.NOT_BEFORE: 10})
    job.push("b", meta={delays.NOT_BEFORE: 10})
    assert not job.push("b")
    assert len(job.scheduler) == 2


def test_a_damaged_delayed_request_fails(new_job, clock):
    """As any request that cannot be read back."""
    job = new_job().pushed("a", meta={delays.NOT_BEFORE: 10})
    job.push("b", meta={delays.NOT_BEFORE: 10})
    store = job.scheduler.ledger.store
    store._file.execute("UPDATE request SET payload = x'01020304' WHERE id = 1")
    clock.now += 11
    assert job.names() == ["b"]
    assert store.failed == 1


class Reactor:
    """Has the timers that were set; `timers` are those for delayed requests."""

    def __init__(self):
        self.every = []

    @property
    def timers(self):
        return [each for each in self.every if each.function.__self__._ring.__name__ == "_on_alarm"]

    def call_later(self, seconds, function):
        self.every.append(Timer(self, seconds, function))
        return self.every[-1]


class Timer:
    def __init__(self, reactor, seconds, function):
        self.reactor, self.seconds, self.function = reactor, seconds, function

    def cancel(self):
        if self in self.reactor.every:
            self.reactor.every.remove(self)

    def ring(self):
        self.cancel()
        self.function()


@pytest.fixture
def reactor(monkeypatch):
    """Return what the alarm's timers are set with."""
    found = Reactor()
    monkeypatch.setattr(delays, "call_later", found.call_later)
    return found


def test_a_timer_wakes_the_engine(new_job, clock, reactor):
    """For the next request that is due, and none without; a minute at most, as clocks jump."""
    job = new_job()
    assert job.pop() is None
    assert reactor.timers == []
    job.push("a", meta={delays.NOT_BEFORE: 1000})
    assert job.pop() is None
    assert [timer.seconds for timer in reactor.timers] == [pytest.approx(60, abs=1)]
    job.push("b", meta={delays.NOT_BEFORE: 10})
    assert job.pop() is None
    (timer,) = reactor.timers
    assert timer.seconds == pytest.approx(10, abs=1)
    clock.now += 10
    timer.ring()
    assert job.engine.woken == 1
    assert job.names() == ["b"]
    (timer,) = reactor.timers
    job.close()
    assert reactor.every == []


@pytest.mark.parametrize(("seconds", "turns"), [(0, 2), (math.inf, 1)])
def test_many_that_are_due_at_once_come_in_groups(
    new_job, clock, reactor, monkeypatch, seconds, turns
):
    """A hundred at once, for a while in each turn, also if the engine asks for none."""
    monkeypatch.setattr(ledger_scheduler, "TURN_SECONDS", seconds)
    job = new_job()
    for number in range(250):
        job.push(str(number), meta={delays.NOT_BEFORE: 10})
    store = job.scheduler.ledger.store
    clock.now += 10
    assert job.pop() is not None
    assert (store.later, len(store.pending)) == (150, 99)
    for _ in range(turns):
        (timer,) = reactor.timers
        timer.ring()
    assert (store.later, len(store.pending)) == (0, 249)


@pytest.mark.parametrize(
    ("wait", "closes"), [(None, False), (60, False), ("2m", False), (59, True), ("30s", True)]
)
@pytest.mark.parametrize("stored", [True, False])
def test_later_wait(new_job, clock, reactor, monkeypatch, wait, closes, stored):
    """The spider is closed when nothing else is left, and the next is due later than that."""
    closed = []
    monkeypatch.setattr(ledger_scheduler, "close_spider", lambda _, reason: closed.append(reason))
    job = new_job(**{} if stored else {"folder": None}, BLOOM_DELAY_WAIT=wait)
    scheduler = job.scheduler
    job.engine.spider_is_idle = lambda: (
        not (job.engine._slot.inprogress or scheduler.has_pending_requests())
    )
    job.pushed("a").pushed("b", meta={delays.NOT_BEFORE: 60})
    page = job.pop()
    assert job.pop() is None
    assert closed == []
    job.done(page)
    assert job.pop() is None
    assert job.pop() is None
    assert closed == (["bloom_later"] if closes else [])
    assert scheduler.has_pending_requests()


@pytest.mark.parametrize("wait", [None, 10])
@pytest.mark.parametrize("stored", [True, False])
def test_a_hold_until_its_release_is_due_never(new_job, clock, reactor, monkeypatch, wait, stored):
    """A crawl waits for the release as long as for any time; not if nothing of the slot is left."""
    closed = []
    monkeypatch.setattr(ledger_scheduler, "close_spider", lambda _, reason: closed.append(reason))
    job = new_job(**{} if stored else {"folder": None}, BLOOM_DELAY_WAIT=wait)
    job.engine.spider_is_idle = lambda: not job.scheduler.has_pending_requests()
    job.scheduler.hold("example.com", math.inf, 0)
    assert job.pop() is None
    assert closed == []
    job.push("a")
    assert job.pop() is None
    assert closed == ([] if wait is None else ["bloom_later"])


@pytest.mark.parametrize("queue", [ScrapyPriorityQueue, DownloaderAwarePriorityQueue])
def test_what_is_due_never_is_due_at_no_time(new_job, tmp_path, queue):
    """In what commands and the start line say, too."""
    job = new_job(SCHEDULER_PRIORITY_QUEUE=queue)
    job.scheduler.hold("example.com", math.inf, 0)
    job.push("a")
    assert job.pop() is None
    job.commit()
    figures = JobStatus(tmp_path / "job").figures()
    assert (figures["next_due"], figures["held"]) == (None, 1)
    json.dumps(figures, allow_nan=False)


def test_a_delay_is_no_part_of_a_repeated_child(new_job):
    """A page that is repeated yields its child with another time."""
    digest = new_job().scheduler._children._digest
    again = request("a", dont_filter=True, meta={delays.NOT_BEFORE: 7, "x": 1})
    assert digest(5, again) == digest(5, request("a", dont_filter=True, meta={"x": 1}))


def test_what_is_delayed_is_shown(new_job, run, tmp_path, clock):
    """As a part of what is pending: start line, stats, top and info; and it can be read."""
    job = new_job().pushed("a", meta={delays.NOT_BEFORE: 41}).pushed("b")
    job.close("shutdown")
    assert job.stat("scheduler/pending") == 2
    assert job.stat("scheduler/later") == 1
    figures = JobStatus(tmp_path / "job").figures()
    assert (figures["pending"], figures["later"], figures["next_due"]) == (2, 1, 41)
    assert sum(figures["pending_by_slot"].values()) == 2
    found = run(tmp_path, "info", "job", "--json").json
    assert (found["unfinished_requests"], found["later"]) == (2, 1)
    with stopped_job(tmp_path / "job" / "requests.sqlite") as left:
        assert left.pending == 2
        found = [(fields["url"], due) for fields, due in left.requests(dict)]
        assert found == [("http://example.com/b", None), ("http://example.com/a", clock.now + 41)]


def test_another_scheduler_does_not_know_the_key(caplog):
    """One WARNING, however many requests have it."""
    crawler = Job(None, "scrapy.core.scheduler.Scheduler").crawler
    addon = Addon.from_crawler(crawler)
    addon._spider_opened(crawler.spider)
    for _ in range(2):
        each = request("a", meta={delays.NOT_BEFORE: 5})
        crawler.signals.send_catch_log(
            signals.request_scheduled, request=each, spider=crawler.spider
        )
    assert len([r for r in caplog.records if delays.NOT_BEFORE in r.getMessage()]) == 1


SPIDER = """
import sys, scrapy
from scrapy.crawler import CrawlerProcess
from scrapy import Request, signals

class Spider(scrapy.Spider):
    name = "s"
    async def start(self):
        yield scrapy.Request("data:,now")
        yield scrapy.Request("data:,soon", meta={"bloom_not_before": 0.3})
        if self.settings["BLOOM_DELAY_WAIT"]:
            yield scrapy.Request("data:,far", meta={"bloom_not_before": 3600})
    def parse(self, response):
        print(self.name, response.url.partition(",")[2])

process = CrawlerProcess({"ADDONS": {"scrapy_bloom.Addon": 300}, "TELNETCONSOLE_ENABLED": False})
for number, settings in enumerate(({}, {"BLOOM_DELAY_WAIT": "1m"})):
    for jobdir in (None, f"{sys.argv[1]}/{number}"):
        class Each(Spider):
            name = f"{number}{'m' if jobdir is None else 'd'}"
            custom_settings = {**settings, "JOBDIR": jobdir, "LOG_LEVEL": "ERROR"}
            @classmethod
            def from_crawler(cls, crawler):
                self = super().from_crawler(crawler)
                crawler.signals.connect(self.idle, signals.spider_idle)
                return self
            def idle(self):
                print(self.name, "idle")
            def closed(self, reason):
                print(self.name, reason)
        process.crawl(Each)
process.start()
"""


def test_real_crawls_wait(tmp_path):
    """The spider is not idle, and not finished, while a request is delayed."""
    run = processes.run(["-c", SPIDER, str(tmp_path)], text=True)
    told = {}
    for line in run.stdout.splitlines():
        name, what = line.split()
        told.setdefault(name, []).append(what)
    whole = ["now", "soon", "idle", "finished"]
    closed = ["now", "soon", "bloom_later"]
    assert told == {"0m": whole, "0d": whole, "1m": closed, "1d": closed}, run.stderr
