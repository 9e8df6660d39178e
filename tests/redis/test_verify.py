"""A crawl with something of each kind: what `verify` finds where a key is damaged, what a look
tells, and that nothing is left when it is removed."""

import re
from functools import partial

import pytest
from scrapy import Request

from scrapy_bloom import SharedFilterError
from scrapy_bloom.redis.lifecycle import remove_queue
from scrapy_bloom.redis.scripts import VERIFY_PLACE
from scrapy_bloom.redis.status import CrawlReader
from scrapy_bloom.redis.verify import queue_findings
from tests.redis.workers import FIFO, fill, findings_of, let_pass, lobby_from, store_pages

pytestmark = pytest.mark.usefixtures("few_shards")
QUARANTINED = "return redis.call('RPUSH', KEYS[1], cmsgpack.pack({'0', 'lone', '2' .. ARGV[1], 0}))"


@pytest.fixture
def rejoin(join):
    """Return a function that makes a worker of this crawl."""
    return partial(join, BLOOM_BUDGET={"over": 1, "more": 1}, **FIFO)


@pytest.fixture
def worker(rejoin, monkeypatch):
    """A worker of a crawl with something of each kind."""
    lobby_from(monkeypatch, 3)
    monkeypatch.setattr("scrapy_bloom.redis.status.READ_AT_ONCE", 2)
    worker = rejoin()
    worker.teach()
    fill(worker, 5, 5)
    store_pages(worker, 20, 3)
    worker.enqueue_all("xyz", slot="over")
    names = worker.codec.budget.names("over", "http://example.com/lost", ())
    worker.store.count(Request("http://example.com/lost"), "over", names, print)
    worker.enqueue_all("vw", slot="more")
    worker.enqueue("late", 500_000, slot="late")
    worker.send(["h1", "h2"], slot="held", priority=5)
    worker.fail(worker.next())
    worker.store.hold("held", 1000, 1)
    worker.exchange(2)
    worker.taken = worker.next()
    payload = worker.codec.dump(worker.taken).payload
    worker.client._redis.eval(QUARANTINED, 1, f"{worker.key}:quarantined", payload)
    worker.client.call("hincrby", f"{worker.key}:crawl", "waiting", 1)
    assert findings_of(worker) == []
    return worker


def run(worker, command):
    """Run a command on the crawl, in which k is its key; return the answer."""
    (name,) = worker.codec.dictionaries.texts
    words = command.format(k=worker.key, name=name, worker=worker.store.worker).split(" ")
    return worker.client.call("execute_command", *words)


DAMAGES = [
    ("RPUSH {k}:lobby:0 x", "1 request of 'lobby:0' cannot be read"),
    ("RPUSH {k}:lobby:0 s9\0x", "1 request of 'lobby:0' cannot be read"),
    ("RPUSH {k}:quarantined x", "1 quarantined request cannot be read"),
    ("RPUSH {k}:capped:over 0\0", "1 request of 'capped:over' cannot be read"),
    ("ZADD {k}:later 1e15 \0\0\0\0damaged", "1 delayed request cannot be read"),
    ("HSET {k}:failed 7 x", "1 failed request cannot be read"),
    ("HSET {k}:claims:{worker} 700 x", "1 claim of .* cannot be read"),
    ("HSET {k}:claims:dead 700 x", "1 claim of dead cannot", "1 claim of dead, which is none"),
    ("ZREM {k}:capped more", "1 request of 'capped:more': its slot is not in 'capped'"),
    ("ZREM {k}:priorities 0", "'lobby:0': no worker finds", "'pending:0:.*': no worker finds"),
    ("DEL {k}:parked", "'pending:-10:held': no worker finds"),
    ("ZADD {k}:parked 1 junk", "'junk' in 'parked', 'priorities' or 'lobby:' is no priority"),
    ("HSET {k}:crawl over 1", "the crawl is over, but something waits or is claimed"),
    ("SADD {k}:busy stranger", "1 worker at work without a lease: the crawl has no end"),
    ("SADD {k}:starting stranger", "1 worker at work without a lease"),
    ("HSET {k}:crawl id other", "the queue"),
    ("HSET {k}:crawl dictionary:{name} x", "the dictionary .* is damaged: requests that need"),
    ("HDEL {k}:crawl dictionary:{name}", "requests? .*cannot be read$", "dictionary .* is gone"),
]


@pytest.mark.parametrize(("command", "findings"), [(first, rest) for first, *rest in DAMAGES])
def test_damage_is_found(worker, command, findings):
    """Each in a line."""
    run(worker, command)
    found = findings_of(worker)
    matching = [[bool(re.search(each, line)) for line in found] for each in findings]
    assert all(map(any, matching)), found
    assert all(map(any, zip(*matching, strict=True))), found


@pytest.mark.parametrize("place", ["lobby:0", "later", "quarantined", "pending:-10:held"])
def test_a_request_that_is_gone_is_missed(worker, place):
    """When its crawl has no worker."""
    worker.leave()
    assert run(worker, f"{'ZPOPMIN' if place == 'later' else 'LPOP'} {{k}}:{place}")
    missed = r"\d+ requests wait, and \d+ should: 1 request is gone"
    assert re.fullmatch(missed, findings_of(worker)[0])


def test_a_sound_crawl_is_counted(worker):
    """In one line, by what waits, is claimed and has failed; by a look, by priority and slot, in
    lists, rings, lobbies and what is parked."""
    (finding,) = queue_findings(worker.client, worker.key)
    reader = CrawlReader(worker.client, worker.key)
    found, crawl = reader.pending(), reader.look()
    assert finding.sound
    first = run(worker, "LINDEX {k}:slots:0 0").decode()  # added while the rest was read, perhaps
    assert worker.client.run(VERIFY_PLACE, [worker.key], f"pending:0:{first}") == 0
    figures = [int(each) for each in re.findall(r"(\d+) (?:waiting|claimed|failed)", finding.text)]
    assert figures == [crawl.waiting, crawl.in_flight, crawl.failed]
    assert found.by_slot.total() + crawl.later + crawl.quarantined == crawl.waiting
    assert found.counts[5] == {"held": 2}
    assert (crawl.later, crawl.held, crawl.quarantined) == (1, 1, 1)
    assert 499_900 < crawl.next_due <= 500_000
    worker.die()
    assert "has a worker (1 worker is dead" in next(queue_findings(worker.client, worker.key)).text


def drain(worker, seconds):
    """Fetch all that a worker gets while time goes by; return how much."""
    fetched = 0
    for _ in range(5):
        let_pass(worker, seconds)
        fetched += len(worker.drain())
    return fetched


LISTS = ("pending:0:example.com", "slots:0", "quarantined", "lobby:0", "later")


@pytest.mark.parametrize("lost", [*LISTS, "parked", "holds"])
def test_what_was_evicted_is_no_end(worker, rejoin, lost):
    """Each worker is told that something is gone, but for holds: what was held is asked then."""
    waiting = worker.store.waiting + len(worker.store.claims.all)
    assert run(worker, f"DEL {{k}}:{lost}") == 1
    worker.store.done(worker.taken)
    if lost == "holds":
        assert drain(worker, 0) == waiting - 2  # one is late, and one was handed out before
        return
    for each in (worker, rejoin()):
        drain(each, 300_000)
        assert each.is_gone
        assert not each.store.is_quiet


KEPT = ("priorities", "quarantined", "failed", "later", "parked", "capped")


@pytest.mark.parametrize("left", KEPT)
def test_requests_without_their_crawl(worker, rejoin, left):
    """No worker can read them: a new crawl is refused, and they stay as they are."""
    for each in {"crawl", *KEPT} - {left}:
        run(worker, f"DEL {{k}}:{each}")
    with pytest.raises(SharedFilterError, match="has requests left, and no crawl"):
        rejoin()
    assert run(worker, f"EXISTS {{k}}:{left}")
    assert not run(worker, "EXISTS {k}:crawl")


@pytest.mark.parametrize("name", ["parked", "priorities", "slots:0", "lobby:0", "workers"])
def test_a_damaged_crawl_can_be_removed(worker, redis_server, name):
    """Whatever is in the place of a key."""
    run(worker, f"SET {{k}}:{name} x")
    while remove_queue(worker.client, worker.key):
        pass
    assert redis_server.names(f"{worker.key}:{name}") == []


def test_of_a_crawl_that_is_removed_nothing_is_left(worker, redis_server):
    """But what is not the crawl's."""
    filters = {name for name in redis_server.names(worker.key) if f"{worker.key}:" not in name}
    foreign = {f"{worker.key}:{name}" for name in ("start:urls", "failed:mine", "other", "pending")}
    for each in foreign:
        redis_server.command("SET", each, "x")
    assert remove_queue(worker.client, worker.key) > 15
    left = {*redis_server.names(worker.key)} - filters
    assert {each for each in left if not re.search(r"}:\d+(:\d+)?$", each)} == foreign
    redis_server.command("DEL", *foreign)
