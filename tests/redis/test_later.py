"""What waits on a real server: delayed requests, held slots, and the lobby of small slots."""

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import count, pairwise
from math import inf

import pytest

from scrapy_bloom.crawl.delays import DEAD
from scrapy_bloom.redis import request_store
from scrapy_bloom.redis.status import CrawlReader
from tests.crawl.engine import name_of
from tests.redis.workers import FIFO, LIFO, PASS, fill, findings_of, let_pass, lobby_from, seeded

pytestmark = pytest.mark.usefixtures("few_shards")


def test_a_hundred_a_call(join):
    """Of many that are due at once the server moves some in each call."""
    worker, lefts = join(capacity=0), []
    worker.enqueue_all(map(str, range(250)), delay=1000)
    worker.send_all()
    let_pass(worker, 1000)
    all_there = worker.store.waiting, worker.store.nbytes
    worker.store._observers.heard = lambda reply: lefts.append(reply.later)
    for _ in range(3):
        worker.exchange()
        assert (worker.store.waiting, worker.store.nbytes) == all_there
        assert findings_of(worker) == []
    assert lefts[:3] == [150, 50, 0]


def test_what_comes_back_is_no_loss(join, redis_server):
    """Returned claims count for no death of a worker. A hold during a call goes with the next."""
    worker = join(capacity=8)
    worker.send("abcdef", slot="held")
    worker.take(1)
    worker.store._call()
    worker.store.hold("held", inf, 1)
    worker.wait()
    worker.exchange()
    assert worker.client.call("hkeys", f"{worker.key}:holds") == [b"held"]
    assert worker.client.call("scard", f"{worker.key}:dispatched:{worker.store.worker}") == 1
    entries = redis_server.command("LRANGE", f"{worker.key}:pending:0:held", 0, -1)
    assert {entry[:1] for entry in entries} == {b"0"}


@pytest.mark.parametrize("slots", [("held", "free"), ("free", "held")])
def test_a_hold_of_a_quarantined_request(join, slots):
    """It waits as any other; one of another slot is not kept up by it."""
    first = join()
    for slot in slots:
        first.send([slot], slot=slot)
    first.leave()
    for _ in range(2):
        worker = join()
        assert len(worker.take()[0]) == 2
        worker.die()
    worker = join()
    worker.hold("held", 1000, 1)
    (page,), (request,) = worker.take()
    assert page == "free"
    size = 1 + len(worker.store.claims.dispatched[request].payload)
    worker.store.done(request)
    assert worker.next() is None
    assert not worker.store.is_still
    assert (worker.store.waiting, worker.store.nbytes) == (1, size)
    let_pass(worker, 1000)
    assert worker.take()[0] == ["held"]
    assert 0 < worker.desk.held()["held"] <= 180


@pytest.mark.parametrize("lobby", [0, 10**6])
def test_a_ring_of_held_slots(join, monkeypatch, redis_server, lobby):
    """They leave the ring when they are met; when their holds are over each is asked once."""
    lobby_from(monkeypatch, lobby)
    worker, other = join(capacity=1), join(capacity=100)
    for number in range(1400):
        worker.store.hold(f"held{number % 700}", 1000, 1)
        worker.enqueue(f"{number % 700}-{number}", slot=f"held{number % 700}")
    worker.send_all()
    other.next()
    for number in range(3):
        other.send([f"free{number}", f"free{number}-2"], slot=f"free{number}")
    names = {each for _ in range(4) for each in other.take()[0]}
    assert {each for each in names if each.startswith("free")} == {
        f"free{number}{tail}" for number in range(3) for tail in ("", "-2")
    }
    assert redis_server.command("ZCARD", f"{other.key}:parked") >= 690
    assert findings_of(worker) == []
    redis_server.command("CONFIG", "RESETSTAT")
    worker.exchange()
    stats = redis_server.command("INFO", "commandstats")
    assert sum(each["calls"] for each in stats.values()) < 60
    before = {each for each in names if not each.startswith("free")}
    let_pass(other, 1000)
    probes = []
    for _ in range(30):
        found, requests = other.take()
        probes += [each.partition("-")[0] for each in found]
        for request in requests:
            other.store.done(request)
        other.exchange()
    assert len(probes) == len({*probes})
    assert len(probes) >= 700 - len(before)
    assert findings_of(worker) == []


def lists(server, worker):
    """Return the names of the keys in which requests wait."""
    names = {each.partition("}:")[2] for each in server.names(worker.key)}
    return {each for each in names if each.startswith(("lobby:", "slots", "pending"))}


def test_few_slots_have_lists_of_their_own(join, redis_server):
    """Up to 256 of a priority; of the others the first fifteen requests are in the lobby."""
    worker = join()
    fill(worker, 256)
    assert len(lists(redis_server, worker)) == 257
    assert not redis_server.command("EXISTS", f"{worker.key}:lobby_counts")
    for _ in range(16):
        for slot in range(300, 320):
            worker.enqueue(f"{slot}", dont_filter=True, slot=f"s{slot}")
    worker.store._leaving = True
    worker.send_all()
    assert redis_server.command("LLEN", f"{worker.key}:lobby:0") == 300
    assert len(lists(redis_server, worker)) == 278
    assert redis_server.command("MEMORY", "USAGE", f"{worker.key}:lobby_counts") < 1.3 * 2**20
    worker.store._leaving = False
    assert len(worker.drain()) == 256 + 320
    assert lists(redis_server, worker) == set()
    assert redis_server.command("BITCOUNT", f"{worker.key}:lobby_counts") == 0


def test_owners_leave_in_time(join, redis_server):
    """The hash holds those of the last time, and a part of those before."""
    worker = join(capacity=200, BLOOM_REDIS_SLOT_WORKERS=1)
    worker.store._policy = replace(worker.policy, keeps_slot=1)
    owners = f"{worker.key}:owners"
    old = """
        for at = 1, 4000 do
          redis.call('HSET', KEYS[1], 'old' .. at, cmsgpack.pack({'w', at % 800 > 0 and 1 or 1e15}))
        end
    """
    redis_server.command("EVAL", old, 1, owners)
    for first in range(0, 3000, 100):
        for slot in range(first, first + 100):
            worker.enqueue(f"{slot}", slot=f"s{slot}")
        assert len(worker.drain()) == 100
    assert redis_server.command("HLEN", owners) < 2500
    assert all(redis_server.command("HMGET", owners, *(f"old{at}" for at in range(800, 4001, 800))))
    worker.leave(over=True)
    assert not redis_server.command("EXISTS", owners)


@pytest.mark.parametrize("kind", [LIFO, FIFO], ids=["newest first", "oldest first"])
@pytest.mark.parametrize("seed", range(3))
def test_a_slot_keeps_its_order(join, monkeypatch, kind, seed):
    """Where slots are full, claims given back, and slots held: each comes once, in one order."""
    chance = seeded(seed)
    lobby_from(monkeypatch, chance.choice([0, 5, 256]))
    waiting, claimed, returning, names, sizes = defaultdict(list), {}, [], map(str, count()), {}
    worker, pages = join(capacity=chance.randrange(2, 9), **kind), chance.choice([20, 60, 200])
    store = worker.store
    build, settle = store._batch, store._settle

    def answered(entry, *_):
        waiting[entry.packed.slot].append(page := name_of(worker.codec.load(entry.packed)))
        sizes[page] = 1 + len(entry.packed.payload)

    def heard(reply):
        for claim in reply.claimed:
            page = name_of(worker.codec.load(claim))
            assert page == waiting[claim.slot].pop(-1 if kind is LIFO else 0), waiting
            claimed[claim.number] = claim.slot, page
        left = [sizes[page] for pages in waiting.values() for page in pages]
        assert (reply.waiting, reply.waiting_bytes) == (len(left), sum(left))

    def batch(action):
        built = build(action)
        returning[:] = sorted(built.claims.returned, key=int, reverse=True)
        return built

    def settled(*arguments):
        settle(*arguments)
        for slot, page in map(claimed.pop, returning):  # in front again, as they were
            waiting[slot].insert(len(waiting[slot]) * (kind is LIFO), page)
        returning.clear()

    store._policy = replace(worker.policy, claims_per_slot=chance.choice([1, 2, 8]))
    store._observers.heard, store._observers.answered = heard, answered
    store._batch, store._settle = batch, settled

    def finish():
        if (request := store.next()) is not None:
            store.done(request)
            claimed.pop([*store.claims.uncommitted.values()][-1].claim)

    for _ in range(250):
        what, slot = chance.random(), f"s{int(chance.expovariate(0.3))}"
        if what < 0.3 and pages:
            for _ in range(min(pages, chance.randrange(6))):
                pages -= 1
                worker.enqueue(next(names), slot=f"s{int(chance.expovariate(0.25))}")
        elif what < 0.6:
            finish()
        elif what < 0.7:
            # a probe of an odd number is the last in line
            store.hold(slot, chance.choice([10, 1000, inf]), 2)
        elif what < 0.75:
            store.release(slot)
        elif what < 0.85:
            let_pass(worker, chance.choice([10, 1000]))
        else:
            worker.exchange()
    for slot in [*store.holds, *(f"s{number}" for number in range(20))]:
        store.hold(slot, 1, 2)
        store.release(slot)
    while any(waiting.values()) or claimed:
        finish()
        worker.exchange()
    worker.exchange()
    assert store.is_quiet
    assert store.waiting == store.nbytes == 0


@pytest.mark.parametrize(("is_evicted", "times"), [(False, 1), (True, 1), (True, DEAD)])
def test_many_parked_slots_wake_bit_by_bit(join, redis_server, is_evicted, times):
    """Each call writes some of them only, since no other call is answered meanwhile."""
    worker = join()
    worker.send("a", slot="held")
    worker.hold("held", 10, times)
    assert worker.next() is None
    till, lists = (-1e15, 1) if times == DEAD else (1e15, 5000)
    parked = {f"0:held{number or ''}": till + number for number in range(lists)}
    worker.client._redis.zadd(f"{worker.key}:parked", parked)
    if is_evicted:
        redis_server.command("DEL", f"{worker.key}:holds")
    else:
        redis_server.command("HINCRBY", f"{worker.key}:crawl", "heard", 86_400_000)
    most = 0
    for _ in range(200):
        redis_server.command("CONFIG", "RESETSTAT")
        worker.exchange()
        most = max(most, redis_server.calls().get("zadd", 0))
    assert redis_server.command("ZCARD", f"{worker.key}:parked") == (not is_evicted)
    assert most < 2500


def test_the_status_of_what_waits(join):
    """How much of it is not due, when the next is, and how many slots are held."""
    worker = join()
    worker.send("abc", slot="held")
    worker.send("xyz", slot="over")
    worker.enqueue("late", 497_390)
    worker.store._unsent[-1].due -= 100  # a delay counts from the push, not from the call
    worker.hold("over", 400, 1)
    let_pass(worker, 400)
    assert join().state.waits.endswith(" h")  # a hold that is over is none
    worker.store.hold("held", 900_000, 1)
    worker.take()
    worker.exchange()
    crawl = CrawlReader(worker.client, worker.key).look()
    assert (crawl.later, crawl.held, crawl.waiting) == (1, 2, 6)
    assert 899_900 < worker.desk.held()["held"] <= 900_000
    assert 496_800 < crawl.next_due <= 496_890
    found = join().state.waits
    assert found.startswith("1 later, the next in 5 d 18 h; 2 hosts held")
    assert (worker.store.later, worker.store.waiting, worker.store.is_still) == (1, 6, False)
    assert 100 < worker.store.next_due <= 180  # of the slot that waits for its probe
    for slot in ("held", "over"):
        worker.store.hold(slot, inf, 0)
    worker.exchange()
    let_pass(worker, 1_000_000)
    assert worker.take()[0] == ["late"]
    assert worker.store.next_due == inf


AHEAD = PASS.replace("- ARGV[1]", "+ ARGV[1]").replace("-ARGV[1]", "ARGV[1]")


@pytest.mark.parametrize("jumps", [[-3600, -86_400], [-3600, 3600], [-3600, 40], [3600, -3600]])
def test_a_clock_that_is_set_puts_nothing_off(join, jumps):
    """A request is due when it was to be, and a hold as long; if the clock is ahead all is due."""
    worker, held = join(), ["held"] * (max(jumps) < 0)
    worker.send(held, slot="held")
    worker.store.hold("held", 190, 1)
    worker.send(["before"], delay=100)
    for jump in jumps:  # of the clock, as the keys of the crawl tell it
        worker.client._redis.eval(AHEAD, 1, worker.key, -1000 * jump)
        worker.client.call("hincrby", f"{worker.key}:crawl", "heard", -1000 * jump)
        worker.exchange()
    if jumps[0] > 0:
        assert worker.take()[0] == ["before"]
        return
    assert worker.next() is None
    assert 90 < worker.store.next_due <= 101
    assert 90 < CrawlReader(worker.client, worker.key).look().next_due <= 101
    assert join().state.waits.startswith("1 later, the next in 1 min")
    back = worker.client.call("hget", f"{worker.key}:crawl", "back")
    worker.send(["after"], delay=200)
    for names in ["before"], ["after", *held]:
        let_pass(worker, 101)
        assert sorted(worker.take()[0]) == names
    assert worker.client.call("hget", f"{worker.key}:crawl", "back") == back


# The lobby


@pytest.fixture
def lobby(monkeypatch):
    """Slots share a lobby from the first one on."""
    lobby_from(monkeypatch, 0)


def test_a_counter_that_is_too_high_goes_down(join, redis_server, lobby):
    """With each time that its slot has no list any more."""
    worker = join()
    redis_server.command("SET", f"{worker.key}:lobby_counts", b"\xff" * (1 << 20))
    fill(worker, 1, 9)
    assert not redis_server.command("EXISTS", f"{worker.key}:lobby:0")
    worker.drain()
    worker.enqueue("more", slot="s0")
    worker.store._leaving = True
    worker.exchange()
    assert lists(redis_server, worker) == {"lobby:0"}


def test_slots_with_lists_and_the_lobby_share_what_is_claimed(join, lobby, monkeypatch):
    """As if each of its entries were a slot, up to a thousand more than there are lists."""
    for pause in ("BUSY_SECONDS", "POLL_SECONDS"):  # no call but for what comes and goes
        monkeypatch.setattr(request_store, pause, inf)
    worker = join(capacity=1)
    fill(worker, 30, 10)
    fill(worker, 120)  # those that are new are in the lobby alone
    worker.enqueue("last", priority=-1)
    slots = [int(page.partition("-")[0]) for page in worker.drain()[:180]]
    assert (len({*slots}), max(Counter(slots).values())) == (120, 3)
    assert sum(slot >= 30 for slot in slots[:60]) == pytest.approx(60 * 180 / 210, abs=2)


@pytest.mark.parametrize("most", [1, 3])
def test_a_worker_gets_its_share_of_a_slot_from_the_lobby(join, redis_server, most, lobby):
    """As from a list; and without BLOOM_REDIS_SLOT_WORKERS no slot has an owner."""
    worker = join(capacity=9)
    worker.store._policy = replace(worker.policy, claims_per_slot=most)
    fill(worker, 2, 3)
    replies = []
    worker.store._observers.heard = replies.append
    assert worker.next() is not None
    shares = Counter(claim.slot for claim in replies[0].claimed)
    assert shares == {"s0": most, "s1": most}
    assert not redis_server.command("EXISTS", f"{worker.key}:owners")


def test_a_lobby_full_of_one_slot_keeps_no_call_long(join, redis_server, lobby):
    """A call looks at five hundred entries, and moves those of a slot that is full."""
    worker = join(capacity=2, **FIFO)
    worker.store._policy = replace(worker.policy, claims_per_slot=1)
    fill(worker, 1)
    copies = """
        local entry = redis.call('LINDEX', KEYS[1], 0)
        for _ = 1, 3000 do redis.call('RPUSH', KEYS[1], entry) end
        redis.call('HINCRBY', KEYS[2], 'waiting', 3000)
    """
    names = f"{worker.key}:lobby:0", f"{worker.key}:crawl"
    redis_server.command("EVAL", copies, 2, *names)
    worker.enqueue("other", slot="other")
    left = []
    for _ in range(15):
        worker.exchange()
        left.append(redis_server.command("LLEN", names[0]))
    assert max(one - other for one, other in pairwise(left)) <= 500
    assert left[-1] == 0
    assert "other" in {claim.slot for claim in worker.store.claims.all.values()}


def test_two_marks_of_an_aborted_script_are_no_request(join, redis_server):
    (worker := join(**FIFO)).send(["a"])
    worker.leave()
    name, ring = f"{worker.key}:pending:0:example.com", f"{worker.key}:slots:0"
    redis_server.command("RENAME", name, f"{name}\0")
    redis_server.command("LSET", ring, 0, "example.com\0")
    redis_server.command("LPUSH", f"{name}\0", "", "")
    worker = join(**FIFO)
    assert (worker.drain(), worker.failed.by_reason()) == (["a"], {})


def test_damage_stops_no_crawl(join, redis_server, lobby):
    """What cannot be read has failed, and the crawl goes on."""
    worker = join()
    fill(worker, 2)
    damaged = [("RPUSH", "lobby:0"), ("RPUSH", "quarantined"), ("HSET", "claims:damaged", 7)]
    damaged += (("ZADD", name, 1) for name in ("later", "parked", "workers"))
    for command, name, *more in damaged:
        redis_server.command(command, f"{worker.key}:{name}", *more, "damaged")
    for field, more in ("later", 1), ("waiting", 3):
        redis_server.command("HINCRBY", f"{worker.key}:crawl", field, more)
    assert len(worker.drain()) == 2
    worker.exchange()
    assert (worker.store.failed, worker.store.waiting, worker.store.is_quiet) == (4, 0, True)


def test_a_slot_of_one_worker_in_a_lobby(join, redis_server, lobby):
    """What another worker owns moves to a list of its slot, and is claimed by its owner only."""
    one, other = (join(capacity=1, BLOOM_REDIS_SLOT_WORKERS=1) for _ in range(2))
    fill(one, 1, 4)
    request = one.next()
    assert other.next() is None
    assert not redis_server.command("EXISTS", f"{one.key}:lobby:0")
    one.store.done(request)
    assert one.drain() == ["0-2", "0-1", "0-0"]
