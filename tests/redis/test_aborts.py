"""Scripts that fail at a command, and are run again: each keeps what it has written. By day they
fail at every fifth of their commands, from one on that the seed decides."""

import time
from dataclasses import replace
from types import MappingProxyType

import pytest

from scrapy_bloom.crawl.choice import Filter
from scrapy_bloom.redis.desk import RedisDesk
from scrapy_bloom.redis.scripts import CHANGE, COMMIT, OPEN_CRAWL
from scrapy_bloom.redis.status import CrawlReader
from tests.crawl.engine import name_of
from tests.redis.workers import (
    FIFO,
    LEASE,
    capped,
    fail_all,
    fill,
    findings_of,
    let_pass,
    lobby_from,
    store_pages,
    waiting,
)
from tests.seeded import seed_of

pytestmark = pytest.mark.usefixtures("few_shards")

SEED = seed_of("ABORT_SEED")
STEP = 5


class Abort:
    """Lets a script fail at its command `at`, once; `happened` says whether it has one."""

    def __init__(self, at):
        self.at, self.happened = at, False

    def next_call(self, worker, check=lambda: None, *, only=True):
        """Let the next call of a worker fail, or all; `check` is what must be true then."""

        def attempt(arguments):
            worker.sender._attempt = worker.call if only else attempt
            self.run(worker, arguments)
            check()
            return worker.call(arguments)

        worker.sender._attempt = attempt

    def run(self, worker, arguments, script=COMMIT):
        """Run a script that fails."""
        self.happened = worker.abort(arguments, self.at, script)


def in_budget(worker, names, most):
    """Require that of these all are fetched or over the budget, which has lost one at most."""
    found, left = {*worker.drain()}, {*capped(worker)}
    assert found | left == {*names}
    assert len(found) in (most - 1, most)


def pushes(join, abort, limits=MappingProxyType({"*": 4}), **options):
    """Requests with a budget, each new or a start request, and counted before it is there."""
    worker = join(BLOOM_BUDGET={**limits})

    def require_counts():
        counts = worker.client.call("hmget", f"{worker.key}:counted:0", "example.com", "\0*/?")
        pending = waiting(worker.client, worker.key).total()
        assert pending <= int(counts[0] or 0)
        assert counts[1] == (counts[0] if "*/?" in limits else None)

    abort.next_call(worker, require_counts)
    worker.enqueue_all("abcdefg", **options)
    worker.exchange()
    in_budget(worker, "abcdefg", 4)


def pushes_by_pattern(join, abort):
    """The same in a slot and a pattern, which are counted at once, or in neither."""
    pushes(join, abort, {"*": 9, "*/?": 4})


def pushes_unfiltered(join, abort):
    """The same past the filter."""
    pushes(join, abort, dont_filter=True)


def claims_of_a_lobby(join, abort):
    """A call claims some of a lobby, and moves others to the lists of their slots."""
    worker = join(**FIFO)
    worker.store._policy = replace(worker.policy, claims_per_slot=1)
    fill(worker, 2, 3)
    abort.next_call(worker)
    assert {*worker.drain()} == {f"{slot}-{number}" for slot in range(2) for number in range(3)}
    assert worker.store.is_quiet


def gives_back(join, abort):
    """What a dead worker held is there again."""
    dead, finder = join(), join()
    dead.enqueue_all("abc")
    dead.next()
    dead.die()
    abort.next_call(finder)
    assert {*finder.drain()} == {*"abc"}


def fails(join, abort):
    """A failure is kept."""
    worker = join()
    worker.enqueue("page")
    worker.fail(worker.next())
    abort.next_call(worker)
    worker.exchange()
    assert [name_of(each) for each in worker.failed.requests()] == ["page"]


def counts_what_waits(join, abort):
    """Too little, perhaps, and never too much."""
    dead = join()
    dead.enqueue_all(range(9))
    dead.next()
    dead.die()
    worker = join()
    worker.enqueue("more")
    abort.next_call(worker)
    worker.exchange()
    reader = CrawlReader(worker.client, worker.key)
    there = reader.pending().by_slot.total() + reader.look().quarantined
    assert reader.look().waiting <= there


def is_asked_for_a_dictionary(join, abort):
    """No request is there without the dictionary that it needs."""
    worker = join()
    worker.teach()
    names = worker.client.call("hkeys", f"{worker.key}:crawl")
    gone = [each for each in names if each.startswith(b"dictionar")]
    worker.client.call("hdel", f"{worker.key}:crawl", *gone)
    worker.store.flush()
    store_pages(worker, 20, 2)
    check = lambda: findings_of(worker) == [] or pytest.fail("unsound")  # noqa: E731
    abort.next_call(worker, check, only=False)
    worker.exchange()
    assert {*worker.client.call("hkeys", f"{worker.key}:crawl")} >= {*gone}


def moves(what):
    """Return the story of a request that is due, parks, comes back, is released or returned: it is
    where workers find it, always, and comes in the end, perhaps twice."""

    def story(join, abort):
        worker = join(capacity=1)
        key, server = worker.key, worker.client.call
        worker.enqueue("page", 1000 if what == "due" else None, slot="slot")
        while what != "due" and not worker.store.claims.all:
            worker.exchange()
        if what != "returned":
            worker.leave()
            worker = join(capacity=1)
        # an aborted call may have taken the one request that goes first
        worker.store._policy = replace(worker.policy, longest_probe=50)
        if what in ("comes back", "released"):
            worker.store.hold("slot", 1000, 1)
            worker.exchange()
        if what in ("parks", "returned"):
            worker.store.hold("slot", 0.05, 1)
        if what == "released":
            worker.store.release("slot")
        if what in ("due", "comes back"):
            let_pass(worker, 1000)

        def require_it():
            in_ring = b"slot" in server("lrange", f"{key}:slots:0", 0, -1)
            is_named = in_ring and b"0" in server("zrange", f"{key}:priorities", 0, -1)
            is_parked = b"0:slot" in server("zrange", f"{key}:parked", 0, -1)
            in_list = server("llen", f"{key}:pending:0:slot") and (is_named or is_parked)
            is_claimed = server("hlen", f"{key}:claims:{worker.store.worker}")
            assert in_list or is_claimed or server("zcard", f"{key}:later")

        abort.next_call(worker, require_it)
        worker.exchange()
        until = time.monotonic() + 60
        while worker.next() is None:
            assert time.monotonic() < until

    story.__name__ = what.replace(" ", "_")
    return story


def delays(join, abort):
    """A resend is later and not sooner, also if the clock was set back; it is there once."""
    worker, dues = join(), []

    def look():
        found = worker.client._redis.zrange(f"{worker.key}:later", 0, -1, withscores=True)
        assert len(found) <= 1
        for member, due in found:
            dues.append(due + 10_000)
            worker.client.call("zadd", f"{worker.key}:later", {member: dues[-1]})

    abort.next_call(worker, look)
    worker.enqueue("page", 0.05)
    worker.exchange()
    for _, due in worker.client._redis.zrange(f"{worker.key}:later", 0, -1, withscores=True):
        assert due >= max(dues, default=0)
    let_pass(worker, 60)
    assert worker.drain() == ["page"]


def retries(join, abort, place="failed"):
    """What has failed in a round, or was over its budget, is asked again within the next one's."""
    worker = join(BLOOM_BUDGET={"*": 2})
    worker.enqueue_all("abcd")
    asked = fail_all(worker) if place == "failed" else worker.drain()
    worker.exchange()
    worker.leave(over=True)
    worker = join(BLOOM_REDIS_ROUND="two", BLOOM_BUDGET={"*": 4})
    arguments = ["capped:example.com", "retry", "1", 4]
    if place == "failed":
        fields = worker.client.call("hkeys", f"{worker.key}:failed")
        arguments = [place, "retry", "1", "", *(part for each in fields for part in (each, "1"))]
    abort.run(worker, arguments, CHANGE)
    worker.failed_at_start.retry()
    found = {*fail_all(worker)}
    assert len(found) in (1, 2)
    left = {name_of(each) for each in worker.failed.requests()}
    assert found | left >= ({*"ab"} if place == "failed" else {*"cd"})
    assert place == "failed" or found | {*asked} | {*capped(worker)} == {*"abcd"}


def retries_what_is_capped(join, abort):
    """The same of what was over the budget."""
    retries(join, abort, "capped")


def sets_a_budget(before):
    """Return the story of a start with another budget: the next one sets its own and counts all."""

    def story(join, abort):
        worker = join(BLOOM_BUDGET=before)
        worker.enqueue("a")
        assert worker.drain() == ["a"]
        worker.enqueue("b", slot="other")
        worker.leave()
        generation = worker.dupefilter.shared.header.generation
        for is_counted in ("", "1"):
            arguments = (generation, LEASE, "", "", "", '{"*": 3}', is_counted)
            abort.run(worker, arguments, OPEN_CRAWL)
        worker = join(BLOOM_BUDGET={"*": 3})
        worker.enqueue_all("cdef")
        # without a budget what was fetched was not counted
        assert sorted(worker.drain()) == (["b", *"cd"] if before else ["b", *"cde"])

    story.__name__ = f"sets_a_budget_after_{len(before)}"
    return story


def begins_a_round(join, abort):
    """Its start requests are asked again, though the last round has taken them."""
    worker = join()
    worker.start("page", b"mark")
    assert worker.drain() == ["page"]
    worker.leave(over=True)
    generation = worker.dupefilter.shared.header.generation
    abort.run(worker, (generation, LEASE, "two", "", "", "{}", ""), OPEN_CRAWL)
    worker = join(BLOOM_REDIS_ROUND="two")
    worker.start("page", b"mark")
    assert worker.drain() == ["page"]


def drops(action, place):
    """Return the story of what an operator drops, by slot or one by one, or lets fail."""

    def story(join, abort):
        worker = join(**FIFO)
        worker.enqueue_all([f"one{n}" for n in range(4)], slot="one")
        worker.enqueue_all([f"two{n}" for n in range(4)], slot="two")
        worker.exchange()
        worker.leave()
        worker = join(**FIFO)
        desk, chosen = RedisDesk(worker.client, worker.key), Filter(slots=["one"])
        if place == "list":
            chosen = Filter(urls=["*[02]"])
        run = RedisDesk._run

        class Aborted(RedisDesk):
            def _run(self, script, *arguments):
                if script is CHANGE:
                    abort.run(worker, arguments, script)
                return run(self, script, *arguments)

        gone = {f"one{n}" for n in range(4)}
        if place == "list":
            gone = {f"{slot}{n}" for slot in ("one", "two") for n in (0, 2)}
        everything = {f"{slot}{n}" for slot in ("one", "two") for n in range(4)}
        Aborted(worker.client, worker.key).change(chosen, action)
        desk.change(chosen, action)
        assert findings_of(worker) == []
        fetched, failed = {*worker.drain()}, {name_of(each) for each in worker.failed.requests()}
        assert fetched | failed == (everything if action == "fail" else everything - gone)
        assert worker.store.is_quiet

    story.__name__ = f"{action}s_{place}"
    return story


MOVES = ("due", "parks", "comes back", "released", "returned")
STORIES = [
    *(
        pushes,
        pushes_unfiltered,
        pushes_by_pattern,
        claims_of_a_lobby,
        gives_back,
        fails,
        counts_what_waits,
        delays,
    ),
    *(is_asked_for_a_dictionary, *map(moves, MOVES), retries, retries_what_is_capped),
    *map(sets_a_budget, ({}, {"*": 1}, {"*": 5, "example.com": 9})),
    begins_a_round,
    *(drops("drop", "slot"), drops("drop", "list"), drops("fail", "list")),
]


def tell(join, server, story, positions):
    """Tell a story with a failure at each of these commands; return how many there were."""
    happened = 0
    for at in positions:
        server.command("FLUSHALL")
        abort = Abort(at)
        story(join, abort)
        happened += abort.happened
        if not abort.happened and at > 30:
            break
    return happened


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_a_script_that_fails_on_the_way(join, redis_server, monkeypatch, story):
    """It is run again, and nothing is lost."""
    lobby_from(monkeypatch, {claims_of_a_lobby: 0, STORIES[-1]: 2, STORIES[-2]: 2}.get(story, 256))
    step = 1 if story is begins_a_round else STEP  # it has few commands
    assert tell(join, redis_server, story, range(1 + SEED % step, 400, step))


@pytest.mark.torture
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_a_script_that_fails_at_each_command(join, redis_server, monkeypatch, story):
    """The same at all of them, with a lobby and without."""
    for slots in (0, 2, 256):
        with monkeypatch.context() as patch:
            lobby_from(patch, slots)
            assert tell(join, redis_server, story, range(1, 400))
