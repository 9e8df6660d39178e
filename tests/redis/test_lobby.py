"""The lobby: the list that slots with few requests share, and the counters that say who has few."""

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest

from scrapy_bloom.redis.lifecycle import remove_queue
from scrapy_bloom.redis.status import CrawlReader
from tests.crawl.engine import name_of
from tests.redis.workers import (
    StoreWorker,
    anywhere,
    crawl,
    findings_of,
    lobby_from,
    seeded,
    tree,
)

pytestmark = pytest.mark.usefixtures("few_shards")

FIFO = {"SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue"}
LIFO = {"SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleLifoDiskQueue"}


class Slots:
    """What waits in each slot, as one list a slot would have it."""

    def __init__(self, newest_first):
        self.newest_first = newest_first
        self.waiting = defaultdict(list)
        self.numbers = iter(range(10**6))

    def push(self, worker, slot):
        """Let `worker` push one more request of `slot`."""
        worker.enqueue(f"{slot}-{next(self.numbers)}", slot=slot)

    def take(self, slot, page):
        """Require that `page` was the next one."""
        expected = self.waiting[slot].pop(-1 if self.newest_first else 0)
        assert page == expected, (slot, self.waiting[slot])

    def give_back(self, claims):
        """Put these (slot, page) in front again, as they were."""
        for slot, page in reversed(claims):
            self.waiting[slot].insert(len(self.waiting[slot]) * self.newest_first, page)


@pytest.mark.parametrize("seed", range(4))
def test_a_change_of_the_order_loses_nothing(join, redis_server, monkeypatch, seed):
    """SCHEDULER_DISK_QUEUE may be another one after a stop: each request still comes, once."""
    chance = seeded(seed)
    lobby_from(monkeypatch, chance.choice([0, 5]))
    slots, found = Slots(newest_first=True), []

    def enter():
        worker = join(capacity=chance.randrange(2, 9), **chance.choice([LIFO, FIFO]))
        worker.store._policy = replace(worker.policy, claims_per_slot=chance.choice([1, 2, 8]))
        return worker

    def finish(most):
        while most and (request := worker.store.next()) is not None:
            found.append(name_of(request))
            worker.store.done(request)
            most -= 1

    worker = enter()
    for _ in range(30):
        for _ in range(chance.randrange(20)):
            slots.push(worker, f"s{int(chance.expovariate(0.2))}")
        if chance.random() < 0.2:
            bits = chance.choice([b"", b"\xff" * (1 << 20), chance.randbytes(1 << 20)])
            redis_server.command("SET", f"{worker.key}:lobby_counts", bits)
        for _ in range(chance.randrange(1, 4)):
            worker.exchange()
            finish(chance.randrange(5))
        worker.exchange()
        worker.leave()
        worker = enter()
    for _ in range(200):
        finish(100)
        worker.exchange()
    assert sorted(int(page.partition("-")[2]) for page in found) == [*range(next(slots.numbers))]
    assert worker.store.waiting == worker.store.nbytes == worker.store.failed == 0


@pytest.fixture
def lobby(monkeypatch):
    """Slots share a lobby from the first one on."""
    lobby_from(monkeypatch, 0)


def fill(worker, slots, each=1, **options):
    """Push so many requests of each slot, one slot after the other in turns."""
    for number in range(each):
        for slot in range(slots):
            worker.enqueue(f"{slot}-{number}", slot=f"s{slot}", **options)
    worker.store._leaving = True  # it claims nothing
    worker.exchange()
    worker.send_all()
    worker.store._leaving = False


def lists(server, worker):
    """Return the names of the keys in which requests wait."""
    return {each.partition("}:")[2] for each in server.names(worker.key) if is_list(each)}


def is_list(key):
    """Return whether requests wait in that key."""
    return key.partition("}:")[2].startswith(("lobby:", "slots", "pending"))


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


@pytest.mark.usefixtures("lobby")
def test_a_counter_that_is_too_high_goes_down(join, redis_server):
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


@pytest.mark.usefixtures("lobby")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", [LIFO, FIFO], ids=["newest first", "oldest first"])
def test_nothing_is_lost_with_any_counters(join, redis_server, seed, kind):
    """Calls are aborted, slots owned and workers killed: every page is fetched."""
    chance = seeded(seed)

    def attempt(worker, arguments):
        some = chance.choice([b"", b"\xff" * 1024, chance.randbytes(1024)])
        redis_server.command(
            "SETRANGE", f"{worker.key}:lobby_counts", chance.randrange(1 << 20), some
        )
        worker.abort(arguments, anywhere(chance))
        if chance.random() < 0.05:
            worker.die()
        return worker.call(arguments)

    workers = [join(attempt, BLOOM_REDIS_SLOT_WORKERS=seed % 2, **kind) for _ in range(2)]
    for worker in workers:
        worker.policy = replace(worker.policy, claims_per_slot=2, keeps_slot=50 * (seed % 2))
        worker.store._policy = worker.policy
        worker.enqueue = in_slots(worker, chance)
    fetched = crawl(workers, tree(30), chance, 20_000)
    assert {*fetched} == {*range(30)}


def in_slots(worker, chance):
    """Return its `enqueue`, with a slot for each page."""
    plain = worker.enqueue
    return lambda page, **more: plain(page, slot=f"s{int(page) % 7}", **more)


@pytest.mark.usefixtures("lobby")
def test_each_write_of_a_call_may_be_the_last(redis_server, key):
    """Of one that claims some of a lobby, and moves others to the lists of their slots."""
    position, had = 8, [True]  # what comes before writes nothing
    while had[0]:
        position += 3
        worker = StoreWorker(redis_server.url, f"{key}.{position}", **FIFO)
        worker.store._policy = replace(worker.policy, claims_per_slot=1)
        fill(worker, 2, 3)
        had = worker.abort_next(position)
        assert {*worker.drain()} == {f"{slot}-{number}" for slot in range(2) for number in range(3)}
        assert worker.store.is_quiet
        worker.close()
    assert position > 60


@pytest.mark.usefixtures("lobby")
def test_slots_with_lists_and_the_lobby_share_what_is_claimed(join):
    """As if each of its entries were a slot, up to a thousand more than there are lists."""
    worker = join(capacity=1)
    fill(worker, 30, 10)
    worker.enqueue("last", priority=-1)
    first = worker.drain()[:90]
    shares = Counter(page.partition("-")[0] for page in first)
    assert len(shares) == 30
    assert max(shares.values()) < 10


@pytest.mark.usefixtures("lobby")
def test_a_lobby_full_of_one_slot_keeps_no_call_long(join, redis_server):
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


@pytest.mark.usefixtures("lobby")
@pytest.mark.parametrize("kind", [LIFO, FIFO], ids=["newest first", "oldest first"])
def test_the_commands_know_the_lobby(join, redis_server, kind):
    """What waits in it is counted by slot, sound, asked again, and removed."""
    worker = join(**kind)
    fill(worker, 3, 4)
    counts = {0: {f"s{slot}": 4 for slot in range(3)}}
    assert CrawlReader(worker.client, worker.key).pending().counts == counts
    assert findings_of(worker) == []
    request = worker.next()
    worker.fail(request)
    worker.exchange()
    worker.leave()
    store = worker.failed
    assert store.retry() == 1
    assert CrawlReader(worker.client, worker.key).pending().counts == counts
    assert findings_of(worker) == []
    assert remove_queue(worker.client, worker.key) > 3
    assert lists(redis_server, worker) == set()
    assert not redis_server.command("EXISTS", f"{worker.key}:lobby_counts")


@pytest.mark.usefixtures("lobby")
@pytest.mark.parametrize(
    ("commands", "finding"),
    [
        (["RPUSH {k}:lobby:0 x"], "1 request of 'lobby:0' cannot be read"),
        (["RPUSH {k}:lobby:0 s9\0x"], "1 request of 'lobby:0' cannot be read"),
        (["ZREM {k}:priorities 0"], "'lobby:0': no worker finds that list"),
        (["LPOP {k}:lobby:0"], "1 request is gone"),
        (["LREM {k}:lobby:0 0 s0\0"], "'pending:0:s0': no worker finds that list"),
        (["HSET {k}:crawl over 1"], "the crawl is over, but something waits"),
    ],
)
def test_verify_finds_damage_in_a_lobby(join, redis_server, commands, finding):
    """Each in a line."""
    worker = join(**FIFO)
    fill(worker, 1, 5)
    worker.leave()
    for command in commands:
        redis_server.command(*command.format(k=worker.key).split())
    assert finding in " ".join(findings_of(worker))


@pytest.mark.usefixtures("lobby")
def test_damage_in_a_lobby_stops_no_crawl(join, redis_server):
    """What cannot be read has failed, and the crawl goes on."""
    worker = join()
    fill(worker, 2)
    redis_server.command("RPUSH", f"{worker.key}:lobby:0", "damaged")
    redis_server.command("HINCRBY", f"{worker.key}:crawl", "waiting", 1)
    assert len(worker.drain()) == 2
    assert worker.store.failed == 1
    worker.exchange()
    assert worker.store.is_quiet


@pytest.mark.usefixtures("lobby")
def test_the_end_sees_the_lobby(join):
    """A worker that has nothing, and claims nothing, does not take the crawl for over."""
    worker, other = join(), join(capacity=0)
    fill(worker, 3)
    other.exchange()
    assert not other.store.is_still
    other.leave(over=True)
    assert not join().state.over


@pytest.mark.usefixtures("lobby")
def test_a_slot_of_one_worker_in_a_lobby(join, redis_server):
    """What another worker owns moves to a list of its slot, and is claimed by its owner only."""
    one, other = (join(capacity=1, BLOOM_REDIS_SLOT_WORKERS=1) for _ in range(2))
    fill(one, 1, 4)
    request = one.next()
    assert other.next() is None
    assert not redis_server.command("EXISTS", f"{one.key}:lobby:0")
    one.store.done(request)
    assert one.drain() == ["0-2", "0-1", "0-0"]


def test_owners_leave_in_time(join, redis_server):
    """The hash holds those of the last time, and a part of those before."""
    worker = join(capacity=200, BLOOM_REDIS_SLOT_WORKERS=1)
    worker.store._policy = replace(worker.policy, keeps_slot=1)
    owners = f"{worker.key}:owners"
    old = """
        for at = 1, 4000 do
          redis.call('HSET', KEYS[1], 'old' .. at, cmsgpack.pack({'w', 1}))
        end
    """
    redis_server.command("EVAL", old, 1, owners)
    for first in range(0, 3000, 100):
        for slot in range(first, first + 100):
            worker.enqueue(f"{slot}", slot=f"s{slot}")
        assert len(worker.drain()) == 100
    assert redis_server.command("HLEN", owners) < 2500
