"""Requests of a crawl in Redis that an operator changes, while its workers go on."""

from itertools import count, product
from types import SimpleNamespace

import pytest

from scrapy_bloom.crawl.choice import Filter
from scrapy_bloom.crawl.delays import DEAD
from scrapy_bloom.crawl.records import KEPT, State
from scrapy_bloom.errors import SharedFilterError
from scrapy_bloom.redis import desk
from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.desk import RedisDesk
from tests.crawl.engine import name_of
from tests.redis.workers import FIFO, LIFO, StoreWorker, findings_of, lobby_from

pytestmark = pytest.mark.usefixtures("few_shards")
ORDERS = pytest.mark.parametrize("order", [FIFO, LIFO], ids=["oldest", "newest"])


def drop(worker, **selected):
    """Drop what is selected; return how many, and how many are delayed, in flight and unknown."""
    found = worker.desk.change(Filter(**selected), "drop")
    return found.states.total(), found.states[State.DELAYED], found.in_flight, found.unknown


def pending(worker, **selected):
    """Return how many are pending of what is selected."""
    return worker.desk.count(Filter(**selected)).by.total()


@ORDERS
@pytest.mark.parametrize("lobby", [0, 256])
def test_the_lists_of_a_slot_go_in_a_step_each(join, monkeypatch, order, lobby):
    """In each priority, parked or not; what is claimed stays, others stay in their order. The lobby
    counts none of them any more."""
    lobby_from(monkeypatch, lobby)
    worker = join(capacity=2, **order)
    worker.send(("first", "second"), slot="claimed", priority=1)
    worker.exchange()
    for priority in (0, 1):
        worker.send((f"gone{n}-{priority}" for n in range(9)), slot="gone", priority=priority)
    worker.send((f"held{n}" for n in range(5)), slot="held")
    worker.enqueue("late", 1000, slot="gone")
    worker.store.hold("held", 1000, 1)
    worker.send("abcdef", slot="stays")
    assert drop(worker, slots=["gone", "claimed"]) == (19, 1, 2, 0)
    assert not worker.enqueue("gone1-0") or worker.exchange()
    assert pending(worker, slots=["gone"]) == 0
    assert findings_of(worker) == []
    worker.exchange()
    assert worker.store.waiting == 11
    assert drop(worker, slots=["h*"])[0] == 5
    names = [each for each in worker.drain() if len(each) == 1]
    assert names == ([*"abcdef"] if order is FIFO else [*"fedcba"])
    worker.send(["parked"], slot="held")
    assert worker.next() is None
    assert drop(worker, slots=["held"])[0] == 1
    worker.exchange()
    assert worker.store.is_quiet
    assert (worker.store.waiting, worker.store.nbytes) == (0, 0)
    assert worker.client.call("bitcount", f"{worker.key}:lobby_counts") == 0


@ORDERS
def test_the_order_is_kept_where_nobody_works(join, monkeypatch, order):
    """Whatever is dropped. Where workers are at work, pauses are four times as long as calls."""
    monkeypatch.setattr(desk, "AT_ONCE", 3)
    rests = []
    clock = SimpleNamespace(sleep=rests.append, perf_counter=count().__next__)
    monkeypatch.setattr(desk, "time", clock)
    worker = join(**order)
    worker.send((f"{n}" for n in range(20)), slot="slot")
    worker.leave()
    worker = join(capacity=40, **order)
    assert drop(worker, urls=["*[05]"])[0] == 4
    left = [n for n in range(20) if n % 5]
    assert {*rests} == {0}
    assert [*map(int, worker.drain())] == (left if order is FIFO else left[::-1])
    worker.send(["more"], delay=1000)
    assert (drop(worker, urls=["*/more"])[0], rests[-1]) == (1, 4)


def test_more_quarantined_requests_than_a_call_takes_are_all_looked_at(worker, redis_server):
    """Those of a slot among them go, and then the others."""
    pack = (
        "for _, each in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do"
        " redis.call('RPUSH', KEYS[2], cmsgpack.pack({'0', ARGV[1], each, 0})) end"
        " return redis.call('DEL', KEYS[1])"
    )
    quarantined = f"{worker.key}:quarantined"
    for turn in range(25):
        for slot, pages in (("stays", 8), ("goes", 2)):
            worker.send((f"{slot}{turn}-{n}" for n in range(pages)), slot=slot)
            lists = f"{worker.key}:pending:0:{slot}", quarantined
            assert redis_server.command("EVAL", pack, 2, *lists, slot) == 1
    assert drop(worker, slots=["goes"])[0] == 50
    drop(worker, slots=["stays"])
    assert redis_server.command("LLEN", quarantined) == 0


@pytest.mark.parametrize("is_held", [False, True])
def test_a_list_and_an_older_one(join, is_held):
    """As where a slot had its share when requests left the lobby. The mark at the end of the older
    one is no request; what is behind it is counted, listed and dropped, where it is parked, too."""
    worker = join(**FIFO)
    call, own = worker.client._redis.execute_command, f"{worker.key}:pending:0:slot"
    worker.send("abcdefgh", slot="slot")
    assert worker.store.nbytes == sum(map(len, call("LRANGE", own, 0, -1)))
    if is_held:
        worker.hold("slot", 1000, 1)
        call("ZADD", f"{worker.key}:parked", 1e15, "0:slot\0")
        call("ZREM", f"{worker.key}:parked", "0:slot")
    else:
        call("LSET", f"{worker.key}:slots:0", 0, "slot\0")
    newest = call("RPOP", own)
    call("RENAME", own, f"{own}\0")
    call("RPUSH", f"{own}\0", "")
    call("RPUSH", own, newest)
    count = pending(worker)
    assert count > 1
    assert pending(worker, urls=["*"]) == count
    assert findings_of(worker) == []
    if is_held:
        assert drop(worker, urls=["*/h"])[0] == 1
        worker.exchange()  # its priority has no others
        worker.send(["new"], slot="slot")
        assert findings_of(worker) == []
        worker.store.release("slot")
        assert name_of(worker.next()) == "a"
    count = pending(worker)
    assert drop(worker, slots=["slot"])[0] == count > 0
    assert call("HMGET", f"{worker.key}:crawl", "waiting", "waiting_bytes") == [b"0", b"0"]
    assert findings_of(worker) == []
    assert pending(worker) == 0


@pytest.mark.parametrize("budget", [None, {}, {"*": 2}, {"*": 9}])
def test_a_full_server_refuses_a_retry_and_lets_a_drop_pass(own_server, budget):
    """The refused one has changed no byte: neither of what failed, nor of what is capped, nor of a
    dead host. With a worker at work, which has a budget, or without."""
    worker = StoreWorker(own_server.url, "crawl", BLOOM_BUDGET={"*": 2})
    worker.enqueue_all("abcd")
    for _ in range(2):
        worker.fail(worker.next())
        worker.exchange()
    worker.enqueue("e", slot="dead")
    worker.store.hold("dead", 3600, DEAD)
    worker.exchange(2)
    worker.leave()
    if budget is not None:
        worker = StoreWorker(own_server.url, "crawl", BLOOM_BUDGET=budget)
        worker.exchange()

    def state():
        return {name: own_server.command("DUMP", name) for name in own_server.names()}

    before, full = state(), ("CONFIG", "SET", "maxmemory")
    own_server.command(*full, "1")
    with RedisClient(own_server.url) as client:
        client.patience = 0  # for what it refuses, and not for its answers
        for starts, chosen in product((False, True), ({}, {"urls": ["*"]}, {"reasons": ["host"]})):
            refused = RedisDesk(client, worker.key, starts=starts)
            with pytest.raises(SharedFilterError, match="maxmemory"):
                refused.change(Filter(KEPT, **chosen), "retry")
        assert state() == before
        desk = RedisDesk(client, worker.key)
        dropped = desk.change(Filter(KEPT, urls=["*/[ac]"]), "drop").states
        assert +dropped == {State.FAILED: 1, State.CAPPED: 1}
        own_server.command(*full, "0")
        assert [each.url[-1] for each in desk.scan(Filter(KEPT))] == ["e", "b", "d"]
        assert desk.change(Filter(KEPT), "retry").states.total() == 3 - (budget == {"*": 2})
    worker.close()


def test_a_damaged_one_stops_no_other_from_being_dropped(worker, redis_server):
    """It stays, in the list of quarantined ones, among delayed ones and in a lobby."""
    worker.send("ab", slot="slot")
    worker.send(["late"], delay=1000, slot="slot")
    worker.leave()
    for command, name, *more in (
        ("LPUSH", "quarantined", "junk"),
        ("RPUSH", "lobby:0", "junk", "slot\0" + "0"),
        ("ZADD", "later", 1e15, "junk"),
    ):
        redis_server.command(command, f"{worker.key}:{name}", *more)
    assert drop(worker, urls=["*/?", "*/late"]) == (3, 1, 0, 2)
    assert redis_server.command("LLEN", f"{worker.key}:quarantined") == 1
    assert redis_server.command("LLEN", f"{worker.key}:lobby:0") == 2
    assert redis_server.command("ZCARD", f"{worker.key}:later") == 1
    assert {each.url for each in worker.desk.scan(Filter())} == {""}
