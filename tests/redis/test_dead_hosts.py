"""Slots whose host is dead: what waits for them has failed, and the crawl ends without it."""

import logging
from dataclasses import replace

import pytest

from scrapy_bloom.crawl.choice import Filter
from scrapy_bloom.crawl.delays import DEAD, SILENT
from scrapy_bloom.crawl.records import KEPT
from scrapy_bloom.redis import worker as worker_module
from scrapy_bloom.redis.desk import RedisDesk
from scrapy_bloom.redis.push import Pusher
from scrapy_bloom.redis.scripts import COMMIT
from scrapy_bloom.redis.status import CrawlReader, CrawlStatus
from tests.crawl.engine import request
from tests.redis.workers import (
    FIFO,
    LIFO,
    capped,
    change_script,
    fill,
    findings_of,
    let_pass,
    lobby_from,
    talk,
)

pytestmark = pytest.mark.usefixtures("few_shards")
RETRY = 3600
KEPT_HOST = Filter(KEPT, reasons=["host"])


@pytest.fixture(params=[(FIFO, 256), (LIFO, 256), (FIFO, 0), (LIFO, 0)], ids=str)
def orders(request, monkeypatch):
    """The order of equal requests, with a lobby and without."""
    lobby_from(monkeypatch, request.param[1])
    return request.param[0]


def find_dead(worker, slot="dead"):
    """Let `worker` say that a slot is dead, and meet its lists."""
    worker.store.hold(slot, RETRY, DEAD)
    worker.exchange(20)
    assert worker.next() is None


def drained(worker):
    """Let `worker` fetch all that it gets until it is quiet; return the names."""
    names = worker.drain()
    for _ in range(20):
        names += [] if worker.store.is_quiet else worker.drain()
    return names


def counts(worker):
    """Return how many wait, and how many have failed, as all who count say it."""
    crawl = CrawlReader(worker.client, worker.key).require()
    pending, kept = worker.desk.count(Filter()).states, worker.desk.count(Filter(KEPT), "reason")
    assert (pending.total(), kept.states.total()) == (crawl.waiting, crawl.failed)
    assert worker.desk.reasons() == dict(kept.by)
    figures = CrawlStatus(worker.client, worker.key).figures()
    assert (figures["pending"], figures["failed"]) == (crawl.waiting, crawl.failed)
    return crawl.waiting, dict(kept.by)


def test_a_crawl_ends_without_what_waits_for_a_dead_host(join, orders):
    """It is listed as failed, stays where it is, and the next start asks it, in the same round."""
    worker = join(capacity=30, **orders)
    names = [f"p{n}" for n in range(9)]
    for priority in (0, 3):
        worker.send((f"{each}{priority}" for each in names), slot="dead", priority=priority)
    worker.send(["few"], slot="dead", priority=1)
    find_dead(worker)
    worker.send(["new"], slot="dead")
    worker.send(["page"], slot="lives")
    assert not worker.store.is_still
    assert drained(worker) == ["page"]
    assert worker.store.is_quiet
    assert (worker.store.waiting, worker.store.failed) == (0, 20)
    assert counts(worker) == (0, {"host": 20})
    assert findings_of(worker) == []
    let_pass(worker, RETRY + 1)
    worker.leave(over=True)  # its last call asks no dead host, though that is due
    late = join(capacity=30, **orders)
    assert late.state.over
    assert RedisDesk(late.client, late.key, starts=True).revive(Filter(KEPT)) == 20
    assert counts(late) == (20, {})
    late = join(capacity=30, **orders)
    assert not late.state.over
    assert len(drained(late)) == 20
    assert findings_of(late) == []


def test_what_waits_for_dead_hosts_is_counted_bit_by_bit(join, monkeypatch):
    """Two slots a call here, once a second; until it has all of them, the last count stands."""
    fewer = [
        (f"{each}500", f"{each}2") for each in ("dead_lists(from, ", "#lists < ", "counted_to + ")
    ]
    change_script(monkeypatch, COMMIT, *fewer)
    worker = join(capacity=1, **FIFO)
    for slot in "abcde":
        worker.store.hold(slot, RETRY, DEAD)
        worker.send([slot], slot=slot)
    worker.send("xy", slot="lives")
    told = []
    for number in range(8):
        worker.client.call("delete", f"{worker.key}:progress")
        worker.send([f"{number}"] * (number == 3), slot="a")
        told += [(worker.store.waiting, worker.store.failed)]
    assert {sum(each) for each in told} == {6, 7}
    assert {failed for _, failed in told} <= {told[0][1], 5, 6}
    assert told[-1] == (1, 6)


@pytest.mark.parametrize("end", ["answer", "retry", "probe"])
def test_a_verdict_ends(join, orders, end):
    """At once, by an answer or a retry of some, which brings all back; each hour one is asked."""
    worker = join(capacity=9, **orders)
    worker.send("abcx", slot="dead")
    find_dead(worker)
    assert worker.desk.held()["dead"] == pytest.approx(RETRY, abs=60)
    assert worker.desk.change(Filter(KEPT, urls=["*/x"]), "drop").states.total() == 1
    if end == "answer":
        worker.store.release("dead")
    elif end == "retry":
        assert worker.desk.change(Filter(KEPT, urls=["*/b"]), "retry").states.total() == 1
    else:
        let_pass(worker, RETRY + 1)
    worker.exchange()
    names, requests = worker.take()
    assert len(names) == (1 if end == "probe" else 3)
    assert not worker.store.is_still
    if end == "probe":
        assert counts(worker) == (0, {"host": 2})
        worker.store.done(requests[0])
        worker.store.release("dead")
        assert len(worker.take()[0]) == 2
    assert findings_of(worker) == []


@pytest.mark.parametrize("slot_workers", [0, 1])
def test_two_workers_have_to_find_a_slot_dead(join, slot_workers):
    """The other one has its turn soon, also where a slot has one of its own."""
    one, two = (join(capacity=3, **FIFO, BLOOM_REDIS_SLOT_WORKERS=slot_workers) for _ in range(2))
    two.exchange()
    one.send("abcdef", slot="dead")
    _, requests = one.take(3)
    for each in requests:
        one.store.done(each)
    for pause in (5, 60, 60):
        one.hold("dead", RETRY, DEAD)
        assert pause - 1 < one.desk.held()["dead"] <= pause
        assert one.next() is None
        assert counts(one) == (3, {})
        let_pass(one, pause + 0.5)
    assert one.next() is None  # it is the turn of the other
    names, requests = two.take(2)
    assert names == ["d"]
    assert two.store.holds["dead"].times == SILENT
    two.hold("dead", 5, SILENT + 1)
    one.hold("dead", RETRY, DEAD)
    two.fail(requests[0], "down")
    two.exchange()
    assert one.next() is None
    assert counts(one) == (0, {"host": 2, "down": 1})
    assert findings_of(one) == []


def test_a_probe_that_has_died_with_its_worker_is_asked_by_another(join):
    """When its lease is over, and not after twice the time that a host may take."""
    one, two = join(capacity=1, **FIFO), join(capacity=1, **FIFO)
    one.send("abc", slot="silent")
    one.hold("silent", 5, SILENT + 1)
    let_pass(one, 5.5)
    assert len(one.take()[0]) == 1
    let_pass(one, 300)
    assert two.next() is None
    one.die()
    assert len(two.take()[0]) == 1
    assert findings_of(two) == []


@pytest.mark.parametrize("meta", [{}, {"proxy": "http://proxy.example"}])
def test_a_probe_that_never_reaches_its_host_leaves_that_to_another(build, join, meta):
    """And no worker hears that the host has answered. One with a proxy does so before its end."""
    one, two = join(**FIFO), build(**FIFO)
    two.worker.store._policy = replace(one.policy, longest_probe=180_000)
    talk(two)  # its first call, too, which had another policy
    one.hold("example.com", 5, SILENT + 1)
    one.send("abc", meta=meta)
    let_pass(one, 5.5)
    in_progress, urls = two.crawler.engine._slot.inprogress, set()
    for _ in range(3):
        in_progress.add(probe := talk(two) or two.next_request())
        urls.add(probe.url)
        if not meta:
            talk(two)
            assert two.next_request() is None
            in_progress.remove(probe)
            two.next_request()
    assert len(urls) == 3
    one.exchange()
    assert one.store.last.answered == []


@pytest.mark.parametrize("goes", ["dies", "pauses"])
def test_the_word_of_a_worker_that_is_gone_does_not_count(join, goes):
    """Nor does a crawl wait for it, or for one that no host answers."""
    one, two = join(**FIFO), join(**FIFO)
    one.send("abcdefghi", slot="dead")
    two.hold("dead", 5, SILENT + 1)
    two.die()
    assert one.next() is not None
    three = join(**FIFO)
    three.exchange()
    one.hold("dead", RETRY, DEAD)
    assert not one.desk.count(KEPT_HOST).states.total()
    if goes == "dies":
        three.die()
    else:
        three.store.pause(60)
        three.exchange()
    Pusher(one.dupefilter.shared, one.settings, one.codec, "seeds").beat()  # it asks no host
    one.store.hold("dead", RETRY, DEAD)
    one.exchange(5)
    assert one.desk.count(KEPT_HOST).states.total() > 0
    join(**FIFO).exchange()  # it need not agree
    one.hold("dead", RETRY, DEAD)
    assert one.desk.held()["dead"] > RETRY - 60


def test_a_worker_hears_that_others_are_answered(join, redis_server):
    """Once, of slots that the others have not held; one that is gone hears nothing."""
    one, two, gone = (join(**FIFO) for _ in range(3))
    two.exchange()
    for slot, holders in (("own", [one, gone]), ("both", [one, two]), ("not", [two])):
        for worker in holders:
            worker.hold(slot, 5, SILENT + 1)
    gone.leave()
    two.store._holds["own"] = one.store.holds["own"]
    for slot in ("own", "both", "not"):
        two.store.release(slot)
    two.exchange()
    for heard in (["own"], []):
        one.exchange()
        assert one.store.last.answered == heard
    assert two.store.last.answered == []
    assert not redis_server.names(gone.store.worker)


def test_who_is_cut_off_from_three_slots_takes_no_more_requests(build, told, monkeypatch):
    """They have answered others in the last ten minutes, and not this worker since."""
    worker = build().worker
    worker._note_answered(["long", "ago"])
    later = worker_module.monotonic() + 600
    monkeypatch.setattr(worker_module, "monotonic", lambda: later)
    for slots in ["one", "example.com"], ["two"], ["three"]:
        assert told(logging.ERROR) == []
        worker._note_answered(slots)
        worker._response_downloaded(request("page"))
    assert told(logging.ERROR)[0].startswith("one, two, three do not answer this worker")


def test_a_paused_worker_leaves_requests_to_others(join):
    """After the pause it asks for one at a time, until that ends."""
    one, two = join(capacity=4, **FIFO), join(capacity=9, **FIFO)
    one.send("abcdef", slot="slot")
    one.exchange()
    one.store.pause(RETRY)
    one.exchange()
    assert one.store.claims.all == {}
    assert len(two.take()[0]) == 6
    one.send("ghijkl", slot="slot")
    assert one.next() is None
    one.store._paused_until -= RETRY
    assert one.take(1)[0] == ["g"]
    assert one.store.claims.spare == 0
    one.store.pause(None)
    assert one.take()[0] == [*"hijkl"]
    for each in [*one.store.claims.dispatched]:
        one.store.done(each)
    fill(one, 1, 9)
    one.store._call()
    one.store.pause(60)  # it is for the claims of a call that is open, too
    one.wait()
    one.exchange()
    assert one.store.claims.all == {}


@pytest.mark.parametrize("silent_for", [0.05, 5])
def test_the_probe_of_a_worker_that_is_offline_says_nothing(join, silent_for):
    """It passes the probe on; what it holds for longer has failed with it."""
    one, two = join(**FIFO), join(**FIFO)
    for worker in (one, two):
        worker.exchange()
    one.hold("dead", 60, SILENT + 5)
    two.hold("dead", silent_for, SILENT + 5)
    assert one.desk.held()["dead"] <= silent_for
    one.hold("dead", RETRY, DEAD)
    assert ("dead" in one.desk.dead()) == (silent_for > 1)


def test_a_start_ends_verdicts_unless_others_are_at_work(build, join, told):
    """What waits counts in a budget that a crawl gets then, too."""
    budget = {"BLOOM_BUDGET": {"dead": 4}}
    worker = join(**FIFO)
    worker.send("abc", slot="dead")
    find_dead(worker)
    other = build(**FIFO)
    assert counts(worker) == (0, {"host": 3})
    other.close("finished")
    worker.leave(over=True)
    late = build(**FIFO, **budget)
    talk(late)
    assert "Asking 3 requests of dead hosts again" in told(0)
    assert len(late.worker.store.claims.all) == 3
    late.pause(60)  # as it is offline: others ask
    talk(late)
    assert late.worker.store.claims.all == {}
    worker = join(**FIFO, **budget)
    worker.send("de", slot="dead")
    late.close("finished")  # it gives back what it has claimed
    assert len(drained(worker)) == 4
    assert capped(worker) == ["e"]


@pytest.mark.parametrize("late", [1, 21])
def test_what_is_delayed_or_quarantined_waits_for_its_dead_host(join, redis_server, late):
    """A crawl does not wait for it: it has failed, unless it is delayed with more than twenty."""
    worker = join(**FIFO)
    worker.send(["lost"], slot="dead")
    pack = "return redis.call('RPUSH', KEYS[1], cmsgpack.pack({'0', 'dead', '0x', 0}))"
    redis_server.command("EVAL", pack, 1, f"{worker.key}:quarantined")
    worker.enqueue_all((f"late{number}" for number in range(late)), delay=1000, slot="dead")
    worker.send_all()
    find_dead(worker)
    assert worker.store.is_still == (late == 1)
    assert worker.desk.count(KEPT_HOST).states.total() == 2 + late
    told = worker.store.waiting, worker.store.later, worker.store.failed
    if late > 1:
        assert told[1] == late
        return
    assert told == (0, 0, 3)
    counts(worker)
    worker.leave(over=True)
    last = join(**FIFO)
    assert findings_of(last) == []
    last.die()
    redis_server.command("HINCRBY", f"{last.key}:crawl", "waiting", 2)
    assert "0 requests wait, and 1 should" in findings_of(last)[0]


@pytest.mark.parametrize("first", [{"*": 3}, {"*/*": 3}, {}])
def test_what_waits_for_a_dead_host_counts_in_a_new_round(join, first):
    """As in a job: the next start asks it."""
    worker = join(capacity=9, BLOOM_REDIS_ROUND="one", BLOOM_BUDGET=first)
    worker.send("abc", slot="dead")
    find_dead(worker)
    assert drained(worker) == []
    worker.leave(over=True)
    worker = join(capacity=9, BLOOM_REDIS_ROUND="two", BLOOM_BUDGET=first or {"*": 3})
    RedisDesk(worker.client, worker.key, starts=True).revive(Filter(KEPT))
    worker.send("efgh", slot="dead")
    worker.exchange()
    assert sorted(drained(worker)) == [*"abc"]
    assert findings_of(worker) == []


def test_a_page_whose_child_in_memory_waits_for_a_dead_host_keeps_no_crawl_open(build):
    """The next start asks the page again, and so the child, which cannot be stored."""
    scheduler = build(**FIFO)
    scheduler.enqueue_request(request("page"))
    talk(scheduler)
    page = scheduler.next_request()
    child = {"function": lambda: None, "download_slot": "dead"}
    scheduler.enqueue_request(request("child", meta=child))
    scheduler.hold("dead", RETRY, DEAD)
    for _ in range(3):
        talk(scheduler)
        assert scheduler.next_request() is None
    assert not scheduler.has_pending_requests()
    scheduler.close("finished")
    scheduler = build(**FIFO)
    talk(scheduler)
    assert scheduler.next_request().url == page.url
