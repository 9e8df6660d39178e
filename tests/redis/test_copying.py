"""Filters moved between files and Redis, on a real server and a real Cluster."""

from shutil import copytree

import pytest

from scrapy_bloom import (
    FilterLockedError,
    IncompatibleFilterError,
    ScalableBloomFilter,
    SharedFilterError,
    load_into_redis,
    save_from_redis,
)
from scrapy_bloom.bloom.hashing import first_lanes
from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.filter import RedisBloomFilter
from scrapy_bloom.redis.layout import shard_of
from tests.redis.fixtures import keys

SECRET = b"that of the test"


@pytest.fixture
def shared(kept):
    """Return a function that opens the filter at a key as it is."""
    return lambda redis, key: RedisBloomFilter.open(kept(RedisClient(redis.url, 2)), key)


@pytest.fixture
def local(tmp_path):
    """The directory of a filter with ten keys."""
    with ScalableBloomFilter(1_000, 1e-3, tmp_path / "local") as local:
        local.update(keys(0, 10))
    return tmp_path / "local"


@pytest.mark.parametrize(
    ("redis", "capacity", "error_rate", "count"),
    [("cluster", 300, 1e-2, 1_000), ("server", 70_000, 1e-4, 1), ("server", 100, 0.6, 300)],
    indirect=["redis"],
)
def test_there_and_back(redis, key, tmp_path, shared, capacity, error_rate, count):
    """A filter of any shape goes on in Redis, and in files again, with the same bits and secret."""
    with ScalableBloomFilter(capacity, error_rate, tmp_path / "local", identity="x") as local:
        local.update(keys(0, count))
        known = [key for key in keys(0, 2 * count) if key in local]
        before = [layer._store.bits.copy() for layer in local.layers]
        shapes = [layer.header._replace(created="") for layer in local.layers]
        secret, items = local.secret, len(local)
    assert load_into_redis(tmp_path / "local", redis.url, key) == items
    moved = shared(redis, key)
    moved.check()
    assert len(moved) == items
    assert (moved.header.secret, moved.header.identity) == (secret, "x")
    assert (moved.capacity, moved.error_rate) == (capacity, error_rate)
    assert save_from_redis(redis.url, key, tmp_path / "copy") == items
    with ScalableBloomFilter.open(tmp_path / "copy") as copy:
        assert len(copy) == items
        assert [layer._store.bits for layer in copy.layers] == before
        assert [layer.header._replace(created="") for layer in copy.layers] == shapes
        assert {layer.header.created for layer in copy.layers} == {moved.header.created}
        assert [key for key in keys(0, 2 * count) if key in copy] == known
    fresh = [key for key in keys(count, count + 500) if not moved.add(key)]
    assert len(fresh) >= 500 * (1 - error_rate) - 80
    assert all(map(moved.add, known[:1_000]))
    save_from_redis(redis.url, key, tmp_path / "back")
    with ScalableBloomFilter.open(tmp_path / "back") as back:
        assert all(key in back for key in known + fresh)
        assert (back.secret, back.identity, back.clean) == (secret, "x", True)
        assert back.error_rate == pytest.approx(error_rate)
        if error_rate < 0.1:
            assert all(not layer.check() for layer in back.layers)


def test_moving_counts_the_keys_where_they_are(redis_server, key, tmp_path, shared):
    """In each shard as many as it has, about, since they are estimated from its bits."""
    # with one secret in twenty the estimate of a shard is two keys off
    with ScalableBloomFilter(65_000, 1e-6, tmp_path / "local", secret=SECRET) as local:
        local.update(keys(0, 2_000))
    load_into_redis(tmp_path / "local", redis_server.url, key)
    moved, here = shared(redis_server, key), [0] * 64
    for number in keys(0, 2_000):
        here[shard_of(first_lanes(moved.header.secret + number)[0])] += 1
    whole = [sum(shard.counts) for shard in moved.shards]
    assert all(abs(found - real) <= 1 for found, real in zip(whole, here, strict=True))


def test_a_save_that_was_killed_is_run_again(redis_server, key, tmp_path, local):
    """What it has left beside the place goes."""
    load_into_redis(local, redis_server.url, key)
    ScalableBloomFilter(10, 1e-3, tmp_path / "saved.loading").close()
    assert save_from_redis(redis_server.url, key, tmp_path / "saved") == 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["local", "saved"]


@pytest.mark.parametrize("left", [-1, 4096, 0], ids=["all but a byte", "a block", "nothing"])
def test_a_filter_of_which_a_part_is_gone_is_not_saved(redis_server, key, tmp_path, left):
    """It is named, and nothing is left on the disk: what was seen there is fetched again."""
    ScalableBloomFilter(70_000, 1e-6, tmp_path / "local").close()
    load_into_redis(tmp_path / "local", redis_server.url, key)
    name = f"{{{key}:0}}:0"
    whole = redis_server.command("GET", name)
    assert len(whole) > 4096
    redis_server.command("SET", name, whole[:left])
    with pytest.raises(SharedFilterError, match=f"{name} in Redis at .* is gone, or a part of it"):
        save_from_redis(redis_server.url, key, tmp_path / "saved")
    assert [path.name for path in tmp_path.iterdir()] == ["local"]


def test_nothing_is_written_over_and_no_job_that_runs_is_loaded(redis_server, key, tmp_path, local):
    """A key or a directory that is there is refused and left alone. So is an exact filter, whose
    bits alone would lose pages. A killed job stays one."""
    with ScalableBloomFilter(1_000, 1e-3, tmp_path / "open"), pytest.raises(FilterLockedError):
        load_into_redis(tmp_path / "open", redis_server.url, key)
    ScalableBloomFilter(1_000, 1e-3, tmp_path / "exact", exact=True).close()
    with pytest.raises(IncompatibleFilterError, match=r"is exact \(BLOOM_EXACT\), and a filter in"):
        load_into_redis(tmp_path / "exact", redis_server.url, key)
    assert redis_server.names(key) == []
    redis_server.command("SET", key, "1")
    with pytest.raises(IncompatibleFilterError, match=f"{key}.* is there already"):
        load_into_redis(local, redis_server.url, key)
    assert redis_server.names(key) == [key]
    load_into_redis(local, redis_server.url, key + "free")
    with ScalableBloomFilter.open(tmp_path / "open"):
        copytree(tmp_path / "open", tmp_path / "killed")
    load_into_redis(tmp_path / "killed", redis_server.url, key + "killed")
    with ScalableBloomFilter.open(tmp_path / "killed") as killed:
        assert not killed.clean
    with pytest.raises(FileExistsError, match="local is there already"):
        save_from_redis(redis_server.url, key + "free", local)
    with pytest.raises(KeyError, match="no filter 'nobody'"):
        save_from_redis(redis_server.url, "nobody", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_what_fails_on_the_way_leaves_nothing(own_server, key, tmp_path):
    """No part of a filter in Redis without memory."""
    ScalableBloomFilter(1_000_000, 1e-3, tmp_path / "local").close()
    own_server.command("CONFIG", "SET", "maxmemory", "2mb")
    with pytest.raises(SharedFilterError, match="maxmemory"):
        load_into_redis(tmp_path / "local", own_server.url, key)
    own_server.command("CONFIG", "SET", "maxmemory", "0")
    assert own_server.names() == []
