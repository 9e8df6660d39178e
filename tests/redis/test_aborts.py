"""Scripts that fail before a write, and are run again: each keeps what it has written. By day they
fail at every third of their writes, from one on that the seed decides. What a failure may do to
requests on their way through a crawl is in test_stories."""

from functools import partial

import pytest

from scrapy_bloom.crawl.choice import Filter
from scrapy_bloom.redis.scripts import CHANGE, OPEN_CRAWL
from tests.redis import workers
from tests.redis.workers import LEASE, capped, failing_desk, findings_of
from tests.seeded import seed_of

pytestmark = pytest.mark.usefixtures("few_shards")

SEED = seed_of("ABORT_SEED")


class Abort:
    """Lets a script fail before its write `at`, once; `happened` says whether it has so many."""

    def __init__(self, at):
        self.at, self.happened = at, False

    def next_call(self, worker, check, *, only=True):
        """Let the next call of a worker fail, or all; `check` is what must be true then."""

        def attempt(arguments):
            worker.sender._attempt = worker.call if only else attempt
            self.happened = worker.abort(arguments, self.at)
            check()
            return worker.call(arguments)

        worker.sender._attempt = attempt
        worker.exchange()

    def run(self, worker, arguments, script):
        self.happened = worker.abort(arguments, self.at, script)


def pushes(join, abort, **options):
    """Each request with a budget counts in its slot and its pattern before it is there."""
    worker = join(BLOOM_BUDGET={"*": 9, "*/?": 4})

    def require_counts():
        counts = worker.client.call("hmget", f"{worker.key}:counted:0", "example.com", "\0*/?")
        pending = workers.waiting(worker.client, worker.key).total()
        assert pending <= int(counts[0] or 0)
        assert counts[1] == counts[0]

    worker.enqueue_all("abcdefg", **options)
    abort.next_call(worker, require_counts)
    found, left = {*worker.drain()}, {*capped(worker)}
    assert found | left == {*"abcdefg"}
    assert len(found) in (3, 4)


def is_asked_for_a_dictionary(join, abort):
    """No request is there without the dictionary that it needs."""
    worker = join()
    worker.teach()
    names = worker.client.call("hkeys", f"{worker.key}:crawl")
    gone = [each for each in names if each.startswith(b"dictionar")]
    worker.client.call("hdel", f"{worker.key}:crawl", *gone)
    worker.store.flush()
    workers.store_pages(worker, 20, 2)
    check = lambda: findings_of(worker) == [] or pytest.fail("unsound")  # noqa: E731
    abort.next_call(worker, check, only=False)
    assert {*worker.client.call("hkeys", f"{worker.key}:crawl")} >= {*gone}


def delays(join, abort):
    """A resend is later and not sooner, also if the clock was set back; it is there once."""
    worker, dues = join(), []

    def look():
        found = worker.client._redis.zrange(f"{worker.key}:later", 0, -1, withscores=True)
        assert len(found) <= 1
        for member, due in found:
            dues.append(due + 10_000)
            worker.client.call("zadd", f"{worker.key}:later", {member: dues[-1]})

    worker.enqueue("page", 0.05)
    abort.next_call(worker, look)
    for _, due in worker.client._redis.zrange(f"{worker.key}:later", 0, -1, withscores=True):
        assert due >= max(dues, default=0)
    workers.let_pass(worker, 60)
    assert worker.drain() == ["page"]


def opens(worker, abort, *arguments):
    generation = worker.dupefilter.shared.header.generation
    abort.run(worker, (generation, LEASE, *arguments), OPEN_CRAWL)


def begins(join, abort):
    """Its start requests are asked again, though the last round has taken them."""
    worker = join()
    worker.start("page", b"mark")
    assert worker.drain() == ["page"]
    worker.leave(over=True)
    opens(worker, abort, "two", "", "", "{}", "")
    worker = join(BLOOM_REDIS_ROUND="two")
    worker.start("page", b"mark")
    assert worker.drain() == ["page"]


def sets_a_budget(join, abort, before):
    """The next start sets its own and counts all; without one what was fetched was not counted."""
    worker = join(BLOOM_BUDGET=before)
    worker.enqueue("a")
    assert worker.drain() == ["a"]
    worker.enqueue("b", slot="other")
    worker.leave()
    for is_counted in ("", "1"):
        opens(worker, abort, "", "", "", '{"*": 3}', is_counted)
    worker = join(BLOOM_BUDGET={"*": 3})
    worker.enqueue_all("cdef")
    assert sorted(worker.drain()) == ["b", *("cd" if before else "cde")]


def lets_fail(join, abort):
    """What an operator lets fail is where it was, or has failed."""
    worker = join()
    worker.send("abcd")
    worker.leave()
    worker = join()

    def fail(script, arguments):
        if script is CHANGE:
            abort.run(worker, arguments, script)

    failing_desk(worker, fail).change(Filter(urls=["*/[ac]"]), "fail")
    failed = worker.failed.names()
    assert {*worker.drain(), *failed} == {*"abcd"}


STORIES = {
    "lets fail": lets_fail,
    "pushes": pushes,
    "pushes unfiltered": partial(pushes, dont_filter=True),
    "is asked for a dictionary": is_asked_for_a_dictionary,
    "delays": delays,
    "begins a round": begins,
    "sets a budget": partial(sets_a_budget, before={"*": 5, "example.com": 9}),
    "sets the first budget": partial(sets_a_budget, before={}),
}


@pytest.mark.parametrize("by_day", [True, pytest.param(False, marks=pytest.mark.torture)])
@pytest.mark.parametrize("name", STORIES)
def test_a_script_that_fails_on_the_way(join, redis_server, name, by_day):
    """It is run again, and nothing is lost."""
    few = name.startswith(("begins", "sets"))
    step = 5 if by_day and not few else 1  # an entry has three writes, or four
    happened = 0
    for at in range(1 + SEED % step, 400, step):
        redis_server.command("FLUSHALL")
        abort = Abort(at)
        STORIES[name](join, abort)
        happened += abort.happened
        if not abort.happened and at > 15:
            break
    assert happened
