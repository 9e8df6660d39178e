"""The contract of what answers a dupefilter: `add`, and what is in memory, over each filter."""

import random
from functools import partial
from itertools import product

import pytest

from scrapy_bloom import BloomError, ScalableBloomFilter
from scrapy_bloom.crawl.overlay import Overlay
from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.dupefilter import BesideQueue
from scrapy_bloom.redis.filter import RedisBloomFilter
from scrapy_bloom.seen import Seen
from tests.fakes import raising

FAILURES = [OSError("the disk is full"), MemoryError("none left"), BloomError("full")]


def keys(start, stop):
    return [number.to_bytes(20, "big") for number in range(start, stop)]


KINDS = ["memory", "file", "exact", "redis"]


@pytest.fixture(params=[*product([Seen, Overlay], KINDS), (BesideQueue, "redis")])
def pair(request):
    """What answers, and where its filter is."""
    return request.param


@pytest.fixture
def opened(pair, request, tmp_path):
    """Return an empty filter of each kind."""
    if pair[1] == "redis":
        server, key = map(request.getfixturevalue, ("redis_server", "key"))
        found = RedisBloomFilter(RedisClient(server.url), key, 1_000, 1e-9, identity="")
    else:
        path = None if pair[1] == "memory" else tmp_path / "filter"
        found = ScalableBloomFilter(10, 1e-9, path, exact=pair[1] == "exact")
    yield found
    found.close()


@pytest.fixture
def make(pair, opened):
    return partial(pair[0], opened)


def test_it_is_a_set(make, opened):
    """What is released is in the filter, and what is forgotten is new again."""
    seen, model, held, chance = make(), set(), set(), random.Random(1)
    is_held = isinstance(seen, Overlay)
    for _ in range(400):
        (key,) = keys(n := chance.randrange(100), n + 1)
        move = chance.choice("aaarf") if is_held else "a"
        if move == "a":
            assert seen.add(key) == (key in model)
            held |= {key} - model
            model.add(key)
        elif move == "f":
            assert seen.forget(key) == (key in held)
            model -= held & {key}
            held.discard(key)
        elif key in held and not isinstance(seen, BesideQueue):
            seen.release(key)
            held.discard(key)
        assert not is_held or {*seen.uncommitted} == held
    assert len(seen) == len(model)
    assert [key for key in keys(0, 100) if key in opened] == sorted(
        model - held if is_held else model
    )


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
