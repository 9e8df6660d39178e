"""Seeds in a list of scrapy-redis's, and how they come into a crawl."""

import json
from functools import partial
from itertools import count

import msgpack
import pytest
from redis import ResponseError
from scrapy import FormRequest, Request, Spider
from scrapy.utils.test import get_crawler

from scrapy_bloom import SharedFilterError
from scrapy_bloom.redis import seeds
from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.filter import RedisBloomFilter
from scrapy_bloom.redis.push import Pusher
from scrapy_bloom.redis.scripts import TAKE_START_URLS
from scrapy_bloom.redis.seeds import SeedList
from scrapy_bloom.redis.settings import RedisSettings
from tests.patience import PATIENCE
from tests.redis.workers import ABORTING, LEASE, StoreWorker, waiting

pytestmark = pytest.mark.usefixtures("few_shards")


class Seeded(Spider):
    """Says where its seeds are."""

    name = "seeded"


@pytest.fixture
def redis(request):
    """Where the crawl is: on a server, or on a Cluster."""
    return request.getfixturevalue(f"redis_{getattr(request, 'param', 'server')}")


@pytest.fixture
def worker(redis, key):
    """A worker of a crawl."""
    worker = StoreWorker(redis.url, key, capacity=100, BLOOM_CAPACITY=100)
    worker.exchange()
    yield worker
    worker.close()


@pytest.fixture
def seed_list(redis, worker, key):
    """Return a function that makes a list of seeds without a thread, which keeps no notes."""
    made = []

    def make(*, where=redis, of=worker, **attributes):
        settings = {"BLOOM_REDIS_URL": where.url, "REDIS_URL": redis.url, "CONCURRENT_REQUESTS": 5}
        crawler = get_crawler(Seeded, settings_dict=settings)
        crawler.spider = Seeded.from_crawler(crawler, redis_key=f"{key}:%(name)s", **attributes)
        where = RedisSettings.read(crawler.settings, "seeded")
        made.append(SeedList.of(crawler, where, of.key, of.dupefilter, of.settings))
        made[-1]._in_reactor = lambda function: function()
        assert made[-1]._keeps == 60  # by so many seconds a server may go back
        made[-1]._keeps = 0
        made[-1].move = partial(made[-1]._move, of.dupefilter.shared)
        return made[-1]

    yield make
    for each in made:
        each.close()


def shops(count):
    return [f"http://shop{number:02}.example.com/" for number in range(count)]


def push(worker, key, *seeds):
    worker.client.call("rpush", f"{key}:seeded", *seeds)


def move_all(*seed_lists):
    """Let them take turns until all is moved."""
    assert any(not sum(each.move() for each in seed_lists) for _ in range(100))


def pending(worker):
    """Return the URLs of the requests that a worker gets, sorted."""
    worker.exchange()
    worker.exchange()
    return sorted(request.url for request in iter(worker.next, None))


@pytest.mark.parametrize(
    ("redis", "kind"),
    [("server", "list"), ("server", "set"), ("server", "sorted set"), ("cluster", "list")],
    indirect=["redis"],
)
def test_every_seed_is_moved_once(worker, seed_list, key, kind):
    """Of any kind of list, by two workers; nothing is left beside it."""
    one, other = seed_list(), seed_list()
    urls = shops(23)
    for at, url in enumerate(urls):
        command = {"list": "rpush", "set": "sadd", "sorted set": "zadd"}[kind]
        worker.client.call(command, f"{key}:seeded", {url: at} if kind == "sorted set" else url)
    assert one.move()
    assert waiting(worker.client, worker.key).total() == 5
    assert not one.is_empty
    for _ in range(2):  # once more, to strike off what the last turn has pushed
        move_all(one, other)
    assert one.is_empty
    assert worker.client.call("exists", f"{worker.key}:start") == 0
    assert pending(worker) == urls
    assert worker.client.call("exists", f"{{{key}:seeded}}:taken") == 0
    assert worker.client.call("exists", f"{{{key}:seeded}}:workers") == 0


def test_seeds_that_meet_a_filter_that_has_grown_are_sent_again(worker, seed_list, key, redis):
    """What was refused for that is pushed with the next call, once."""

    def filtered(data):
        return Request(data.decode())

    seeds = seed_list(make_request_from_data=filtered, redis_batch_size=60)
    with RedisClient(redis.url) as client:
        other = RedisBloomFilter.open(client, worker.key)
        numbers = count()
        while any(len(shard.counts) < 4 for shard in other.shards):
            other.add(b"%d" % next(numbers))
    urls = shops(60)
    push(worker, key, *urls)
    move_all(seeds)
    assert pending(worker) == urls
    push(worker, key, *urls)
    move_all(seeds)
    assert pending(worker) == []


def run_out(worker, key, ahead=0):
    """Let the leases of all that have taken seeds run out, or give them an hour more."""
    leases = f"{{{key}:seeded}}:workers"
    for name, till in worker.client.call("hgetall", leases).items():
        worker.client.call("hset", leases, name, int(till) + ahead if ahead else 0)


def test_seeds_of_a_worker_that_dies_are_taken_by_another(
    worker, seed_list, key, redis, monkeypatch
):
    """After its lease, whenever it dies; no seed is lost or asked twice."""
    dying = seed_list()
    dying._settings = dying._settings.but(lease=PATIENCE)
    push(worker, key, *shops(10))

    def die(*_):
        raise SharedFilterError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(Pusher, "push", die)
        with pytest.raises(SharedFilterError):
            dying.move()
    with monkeypatch.context() as patch:
        patch.setattr(Pusher, "beat", die)
        assert dying.move()
        with pytest.raises(SharedFilterError):
            dying.move()
    other = seed_list()
    assert not other.move()
    assert not other.is_empty
    assert waiting(worker.client, worker.key).total() == 5
    run_out(worker, key)
    assert other.move()
    move_all(other)
    assert pending(worker) == shops(10)


def test_many_seeds_of_workers_that_died_come_back_in_portions(worker, seed_list, key):
    """A call reads some hundreds of what was taken, however much that is."""
    taking, other = seed_list(redis_batch_size=500), seed_list(redis_batch_size=90)
    urls = [f"http://shop{number:04}.example.com/{'x' * 64}" for number in range(3000)]
    push(worker, key, *urls)
    taking._made_in_reactor = lambda _: None
    for _ in range(6):
        taking.move()
    taken = f"{{{key}:seeded}}:taken"
    assert worker.client.call("hlen", taken) == 3000
    elements, left, place, _ = other._client.run(TAKE_START_URLS, other._keys, 0, 1000, "other", 0)
    assert (elements, left, int(place) > 0) == ([], 3000, True)
    run_out(worker, key)
    found = set()
    while len(found) < len(urls):
        elements, _, place, _ = other._client.run(
            TAKE_START_URLS, other._keys, 90, 3_600_000, "other", place
        )
        assert len(elements) <= 90
        assert found.isdisjoint(element for _, element in elements)
        found |= {element for _, element in elements}
    assert {element.decode() for element in found} == {*urls}


def test_a_seed_is_in_its_list_or_noted_wherever_the_script_fails(worker, seed_list, key):
    """It never leaves the one before it is in the other."""
    text, (url,) = ABORTING.replace("KEYS[2]", "KEYS[4]") + TAKE_START_URLS.text, shops(1)
    call, keys = worker.client.call, seed_list()._keys
    for at in count(1):
        call("unlink", *keys)
        push(worker, key, url)
        try:
            worker.client._redis.eval(text, 4, *keys, at, 1, LEASE, "dying", 0)
            break
        except ResponseError:
            there = [*call("lrange", keys[0], 0, -1), *call("hvals", keys[1])]
            assert any(url.encode() in each for each in there), at
    assert at > 5


def test_seeds_of_a_lost_answer_are_taken_again(worker, seed_list, key, monkeypatch):
    """When the lease has run out under which they were noted: the worker goes on with another."""
    seeds = seed_list()
    run, insist = seeds._client.run, seeds._client.insist
    push(worker, key, *shops(10))
    with monkeypatch.context() as patch:
        patch.setattr(
            seeds._client, "insist", lambda *what: run(*what) and (insist(*what)[0], True)
        )
        assert seeds.move()
    run_out(worker, key)
    move_all(seeds)
    assert pending(worker) == shops(10)


def test_seeds_outlive_a_server_that_goes_back(seed_list, own_server, worker, key):
    """The crawl's, to before the push; no worker takes the crawl for over meanwhile."""
    crawl = StoreWorker(own_server.url, key)
    crawl.exchange()
    own_server.command("SAVE")
    urls = shops(5)
    push(worker, key, *urls)
    pushing = seed_list(where=own_server, of=crawl)
    pushing._keeps = 3600
    assert pushing.move()
    assert waiting(crawl.client, crawl.key).total() == 5
    own_server.restart()
    assert waiting(crawl.client, crawl.key).total() == 0
    pushing._keeps = 0
    with pytest.raises(SharedFilterError, match="may have forgotten what was pushed"):
        pushing.move()
    assert not pushing.is_empty
    run_out(worker, key)
    move_all(pushing)
    assert pending(crawl) == urls
    assert pushing.is_empty
    crawl.close()


@pytest.mark.parametrize("ends", ["is slow", "ends"])
def test_no_seed_is_asked_twice(worker, seed_list, key, ends):
    """Though who has pushed it is slow, or ends, before it strikes it off."""
    slow, other = seed_list(), seed_list()
    slow._keeps = other._keeps = 3600
    push(worker, key, *shops(5))
    assert slow.move()
    run_out(worker, key)
    assert other.move()
    if ends == "is slow":
        slow._keeps = 0
        assert not slow.move()
    assert not other.move()
    assert worker.client.call("hlen", f"{{{key}:seeded}}:taken") == 5
    worker.exchange()
    assert len(worker.drain()) == 5
    # all of the crawl is done, however short it has lasted
    assert not other.move()
    assert other.is_empty
    assert pending(worker) == []


def test_a_million_seeds_are_not_a_million_notes(worker, seed_list, key, monkeypatch):
    """Who has many notes waits until some may go."""
    monkeypatch.setattr(seeds, "MOST_NOTED", 12)
    taken = seed_list()
    taken._keeps = 3600
    urls = shops(30)
    push(worker, key, *urls)
    for _ in range(9):
        taken.move()
    assert worker.client.call("hlen", f"{{{key}:seeded}}:taken") == 12
    assert not taken.is_empty
    taken._keeps = 0
    move_all(taken)
    assert pending(worker) == urls


@pytest.mark.parametrize("damage", [b"", b"\x93\x01\xa1x", b"\x92\xa1x\x01", b"\xdd" * 9])
def test_a_note_that_cannot_be_read_is_kept(worker, seed_list, key, damage):
    """With what makes no request; the others are moved."""
    push(worker, key, "http://example.com/1")
    worker.client.call("hset", f"{{{key}:seeded}}:taken", "1:1", damage)
    seeds = seed_list()
    move_all(seeds)
    assert worker.client.call("lrange", f"{{{key}:seeded}}:unreadable", 0, -1) == [damage]
    assert seeds.is_empty
    assert pending(worker) == ["http://example.com/1"]


SEEDS = [
    "http://example.com/a?b=c",
    json.dumps({"url": "http://example.com/1"}),
    json.dumps({"url": "http://example.com/1", "method": "post", "n": "1", "meta": {"x": [1]}}),
    json.dumps({"url": "http://example.com/1", "q": "text"}),
    "http://example.com/ü",
]


@pytest.mark.parametrize("seed", SEEDS)
def test_seeds_are_read_as_scrapy_redis_reads_them(seed_list, seed):
    """A URL, or an object with url, method and meta, and a form in all else."""
    spiders = pytest.importorskip("scrapy_redis.spiders")
    theirs = spiders.RedisSpider("theirs", redis_encoding="utf-8")
    wanted = theirs.make_request_from_data(seed.encode())
    found = seed_list()._request_from(seed.encode())
    assert found.to_dict() == wanted.to_dict()
    assert type(found) is FormRequest


def test_what_makes_no_request_is_kept(worker, seed_list, key, caplog):
    """One line says where; the others are moved, and the spider's own method is asked."""
    seeds = seed_list()
    for seed in ("nonsense", "http://example.com/1", b"\xff", json.dumps({"n": 1})):
        push(worker, key, seed)
    move_all(seeds)
    assert pending(worker) == ["http://example.com/1"]
    kept = worker.client.call("lrange", f"{{{key}:seeded}}:unreadable", 0, -1)
    assert kept == [b"nonsense", b"\xff", b'{"n": 1}']
    assert sum("makes no request" in line for line in caplog.messages) == 3

    def two(data):
        return [Request(f"http://example.com/{data.decode()}/{n}", dont_filter=True) for n in "ab"]

    push(worker, key, "x")
    move_all(seed_list(make_request_from_data=two))
    assert pending(worker) == ["http://example.com/x/a", "http://example.com/x/b"]


def test_what_is_no_list_is_said(worker, seed_list, key):
    """By its name and kind."""
    worker.client.patience = 0.1
    seeds = seed_list()
    seeds._client.patience = 0.1
    worker.client.call("set", f"{key}:seeded", "x")
    with pytest.raises(SharedFilterError, match=f"{key}:seeded is a string, and no list"):
        seeds.move()


@pytest.mark.parametrize("left", [-1, 30_000, 3_600_000])
def test_leases_of_those_that_have_taken_seeds(worker, seed_list, key, left):
    """One that is over goes, with what it stands for; one by a clock that was ahead is shortened to
    a lease, and any other stays as it is."""
    lease = int(1000 * worker.settings.lease)
    assert lease > 30_000
    call, leases = worker.client.call, f"{{{key}:seeded}}:workers"
    call("hset", f"{{{key}:seeded}}:taken", "a", msgpack.packb(["http://example.com/", "dead"]))
    till = 1000 * call("time")[0] + left
    call("hset", leases, "dead", till)
    other = seed_list()
    for is_first in (True, False):
        assert other.move() == (left < 0 and is_first)
        found = call("hget", leases, "dead")
        if left < lease:
            assert found == (None if left < 0 else b"%d" % till)
        else:
            assert 0 <= int(found) - 1000 * call("time")[0] <= lease + 1000
    assert len(pending(worker)) == (left < 0)
