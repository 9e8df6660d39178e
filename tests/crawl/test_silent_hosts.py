"""Hosts that do not answer, on a job and a clock: how often each is asked, what fails, the end."""

from collections import Counter
from functools import partial
from heapq import heappop, heappush
from itertools import count, product
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from scrapy import Request, pqueues, signals
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response
from twisted.internet import error as twisted
from twisted.web.client import ResponseFailed

from scrapy_bloom.crawl import hosts
from scrapy_bloom.crawl.delays import DEAD, SILENT
from scrapy_bloom.crawl.failed_request import FailedRequest
from scrapy_bloom.sqlite.status import job_view
from tests.crawl.engine import name_of
from tests.crawl.test_holds import Clock, Crawl
from tests.failures import Failed

CONCURRENT = 16
TIMEOUT = 5.0
TRIES = 3
BY_SLOT, IN_ONE_LINE = pqueues.DownloaderAwarePriorityQueue, pqueues.ScrapyPriorityQueue
SETTINGS = {"DOWNLOAD_TIMEOUT": TIMEOUT, "SCHEDULER_PRIORITY_QUEUE": BY_SLOT}
DOWN = {
    "refused": (0.01, twisted.ConnectionRefusedError),
    "unknown": (0.02, twisted.DNSLookupError),
    "unreachable": (0.5, twisted.NoRouteError),
    "hangs": (TIMEOUT, twisted.TimeoutError),
    "breaks": (0.05, lambda: ResponseFailed([])),
}
REFUSED = {"busy": {}, "rest": {"Retry-After": "1"}}
"""The headers of a host that answers, but with a status that asks for a rest."""


@pytest.fixture
def clock(monkeypatch):
    """The clock of a test, which stands still."""
    return Clock(monkeypatch)


@pytest.fixture
def make_crawl(tmp_path, clock, opened):
    """Return a function that opens a job, by default in one folder."""

    def make(folder="job", alone=True, **options):
        return opened(Crawl(folder and tmp_path / folder, **{**SETTINGS, **options}), alone=alone)

    return make


class World:
    """Crawls with Scrapy's retries; `down(slot, now)` is what an attempt fails with, or None."""

    def __init__(self, crawl, clock, pages, down, *, takes_turns=True):
        for queue in crawl.scheduler._local_holds.queues:
            queue._takes_turns = takes_turns  # since no slot has a load here
        self.crawl, self.clock, self.down = crawl, clock, down
        self.begin, self.serials, self.under_way = clock.now, count(), []
        self.asked, self.answered, self.failed, self.retried = [], {}, [], 0
        self.last, self.page, self.latency = {}, None, lambda: 0.1
        for slot, number in pages.items():
            names = (f"{slot}-{page}" for page in range(number))
            crawl.pushed(*names, meta={"download_slot": slot})

    @property
    def now(self):
        return self.clock.now - self.begin

    def run(self, until=1e5):
        """Crawl up to a time, or to the end."""
        scheduler = self.crawl.scheduler
        while self.now < until:
            while len(self.under_way) < CONCURRENT and (request := self.crawl.pop()) is not None:
                self.send(request)
            if self.under_way:
                self.clock.now = max(self.clock.now, self.under_way[0][0])
                self.complete(*heappop(self.under_way)[2:])
            elif not scheduler.has_pending_requests():
                break
            else:
                ends = scheduler._next_due, scheduler._gate.next_end
                due = max(0.001, min(each for each in ends if each is not None and each > -1))
                self.clock.now += min(due, max(0.001, until - self.now))
        return self

    def send(self, request):
        slot, self.page = request.meta["download_slot"], int(name_of(request).rpartition("-")[2])
        why = self.down(slot, self.now)
        self.asked.append((self.now, slot))
        after = DOWN[why][0] if why in DOWN else self.latency()
        heappush(self.under_way, (self.clock.now + after, next(self.serials), request, why))

    def complete(self, request, why):
        middleware, slot = self.crawl.middleware, request.meta["download_slot"]
        if why in DOWN:
            again = middleware.process_exception(request, DOWN[why][1]())
        elif why == "forbidden":
            middleware.process_exception(request, IgnoreRequest())
            self.crawl.done(request)
            return
        elif why == "rewritten":  # by a middleware that is asked before ours
            again = request.replace(url=f"{request.url}000")
        else:
            response = Response(request.url, 503 if why else 200, headers=REFUSED.get(why, {}))
            request.meta["download_latency"] = 0.1
            middleware._response_downloaded(response, request)
            again = middleware.process_response(request, response)
        if not why:
            self.answered[request.url] = self.last[slot] = self.now
        elif isinstance(again, Request):
            assert self.crawl.scheduler.enqueue_request(again)
        elif (tries := request.meta.get("retry_times", 0) + 1) < TRIES:
            self.retried += 1
            again = request.replace(dont_filter=True, priority=request.priority - 1)
            again.meta["retry_times"] = tries
            assert self.crawl.scheduler.enqueue_request(again)
        else:
            self.failed.append(request.url)
        self.crawl.done(request)

    def attempts(self, slot, begin=0.0, end=1e9):
        return sum(each == slot and begin <= at < end for at, each in self.asked)

    def reasons(self):
        """Return what the job lists as failed when it is closed."""
        self.crawl.close()
        return self.crawl.stat("scheduler/failed")


def always(why, *slots):
    return lambda slot, now: why if slot in slots else None


def within(begin, end, why="refused"):
    return lambda slot, now: why if begin <= now < end else None


# --- dead hosts ---------------------------------------------------------------------------


@pytest.mark.parametrize("why", ["refused", "unknown", "unreachable", "hangs"])
@pytest.mark.parametrize(("pages", "queue"), [(50, BY_SLOT), (1000, BY_SLOT), (50, IN_ONE_LINE)])
def test_a_host_that_is_gone_is_asked_little_and_fails_as_one(make_crawl, clock, why, pages, queue):
    """Its pages stay where they are, and the crawl ends soon after the last page of the others."""
    crawl = make_crawl(SCHEDULER_PRIORITY_QUEUE=queue)
    world = World(crawl, clock, {"up": 50, "gone": pages}, always(why, "gone")).run()
    assert (len(world.answered), world.failed) == (50, [])
    assert world.attempts("gone") <= 40
    assert world.retried <= 4
    assert world.now - world.last["up"] < 180 + 8 * TIMEOUT * (why == "hangs")
    assert (len(crawl.scheduler), crawl.stat("scheduler/dead_hosts")) == (pages, 1)
    assert not crawl.scheduler.has_pending_requests()
    assert world.reasons() == pages
    assert crawl.stat("scheduler/pending") == 0


@pytest.mark.parametrize("takes_turns", [True, False])
@pytest.mark.parametrize("count", [2, 7])
def test_several_hosts_are_dead_at_once(make_crawl, clock, count, takes_turns):
    """While others answer it is not the machine, in the order of any Scrapy; also without a job."""
    crawl, gone = make_crawl(None), [f"gone{n}" for n in range(count)]
    pages = {**dict.fromkeys(gone, 20), "up": 300, "other": 300}
    world = World(crawl, clock, pages, always("refused", *gone), takes_turns=takes_turns)
    world.run(5000)
    assert (len(world.answered), world.failed) == (600, [])
    assert world.reasons() == count * 20
    assert crawl.stat("scheduler/held") >= count
    assert world.now < 250


def test_pages_of_a_host_that_answers_others_are_retried_and_fail_as_ever(make_crawl, clock):
    """Also if several hosts share its slot."""
    crawl = make_crawl()
    world = World(crawl, clock, {"mixed": 60}, lambda slot, now: None)
    world.down = lambda slot, now: "unreachable" if len(world.asked) % 3 == 2 else None
    world.run()
    assert (crawl.stat("scheduler/held") or 0) <= 2  # with the last ones
    assert world.attempts("mixed") <= 60 + 2 * 60


def test_a_dead_host_is_asked_each_time_and_an_answer_brings_all_back(make_crawl, clock):
    """By one page, while the crawl lasts."""
    crawl = make_crawl(BLOOM_HOST_RETRY="10m")
    down = lambda slot, now: "refused" if slot == "gone" and now < 3000 else None  # noqa: E731
    world = World(crawl, clock, {"up": 1, "gone": 30}, down)
    for minute in range(1, 60):
        crawl.push(f"up-{minute}", meta={"download_slot": "up", "bloom_not_before": 60 * minute})
    world.run()
    assert world.attempts("gone", 300, 3000) in {4, 5}
    assert sum("gone" in url for url in world.answered) == 30
    assert world.failed == []


def test_a_host_that_other_workers_have_not_found_dead_is_told_of_once(make_crawl, clock):
    """Until they agree its holds go on as before."""
    crawl = make_crawl()
    hold = crawl.scheduler.hold
    crawl.scheduler.hold = lambda slot, seconds, times: hold(slot, seconds, min(times, DEAD - 1))
    World(crawl, clock, {"up": 50, "gone": 20}, always("refused", "gone")).run(20_000)
    assert crawl.stat("scheduler/dead_hosts") == 1


@pytest.mark.parametrize(
    ("pages", "down", "dead", "least", "most"),
    [
        ({"one": 20}, always("refused", "one"), 20, 3600, 3800),
        ({"one": 20}, within(0, 3000), 0, 3000, 3100),
        # another one has answered, but not since
        ({"first": 1, "rest": 500}, within(1, 600), 0, 600, 900),
        # they have never answered
        ({"up": 1, "gone": 3, "lost": 3}, always("refused", "gone", "lost"), 6, 3600, 4500),
    ],
)
def test_the_last_hosts_are_dead_after_an_hour(make_crawl, clock, pages, down, dead, least, most):
    """With a probe a minute until then: one that comes back, as the machine may, loses nothing."""
    world = World(make_crawl(), clock, pages, down).run(20_000)
    assert (len(world.answered), world.failed) == (sum(pages.values()) - dead, [])
    assert least <= world.now < most
    assert len(world.asked) < len(world.answered) + 180
    assert (world.reasons() or 0) == dead


FIFTH, SINGLE, FIRST = [(300, 300)], [(1, 1)] * 8, [(200, 300)]


@pytest.mark.parametrize(("more", "dead"), [(FIFTH, 3), (SINGLE, 3), (FIRST, 0)])
def test_the_hour_goes_on_in_the_next_start(make_crawl, clock, more, dead):
    """Of each: for how long nothing answers, and its end. Neither a break of a day nor the first
    attempts after an hour make a host dead: a fifth one does, or single ones of some starts."""
    failed, pages, starts = [], {"one": 3}, [(1800, 1800), (1800, 1800), *more]
    for down, end in starts:
        world = World(make_crawl(), clock, pages, within(0, down)).run(end)
        failed.append(world.reasons() or 0)
        pages, clock.now = {}, clock.now + 86_400
    assert failed == [0] * (len(starts) - 1) + [dead]
    assert len(world.answered) == 3 - dead


@pytest.mark.parametrize("signal", [signals.headers_received, signals.bytes_received])
def test_a_slow_host_is_not_dead(make_crawl, clock, signal):
    """A byte of its slot since the request was sent, of whatever page, is enough."""
    crawl = make_crawl().pushed(*map(str, range(30)))
    pages = [crawl.pop() for _ in range(8)]
    for page in pages:
        clock.now += TIMEOUT - 1
        values = {"request": pages[-1], "spider": crawl.spider}
        crawl.crawler.signals.send_catch_log(signal, **values)
        clock.now += 0.5
        assert crawl.middleware.process_exception(page, twisted.TimeoutError()) is None
    assert crawl.scheduler.holds == {}
    # without a byte it gets one request at a time
    clock.now += TIMEOUT
    assert crawl.middleware.process_exception(crawl.pop(), twisted.TimeoutError()) is None
    clock.now += 1
    assert len([*iter(crawl.pop, None)]) == 1


# --- what is evidence, and what is not ---------------------------------------------------


NAMES = "CannotResolveHostError DownloadConnectionRefusedError DownloadTimeoutError"
EVIDENCE = [
    *(type(name, (Exception,), {}) for name in NAMES.split()),
    *(twisted.DNSLookupError, twisted.ConnectionRefusedError, twisted.ConnectError),
    *(twisted.TCPTimedOutError, twisted.NoRouteError, twisted.TimeoutError),
]


@pytest.mark.parametrize("why", EVIDENCE, ids=lambda each: each.__name__)
@pytest.mark.parametrize("kind", ["page", "image", "wanted"])
def test_five_attempts_without_an_answer_hold_a_slot(make_crawl, clock, why, kind):
    """Also those past the scheduler, as robots.txt and images, or whose spider wants failures."""
    crawl = make_crawl().pushed(*map(str, range(9)), meta={"dont_retry": kind == "wanted"})
    for _ in range(4):
        crawl.middleware.process_exception(Request("http://example.com/robots.txt"), why())
        assert (crawl.left or 0) < 1
    request = Request("http://example.com/image") if kind == "image" else crawl.pop()
    clock.now += 1
    again = crawl.middleware.process_exception(request or crawl.pop(), why())
    assert (crawl.left, again is not None) == (5, kind == "page")


def test_a_request_with_a_proxy_says_nothing_of_the_host(make_crawl, clock):
    """Neither by its failure nor by its answer; nor is it sent back."""
    crawl = make_crawl(DOWNLOAD_TIMEOUT=180).pushed(*map(str, range(30)))
    sent = crawl.pop()
    for _ in range(9):
        request = crawl.pop()
        request.meta["proxy"] = "http://proxy.example"
        assert crawl.middleware.process_exception(request, twisted.ConnectError()) is None
    assert crawl.scheduler.holds == {}
    for _ in range(5):
        crawl.middleware.process_exception(crawl.pop(), twisted.ConnectError())
    assert crawl.left == 5
    assert crawl.middleware.process_request(sent) is not None
    sent.meta["proxy"] = "http://proxy.example"
    assert crawl.middleware.process_request(sent) is None
    crawl.answer(sent)
    assert crawl.left == 5
    crawl.answer(request.replace(meta={}))
    assert crawl.scheduler.holds == {}
    # nor does it tell whether the machine is offline
    crawl.scheduler.pause(0)
    request = crawl.pop()
    request.meta["proxy"] = "http://proxy.example"
    assert crawl.middleware.process_exception(request, twisted.ConnectError()) is None
    crawl.done(request)
    assert crawl.pop() is None
    clock.now += 60
    assert crawl.pop() is not None


def test_who_has_answered_last_is_remembered(make_crawl, monkeypatch):
    """But not all: a crawl may have millions of hosts."""
    monkeypatch.setattr(hosts, "MOST_HEARD", 3)
    crawl = make_crawl()
    found = crawl.middleware._hosts
    for names, known in ("abc", "abc"), ("ad", "acd"), ("e", "ade"):
        for name in names:
            found.hears(crawl.scheduler, name, 0.1)
        assert found.likely == {*known}


# --- offline -----------------------------------------------------------------------------


@pytest.mark.parametrize("why", DOWN)
@pytest.mark.parametrize("seconds", [600, 6_000])
def test_nothing_fails_while_the_machine_is_offline(make_crawl, clock, caplog, why, seconds):
    """Whatever the exception: one request asks whether it is over, at last once a minute, and
    the crawl goes on when it is."""
    crawl, pages = make_crawl(), dict.fromkeys("abcd", 200)
    world = World(crawl, clock, pages, within(3, 3 + seconds, why)).run()
    assert (len(world.answered), world.failed) == (800, [])
    assert len([at for at, _ in world.asked if 40 < at < seconds]) <= 10 + seconds / 55
    assert crawl.stat("scheduler/offline") == 1
    assert caplog.text.count("WARNING") == caplog.text.count("seems to be offline") == 1
    assert crawl.stat("scheduler/dead_hosts") is None
    assert world.now < 3 + seconds + 200


def test_who_has_answered_is_asked_first_whether_the_machine_is_online(make_crawl, clock):
    """And not one after the other of many hosts that never have."""
    crawl, gone = make_crawl(), [f"gone{n:02}" for n in range(60)]
    world = World(crawl, clock, {**dict.fromkeys(gone, 2), "up": 50}, always("refused", *gone))
    crawl.scheduler.hold("up", 5, 1)
    crawl.middleware._hosts.hears(crawl.scheduler, "up", 0.1)
    world.run(300)
    assert len(world.answered) == 50


@settings(max_examples=25, deadline=None, suppress_health_check=[*HealthCheck])
@given(data=some.data())
def test_whatever_happens_no_page_of_a_host_that_answers_is_lost(monkeypatch, data):
    """Outages of the machine and of hosts, of any length and kind, of hosts that answer again; and
    a host that is gone fails as one."""
    kinds, times = some.sampled_from(sorted(DOWN)), some.floats(0, 300)
    outages = data.draw(some.lists(some.tuples(times, some.floats(0, 900), kinds), max_size=2))
    gone = {f"gone{n}": data.draw(kinds.filter(lambda why: why != "breaks")) for n in range(2)}
    gone = dict([*gone.items()][: data.draw(some.integers(0, 2))])
    pages = {"a": 150, "b": 150, **dict.fromkeys(gone, 10)}

    def down(slot, now):
        whys = (why for begin, length, why in outages if begin <= now < begin + length)
        return next(whys, gone.get(slot))

    clock = Clock(monkeypatch)
    crawl = Crawl(None, **SETTINGS).open()
    try:
        world = World(crawl, clock, pages, down).run(20_000)
        assert [url for url in world.failed if "gone" not in url] == []
        assert sum("gone" not in url for url in world.answered) == 300
    finally:
        crawl.drop()


@pytest.mark.parametrize("slots", ["a", "abcd"])
@pytest.mark.parametrize(("why", "pages"), [("forbidden", 100), ("rewritten", 200)])
def test_what_never_reaches_its_host_lets_another_ask(make_crawl, clock, slots, why, pages):
    """Soon after the host, or the machine, is back, however long a download may take."""
    crawl, down = make_crawl(DOWNLOAD_TIMEOUT=9000), within(0.5, 600)
    world = World(crawl, clock, dict.fromkeys(slots, 200), None)
    world.down = lambda slot, now: why if world.page % 2 else down(slot, now)
    world.run()
    assert (len(world.answered), world.failed) == (pages * len(slots), [])
    assert world.now < 600 + 200


def test_an_answer_ends_what_a_timeout_has_begun(make_crawl, clock, caplog):
    """To ask one page at a time, of which no line tells."""
    caplog.set_level("INFO")
    crawl = make_crawl(None)
    world = World(crawl, clock, {"one": 2}, within(0, 1, "hangs")).run(1)
    crawl.pushed(*(f"one-{page}" for page in range(2, 202)), meta={"download_slot": "one"})
    assert len(world.run().answered) == 202
    assert world.now < 10
    assert "answers again" not in caplog.text


# --- hosts that refuse ---------------------------------------------------------------------


@pytest.fixture(params=product(["Lifo", "Fifo"], range(2)))
def one(request, make_crawl, clock):
    """Return a function that makes the world of one host, in either order of its pages."""
    order, seed = request.param
    disk_queue = f"scrapy.squeues.Pickle{order}DiskQueue"

    def one(pages, down, latency=0.1):
        crawl = make_crawl(None, SCHEDULER_DISK_QUEUE=disk_queue)
        world = World(crawl, clock, {"one": pages}, down)
        world.latency = partial(Random(seed).uniform, latency / 2, 1.5 * latency)
        return world

    return one


@pytest.mark.parametrize("which", [range(20), range(300, 320), range(7, 320, 16)])
def test_pages_that_are_refused_for_ever_keep_no_other_waiting(one, which):
    """They fail, and the others take at most twenty seconds longer than without holds."""
    world = one(320, None)
    world.down = lambda slot, now: "busy" if world.page in which else None
    world.run()
    assert sorted(int(url.rpartition("-")[2]) for url in world.failed) == [*which]
    assert world.last["one"] <= 25
    assert world.now < 480


@pytest.mark.parametrize("says", ["busy", "rest"])
@pytest.mark.parametrize(("rate", "latency"), [(1, 0.02), (2, 0.1), (4, 1.0), (2, 3.0)])
def test_a_limit_loses_no_page(one, rate, says, latency):
    """Also if answers take longer than it takes to be above it again."""
    seconds = Counter()

    def limited(_slot, now):
        seconds[int(now)] += 1
        return None if seconds[int(now)] <= rate else says

    world = one(160, limited, latency).run()
    assert (len(world.answered), world.failed) == (160, [])


@pytest.mark.parametrize(
    ("pages", "end", "lost", "most"),
    [
        *((5, 60, 0, 78), (5, 180, 0, 198), (20, 400, 0, 440)),
        *((1, 9000, 1, 1), (2, 9000, 2, 1), (20, 9000, 20, 445)),
    ],
)
def test_a_host_is_given_up_after_a_while_and_a_last_page_at_once(one, pages, end, lost, most):
    """Only its others tell a broken page from a host that is down. One that is back loses none."""
    world = one(pages, within(0, end, "busy")).run()
    assert (len(world.answered), len(world.failed)) == (pages - lost, lost)
    assert most - 10 <= world.now <= most


# --- starts and rounds -------------------------------------------------------------------


def test_a_round_ends_beside_a_dead_host_and_the_next_one_asks_it(make_round, tmp_path):
    """Each start ends the verdict, and a retry goes on in the round that is over."""
    slot = {"meta": {"download_slot": "gone"}, "dont_filter": True}
    for number in (1, 2, 3):
        job = make_round().started("one")
        assert (job.round.number, job.scheduler.holds) == (number, {})
        assert sorted(job.names()) == (["one"] if number == 1 else ["one", "three", "two"])
        job.pushed("two", "three", **slot)
        job.scheduler.hold("gone", 3600, DEAD)
        assert not job.scheduler.has_pending_requests()
        job.close()
        job.drop()
        view = job_view(tmp_path / "job")
        assert (view.state.state, view.state.failed, view.unfinished) == ("finished", 2, 0)
    assert Failed(tmp_path / "job").retry(reasons=["host"]) == 2
    job = make_round().started("one")
    assert (job.round.number, sorted(job.names())) == (3, ["three", "two"])


@pytest.mark.parametrize(("reason", "limit"), [("capped", 3), ("down", 9)])
def test_a_round_goes_on_with_what_is_retried_of_a_dead_host(make_round, tmp_path, reason, limit):
    """A new one would begin its feeds anew."""
    slot = {"meta": {"download_slot": "gone"}}
    job = make_round(BLOOM_BUDGET={"*": limit}).started("one").pushed("first", **slot)
    for popped in iter(job.pop, None):
        if (reason, name_of(popped)) == ("down", "first"):
            job.scheduler.ledger.fail(popped, FailedRequest.of(popped, reason))
        job.done(popped)
    job.pushed(*"abcd", **slot)
    job.scheduler.hold("gone", 3600, DEAD)
    job.close("finished")
    assert Failed(tmp_path / "job").retry(reasons=[reason])
    job = make_round(BLOOM_BUDGET={"*": 9})
    assert (job.round.number, job.round.is_resumed) == (1, True)
    assert sorted(job.names()) == [*"abcd", *(["first"] if reason == "down" else [])]


def test_a_hold_in_a_row_outlives_a_kill_and_a_verdict_does_not(make_crawl, clock):
    """The next start asks what is dead at once."""
    crawl = make_crawl().pushed("one", "two")
    for times, left in ((SILENT + 3, 100), (DEAD, None)):
        crawl.scheduler.hold("example.com", 100, times)
        crawl.commit()
        crawl.drop()
        crawl = make_crawl()
        assert crawl.left == left
    assert len([*iter(crawl.pop, None)]) == 2


@pytest.mark.parametrize("folder", ["job", None])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_request_that_knows_its_proxy_passes(make_crawl, clock, folder, is_first):
    """While its host is held or dead, and the others wait as they are."""
    crawl = make_crawl(folder).pushed(*map(str, range(5)))
    proxied = [{"proxy": "http://proxy.example"}, None][:: 1 if is_first else -1]
    crawl.push("6", meta=proxied[0])
    crawl.scheduler.hold("example.com", 1000, DEAD)
    crawl.push("7", meta=proxied[1])
    assert name_of(crawl.pop()) == ("6" if is_first else "7")
    assert crawl.pop() is None
    assert (len(crawl.scheduler), crawl.scheduler.has_pending_requests()) == (6, False)
    crawl.scheduler.release("example.com")
    clock.now += 10  # of one in memory it may hear so late
    assert len([*iter(crawl.pop, None)]) == 6
