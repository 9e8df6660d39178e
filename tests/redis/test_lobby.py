"""The lobby: the list that slots with few requests share, and the counters that say who has few."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.redis.test_later import lists
from tests.redis.workers import FIFO, fill, lobby_from

pytestmark = pytest.mark.usefixtures("few_shards", "lobby")


@pytest.fixture
def lobby(monkeypatch):
    """Slots share a lobby from the first one on."""
    lobby_from(monkeypatch, 0)


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


def test_slots_with_lists_and_the_lobby_share_what_is_claimed(join):
    """As if each of its entries were a slot, up to a thousand more than there are lists."""
    worker = join(capacity=1)
    fill(worker, 30, 10)
    worker.enqueue("last", priority=-1)
    first = worker.drain()[:90]
    shares = Counter(page.partition("-")[0] for page in first)
    assert len(shares) == 30
    assert max(shares.values()) < 10


@pytest.mark.parametrize("most", [1, 3])
def test_a_worker_gets_its_share_of_a_slot_from_the_lobby(join, redis_server, most):
    """As from a list; and without BLOOM_REDIS_SLOT_WORKERS no slot has an owner."""
    worker = join(capacity=9)
    worker.store._policy = replace(worker.policy, claims_per_slot=most)
    fill(worker, 2, 3)
    replies = []
    worker.store._observers.heard = replies.append
    worker.exchange()
    shares = Counter(claim.slot for claim in replies[0].claimed)
    assert shares == {"s0": most, "s1": most}
    assert not redis_server.command("EXISTS", f"{worker.key}:owners")


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


def test_a_slot_of_one_worker_in_a_lobby(join, redis_server):
    """What another worker owns moves to a list of its slot, and is claimed by its owner only."""
    one, other = (join(capacity=1, BLOOM_REDIS_SLOT_WORKERS=1) for _ in range(2))
    fill(one, 1, 4)
    request = one.next()
    assert other.next() is None
    assert not redis_server.command("EXISTS", f"{one.key}:lobby:0")
    one.store.done(request)
    assert one.drain() == ["0-2", "0-1", "0-0"]
