"""Servers and keys for the tests of the shared filter."""

from itertools import count

import pytest

from scrapy_bloom.redis_backend import copying, layout, lifecycle
from tests.redis_backend.server import Cluster, Server, missing


def _serve(kind, folder, **options):
    if reason := missing():
        pytest.skip(reason)
    server = kind(folder, **options)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory):
    """A server for tests that leave it as it was, apart from keys of their own."""
    yield from _serve(Server, tmp_path_factory.mktemp("redis"))


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory):
    """A Cluster of three nodes, as `redis_server`."""
    yield from _serve(Cluster, tmp_path_factory.mktemp("cluster"))


@pytest.fixture(params=["server", "cluster"])
def redis(request):
    """The one and the other."""
    return request.getfixturevalue(f"redis_{request.param}")


@pytest.fixture
def own_server(tmp_path):
    """A server that the test may harm."""
    yield from _serve(Server, tmp_path)


@pytest.fixture
def own_cluster(tmp_path):
    """A Cluster that the test may harm."""
    yield from _serve(Cluster, tmp_path)


_keys = count()


@pytest.fixture
def key():
    """A key that nobody has used."""
    return f"key{next(_keys)}"


@pytest.fixture
def few_shards(monkeypatch):
    """Filters of two shards: 64, of at least a block each, are full with 200,000 keys only, and
    take 50 ms to make."""
    for module in (layout, lifecycle, copying):
        monkeypatch.setattr(module, "SHARDS", 2)
    monkeypatch.setattr(layout, "SHARD_BITS", 1)


def lone_worker(make_dupefilter, own, timeout, server=None, **settings):
    """Return the dupefilter of a worker that shares a filter alone, at its `own` server or another
    one."""
    return make_dupefilter(
        **{
            "DUPEFILTER_CLASS": "scrapy_bloom.RedisBloomDupeFilter",
            "BLOOM_REDIS_URL": (server or own).url,
            "BLOOM_REDIS_TIMEOUT": timeout,
            "BLOOM_CAPACITY": 10_000,
            **settings,
        }
    )
