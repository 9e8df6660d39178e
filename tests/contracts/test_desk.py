"""The contract of desks: of a job that is stopped, of one that runs, and of a crawl in Redis."""

import time
from concurrent.futures import ThreadPoolExecutor
from math import inf

import pytest

from scrapy_bloom.crawl.choice import Filter
from scrapy_bloom.crawl.delays import DEAD
from scrapy_bloom.crawl.failed_request import FailedRequest
from scrapy_bloom.crawl.records import KEPT, State
from scrapy_bloom.redis.desk import RedisDesk
from scrapy_bloom.sqlite.desk import SqliteDesk
from tests.crawl.engine import Job, name_of
from tests.failures import Failed
from tests.redis.workers import FIFO, StoreWorker

STARTS = "http://example.com/"


class JobPlace:
    """A job of which an operator sees the directory, and a process has it, or not."""

    def __init__(self, folder, *, is_running):
        self.folder, self.is_running = folder / "job", is_running
        self.job = Job(self.folder, **FIFO).open()

    def push(self, name, slot="a", delay=None, **options):
        meta = {"download_slot": slot} | ({"bloom_not_before": delay} if delay else {})
        assert self.job.push(name, meta=meta, **options)

    def fail(self, record):
        self.push(record.url.removeprefix(STARTS))
        request = self.job.pop()
        self.job.scheduler.ledger.fail(request, record)
        self.job.done(request)
        self.job.commit()

    def find_dead(self, slot):
        self.job.commit()
        self.job.scheduler.hold(slot, 3600, DEAD)

    def desk(self):
        self.job.commit()
        if not self.is_running:
            self.job.close("shutdown")
            self.job.drop()
        return self

    def __getattr__(self, name):
        desk = SqliteDesk(self.folder)
        if name not in {"change", "hold"} or not self.is_running:
            return getattr(desk, name)
        return lambda *arguments: self.answered(getattr(desk, name), *arguments)

    def answered(self, method, *arguments):
        """Let the scheduler carry out what a method of the desk orders; return its result."""
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(method, *arguments)
            while not future.done():
                self.job.scheduler._look_for_orders()
                time.sleep(0.001)
            return future.result()

    def names(self):
        if not self.is_running:
            self.job = Job(self.folder, **FIFO).open()
        return self.job.names()

    def close(self):
        self.job.drop()


class CrawlPlace:
    """A crawl in Redis, without workers when an operator looks."""

    is_running = True  # its workers end no verdict when they join

    def __init__(self, url, key):
        self.url, self.key = url, key
        self.worker = StoreWorker(url, key, capacity=1, **FIFO)

    def push(self, name, slot="a", delay=None, **options):
        assert self.worker.enqueue(name, delay, slot, **options)
        self.worker.send_all()

    def fail(self, record):
        self.worker.enqueue(record.url.removeprefix(STARTS))
        assert self.worker.store.fail(self.worker.next(), record)
        self.worker.exchange()

    def find_dead(self, slot):
        self.worker.store.hold(slot, 3600, DEAD)
        self.worker.exchange()

    def desk(self):
        self.worker.leave()
        self.worker = StoreWorker(self.url, self.key, capacity=1, **FIFO)
        self.worker.store.leave(over=False, seconds=1)
        return RedisDesk(self.worker.client, self.worker.key)

    def names(self):
        self.worker.close()
        self.worker = StoreWorker(self.url, self.key, capacity=1, **FIFO)
        return self.worker.drain()

    def close(self):
        self.worker.close()


@pytest.fixture(params=["stopped", "running", "redis"])
def place(request, tmp_path):
    """Where requests wait and fail."""
    if request.param == "redis":
        server, key = (request.getfixturevalue(name) for name in ("redis_server", "key"))
        place = CrawlPlace(server.url, key)
    else:
        place = JobPlace(tmp_path, is_running=request.param == "running")
    yield place
    place.close()


def failed(name, reason, when=1795286400.0):
    """Return the record of a page that has failed."""
    return FailedRequest(
        f"{STARTS}{name}", "GET", reason, 200, "LookupError: x", 3, when, f"{STARTS}list"
    )


RECORDS = (
    failed("a1", "download/dns"),
    failed("a2", "callback"),
    failed("b1", "callback"),
    failed("c?z", "login page", 9e9),  # the clock was set back since
)


def filled(place):
    """Return the desk of a place where these have failed, and others wait."""
    for record in RECORDS:
        place.fail(record)
    for number in range(6):
        place.push(f"w{number}", "xyz"[number % 3], priority=number % 2)
    place.push("later", "x", 1000)
    return place.desk()


def names(records):
    return [each.url.removeprefix(STARTS) for each in records]


WAITING_NAMES = [*(f"w{number}" for number in range(6)), "later"]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, WAITING_NAMES),
        ({"slots": ["[!x]"], "urls": ["*/w[1-4]"]}, ["w1", "w2", "w4"]),
        ({"urls": ["*r"]}, ["later"]),
        ({"callbacks": ["parse_other"]}, []),
        ({"states": KEPT, "reasons": ["callback"]}, ["a2", "b1"]),
        ({"states": KEPT, "reasons": ["log*", "down*"], "urls": ["*/a*", "*[?]*"]}, ["a1", "c?z"]),
        ({"states": KEPT, "urls": ["*/A*"]}, []),
    ],
)
def test_the_chosen_ones(place, chosen, expected):
    """They are counted, listed and dropped, and the others are not."""
    desk, chosen = filled(place), Filter(**chosen)
    records = [*desk.scan(chosen)]
    assert sorted(names(records)) == sorted(expected)
    for by in ("slot", "callback", "priority", "reason"):
        counts = desk.count(chosen, by)
        assert counts.by.total() == counts.states.total() == len(expected)
        assert counts.by.keys() == {getattr(each, by) for each in records}
    delayed = sum(each.due is not None for each in records)
    assert counts.states[State.DELAYED] == ("later" in expected) == delayed
    assert desk.change(chosen, "drop").states == counts.states
    assert desk.change(chosen, "drop").states.total() == 0
    others = {*names(RECORDS), *WAITING_NAMES} - {*expected}
    assert {*names(desk.scan(Filter(frozenset(State))))} == others
    assert {*place.names()} == others - {*names(RECORDS), "later"}


def test_what_has_failed_is_asked_again(place):
    """Those that are chosen, once; what is dropped and kept has failed for a reason of its own. All
    that is known of each is told, the oldest first; in Redis the time is that of its clock."""
    desk = Failed(filled(place))
    found = desk.requests()
    assert [each._replace(time=0) for each in found] == [each._replace(time=0) for each in RECORDS]
    assert all(each.time > 1e9 for each in found)
    assert desk.by_reason() == {"callback": 2, "login page": 1, "download/dns": 1}
    assert desk.retry(reasons=["callback"]) == 2
    assert names(desk.requests()) == ["a1", "c?z"]
    assert desk.retry(reasons=["callback"]) == desk.retry(urls=["*/b1"]) == 0
    assert desk.drop() == 2
    found = desk.desk.change(Filter(urls=["*/w[12]", "*/later"]), "fail")
    assert (found.states.total(), found.states[State.DELAYED]) == (3, 1)
    assert sorted(names(desk.requests(reasons=["dropped"]))) == ["later", "w1", "w2"]
    assert all(each.attempts == 0 for each in desk.requests())
    assert desk.retry() == 3
    assert {*place.names()} == {"a2", "b1", *WAITING_NAMES}


def test_slots_are_held_and_released(place):
    """Until then, or for a time; a release of what is not held is none."""
    desk = filled(place)
    assert desk.hold(["x", "new"], None) == 0
    assert desk.hold(["x", "new"], inf) == 2
    assert desk.hold(["y"], 1000) == 1
    held = desk.held()
    assert (held["x"], held["new"]) == (inf, inf)
    assert 900 < held.pop("y") <= 1000
    assert desk.hold(["y", "z"], None) == 1
    assert desk.held().keys() == {"x", "new"}
    assert {*place.names()} == {"w1", "w2", "w4", "w5"}


OF_X = ["w0", "w3", "later"]
HOST = Filter(KEPT, reasons=["host"])


@pytest.fixture
def with_dead_host(place):
    """Return the desk of a job in which the host of the slot x is dead."""
    for number in range(6):
        place.push(f"w{number}", "xyz"[number % 3])
    place.push("later", "x", 1000)
    place.find_dead("x")
    return place.desk()


def test_what_waits_for_a_dead_host_has_failed(place, with_dead_host):
    """It is listed as that, and nowhere else."""
    desk = with_dead_host
    assert sorted(names(desk.scan(HOST))) == sorted(names(desk.scan(Filter(KEPT)))) == sorted(OF_X)
    assert {each.failed.reason for each in desk.scan(HOST)} == {"host"}
    assert desk.count(Filter(KEPT), "reason").by == {"host": 3}
    assert desk.count(Filter(KEPT, urls=["*/w*"]), "slot").by == {"x": 2}
    assert sorted(names(desk.scan(Filter()))) == ["w1", "w2", "w4", "w5"]
    assert desk.count(Filter(), "slot").by == {"y": 2, "z": 2}
    assert desk.change(Filter(urls=["*/w0", "*/w1"]), "fail").states.total() == 1
    assert desk.change(Filter(slots=["x"]), "drop").states.total() == 0
    assert list(desk.held()) == ["x"]
    assert desk.change(Filter(KEPT, ["x"], urls=["*/w0"]), "drop").states.total() == 1
    assert sorted(names(desk.scan(HOST))) == ["later", "w3"]
    assert {*place.names()} == {"w2", "w4", "w5", *([] if place.is_running else ["w3"])}


@pytest.mark.parametrize("how", ["release", "retry", "all", "one"])
def test_the_verdict_on_a_host_ends_at_once(place, with_dead_host, how):
    """For all that waits for it, where it waits, also by a retry of some of it."""
    desk = with_dead_host
    if how == "release":
        assert desk.hold(["x"], None) == 1
    else:
        chosen = {"retry": HOST, "all": Filter(KEPT), "one": Filter(KEPT, urls=["*/w3"])}[how]
        assert desk.change(chosen, "retry").states.total() == (1 if how == "one" else 3)
    assert (desk.held(), [*desk.scan(Filter(KEPT))]) == ({}, [])
    assert sorted(names(desk.scan(Filter()))) == sorted(WAITING_NAMES)
    assert {*place.names()} == {*WAITING_NAMES} - {"later"}


def test_what_is_in_flight_stays_as_it_is(tmp_path):
    """And is counted apart, also by what has to be read; a killed process has none in flight."""
    place = JobPlace(tmp_path, is_running=True)
    for number in range(4):
        place.push(str(number))
    flying = {name_of(place.job.pop()) for _ in range(2)}
    desk = place.desk()
    for chosen in (Filter(), Filter(urls=["*"])):
        for found in (desk.count(chosen), desk.count(chosen, "callback")):
            assert (found.states.total(), found.in_flight) == (2, 2)
    assert not flying & {*names(desk.scan(Filter()))}
    found = desk.change(Filter(urls=["*"]), "drop")
    assert (found.states.total(), found.in_flight) == (2, 2)
    place.close()
    place.is_running = False
    found = desk.count(Filter())
    assert (found.states, found.in_flight) == ({State.PENDING: 2}, 0)
    assert desk.change(Filter(urls=["*/[02]"]), "drop").states.total() == len(flying & {"0", "2"})
    assert {*place.names()} == flying & {"1", "3"}
    place.close()
