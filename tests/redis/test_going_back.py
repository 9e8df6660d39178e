"""Redis goes back in time: what it has forgotten is new again, whatever a worker remembers. Other
workers have added more since than was lost in each test, so no count of keys tells."""

from functools import partial

import pytest
from scrapy import Request

from scrapy_bloom.speed.known import known_urls
from tests.patience import wait_until
from tests.redis.fixtures import lone_worker, offer
from tests.redis.server import Name, Replica


@pytest.fixture
def worker(own_server, make_dupefilter):
    """Return a function that makes the dupefilter of a worker at `own_server`."""
    settings = {"BLOOM_REDIS_TIMEOUT": 10, "BLOOM_CAPACITY": 10_000}
    return partial(lone_worker, make_dupefilter, own_server, **settings)


def later(tested):
    """Let as much time pass as an answer stands for, at most."""
    tested._shared.client.confirmed_until = 0.0


def busy(tested):
    """Let the last answer stand for as long as the test takes, as if there always were one."""
    tested._shared.client.confirmed_until = float("inf")


def push_past(worker, server):
    """Let a worker who starts now add more than there ever was."""
    other = worker(server)
    assert offer(other, 10_000, 13_000) == [False] * 3_000
    other.close("finished")


def went_back(worker, own_server, offered_by=None, **settings):
    """Return a worker that has seen 0 to 200, from 100 on since a snapshot from which the server
    has restarted; another one offered them where it is named."""
    tested = worker(**settings)
    offering = offered_by or tested
    offer(offering, 0, 100)
    own_server.command("SAVE")
    offer(offering, 100, 200)
    assert offer(tested, 0, 200) == [True] * 200
    own_server.restart()
    push_past(worker, own_server)
    return tested


def forgets(tested, told, *, looks_early=False):
    """What Redis has lost, 100 to 200, is new again, and the rest is seen; one line says why. Who
    asks before that whether a request or a link is known hears of it, too."""
    before = len(told())
    later(tested)
    if looks_early:
        known, url = known_urls(tested), "http://example.com/150"
        assert (known.is_known(Request(url)), known.has_recent("", url)) == (False, False)
    assert offer(tested, 0, 200) == [True] * 100 + [False] * 100
    assert offer(tested, 0, 200) == [True] * 200
    (line,) = told()[before:]
    assert "another server has taken its place" in line
    assert tested.crawler.engine.closed == []
    assert tested.crawler.stats.get_value("bloom/outages") is None


@pytest.mark.parametrize("is_early", [False, True])
def test_a_restart_from_an_older_snapshot(worker, own_server, told, is_early):
    """A worker whose requests are all known, to itself or others, notices it without a new one."""
    offered_by = worker() if is_early else None
    tested = went_back(worker, own_server, offered_by, BLOOM_URL_CACHE=65_536 * is_early)
    forgets(tested, told, looks_early=is_early)
    assert offer(worker(), 0, 200) == [True] * 200


def test_keys_that_are_put_back_while_the_connection_lasts(worker, own_server):
    """Only the answers tell, by fewer keys than a shard has had: what was lost is new again."""
    tested = worker()
    offer(tested, 0, 100)
    kept = {name: own_server.command("DUMP", name) for name in own_server.names()}
    offer(tested, 100, 200)
    for name, dump in kept.items():
        own_server.command("RESTORE", name, 0, dump, "REPLACE")
    assert offer(tested, 500, 520) == [False] * 20
    assert offer(tested, 0, 200) == [True] * 100 + [False] * 100


def test_a_restart_while_questions_are_asked_all_the_time(worker, own_server, told):
    """A worker whose every answer is fresh, since others are, notices it with the first."""
    tested = went_back(worker, own_server)
    busy(tested)
    assert offer(tested, 500, 501) == [False]
    busy(tested)
    assert offer(tested, 0, 200) == [True] * 100 + [False] * 100
    assert len(told()) == 1


def test_a_restart_in_an_outage(worker, own_server):
    """What was remembered meanwhile is in the filter afterwards, what Redis has lost is new."""
    tested = worker(BLOOM_REDIS_TIMEOUT=1)
    offer(tested, 0, 100)
    own_server.command("SAVE")
    offer(tested, 100, 200)
    own_server.stop()
    later(tested)
    assert offer(tested, 0, 250) == [True] * 200 + [False] * 50
    later(tested)
    assert offer(tested, 0, 250) == [True] * 250
    own_server.start()
    push_past(worker, own_server)
    later(tested)
    assert offer(tested, 0, 250) == [True] * 100 + [False] * 100 + [True] * 50
    assert offer(tested, 250, 251) == [False]
    assert not tested.uncommitted
    assert offer(worker(), 0, 251) == [True] * 251


def test_where_nothing_is_lost_nothing_is_new(worker, own_server, told):
    """A connection that was lost is made anew; nothing is asked about or told. After a restart, and
    where INFO is forbidden and so each new connection may lead to a server that has forgotten, what
    was seen is asked about once more, with a line that says why."""
    tested = worker()

    def asked():
        own_server.command("CONFIG", "RESETSTAT")
        later(tested)
        assert offer(tested, 0, 100) == [True] * 100
        return own_server.calls().get("evalsha", 0)

    def lose_connections():
        own_server.command("CLIENT", "KILL", "TYPE", "normal")

    offer(tested, 0, 100)
    for _ in range(3):
        lose_connections()
        assert asked() == 0
    assert told() == []
    own_server.command("SAVE")
    own_server.restart()
    assert (asked() >= 100, asked(), len(told())) == (True, 0, 1)
    own_server.command("ACL", "SETUSER", "default", "-info")
    lose_connections()
    later(tested)
    assert offer(tested, 0, 100) == [True] * 100
    own_server.command("ACL", "SETUSER", "default", "+info")
    assert own_server.calls()["evalsha"] >= 100
    assert len(told()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("primary", ["dies", "hangs"])
def test_a_failover_to_a_lagging_replica(worker, own_server, tmp_path, told, primary):
    """The primary is dead, or silent with its connections open."""
    with Replica(own_server, tmp_path) as replica, Name(own_server) as name:
        tested = worker(name)
        offer(tested, 0, 100)
        replica.follow()
        replica.command("REPLICAOF", "NO", "ONE")
        offer(tested, 100, 200)
        own_server.stop() if primary == "dies" else own_server.pause()
        name.lead_to(replica)
        push_past(worker, replica)
        forgets(tested, told)
        tested.close("finished")


@pytest.mark.slow
def test_a_node_of_a_cluster(own_cluster, worker, told):
    """What its shards have lost is new again, what others have is seen."""
    join = partial(worker, own_cluster, BLOOM_REDIS_TIMEOUT=20)
    tested = join()
    offer(tested, 0, 100)
    node = own_cluster.nodes[1]
    node.command("SAVE")
    assert offer(tested, 100, 400) == [False] * 300
    node.restart()
    nodes = own_cluster.nodes
    wait_until(lambda: all(b"state:ok" in each.command("CLUSTER", "INFO") for each in nodes))
    other = join()
    offer(other, 10_000, 13_000)
    known = offer(join(), 0, 100)
    later(tested)
    answers = offer(tested, 0, 400)
    assert known == answers[:100] == [True] * 100
    assert 50 < answers[100:].count(False) < 200
    assert offer(tested, 0, 400) == [True] * 400
    assert len([line for line in told() if "another server" in line]) == 1
