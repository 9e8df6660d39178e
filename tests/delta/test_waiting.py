"""Marks on their way from a crawl in Redis to the delta store."""

import re
import threading
from contextlib import suppress

import pytest
import redis as redis_py
from scrapy_bloom.delta.waiting import Carrier, carry_over, named, packed, unpacked

from scrapy_bloom.commands import main
from scrapy_bloom.delta import waiting
from scrapy_bloom.delta.redis_store import RedisDeltaStore
from scrapy_bloom.delta.settings import Lifetime
from scrapy_bloom.delta.table import Row
from scrapy_bloom.errors import SharedFilterError
from scrapy_bloom.job.failure import FailedRequest
from tests.commands.test_rights import DOCS, user
from tests.patience import wait_until
from tests.redis_backend.test_commit import aborted, raw
from tests.redis_backend.workers import StoreWorker, seeded

pytest_plugins = ["tests.redis_backend.fixtures"]
pytestmark = pytest.mark.usefixtures("few_shards")

NOON = 1_800_000_000.0


def key_of(number):
    """Return a key of a page."""
    return b"%020d" % number


def mark_of(request):
    """Return the mark of a page, which is called by its number."""
    return packed(Row(key_of(int(request.url.rpartition("/")[2])), NOON))


@pytest.fixture
def join(redis_server, key):
    """Return a function that makes a worker of the crawl at `key`, which marks for `key`, too."""
    made = []

    def make(attempt=None):
        worker = StoreWorker(redis_server.url, key)
        worker.store.delta_store = named(key, None)
        if attempt is not None:
            worker.sender._attempt = lambda arguments: attempt(worker, arguments)
        made.append(worker)
        return worker

    yield make
    for worker in made:
        worker.close()


@pytest.fixture
def store(redis_server, key, join):
    """The delta store for which the workers mark."""
    identity = join().dupefilter.shared.header.identity
    opened = RedisDeltaStore(redis_server.url, key, Lifetime(identity=identity), 5.0)
    opened.open()
    yield opened
    opened.close()


def do(worker, *numbers):
    """Push pages, and let the worker do them, each with its mark."""
    for number in numbers:
        worker.enqueue(str(number))
    while (request := worker.next()) is not None:
        worker.store.done(request)
        assert worker.store.mark_done(request, [mark_of(request)])
        worker.exchange()


def waits(worker):
    """Return the keys of the marks that wait in the crawl of `worker`."""
    found = worker.client.call("lrange", f"{worker.key}:delta_waiting", 0, -1)
    return [int(unpacked(mark)[0]) for mark in found]


def marked(store):
    """Return the keys in the delta store."""
    return sorted(int(key) for key, *_ in store.marks(None))


def test_a_mark_has_a_key_a_time_and_perhaps_a_digest():
    """Or a digest alone."""
    assert packed(Row(key_of(1), 1.5)) == key_of(1) + b"\x3f\xf8" + bytes(6)
    for row in (Row(key_of(1), NOON), Row(key_of(1), NOON, b"digest"), Row(key_of(1), None, b"d")):
        assert unpacked(packed(row)) == row


def test_a_page_is_marked_in_the_call_that_acknowledges_it(join):
    """Not before, once, and not if it has failed; a request that was in memory only is not sent."""
    worker = join()
    worker.enqueue("1")
    worker.enqueue("2")
    requests = [worker.next(), worker.next()]
    assert not worker.store.mark_done(requests[0], [mark_of(requests[0])])
    worker.store.done(requests[0])
    assert worker.store.mark_done(requests[0], [mark_of(requests[0]), packed(Row(key_of(7), NOON))])
    failed = FailedRequest(requests[1].url, "GET", "callback", 200, "", 1, 0.0, "")
    worker.store.fail(requests[1], failed)
    worker.store.mark_done(requests[1], [mark_of(requests[1])])
    assert waits(worker) == []
    worker.exchange()
    assert sorted(waits(worker)) == sorted([int(requests[0].url[-1]), 7])
    worker.exchange()
    assert len(waits(worker)) == 2


def test_a_mark_waits_for_what_its_page_has_yielded(join):
    """As the acknowledgement does: a call takes fifty entries."""
    worker = join()
    worker.enqueue("1")
    request = worker.next()
    for number in range(100, 160):
        worker.enqueue(str(number))
    worker.store.done(request)
    worker.store.mark_done(request, [mark_of(request)])
    seen = []
    attempt = worker.sender._attempt

    def look(arguments):
        answer = attempt(arguments)
        seen.append(
            (
                waits(worker),
                worker.client.call("hlen", f"{worker.key}:claims:{worker.store.worker}"),
            )
        )
        return answer

    worker.sender._attempt = look
    worker.exchange()
    worker.exchange()
    assert seen[0][0] == []
    assert seen[-1][0] == [1]


@pytest.mark.parametrize("seed", range(4))
def test_no_call_that_is_aborted_marks_what_it_has_not_acknowledged(join, seed):
    """At any command: what is marked is claimed no more. It is sent again, and marks nothing
    twice."""
    chance = seeded(seed)

    def attempt(worker, arguments):
        with suppress(redis_py.ResponseError):
            raw(worker, aborted(chance.randrange(1, 80)), arguments)
        claimed = worker.client.call("hkeys", f"{worker.key}:claims:{worker.store.worker}")
        assert {*claimed}.isdisjoint(of_claims())
        return worker.call(arguments)

    def of_claims():
        """Return the numbers of the claims of which marks have come, here in place of digests."""
        found = worker.client.call("lrange", f"{worker.key}:delta_waiting", 0, -1)
        return [unpacked(mark)[2] for mark in found]

    worker = join(attempt)
    for number in range(1, 20):
        worker.enqueue(str(number))
    while (request := worker.next()) is not None:
        claim = worker.store.claims.dispatched[request].encode()
        worker.store.done(request)
        worker.store.mark_done(request, [mark_of(request) + claim])
        worker.exchange()
    assert len(of_claims()) == len({*of_claims()}) > 5


def test_a_lost_reply_marks_nothing_twice(join):
    """The same call, sent again, gets the stored reply."""

    def attempt(worker, arguments):
        worker.call(arguments)
        return worker.call(arguments)

    worker = join(attempt)
    do(worker, 1, 2, 3)
    assert sorted(waits(worker)) == [1, 2, 3]


def test_who_has_lost_its_lease_marks_nothing(join, redis_server):
    """Whether a page was done before the worker has learnt of it or after: it is another worker's,
    which marks it."""
    sleeper, other = join(), join()
    sleeper.enqueue("1")
    sleeper.enqueue("2")
    early, late = sleeper.next(), sleeper.next()
    redis_server.command("ZADD", f"{sleeper.key}:workers", 1, sleeper.store.worker)
    again = [other.next(), other.next()]
    for request in (early, late):
        sleeper.store.done(request)
        assert sleeper.store.mark_done(request, [mark_of(request)])
        sleeper.exchange()
        assert (sleeper.fences, waits(other)) == (1, [])
    for request in again:
        other.store.done(request)
        other.store.mark_done(request, [mark_of(request)])
    other.exchange()
    assert sorted(waits(other)) == [1, 2]


def test_where_memory_is_full_what_is_done_is_marked(own_server):
    """As it is acknowledged: a claim that goes takes more than its mark."""
    worker = StoreWorker(own_server.url, "crawl")
    worker.store.delta_store = named("memory", None)
    worker.enqueue("1")
    request = worker.next()
    own_server.command("CONFIG", "SET", "maxmemory", "1mb")
    worker.store.done(request)
    worker.store.mark_done(request, [mark_of(request)])
    worker.exchange()
    assert waits(worker) == [1]
    worker.close()


def test_marks_outlive_the_round_and_those_who_made_them(join, store):
    """They are there for the next round, and carried over in order."""
    worker = join()
    do(worker, 1, 2, 3)
    worker.leave(over=True)
    again = StoreWorker(worker.client.name, store.key, BLOOM_REDIS_ROUND="2")
    assert again.state.round == "2"
    assert sorted(waits(again)) == [1, 2, 3]
    assert carry_over(store, again.key) == 3
    assert (waits(again), marked(store)) == ([], [1, 2, 3])
    again.close()


def test_digests_go_along(join, store):
    """Those of done pages, and of pages that are not."""
    worker = join()
    worker.enqueue("1")
    request = worker.next()
    worker.store.done(request)
    rows = [Row(key_of(1), NOON, b"one"), Row(key_of(2), None, b"two")]
    worker.store.mark_done(request, [*map(packed, rows)])
    worker.exchange()
    assert carry_over(store, worker.key) == 2
    assert [store.digest(row.key) for row in rows] == [b"one", b"two"]
    assert store.known_until(key_of(1))
    assert not store.known_until(key_of(2))


def test_two_that_carry_over_lose_no_mark(join, store, monkeypatch):
    """Whoever was slow removes nothing that it has not carried over itself."""
    worker = join()
    monkeypatch.setattr(waiting, "AT_ONCE", 4)
    do(worker, *range(10))
    add = store.add

    def meanwhile(marks):
        add(marks)
        store.add = add
        other = store.again()
        carry_over(other, worker.key)
        other.close()
        do(worker, *range(100, 103))

    store.add = meanwhile
    carry_over(store, worker.key)
    assert (waits(worker), marked(store)) == ([], [*range(10), *range(100, 103)])


def test_who_dies_while_it_carries_over_loses_no_mark(join, store, monkeypatch):
    """What was added and not removed is carried over once more."""
    worker = join()
    do(worker, 1, 2)
    monkeypatch.setattr(store.client, "run", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        carry_over(store, worker.key)
    assert sorted(waits(worker)) == [1, 2]
    monkeypatch.undo()
    assert carry_over(store, worker.key) == 2
    assert waits(worker) == []


def test_redis_goes_back_in_time_while_marks_are_carried_over(join, store, redis_server):
    """They wait again, with the claims of which they come, and are carried over again."""
    worker = join()
    do(worker, 1, 2)
    before = redis_server.command("DUMP", f"{worker.key}:delta_waiting")
    carry_over(store, worker.key)
    redis_server.command("RESTORE", f"{worker.key}:delta_waiting", 0, before)
    assert carry_over(store, worker.key) == 2
    assert (waits(worker), marked(store)) == ([], [1, 2])


def test_a_worker_carries_over_while_it_crawls_and_at_its_end(join, store, monkeypatch):
    """At once what others have left, then from a thread. What fails is told once, and waits."""
    monkeypatch.setattr(waiting, "SECONDS", 0.01)
    worker, told = join(), []
    do(worker, 1)
    carrier = Carrier(store, worker.key, told.append)
    assert (waits(worker), marked(store)) == ([], [1])
    do(worker, 2)
    wait_until(lambda: marked(store) == [1, 2], "the thread")
    worker.client.call("delete", f"{worker.key}:delta_waiting")
    worker.client.call("set", f"{worker.key}:delta_waiting", "no list")
    wait_until(lambda: told, "an error")
    worker.client.call("delete", f"{worker.key}:delta_waiting")
    monkeypatch.setattr(waiting, "SECONDS", 1000)
    do(worker, 3)
    carrier.close()
    assert marked(store) == [1, 2, 3]
    assert [type(error) for error in told[:1]] == [SharedFilterError] or "WRONGTYPE" in str(told[0])
    wait_until(
        lambda: not any(each.name == "scrapy-bloom marks" for each in threading.enumerate()),
        "the thread to end",
    )


def test_clearing_a_crawl_carries_its_marks_over_first(join, store, redis_server, capsys):
    """Without the project: the crawl knows its delta store. `info` and `delta count` say how many
    wait, and change nothing; `verify` finds what is no mark."""
    worker, url, crawl = join(), redis_server.url, store.key
    do(worker, *range(3))

    def bloom(*words):
        status = main([*words])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    delta = ("-s", f"BLOOM_DELTA_DIR={crawl}", "-s", f"BLOOM_REDIS_KEY={crawl}")
    before = redis_server.command("DUMP", f"{worker.key}:delta_waiting")
    assert "marks      3 on their way to the delta store" in bloom("info", url, "--key", crawl)[1]
    assert '"marks_waiting": 3' in bloom("info", url, "--key", crawl, "--json")[1]
    status, out, _ = bloom("delta", "count", url, *delta)
    assert (status, out.splitlines()[1]) == (0, f"3 marks on the way from the crawl {crawl}")
    assert '"marks_waiting": 3' in bloom("delta", "count", url, *delta, "--json")[1]
    other = bloom("delta", "count", url, *delta, "-s", "BLOOM_REDIS_KEY=other", "--json")
    assert '"marks_waiting": 0' in other[1]
    assert bloom("verify", url, "--key", crawl)[0] == 0
    assert redis_server.command("DUMP", f"{worker.key}:delta_waiting") == before
    redis_server.command("RPUSH", f"{worker.key}:delta_waiting", "short")
    assert (
        "1 mark on the way to the delta store cannot be read"
        in bloom("verify", url, "--key", crawl)[1]
    )
    status, out, _ = bloom("clear", url, "--key", crawl, "--yes")
    assert (status, out.splitlines()[0]) == (0, f"carried 4 marks over to {store.name}")
    assert marked(store) == [0, 1, 2]
    assert redis_server.names(f"{{{crawl}}}:") == redis_server.names(f"{{{crawl}}}:delta")


def test_what_is_forgotten_does_not_come_back_with_the_marks_that_wait(join, store, redis_server):
    worker, crawl = join(), store.key
    do(worker, *range(3))
    settings = ("-s", f"BLOOM_DELTA_DIR={crawl}", "-s", f"BLOOM_REDIS_KEY={crawl}")
    page = key_of(1).hex()
    assert main(["delta", "forget", redis_server.url, "--key", page, *settings]) == 0
    assert marked(store) == [0, 2]
    assert waits(worker) == []


def test_what_waits_goes_to_the_store_that_it_is_for(join, store, redis_server, key):
    """Also where BLOOM_DELTA_DIR has changed since."""
    worker = join()
    do(worker, 1)
    other = RedisDeltaStore(redis_server.url, f"{key}-other", store.lifetime, 5.0)
    other.open()
    Carrier(other, worker.key, pytest.fail).close()
    assert (waits(worker), marked(store), marked(other)) == ([], [1], [])
    other.close()


def test_a_worker_needs_the_rights_that_the_documents_name(join, store, redis_server, key):
    """And no others: to mark, to carry over, and to clear."""
    text = (DOCS / "delta.md").read_text()
    more = re.search(r"needs these \[rights\].*?\n(.*?), and for", text, re.DOTALL)[1]
    words = more.replace("books:done", key).replace("`", "").replace(",", "").split()
    url = user(redis_server, "workers.md", f"{key}-crawl")
    redis_server.command("ACL", "SETUSER", f"{key}-crawl", *words)
    worker = StoreWorker(url, f"{key}-crawl")
    worker.store.delta_store = named(key, None)
    do(worker, 1)
    told = []
    allowed = RedisDeltaStore(url, key, store.lifetime, 5.0)
    allowed.open()
    Carrier(allowed, worker.key, told.append).close()
    assert (told, marked(store)) == ([], [1])
    worker.close()
    allowed.close()


def test_a_crawl_is_cleared_though_its_marks_cannot_be_carried_over(
    join, store, redis_server, capsys
):
    """To a delta store of another fingerprinter: one line says so."""
    worker = join()
    do(worker, 1)
    redis_server.command("SET", f"{{{store.key}}}:delta:identity", "another")
    assert main(["clear", redis_server.url, "--key", store.key, "--yes"]) == 0
    printed = capsys.readouterr()
    assert "are removed with it: " in printed.err
    assert "marks of another fingerprinter" in printed.err
    assert marked(store) == []
