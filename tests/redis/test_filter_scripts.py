"""What a script leaves that fails on the way, after whichever command: it keeps what it has
written, and yet no new key may ever count as seen."""

import re
from functools import partial

import pytest

from scrapy_bloom import SharedFilterError
from scrapy_bloom.redis import filter as filters
from scrapy_bloom.redis import scripts
from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.filter import RedisBloomFilter, delete_filter
from tests.redis.fixtures import keys, lone_worker, offer
from tests.redis.server import lua_script

NAMES = sorted(
    name
    for name, value in vars(scripts).items()
    if isinstance(value, scripts.Script)
    and not (value.in_slot or name.startswith(("DELTA_", "TAKE_")))
)
COMMANDS = {
    name: sorted(set(re.findall(r"redis\.call\('(\w+)'", vars(scripts)[name].text)))
    for name in NAMES
}
WRITING = ["TEST_AND_SET", "MAKE_SHARD", "DELETE", "MAKE_HEADER"]
CAPACITY = 100  # few enough for every shard to grow


class Cut:
    """A script that fails instead of its `n`-th command; `commands` has what it did not come to."""

    def __init__(self, monkeypatch, name, n):
        self.commands = set()
        self._script = vars(scripts)[name]
        self._whole = (self._script.text, self._script.digest)
        counted = f"""
            local left = {n}
            local function call(command, ...)
              left = left - 1
              if left < 0 then error('OOM cut off before ' .. command) end
              return redis.call(command, ...)
            end
        """
        cut = lua_script(counted + self._script.text.replace("redis.call(", "call("))
        monkeypatch.setattr(self._script, "text", cut.text)
        monkeypatch.setattr(self._script, "digest", cut.digest)

    def happened(self, work, *arguments):
        """Return what `work` returns, or None if it was cut off."""
        try:
            return work(*arguments)
        except SharedFilterError as error:
            self.commands.add(re.search(r"cut off before (\w+)", str(error))[1])

    def mend(self):
        self._script.text, self._script.digest = self._whole


def opened(server, key, patience=5):
    client = RedisClient(server.url)
    client._patience = patience
    return RedisBloomFilter(client, key, CAPACITY, 1e-6)


@pytest.mark.parametrize("patience", [0, 0.06], ids=["once", "again"])
@pytest.mark.slow
def test_adding_that_is_cut_off(redis_server, key, monkeypatch, patience):
    """Before each command: the keys are new afterwards, also to that worker, and then known."""
    commands = set()
    for n in range(12):
        cut_off = adding_is_cut_off(redis_server, f"{key}after{n}", monkeypatch, n, patience)
        assert cut_off or n >= 5
        commands |= cut_off
    assert commands == {*COMMANDS["TEST_AND_SET"]} - {"UNLINK"} or patience


def adding_is_cut_off(redis_server, key, monkeypatch, n, patience):
    first = opened(redis_server, key)
    for number in keys(0, 400):
        first.add(number)
    cut = Cut(monkeypatch, "TEST_AND_SET", n)
    first.client._patience = patience
    failed = []
    for number in keys(1_000, 1_030):
        seen = cut.happened(first.add, number)
        assert not seen
        if seen is None:
            failed.append(number)
        first.client._down = None  # as if time had passed
    cut.mend()
    other = opened(redis_server, key)
    assert not any(map(first.add, failed[::2]))
    assert not any(map(other.add, failed[1::2]))
    assert all(map(other.add, keys(0, 400) + keys(1_000, 1_030)))
    other.check()
    assert 430 <= len(other) <= 430 + 90  # what was counted before it was cut off
    other.delete()
    assert redis_server.names(key) == []
    for opened_filter in (first, other):
        opened_filter.close()
    return cut.commands


def test_growing_over_what_was_left(redis_server, key):
    """A string at the next layer's key is not taken for its own, and gets its exact size."""
    tested = opened(redis_server, key)
    for shard in tested.shards:
        redis_server.command("SET", shard.keys[2], b"\xff" * 20_000)
    assert not any(map(tested.add, keys(0, 1_000)))
    assert len(tested.layers) > 1
    tested.check()
    tested.close()


@pytest.mark.parametrize("name", ["MAKE_HEADER", "MAKE_SHARD", "READ_SHARD"])
@pytest.mark.parametrize("before", ["nothing", "a filter without header", "a filter"])
@pytest.mark.slow
def test_opening_that_is_cut_off(redis_server, key, monkeypatch, name, before):
    """Once before each command: the next worker gets a filter that knows what it should."""
    n = 0
    while opening_is_cut_off(redis_server, f"{key}after{n}", monkeypatch, name, n, before):
        n += 1
    assert n or before == "a filter"


def opening_is_cut_off(redis_server, key, monkeypatch, name, n, before):
    if before != "nothing":
        old = opened(redis_server, key)
        for number in keys(0, 200):
            old.add(number)
        old.close()
    if before == "a filter without header":
        redis_server.command("DEL", key)
    cut = Cut(monkeypatch, name, n)
    monkeypatch.setattr(filters, "delete_shards", lambda *_: 0)
    if made := cut.happened(opened, redis_server, key, 0):
        made.close()
    monkeypatch.undo()
    tested = opened(redis_server, key)
    tested.check()
    assert list(map(tested.add, keys(0, 200))) == [before == "a filter"] * 200
    tested.delete()
    tested.close()
    assert redis_server.names(key) == []
    return cut.commands


@pytest.mark.parametrize("where", ["{}", "#KEYS > 1 and 2 or {}"], ids=["shard", "header"])
@pytest.mark.parametrize("n", range(2))
def test_deleting_that_is_cut_off(redis_server, key, monkeypatch, where, n):
    """It is done again, and then nothing is left."""
    old = opened(redis_server, key)
    for number in keys(0, 200):
        old.add(number)
    cut = Cut(monkeypatch, "DELETE", where.format(n))
    old.client._patience = 0
    cut.happened(old.delete)
    assert cut.commands
    cut.mend()
    with RedisClient(redis_server.url) as client:
        delete_filter(client, key)
    assert redis_server.names(key) == []
    old.close()


# with rights that are missing, as a crawl meets it


@pytest.fixture
def worker(make_dupefilter, redis_server, key, monkeypatch):
    """Return a function that makes the dupefilter of a user whose commands the test sets."""
    monkeypatch.setattr("scrapy_bloom.redis.client._FIRST_PAUSE", 60)
    bot = f"redis://{key}:secret@127.0.0.1:{redis_server.port}/0"
    redis_server.command("ACL", "SETUSER", key, "on", ">secret", "~*", "+@all")
    options = {"BLOOM_REDIS_URL": bot, "BLOOM_REDIS_KEY": key, "BLOOM_CAPACITY": CAPACITY}
    return partial(lone_worker, make_dupefilter, redis_server, **options)


@pytest.mark.parametrize("command", COMMANDS["TEST_AND_SET"])
def test_a_right_that_is_missing_makes_nothing_seen(worker, redis_server, key, command):
    """New requests are new, and new to others; and in the filter when the right is granted."""
    tested = worker()
    offer(tested, 0, 400)
    for shard in tested._shared.shards:  # what an attempt to grow has left
        redis_server.command("SET", shard.keys[-1], "")
    redis_server.command("ACL", "SETUSER", key, f"-{command}")
    assert offer(tested, 400, 550) == [False] * 150
    assert offer(tested, 400, 550) == [True] * 150
    assert offer(tested, 0, 400) == [True] * 400
    assert len(tested.uncommitted) > 0
    redis_server.command("ACL", "SETUSER", key, f"+{command}")
    tested._shared.client._not_before = 0  # as if time had passed
    assert offer(tested, 550, 553) == [False] * 3
    assert not tested.uncommitted
    assert offer(worker(), 0, 554) == [True] * 553 + [False]


@pytest.mark.parametrize(
    ("name", "command"),
    [(name, command) for name in ("MAKE_HEADER", "MAKE_SHARD", "READ_SHARD")
     for command in COMMANDS[name]],
)  # fmt: skip
@pytest.mark.parametrize("there", [False, True])
def test_a_right_that_is_missing_at_the_start(worker, redis_server, key, name, command, there):
    """The start is refused in the server's words, or the right was not needed."""
    if there:
        offer(worker(), 0, 10)
    redis_server.command("ACL", "SETUSER", key, f"-{command}")
    refusal = ""
    try:
        assert offer(worker(), 10, 100) == [False] * 90
    except SharedFilterError as error:
        refusal = str(error)
    assert not refusal or re.search("no permissions|can't run this command", refusal)
    redis_server.command("ACL", "SETUSER", key, f"+{command}")
    fresh = worker()
    assert offer(fresh, 100, 200) == [False] * 100
    assert offer(fresh, 0, 10) == [there] * 10
    fresh._shared.check()


@pytest.mark.parametrize("command", ["info", "ping"])
def test_what_a_worker_asks_beside_the_scripts(worker, redis_server, key, command):
    """INFO and PING: what it has seen is seen all the same."""
    redis_server.command("ACL", "SETUSER", key, f"-{command}")
    if command == "ping":
        with pytest.raises(SharedFilterError, match="ping"):
            worker()
        redis_server.command("ACL", "SETUSER", key, "+ping")
        tested = worker()
        redis_server.command("ACL", "SETUSER", key, "-ping")
    else:
        tested = worker()
    assert offer(tested, 0, 100) == [False] * 100
    redis_server.command("CLIENT", "KILL", "TYPE", "normal")
    tested._shared.client.confirmed_until = 0  # as if time had passed
    assert offer(tested, 0, 101) == [True] * 100 + [False]


def test_every_script_is_cut_off_somewhere():
    """No script and no command is left out above."""
    assert {*NAMES} == {*WRITING, "READ_SHARD"}
