"""Filters that earlier versions have left in Redis."""

import base64
import json
import zlib
from pathlib import Path

import pytest

from scrapy_bloom import ScalableBloomFilter, load_into_redis, save_from_redis
from scrapy_bloom.redis_backend.client import RedisClient
from scrapy_bloom.redis_backend.filter import RedisBloomFilter

pytest_plugins = ["tests.redis_backend.fixtures"]

V010 = Path(__file__).resolve().parent.parent / "data" / "v010"
EXPECTED = json.loads((V010 / "expected.json").read_text(encoding="utf-8"))["redis"]
KEYS = [b"key %d" % n for n in range(EXPECTED["keys"]["first"], EXPECTED["keys"]["last"] + 1)]
ABSENT = [b"key %d" % n for n in EXPECTED["absent"]["numbers"]]


@pytest.fixture
def old(own_server):
    """The filter of version 0.1.0 on a server of its own."""
    with own_server.client() as client:
        for name, entry in json.loads((V010 / "redis.json").read_text()).items():
            if entry["type"] == "hash":
                client.hset(name, mapping=entry["value"])
            else:
                client.set(name, zlib.decompress(base64.b64decode(entry["value"])))
    with RedisClient(own_server.url, 10) as client:
        yield RedisBloomFilter.open(client, EXPECTED["key"])


def shapes(shared):
    return [
        {name: getattr(layer, name) for name in ("capacity", "share", "blocks", "probes")}
        for layer in shared.layers
    ]


def test_a_filter_of_version_0_1_0_goes_on(old):
    """It knows what it knew and nothing else, grows by the shapes that it would have grown
    by, and is found by another worker as it is then."""
    assert (old.capacity, old.error_rate) == (EXPECTED["capacity"], EXPECTED["error_rate"])
    assert (len(old), old.header.identity) == (EXPECTED["items"], EXPECTED["identity"])
    assert [shard.counts for shard in old.shards] == EXPECTED["shard_counts"]
    assert shapes(old) == EXPECTED["layers"]
    assert all(key in old for key in KEYS)
    assert not any(key in old for key in ABSENT)
    old.check()
    fresh = [b"new %d" % n for n in range(3_000)]
    assert sum(map(old.add, fresh)) < 10
    assert all(map(old.add, KEYS))
    other = RedisBloomFilter.open(old._client, EXPECTED["key"])
    assert len(other.layers) > len(EXPECTED["layers"])
    assert other.layers[2] == other.header.layer(2)
    assert all(key in other for key in KEYS + fresh)
    other.check()


def test_a_filter_of_version_0_1_0_moves(old, own_server, tmp_path):
    """It is saved to files and loaded again with all that it knows."""
    assert save_from_redis(own_server.url, EXPECTED["key"], tmp_path / "saved") == len(old)
    with ScalableBloomFilter.open(tmp_path / "saved") as saved:
        assert all(key in saved for key in KEYS)
        assert not any(key in saved for key in ABSENT)
    assert load_into_redis(tmp_path / "saved", own_server.url, "again") == len(old)
    again = RedisBloomFilter.open(old._client, "again")
    assert len(again) == len(old)
    assert all(key in again for key in KEYS)


def test_a_filter_of_version_0_1_0_is_deleted(old, own_server):
    """Nothing of it stays."""
    old.delete()
    assert own_server.names() == []
