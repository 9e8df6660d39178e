"""Seeds in a list of scrapy-redis's, and how they come into a crawl."""

import json
from functools import partial
from itertools import count
from types import SimpleNamespace

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
from tests.fakes import raising
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


class Crawl:
    """A crawl, its worker, and the list of seeds of its spider, which may be on another server."""

    def __init__(self, worker, redis, key):
        self.worker, self._redis, self.lists = worker, redis, redis
        self.name, self.made = f"{key}:seeded", []
        self.call = worker.client.call

    def seed_list(self, *, where=None, of=None, at_once=5, **attributes):
        """Return a list of seeds without a thread, which keeps no notes."""
        where, of = where or self._redis, of or self.worker
        settings = {"BLOOM_REDIS_URL": where.url, "REDIS_URL": self.lists.url}
        settings |= {"BLOOM_REDIS_TIMEOUT": 9, "REDIS_ENCODING": "latin-1"}
        crawler = get_crawler(Seeded, settings_dict={**settings, "CONCURRENT_REQUESTS": at_once})
        named = self.name.replace(Seeded.name, "%(name)s")
        crawler.spider = Seeded.from_crawler(crawler, redis_key=named, **attributes)
        where = RedisSettings.read(crawler.settings, "seeded")
        made = SeedList.of(crawler, where, of.key, of.dupefilter, of.settings)
        self.made.append(made)
        made._in_reactor = lambda function: function()
        assert made._keeps == 60  # by so many seconds a server may go back
        assert made._client.patience == made._crawl_client.patience == 9
        made._keeps = 0
        made.move = partial(made._move, of.dupefilter.shared)
        return made

    def push(self, *seeds):
        self.call("rpush", self.name, *seeds)

    def beside(self, name):
        return f"{{{self.name}}}:{name}"

    @property
    def taken(self):
        return self.call("hlen", self.beside("taken"))

    @property
    def waiting(self):
        return waiting(self.worker.client, self.worker.key).total()

    def run_out(self):
        """Let the leases of all that have taken seeds run out."""
        for name in self.call("hkeys", leases := self.beside("workers")):
            self.call("hset", leases, name, 0)


@pytest.fixture
def crawl(redis, key):
    worker = StoreWorker(redis.url, key, capacity=100, BLOOM_CAPACITY=100)
    worker.exchange()
    crawl = Crawl(worker, redis, key)
    yield crawl
    for each in (*crawl.made, worker):
        each.close()


def shops(count):
    return [f"http://shop{number:02}.example.com/" for number in range(count)]


def move_all(*seed_lists):
    assert any(not sum(each.move() for each in seed_lists) for _ in range(100))


def pending(worker):
    """Return the URLs of the requests that a worker gets, sorted."""
    worker.exchange(2)
    return sorted(request.url for request in iter(worker.next, None))


@pytest.mark.parametrize(
    ("redis", "kind"),
    [("server", "list"), ("server", "set"), ("server", "sorted set"), ("cluster", "list")],
    indirect=["redis"],
)
def test_every_seed_is_moved_once(crawl, kind):
    """Of any kind of list, by two workers; nothing is left beside it."""
    one, other = crawl.seed_list(), crawl.seed_list()
    command = {"list": "rpush", "set": "sadd", "sorted set": "zadd"}[kind]
    for at, url in enumerate(shops(23)):
        crawl.call(command, crawl.name, {url: at} if kind == "sorted set" else url)
    assert one.move()
    assert crawl.waiting == 5
    # the highest score first
    assert kind != "sorted set" or crawl.call("zscore", crawl.name, shops(23)[-1]) is None
    assert not one.is_empty
    for _ in range(2):  # once more, to strike off what the last turn has pushed
        move_all(one, other)
    assert one.is_empty
    assert crawl.call("exists", f"{crawl.worker.key}:start") == 0
    assert crawl.call("zcard", f"{crawl.worker.key}:workers") == 1
    assert pending(crawl.worker) == shops(23)
    assert [crawl.call("exists", crawl.beside(name)) for name in ("taken", "workers")] == [0, 0]


def test_the_rights_in_the_documents_are_enough_for_a_list(own_server, crawl):
    """On a server of its own, of any kind, with what makes no request, too."""
    crawl.lists = SimpleNamespace(url=own_server.user("workers.md", "list", seeds=crawl.name))
    for url, *words in zip(shops(3), ["RPUSH", "SADD", "ZADD"], strict=True):
        for seed in (url, b"[]"):
            own_server.command(*words, crawl.name, *[1] * (words == ["ZADD"]), seed)
        move_all(crawl.seed_list())
    assert pending(crawl.worker) == shops(3)
    assert own_server.names() == [crawl.beside("unreadable")]


def test_seeds_that_meet_a_filter_that_has_grown_are_sent_again(crawl, redis):
    """What was refused for that is pushed with the next call, once."""
    own = {"fetch_data": None, "make_request_from_data": lambda data: Request(data.decode())}
    seeds = crawl.seed_list(redis_batch_size=60, spider_idle_start_time=0, **own)
    assert seeds._spider.fetch_data(60) == []  # by which the spider would take some itself
    with RedisClient(redis.url) as client:
        other = RedisBloomFilter.open(client, crawl.worker.key)
        numbers = count()
        while any(len(shard.counts) < 4 for shard in other.shards):
            other.add(b"%d" % next(numbers))
    for expected in (shops(60), []):
        crawl.push(*shops(60))
        move_all(seeds)
        assert pending(crawl.worker) == expected
    assert seeds._spider.spider_idle_start_time > 1e9


def test_seeds_of_a_worker_that_dies_are_taken_by_another(crawl, monkeypatch):
    """After its lease, whenever it dies; no seed is lost or asked twice."""
    dying = crawl.seed_list()
    dying._settings = dying._settings.but(lease=PATIENCE)
    crawl.push(*shops(10))
    die = raising(SharedFilterError("killed"))
    with monkeypatch.context() as patch:
        patch.setattr(Pusher, "push", die)
        with pytest.raises(SharedFilterError):
            dying.move()
    with monkeypatch.context() as patch:
        patch.setattr(Pusher, "beat", die)
        assert dying.move()
        with pytest.raises(SharedFilterError):
            dying.move()
    other = crawl.seed_list()
    assert not other.move()
    assert not other.is_empty
    assert crawl.waiting == 5
    crawl.run_out()
    assert other.move()
    assert crawl.call("hlen", crawl.beside("workers")) == 1
    move_all(other)
    assert pending(crawl.worker) == shops(10)


def test_many_seeds_of_workers_that_died_come_back_in_portions(crawl):
    """A call reads some hundreds of what was taken; who has no limit takes 200 seeds at once."""
    taking, other = crawl.seed_list(at_once=0), crawl.seed_list()
    urls = [f"http://shop{number:04}.example.com/{'x' * 64}" for number in range(3000)]
    crawl.push(*urls)
    taking._made_in_reactor = lambda _: None
    for _ in range(15):
        taking.move()
    assert crawl.taken == 3000
    crawl.run_out()
    found, place = set(), 0
    while len(found) < len(urls):
        what = TAKE_START_URLS, other._keys, 90, 3_600_000, "other", place
        elements, _, place, _ = other._client.run(*what)
        assert len(elements) <= 90
        assert found.isdisjoint(element for _, element in elements)
        found |= {element for _, element in elements}
    assert {element.decode() for element in found} == {*urls}


def test_a_seed_is_in_its_list_or_noted_wherever_the_script_fails(crawl):
    """It never leaves the one before it is in the other."""
    text, (url,) = ABORTING.replace("KEYS[2]", "KEYS[4]") + TAKE_START_URLS.text, shops(1)
    keys = crawl.seed_list()._keys
    for at in count(1):
        crawl.call("unlink", *keys)
        crawl.push(url)
        try:
            crawl.worker.client._redis.eval(text, 4, *keys, at, 1, LEASE, "dying", 0)
            break
        except ResponseError:
            there = [*crawl.call("lrange", keys[0], 0, -1), *crawl.call("hvals", keys[1])]
            assert any(url.encode() in each for each in there), at
    assert at > 5


def test_seeds_of_a_lost_answer_are_taken_again(crawl, monkeypatch):
    """When the lease has run out under which they were noted: the worker goes on with another."""
    seeds = crawl.seed_list()
    run, insist = (client := seeds._client).run, client.insist
    crawl.push(*shops(10))
    with monkeypatch.context() as patch:
        patch.setattr(client, "insist", lambda *what: run(*what) and (insist(*what)[0], True))
        assert seeds.move()
    crawl.run_out()
    move_all(seeds)
    assert pending(crawl.worker) == shops(10)


def test_seeds_outlive_a_server_that_goes_back(own_server, crawl, key):
    """The crawl's, to before the push; no worker takes the crawl for over meanwhile."""
    worker = StoreWorker(own_server.url, key)
    worker.exchange()
    own_server.command("SAVE")
    crawl.push(*shops(5))
    pushing = crawl.seed_list(where=own_server, of=worker)
    pushing._keeps = 3600
    assert pushing.move()
    assert not pushing.move()
    assert (pushing.is_moved, pushing.is_empty) == (True, False)
    assert waiting(worker.client, worker.key).total() == 5
    own_server.restart()
    assert waiting(worker.client, worker.key).total() == 0
    pushing._keeps = 0
    with pytest.raises(SharedFilterError, match="may have forgotten what was pushed"):
        pushing.move()
    assert not pushing.is_empty
    crawl.run_out()
    move_all(pushing)
    assert pending(worker) == shops(5)
    assert pushing.is_empty
    worker.close()


@pytest.mark.parametrize("ends", ["is slow", "ends"])
def test_no_seed_is_asked_twice(crawl, ends):
    """Though who has pushed it is slow before it strikes it off, or ends: nobody waits for it."""
    slow, other = crawl.seed_list(), crawl.seed_list()
    slow._keeps = other._keeps = 3600
    crawl.push(*shops(5))
    assert slow.move()
    for step in (slow._ending.set, slow._work) if ends == "ends" else (crawl.run_out,):
        step()
    assert other.move()
    if ends == "is slow":
        slow._keeps = 0
        assert not slow.move()
    assert not other.move()
    assert crawl.taken == 5
    crawl.worker.exchange()
    assert len(crawl.worker.drain()) == 5
    # all of the crawl is done, however short it has lasted
    assert not other.move()
    assert other.is_empty
    assert pending(crawl.worker) == []


def test_a_million_seeds_are_not_a_million_notes(crawl, monkeypatch):
    """Who has many notes waits until some may go."""
    monkeypatch.setattr(seeds, "MOST_NOTED", 12)
    taking = crawl.seed_list()
    taking._keeps = 3600
    crawl.push(*shops(30))
    for _ in range(9):
        taking.move()
    assert crawl.taken == 12
    assert not taking.is_empty
    taking._keeps = 0
    move_all(taking)
    assert pending(crawl.worker) == shops(30)


SEEDS = [
    "http://example.com/a?b=c",
    json.dumps({"url": "http://example.com/1"}),
    json.dumps({"url": "http://example.com/1", "method": "post", "n": "1", "meta": {"x": [1]}}),
    json.dumps({"url": "http://example.com/1", "q": "text"}),
    "http://example.com/ü",
]


@pytest.mark.parametrize("seed", SEEDS)
def test_seeds_are_read_as_scrapy_redis_reads_them(crawl, seed):
    """A URL, or an object with url, method and meta, and a form in all else."""
    spiders = pytest.importorskip("scrapy_redis.spiders")
    for encoding, own in (("utf-8", {"redis_encoding": "utf-8"}), ("latin-1", {})):
        theirs = spiders.RedisSpider("theirs", redis_encoding=encoding)
        wanted = theirs.make_request_from_data(seed.encode(encoding))
        found = crawl.seed_list(**own)._request_from(seed.encode(encoding))
        assert found.to_dict() == wanted.to_dict()
        assert type(found) is FormRequest


def test_what_makes_no_request_is_kept(crawl, caplog):
    """With notes that cannot be read. One line says where; the spider's method is asked."""
    seeds = crawl.seed_list()
    damaged = [b"", b"\x93\x01\xa1x", b"\x92\xa1x\x01", b"\xdd" * 9]
    for number, note in enumerate(damaged):
        crawl.call("hset", crawl.beside("taken"), f"1:{number}", note)
    nonsense = [b"nonsense", b"\xff", b'{"n": 1}']
    crawl.push(*nonsense, *shops(1))
    move_all(seeds)
    assert seeds.is_empty
    assert pending(crawl.worker) == shops(1)
    kept = crawl.call("lrange", crawl.beside("unreadable"), 0, -1)
    assert sorted(kept) == sorted(damaged + nonsense)
    assert sum("makes no request" in line for line in caplog.messages) == len(kept)

    def two(data):
        return [Request(f"http://example.com/{data.decode()}/{n}", dont_filter=True) for n in "ab"]

    crawl.push("x")
    move_all(crawl.seed_list(make_request_from_data=two))
    assert pending(crawl.worker) == ["http://example.com/x/a", "http://example.com/x/b"]


def test_what_is_no_list_is_said(crawl, caplog, monkeypatch):
    """By its name and kind, which ends the work. Outages before it are told once each."""
    monkeypatch.setattr(seeds, "POLL_SECONDS", 0.01)
    taking, broken = crawl.seed_list(), []
    taking._client.patience = 0.1
    crawl.call("set", crawl.name, "x")
    look, outage = taking._look, raising(SharedFilterError("down"))
    looks = iter([outage, outage, tuple, outage, look])
    taking._look = lambda: next(looks)()
    taking.open(lambda function, *told: function(*told), bool, broken.append)
    taking._thread.join(PATIENCE)
    assert f"{crawl.name} is a string, and no list" in str(broken[0])
    assert sum("wait: down" in line for line in caplog.messages) == 2


def test_a_lease_by_a_clock_that_was_ahead_is_shortened(crawl):
    """And any other stays as it is."""
    call, leases = crawl.call, crawl.beside("workers")
    call("hset", crawl.beside("taken"), "a", msgpack.packb(["http://example.com/", "dead"]))
    other, now = crawl.seed_list(), 1000 * call("time")[0]
    for ahead, most in ((30_000, 30_000), (3_600_000, 1000 * crawl.worker.settings.lease + 1000)):
        call("hset", leases, "dead", now + ahead)
        assert not other.move()
        assert 30_000 <= int(call("hget", leases, "dead")) - now <= most
