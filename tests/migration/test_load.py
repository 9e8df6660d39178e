"""What scrapy-redis has left, or a job, is loaded for RedisDurableScheduler."""

import json
import os
import pickle
from collections import Counter, OrderedDict
from pathlib import Path
from time import time

import pytest
from scrapy import Request, Spider
from scrapy.settings import Settings
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.test import get_crawler

from scrapy_bloom import (
    BloomError,
    ScalableBloomFilter,
    ScrapyRedisFingerprinter,
    SharedFilterError,
)
from scrapy_bloom.crawl.codec import Codec
from scrapy_bloom.crawl.start_requests import mark_of
from scrapy_bloom.jobdir import JobDirectory
from scrapy_bloom.migration import scrapy_redis
from scrapy_bloom.migration.scrapy_redis import RedisQueue
from scrapy_bloom.redis import load as loading
from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.layout import in_one_slot
from scrapy_bloom.redis.load import load_job, load_scrapy_redis
from scrapy_bloom.redis.push import Pusher
from scrapy_bloom.redis.status import CrawlReader, FilterView
from scrapy_bloom.sqlite.schema import START
from tests.fakes import Evil, raising
from tests.patience import PATIENCE
from tests.redis.server import missing
from tests.redis.workers import waiting
from tests.stored import stored

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

OURS = ScrapyRedisFingerprinter()
SETTINGS = get_crawler(settings_dict={"BLOOM_CAPACITY": 1000}).settings


@pytest.fixture
def left(client, key):
    """A function that loads what scrapy-redis has: nine requests, one of them not in its set."""
    queue = pytest.importorskip("scrapy_redis.queue").PriorityQueue(
        client._redis, Spider(key), f"{key}:requests"
    )
    for number in range(9):
        url, is_seen = f"http://shop{number % 2}.example.com/{number}", number != 8
        meta = {"n": number}
        request = Request(url, priority=number % 3, dont_filter=not is_seen, meta=meta)
        queue.push(request)
        if is_seen:
            client.call("sadd", f"{key}:dupefilter", OURS.fingerprint(request).hex())

    def load(client=client, fingerprinter=OURS):
        return load_scrapy_redis(client, in_one_slot(key), client, key, SETTINGS, fingerprinter)

    return load


def is_whole(client, key):
    """Return True if all of that is in Redis."""
    is_there = waiting(client, in_one_slot(key)).total() == 9
    return is_there and len(FilterView(client, key).filter) == 8


def test_requests_of_scrapy_redis_keep_what_they_are(join, redis, client, key, left):
    """Priorities, slots and meta; what is pending is seen, and its like is dropped."""
    loaded = left()
    assert (loaded.items, loaded.pending) == (8, 9)
    assert is_whole(client, key)
    slots = waiting(client, in_one_slot(key))
    assert {*slots} == {(number, f"shop{n}.example.com") for number in range(3) for n in range(2)}
    assert not CrawlReader(client, in_one_slot(key)).look().workers
    worker = join(url=redis.url, capacity=20, REQUEST_FINGERPRINTER_CLASS=ScrapyRedisFingerprinter)
    found = [*iter(worker.next, None)]
    assert sorted(request.meta["n"] for request in found) == [*range(9)]
    assert [request.priority for request in found] == [2] * 3 + [1] * 3 + [0] * 3
    with pytest.raises(BloomError, match="is there already"):
        left()


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
    monkeypatch.setattr(scrapy_redis, "_AT_ONCE", 3)
    settings = get_crawler(settings_dict={"SCHEDULER_QUEUE_CLASS": queue_class}).settings
    loaded = load_scrapy_redis(client, in_one_slot(key), client, key, settings, OURS)
    assert (loaded.items, loaded.pending) == (0, 7)  # none of them needs what was seen
    orders = []
    for named in (f"scrapy_redis.queue.{kind}", queue_class):
        queue_of = RedisQueue(client, Settings({"SCHEDULER_QUEUE_CLASS": named}), key)
        for first in (True, False):
            found = [each["meta"]["n"] for each in queue_of.requests(next_first=first)]
            orders.append(found if first else found[::-1])
    assert orders == [[queue.pop().meta["n"] for _ in range(7)]] * 4


class Killed(BaseException):
    """The end of a process."""


@pytest.mark.parametrize("call", range(2))
def test_an_interrupted_load_is_run_again(client, key, left, monkeypatch, call):
    """It leaves a crawl that nobody can join, which the next one removes."""
    monkeypatch.setattr(loading, "LEASE", PATIENCE)
    calls = iter(range(9))
    push = Pusher.push

    def killed(self, entries):
        if next(calls) == call:
            raise Killed
        return push(self, entries)

    with monkeypatch.context() as patch:
        patch.setattr(Pusher, "push", killed)
        patch.setattr(loading, "remove_queue", raising(Killed))
        patch.setattr("scrapy_bloom.redis.filter.delete_shards", raising(Killed))
        try:
            left()
        except Killed:
            with pytest.raises(BloomError, match="is being loaded"):
                left()
            with pytest.raises(BloomError, match=r"loaded.*remove it with 'scrapy bloom clear"):
                FilterView(client, key)
            monkeypatch.setattr(loading.CrawlReader, "look", lambda _: None)
            patch.undo()
            left()
    assert is_whole(client, key)


@pytest.mark.parametrize(
    ("serializer", "name"),
    [
        *(("", "pickle"), ("marshal", "marshal"), (pickle, "pickle"), ("json", ""), (json, "")),
        ("scrapy_redis.picklecompat", "scrapy_redis.picklecompat"),
    ],
)
def test_settings_of_scrapy_redis_name_its_queue(client, key, serializer, name):
    """Its keys, and what reads its requests: pickles only if they are allowed."""
    pytest.importorskip("scrapy_redis")
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


def test_what_cannot_be_loaded_is_refused(client, key, left, monkeypatch, watch):
    """In one line each, and nothing is left in Redis; nor where workers of scrapy-redis change it
    meanwhile, who have not been stopped."""
    before = client.call("dbsize") if not client._clustered else None
    with pytest.raises(BloomError, match="no crawl of scrapy-redis"):
        load_scrapy_redis(client, "{x}", client, "nobody", SETTINGS, OURS)
    with pytest.raises(BloomError, match="fingerprints of its own"):
        left(fingerprinter=RequestFingerprinter.from_crawler(get_crawler()))
    client.call("zadd", f"{key}:requests", {b"nonsense": 5})
    with pytest.raises(BloomError, match=r"cannot be read .*run the command in the crawl's proj"):
        left()
    client.call("zrem", f"{key}:requests", b"nonsense")
    for name, value in {"url": 5, "meta": None}.items():
        odd = pickle.dumps({**Request("http://example.com/").to_dict(), name: value})
        client.call("zadd", f"{key}:requests", {odd: 5})
        with pytest.raises(BloomError, match=f"its {name} is of type {type(value).__name__}"):
            left()
        client.call("zrem", f"{key}:requests", odd)
    with monkeypatch.context() as evicting:
        evicting.setattr(RedisClient, "evicting", lambda _: "allkeys-lru")
        with pytest.raises(SharedFilterError, match="set maxmemory-policy to noeviction"):
            left()
    if before:
        client.call("rename", f"{key}:dupefilter", f"{key}:dupefilter2")
        with pytest.raises(BloomError, match="SCHEDULER_DUPEFILTER_KEY"):
            left()
        assert client.call("dbsize") == before
        client.call("rename", f"{key}:dupefilter2", f"{key}:dupefilter")
    pushed = "sadd", f"{key}:dupefilter"
    watch(Pusher, "beat", lambda _: client.call(*pushed, os.urandom(20).hex()))
    with pytest.raises(BloomError, match="has changed meanwhile: stop the workers"):
        left()
    monkeypatch.undo()
    assert CrawlReader(client, in_one_slot(key)).look() is None
    assert left().pending == 9


def test_a_load_that_has_slept_leaves_the_next_one_alone(redis, client, key, left, monkeypatch):
    """Who was taken for dead removes nothing of whoever came after."""
    requests = scrapy_redis.RedisQueue.requests

    def slept(self, **options):
        monkeypatch.undo()
        other.call("delete", f"{in_one_slot(key)}:workers")
        left(other)
        yield from requests(self, **options)

    monkeypatch.setattr(scrapy_redis.RedisQueue, "requests", slept)
    with RedisClient(redis.url) as other, pytest.raises(BloomError, match="is gone"):
        left()
    assert is_whole(client, key)


@pytest.fixture
def job(tmp_path):
    """A job directory whose filter has a key."""
    job = JobDirectory(tmp_path / "job")
    job.path.mkdir(parents=True, exist_ok=True)
    with ScalableBloomFilter(1000, 1e-6, job.filter) as bloom_filter:
        bloom_filter.add(b"seen")
    return job


class Gone:
    """Is lost when the job is loaded."""


def test_requests_of_a_job_keep_what_they_are(join, redis, client, key, job, tmp_path, monkeypatch):
    """Their order, with objects, also of lost classes: no code of them runs. What the filter may
    not have got is in it, and which start requests were taken is known. A filter without requests,
    such as one that was filled with URLs, makes a crawl, too."""
    values = [*"abc", Evil(tmp_path / "evil"), [Path("x"), OrderedDict(a=Counter("b"))], Gone]
    with stored(job.requests, [b"unreleased"], clean=False) as found:
        for number, value in enumerate(values):
            fields = Request(f"http://example.com/{number}", meta={"value": value}).to_dict()
            payload = Codec(None, 10**6).dump(fields, "").payload
            found.put(payload, priority=-5 if value is Gone else number // 3)
        found.file.take(START, mark_of(b"f" * 20, 258))
    monkeypatch.delattr(f"{__name__}.Gone")
    assert load_job(client, in_one_slot(key), job, SETTINGS).pending == 6
    assert not (tmp_path / "evil").exists()
    held = FilterView(client, key).filter
    assert b"unreleased" in held
    assert b"seen" in held
    worker = join(url=redis.url, capacity=6)
    worker.store.note(mark=mark_of(b"f" * 20, 258))
    worker.exchange()
    assert worker.heard[0][1] is False
    assert worker.next().meta["value"] == values[4]
    assert worker.next().url.endswith("/3")
    assert (tmp_path / "evil").exists()
    assert [worker.next().meta["value"] for _ in range(3)] == ["c", "b", "a"]
    job.requests.unlink()
    loaded = load_job(client, in_one_slot(f"{key}2"), job, SETTINGS)
    assert (loaded.items, loaded.pending) == (1, 0)


def test_what_waits_in_a_job_goes_on_to_wait(join, redis, client, key, job):
    """Delayed ones and those on hold: until the same time or their release; what is over is due."""
    slots = {"named": time() + 1000, "over": time() - 1000, "by hand": None}
    with stored(job.requests) as found:
        for slot, until in slots.items():
            found.records.hold(slot, until, 3, until and 2000)
            meta = {"download_slot": slot}
            for due in (None, time() + 2000, time() - 2000):
                fields = Request("http://example.com/", meta=meta).to_dict()
                payload = Codec(None, 10**6).dump(fields, slot).payload
                found.put(payload, slot, due=due)
        # which can be nobody's in Redis
        found.records.hold("a\0b", None, 1, None)
    assert load_job(client, in_one_slot(key), job, SETTINGS).pending == 9
    worker = join(url=redis.url)
    assert [worker.next().meta["download_slot"] for _ in range(2)] == ["over"] * 2
    assert worker.next() is None
    assert worker.store.later == 3
    assert 900 < worker.store.next_due <= 1000
    assert CrawlReader(client, in_one_slot(key)).look().held == 2


def test_a_job_that_runs_is_refused(redis_server, key, job):
    """And so is one whose requests Scrapy's own scheduler has left."""
    with RedisClient(redis_server.url) as client:
        with job.locked(), pytest.raises(BloomError, match="is in use by process"):
            load_job(client, in_one_slot(key), job, SETTINGS)
        job.scrapy_queue.mkdir()
        (job.scrapy_queue / "active.json").write_text("[0]")
        with pytest.raises(BloomError, match="Scrapy's own scheduler: start the job once"):
            load_job(client, in_one_slot(key), job, SETTINGS)
    assert redis_server.names(key) == []
