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
from tests.delta.test_crawls import (
    AGAIN,
    KNOWN,
    PER_DAY,
    check_fleet,
    found_on,
    item_of,
    pages,
    tell,
    verdicts,
)
from tests.world.delta import REWRITTEN, details

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


def test_a_store_tells_its_size(redis, key):
    """In slices, digests and bytes, and from when its oldest slice is."""
    assert (memory(redis, key, NOON).holds, memory(redis, key, NOON).oldest) == ("0 slices", None)
    memory(redis, key, NOON).add([(KEY, NOON), Row(b"o" * 20, None, b"2" * 16)])
    found = memory(redis, key, NOON)
    assert (found.holds, found.oldest) == ("1 slice, 1 digest", NOON // HOUR * HOUR)
    assert found.nbytes > 0


@pytest.mark.parametrize("age", [0, 3.5, 8])
def test_redis_lets_slices_expire(redis_server, key, age):
    """A slice stays for the period after its end, whenever it was written to, and no longer."""
    now = NOON + 0.5 * HOUR
    marked = memory(redis_server, key, now)
    marked.add([(KEY, now - age * HOUR)])
    end = (now - age * HOUR) // HOUR * HOUR + HOUR
    with redis_server.client() as client:
        (name,) = [n for n in client.keys(f"*{key}*") if n.rpartition(b":")[2].isdigit()]
        left = end + PERIOD - now
        # the clock of Redis goes on meanwhile
        assert left - HOUR / 2 < client.ttl(name) <= left + 1
        for late in (HOUR, 1):  # what would have expired
            old = NOON - 20 * HOUR
            memory(redis_server, key, old + HOUR + PERIOD + late).add([(KEY, old)])
        assert len([n for n in client.keys(f"*{key}*") if n.rpartition(b":")[2].isdigit()]) == 1


def test_without_a_period_nothing_expires(redis_server, key):
    """There is one slice then."""
    memory(redis_server, key, NOON, period=None).add([(KEY, NOON)])
    assert memory(redis_server, key, NOON + 100 * PERIOD, period=None).known_until(KEY)
    with redis_server.client() as client:
        assert {client.ttl(name) for name in client.keys(f"*{key}*")} == {-1}


def test_clearing_and_another_fingerprinter(redis, key):
    """Whose marks are of no use is refused, and can be cleared."""
    memory(redis, key, NOON).add([(KEY, NOON)])
    with pytest.raises(IncompatibleFilterError, match="BLOOM_DELTA_RESET"):
        memory(redis, key, NOON, identity="another")
    memory(redis, key, NOON).clear()
    assert not memory(redis, key, NOON, identity="another").known_until(KEY)


@pytest.mark.parametrize("done", range(5))
def test_an_interrupted_clearing_is_refused_to_others_and_can_be_finished(
    redis, key, monkeypatch, done
):
    """What is left after each of its commands is found again, and still that fingerprinter's."""
    store = memory(redis, key, NOON)
    store.add([(KEY, NOON), (b"o" * 20, NOON - HOUR), Row(b"d" * 20, None, b"2" * 16)])
    call, left = store.client.call, ["unlink"] * done

    def dying(command, *arguments):
        if command == "unlink":
            left.pop()
        return call(command, *arguments)

    monkeypatch.setattr(store.client, "call", dying)
    with closing(store), pytest.raises(IndexError):
        store.clear()
    with pytest.raises(IncompatibleFilterError):
        memory(redis, key, NOON, identity="another")
    memory(redis, key, NOON).clear()
    assert memory(redis, key, NOON, identity="another").holds == "0 slices"


def test_keys_of_others_stay(redis_server, key):
    """Whatever stands among the names of the slices."""
    marked = memory(redis_server, key, NOON)
    marked.add([(KEY, NOON)])
    ours = marked._slices(None)
    foreign = [f"{{{key}}}:other:5:1", f"{{{key}}}:delta:5:x", "junk", b"\xff"]
    for name in foreign:
        redis_server.command("SET", name, "theirs")
        redis_server.command("SADD", f"{{{key}}}:delta:slices", name)
    assert marked._slices(None) == ours
    assert marked.forget([KEY]) == 1
    marked.drop_older(0)
    marked.clear()
    assert [redis_server.command("GET", name) for name in foreign] == [b"theirs"] * 4
    assert marked._slices(None) == []
    for name in foreign:
        redis_server.command("DEL", name)


@pytest.fixture(scope="module")
def stories(redis_server):
    """What became of the crawls in Redis."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DELTA_REDIS", redis_server.url)
        return tell("redis", "fleet_job", "fleet")


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["Scheduler", "RedisDurableScheduler"])
def test_a_crawl_skips_what_another_has_done(stories, scheduler):
    """On whatever machine, with the crawl in Redis or its filter only."""
    _, second, *_ = stories[scheduler]
    assert {*second["asked"]} == AGAIN


def test_a_reset_forgets_when_a_round_begins(stories):
    """By the worker that begins it, and by none that joins it later."""
    _, _, reset, late, third = stories["RedisDurableScheduler"]
    assert pages("item", "moved", "keyed", "posted") <= {*reset["asked"]}
    assert (late["reason"], late["asked"]) == ("bloom_over", [])
    assert {*third["asked"]} == found_on(3)


def test_workers_that_are_killed_have_marked_no_page_without_its_items(stories):
    """Three of them, with and without a JOBDIR, which is thrown away."""
    check_fleet(stories["fleet0"])


def test_the_last_second_of_a_killed_worker_is_fetched_again(stories):
    """By the next crawl: only what that worker has fetched."""
    killed, again, second = stories["jobless"]
    assert (killed["status"], again["reason"]) == (-9, "finished")
    assert AGAIN <= {*second["asked"]} <= AGAIN | {*killed["asked"]}
    assert {item_of(page) for page in details(2) - pages("error")} <= {*second["written"]}


def test_marks_of_feeds_that_are_stored_at_the_end_wait_in_the_job_of_their_worker(stories):
    """Which is killed, started again with its JOBDIR, and stores them."""
    _, again, second = stories["jobbed"]
    assert again["reason"] in {"finished", "bloom_over"}
    assert {*second["asked"]} == AGAIN


def test_a_crawl_compares_with_what_another_has_found(stories):
    """With the store in Redis; a worker with a JOBDIR leaves out the items of unchanged pages."""
    told = {name: stories[name] for name in ("redis_compared", "redis_left_out")}
    for runs in told.values():
        assert [verdicts(run) for run in runs] == PER_DAY[:3]
    assert [len(run["items"]) for run in told["redis_compared"][1:]] == [32, 32]
    assert [sorted(run["items"]) for run in told["redis_left_out"][1:]] == [
        KNOWN,
        [REWRITTEN[3]] * 2,
    ]


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
