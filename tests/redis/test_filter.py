"""The shared filter on a real server and a real Cluster, also where its scripts fail on the way."""

import random
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from math import sqrt

import pytest

from scrapy_bloom import IncompatibleFilterError, ScalableBloomFilter, SharedFilterError
from scrapy_bloom.redis import filter as filters
from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.copying import save_from_redis
from scrapy_bloom.redis.filter import RedisBloomFilter, delete_filter
from scrapy_bloom.redis.layout import SHARDS
from scrapy_bloom.redis.scripts import DELETE, MAKE_HEADER, MAKE_SHARD, READ_SHARD, TEST_AND_SET
from tests.redis.fixtures import keys
from tests.redis.server import lua_script


@pytest.fixture
def join(key, kept):
    """Return a function that opens the filter of this test, on a connection of its own."""

    def join(redis, capacity=1_000, error_rate=1e-6, key=key, patience=2):
        client = kept(RedisClient(redis.url, 2))
        client.patience = patience
        return RedisBloomFilter(client, key, capacity, error_rate)

    return join


def fill(shared, start, stop):
    for key in keys(start, stop):
        shared.add(key)
    return shared


def test_a_key_is_known_once_it_was_added(redis, join):
    """To this process, to another, and after growing by some layers. A str is its UTF-8 bytes."""
    one, other = join(redis, 100), join(redis, 100)
    assert not any(map(one.add, keys(0, 400)))
    assert all(map(one.add, keys(0, 400)))
    assert all(map(other.add, keys(0, 400)))
    assert not any(map(other.add, keys(400, 1_600)))
    assert all(map(join(redis, 100).add, keys(0, 1_600)))
    assert len(join(redis, 100)) == 1_600
    assert len(other.layers) >= 3
    other.check()
    assert [other.add("ä"), other.add("ä".encode())] == [False, True]
    with pytest.raises(TypeError, match="None"):
        other.add(None)


def test_an_answer_that_was_lost_while_the_filter_grew(redis_server, few_shards, join, monkeypatch):
    """What the server has then is the key of that very call: it is new, but where a full filter
    takes none."""
    shared, other = (join(redis_server, 100) for _ in range(2))
    insist, lost = shared.client.insist, []

    def lose_the_first(*arguments):
        if lost:
            return insist(*arguments)
        lost.append(insist(*arguments))
        fill(other, 0, 400)
        return insist(*arguments)[0], True

    monkeypatch.setattr(shared.client, "insist", lose_the_first)
    assert not shared.add(b"key")
    assert len(shared.layers) > 1
    assert other.add(b"key")
    for gone in (lost, shared.known):
        gone.clear()
    shared.growing = None
    assert shared.add(b"key")


@pytest.mark.parametrize("error_rate", [1e-2, 1e-3])
@pytest.mark.usefixtures("few_shards")
def test_error_rate_stays_under_the_bound(redis_server, join, key, tmp_path, error_rate):
    """By three standard deviations at most, for new keys and those that filled it; a copy in a file
    has the same keys, and what the filter tells of itself is true of it."""
    urls, probes = keys(0, 4_000), keys(10_000, 18_000)
    for part, copy in ((16, "grown"), (1, "full")):
        name = f"{key}{copy}"
        capacity = len(urls) // part
        shared = join(redis_server, capacity, error_rate, name)
        taken = sum(map(shared.add, urls))
        assert taken <= error_rate * len(urls) + 3 * sqrt(error_rate * len(urls))
        assert len(shared) + taken == len(urls)
        assert (len(shared.layers) >= 4) == (part == 16)
        names = [name for shard in shared.shards for name in shard.keys[1:]]
        bits = [redis_server.command("GET", name) or b"" for name in names]
        assert shared.nbytes == sum(map(len, bits))
        ones = sum(int.from_bytes(each, "big").bit_count() for each in bits)
        assert shared.fill_ratio == pytest.approx(ones / 8 / shared.nbytes, rel=0.2)
        save_from_redis(redis_server.url, name, tmp_path / copy)
        with ScalableBloomFilter.open(tmp_path / copy) as saved:
            assert all(url in saved for url in urls)
            found = sum(probe in saved for probe in probes)
            expected = saved.current_error_rate * len(probes)
        assert shared.current_error_rate * len(probes) == pytest.approx(expected, rel=0.4)
        bound = error_rate * len(probes)
        assert found <= bound + 3 * sqrt(bound)
        # the few blocks of so small a filter are not equally full
        assert abs(found - expected) <= 4 * sqrt(expected) + 0.4 * expected + 3


def test_memory_for_each_request(redis_server, join):
    """At its capacity, and as the server's own allocator counts, it is 4.2 bytes."""
    shared = join(redis_server, 1_000_000)
    names = [name for shard in shared.shards for name in shard.keys[:2]]
    used = sum(redis_server.command("MEMORY", "USAGE", name) for name in names)
    assert shared.nbytes <= used <= 4_250_000


def test_a_new_key_takes_one_round_trip_and_a_known_one_none(redis_server, join, key, monkeypatch):
    """By the server's own count, over any number of layers; who does not know of new ones asks a
    shard once more, and who has forgotten a key asks again. Who only looks changes nothing."""

    def reads():
        # from a socket, which is how many requests came
        with redis_server.client() as client:
            return client.info("stats")["total_reads_processed"]

    def asked():
        return redis_server.calls().get("evalsha", 0)

    other = join(redis_server, 200)
    shared = fill(join(redis_server, 200), 0, 2_000)
    assert len(shared.layers) >= 3
    redis_server.command("CONFIG", "RESETSTAT")
    before = reads()
    assert not any(map(shared.add, keys(2_000, 2_500)))
    assert (reads() - before in range(500, 520), asked()) == (True, 500)  # and those of looking
    assert all(map(shared.add, keys(0, 2_500)))
    assert (asked(), reads() - before < 1_500) == (500, True)
    assert all(map(other.add, keys(0, 500)))
    assert 1000 + SHARDS / 2 < (before := asked()) <= 1000 + SHARDS
    assert other.layers == shared.layers
    monkeypatch.setattr("scrapy_bloom.redis.filter.KNOWN_KEYS", 100)
    forgetful = join(redis_server, 200)
    for _ in range(2):
        assert all(map(forgetful.add, keys(0, 500)))
    assert asked() - before >= 850
    before = {name: redis_server.command("DUMP", name) for name in redis_server.names(key)}
    assert not any(b"x%d" % number in forgetful for number in range(500))
    assert before == {name: redis_server.command("DUMP", name) for name in before}
    assert len(forgetful.known.urls) == 100


def test_workers_with_other_parameters_are_refused(redis, join):
    """With both values and the remedy; the filter is as it was."""
    join(redis, 1_000, 1e-6).add(b"key")
    for asked, message in (
        ((2_000, 1e-6), r"BLOOM_CAPACITY = 1000, and this worker has 2000: .* BLOOM_REDIS_KEY"),
        ((1_000, 1e-4), r"BLOOM_ERROR_RATE = 1e-06, and this worker has 0\.0001: .*"),
    ):
        with pytest.raises(IncompatibleFilterError, match=message):
            join(redis, *asked)
    assert join(redis).add(b"key")


@pytest.mark.parametrize("command", ["SET 1", "SADD 1", "HSET a b", "HSET header {}"])
def test_a_key_of_somebody_else_is_refused(redis_server, join, key, command):
    """What is no filter is neither used nor changed."""
    command, *values = command.split()
    redis_server.command(command, key, *values)
    before = redis_server.command("DUMP", key)
    with pytest.raises(IncompatibleFilterError, match=f"{key}.*BLOOM_REDIS_KEY"):
        join(redis_server)
    assert redis_server.command("DUMP", key) == before


def test_a_filter_grows_only_as_far_as_redis_has_memory(own_server, join):
    """One that has no room at the start is refused, and leaves nothing. A layer that Redis has no
    memory for is not made; the key is new until there is some."""
    own_server.command("CONFIG", "SET", "maxmemory", "5mb")
    with pytest.raises(SharedFilterError, match="maxmemory"):
        join(own_server, 10_000_000, patience=0)
    assert own_server.names() == []
    with own_server.client() as client:
        assert client.info("memory")["used_memory_peak"] < 8e6
    shared = join(own_server, 100, patience=0)
    shard, share = shared.shards[0], shared.layers[0].share
    known = [key for key in keys(0, 20_000) if shared.locate(key)[0] is shard]
    assert not any(map(shared.add, known[:share]))
    assert shard.counts == [share]
    own_server.command("CONFIG", "SET", "maxmemory", "1mb")
    with pytest.raises(SharedFilterError, match="maxmemory"):
        shared.add(known[-1])
    own_server.command("CONFIG", "SET", "maxmemory", "0")
    fresh = join(own_server, 100)
    assert len(fresh.layers) == 1
    assert [fresh.add(known[-1]), fresh.add(known[-1])] == [False, True]
    assert len(fresh.layers) == 2
    others, shared.client._down = iter(known[share:]), None  # as if time had passed
    while fresh.shards[0].counts[1] < fresh.layers[1].share:
        fresh.add(next(others))
    assert not shared.add(next(others))  # which knows a layer less
    assert [len(each.shards[0].counts) for each in (shared, fresh)] == [3, 2]
    fresh.check()


@pytest.mark.parametrize("lost", ["all", "state", "bits", "newer bits"])
def test_a_filter_that_vanished_is_no_answer(redis_server, join, lost):
    """It is an error for keys that were not seen here, and what was seen here stays seen; who joins
    makes no new part in place of one that is lost."""
    shared = fill(join(redis_server, 200), 0, 1_500)
    for shard in shared.shards:
        gone = {"all": shard.keys, "state": shard.keys[:1], "bits": shard.keys[1:2]}
        redis_server.command("DEL", *gone.get(lost, shard.keys[2:3]))
    with pytest.raises(SharedFilterError, match="gone"):
        shared.add(b"new")
    assert all(map(shared.add, keys(0, 1_500)))
    with pytest.raises(SharedFilterError, match=r"gone, or a part of it.*scrapy bloom clear"):
        join(redis_server, 200).add(b"new")


def test_a_filter_made_anew_is_not_the_old_one(redis, join):
    """For who used the old one it is gone and stays so; who has deleted it knows no key of it."""
    old, maker = join(redis), join(redis)
    old.add(b"key")
    assert maker.add(b"key")
    maker.delete()
    assert [b"key" in maker, maker.add(b"key"), maker.add(b"key")] == [False, False, True]
    for number in keys(0, 100):
        with pytest.raises(SharedFilterError, match="gone"):
            old.add(number)
    old.delete()
    with pytest.raises(SharedFilterError, match="gone"):
        old.refresh()
    assert join(redis).add(b"key")
    maker.check()


def test_old_strings_never_come_back(redis_server, join, key):
    """What an earlier filter has left at the keys of a new one makes no key known."""
    shared = join(redis_server, 200)
    shared.add(b"key")
    for shard in shared.shards:
        for name in [*shard.keys[1:], f"{shard.keys[0]}:2", f"{shard.keys[0]}:3"]:
            redis_server.command("SET", name, b"\xff" * 20_000)
    redis_server.command("DEL", key)
    fresh = join(redis_server, 200)
    assert not any(map(fresh.add, keys(0, 1_500)))
    fresh.check()


@pytest.mark.parametrize("lost", ["nothing", "header", "a state", "bits", "all states"])
def test_deleting_removes_what_is_left(redis_server, join, key, lost):
    """Where the header was deleted, or a part evicted; then there is nothing to find."""
    shared = fill(join(redis_server, 200), 0, 1_500)
    states = [shard.keys[0] for shard in shared.shards]
    gone = {
        "nothing": ["x"], "header": [key], "a state": states[:1], "all states": states,
        "bits": [shared.shards[5].keys[2]],
    }[lost]  # fmt: skip
    redis_server.command("DEL", *gone)
    with RedisClient(redis_server.url) as client:
        assert delete_filter(client, key)
        left = redis_server.names(key)
        assert left == [] or "state" in lost
        assert delete_filter(client, key) == bool(left)
    assert redis_server.names(key) == []


def test_a_unix_socket_and_an_acl_user(tmp_path, join, own_server, key):
    """As redis-py reads the URL; the rights in the documents are enough."""
    path = tmp_path / "socket"
    own_server.restart(unixsocket=path)
    own = own_server.user("redis.md", key, commands=False).replace("password", "p%40ss")
    own_server.command("ACL", "SETUSER", key, ">p@ss", "+get")
    for url in (f"unix://{key}:p%40ss@{path}?db=0", own):
        own_server.url = url
        shared = join(own_server)
        assert {*map(shared.add, keys(0, 1_000))} == {url.startswith("redis")}
        assert not re.search("p@ss|p%40ss", shared.name)
    shared.check()


@pytest.mark.usefixtures("few_shards")
def test_each_url_is_new_once_among_eight_writers(redis_server, join):
    """In different orders, each on a connection of its own, while the filter grows."""
    urls = keys(1000, 2_000)
    writers = [join(redis_server, 10) for _ in range(8)]
    fill(writers[0], 0, 500)  # in layers that the others have missed

    def write(number):
        order = random.Random(number).sample(urls, len(urls))
        return [url for url in order if not writers[number].add(url)]

    with ThreadPoolExecutor(8) as pool:
        told = [*pool.map(write, range(8))]
    assert sorted(url for each in told for url in each) == sorted(urls)
    shared = join(redis_server, 10)
    assert len(shared) == len(urls) + 500
    shared.check()


# scripts that fail before any of their commands, and keep what they have written

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


@pytest.mark.parametrize("patience", [0, 0.06], ids=["once", "again"])
@pytest.mark.parametrize("n", range(9))
@pytest.mark.usefixtures("few_shards")
def test_adding_that_is_cut_off(redis_server, join, n, patience):
    """The keys are new afterwards, also to that worker, and then known."""
    first = fill(join(redis_server, 10), 0, 40)
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
    other = join(redis_server, 10)
    assert not any(map(first.add, failed[::2]))
    assert not any(map(other.add, failed[1::2]))
    assert all(map(other.add, keys(0, 40) + added))
    other.check()
    # and what was counted before it was cut off
    assert 70 <= len(other) <= 70 + 90


@pytest.mark.parametrize("script", [MAKE_HEADER, MAKE_SHARD, READ_SHARD], ids=lambda s: s._name)
@pytest.mark.parametrize("before", ["nothing", "a filter without header", "a filter"])
@pytest.mark.usefixtures("few_shards")
def test_opening_that_is_cut_off(redis_server, key, join, script, before):
    """Before each command: the next worker gets a filter that knows what it should."""
    for n in range(7):
        redis_server.command("FLUSHALL")
        if before != "nothing":
            fill(join(redis_server, 10), 0, 30)
        if before == "a filter without header":
            redis_server.command("DEL", key)
        with cut(script, n) as patch, suppress(SharedFilterError):
            patch.setattr(filters, "delete_shards", lambda *_: 0)
            join(redis_server, 10, patience=0)
        tested = join(redis_server, 10)
        tested.check()
        assert [*map(tested.add, keys(0, 30))] == [before == "a filter"] * 30
        tested.delete()
        assert redis_server.names(key) == []


@pytest.mark.parametrize("where", ["{}", "#KEYS > 1 and 2 or {}"], ids=["shard", "header"])
@pytest.mark.parametrize("n", range(2))
@pytest.mark.usefixtures("few_shards")
def test_deleting_that_is_cut_off(redis_server, key, join, where, n):
    """It is done again, and then nothing is left."""
    old = fill(join(redis_server, 10), 0, 30)
    old.client.patience = 0
    cut_off = pytest.raises(SharedFilterError, match="cut off before")
    with cut(DELETE, where.format(n)), cut_off:
        old.delete()
    with RedisClient(redis_server.url) as client:
        delete_filter(client, key)
    assert redis_server.names(key) == []
