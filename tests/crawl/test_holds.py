"""Holds: when a download slot is held, what becomes of its requests, and what is kept of it."""

import sqlite3
import time
from collections import deque
from email.utils import formatdate
from math import inf
from types import SimpleNamespace

import pytest
from scrapy import Request, pqueues
from scrapy.downloadermiddlewares.httpcache import HttpCacheMiddleware
from scrapy.exceptions import IgnoreRequest, NotConfigured
from scrapy.http import Response
from scrapy.utils.test import get_crawler
from twisted.internet.error import ConnectError

from scrapy_bloom import HoldMiddleware
from scrapy_bloom.crawl import delays, holds, hosts, ledger_scheduler
from scrapy_bloom.crawl.delays import Hold
from scrapy_bloom.crawl.holds import RECOVERY, retry_after
from scrapy_bloom.sqlite import request_store
from tests.crawl.engine import DURABLE, Job, Slot, unserializable
from tests.fakes import raising

PRIORITY_QUEUES = (pqueues.DownloaderAwarePriorityQueue, pqueues.ScrapyPriorityQueue)
NOT_RETRIED = {"RETRY_HTTP_CODES": [500, 503]}
OWN_WAY = [("dont_retry", True), ("handle_httpstatus_list", [429]), ("handle_httpstatus_all", True)]


class Clock:
    """Both clocks of the modules with holds."""

    def __init__(self, monkeypatch):
        self.now, self.jumped = 1000.0, 0.0
        for module in (holds, hosts, delays, ledger_scheduler, request_store):
            monkeypatch.setattr(module, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "time", lambda: 1.7e9 + self.now + self.jumped)


@pytest.fixture
def clock(monkeypatch):
    """The clock of a test, which stands still."""
    return Clock(monkeypatch)


class Crawl(Job):
    """A job with the middleware, whose answers are those of the test."""

    def __init__(self, folder, **settings):
        super().__init__(folder, SCHEDULER=DURABLE, **settings)

    def open(self):
        super().open()
        for each in (self.scheduler._local_holds, self.scheduler._gate):
            each._longest_probe = self.crawler.settings.getfloat("DOWNLOAD_TIMEOUT")
        self.middleware = HoldMiddleware.from_crawler(self.crawler)
        return self

    def answer(self, request, status=200, retry_after=None, flags=()):
        """Let the downloader have an answer to `request`; return what RetryMiddleware gets."""
        headers = {} if retry_after is None else {"Retry-After": retry_after}
        response = Response(request.url, status, headers=headers, flags=[*flags])
        if "cached" not in flags:
            self.middleware._response_downloaded(response, request)
        return self.middleware.process_response(request, response)

    def again(self, request, *answer):
        """Have `request` refused, and store the copy that comes of it."""
        copy = self.answer(request, *answer)
        assert isinstance(copy, Request)
        assert self.scheduler.enqueue_request(copy)
        self.done(request)
        return copy

    def fails(self, request):
        """Have `request` refused, which uses a try: RetryMiddleware gets the refusal."""
        assert self.answer(request, 503, "soon").status == 503

    @property
    def left(self):
        """Seconds until the hold of the host is over, None without one."""
        hold = self.scheduler.holds.get("example.com")
        return None if hold is None else round(hold.until - holds.monotonic(), 3)


@pytest.fixture
def make_crawl(tmp_path, clock, opened):
    """Return a function that opens a job, by default in one folder."""
    return lambda folder=tmp_path / "job", **options: opened(Crawl(folder, **options))


@pytest.fixture(params=["disk", "memory"])
def crawl(request, make_crawl):
    """An open crawl with two pages, in a job or in memory."""
    return make_crawl(**{} if request.param == "disk" else {"folder": None}).pushed("one", "two")


# --- Retry-After --------------------------------------------------------------------------


DATE = 1.6e9
LAST = "Fri, 31 Dec 9999 23:59:59 GMT"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        *(("60", 60), (" 7 ", 7), ("1.5", 1.5), ("9" * 5000, inf), (LAST, 253402300799 - DATE)),
        (formatdate(DATE + 30, usegmt=True), 30),
        (formatdate(DATE + 30).replace("-0000", ""), 30),
        (formatdate(DATE + 30 + 7200).replace("-0000", "+0200"), 30),
        # not in the future, or not readable
        *((formatdate(DATE - over, usegmt=True), None) for over in (0, 30)),
        *((bad, None) for bad in ("0", "-5", "", "soon", "1e3", "²", "\xff\xfe", "1, 2", "inf")),
        ("Fri, 99 Foo 2026 23:59:59 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date_by_the_clock_of_the_host(value, seconds):
    """Its own clock says when its date is, or ours; an unreadable value is none."""
    headers = {"Retry-After": value, "Date": formatdate(DATE, usegmt=True)}
    assert retry_after(Response("http://example.com", 429, headers=headers)) == seconds
    headers = {"Retry-After": formatdate(time.time() + 3600, usegmt=True)}
    found = retry_after(Response("http://example.com", 429, headers=headers))
    assert 3000 < found <= 3600
    assert retry_after(Response("http://example.com", 429)) is None


# --- when a slot is held ------------------------------------------------------------------


def test_a_host_that_names_a_time_is_left_alone_until_then(crawl, clock):
    """Nothing of it is handed out, all of it is pending, and no retry is used up."""
    refused = crawl.pop()
    refused.meta.update(retry_times=1, download_slot=Slot.EXAMPLE)
    copy = crawl.again(refused, 429, "60")
    assert (copy.url, copy.dont_filter, copy.meta["retry_times"]) == (refused.url, False, 1)
    assert (copy.meta["bloom_held"], crawl.left) == (1, 60)
    clock.now += 59.9
    assert (crawl.pop(), len(crawl.scheduler)) == (None, 2)
    assert crawl.scheduler.has_pending_requests()
    assert (crawl.stat("scheduler/holds"), crawl.stat("scheduler/held")) == (1, 1)
    clock.now += 0.2
    assert crawl.pop() is not None


@pytest.fixture
def down(make_crawl):
    """Return a function that opens a job whose host is held after three refusals."""

    def make(pages=6, **settings):
        crawl = make_crawl(**settings).pushed(*map(str, range(pages)))
        first, second, third = (crawl.pop() for _ in range(3))
        for request in (first, second):
            crawl.fails(request)
        crawl.again(third, 503)
        return crawl

    return make


def test_each_other_answer_takes_away_a_refusal(make_crawl):
    """A page that is not there is an answer; what a cache answers says nothing of the host."""
    crawl = make_crawl().pushed(*map(str, range(12)))
    for _ in range(4):
        crawl.fails(crawl.pop())
        assert crawl.answer(crawl.pop(), 404).status == 404
    crawl.fails(crawl.pop())
    crawl.fails(crawl.pop())
    crawl.answer(crawl.pop(), 200, None, ["cached"])
    assert isinstance(crawl.answer(crawl.pop(), 503), Request)


def test_a_good_probe_begins_anew_and_until_recovery_one_refusal_is_enough(down, clock):
    """Twice as many answers after each row of holds. No hold is longer than the longest."""
    crawl = down(190)
    for answers in (0, RECOVERY - 1, 2 * RECOVERY - 1):
        clock.now += crawl.left
        crawl.answer(crawl.pop(), 301)
        assert crawl.left is None
        for _ in range(answers):
            crawl.answer(crawl.pop(), 200)
        crawl.again(crawl.pop(), 503)
        assert crawl.left == 5
    for rows, answers in (6, 512), (99, 512), (3, 64):
        crawl.middleware._rows["example.com"] = rows
        assert crawl.middleware._recovery("example.com") == answers + 1
    clock.now += 5
    for _ in range(1 + 8 * RECOVERY):
        crawl.answer(crawl.pop(), 200)
    crawl.fails(crawl.pop())
    assert crawl.left is None
    crawl.again(crawl.pop(), 429, "10000")
    assert crawl.left == 3600


def test_refusals_of_requests_that_were_sent_before_are_of_the_same_hold(crawl, clock):
    """They make it longer if they name a time, and no other; their answers do not end it."""
    crawl.pushed("three", "four")
    popped = [crawl.pop() for _ in range(4)]
    crawl.again(popped[0], 429, "60")
    crawl.again(popped[1], 429)
    crawl.again(popped[2], 429, "30")
    assert (crawl.left, crawl.scheduler.holds["example.com"].times) == (60, 1)
    crawl.answer(popped[3], 200)
    assert crawl.left == 60
    clock.now += 10
    crawl.again(popped[3], 429, "90")
    assert (crawl.left, crawl.scheduler.holds["example.com"].times) == (90, 1)
    assert crawl.stat("scheduler/holds") == 1


# --- its end ------------------------------------------------------------------------------


def test_a_request_that_asks_nothing_lets_another_go(crawl, clock):
    """One that a middleware ignores, or a cache answers, finds out nothing."""
    crawl.push("three")
    crawl.again(crawl.pop(), 429, "60")
    clock.now += 60
    first = crawl.pop()
    crawl.answer(first, 200, None, ["cached"])
    crawl.done(first)
    second = crawl.pop()
    crawl.middleware.process_exception(second, IgnoreRequest())
    crawl.done(second)
    third = crawl.pop()
    crawl.again(third, 429)
    assert (crawl.left, crawl.scheduler.holds["example.com"].times) == (10, 2)


def test_after_so_many_holds_in_a_row_pages_are_retried_as_ever(down, clock, caplog):
    """What is refused for ever fails, until an answer, or a time, comes."""
    crawl = down(12, BLOOM_HOLD_TIMES=2, BLOOM_HOLD_MAX=7)
    for _ in range(2):
        clock.now += crawl.left
        last = crawl.pop()
        if crawl.scheduler.holds["example.com"].times < 2:
            crawl.again(last, 503)
    crawl.fails(last)
    assert "still refuses requests after 2 holds in a row" in caplog.text
    pages = [crawl.pop() for _ in range(6)]
    assert None not in pages
    for page in pages[:3]:
        crawl.fails(page)
    crawl.again(pages[3], 429, "60")
    assert crawl.left == 7
    clock.now += 7
    crawl.fails(crawl.pop())
    crawl.answer(crawl.pop(), 200)
    assert crawl.left is None
    for _ in range(2):
        crawl.fails(crawl.pop())
    assert caplog.text.count("still refuses") == 1


def test_a_page_that_asks_for_time_again_and_again_fails_in_the_end(make_crawl, clock):
    """If it was asked alone so often."""
    crawl = make_crawl(BLOOM_HOLD_TIMES=3).pushed("bad")
    for _ in range(4):
        crawl.again(crawl.pop(), 503, "60")
        clock.now += 60
    assert (crawl.answer(crawl.pop(), 503, "60").status, crawl.left) == (503, 60)


# --- what goes its own way ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("meta", "settings", "left"),
    [*(({key: value}, {}, 60) for key, value in OWN_WAY), ({}, {}, 60), ({}, NOT_RETRIED, None)],
)
def test_who_asks_to_see_the_status_gets_it(make_crawl, meta, settings, left):
    """A request or a spider. The host rests all the same, unless the status counts as an answer."""
    crawl = make_crawl(**settings)
    if not meta and not settings:
        crawl.spider.handle_httpstatus_list = [429]
    crawl.push("page", meta=meta)
    assert crawl.answer(crawl.pop(), 429, "60").status == 429
    assert crawl.left == left


def test_what_did_not_come_from_the_scheduler_is_not_put_there(crawl):
    """A media request may hold its slot, and is retried where it was asked. What a cache answers
    says nothing of the host."""
    assert crawl.answer(crawl.pop(), 429, "60", ["cached"]).status == 429
    assert crawl.left is None
    media = Request("http://example.com/image")
    assert crawl.answer(media, 429, "60").status == 429
    assert crawl.left == 60
    # and no answer to one ends it
    crawl.answer(media, 200)
    assert (crawl.left, crawl.middleware.process_request(media)) == (60, None)


@pytest.mark.parametrize("own", [{}, {"dont_cache": False}, {"dont_cache": True}])
def test_a_refusal_is_not_cached_and_what_a_request_says_of_the_cache_stays(make_crawl, own):
    """A retry would be answered with it."""
    crawl = make_crawl(HTTPCACHE_ENABLED=True).pushed("page", meta=own)
    request = crawl.pop()
    response = Response(request.url, 429, headers={"Retry-After": "60"})
    crawl.middleware._response_downloaded(response, request)
    cache = HttpCacheMiddleware(crawl.crawler.settings, crawl.crawler.stats)
    cache.storage = None  # it would store it there
    assert cache.process_response(request, response) is response
    copy = crawl.middleware.process_response(request, response)
    for meta in (request.meta, copy.meta):
        assert {key: meta[key] for key in meta if "cache" in key} == own


@pytest.mark.skipif(
    not hasattr(pqueues, "DownloaderInterface"),
    reason="with throttling requests wait before they reach the middlewares",
)
def test_what_the_downloader_has_not_sent_goes_back(crawl):
    """Once a hold is known, no request of its slot is sent. It was in line beside the refused ones,
    and may be as broken: it goes behind the others."""
    sent, waiting = crawl.pop(), crawl.pop()
    media, got = Request("http://example.com/image"), []
    queue = deque((r, SimpleNamespace(callback=got.append)) for r in (waiting, media))
    crawl.engine.downloader.slots["example.com"] = SimpleNamespace(queue=queue, active={sent})
    crawl.again(sent, 429, "60")
    assert [(r.url, r.meta["bloom_held"]) for r in got] == [(waiting.url, 1)]
    assert [request for request, _ in queue] == [media]
    # and one that was still on its way there
    back = crawl.middleware.process_request(waiting)
    assert (back.meta["bloom_held"], back.priority) == (1, -1)


# --- what is kept -------------------------------------------------------------------------


@pytest.mark.parametrize("queue", PRIORITY_QUEUES)
def test_a_hold_goes_on_after_a_kill(make_crawl, clock, opened, tmp_path, queue):
    """And ends when it would have; one goes first again. A start without holds keeps the order."""

    def killed(seconds, make=make_crawl):
        crawl.commit()
        crawl.drop()
        clock.now += seconds
        return make(SCHEDULER_PRIORITY_QUEUE=queue)

    crawl = make_crawl(SCHEDULER_PRIORITY_QUEUE=queue).pushed(*"abc")
    crawl.again(crawl.pop(), 503, "60")
    assert crawl.pop() is None
    crawl = killed(20)
    assert (crawl.left, crawl.scheduler._next_due) == (40, 40)
    assert (crawl.pop(), len(crawl.scheduler)) == (None, 3)
    clock.now += 40
    assert len([*iter(crawl.pop, None)]) == 1
    assert crawl.left == 60
    crawl = killed(61)
    (probe,) = iter(crawl.pop, None)
    assert crawl.scheduler.holds["example.com"].times == 1
    crawl.answer(probe, 200)
    crawl.again(crawl.pop(), 503)
    assert crawl.left == 5
    job = killed(5, lambda **order: opened(Job(tmp_path / "job", BLOOM_HOLD=False, **order)))
    assert job.names() == [*"abc"]


def test_what_was_held_before_a_kill_is_held_at_once(make_crawl, clock):
    """A page that was refused then uses no try, though this process knows of no hold."""
    crawl = make_crawl().pushed("a", "b")
    for request in [crawl.pop(), crawl.pop()]:
        crawl.again(request, 503, "60")
    clock.now += 60
    probe = crawl.pop()
    crawl.answer(probe, 200)
    crawl.done(probe)
    crawl.commit()
    crawl.drop()
    crawl = make_crawl()
    crawl.again(crawl.pop(), 503)
    assert crawl.left == 5


@pytest.mark.parametrize("queue", PRIORITY_QUEUES)
@pytest.mark.parametrize("jump", [-1e6, 1e6])
def test_clocks_that_jump_block_no_slot_longer_than_its_hold(make_crawl, clock, jump, queue):
    """While a crawl runs they change nothing; after two a release frees what was put off."""
    crawl = make_crawl(SCHEDULER_PRIORITY_QUEUE=queue).pushed("a", "b")
    crawl.again(crawl.pop(), 429, "60")
    for _ in range(1 + (jump < 0)):
        clock.jumped += jump
        assert (crawl.left, crawl.pop()) == (60, None)
        crawl.commit()
        crawl.drop()
        clock.jumped += jump
        crawl = make_crawl(SCHEDULER_PRIORITY_QUEUE=queue)
    assert crawl.left == 60 or crawl.left <= 0
    if jump < 0:
        assert crawl.pop() is None
        crawl.scheduler.release("example.com")
    crawl.again(crawl.pop(), 429, "60")
    assert crawl.pop() is None
    clock.jumped += jump
    clock.now += 60
    assert crawl.pop() or crawl.pop()


def test_no_answer_ends_a_hold_by_hand(crawl, clock):
    """Of an earlier probe, nor a failure; a release does, and wakes the engine."""
    crawl.again(crawl.pop(), 429, "60")
    clock.now += 60
    probe = crawl.pop()
    crawl.scheduler.hold("example.com", 600, 0)
    crawl.scheduler.hold("example.com", 500, 3)
    crawl.answer(probe, 200)
    assert (crawl.left, crawl.pop()) == (600, None)
    crawl.answer(probe, 429, "10")
    for _ in range(6):
        crawl.middleware.process_exception(probe, ConnectError())
    assert (crawl.left, crawl.scheduler.holds["example.com"].times) == (600, 0)
    assert crawl.stat("scheduler/holds") == 1
    clock.now += 599
    assert crawl.pop() is None
    crawl.scheduler.release("example.com")
    assert crawl.engine.woken
    assert crawl.pop() is not None


def test_what_a_slot_had_before_a_second_hold_by_hand_goes_back(crawl, clock, monkeypatch):
    """As before the first; a worker may not have heard of its end: what it dispatches then is as
    old for the next one as any other."""
    crawl.scheduler.hold("example.com", 60, 0)
    clock.now += 60
    request = crawl.pop()
    crawl.scheduler.hold("example.com", 60, 0)
    assert isinstance(crawl.middleware.process_request(request), Request)
    told = {"example.com": Hold(clock.now - 1, 0)}
    monkeypatch.setattr(ledger_scheduler.LedgerScheduler, "holds", told)
    crawl.scheduler.release("example.com")
    request = crawl.pop()
    told["example.com"] = Hold(clock.now + 60, 0)
    assert crawl.scheduler.sent_back(request)
    assert not crawl.scheduler.is_probe(request, "example.com")


def test_a_hold_or_a_probe_that_cannot_be_kept_stops_the_job(make_crawl, clock, monkeypatch):
    """As any failure does: nothing is acknowledged any more, and the engine gets no exception."""
    full = raising(sqlite3.OperationalError("disk is full"))
    crawl = make_crawl().pushed("a")
    request = crawl.pop()
    monkeypatch.setattr(crawl.scheduler.ledger.store._file, "execute", full)
    crawl.answer(request, 429, "60")
    assert crawl.scheduler.ledger.stopped
    crawl.drop()
    crawl = make_crawl()
    crawl.scheduler.enqueue_request(unserializable("memory"))
    crawl.scheduler.hold("example.com", 5, 1)
    clock.now += 6
    monkeypatch.setattr(crawl.scheduler.ledger.store._file, "execute", full)
    assert crawl.pop() is None
    assert crawl.scheduler.ledger.stopped


# --- where it is on -----------------------------------------------------------------------


def test_it_is_off_where_it_is_told_to_and_where_nothing_would_wait():
    """One line says why, under another scheduler; a bad setting refuses the start."""
    ours = {"SCHEDULER": DURABLE}
    with pytest.raises(NotConfigured, match=r"^$"):
        HoldMiddleware.from_crawler(get_crawler(settings_dict={**ours, "BLOOM_HOLD": False}))
    with pytest.raises(NotConfigured, match="holds need DurableScheduler or"):
        HoldMiddleware.from_crawler(get_crawler())
    for name, value in (("BLOOM_HOLD_MAX", "long"), ("BLOOM_HOLD_TIMES", 0)):
        with pytest.raises(ValueError, match=name):
            HoldMiddleware.from_crawler(get_crawler(settings_dict={**ours, name: value}))
    alone = HoldMiddleware.from_crawler(get_crawler(settings_dict=ours))
    request, refused = Request("http://one.example/"), Response("http://one.example/", status=429)
    assert alone.process_request(request) is None
    assert alone.process_response(request, refused) is refused
    assert alone.process_exception(request, IgnoreRequest()) is None


def test_it_leaves_refusals_to_a_scrapy_that_waits_by_itself(crawl):
    """As one with https://github.com/scrapy/scrapy/pull/6931 does, unless it is told not to."""
    manager = SimpleNamespace(triggers_backoff_for_status=lambda status: status == 429)
    throttler = SimpleNamespace(
        get_resolved_scopes=lambda request: "example.com",
        get_scope_manager={"example.com": manager}.get,
    )
    assert crawl.middleware._scheduler is crawl.scheduler
    for crawl.crawler.throttler in (throttler, object()):
        assert crawl.answer(crawl.pop(), 429, "60").status == 429
        assert crawl.left is None
    crawl.pushed("three").crawler.throttler = throttler
    crawl.again(crawl.pop(), 503, "60")
    assert crawl.left == 60


# --- the rules ----------------------------------------------------------------------------

MOST = 10


@pytest.mark.parametrize("times", [0, 1, 2, MOST, MOST + 1])
@pytest.mark.parametrize("returns", [0, MOST - 1, MOST])
def test_retry_after_is_heeded_in_any_state_and_uses_no_try(make_crawl, clock, times, returns):
    """But for a page that was asked alone and refused too often."""
    meta = {"retry_times": 1, "bloom_refused": returns}
    crawl = make_crawl().pushed("one", meta=meta)
    crawl.scheduler.hold("example.com", 0, times)
    answer = crawl.answer(crawl.pop(), 429, "7")
    assert isinstance(answer, Request) == (returns + (times > 0) <= MOST)
    assert (crawl.left, crawl.scheduler.holds["example.com"].times) == (7, times + 1)


@pytest.mark.parametrize(("is_probe", "tries"), [(True, 1), (True, 0), (False, 1)])
def test_who_uses_a_try_in_a_row_of_holds(make_crawl, clock, is_probe, tries):
    """Only a page that is asked alone and has used one, which holds all the same."""
    crawl = make_crawl().pushed("one", meta={"retry_times": tries})
    request = None if is_probe else crawl.pop()
    crawl.scheduler.hold("example.com", 5, 2)
    clock.now += 5 if is_probe else 1
    answer = crawl.answer(request or crawl.pop(), 503)
    assert isinstance(answer, Request) == (not (is_probe and tries))
    assert crawl.left == (20 if is_probe else 4)


@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 2), (3, 5), (17, 5)])
def test_a_page_that_was_retried_before_tells_little_of_its_host(make_crawl, before, after):
    """But soon after a hold."""
    crawl = make_crawl().pushed("one", meta={"retry_times": 1})
    crawl.middleware._doubts["example.com"] = before
    is_held = isinstance(crawl.answer(crawl.pop(), 503), Request)
    assert is_held == (before > 2)
    assert (crawl.left or crawl.middleware._doubts["example.com"]) == after
