"""The shared filter on a real server and a real Cluster."""

import gzip
import random
import re
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from math import sqrt
from pathlib import Path

import pytest

from scrapy_bloom import IncompatibleFilterError, ScalableBloomFilter, SharedFilterError
from scrapy_bloom.bloom.hashing import first_lanes
from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.copying import save_from_redis
from scrapy_bloom.redis.filter import RedisBloomFilter, delete_filter
from scrapy_bloom.redis.layout import SHARDS, shard_of
from tests.redis.fixtures import keys

TESTS = Path(__file__).resolve().parent.parent
WORKERS = 8


@pytest.fixture
def join(key):
    """Return a function that opens the filter of this test, on a connection of its own."""
    clients = []

    def join(redis, capacity=1_000, error_rate=1e-6, key=key, **options):
        clients.append(RedisClient(redis.url, 2))
        return RedisBloomFilter(clients[-1], key, capacity, error_rate, **options)

    yield join
    for client in clients:
        client.close()


def keys_of_a_shard(shared, count):
    """Return the shard of some key, and keys that belong to it."""
    number = shard_of(first_lanes(shared.header.secret + b"0")[0])
    found = (
        key
        for key in keys(0, 1_000_000)
        if shard_of(first_lanes(shared.header.secret + key)[0]) == number
    )
    return shared.shards[number], list(islice(found, count))


def fill(shared, start, stop):
    """Add so many keys; return the filter."""
    for key in keys(start, stop):
        shared.add(key)
    return shared


def real_urls(count):
    """Return so many distinct URLs of real pages."""
    text = gzip.decompress((TESTS / "data" / "urls_kasztp_20000.txt.gz").read_bytes()).decode()
    return [*dict.fromkeys(text.split("\n"))][:count]


# one process


def test_a_key_is_known_once_it_was_added(redis, join):
    """To this process, to another one, and after growing by several layers."""
    one, other = join(redis, 100), join(redis, 100)
    assert not any(map(one.add, keys(0, 400)))
    assert all(map(one.add, keys(0, 400)))
    assert all(map(other.add, keys(0, 400)))
    assert not any(map(other.add, keys(400, 1_600)))
    assert all(map(join(redis, 100).add, keys(0, 1_600)))
    assert len(join(redis, 100)) == 1_600
    assert len(other.layers) >= 3
    other.check()


def test_a_client_that_missed_a_layer_adds_to_a_full_one(redis_server, few_shards, join):
    """It knows one layer, and the shard has filled its second: the key goes into a third."""
    stale, other = join(redis_server, 100), join(redis_server, 100)
    shard, names = keys_of_a_shard(other, 5_000)
    missed = next(each for each in stale.shards if each.keys == shard.keys)
    names = iter(names)
    for name in names:
        assert not other.add(name)
        takes = struct.unpack(f"<{len(shard.shape) // 4}I", shard.shape)[1::3]
        if len(shard.counts) == 2 and shard.counts[1] == takes[1]:
            break
    assert len(missed.counts) == 1
    assert not stale.add(next(names))
    assert len(missed.counts) == 3
    stale.check()


def test_an_answer_that_was_lost_while_the_filter_grew(redis_server, few_shards, join, monkeypatch):
    """What the server has then is the key of that very call: it is new."""
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


def test_text_keys_are_utf8(redis_server, join):
    """A str is the key of its UTF-8 bytes; what is no key is a TypeError."""
    bloom_filter = join(redis_server)
    assert not bloom_filter.add("ä")
    assert bloom_filter.add("ä".encode())
    with pytest.raises(TypeError, match="None"):
        bloom_filter.add(None)


@pytest.mark.parametrize("error_rate", [1e-2, 1e-3])
@pytest.mark.usefixtures("few_shards")
def test_error_rate_stays_under_the_bound(redis_server, join, key, tmp_path, error_rate):
    """By three standard deviations at most, for new real URLs and those that filled it."""
    urls = [url.encode() for url in real_urls(4_000)]
    probes = [b"probe " + url for url in urls] + [b"more " + url for url in urls]
    for part, copy in ((16, "grown"), (1, "full")):
        name = f"{key}{copy}"
        capacity = len(urls) // part
        shared = join(redis_server, capacity, error_rate, name)
        taken = sum(map(shared.add, urls))
        assert taken <= error_rate * len(urls) + 3 * sqrt(error_rate * len(urls))
        assert len(shared) + taken == len(urls)
        assert (len(shared.layers) >= 4) == (part == 16)
        save_from_redis(redis_server.url, name, tmp_path / copy)
        with ScalableBloomFilter.open(tmp_path / copy) as saved:
            assert all(url in saved for url in urls)
            found = sum(probe in saved for probe in probes)
            expected = saved.current_error_rate * len(probes)
        bound = error_rate * len(probes)
        assert found <= bound + 3 * sqrt(bound)
        # the few blocks of so small a filter are not equally full
        assert abs(found - expected) <= 4 * sqrt(expected) + 0.4 * expected + 3


@pytest.mark.slow
@pytest.mark.usefixtures("few_shards")
def test_estimates_are_those_of_the_error_rate(redis_server, join):
    """They are near what they are for a filter without shards."""
    shared, local = join(redis_server, 4_000, 1e-2), ScalableBloomFilter(4_000, 1e-2)
    assert (len(shared), shared.fill_ratio, shared.current_error_rate) == (0, 0, 0)
    for number in keys(0, 10_000):
        shared.add(number)
        local.add(number)
    assert len(shared.layers) == len(local.layers) == 2
    for name in ("fill_ratio", "current_error_rate", "expected_false_positives"):
        ratio = getattr(shared, name) / getattr(local, name)
        assert 0.3 < ratio < 1.5, (name, ratio)
    assert shared.nbytes == sum(
        len(bits)
        for shard in shared.shards
        for name in shard.keys[1:]
        if (bits := redis_server.command("GET", name))
    )


@pytest.mark.parametrize(("capacity", "most"), [(1_000_000, 4.25), (2_000_000, 4.25)])
def test_memory_for_each_request(redis_server, join, capacity, most):
    """At its capacity, and as the server's own allocator counts, it is 4.2 bytes."""
    shared = join(redis_server, capacity)
    names = [name for shard in shared.shards for name in shard.keys[:2]]
    used = sum(redis_server.command("MEMORY", "USAGE", name) for name in names)
    assert shared.nbytes <= used <= most * capacity


# round trips


def reads(server):
    """How many times the server has read from a socket, which is how many requests came."""
    with server.client() as client:
        return client.info("stats")["total_reads_processed"]


def test_a_new_key_takes_one_round_trip_and_a_known_one_none(redis_server, join):
    """By the server's own count, over any number of layers."""
    shared = fill(join(redis_server, 200), 0, 2_000)
    assert len(shared.layers) >= 3
    redis_server.command("CONFIG", "RESETSTAT")
    before = reads(redis_server)
    assert not any(map(shared.add, keys(2_000, 2_500)))
    assert reads(redis_server) - before in range(500, 520)  # and those of looking
    assert redis_server.calls()["evalsha"] == 500
    assert all(map(shared.add, keys(0, 2_500)))
    assert redis_server.calls()["evalsha"] == 500
    other = join(redis_server, 200)
    before = redis_server.calls()["evalsha"]
    assert all(map(other.add, keys(0, 500)))
    assert all(map(other.add, keys(0, 500)))
    assert redis_server.calls()["evalsha"] == before + 500


def test_growing_by_another_process_costs_one_more_round_trip(redis_server, join):
    """A process that does not know of new layers asks a shard once more, and then knows."""
    one, other = join(redis_server, 200), join(redis_server, 200)
    fill(one, 0, 2_000)
    before = redis_server.calls()["evalsha"]
    assert all(map(other.add, keys(0, 500)))
    asked = redis_server.calls()["evalsha"] - before
    assert 500 + SHARDS / 2 < asked <= 500 + SHARDS
    assert other.layers == one.layers


def test_the_memory_of_known_keys_is_bounded(redis_server, join, monkeypatch):
    """More keys than the process remembers are asked about again, and known."""
    monkeypatch.setattr("scrapy_bloom.redis.filter.KNOWN_KEYS", 100)
    shared = join(redis_server)
    assert not any(map(shared.add, keys(0, 500)))
    before = redis_server.calls()["evalsha"]
    assert all(map(shared.add, keys(0, 500)))
    assert redis_server.calls()["evalsha"] - before >= 350
    assert len(shared.known.urls) == 100


# what is there already


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


@pytest.mark.parametrize(
    "commands", [[("SET", "1")], [("SADD", "1")], [("HSET", "a", "b")], [("HSET", "header", "{}")]]
)
def test_a_key_of_somebody_else_is_refused(redis_server, join, key, commands):
    """What is no filter is neither used nor changed."""
    for command, *values in commands:
        redis_server.command(command, key, *values)
    before = redis_server.command("DUMP", key)
    with pytest.raises(IncompatibleFilterError, match=f"{key}.*BLOOM_REDIS_KEY"):
        join(redis_server)
    assert redis_server.command("DUMP", key) == before


def test_a_filter_whose_maker_died_is_finished_by_the_next(redis_server, join, key):
    """Not one that was ready: what it has lost was perhaps full of keys."""
    shared = join(redis_server)
    lost = shard_of(first_lanes(shared.header.secret + b"key")[0]) ^ 1
    shared.add(b"key")
    redis_server.command("HSET", key, "ready", "")
    redis_server.command("DEL", f"{{{key}:{lost}}}", f"{{{key}:{lost}}}:0")
    assert join(redis_server).add(b"key")
    redis_server.command("DEL", f"{{{key}:{lost}}}")
    with pytest.raises(SharedFilterError, match=r"gone, or a part of it.*scrapy bloom clear"):
        join(redis_server)


def test_no_room_at_the_start_leaves_nothing_behind(own_server, join):
    """The filter is refused, and Redis never took more than it may."""
    own_server.command("CONFIG", "SET", "maxmemory", "5mb")
    with pytest.raises(SharedFilterError, match="maxmemory"):
        join(own_server, 10_000_000)
    assert own_server.names() == []
    with own_server.client() as client:
        assert client.info("memory")["used_memory_peak"] < 8e6


def test_a_filter_grows_only_as_far_as_redis_has_memory(own_server, join):
    """A layer that Redis has no memory for is not made; the key is new until there is some."""
    shared = join(own_server, 100)
    shard, known = keys_of_a_shard(shared, 100)
    for number in known[: shared.layers[0].share]:
        assert not shared.add(number)
    assert shard.counts == [shared.layers[0].share]
    own_server.command("CONFIG", "SET", "maxmemory", "1mb")
    with pytest.raises(SharedFilterError, match="maxmemory"):
        shared.add(known[-1])
    own_server.command("CONFIG", "SET", "maxmemory", "0")
    fresh = join(own_server, 100)
    assert len(fresh.layers) == 1
    assert [fresh.add(known[-1]), fresh.add(known[-1])] == [False, True]
    assert len(fresh.layers) == 2
    fresh.check()


def test_making_a_filter_is_tried_again(own_server, key):
    """A server that hangs for longer than an answer may take delays the start."""
    client = RedisClient(own_server.url, 6)
    own_server.pause()
    timer = threading.Timer(2.5, own_server.resume)  # an answer may take two seconds
    timer.start()
    made = RedisBloomFilter(client, key, 1_000, 1e-6)
    timer.join()
    made.check()
    assert not made.add(b"key")
    client.close()


# what vanishes


@pytest.mark.parametrize("lost", ["all", "state", "bits", "newer bits"])
def test_a_filter_that_vanished_is_no_answer(redis_server, join, lost):
    """It is an error for keys that were not seen here, and what was seen here stays seen."""
    shared = fill(join(redis_server, 200), 0, 1_500)
    for shard in shared.shards:
        gone = {"all": shard.keys, "state": shard.keys[:1], "bits": shard.keys[1:2]}
        redis_server.command("DEL", *gone.get(lost, shard.keys[2:3]))
    with pytest.raises(SharedFilterError, match="gone"):
        shared.add(b"new")
    assert all(map(shared.add, keys(0, 1_500)))


def test_a_filter_made_anew_is_not_the_old_one(redis, join):
    """For those who used the old one, it is gone."""
    old, maker = join(redis), join(redis)
    old.add(b"key")
    maker.delete()
    assert not maker.add(b"key")
    assert maker.add(b"key")
    for number in keys(0, 100):
        with pytest.raises(SharedFilterError, match="gone"):
            old.add(number)
    with pytest.raises(SharedFilterError, match="gone"):
        old.delete() or old.refresh()
    assert join(redis).add(b"key")


def test_old_strings_never_come_back(redis_server, join, key):
    """What an earlier filter has left at the keys of a new one makes no key known."""
    shared = join(redis_server, 200)
    shared.add(b"key")
    for shard in shared.shards:
        for name in [*shard.keys[1:], f"{shard.keys[0]}:2", f"{shard.keys[0]}:3"]:
            redis_server.command("SET", name, b"\xff" * 4096)
    redis_server.command("DEL", key)
    fresh = join(redis_server, 200)
    assert not any(map(fresh.add, keys(0, 1_500)))
    fresh.check()


def grown(redis, join):
    """Return a filter of several layers."""
    shared = fill(join(redis, 200), 0, 1_500)
    assert len(shared.layers) > 2
    return shared


def test_what_was_deleted_is_new(redis_server, join):
    """Also to the process that has deleted it, which had seen it lately."""
    shared = join(redis_server)
    assert not shared.add(b"key")
    shared.delete()
    assert b"key" not in shared
    assert [shared.add(b"key"), shared.add(b"key")] == [False, True]


@pytest.mark.parametrize("lost", ["nothing", "header", "a state", "bits", "all states"])
def test_deleting_removes_what_is_left(redis_server, join, key, lost):
    """Where the header was deleted, or a part evicted; then there is nothing to find."""
    shared = grown(redis_server, join)
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


def test_deleting_leaves_the_filter_of_others(redis_server, join, key):
    """Who has an older filter cannot delete the one that was made in its place."""
    old = join(redis_server)
    old.delete()
    fresh = join(redis_server)
    fresh.add(b"key")
    old.delete()
    assert join(redis_server).add(b"key")
    fresh.check()


# how Redis is reached


def documented_rights(key):
    """Return what docs/redis.md grants to a worker, for the filter at `key`."""
    text = (TESTS.parent / "docs" / "redis.md").read_text(encoding="utf-8")
    words = re.search(r"ACL SETUSER worker on >password((?:.*\\\n)*.*)", text)[1].split()
    return [word.replace("books:bloom", key) for word in words if word != "\\"]


def test_a_unix_socket_and_an_acl_user(tmp_path, join, own_server, key):
    """As redis-py reads the URL; the rights in the documents are enough."""
    path = tmp_path / "socket"
    own_server.restart(unixsocket=path)
    own_server.command("ACL", "SETUSER", "bot", "on", ">p@ss", *documented_rights(key), "+get")
    own_server.url = f"unix://bot:p%40ss@{path}?db=0"
    shared = join(own_server)
    assert not any(map(shared.add, keys(0, 1_000)))
    assert "p@ss" not in shared.name
    assert "p%40ss" not in shared.name
    own_server.url = f"redis://bot:p%40ss@127.0.0.1:{own_server.port}"
    other = join(own_server)
    assert all(map(other.add, keys(0, 1_000)))
    other.check()


# many writers


@pytest.mark.parametrize("capacity", [500, 1_000_000])
def test_each_url_is_new_once_among_eight_writers(redis_server, join, capacity):
    """In different orders, each on a connection of its own, also while the filter grows."""
    urls = [url.encode() for url in real_urls(1_000)]
    writers = [join(redis_server, capacity) for _ in range(WORKERS)]

    def write(number):
        order = random.Random(number).sample(urls, len(urls))
        return [url for url in order if not writers[number].add(url)]

    with ThreadPoolExecutor(WORKERS) as pool:
        told = [*pool.map(write, range(WORKERS))]
    assert sorted(url for each in told for url in each) == sorted(urls)
    shared = join(redis_server, capacity)
    assert len(shared) == len(urls)
    assert (len(shared.layers) > 1) == (capacity < len(urls))
    shared.check()
