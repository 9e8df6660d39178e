"""RedisDurableScheduler as Scrapy builds it: what it refuses, and what it leaves to the answer."""

import json
import logging
import os
import threading
from math import inf
from queue import SimpleQueue
from time import monotonic

import pytest
from scrapy import Request, signals
from scrapy.exceptions import DontCloseSpider
from scrapy.exporters import JsonLinesItemExporter
from scrapy.extensions.feedexport import FeedExporter
from scrapy.extensions.postprocessing import GzipPlugin
from scrapy.utils.misc import build_from_crawler
from scrapy.utils.test import get_crawler
from twisted.internet import reactor
from twisted.internet.defer import Deferred

from scrapy_bloom import RedisDurableScheduler, SharedFilterError, startup
from scrapy_bloom.errors import FilterLockedError, JobDirectoryError
from scrapy_bloom.jobdir import session_of
from scrapy_bloom.redis import worker as worker_module
from scrapy_bloom.redis.call import Policy
from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.lifecycle import open_crawl
from scrapy_bloom.redis.status import FilterView
from scrapy_bloom.redis.worker_feeds import SyncedFeeds
from tests.crawl.engine import OtherSpider, TestSpider, name_of, query, request, unserializable
from tests.crawl.rounds import waited_for
from tests.patience import wait_until
from tests.redis.workers import talk

pytestmark = pytest.mark.usefixtures("few_shards")


def test_another_spider_is_refused(build, key, redis_server):
    """Nothing in Redis changes. A crawl that knows no name takes that of the first one."""
    first = build()
    first.enqueue_request(request("page"))
    first.enqueue_request(unserializable("memory"))  # which is not seen when it is lost
    talk(first)
    first.close("shutdown")
    crawl = f"{{{key}}}:crawl"
    assert redis_server.command("HGET", crawl, "spider") == b"test"
    redis_server.command("HDEL", crawl, "spider")
    build().close("shutdown")
    before = redis_server.command("HGETALL", crawl)
    with pytest.raises(JobDirectoryError, match=r"of spider 'test', and this is 'other'"):
        build(spider=OtherSpider, BLOOM_REDIS_ROUND="new")
    assert redis_server.command("HGETALL", crawl) == before
    other = build(spider=OtherSpider, BLOOM_ANY_SPIDER=True)
    other.enqueue_request(request("memory"))
    talk(other)
    assert {name_of(other.next_request()) for _ in range(2)} == {"page", "memory"}
    assert redis_server.command("HGET", crawl, "spider") == b"other"


def test_a_refused_worker_leaves_nothing(build, tmp_path, monkeypatch):
    """No connection, and no job directory, or a free one; also one that closes before it opens."""
    where = {"BLOOM_REDIS_URL": "redis://127.0.0.1:1/0", "BLOOM_REDIS_TIMEOUT": 0.1}
    with pytest.raises(SharedFilterError):
        build(**where, JOBDIR=str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    where = {"JOBDIR": str(tmp_path / "job")}
    first = build(**where)
    with pytest.raises(FilterLockedError, match=f"process {os.getpid()}, which is this one"):
        build(**where)
    first.close("shutdown")
    build_from_crawler(type(first), first.crawler).close("cancelled")
    talk(build())
    # a list of seeds has two more connections
    clients, init, close = set(), RedisClient.__init__, RedisClient.close
    with monkeypatch.context() as patch:
        patch.setattr(TestSpider, "redis_key", "seeds", raising=False)
        made = lambda *of, **more: clients.add(of[0]) or init(*of, **more)  # noqa: E731
        patch.setattr(RedisClient, "__init__", made)
        patch.setattr(RedisClient, "close", lambda self: clients.discard(self) or close(self))
        with pytest.raises(SharedFilterError, match="BLOOM_REDIS_LEASE = 60, and this one has 30"):
            build(BLOOM_REDIS_LEASE=30, **where)
        assert clients == set()
        build(**where).close("shutdown")
    assert clients == set()
    build(**where)


def test_a_url_is_enough(build, redis_server, key, join):
    """With BLOOM_REDIS_URL the add-on has it built. What another worker has seen is counted when
    the answer comes, what cannot be stored is handed out first; no thread or timer is left."""
    other = join()
    other.enqueue("seen")
    other.drain()
    other.leave()
    before, timers = threading.active_count(), {*reactor.getDelayedCalls()}
    scheduler = build()
    assert type(scheduler) is RedisDurableScheduler
    assert scheduler.has_pending_requests()
    assert scheduler.enqueue_request(request("page", callback=scheduler.spider.parse_other))
    assert not scheduler.enqueue_request(request("page"))
    assert scheduler.enqueue_request(request("seen"))
    assert scheduler.stats.get_value("dupefilter/filtered") == 1
    talk(scheduler)
    for name, slot in ("a", "\0"), ("b", "\ud800"):  # which in a call would stop all calls
        assert scheduler.enqueue_request(request(name, meta={"download_slot": slot}))
        assert name_of(scheduler.next_request()) == name
    popped = scheduler.next_request()
    assert (popped.url, popped.callback) == (request("page").url, scheduler.spider.parse_other)
    stats = scheduler.stats.get_stats()
    assert stats["scheduler/enqueued/redis"] == stats["scheduler/dequeued/redis"] == 1
    assert (stats["dupefilter/filtered"], stats["scheduler/unserializable"]) == (2, 2)
    scheduler.enqueue_request(request("late", meta={"bloom_not_before": 99}))
    talk(scheduler)
    assert scheduler.next_request() is None  # and wakes the engine then
    scheduler.worker._stats_set = -inf
    scheduler.worker._timer.cancel()
    scheduler.worker._tick()
    assert stats["scheduler/later"] == 1
    assert redis_server.command("ZCARD", f"{{{key}}}:workers") == 1
    scheduler.close("finished")
    assert redis_server.command("ZCARD", f"{{{key}}}:workers") == 0
    assert threading.active_count() == before
    assert {*reactor.getDelayedCalls()} <= timers
    assert stats["scheduler/calls"] == scheduler.worker.store.calls


STARTS = ["start1", "start2", "start3"]
ONE_AT_A_TIME = {"CONCURRENT_REQUESTS": 1, "CONCURRENT_REQUESTS_PER_DOMAIN": 0, "DOWNLOAD_DELAY": 4}


def run_start(scheduler, *requests, to_the_end=True):
    """Run start() as the engine does; one that is run again elsewhere gives STARTS."""

    async def start(requests, *, to_the_end=True):
        for each in requests:
            yield each if isinstance(each, Request) else request(each, dont_filter=True)
        if not to_the_end:
            await Deferred()

    async def schedule():
        output = start(requests, to_the_end=to_the_end)
        async for each in scheduler._start_requests.process_start(output):
            scheduler.enqueue_request(each)

    async def again():
        return scheduler._start_requests.process_start(start(STARTS))

    scheduler.crawler.engine.scraper.spidermw.process_start = again
    scheduler.crawler.engine.crawl = scheduler.enqueue_request
    Deferred.fromCoroutine(schedule())
    talk(scheduler)


@pytest.mark.parametrize("running", [True, False])
def test_start_that_takes_a_stop_for_its_end_is_not_through(build, running):
    """Ctrl-C cancels start(), and one that cleans up may just return: others run it. When one is
    through, no crawl waits for a worker that is still in it."""
    slow, scheduler = build(), build()
    run_start(slow, *STARTS[:2], to_the_end=False)
    scheduler.crawler.engine.running = running
    run_start(scheduler, *STARTS)
    assert fetch(slow, scheduler) == STARTS
    assert build().worker._state.start_done is running
    assert scheduler.has_pending_requests() is not running
    close_idle(scheduler)
    assert build().worker._state.over is running


@pytest.mark.parametrize(
    ("given", "most", "keeps"),
    [
        ({}, 16, 5000),
        (ONE_AT_A_TIME, 2, 8000),
        ({"DOWNLOAD_SLOTS": {"fast": {"concurrency": 12}, "slow": {"delay": 3}}}, 24, 5000),
        ({"CONCURRENT_REQUESTS": 0, "DOWNLOAD_SLOTS": {"any": {"concurrency": 0}}}, 400, 5000),
    ],
)
def test_scrapys_settings_say_how_much_a_worker_claims(build, given, most, keeps):
    """In all, and of a slot, and for how long (ms) it owns this with BLOOM_REDIS_SLOT_WORKERS."""
    store = build(BLOOM_REDIS_SLOT_WORKERS=1, **given).worker.store
    assert store._policy == Policy(60_000, most, (True, False), keeps, 5, 0)
    assert store._wanted == (given.get("CONCURRENT_REQUESTS", 16) or 200)


def test_start_that_fails_in_old_middlewares_is_over(build):
    """In process_start_requests of Scrapy 2.14, too: else the crawl would not end."""
    scheduler = build()

    def things():
        yield request("page")
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        list(scheduler._start_requests.process_start_requests(things(), scheduler.spider))
    assert scheduler._start_requests.failed
    assert not scheduler.worker.store.starting


def test_a_worker_with_seeds_is_not_at_rest(build, redis_server, own_server, key, monkeypatch):
    """In a list on another server, or taken by a worker and not in the crawl yet. If they refuse a
    start, no crawl is made."""
    monkeypatch.setattr(TestSpider, "redis_key", f"{key}:seeds", raising=False)
    monkeypatch.setattr(TestSpider, "redis_batch_size", "many", raising=False)
    with pytest.raises(ValueError, match="many"):
        build()
    monkeypatch.setattr(TestSpider, "redis_batch_size", 1)
    assert not [name for name in redis_server.names(key) if name.endswith(":crawl")]
    own_server.command("RPUSH", f"{key}:seeds", "http://example.com/seed")
    scheduler = build(REDIS_URL=own_server.url)
    run_start(scheduler)
    worker, taken = scheduler.worker, f"{{{key}:seeds}}:taken"
    wait_until(lambda: own_server.command("EXISTS", taken), "the seed to be taken")
    talk(scheduler)
    assert worker.store.is_quiet
    assert own_server.command("EXISTS", f"{key}:seeds") == 0
    assert scheduler.has_pending_requests()
    own_server.command("DEL", taken)
    # its thread waits for a reactor
    worker._seeds._ending.set()
    worker._seeds._thread.join()
    worker._seeds._move(scheduler.df.shared)
    assert not scheduler.has_pending_requests()


def test_a_worker_closes_to_the_end(build, monkeypatch, told):
    """Whatever a step of it raises; the report has the connection for itself."""
    scheduler = build()
    worker, found = scheduler.worker, []

    def fail(*_):
        found.append(worker._transport._thread.is_alive())
        raise ValueError("closed file")

    monkeypatch.setattr(worker._failures, "report", fail)
    scheduler.close("shutdown")
    assert found == [False]
    assert told(logging.ERROR) == ["This worker did not close cleanly: closed file"]
    assert scheduler.crawler.stats.get_value("scheduler/calls")
    assert session_of(scheduler.crawler).directory is None


def test_a_worker_that_closes_leaves_to_others_what_it_has_not_sent(build):
    """At once, though a page of its own takes long."""
    closing, other = build(), build()
    for number in range(9):
        closing.enqueue_request(request(f"page{number}"))
    talk(closing)
    sent = closing.next_request()
    closing.crawler.engine._slot.inprogress.add(sent)
    closing.crawler.engine._slot.closing = Deferred()
    closing.worker._timer.cancel()
    closing.worker._tick()
    talk(closing)
    assert len({*fetch(other)} - {name_of(sent)}) == 8


@pytest.mark.parametrize("is_fenced", [False, True])
def test_start_is_not_through_while_one_lives_in_memory(build, redis_server, key, is_fenced, told):
    """Without its worker only another run of start() gives it again; none repeats a login."""
    scheduler = build()
    meta = {"function": lambda: None, "bloom_repeat_start": True}
    run_start(scheduler, *(request(name, meta=meta) for name in ("page", "page")))
    assert scheduler.ledger.has_begun  # to tell handlers of before_commit
    in_progress = scheduler.crawler.engine._slot.inprogress
    popped = scheduler.next_request()
    in_progress.add(popped)
    for is_through in (b"", b"1"):
        talk(scheduler)
        assert redis_server.command("HGET", f"{{{key}}}:crawl", "start_done") == is_through
        if is_fenced:
            redis_server.command("ZREM", f"{{{key}}}:workers", scheduler.worker.store.worker)
        else:
            in_progress.discard(popped)
    assert scheduler.stats.get_value("scheduler/fenced", 0) == is_fenced
    assert sum("bloom_repeat_start is for jobs. Have each" in line for line in told()) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter"}, "set DUPEFILTER_CLASS to"),
        ({"BLOOM_REDIS_LEASE": 0}, "BLOOM_REDIS_LEASE is 0"),
        ({"BLOOM_REDIS_IDLE": -1}, "BLOOM_REDIS_IDLE is -1"),
        ({"BLOOM_REDIS_MAX_ATTEMPTS": 0}, "BLOOM_REDIS_MAX_ATTEMPTS is 0"),
        ({"BLOOM_REDIS_SLOT_WORKERS": 2}, "BLOOM_REDIS_SLOT_WORKERS is 2"),
        ({"BLOOM_REPEAT_START": True}, "begin a new round with BLOOM_REDIS_ROUND"),
        ({"SCHEDULER_MEMORY_QUEUE": "queue.Queue"}, "SCHEDULER_MEMORY_QUEUE is queue.Queue"),
        ({"BLOOM_BUDGET": "x"}, "BLOOM_BUDGET is 'x'"),
    ],
)
def test_bad_settings_are_refused(build, redis_server, key, settings, message):
    """Each with its name; nothing is left running, and nothing was made in Redis."""
    before = threading.active_count()
    with pytest.raises(ValueError, match=message):
        build(SCHEDULER="scrapy_bloom.RedisDurableScheduler", **settings)
    assert threading.active_count() == before
    assert redis_server.names(key) == []


def test_a_server_that_evicts_gets_no_new_crawl(own_server, build, told):
    """A crawl that is there goes on, with an ERROR."""
    own_server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    own_server.command("CONFIG", "SET", "maxmemory", "100mb")
    with pytest.raises(SharedFilterError, match="maxmemory-policy allkeys-lru"):
        build(BLOOM_REDIS_URL=own_server.url)
    assert own_server.names() == []
    for memory in ("0", "100mb"):
        own_server.command("CONFIG", "SET", "maxmemory", memory)
        talk(build(BLOOM_REDIS_URL=own_server.url))
    assert ["allkeys-lru" in line for line in told(logging.ERROR)] == [True, True]


@pytest.mark.parametrize(("name", "value"), [("save", "60 1"), ("appendonly", "yes"), ("save", "")])
def test_a_server_without_persistence_or_memory_is_named(
    own_server, build, told, monkeypatch, name, value
):
    """At start, unless there is a snapshot or a log; a worker says when memory is full,
    and again each minute, and at its close that nobody answers."""
    own_server.command("CONFIG", "SET", name, value)
    scheduler = build(BLOOM_REDIS_URL=own_server.url, BLOOM_REDIS_TIMEOUT=0.5)
    talk(scheduler)
    assert ["keeps nothing on a disk" in line for line in told()] == [True] * (value == "")
    for memory, pause in ((1, inf), (1, inf), (1, 0), (0, 0), (0, 0)):
        own_server.command("CONFIG", "SET", "maxmemory", memory)
        monkeypatch.setattr(worker_module, "REMINDER_SECONDS", pause)
        scheduler.worker.store._call()
        assert scheduler.worker._transport.wait(10)
    for text, times in (("has no memory left (maxmemory)", 2), ("answers again.", 1)):
        assert sum(text in line for line in told()) == times
    assert scheduler.stats.get_value("bloom/outages") == 1
    own_server.stop()
    scheduler.close("shutdown")
    assert any("does not answer: what this worker holds" in line for line in told())


def test_an_error_of_the_script_is_no_outage(build, redis_server, key):
    """The worker closes, and does not wait for it to be otherwise, nor for an answer."""
    scheduler = build()
    talk(scheduler)
    transport = scheduler.worker._transport
    told = SimpleQueue()
    transport._in_reactor = lambda function, *arguments: told.put((function, arguments))
    redis_server.command("SET", f"{{{key}}}:priorities", "x")
    scheduler.worker.store._call()
    function, (error,) = told.get(timeout=60)
    function(error)
    assert "WRONGTYPE" in str(error)
    assert scheduler.ledger.stopped
    transport._thread.join(60)
    assert not transport.wait(inf)
    redis_server.command("DEL", f"{{{key}}}:priorities")


def test_requests_that_cannot_be_read_cost_one_line(build, told):
    scheduler = build()
    for name in "abc":
        scheduler.enqueue_request(request(name, meta={"value": 1j}))
    talk(scheduler)
    scheduler.close("shutdown")
    scheduler = build(BLOOM_PICKLE=False)
    talk(scheduler)
    while scheduler.crawler.stats.get_value("scheduler/unreadable", 0) < 3:
        assert scheduler.next_request() is None
        talk(scheduler)
    (line,) = told(logging.ERROR)
    assert "cannot be made a request again" in line


def test_a_kill_loses_no_feed_of_a_worker_with_a_job_directory(build, tmp_path):
    """What is stored at the end is kept there; without a JOBDIR it is named."""
    feeds = {
        "ftp://example.com/items.json": {"format": "json"},
        str(tmp_path / "items.jsonl"): {"format": "jsonlines"},
        "items.gz": {"format": "csv", "postprocessing": [GzipPlugin]},
    }
    parts, lost = startup._parts, "not durable in ftp://example.com/items.json, items.gz: "
    assert parts[build(FEEDS=feeds).crawler]["items"] == (f"{lost}there is no JOBDIR", "set one")
    lines = {"format": "jsonlines"}
    local = [str(tmp_path / "b.jsonl"), f"file://{tmp_path}/c.jsonl", "stdout://"]
    assert "items" not in parts[build(FEEDS=dict.fromkeys(local, lines)).crawler]
    own = type("OwnExporter", (JsonLinesItemExporter,), {})
    for uri, options in (
        *((local[0], lines), (local[1], lines), (local[2], lines), ("ftp://example.com/a", lines)),
        *(("a.gz", {**lines, "postprocessing": [GzipPlugin]}), ("a.own", {"format": "own"})),
        ("%(batch_id)d", {**lines, "batch_item_count": 9}),
    ):
        feeds_of = build(FEEDS={uri: options}, FEED_EXPORTERS={"own": own}).worker.feeds
        assert feeds_of.are_synced == (uri in local[:2])
    off = parts[build(FEEDS=feeds, BLOOM_DURABLE_FEEDS=False).crawler]["items"]
    assert off == (f"{lost}BLOOM_DURABLE_FEEDS is False", "")
    settings = {"FEEDS": feeds, "JOBDIR": str(tmp_path / "job")}
    kept = build(**settings)
    assert parts[kept.crawler]["items"] == ("3 feeds with each item at least once", "")
    with pytest.raises(FilterLockedError, match="is in use by process"):
        build(**settings)


def test_scrapys_feeds_of_a_worker_are_synced_before_pages_are_acknowledged(tmp_path, monkeypatch):
    """All that is in them, and only when there is more than the last time."""
    path, synced, page = tmp_path / "items.jl", [], request("page")
    crawler = get_crawler(settings_dict={"FEEDS": {str(path): {"format": "jsonlines"}}})
    crawler.spider = crawler._create_spider("x")
    exporter = crawler.get_extension(FeedExporter)
    exporter.open_spider(crawler.spider)
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor)))
    hook = SyncedFeeds(crawler, tells=False)
    for number in (1, 2):
        exporter.item_scraped({"n": number}, crawler.spider)
        for _ in range(2):
            hook.before_commit([page])
        assert len(synced) == number
        assert os.path.samestat(synced[-1], path.stat())
        assert synced[-1].st_size == path.stat().st_size == 9 * number
    exporter.slots[0].file.close()


def test_a_crawl_that_is_over_leaves_stored_feeds_as_they_are(build, tmp_path):
    """Whether a worker ends, waits or is killed: an empty feed over the whole one is a loss. So is
    a new one for what failed in a round that it has seen begin."""
    paths = [tmp_path / name for name in ("over.json", "behind.json")]
    feeds = {str(path): {"format": "json"} for path in paths}
    feeds[str(paths[0])]["overwrite"] = True

    def work(*items, ends="finished", joins="", **settings):
        worker = build(FEEDS=feeds, JOBDIR=str(tmp_path / "job"), **settings)
        signal = worker.crawler.signals.send_catch_log_async
        waited_for(signal(signals.spider_opened, spider=worker.spider))
        for item in items:
            waited_for(signal(signals.item_scraped, item=item, spider=worker.spider, response=None))
        if joins:
            build(BLOOM_REDIS_ROUND=joins).close("shutdown")
            talk(worker)
        worker.worker.store.start_done = True
        if ends == "killed":
            talk(worker)
            worker.worker.feeds._file.close(clean=True)  # as the end of the process does
            worker.ledger._alarm.cancel()
            session_of(worker.crawler).abandon()
            worker.worker._transport.close()
            return query(tmp_path / "job/worker-feeds.sqlite", "SELECT crawl FROM rounds")
        worker.worker.idle_checks.has_closed = ends == "finished"
        worker.close(ends)
        waited_for(signal(signals.spider_closed, spider=worker.spider, reason=ends))
        assert query(tmp_path / "job/worker-feeds.sqlite", "SELECT clean FROM job") == [(1,)]
        return [path.read_bytes() for path in paths]

    first = work({"number": 1})
    assert json.loads(first[0]) == json.loads(first[1]) == [{"number": 1}]
    assert work() == first
    idle = {"BLOOM_REDIS_IDLE": 600}
    assert work(ends="shutdown", **idle) == first
    work(ends="killed", **idle)
    assert work(**idle) == work() == first
    numbers = [{"number": 1}, {"number": 2}, {"number": 3}]
    feeds = {f"file://{path}": options for path, options in feeds.items()}  # the same ones
    assert json.loads(work({"number": 2}, **idle)[0]) == numbers[:2]
    work({"number": 3}, ends="killed", **idle)  # it was final before the kill
    assert json.loads(work(**idle)[0]) == numbers
    assert json.loads(work(BLOOM_REDIS_ROUND="2")[0]) == []
    assert work(numbers[0], joins="3", ends="killed", **idle)[0][0].endswith(" 3")
    assert json.loads(work(numbers[1], **idle)[0]) == numbers[:2]


def test_a_fenced_worker_marks_nothing_that_may_be_forgotten(worker, key):
    """Links of what is done may be forgotten there: whoever yields them has them fetched again."""
    worker.enqueue("stored")
    done, in_progress = (request(name) for name in ("done", "in progress"))
    prints = [worker.dupefilter.fingerprint(each) for each in (done, in_progress)]
    for each in (done, in_progress):
        assert not worker.dupefilter.request_seen(each)
    worker.exchange()
    worker.client.call("zrem", f"{worker.key}:workers", worker.store.worker)
    worker.enqueue("unsent")
    worker.store.commit(prints[:1])
    worker.wait()
    assert worker.fences == 1
    assert not worker.store.start_done
    worker.store.commit(prints[1:])
    worker.exchange()
    assert not any(each in FilterView(worker.client, key).filter for each in prints)
    worker.store.push(done, ())  # as a redirect to it, past the filter
    worker.exchange()
    assert not any(worker.dupefilter.request_seen(each) for each in (done, in_progress))
    worker.store.commit(prints)  # fetched once more, and now all that came of them is there
    worker.exchange(2)
    stored = FilterView(worker.client, key).filter
    assert all(each in stored for each in prints)
    assert len(stored) == 4


def fetch(*schedulers):
    """Fetch what workers get, until nobody gets anything; return the names."""
    names, fetched = [], True
    while fetched:
        for scheduler in schedulers:
            talk(scheduler)
        fetched = [(each, got) for each in schedulers if (got := each.next_request()) is not None]
        names += [name_of(got) for _, got in fetched]
    for scheduler in schedulers:
        talk(scheduler)
    return sorted(names)


def close_idle(scheduler):
    """Do what the engine does that has asked the handlers of spider_idle."""
    scheduler.worker.idle_checks.has_closed = True
    scheduler.close("finished")


@pytest.mark.parametrize("comes", [True, False])
def test_a_worker_of_the_round_before_does_not_end_the_next(build, comes):
    """Each start request is sent, by a worker that comes, or by that one."""
    waiting = build(BLOOM_REDIS_ROUND="1", BLOOM_REDIS_IDLE=600)
    run_start(waiting, *STARTS)
    assert fetch(waiting) == STARTS
    last = build(BLOOM_REDIS_ROUND="1")
    run_start(last, *STARTS)
    assert (waiting.worker.begins_round, last.worker.begins_round) == (True, False)
    assert not last.has_pending_requests()
    assert last.stats.get_value("scheduler/start_skipped") is None
    close_idle(last)
    stopped = build(BLOOM_REDIS_ROUND="2")
    run_start(stopped, *STARTS[:1], to_the_end=False)
    talk(waiting)
    stopped.close("shutdown")
    workers = [waiting]
    if comes:
        workers.append(build(BLOOM_REDIS_ROUND="2"))
        run_start(workers[1], *STARTS)
    assert fetch(*workers) == STARTS
    assert waiting.stats.get_value("scheduler/start_skipped") == 1
    assert not any(each.has_pending_requests() for each in workers)
    close_idle(workers[-1])
    assert build(BLOOM_REDIS_ROUND="2").worker._state.over


def test_a_start_request_in_memory_is_none_of_the_next_round(build):
    """Whose own is sent, though the one before is done only then."""
    late, last = build(), build()
    run_start(late, request("page", dont_filter=True, meta={"function": lambda: None}))
    popped = late.next_request()
    late.crawler.engine._slot.inprogress.add(popped)
    run_start(last)
    close_idle(last)
    new = build(BLOOM_REDIS_ROUND="2")
    talk(late)
    late.crawler.engine._slot.inprogress.discard(popped)
    talk(late)
    run_start(new, "page")
    assert fetch(late, new) == ["page", *STARTS]


def test_a_worker_waits_anew_after_each_request(build, told, monkeypatch):
    """For BLOOM_REDIS_IDLE seconds of a crawl at rest. One that comes then says what it finds."""
    scheduler = build(BLOOM_REDIS_IDLE=10, BLOOM_REDIS_ROUND="1")
    with pytest.raises(DontCloseSpider):
        scheduler.worker._spider_idle()
    scheduler.enqueue_request(request("page", meta={"bloom_not_before": 99}))
    talk(scheduler)
    assert scheduler.crawler.engine.woken  # and then once more when it is due
    for round_, others in (("2", "1 other worker"), ("", "2 other workers")):
        parts = startup._parts[build(BLOOM_REDIS_ROUND=round_).crawler]
        assert f", with {others}, 1 later, the next in 1 min" in parts["requests"][0]
        assert parts["filter"][0].endswith(", which knows 1 request")
        assert sum("in round '1', which is not over" in line for line in told()) == 1
    later = monotonic() + 11
    monkeypatch.setattr(worker_module, "monotonic", lambda: later)
    with pytest.raises(DontCloseSpider):
        scheduler.worker._spider_idle()


def test_who_has_only_heard_that_start_is_through_does_not_say_so(
    build, key, redis_server, monkeypatch
):
    """It runs start() where Redis goes back to before its end."""
    first = build()
    run_start(first, *STARTS[:1], to_the_end=False)
    assert fetch(first) == STARTS[:1]
    first.close("shutdown")

    def hears_of_the_end(*arguments, **options):
        redis_server.command("HSET", f"{{{key}}}:crawl", "start_done", 1)
        found = open_crawl(*arguments, **options)
        redis_server.command("HSET", f"{{{key}}}:crawl", "start_done", "")
        return found

    monkeypatch.setattr(worker_module, "open_crawl", hears_of_the_end)
    last = build()
    assert last.worker._state.start_done
    run_start(last, *STARTS)
    assert fetch(last) == STARTS[1:]
    assert not last.has_pending_requests()
