"""The set of scrapy-redis, on a real server."""

from hashlib import sha1

import pytest
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.test import get_crawler

from scrapy_bloom import BloomError, IncompatibleFilterError, ScrapyRedisFingerprinter
from scrapy_bloom.migration.scrapy_redis import RedisSet
from tests.redis.server import missing

pytest_plugins = ["tests.redis.fixtures"]
pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


DEFAULT = RequestFingerprinter.from_crawler(get_crawler())
OURS = ScrapyRedisFingerprinter()


def members(count):
    return [sha1(str(n).encode()).digest() for n in range(count)]


def test_set_of_scrapy_redis_is_read(client, key):
    """All members, each time that they are asked for; what is no fingerprint is told."""
    client.call("sadd", key, *(member.hex() for member in members(25_000)), "nonsense")
    found = RedisSet(client, key, OURS)
    assert (found.keys, found.name) == (25_001, f"{client.name} {key}")
    for _ in range(2):
        batches = list(found.batches())
        assert {each for batch, _ in batches for each in batch} == set(members(25_000))
        assert batches[-1][1] >= found.size
        assert (found.skipped, found.first_skipped) == (1, "b'nonsense': not hexadecimal")


def test_other_keys_are_refused(client, key):
    """What is no set, what is not there, and a set of something else, by name."""
    for value, what in ((None, "not there"), ("x", "a string")):
        if value:
            client.call("set", key, value)
        with pytest.raises(BloomError, match=f"{key} is {what}: --key must name"):
            RedisSet(client, key, OURS)
    client.call("delete", key)
    client.call("sadd", key, "http://example.com/")
    with pytest.raises(BloomError, match=f"{key} holds no fingerprint .*example.*not hexadecimal"):
        RedisSet(client, key, OURS)


def test_other_fingerprinters_are_refused(client, key):
    """A filter full of fingerprints that nobody makes would know nothing."""
    client.call("sadd", key, members(1)[0].hex())
    with pytest.raises(IncompatibleFilterError, match=r"'scrapy_bloom\.ScrapyRedisFingerprinter'"):
        RedisSet(client, key, DEFAULT)


def test_set_that_goes_meanwhile_is_noticed(client, key):
    """A part of a set is not taken for the whole."""
    client.call("sadd", key, *(member.hex() for member in members(25_000)))
    batches = RedisSet(client, key, OURS).batches()
    next(batches)
    client.call("delete", key)
    with pytest.raises(BloomError, match=f"{key} has lost members meanwhile"):
        list(batches)
