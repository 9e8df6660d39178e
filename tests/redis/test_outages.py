"""What a crawl does when a real server fails: a new request is never taken for a seen one,
`request_seen` does not raise, and what was offered once is seen the second time."""

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from threading import Event
from types import SimpleNamespace

import pytest

from scrapy_bloom import RedisBloomDupeFilter, SharedFilterError
from scrapy_bloom.redis import transport as transport_module
from scrapy_bloom.redis.scripts import COMMIT, HEARTBEAT
from scrapy_bloom.redis.transport import Transport
from tests.fakes import raising
from tests.patience import PATIENCE, wait_until
from tests.redis.fixtures import lone_worker, offer
from tests.redis.server import Name, Replica


@pytest.fixture
def worker(own_server, make_dupefilter):
    """Return a function that makes the dupefilter of a worker at `own_server`."""
    settings = {"BLOOM_REDIS_TIMEOUT": 1.2, "BLOOM_CAPACITY": 10_000}
    return partial(lone_worker, make_dupefilter, own_server, **settings)


@contextmanager
def outage(server, kind="stopped"):
    """Let a server be stopped, paused or full for a while."""
    memory = partial(server.command, "CONFIG", "SET", "maxmemory")
    begin, end = {
        "stopped": (server.stop, server.start),
        "paused": (server.pause, server.resume),
        "full": (partial(memory, "1mb"), partial(memory, "0")),
    }[kind]
    begin()
    yield
    end()


@pytest.fixture
def durable_server(own_server):
    """`own_server`, which keeps what it has over a restart."""
    own_server.restart(appendonly="yes", appendfsync="no")  # as a killed process leaves it
    return own_server


def wait_for_an_attempt(tested):
    time.sleep(max(0, tested._shared.client._not_before - time.monotonic()))


def test_an_outage_in_the_replay_loses_nothing(worker, durable_server, watch):
    """Redis has answered once, and does not for the next: that one stays in memory, too."""
    tested = worker()
    with outage(durable_server):
        assert offer(tested, 0, 10) == [False] * 10
    wait_for_an_attempt(tested)
    calls, fail = count(), raising(SharedFilterError("no answer"))
    watch(tested.shared.client, "insist", lambda *_: next(calls) == 1 and fail())
    assert offer(tested, 10, 12) == [False] * 2
    tested.close("finished")
    assert offer(worker(), 0, 13) == [True] * 12 + [False]


def test_what_scrapy_redis_could_not_queue_in_an_outage_is_new_to_others(worker, durable_server):
    """Its scheduler has lost those requests: whoever finds their links again fetches them."""
    crawler = worker(BLOOM_REDIS_KEY="key", SCHEDULER_PERSIST=True).crawler
    tested, other = (RedisBloomDupeFilter.from_spider(crawler.spider) for _ in range(2))
    offer(tested, 0, 5)
    with outage(durable_server):
        assert offer(tested, 5, 8) == [False] * 3
    wait_for_an_attempt(tested)
    tested.close("bloom_error")
    assert offer(other, 0, 8) == [True] * 5 + [False] * 3
    other.close("finished")


@pytest.mark.parametrize("kind", ["stopped", "paused", "full"])
def test_an_outage_closes_the_spider(worker, durable_server, next_turn, told, caplog, kind):
    """Some seconds after it began, with one ERROR line. What it has seen is replayed, a part with
    each new request while the spider closes and the rest at close, when Redis answers again."""
    tested = worker()
    assert offer(tested, 0, 100) == [False] * 100
    with outage(durable_server, kind):
        assert offer(tested, 50, 350) == [True] * 50 + [False] * 250
        assert offer(tested, 100, 350) == [True] * 250
        assert tested.crawler.engine.closed == []
        next_turn()
        assert tested.crawler.engine.closed == ["bloom_error"]
        (message,) = told(logging.ERROR)
        assert f"Redis at {durable_server.url}" in message
        assert "Closing the spider" in message
    wait_for_an_attempt(tested)
    assert len(tested.uncommitted) == 250
    assert offer(tested, 350, 352) == [False] * 2
    assert len(tested.uncommitted) == 50
    assert len(told(logging.ERROR)) == 1
    assert "Redis answers again: " not in caplog.text
    tested.close("bloom_error")
    assert "Redis answers again: " in caplog.text
    stats = tested.crawler.stats
    assert (stats.get_value("bloom/items"), stats.get_value("bloom/outages")) == (352, 1)
    assert offer(worker(), 0, 353) == [True] * 352 + [False]


def test_an_outage_blocks_the_crawl_for_a_bounded_time(worker, own_server, monkeypatch):
    """Redis is asked for the time that is set, and then not before ten times of that."""
    tested = worker()
    client, asked = tested._shared.client, []
    ask = client._run

    def asking(*arguments):
        began = time.monotonic()
        try:
            return ask(*arguments)
        finally:
            asked.append(time.monotonic() - began)

    monkeypatch.setattr(client, "_run", asking)
    with outage(own_server, "paused"):
        started = time.monotonic()
        assert offer(tested, 0, 20) == [False] * 20
        assert len(tested.uncommitted) > 0
        assert time.monotonic() - started >= 1.2
        assert 1 <= len(asked) <= 4
        assert client._not_before - started > 10 * asked[-1]
        asked.clear()
        due = client._not_before
        assert offer(tested, 0, 50) == [True] * 20 + [False] * 30
        assert not asked or time.monotonic() >= due


def test_a_quick_restart_is_not_noticed(worker, durable_server, next_turn, told):
    """A server with its data is asked until it answers; the scripts are loaded again."""
    tested = worker(BLOOM_REDIS_TIMEOUT=PATIENCE)
    assert offer(tested, 0, 100) == [False] * 100
    durable_server.stop()
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(offer, tested, 0, 200)
        time.sleep(0.3)
        durable_server.start()
        assert answers.result() == [True] * 100 + [False] * 100
    next_turn()
    assert told(logging.ERROR) == tested.crawler.engine.closed == []
    assert offer(worker(), 0, 201) == [True] * 200 + [False]


def test_an_answer_that_was_lost_is_no_wrong_answer(worker, own_server, monkeypatch, watch):
    """A key that is asked again is new, though the server has added it when it went on."""
    tested = worker()
    client = tested._shared.client
    # however long it takes after the first try
    monkeypatch.setattr(client, "patience", PATIENCE)
    tries = []

    def resume_at_the_second(*arguments):
        tries.append(arguments)
        if len(tries) == 2:
            own_server.resume()

    watch(client, "_run", resume_at_the_second)
    for number in range(4):
        before = len(tested._shared)
        client.confirmed_until = time.monotonic() + PATIENCE  # asks nothing else
        tries.clear()
        own_server.pause()
        assert offer(tested, number, number + 1) == [False]
        assert len(tries) >= 2
        tested._shared.refresh()
        assert len(tested._shared) == before + 1
    assert offer(worker(), 0, 5) == [True] * 4 + [False]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_filter_that_vanishes_is_an_outage(worker, own_server, next_turn, told, restarts):
    """It answers nothing: new requests are new, seen ones seen, and the message says why. What a
    worker remembers is all there is, and stays; nothing is told before something is new."""
    tested = worker()
    assert offer(tested, 0, 100) == [False] * 100
    own_server.restart() if restarts else own_server.command("FLUSHALL")
    for _ in range(2):
        tested._shared.client.confirmed_until = 0.0  # as long as an answer stands for, at most
        assert offer(tested, 0, 100) == [True] * 100
    assert told() == []
    assert offer(tested, 0, 200) == [True] * 100 + [False] * 100
    assert offer(tested, 0, 200) == [True] * 200
    next_turn()
    assert tested.crawler.engine.closed == ["bloom_error"]
    assert "is gone" in told(logging.ERROR)[0]


def test_a_failover_to_a_replica_is_followed(worker, own_server, tmp_path):
    """The connection is made anew where the old primary refuses as READONLY."""
    with Replica(own_server, tmp_path) as replica, Name(own_server) as name:
        tested = worker(name, BLOOM_REDIS_TIMEOUT=10)
        assert offer(tested, 0, 100) == [False] * 100
        replica.follow()
        replica.command("REPLICAOF", "NO", "ONE")
        own_server.command("REPLICAOF", "127.0.0.1", replica.port)
        name.lead_to(replica)
        assert offer(tested, 50, 200) == [True] * 50 + [False] * 100
        assert tested.crawler.engine.closed == []
        other = worker(replica)
        assert offer(other, 0, 201) == [True] * 200 + [False]
        for each in (tested, other):  # before their server is gone
            each.close("finished")


def test_a_start_is_refused_without_the_password(worker, own_server, told, caplog):
    """One ERROR line with the place, and no trace of the password in an exception."""
    own_server.command("CONFIG", "SET", "requirepass", "right")
    own_server.options["requirepass"] = "right"
    at_server = own_server.url.replace("redis://", "redis://:{}@")
    for url, message in (
        (at_server.format("s3cret"), own_server.url),
        ("redis://:s3cret@127.0.0.1:1/0", r"redis://127.0.0.1:1/0 .*BLOOM_REDIS_URL"),
        ("redis+cluster://u:s3cret@127.0.0.1:1", r"redis\+cluster://127.0.0.1:1 "),
        ("unix:///no/such?password=s3cret", "unix:///no/such "),
        ("redis://u:1#s3cret@127.0.0.1", "BLOOM_REDIS_URL cannot be read"),
        ("redis://:s3cret@127.0.0.1:1/0?nonsense=1", "BLOOM_REDIS_URL cannot be read"),
        ("http://:s3cret@127.0.0.1:1/0", "BLOOM_REDIS_URL cannot be read: http://"),
    ):
        caplog.clear()
        with pytest.raises(SharedFilterError, match=message) as caught:
            worker(BLOOM_REDIS_URL=url)
        assert len(told(logging.ERROR)) == 1
        error = caught.value
        while error is not None:
            assert "s3cret" not in str(error)
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        assert "s3cret" not in caplog.text
    assert offer(worker(BLOOM_REDIS_URL=at_server.format("right")), 0, 1) == [False]


def test_an_eviction_policy_gets_a_warning(worker, own_server, told):
    """At start, a policy that could drop the filter's keys is named with the remedy."""
    for number, (policy, maxmemory, warned) in enumerate(
        [("allkeys-lru", "0", 0), ("volatile-lru", "100mb", 0), ("allkeys-lru", "100mb", 1)]
    ):
        own_server.command("CONFIG", "SET", "maxmemory-policy", policy)
        own_server.command("CONFIG", "SET", "maxmemory", maxmemory)
        worker(BLOOM_REDIS_KEY=str(number))
        lines = [line for line in told() if "allkeys-lru" in line and "noeviction" in line]
        assert len(lines) == warned


def transport_of(run, lease):
    """Return a transport with a client that does no more than `run`."""
    client = SimpleNamespace(run=run, close=lambda: None)
    transport = Transport(client, "key", "crawl", lease, print, print)
    transport.turn("worker")
    return transport


def test_a_heartbeat_that_fails_is_one_line(caplog, capfd):
    """Whatever it raises; the next ones are tried, also while calls fail."""
    beaten = []

    def fail(script, *_):
        if script is COMMIT:
            raise SharedFilterError("no memory left")
        beaten.append(1)
        raise TypeError("no such answer")

    transport = transport_of(fail, 0.04)
    transport.send((), print)
    wait_until(lambda: len(beaten) > 1)
    transport.close()
    assert caplog.messages == ["The lease of worker was not renewed: no such answer"]
    assert "Traceback" not in capfd.readouterr().err


def test_a_close_during_a_call_is_quiet(monkeypatch, caplog):
    """The connection is closed under the thread, which then ends without an error."""
    asked, closed, raised = Event(), Event(), []

    def hang(*_):
        asked.set()
        closed.wait()
        raise ValueError("I/O operation on closed file")

    monkeypatch.setattr(threading, "excepthook", raised.append)
    transport = transport_of(hang, 100)
    transport._client.close = closed.set
    transport.send((), print)
    asked.wait()
    transport.close()
    transport._thread.join()
    assert raised == caplog.messages == []


def test_a_lease_is_renewed_in_time_while_the_reactor_rests(monkeypatch):
    """Four times in a lease, for ten minutes: a callback may take long."""
    clock, beaten = [0], []
    monkeypatch.setattr(transport_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    transport = transport_of(lambda *told: beaten.append((clock[0], *told)), 100)
    for clock[0] in range(0, 1000, 5):
        transport._beat()
    transport.close()
    told = HEARTBEAT, ["key"], "crawl", "worker", 100_000
    assert beaten == [(at, *told) for at in range(25, 600, 25)]
