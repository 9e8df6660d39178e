"""What a script of the filter leaves that fails before any of its commands: it keeps what it has
written, and yet no new key may ever count as seen."""

from contextlib import contextmanager, suppress

import pytest

from scrapy_bloom import SharedFilterError
from scrapy_bloom.redis import filter as filters
from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.filter import RedisBloomFilter, delete_filter
from scrapy_bloom.redis.scripts import DELETE, MAKE_HEADER, MAKE_SHARD, READ_SHARD, TEST_AND_SET
from tests.redis.fixtures import keys
from tests.redis.server import lua_script

pytestmark = pytest.mark.usefixtures("few_shards")
CUT = """
    local left = {}
    local function call(command, ...)
      left = left - 1
      if left < 0 then error('OOM cut off before ' .. command) end
      return redis.call(command, ...)
    end
"""


@contextmanager
def cut(script, n):
    """Let a script fail instead of its `n`-th command; give a patch that ends with that."""
    made = lua_script(CUT.format(n) + script.text.replace("redis.call(", "call("))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("digest", "text"):  # what is put back is that of the text as it was
            patch.setattr(script, name, getattr(made, name))
        yield patch


@pytest.fixture
def open_filter(redis_server, key):
    """Return a function that opens the filter of this test, whose shards grow soon."""
    opened = []

    def open_filter(patience=5):
        opened.append(client := RedisClient(redis_server.url))
        client.patience = patience
        return RedisBloomFilter(client, key, 10, 1e-6)

    yield open_filter
    for client in opened:
        client.close()


@pytest.mark.parametrize("patience", [0, 0.06], ids=["once", "again"])
@pytest.mark.parametrize("n", range(9))
def test_adding_that_is_cut_off(open_filter, n, patience):
    """The keys are new afterwards, also to that worker, and then known."""
    first = open_filter()
    assert not any(map(first.add, keys(0, 40)))
    first.client.patience = patience
    failed, added = keys(100, 130), []
    with cut(TEST_AND_SET, n):
        for number in [*failed]:
            with suppress(SharedFilterError):
                assert not first.add(number)
                failed.remove(number)
            added.append(number)
            first.client._down = None  # as if time had passed
    assert failed or n > 4
    other = open_filter()
    assert not any(map(first.add, failed[::2]))
    assert not any(map(other.add, failed[1::2]))
    assert all(map(other.add, keys(0, 40) + added))
    other.check()
    # and what was counted before it was cut off
    assert 70 <= len(other) <= 70 + 90


def test_growing_over_what_was_left(redis_server, open_filter):
    """A string at the next layer's key is not taken for its own, and gets its exact size."""
    tested = open_filter()
    for shard in tested.shards:
        redis_server.command("SET", shard.keys[2], b"\xff" * 20_000)
    assert not any(map(tested.add, keys(0, 200)))
    assert len(tested.layers) > 1
    tested.check()


@pytest.mark.parametrize("script", [MAKE_HEADER, MAKE_SHARD, READ_SHARD], ids=lambda s: s._name)
@pytest.mark.parametrize("before", ["nothing", "a filter without header", "a filter"])
def test_opening_that_is_cut_off(redis_server, key, open_filter, script, before):
    """Before each command: the next worker gets a filter that knows what it should."""
    for n in range(7):
        redis_server.command("FLUSHALL")
        if before != "nothing":
            assert not any(map(open_filter().add, keys(0, 30)))
        if before == "a filter without header":
            redis_server.command("DEL", key)
        with cut(script, n) as patch, suppress(SharedFilterError):
            patch.setattr(filters, "delete_shards", lambda *_: 0)
            open_filter(0)
        tested = open_filter()
        tested.check()
        assert [*map(tested.add, keys(0, 30))] == [before == "a filter"] * 30
        tested.delete()
        assert redis_server.names(key) == []


@pytest.mark.parametrize("where", ["{}", "#KEYS > 1 and 2 or {}"], ids=["shard", "header"])
@pytest.mark.parametrize("n", range(2))
def test_deleting_that_is_cut_off(redis_server, key, open_filter, where, n):
    """It is done again, and then nothing is left."""
    old = open_filter()
    assert not any(map(old.add, keys(0, 30)))
    old.client.patience = 0
    cut_off = pytest.raises(SharedFilterError, match="cut off before")
    with cut(DELETE, where.format(n)), cut_off:
        old.delete()
    with RedisClient(redis_server.url) as client:
        delete_filter(client, key)
    assert redis_server.names(key) == []


@pytest.mark.parametrize("command", ["info", "ping"])
def test_what_a_worker_may_not_ask(redis_server, key, command):
    """Without INFO what it has seen is seen all the same; without PING it does not start."""
    redis_server.command("ACL", "SETUSER", key, "on", ">secret", "~*", "+@all", f"-{command}")
    url = f"redis://{key}:secret@127.0.0.1:{redis_server.port}/0"
    if command == "ping":
        with pytest.raises(SharedFilterError, match="ping"):
            RedisBloomFilter(RedisClient(url, 0.1), key, 10, 1e-6)
        return
    with RedisClient(url) as client:
        tested = RedisBloomFilter(client, key, 10, 1e-6)
        assert not any(map(tested.add, keys(0, 30)))
        redis_server.command("CLIENT", "KILL", "TYPE", "normal")
        client.confirmed_until = 0  # as if time had passed
        assert all(map(tested.add, keys(0, 30)))
