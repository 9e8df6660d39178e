"""Dictionaries of a crawl in Redis: kept with the first proposal, told to each worker, and asked
for by a server that has lost one, before a request is there that needs it."""

import pytest

from tests.redis.workers import findings_of, store_pages

pytestmark = pytest.mark.usefixtures("few_shards")


def drain(*workers):
    """Return the numbers of all pages that are claimed, and finish them."""
    found = [name for worker in workers * 2 for name in worker.drain()]
    return sorted(int(name.rpartition("-")[2].removesuffix(".html")) for name in found)


def kept(worker):
    """Return the contents of the crawl's dictionaries, by id, as they were kept."""
    call = worker.client.call
    ids = (call("hget", f"{worker.key}:crawl", "dictionaries") or b"").decode().split()
    return {each: call("hget", f"{worker.key}:crawl", f"dictionary:{each}") for each in ids}


def deflated(worker):
    """Return whether each request that waits needs a dictionary."""
    names = worker.client._redis.keys(f"{worker.key}:pending:*")
    return [each[1] == 2 for name in names for each in worker.client.call("lrange", name, 0, -1)]


def test_a_dictionary_is_used_once_it_was_kept(join, worker):
    """The first requests go without; a worker that comes later learns it with its first claims."""
    store_pages(worker, 0)
    worker.exchange()
    assert not any(deflated(worker))
    assert kept(worker) == worker.codec.dictionaries.texts
    store_pages(worker, 20)
    worker.exchange()
    assert sorted(deflated(worker)) == [False] * 16 + [True] * 20
    assert findings_of(worker) == []
    other = join(capacity=50)
    assert other.codec.dictionaries.texts == {}
    assert drain(other, worker) == [*range(40)]
    assert other.codec.dictionaries.texts == worker.codec.dictionaries.texts


def test_a_call_that_is_asked_changes_nothing(worker, redis_server, key):
    """Not even the lease; the same call with the dictionary is done."""
    worker.teach()
    lost = ["dictionaries", *(f"dictionary:{each}" for each in kept(worker))]
    worker.client.call("hdel", f"{worker.key}:crawl", *lost)
    store_pages(worker, 20, 1)
    asked = []

    def everything():
        return {name: redis_server.command("DUMP", name) for name in redis_server.names(key)}

    def attempt(arguments):
        before = everything()
        answer = worker.call(arguments)
        if answer[0] == b"dictionary":
            asked.append(arguments)
            assert everything() == before
        return answer

    worker.sender._attempt = attempt
    number = worker.store._number
    worker.exchange()
    assert len(asked) == 1
    assert worker.store._number == number + 1
    assert (worker.fences, len(worker.heard)) == (0, 21)
    assert kept(worker) == worker.codec.dictionaries.texts


def test_at_most_eight_are_proposed(join, worker):
    """A ninth is not kept. What a worker has learned is kept in any case."""
    for number in range(9):
        worker.codec.dictionaries.proposal = b"%d" % number * 100
        worker.exchange()
    assert len(kept(worker)) == 8
    assert kept(worker) == worker.codec.dictionaries.texts
    worker.codec.dictionaries.learn(b"from an older server" * 10)
    worker.exchange()
    assert len(kept(worker)) == 9
    other = join()
    other.exchange()
    assert other.codec.dictionaries.texts == worker.codec.dictionaries.texts


def test_a_dictionary_that_was_removed_by_hand(join, worker):
    """Requests that need it fail, and are read when it is there again."""
    worker.teach()
    drain(worker)
    store_pages(worker, 30, 2)
    worker.exchange()
    ((name, text),) = kept(worker).items()
    worker.client.call("hdel", f"{worker.key}:crawl", f"dictionary:{name}")
    worker.store.leave(over=False, seconds=1)
    other = join(capacity=9)
    assert other.next() is None
    (_, error), *_ = [each for each in other.heard if isinstance(each[1], Exception)]
    assert name in str(error)
    other.exchange()
    assert other.failed.by_reason() == {"unreadable": 2}
    worker.client.call("hset", f"{worker.key}:crawl", f"dictionary:{name}", text)
    assert other.failed.retry() == 2
    assert drain(join(capacity=9)) == [30, 31]


def test_push_learns_and_proposes(join):
    """Requests from outside are stored as a worker's are, also in a crawl without a dictionary."""
    worker = join(capacity=200)
    worker.exchange()
    pages = [f"http://example.com/catalogue/item-{number}.html" for number in range(120)]
    assert worker.push_from_outside(*pages) == (120, 0, 0)
    assert len(kept(worker)) == 1
    assert sum(deflated(worker)) == 70
    assert drain(worker) == [*range(120)]
