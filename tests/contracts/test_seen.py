"""The contract of what answers a dupefilter: `add`, and what is in memory, over each filter."""

import random
from functools import partial

import pytest

from scrapy_bloom import BloomError, ScalableBloomFilter
from scrapy_bloom.crawl.overlay import Uncommitted
from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.dupefilter import BesideQueue
from scrapy_bloom.redis.filter import RedisBloomFilter
from scrapy_bloom.seen import Seen
from tests.fakes import raising

pytest_plugins = ["tests.redis.fixtures"]
FAILURES = [OSError("the disk is full"), MemoryError("none left"), BloomError("full")]


def keys(start, stop):
    """Return fingerprints."""
    return [number.to_bytes(20, "big") for number in range(start, stop)]


@pytest.fixture(params=["memory", "file", "exact", "redis"])
def opened(request, tmp_path):
    """Return an empty filter of each kind."""
    if request.param == "redis":
        server, key = map(request.getfixturevalue, ("redis_server", "key"))
        found = RedisBloomFilter(RedisClient(server.url), key, 1_000, 1e-9, identity="")
    else:
        path = None if request.param == "memory" else tmp_path / "filter"
        found = ScalableBloomFilter(10, 1e-9, path, exact=request.param == "exact")
    yield found
    found.close()


@pytest.fixture(params=[Seen, Uncommitted, BesideQueue])
def make(request, opened):
    """Return a function that makes what answers, of each class."""
    if request.param is BesideQueue and not isinstance(opened, RedisBloomFilter):
        pytest.skip("beside a filter in Redis only")
    return partial(request.param, opened)


def test_a_new_fingerprint_is_new_once(make):
    """In any order."""
    seen, model = make(), set()
    chance = random.Random(1)
    for _ in range(300):
        (key,) = keys(n := chance.randrange(100), n + 1)
        assert seen.add(key) == (key in model)
        model.add(key)
    assert len(seen) == len(model)


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_nothing_is_kept_of_a_failure(make, opened, monkeypatch, error):
    """The filter's exception comes through, and the fingerprint is new when it works again."""
    seen = make()
    (key,) = keys(0, 1)
    with monkeypatch.context() as patch:
        for name in ("add", "__contains__"):
            patch.setattr(type(opened), name, raising(error))
        seen.filter = opened
        if not isinstance(seen, BesideQueue):  # which asks no server
            with pytest.raises(type(error)):
                seen.add(key)
            assert list(seen.uncommitted) == []
    seen.filter = opened
    assert not seen.add(key)


def test_what_the_filter_refused_is_seen_from_memory(make):
    """Without a look into the filter, and it is counted."""
    seen = make()
    refused, others = keys(0, 5), keys(5, 10)
    for key in refused:
        seen.add_unchecked(key)
    assert list(seen.uncommitted) == refused
    assert [seen.add(key) for key in refused + others] == [True] * 5 + [False] * 5
    assert len(seen) == 10


def test_released_fingerprints_are_in_the_filter(make, opened):
    """And in memory no longer; forgotten ones are new again."""
    seen = make()
    if not isinstance(seen, Uncommitted):
        pytest.skip("keeps new fingerprints in the filter")
    added = keys(0, 20)
    assert [seen.add(key) for key in added] == [False] * 20
    assert [key in opened for key in added] == [False] * 20
    for key in added[:10]:
        seen.release(key)
    assert [seen.forget(key) for key in added] == [False] * 10 + [True] * 10
    assert [key in opened for key in added] == [True] * 10 + [False] * 10
    assert [seen.add(key) for key in added] == [True] * 10 + [False] * 10


def test_another_filter_is_asked(make, opened, tmp_path):
    """Between rounds."""
    if isinstance(opened, RedisBloomFilter):
        pytest.skip("a crawl in Redis has one filter")
    seen = make()
    old, new = keys(0, 2)
    assert not seen.add(old)
    seen.clear()
    with ScalableBloomFilter(10, 1e-9, tmp_path / "other") as other:
        other.add(new)
        seen.filter = other
        assert [seen.add(old), seen.add(new)] == [False, True]
