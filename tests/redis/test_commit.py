"""The script of a commit on a real server: leases, the rules of a claim, and what ends a crawl."""

import json
import re
import time

import pytest
from scrapy import Request

from scrapy_bloom import SharedFilterError
from scrapy_bloom.redis.push import Pusher
from scrapy_bloom.redis.scripts import COMMIT, HEARTBEAT
from scrapy_bloom.redis.status import CrawlReader
from tests.crawl.engine import name_of
from tests.redis.workers import LEASE, StoreWorker, change_script, crawl, waiting

pytestmark = pytest.mark.usefixtures("few_shards")


def beat(worker):
    """Let the heartbeat of a worker come; return the answer."""
    arguments = worker.dupefilter.shared.generation, worker.store.worker, LEASE
    return worker.client.run(HEARTBEAT, [worker.key], *arguments)[0]


def test_a_lost_lease_is_fenced(join):
    """Its claims are another's, and what it had not sent it sends under a new name."""
    sleeper, other = join(), join()
    sleeper.enqueue("page")
    request, name = sleeper.next(), sleeper.store.worker
    assert beat(sleeper) == b"done"
    sleeper.die()
    assert beat(sleeper) == b"fenced"
    again = other.next()
    assert again.url == request.url
    assert other.dupefilter.request_seen(again)  # also as what a redirect leads to
    assert beat(sleeper) == b"fenced"
    assert join().state.workers == 1
    sleeper.enqueue("child")
    sleeper.store.done(request)
    sleeper.exchange()
    assert (sleeper.fences, sleeper.store.worker != name) == (1, True)
    sleeper.exchange()
    assert [new for _, new in sleeper.heard] == [True, True]
    other.store.done(again)
    assert name_of(sleeper.next() or other.next()) == "child"


def test_what_a_refused_call_has_counted_is_told_again(worker):
    """The figures of a crawl miss nothing of a worker that has lost its lease."""
    worker.exchange()
    worker.store._counted = lambda: (3, 2, 1, 0)
    worker.die()
    worker.exchange(2)
    assert worker.fences == 1
    names = ("pages", "items", "duplicates")
    assert worker.client.call("hmget", f"{worker.key}:crawl", *names) == [b"3", b"2", b"1"]


def test_who_has_nothing_left_asks_for_more_at_once(worker):
    """And not when its timer comes."""
    worker.exchange()
    worker.store._last_call -= 1
    assert worker.store.next() is None
    assert worker.store.calls == 2


@pytest.mark.parametrize(("away", "fenced"), [(29, 1), (31, 0), (90, 0)])
def test_an_outage_fences_nobody(join, redis_server, away, fenced):
    """When no script has run for half a lease, all leases grow by that gap."""
    workers = [join(), join()]
    for worker in workers:
        worker.exchange()
    redis_server.command("HINCRBY", f"{worker.key}:crawl", "heard", -1000 * away)
    for each in workers:  # half a lease of it was over when Redis went away
        gone = -1000 * max(61, away + 30)
        redis_server.command("ZINCRBY", f"{each.key}:workers", gone, each.store.worker)
    for worker in workers:
        worker.exchange()
    assert [worker.fences for worker in workers] == [fenced] * 2


def test_the_end_of_a_crawl(join, redis_server):
    """It has none while a worker has a claim, whoever that is. The first to leave when nothing is
    left marks it, a push takes the mark back, and a crawl that is gone has none either."""
    one, other = join(), join()
    one.enqueue("page")
    request = one.next()
    other.exchange()
    assert not other.store.is_still
    one.store.done(request)
    one.store.hold("empty", 99, 1)
    for each in (one, other):
        each.exchange()
        assert each.store.is_quiet
    one.leave(over=True)
    assert other.desk.hold(["empty"], None) == 1
    assert join().state.over
    other.send(["late"])
    assert not join().state.over
    assert other.drain() == ["late"]
    redis_server.command("DEL", f"{other.key}:crawl")
    other.exchange()
    assert other.is_gone
    assert not other.store.is_quiet


@pytest.mark.parametrize("field", ["round", "began"])
def test_a_crawl_that_lacks_a_field_is_told(join, redis_server, field):
    """With its key, by a look and by who joins where it needs it."""
    made = join()
    redis_server.command("HDEL", f"{made.key}:crawl", field)
    with pytest.raises(SharedFilterError, match=rf"{re.escape(made.key)}:crawl .* is damaged"):
        CrawlReader(made.client, made.key).look()
    if field == "round":
        with pytest.raises(SharedFilterError, match=r":crawl .* is damaged"):
            join()


@pytest.mark.parametrize("starts", ["Fifo", "Lifo"])
def test_order(join, starts):
    """As Scrapy has it: by priority, the newest first, then start requests, the oldest first unless
    set otherwise; also where a request of a higher priority is claimed later."""
    worker = join(SCHEDULER_START_DISK_QUEUE=f"scrapy.squeues.Pickle{starts}DiskQueue")
    worker.enqueue("low", priority=-1)
    worker.enqueue_all(("start1", "start2"), meta={"is_start_request": True})
    worker.enqueue_all(("old", "new"))
    worker.enqueue("high", priority=3)
    order = ["start1", "start2"] if starts == "Fifo" else ["start2", "start1"]
    assert worker.drain() == ["high", "new", "old", *order, "low"]
    for name, priority in (("low2", -1), ("high2", 3)):
        worker.enqueue(name, priority=priority)
        worker.exchange(3)
    assert [name_of(worker.next()) for _ in range(2)] == ["high2", "low2"]


def test_slots_take_turns(worker):
    """Claims go round the slots, and no worker gets more of a slot than its share."""
    for number in range(30):
        worker.enqueue(f"{number}", slot="ab"[number % 10 == 0])
    for _ in range(12):
        worker.exchange()
        while worker.store.pending:
            worker.store.next()
    slots = [claim.slot for claim in worker.store.claims.all.values()]
    assert sorted(slots) == ["a"] * 8 + ["b"] * 3
    assert sorted(slots[:4]) == [*"aabb"]


@pytest.mark.parametrize("is_dead", [True, False])
def test_a_slot_of_one_worker(join, redis_server, is_dead):
    """With BLOOM_REDIS_SLOT_WORKERS = 1 no other worker gets a request of its slot. Where the clock
    was set back its owner keeps it for as long as usual, and not at all when dead."""
    one, other = (join(BLOOM_REDIS_SLOT_WORKERS=1) for _ in range(2))
    one.enqueue_all(range(9), slot="only")
    assert one.next() is not None
    assert other.next() is None
    other.enqueue("x", slot="another")
    assert name_of(other.next()) == "x"
    hour, owners = 3_600_000, f"{one.key}:owners"
    ahead = """
        local who, till = unpack(cmsgpack.unpack(redis.call('HGET', KEYS[1], 'only')))
        redis.call('HSET', KEYS[1], 'only', cmsgpack.pack({who, till + ARGV[1]}))
        return tostring(till + ARGV[1])
    """
    until = float(redis_server.command("EVAL", ahead, 1, owners, hour))
    redis_server.command("ZINCRBY", f"{one.key}:workers", hour, one.store.worker)
    if is_dead:
        one.die()
    assert (other.next() is None) != is_dead
    if is_dead:
        return
    kept = [redis_server.command("EVAL", ahead, 1, owners, 0) for _ in range(2) if not other.next()]
    assert len({*kept}) == 1
    lease = redis_server.command("ZSCORE", f"{one.key}:workers", one.store.worker)
    assert max(float(kept[0]), float(lease)) < until - hour + 60_000
    redis_server.command("EVAL", ahead, 1, owners, -hour)
    assert other.next() is not None


def test_a_page_that_kills_its_workers(join):
    """Lost twice, it is handed out alone, and fails; a page that was lost with it does not."""
    first = join(BLOOM_REDIS_MAX_ATTEMPTS=2)
    first.enqueue_all(("poison", "good"))
    first.leave()
    alone = []
    for _ in range(12):
        worker = join(BLOOM_REDIS_MAX_ATTEMPTS=2)
        requests = [worker.next()]
        while worker.store.pending:
            requests.append(worker.store.next())
        alone.append([name_of(each) for each in requests if each])
        if alone[-1] == ["good"]:
            worker.store.done(requests[0])
            worker.exchange()
        elif alone[-1]:
            worker.die()
    assert sorted(alone[0]) == ["good", "poison"]
    assert (alone.count(["poison"]), alone.count(["good"])) == (2, 1)
    assert worker.failed.names() == ["poison"]
    assert worker.store.is_quiet


def test_a_page_that_was_lost_often_is_read(join):
    """Also more than nine times, with so many BLOOM_REDIS_MAX_ATTEMPTS, and beside no other."""
    busy = join(BLOOM_REDIS_MAX_ATTEMPTS=20)
    busy.enqueue("other")
    assert busy.next() is not None
    for lost in range(15):
        worker = join(BLOOM_REDIS_MAX_ATTEMPTS=20)
        if not lost:
            worker.enqueue("page")
        assert name_of(worker.next()) == "page"
        worker.die()
        assert not lost or busy.next() is None


MANY_CLAIMS = """
local record = redis.call('HVALS', KEYS[1])[1]
for number = 100, 99 + ARGV[1] do
  redis.call('HSET', KEYS[1], number, record)
  redis.call('SADD', KEYS[2], number)
end
"""


def with_many_claims(worker, count):
    """Give `worker` so many claims, which it has handed out."""
    worker.enqueue("page", dont_filter=True)
    assert worker.next() is not None
    names = (f"{worker.key}:{kind}:{worker.store.worker}" for kind in ("claims", "dispatched"))
    worker.client._redis.eval(MANY_CLAIMS, 2, *names, count - 1)


@pytest.mark.parametrize("leaves", [False, True])
def test_many_claims_come_back_in_portions(join, redis_server, leaves):
    """The crawl is not at rest before all are there; a worker that has left has lost none."""
    workers, finder, portions = [join(), join()], join(capacity=1), []
    for worker in workers:
        with_many_claims(worker, 600)
    for worker in workers:
        worker.leave() if leaves else worker.die()
    finder.store._observers.heard = lambda reply: portions.append(reply.reclaimed)
    for _ in range(10):
        finder.exchange()
        assert not finder.store.is_still
    assert max(portions) < 400
    assert (700 if leaves else 1199) < sum(portions) <= 1200  # each gives back some as it leaves
    assert finder.store.waiting + len(finder.store.claims.all) == 1200
    names = redis_server.names(f"{worker.key}:pending")
    losses = {redis_server.command("LINDEX", name, 0)[:1] for name in names}
    assert losses == ({b"0"} if leaves else {b"1"})
    assert not any(redis_server.names(each.store.worker) for each in workers)


def test_more_claims_than_lua_has_room_for(join):
    """Those of calls that were aborted: all of them come, in several replies."""
    worker = join(capacity=10_000)
    with_many_claims(worker, 9000)
    assert len([*iter(worker.next, None)]) == 8999


class KilledError(Exception):
    """The process dies between two calls."""


def test_a_kill_between_the_calls_of_a_commit(join):
    """Before the last of them the page is not acknowledged, and start() has not ended."""
    dying, other = join(), join()
    dying.store.start_done = False
    dying.enqueue("0")
    page = dying.next()
    calls = []

    def attempt(arguments):
        calls.append(arguments)
        if len(calls) > 1:
            raise KilledError
        return dying.call(arguments)

    dying.sender._attempt = attempt
    dying.enqueue_all(range(1, 121))
    dying.store.start_done = True
    dying.store.done(page)
    with pytest.raises(KilledError):
        dying.exchange()
    assert not join().state.start_done
    dying.die()
    assert crawl(other, lambda page: range(1, 121 * (page == 0))) == {*range(121)}


def test_more_is_done_than_a_call_can_tell(join):
    """By a worker that leaves: each page is acknowledged before, and the crawl ends."""
    worker = join(capacity=500)
    for number in range(450):
        worker.enqueue(str(number), slot=str(number % 60))
    held = [*iter(worker.next, None)]
    assert len(held) == 450
    for request in held:
        worker.store.done(request)
    worker.store.commit(())
    worker.leave(over=True)
    assert join().state.over


def test_a_worker_that_leaves_waits_so_long_for_an_answer(join, monkeypatch):
    """Then its lease has to run out."""
    worker, waits = join(), []
    monkeypatch.setattr(worker.sender, "wait", waits.append)
    assert not worker.store.leave(over=True, seconds=5)
    assert [0 < each <= 5 for each in waits] == [True]


@pytest.mark.parametrize("is_given_up", [False, True])
def test_a_rollback_keeps_what_no_call_has_acknowledged(join, is_given_up):
    """Pages of a commit whose hook fails come again, also while it waits for a call."""
    one, other = join(), join()
    one.enqueue("page")
    request = one.next()
    one.store.done(request)
    if is_given_up:
        one.store._call()
        one.store.commit(())
    one.store.rollback()
    one.leave()
    assert other.next().url == request.url


def test_who_pushes_gives_back_as_a_worker_does(join):
    """Nothing has failed before BLOOM_REDIS_MAX_ATTEMPTS, and all comes in its place."""
    first = join()
    first.enqueue_all(("old", "new"))
    first.leave()
    for expected in ("new", "new", "old", "new"):
        worker = join(capacity=1)
        request = worker.next()
        assert name_of(request) == expected
        if expected == "old":
            worker.store.done(request)
            worker.leave()
            continue
        worker.exchange()
        worker.die()
        pushed = f"http://example.com/{worker.store.worker}"
        assert worker.push_from_outside(pushed, priority=-1) == (1, 0, 0)
    assert worker.failed.requests() == []


def test_a_push_says_that_redis_has_gone_back(worker, redis_server, watch):
    """Before its last call: what it has pushed may be forgotten. One that fails leaves, too."""
    urls = [f"http://example.com/{number}" for number in range(60)]
    with pytest.raises(ValueError, match="Missing scheme"):
        worker.push_from_outside(*urls, "nonsense")
    assert not CrawlReader(worker.client, worker.key).look().workers
    workers = f"{worker.key}:workers"
    watch(Pusher, "leave", lambda pusher: redis_server.command("ZREM", workers, pusher._worker))
    with pytest.raises(SharedFilterError, match="may have forgotten what was pushed"):
        worker.push_from_outside("http://example.com/")


@pytest.mark.parametrize("is_killed", [False, True])
def test_who_leaves_gives_back(join, is_killed):
    """At once, in its place, without a loss; what was not sent is sent first, however much."""
    one, other = join(capacity=4), join(capacity=4)
    for name in "12345":
        one.enqueue(name)
        one.store.done(one.next())
    one.enqueue_all("abcd")
    one.next()
    if is_killed:
        one.die()
    else:
        one.enqueue_all((f"low{number}" for number in range(120)), priority=-1)
        assert one.store.leave(over=False, seconds=5)
        assert one.store.unsent == 0
    assert [name_of(other.next()) for _ in range(4)] == [*"dcba"]


def test_figures_are_noted_from_time_to_time(join, monkeypatch):
    """Here each quarter of an hour, and where the clock of the server was set back."""
    change_script(monkeypatch, COMMIT, ("age >= 1000", "age >= 1e6"))
    worker, told = join(), []
    notes = f"{worker.key}:progress"
    for milliseconds in (0, 0, -(10**6), 0, 10**5):
        for text in worker.client.call("lrange", notes, 0, 0):
            newest = json.loads(text)
            newest["time"] += milliseconds
            worker.client.call("lset", notes, 0, json.dumps(newest))
        worker.exchange()
        told.append(worker.client.call("llen", notes))
    assert told == [1, 1, 2, 2, 3]


def test_what_was_let_pass_is_sent_past_the_filter(join):
    """As a redirect to a page that was seen: also where another worker has sent it meanwhile."""
    worker, other = join(), join()
    page = Request("http://example.com/page")
    assert not worker.dupefilter.request_seen(page)
    other.send(["page"])
    worker.dupefilter.let_pass(worker.dupefilter.fingerprint(page))
    worker.store.push(page, ())
    assert worker.drain() + other.drain() == ["page"] * 2


def test_rounds(join):
    """Start requests are taken again in another BLOOM_REDIS_ROUND, what was seen stays seen. What a
    worker says before it has heard of that round is about its own: it ends nothing."""
    monday = [join(BLOOM_REDIS_ROUND="monday") for _ in range(3)]
    monday[0].start("start", b"1")
    monday[0].enqueue("page")
    monday[0].drain()
    for each in monday:
        each.exchange()
    monday[0].leave(over=True)
    assert join(BLOOM_REDIS_ROUND="monday").state.over
    tuesday = join(BLOOM_REDIS_ROUND="tuesday")
    assert (tuesday.state.over, tuesday.state.start_done) == (False, False)
    tuesday.store.start_done = False
    for each in (tuesday, monday[1], monday[1]):
        each.exchange()
        assert not join(BLOOM_REDIS_ROUND="tuesday").state.start_done
    tuesday.start("start", b"1")
    tuesday.send(["page"])
    assert [new for _, new in tuesday.heard] == [True, False]
    tuesday.store.start_done = True
    assert tuesday.drain() == ["start"]
    monday[2].leave(over=True)
    assert not join(BLOOM_REDIS_ROUND="tuesday").state.over


def test_a_filter_that_grows_meanwhile(join):
    """What meets a new layer is asked again, in its order; none of it is lost."""
    one, other = join(BLOOM_CAPACITY=64), join(BLOOM_CAPACITY=64)
    one.enqueue_all(range(600))
    one.send_all()
    other.enqueue_all(range(900))
    batches, batch = [], other.store._batch
    other.store._batch = lambda action: batches.append(batch(action)) or batches[-1]
    other.send_all()
    assert sum(new for _, new in other.heard) == 300
    for sent in batches:
        numbers = [entry.number for entry in sent.entries]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_filter_that_lost_a_layer_is_gone(join, redis_server, lost):
    """No worker takes the requests for new whose bits Redis has evicted."""
    one, other = join(BLOOM_CAPACITY=64), join(BLOOM_CAPACITY=64)
    one.enqueue_all(range(1200))
    one.send_all()
    for shard in one.dupefilter.shared.shards:
        if len(shard.counts) > lost + 1:
            redis_server.command("DEL", shard.keys[1 + lost])
    other.send(range(0, 1200, 24))
    assert other.is_gone
    assert not any(new for _, new in other.heard)


def test_full_memory_is_drained(own_server):
    """Acknowledging, renewing and leaving go on; nothing is claimed, and what is new waits."""
    refused = []

    def attempt(arguments):
        try:
            return other.call(arguments)
        except SharedFilterError as error:
            refused.append(str(error))
            own_server.command("CONFIG", "SET", "maxmemory", "0")

    one, third = (StoreWorker(own_server.url, "crawl", capacity=3) for _ in range(2))
    other = StoreWorker(own_server.url, "crawl", attempt)
    other.client.patience = 0
    one.enqueue_all(range(10))
    request, _ = one.next(), third.next()
    held, left = len(one.store.claims.all), waiting(one.client, one.key).total()
    own_server.command("CONFIG", "SET", "maxmemory", "1")
    one.store.done(request)
    one.exchange(2)
    assert one.store.last.full
    assert len(one.store.claims.all) == held - 1
    assert own_server.command("HLEN", f"{one.key}:claims:{one.store.worker}") == held - 1
    lease = own_server.command("ZSCORE", f"{one.key}:workers", one.store.worker)
    time.sleep(0.002)
    assert beat(one) == b"done"
    assert own_server.command("ZSCORE", f"{one.key}:workers", one.store.worker) > lease
    assert waiting(one.client, one.key).total() == left
    third.leave()
    assert waiting(one.client, one.key).total() == left + 3
    one.leave()
    other.send(["new"])
    assert "used memory > 'maxmemory'" in refused[0]
    names = {*other.drain()}
    assert len(names) == 10
    assert "new" in names
    other.close()
