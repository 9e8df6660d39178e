"""The connection to Redis: what it shows of its URL, and what it can be asked for."""

from threading import Timer
from time import monotonic
from types import SimpleNamespace

import pytest

from scrapy_bloom import SharedFilterError
from scrapy_bloom.redis import client as client_module
from scrapy_bloom.redis.client import RedisClient, ScriptError, public_url
from scrapy_bloom.redis.filter import RedisBloomFilter
from tests.patience import PATIENCE
from tests.redis.server import lua_script


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:hu%40sh@host/2?password=hush", "redis://host/2"),
        ("rediss://user:hush@[::1]:6380/0", "rediss://[::1]:6380/0"),
        ("redis+cluster://:hush@node:7000", "redis+cluster://node:7000"),
        ("unix://user:hush@/run/redis.sock?db=1&password=hush", "unix:///run/redis.sock"),
        *((f"redis://:hu{sign}sh@host", "(not shown)") for sign in "#/?"),
        *((url, "(not shown)") for url in ("redis://:hush", "redis://[hush", "hush")),
        ("http://:hush@host", "http://…"),
    ],
)
def test_urls_are_shown_without_secrets(url, shown):
    """Nothing is left where a password may have slipped into another part."""
    assert public_url(url) == shown
    assert "hush" not in public_url(url)


@pytest.mark.parametrize("kind", ["server", "cluster"])
def test_a_start_waits_for_a_slow_server(request, key, kind):
    """Also with a short lease, which leaves little time for each answer."""
    slow = request.getfixturevalue(f"own_{kind}")

    def pause():
        for each in getattr(slow, "nodes", [slow]):
            each.pause()
            Timer(0.3, each.resume).start()

    pause()
    with RedisClient(slow.url, PATIENCE, 0.05) as client:
        pause()
        made = RedisBloomFilter(client, key, 1_000, 1e-6)
        assert not made.add(b"key")
        made.check()


@pytest.mark.parametrize("kind", ["server", "cluster"])
def test_a_start_waits_for_a_restart(request, monkeypatch, kind):
    """A command is refused at once, and so is a start with a wrong password."""
    own = request.getfixturevalue(f"own_{kind}")
    nodes, sleep = getattr(own, "nodes", [own]), pytest.fail
    clock = SimpleNamespace(monotonic=monotonic, sleep=lambda _: sleep("a pause"))
    monkeypatch.setattr(client_module, "time", clock)
    for each in nodes:
        each.stop()
    with pytest.raises(SharedFilterError, match="refused"):
        RedisClient(own.url)
    sleep = lambda _: [each.start() for each in nodes if each.process.poll() is not None]  # noqa: E731
    RedisClient(own.url, PATIENCE, waits=True).close()
    sleep = pytest.fail
    with pytest.raises(SharedFilterError, match="invalid username-password"):
        RedisClient(own.url.replace("//", "//user:wrong@"), waits=True)


def test_servers_are_counted_once(redis):
    """However often connections are made, a server that is the same is one."""
    with RedisClient(redis.url) as client:
        for _ in range(3):
            for number in range(20):
                client.run(lua_script("return 1"), [f"{{{number}}}"])
            assert client.servers == len(getattr(redis, "nodes", [redis]))
            client._disconnect()
            assert client.confirm()


def test_what_redis_refuses_is_an_error_in_its_words(redis_server):
    """Errors of commands and scripts name the server and say what it said."""
    with RedisClient(redis_server.url) as client:
        client.patience = 0
        with pytest.raises(SharedFilterError, match=f"{redis_server.url} .*wrong number"):
            client.call("execute_command", "GET")
        with pytest.raises(SharedFilterError, match="no such thing"):
            client.run(lua_script("return redis.error_reply('no such thing')"), ["x"])
        assert client.call("ping")


@pytest.mark.parametrize("name", ["BLOOM:TASKS", "a BUSY one"])
def test_damage_is_no_outage_whatever_the_key_is_called(redis_server, key, name):
    """Though errors of an outage have such words; what the script says names the key."""
    name = f"{{{name}:{key}}}"
    with RedisClient(redis_server.url) as client:
        tested = RedisBloomFilter(client, name, 10, 1e-6)
        tested.add(b"a")
        for state in redis_server.names(key):
            if redis_server.command("TYPE", state) in (b"hash", "hash"):
                redis_server.command("HSET", state, "count", "x")
        tested.known.clear()
        with pytest.raises(ScriptError, match=f"{key}.* has no layers or no count"):
            b"a" in tested  # noqa: B015
        for state in redis_server.names(key):
            redis_server.command("SET", state, "x")
        with pytest.raises(ScriptError, match=f"{key}.* WRONGTYPE"):
            b"a" in tested  # noqa: B015
