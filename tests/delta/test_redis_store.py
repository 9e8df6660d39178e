"""The store in Redis."""

import json
import os
import time
from contextlib import closing
from datetime import datetime, timezone

import pytest
from scrapy import Request
from scrapy.utils.request import RequestFingerprinter, fingerprint

from scrapy_bloom.commands import main
from scrapy_bloom.delta.file_store import Row
from scrapy_bloom.delta.redis_store import RedisDeltaStore
from scrapy_bloom.delta.settings import Lifetime
from scrapy_bloom.errors import IncompatibleFilterError
from scrapy_bloom.fingerprints import FingerprinterIdentity

HOUR = 3600.0
PERIOD = 8 * HOUR
NOON = 1_800_000_000.0
KEY = b"k" * 20

pytest_plugins = ["tests.redis.fixtures"]
pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")


def memory(redis, key, now, period=PERIOD, identity="ours"):
    """Return a memory whose clock stands at `now`."""
    lifetime = Lifetime(period=period, identity=identity)
    opened = RedisDeltaStore(redis.url, key, lifetime, 5.0, clock=lambda: now)
    opened.open()
    return opened


def slices_in(client, key):
    """Return the names of the slices of a store."""
    return [n for n in client.keys(f"*{key}*") if n.rpartition(b":")[2].isdigit()]


@pytest.mark.parametrize("age", [0, 3.5, 8])
def test_redis_lets_slices_expire(redis_server, key, age):
    """A slice stays for the period after its end, whenever it was written to, and no longer."""
    now = NOON + 0.5 * HOUR
    memory(redis_server, key, now).add([(KEY, now - age * HOUR)])
    end = (now - age * HOUR) // HOUR * HOUR + HOUR
    with redis_server.client() as client:
        (name,) = slices_in(client, key)
        left = end + PERIOD - now
        # the clock of Redis goes on meanwhile
        assert left - HOUR / 2 < client.ttl(name) <= left + 1
        for late in (HOUR, 1):  # what would have expired
            old = NOON - 20 * HOUR
            memory(redis_server, key, old + HOUR + PERIOD + late).add([(KEY, old)])
        assert len(slices_in(client, key)) == 1


def test_without_a_period_nothing_expires(redis_server, key):
    """There is one slice then."""
    memory(redis_server, key, NOON, period=None).add([(KEY, NOON)])
    with redis_server.client() as client:
        assert {client.ttl(name) for name in client.keys(f"*{key}*")} == {-1}


@pytest.mark.parametrize("done", range(5))
def test_an_interrupted_clearing_is_refused_to_others_and_can_be_finished(
    redis, key, monkeypatch, done
):
    """What is left after each of its commands is found again, and still that fingerprinter's."""
    assert (memory(redis, key, NOON).holds, memory(redis, key, NOON).oldest) == ("0 slices", None)
    store = memory(redis, key, NOON)
    store.add([(KEY, NOON), (b"o" * 20, NOON - HOUR), Row(b"d" * 20, None, b"2" * 16)])
    assert (store.holds, store.oldest) == ("2 slices, 1 digest", NOON // HOUR * HOUR - HOUR)
    assert store.nbytes > 0
    call, left = store.client.call, ["unlink"] * done

    def dying(command, *arguments):
        if command == "unlink":
            left.pop()
        return call(command, *arguments)

    monkeypatch.setattr(store.client, "call", dying)
    with closing(store), pytest.raises(IndexError):
        store.clear()
    with pytest.raises(IncompatibleFilterError, match="BLOOM_DELTA_RESET"):
        memory(redis, key, NOON, identity="another")
    memory(redis, key, NOON).clear()
    assert memory(redis, key, NOON, identity="another").holds == "0 slices"


def test_keys_of_others_stay(redis_server, key):
    """Whatever stands among the names of the slices."""
    marked = memory(redis_server, key, NOON)
    marked.add([(KEY, NOON)])
    foreign = [f"{{{key}}}:other:5:1", f"{{{key}}}:delta:5:x", "junk", b"\xff"]
    for name in foreign:
        redis_server.command("SET", name, "theirs")
        redis_server.command("SADD", f"{{{key}}}:delta:slices", name)
    assert [row.key for row in marked.marks(None)] == [KEY]
    assert marked.forget([KEY]) == 1
    marked.drop_older(0)
    marked.clear()
    assert [redis_server.command("GET", name) for name in foreign] == [b"theirs"] * 4
    redis_server.command("DEL", *foreign)


def test_marks_in_redis_are_counted_listed_and_forgotten(redis_server, key, capsys):
    """With the starts of their slices; another key is no delta store."""
    now, page = time.time(), fingerprint(Request("http://example.com/a"))
    identity = FingerprinterIdentity.of(RequestFingerprinter()).to_text()
    marked = memory(redis_server, key, now, identity=identity)
    marked.add([(page, now), (page, now - 5 * HOUR), (KEY, now - 5 * HOUR)])

    def delta(*words):
        status = main(["delta", *words, "-s", f"BLOOM_DELTA_DIR={key}"])
        printed = capsys.readouterr()
        return status, printed.out.splitlines() or printed.err.splitlines()

    assert delta("count", redis_server.url) == (0, [f"{marked.name}: 3 marks in 2 slices"])
    status, lines = delta("list", redis_server.url, "--older", "2h", "--json")
    start = (now - 5 * HOUR) // HOUR * HOUR
    found = {(each["key"], each["time"]) for each in map(json.loads, lines)}
    time_ = datetime.fromtimestamp(start, timezone.utc).isoformat()
    assert (status, found) == (0, {(KEY.hex(), time_), (page.hex(), time_)})
    assert delta("forget", redis_server.url, "http://example.com/a") == (0, ["forgot 1 page"])
    assert not marked.known_until(page)
    assert marked.known_until(KEY)
    _, lines = delta("forget", redis_server.url, "--older", "2h")
    assert lines[0] == "forgot 1 slice"
    assert not marked.known_until(KEY)
    marked.clear()
    status, (line,) = delta("count", redis_server.url)
    assert status == 2
    assert "is no delta store: give the BLOOM_DELTA_DIR of its crawl" in line
