"""Crawls that begin with scrapy-redis, or in a job, and go on with RedisDurableScheduler."""

import json
import os
import pickle
from collections import Counter, OrderedDict
from functools import partial
from pathlib import Path
from signal import SIGINT, SIGKILL
from time import time
from types import SimpleNamespace

import pytest
from scrapy import Request, Spider
from scrapy.settings import Settings
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.test import get_crawler
from w3lib.url import canonicalize_url

from scrapy_bloom import (
    BloomDupeFilter,
    BloomError,
    ScalableBloomFilter,
    ScrapyRedisFingerprinter,
    SharedFilterError,
)
from scrapy_bloom.crawl.codec import Codec
from scrapy_bloom.jobdir import JobDirectory
from scrapy_bloom.migration import scrapy_redis
from scrapy_bloom.migration.scrapy_redis import RedisQueue
from scrapy_bloom.redis import load as loading
from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.layout import in_one_slot
from scrapy_bloom.redis.load import load_job, load_scrapy_redis
from scrapy_bloom.redis.push import Pusher
from scrapy_bloom.redis.status import CrawlReader, FilterView
from scrapy_bloom.redis.taken_starts import mark_of
from scrapy_bloom.sqlite.job_file import reading
from scrapy_bloom.sqlite.listing import StoppedJob
from tests.commands.command_line import bloom
from tests.patience import PATIENCE, wait_until
from tests.redis.server import Server, missing
from tests.redis.workers import StoreWorker, waiting
from tests.small_site import PAGES, SmallSite, crawl, crawl_until
from tests.stored import fields_of, stored

pytest_plugins = ["tests.redis.fixtures"]
pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="filter files need Linux or macOS"),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]

STOP_AT = 50
IN_FLIGHT = 16
"""What a killed crawl may have had answers for and not acknowledged."""
KEY = "moved"
OURS = ScrapyRedisFingerprinter()
CAPACITY = {"ADDONS": "{}", "BLOOM_CAPACITY": 10_000}
JOB = {
    **CAPACITY,
    "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter",
    "SCHEDULER": "scrapy_bloom.DurableScheduler",
}
SHARED = {
    **CAPACITY,
    "DUPEFILTER_CLASS": "scrapy_bloom.RedisBloomDupeFilter",
    "SCHEDULER": "scrapy_bloom.RedisDurableScheduler",
    "BLOOM_REDIS_KEY": KEY,
}
THEIRS = {
    "ADDONS": "{}",
    "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
    "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
    "SCHEDULER_PERSIST": True,
}
THEIR_FINGERPRINTS = {
    "REQUEST_FINGERPRINTER_CLASS": "scrapy_bloom.ScrapyRedisFingerprinter",
    "SPIDER_MODULES": "tests.small_spider",
}


def load(folder, source, url, *options, **settings):
    """Run `scrapy bloom load` with the workers' settings."""
    pairs = [f"--set={name}={value}" for name, value in {**SHARED, **settings}.items()]
    return bloom(folder, "load", source, url, "--key", KEY, *options, *pairs)


def interrupted(site, folder, signal, **settings):
    """Crawl up to the middle."""
    run = crawl_until(STOP_AT, site, folder, **settings)
    if signal == SIGKILL:
        wait_until(lambda: has_committed(site, folder), "the commit of what is done")
    run.stop(signal)
    if signal != SIGKILL:
        site.release()
    run.end()
    site.release()
    return site.answered.total()


def has_committed(site, folder):
    """Return True if the job keeps no request that was answered."""
    path = JobDirectory(folder / "job").requests
    with reading(path) as connection:
        pending = [*StoppedJob(path, connection).requests(fields_of)]
    for fields, _ in pending:
        path = fields["url"].removeprefix(site.url)
        page = (
            fields.get("method", "GET"),
            canonicalize_url(path),
            fields.get("body", b"").decode(),
        )
        if path.startswith("/moved/"):
            page = PAGES[int(path.partition("#")[0].rpartition("/")[2])]
        if site.answered[page]:
            return False
    return True


def go_on(site, folder, url, **settings):
    """Go on to the end."""
    return crawl(site, folder, job=False, BLOOM_REDIS_URL=url, **SHARED, **settings).end()


def from_scrapy_redis(folder):
    pytest.importorskip("scrapy_redis")
    server = Server(folder)
    try:
        with SmallSite() as site:
            settings = {**THEIRS, "REDIS_URL": server.url}
            between = interrupted(site, folder, SIGINT, job=False, **settings)
            before = dump(server)
            arguments = [folder, server.url, server.url, "--spider", "small"]
            found = load(*arguments, **THEIR_FINGERPRINTS)
            untouched = dump(server) == before
            run = go_on(site, folder, server.url, **THEIR_FINGERPRINTS)
    finally:
        server.stop()
    return SimpleNamespace(**locals())


def dump(server):
    """Return what scrapy-redis has."""
    return {
        name: server.command("DUMP", name) for name in server.names("small:") if "{" not in name
    }


@pytest.mark.parametrize("outcome", [from_scrapy_redis], indirect=True)
def test_a_crawl_of_scrapy_redis_goes_on(outcome):
    """Nothing is missed or fetched again, and what scrapy-redis has is as it was."""
    assert STOP_AT <= outcome.between < len(PAGES)
    assert outcome.found.status == 0, outcome.found.error
    assert "pending requests from scrapy-redis's 'small' at" in outcome.found.out
    assert outcome.untouched
    assert outcome.run.reason == "finished"
    assert (outcome.site.missed, outcome.site.twice) == ([], [])


def from_job(signal, folder):
    server = Server(folder)
    try:
        with SmallSite() as site:
            interrupted(site, folder, signal, **JOB)
            before = files(folder / "job")
            found = load(folder, "job", server.url)
            after = files(folder / "job")
            changed = [path for path in {*before, *after} if before.get(path) != after.get(path)]
            run = go_on(site, folder, server.url)
    finally:
        server.stop()
    return SimpleNamespace(**locals())


def files(folder):
    """Return what is in a job; the index of a log of SQLite's is no content."""
    return {
        path: path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith("-shm") and path.name != "bloom.lock"
    }


@pytest.mark.parametrize(
    "outcome",
    [partial(from_job, SIGINT), partial(from_job, SIGKILL)],
    indirect=True,
    ids=["stopped", "killed"],
)
def test_a_job_goes_on(outcome):
    """Nothing is missed, only what was in flight comes again, and the job is as it was."""
    assert outcome.found.status == 0, outcome.found.error
    assert "for RedisDurableScheduler" in outcome.found.out
    assert outcome.changed == []
    assert outcome.run.reason == "finished"
    assert outcome.site.missed == []
    assert len(outcome.site.twice) <= (IN_FLIGHT if outcome.signal == SIGKILL else 0)
    assert outcome.site.answered["GET", "/page/0", ""] == 1


@pytest.fixture
def settings():
    """Those of a crawl with small numbers."""
    return get_crawler(settings_dict={"BLOOM_CAPACITY": 1000}).settings


@pytest.fixture
def left(client, key):
    """A spider's name: scrapy-redis has nine of its requests, one of them not in its set."""
    queue = pytest.importorskip("scrapy_redis.queue").PriorityQueue(
        client._redis, Spider(key), f"{key}:requests"
    )
    for number in range(9):
        request = Request(
            f"http://shop{number % 2}.example.com/{number}",
            priority=number % 3,
            dont_filter=number == 8,
            meta={"n": number},
        )
        queue.push(request)
        if number != 8:
            client.call("sadd", f"{key}:dupefilter", OURS.fingerprint(request).hex())
    return key


def load_left(client, key, settings, fingerprinter=OURS):
    """Load what `left` has."""
    return load_scrapy_redis(client, in_one_slot(key), client, key, settings, fingerprinter)


def test_requests_of_scrapy_redis_keep_what_they_are(redis, client, key, left, settings):
    """Priorities, slots and meta; what is pending is seen, and its like is dropped."""
    loaded = load_left(client, key, settings)
    assert (loaded.items, loaded.pending) == (8, 9)
    counts = waiting(client, in_one_slot(key))
    for priority in range(3):
        slots = [counts[priority, f"shop{number}.example.com"] for number in range(2)]
        assert sum(slots) == 3
        assert all(slots)
    assert not CrawlReader(client, in_one_slot(key)).look().workers
    worker = StoreWorker(
        redis.url, key, capacity=20, REQUEST_FINGERPRINTER_CLASS=ScrapyRedisFingerprinter
    )
    worker.exchange()
    worker.exchange()
    found = [*iter(worker.next, None)]
    worker.close()
    assert sorted(request.meta["n"] for request in found) == [*range(9)]
    assert [request.priority for request in found] == [2] * 3 + [1] * 3 + [0] * 3
    with pytest.raises(BloomError, match="is there already"):
        load_left(client, key, settings)


@pytest.mark.parametrize("kind", ["FifoQueue", "LifoQueue", "SpiderStack", "PriorityQueue"])
def test_queues_of_scrapy_redis_keep_their_order(client, key, monkeypatch, kind):
    """What it would take next is next."""
    queue_class = getattr(pytest.importorskip("scrapy_redis.queue"), kind)
    if kind == "PriorityQueue" and client._clustered:
        pytest.skip("scrapy-redis cannot take from it there")
    queue = queue_class(client._redis, Spider(key), f"{key}:requests")
    for number in range(7):
        meta, priority = {"n": number}, number % 3
        queue.push(Request("http://e.com", dont_filter=True, meta=meta, priority=priority))
    name = f"scrapy_redis.queue.{kind}"
    settings = get_crawler(settings_dict={"SCHEDULER_QUEUE_CLASS": name}).settings
    monkeypatch.setattr(scrapy_redis, "_AT_ONCE", 3)
    queue_of = RedisQueue(client, settings, key)
    order = [fields["meta"]["n"] for fields in queue_of.requests(next_first=True)]
    back = [fields["meta"]["n"] for fields in queue_of.requests(next_first=False)]
    assert order == [queue.pop().meta["n"] for _ in range(7)] == back[::-1]


class Killed(BaseException):
    """The end of a process."""


@pytest.mark.parametrize("call", range(2))
def test_an_interrupted_load_is_run_again(client, key, left, settings, monkeypatch, call):
    """It leaves a crawl that nobody can join, which the next one removes."""
    monkeypatch.setattr(loading, "LEASE", PATIENCE)
    calls = iter(range(9))
    push = Pusher.push

    def killed(self, entries):
        if next(calls) == call:
            raise Killed
        return push(self, entries)

    def nothing(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Pusher, "push", killed)
        patch.setattr(loading, "remove_queue", nothing)
        patch.setattr("scrapy_bloom.redis.filter.delete_shards", nothing)
        try:
            load_left(client, key, settings)
        except Killed:
            with pytest.raises(BloomError, match="is being loaded"):
                load_left(client, key, settings)
            with pytest.raises(BloomError, match="is being loaded"):
                FilterView(client, key)
            monkeypatch.setattr(loading.CrawlReader, "look", lambda _: None)
            patch.undo()
            load_left(client, key, settings)
    assert waiting(client, in_one_slot(key)).total() == 9
    assert len(FilterView(client, key).filter) == 8


@pytest.mark.parametrize(
    ("serializer", "name"),
    [("", "pickle"), ("marshal", "marshal"), (pickle, "pickle"), ("json", ""), (json, "")],
)
def test_settings_of_scrapy_redis_name_its_queue(client, key, serializer, name):
    """Its keys, and what reads its requests: pickles only if they are allowed."""
    settings = Settings({"SCHEDULER_SERIALIZER": serializer, "BLOOM_PICKLE": False})
    settings.set("SCHEDULER_QUEUE_KEY", "%(spider)s:q")
    settings.set("SCHEDULER_DUPEFILTER_KEY", "%(spider)s:seen")
    client.call("zadd", f"{key}:q", {b'{"url": "", "priority": 1, "meta": {}}': 5})
    client.call("sadd", f"{key}:seen", "a", "b")
    if name:
        with pytest.raises(BloomError, match=f"stored by {name}, and BLOOM_PICKLE is False"):
            RedisQueue(client, settings, key)
        settings.set("BLOOM_PICKLE", True)
    queue = RedisQueue(client, settings, key)
    assert (queue.key, queue.set_key) == (f"{key}:q", f"{key}:seen")
    assert (len(queue), queue.set_size()) == (1, 2)
    with pytest.raises(BloomError, match="cannot be read" if name else "it has no dont_filter"):
        next(queue.requests(next_first=True))


def test_what_cannot_be_loaded_is_refused(client, key, left, settings, monkeypatch):
    """In one line each, and nothing is left in Redis."""
    before = client.call("dbsize") if not client._clustered else None
    with pytest.raises(BloomError, match="no crawl of scrapy-redis"):
        load_scrapy_redis(client, "{x}", client, "nobody", settings, OURS)
    default = RequestFingerprinter.from_crawler(get_crawler())
    with pytest.raises(BloomError, match="fingerprints of its own"):
        load_left(client, key, settings, default)
    client.call("zadd", f"{key}:requests", {b"nonsense": 5})
    unread = r"cannot be read .*run the command in the crawl's project"
    with pytest.raises(BloomError, match=unread):
        load_left(client, key, settings)
    client.call("zrem", f"{key}:requests", b"nonsense")
    with monkeypatch.context() as evicting:
        evicting.setattr(RedisClient, "evicting", lambda _: "allkeys-lru")
        with pytest.raises(SharedFilterError, match="set maxmemory-policy to noeviction"):
            load_left(client, key, settings)
    if before:
        client.call("rename", f"{key}:dupefilter", f"{key}:dupefilter2")
        with pytest.raises(BloomError, match="SCHEDULER_DUPEFILTER_KEY"):
            load_left(client, key, settings)
        assert client.call("dbsize") == before


def test_a_source_that_changes_meanwhile_is_refused(client, key, left, settings, monkeypatch):
    """Workers of scrapy-redis that have not been stopped."""
    beat = Pusher.beat

    def beat_and_push(self):
        client.call("sadd", f"{key}:dupefilter", os.urandom(20).hex())
        beat(self)

    monkeypatch.setattr(Pusher, "beat", beat_and_push)
    with pytest.raises(BloomError, match="has changed meanwhile: stop the workers"):
        load_left(client, key, settings)
    assert CrawlReader(client, in_one_slot(key)).look() is None
    monkeypatch.undo()
    assert load_left(client, key, settings).pending == 9


def payload_of(fields, slot=""):
    """Return the bytes of a request in a job."""
    return Codec(None, 10**6).dump(fields, slot, "pickle").payload


@pytest.fixture
def job(tmp_path):
    """A job directory with an empty filter."""
    job = JobDirectory(tmp_path / "job")
    job.make()
    ScalableBloomFilter(1000, 1e-6, job.filter).close()
    return job


def test_requests_of_a_job_keep_what_they_are(redis, client, key, settings, job):
    """Their order, what the filter may not have got, and which start requests were taken."""
    with stored(job.requests, [b"unreleased"], clean=False) as found:
        for number in range(6):
            url, priority = f"http://example.com/{number}", number // 3
            request = Request(url, priority=priority, meta={"n": number})
            found.put(payload_of(request.to_dict()), priority=priority)
        found.file.execute("INSERT INTO taken_start_requests VALUES (?, 258)", (b"f" * 20,))
    assert load_job(client, in_one_slot(key), job, settings).pending == 6
    assert b"unreleased" in FilterView(client, key).filter
    worker = StoreWorker(redis.url, key, capacity=6)
    worker.store.note(mark=mark_of(b"f" * 20, 258))
    worker.exchange()
    worker.exchange()
    assert worker.heard[0][1] is False
    assert [worker.next().meta["n"] for _ in range(6)] == [5, 4, 3, 2, 1, 0]
    worker.close()


class Gone:
    """Is lost when the job is loaded."""


class Evil:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_load_runs_no_code_of_the_job(redis, client, key, settings, job, tmp_path, monkeypatch):
    """Requests with objects are moved as they are, also with those of lost classes."""
    fields = Request("http://gone.example/", meta={"a": Gone}).to_dict()
    kinds = {"evil": Evil(tmp_path / "evil"), "many": [Path("x"), OrderedDict(a=Counter("b"))]}
    with stored(job.requests) as found:
        for number, value in enumerate(kinds.values()):
            request = Request(f"http://{number}.example/", priority=number, meta={"value": value})
            payload = payload_of(request.to_dict())
            found.put(payload, priority=number)
            found.put(payload, due=time() + 1000)
        found.put(payload_of(fields), priority=-5)
    monkeypatch.delattr(f"{__name__}.Gone")
    assert load_job(client, in_one_slot(key), job, settings).pending == 5
    assert not (tmp_path / "evil").exists()
    assert dict(waiting(client, in_one_slot(key))) == {
        (1, "1.example"): 1,
        (0, "0.example"): 1,
        (0, "gone.example"): 1,
    }
    worker = StoreWorker(redis.url, key)
    assert worker.next().meta["value"] == kinds["many"]
    assert worker.next().url == "http://0.example/"
    assert (tmp_path / "evil").exists()
    worker.close()


def test_delayed_requests_of_a_job_stay_delayed(redis, client, key, settings, job):
    """Until the same time, and those of which it is over are due."""
    with stored(job.requests) as found:
        for name, seconds in (("late", 1000), ("over", -1000)):
            fields = Request(f"http://example.com/{name}").to_dict()
            found.put(payload_of(fields), due=time() + seconds)
    assert load_job(client, in_one_slot(key), job, settings).pending == 2
    worker = StoreWorker(redis.url, key)
    assert worker.next().url == "http://example.com/over"
    assert worker.next() is None
    assert worker.store.later == 1
    assert 0 < worker.store.next_due <= 1001
    worker.close()


def test_the_holds_of_a_job_go_on(redis, client, key, settings, job):
    """Until the same time, or until their release."""
    slots = {"named": time() + 1000, "over": time() - 1000, "by hand": None}
    with stored(job.requests) as found:
        for slot, until in slots.items():
            found.records.hold(slot, until, 3, until and 2000)
            fields = Request("http://example.com/", meta={"download_slot": slot}).to_dict()
            found.put(payload_of(fields, slot), slot)
        # which can be nobody's in Redis
        found.records.hold("a\0b", None, 1, None)
    assert load_job(client, in_one_slot(key), job, settings).pending == 3
    worker = StoreWorker(redis.url, key)
    assert worker.next().meta["download_slot"] == "over"
    assert worker.next() is None
    assert 900 < worker.store.next_due <= 1000
    assert CrawlReader(client, in_one_slot(key)).look().held == 2
    worker.close()


def test_a_filter_without_requests_makes_a_crawl(redis_server, key, settings, job):
    """Such as one that was filled with URLs: nothing is pending, and what it has is seen."""
    with ScalableBloomFilter.open(job.filter) as bloom_filter:
        bloom_filter.add(b"seen")
    with RedisClient(redis_server.url) as client:
        loaded = load_job(client, in_one_slot(key), job, settings)
        assert (loaded.items, loaded.pending) == (1, 0)
        assert b"seen" in FilterView(client, key).filter
        assert waiting(client, in_one_slot(key)).total() == 0


def test_a_load_that_has_slept_leaves_the_next_one_alone(
    redis, client, key, left, settings, monkeypatch
):
    """Who was taken for dead removes nothing of whoever came after."""
    stored = scrapy_redis.RedisQueue.requests

    def slept(self, **options):
        monkeypatch.undo()
        other.call("delete", f"{in_one_slot(key)}:workers")
        load_left(other, key, settings)
        yield from stored(self, **options)

    monkeypatch.setattr(scrapy_redis.RedisQueue, "requests", slept)
    with RedisClient(redis.url) as other, pytest.raises(BloomError, match="is gone"):
        load_left(client, key, settings)
    assert waiting(client, in_one_slot(key)).total() == 9
    assert len(FilterView(client, key).filter) == 8


def test_a_job_that_runs_is_refused(redis_server, key, settings, tmp_path):
    """And so is one whose requests Scrapy's own scheduler has left."""
    job = JobDirectory(tmp_path / "job")
    with RedisClient(redis_server.url) as client:
        crawler = get_crawler(settings_dict={"JOBDIR": str(job.path), "BLOOM_CAPACITY": 1000})
        dupefilter = BloomDupeFilter.from_crawler(crawler)
        dupefilter.open()
        with pytest.raises(BloomError, match="is in use by process"):
            load_job(client, in_one_slot(key), job, settings)
        dupefilter.close("finished")
        job.scrapy_queue.mkdir()
        (job.scrapy_queue / "active.json").write_text("[0]")
        with pytest.raises(BloomError, match="Scrapy's own scheduler: start the job once"):
            load_job(client, in_one_slot(key), job, settings)
        assert redis_server.names(key) == []
