"""A crawl in a Cluster whose hash slot is moved to another node, key by key: half of it is on
either node for a while, and looks like a crawl that has lost something."""

import pytest

from scrapy_bloom import SharedFilterError
from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.filter import RedisBloomFilter
from tests.redis.server import Move
from tests.redis.workers import StoreWorker, crawl, tree

PAGES = 15

MOVED = {
    "nothing": lambda key, name: False,
    "the books": lambda key, name: name == f"{key}:crawl",
    "all but the books": lambda key, name: name != f"{key}:crawl",
    "all": lambda key, name: True,
}


@pytest.fixture
def once(monkeypatch):
    """Whatever is refused is not asked again."""
    monkeypatch.setattr("scrapy_bloom.redis.client._FIRST_PAUSE", 60)
    monkeypatch.setattr("redis.RedisCluster.RedisClusterRequestTTL", 4)


@pytest.mark.parametrize("moved", MOVED)
@pytest.mark.usefixtures("once")
def test_workers_wait_until_a_slot_has_moved(redis_cluster, key, moved):
    """Each call is refused, changes nothing and is made again; no page is lost."""
    move, refused = None, 0

    def attempt(arguments):
        nonlocal move, refused
        if len(worker.heard) >= 5 and move is None:
            move = Move(redis_cluster, worker.key)
            move.carry([name for name in move.names() if MOVED[moved](worker.key, name)])
        try:
            return worker.call(arguments)
        except SharedFilterError:
            refused += 1
            move.finish()

    worker = StoreWorker(redis_cluster.url, key, attempt)
    assert crawl(worker, tree(PAGES)) == {*range(PAGES)}
    assert (refused, worker.fences, worker.is_gone) == (1, 0, False)
    worker.close()


COMMANDS = ("failed", "top --once", "push http://example.com/2", "retry", "clear --yes")


@pytest.mark.parametrize("moved", ["the books", "all but the books"])
@pytest.mark.usefixtures("once")
def test_commands_wait_until_a_slot_has_moved(run, tmp_path, redis_cluster, key, moved):
    """Each says why it is refused, and none takes half a crawl for the whole."""
    worker = StoreWorker(redis_cluster.url, key)
    worker.send(["page"])
    move = Move(redis_cluster, worker.key)
    names = move.names()
    move.carry([name for name in names if MOVED[moved](worker.key, name)])
    for command, *more in map(str.split, COMMANDS):
        found = run(tmp_path, command, redis_cluster.url, *more, "--key", key)
        assert "a hash slot is being moved to another node" in found.refusal
    move.finish()
    back = Move(redis_cluster, worker.key)
    assert names == back.names()
    back.finish()  # another key may be in this slot
    worker.close()


@pytest.mark.usefixtures("once")
def test_the_filter_alone_waits_until_a_slot_has_moved(redis_cluster, key):
    """Whatever of a shard has moved, no key is new that is known, and none is seen that is not."""
    with RedisClient(redis_cluster.url) as client:
        tested = RedisBloomFilter(client, key, 64, 1e-6)
        for number in range(600):
            tested.add(b"%d" % number)
        refused = 0
        for number, of in ((5, 0), (6, 1), (7, -1)):
            shard = tested.locate(b"%d" % number)[0]
            move = Move(redis_cluster, shard.keys[0])
            move.carry([shard.keys[of]] if of >= 0 else move.names())
            for each, expected in ((number, True), (10_000 + number, False)):
                tested.known.clear()
                try:
                    assert tested.add(b"%d" % each) == expected
                except SharedFilterError:
                    refused += 1
            move.finish()
            tested.known.clear()
            client._down = None
            assert tested.add(b"%d" % number)
        assert refused >= 3
