"""Requests that wait for their time, in a job and in memory."""

import json
import math
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue

from scrapy_bloom.crawl import delays, ledger_scheduler
from scrapy_bloom.sqlite.listing import stopped_job
from scrapy_bloom.sqlite.status import JobStatus
from tests.crawl.engine import name_of, request
from tests.crawl.resting_site import Rest, RestingSite
from tests.crawl.test_hold_crawls import start


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that stands still, of the machine and of what is due."""
    found = SimpleNamespace(now=1_800_000_000.0)
    monkeypatch.setattr("time.time", lambda: found.now)
    return found


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        *((5, 5), (0.5, 0.5), (0, None), (-3, None), (999_999_999, 999_999_999)),
        *((1_800_000_060.0, 60), (1_000_000_000, None)),
        (datetime(2027, 1, 15, 8, 1, tzinfo=timezone.utc), 60),
        (datetime(2027, 1, 15, 9, 1, tzinfo=timezone(timedelta(hours=1))), 60),
        (datetime(1970, 1, 2, tzinfo=timezone.utc), None),
    ],
)
def test_times(clock, value, seconds):
    """Seconds from now, seconds since 1970, or an aware datetime; what is past is now."""
    given = request("a", meta={delays.NOT_BEFORE: value, "kept": 1})
    assert delays.take_delay(given) == (pytest.approx(seconds) if seconds else None)
    assert given.meta == {"kept": 1}


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -1e12, 1e12, 10**400, True, "5", None, datetime(2027, 1, 15)]
)
def test_what_is_no_time(new_job, caplog, value):
    """One ERROR, and the request is asked at once."""
    job = new_job().pushed("a", meta={delays.NOT_BEFORE: value})
    (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert "bloom_not_before is" in record.getMessage()
    assert job.pop().meta == {}


class Reactor:
    """Has the timers that were set; `timers` are those for delayed requests."""

    def __init__(self):
        self.every = []

    @property
    def timers(self):
        return [each for each in self.every if each.ring.__self__._ring.__name__ == "wake"]

    def call_later(self, seconds, function):
        timer = SimpleNamespace(seconds=seconds, ring=function)
        timer.cancel = lambda: timer in self.every and self.every.remove(timer)
        self.every.append(timer)
        return timer

    def ring(self):
        """Let the only timer ring."""
        (timer,) = self.timers
        timer.cancel()
        timer.ring()


@pytest.fixture
def reactor(monkeypatch):
    """Return what the alarm's timers are set with."""
    found = Reactor()
    monkeypatch.setattr(delays, "call_later", found.call_later)
    return found


def test_a_timer_wakes_the_engine(new_job, clock, reactor):
    """For the next request that is due, and none without; a minute at most, as clocks jump."""
    job = new_job()
    assert (job.pop(), reactor.timers) == (None, [])
    job.push("a", meta={delays.NOT_BEFORE: 1000})
    assert (job.pop(), [round(each.seconds) for each in reactor.timers]) == (None, [60])
    job.push("b", meta={delays.NOT_BEFORE: 10})
    assert (job.pop(), [round(each.seconds) for each in reactor.timers]) == (None, [10])
    clock.now += 10
    reactor.ring()
    assert (job.engine.woken, job.names(), len(reactor.timers)) == (1, ["b"], 1)
    job.close()
    assert reactor.every == []


def test_what_is_due_does_not_wait_behind_a_held_host(new_job, clock, reactor):
    """The engine asks again at once, and what has become pending is committed."""
    meta = {delays.NOT_BEFORE: 10, "download_slot": "held"}
    job = new_job().pushed(*map(str, range(150)), meta=meta)
    job.push("other", meta={delays.NOT_BEFORE: 11})
    job.scheduler.hold("held", 100, 1)
    job.commit()
    clock.now += 20
    assert job.pop() is None
    assert [each.seconds < 0.01 for each in reactor.timers] == [True]
    assert job.scheduler.ledger._alarm.is_set
    reactor.ring()
    assert name_of(job.pop()) == "other"


@pytest.mark.parametrize("options", [{}, {"folder": None}])
def test_one_object_waits_as_often_as_the_spider_yields_it(new_job, clock, options):
    """Not when a middleware sends it again, or a copy of it."""
    job, poll = new_job(**options), request("a", dont_filter=True, meta={delays.NOT_BEFORE: 9})
    for _ in range(2):
        assert (job.scheduler.enqueue_request(poll), job.pop()) == (True, None)
        clock.now += 9
        for again in (lambda page: page, lambda page: page.copy()):
            job.scheduler.enqueue_request(again(page := job.pop()))
            job.done(page)
        job.done(job.pop())


@pytest.mark.parametrize(
    ("wait", "closes"), [(None, False), (60, False), ("2m", False), (59, True), ("30s", True)]
)
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("is_held", [True, False])
def test_later_wait(new_job, clock, reactor, monkeypatch, wait, closes, stored, is_held):
    """The spider is closed when nothing else is left, and the next is due later than that. A crawl
    waits for the release of a hold as for any time; not of a dead slot, or one without requests."""
    closed = []
    monkeypatch.setattr(ledger_scheduler, "close_spider", lambda _, reason: closed.append(reason))
    job = new_job(**{} if stored else {"folder": None}, BLOOM_DELAY_WAIT=wait)
    scheduler = job.scheduler
    busy = job.engine._slot.inprogress
    job.engine.spider_is_idle = lambda: not (busy or scheduler.has_pending_requests())
    if is_held:
        scheduler.hold("held", math.inf, 0)
        assert job.pop() is None
    scheduler.hold("dead", 20, delays.DEAD)
    page = job.pushed("dead", meta={"download_slot": "dead"}).pushed("a").pop()
    job.push("b", meta={"download_slot": "held"} if is_held else {delays.NOT_BEFORE: 60})
    assert (job.pop(), closed) == (None, [])
    job.done(page)
    assert [job.pop(), job.pop()] == [None, None]
    assert closed == (["bloom_later"] if closes or (is_held and wait) else [])
    assert scheduler.has_pending_requests()


@pytest.mark.parametrize("queue", [ScrapyPriorityQueue, DownloaderAwarePriorityQueue])
def test_what_is_due_never_is_due_at_no_time(new_job, tmp_path, queue):
    """In what commands and the start line say, too."""
    job = new_job(SCHEDULER_PRIORITY_QUEUE=queue).pushed("a")
    job.scheduler.hold("example.com", math.inf, 0)
    assert job.pop() is None
    job.commit()
    figures = JobStatus(tmp_path / "job").figures()
    assert (figures["next_due"], figures["held"]) == (None, 1)
    json.dumps(figures, allow_nan=False)


def test_what_is_delayed_is_shown(new_job, run, tmp_path, clock):
    """As a part of what is pending: start line, stats, top and info; and it can be read."""
    job = new_job().pushed("a", meta={delays.NOT_BEFORE: 41}).pushed("b")
    assert not job.push("a")
    job.close("shutdown")
    assert [job.stat(f"scheduler/{each}") for each in ("pending", "later")] == [2, 1]
    figures = JobStatus(tmp_path / "job").figures()
    assert (figures["pending"], figures["later"], figures["next_due"]) == (2, 1, 41)
    assert sum(figures["pending_by_slot"].values()) == 2
    found = run(tmp_path, "info", "job", "--json").json
    assert (found["unfinished_requests"], found["later"]) == (2, 1)
    with stopped_job(tmp_path / "job" / "requests.sqlite") as left:
        assert left.pending == 2
        found = [(fields["url"], due) for fields, due in left.requests(dict)]
        assert found == [("http://example.com/b", None), ("http://example.com/a", clock.now + 41)]
    job = new_job()
    assert job.names() == ["b"]
    clock.now += 42
    assert job.names() == ["a"]


@pytest.mark.parametrize("place", ["", "JOBDIR", "BLOOM_REDIS_URL"])
def test_real_crawls_wait(tmp_path, request, place):
    """The spider is not finished while a request is delayed, unless it is due too late."""
    url = place == "BLOOM_REDIS_URL" and request.getfixturevalue("redis_server").url
    with RestingSite({"late": Rest(0)}) as site:
        for delay, pages, reason in ((0.5, ["0", "1"], "finished"), (3600, [], "bloom_later")):
            meta = {"site": site.url, "meta": json.dumps({delays.NOT_BEFORE: delay})}
            site.asked.clear()
            (folder := tmp_path / reason).mkdir()
            settings = {"BLOOM_REDIS_KEY": str(folder), place or "JOBDIR": url or place}
            crawl = start(folder, {"late": 2}, meta, BLOOM_DELAY_WAIT="1m", **settings).end()
            assert (crawl.reason, sorted(site.pages("late"))) == (reason, pages), crawl.log
