"""Marks of a job, or of a worker on Redis, on their way to the delta store."""

import re
import sys
import time
from math import inf
from shutil import copytree, rmtree
from types import SimpleNamespace

import pytest
from scrapy import signals
from scrapy.http import Response

from scrapy_bloom.bloom.removal import remove_filter
from scrapy_bloom.crawl.delays import DEAD
from scrapy_bloom.crawl.failed_request import FailedRequest
from scrapy_bloom.delta import crawl as delta_crawl
from scrapy_bloom.delta import middleware as middleware_module
from scrapy_bloom.delta.crawl import DeltaCrawl
from scrapy_bloom.delta.file_store import FileDeltaStore, Row
from scrapy_bloom.delta.middleware import DeltaMiddleware
from scrapy_bloom.delta.redis_store import RedisDeltaStore
from scrapy_bloom.delta.settings import DeltaSettings, Lifetime
from scrapy_bloom.errors import FeedError, SharedFilterError
from scrapy_bloom.feeds.open_feed import OpenFeed
from scrapy_bloom.redis.worker_feeds import SyncedFeeds
from tests.crawl.conftest import make  # noqa: F401 - a fixture
from tests.crawl.engine import name_of, query, request
from tests.crawl.feed_jobs import FeedJob
from tests.crawl.rounds import RoundJob, waited_for
from tests.failures import Failed
from tests.fakes import raising
from tests.redis.fixtures import open_scheduler
from tests.redis.server import DOCS
from tests.redis.workers import talk

pytestmark = pytest.mark.usefixtures("few_shards")


def test_marks_stay_in_the_job_until_the_store_has_taken_them(tmp_path, make):  # noqa: F811
    """Those of two rounds, of which neither the end nor the next start could add them; and while
    the round goes on: it does not skip its own pages, also when it is resumed; a reset is due when
    a round begins. A feed that is not stored has no items yet."""
    told = []
    waiting = SimpleNamespace(is_in_place=False, all_stored=False, has_any=True)
    for names, fails in (*(("1", True), ("2", True)), *((n, False) for n in ("3", "45", "", "67"))):
        job = make()
        store = FileDeltaStore(tmp_path / "memory", Lifetime())
        if fails:
            store.add = raising(OSError("the disk is full"))
        marking = DeltaSettings(mode="success", name="memory", reset=not names)
        delta = DeltaCrawl(job.crawler, marking, store)
        found = len([*delta.marks])
        delta._feeds = waiting if names == "67" else None
        job.scheduler._start_requests.exhausted = len(names) == 1
        request = job.pushed(*names).pop()
        delta.pages.begin(request).is_complete = True
        job.done(request)
        job.commit()
        job.close("shutdown" if len(job.scheduler) else "finished")
        delta.stopped()
        store.look()
        told.append((found, store.count))
    assert told == [(0, 0), (1, 0), (0, 3), (0, 4), (1, 5), (2, 5)]


class Marking:
    """A worker whose engine only keeps its books, with a delta store called `key`."""

    def __init__(self, url, key, crawl="crawl", **settings):
        self.scheduler = open_scheduler(url, f"{key}-{crawl}", **settings)
        self.crawler = crawler = self.scheduler.crawler
        crawler.settings.frozen = False
        crawler.settings.update({"BLOOM_DELTA": "success", "BLOOM_DELTA_DIR": key}, "cmdline")
        crawler.engine.scheduler = self.scheduler
        self.ledger = self.scheduler.ledger
        self.middleware = DeltaMiddleware.from_crawler(crawler)
        crawler.engine.scraper.spidermw.middlewares = [self.middleware]
        self.send(signals.spider_opened)
        self.delta, self.store = self.middleware._delta, self.middleware._store
        self.keys = {}
        self.is_open = True

    def send(self, signal, **what):
        what["spider"] = self.crawler.spider
        waited_for(self.crawler.signals.send_catch_log_async(signal, **what))

    def skips(self, name, **meta):
        response = Response("data:,", request=request("index"))
        return self.middleware.skipping.is_done(request(name, meta=meta), response)

    def do(self, *names, fails=(), **meta):
        """Fetch pages, and commit."""
        for name in names:
            self.scheduler.enqueue_request(request(name, meta=meta, dont_filter=bool(meta)))
        for _ in names:
            while (fetched := self.scheduler.next_request()) is None:
                self.ledger.commit()
                self.scheduler.worker._transport.wait(1)
            name = name_of(fetched)
            self.keys[self.delta.pages.key_of(fetched)] = name
            self.delta.pages.begin(fetched).is_complete = True
            if name in fails:
                record = FailedRequest(fetched.url, "GET", "callback", 200, "", 1, 0.0, "")
                self.ledger.fail(fetched, record)
        self.ledger.commit()

    @property
    def marked(self):
        """The pages that are in the delta store."""
        return sorted(self.keys[row.key] for row in self.store.marks(None))

    def close(self):
        if self.is_open:
            self.is_open = False
            self.scheduler.worker.store.start_done = True
            self.scheduler.worker.idle_checks.has_closed = True
            self.scheduler.close("finished")
            self.send(signals.spider_closed, reason="finished")


@pytest.fixture
def begin(redis_server, key, monkeypatch, kept):
    """Return a function that makes a worker."""
    monkeypatch.setattr(DeltaCrawl, "least_seconds", 0.0)
    monkeypatch.setattr(delta_crawl, "_SHARE", 1e9)
    monkeypatch.setattr(delta_crawl, "_LAST_SECONDS", 0.2)
    return lambda url=redis_server.url, **options: kept(Marking(url, key, **options))


broken = raising(SharedFilterError("no answer"))
"""Stands in for a store that cannot be reached."""


@pytest.mark.parametrize("job", [True, False])
def test_marks_follow_the_commit_that_has_synced_their_items(
    begin, monkeypatch, watch, tmp_path, job
):
    """Not before, once each, and not of a page that has failed; and soon after the server was slow,
    as a kill would lose them: an addition that takes long puts the next off by seconds. A commit is
    due for what is left, though the worker has nothing else to do."""
    settings = {"JOBDIR": str(tmp_path), "FEEDS": {str(tmp_path / "a"): {"format": "jsonlines"}}}
    worker, events, due = begin(**(settings if job else {})), [], []

    def synced(_, acknowledged):
        events.extend(("synced", name_of(each)) for each in acknowledged)

    def added(rows):
        events.extend(("added", worker.keys[row.key]) for row in rows)

    watch(SyncedFeeds, "before_commit", after=synced)
    watch(worker.store, "add", added)
    worker.do("one", "two", "three", fails=["two"])
    assert worker.marked == []  # other feeds have its items after the commit only
    worker.ledger.commit()
    assert worker.marked == ["one", "three"]
    monkeypatch.setattr(delta_crawl, "_SHARE", 1e-9)
    worker.do("four")
    worker.ledger.commit()
    assert 1 < worker.delta._not_before - time.monotonic() <= (inf if job else 5)
    assert "".join(what[0] for what, _ in events) == "sssaasa"
    assert sorted(name for what, name in events if what == "added") == ["four", "one", "three"]
    monkeypatch.setattr(worker.ledger, "commit_later", lambda: due.append(1))
    worker.ledger.commit()
    assert due == []
    worker.do("five")
    due.clear()
    worker.ledger.commit()
    assert due


@pytest.mark.parametrize("crawl", ["1", "2"])
@pytest.mark.parametrize(("folder", "again"), [("job", 0), ("job", 1), ("killed", 0), ("lost", 0)])
def test_an_old_fact_is_not_put_back(begin, tmp_path, monkeypatch, folder, again, crawl):
    """What a worker with a JOBDIR has left there does not come back: not over what another crawl
    has found since, nor where that was forgotten; of a killed one the marks of its crawl, but if
    a feed is given up."""
    feeds = {"FEEDS": {str(tmp_path / "feed"): {"format": "jsonlines"}}}
    job = begin(crawl="1", JOBDIR=str(tmp_path / "job"), **feeds)
    job.do("page", "left", bloom_delta_version="old")
    copytree(tmp_path / "job", tmp_path / "killed")
    job.close()
    if folder != "job":
        rmtree(tmp_path / "job")
        (tmp_path / "killed").rename(tmp_path / "job")
    other = begin(crawl="2")
    other.store.clear()
    other.do("page", bloom_delta_version="new")
    other.close()
    if folder == "lost":
        monkeypatch.setattr(OpenFeed, "check", raising(FeedError("its file is gone")))
        feeds["FEEDS"] = {str(tmp_path / "another"): {"format": "jsonlines"}}
    job = begin(crawl=crawl, JOBDIR=str(tmp_path / "job"), BLOOM_REDIS_IDLE=9, **feeds)
    job.do(*["page"] * again, bloom_delta_version="old", bloom_attempts=1)
    job.close()
    last = begin(crawl="last")
    assert last.skips("page", bloom_delta_version="new") is (folder == "job" and not again)
    assert not any(last.skips(name, bloom_delta_version="old") for name in ("page", "left"))
    assert last.skips("left") is ((folder, crawl) == ("killed", "1"))


@pytest.mark.parametrize("between", ["item", None])
def test_a_feed_that_is_given_up_leaves_no_mark(tmp_path, opened, between):
    """Of no page of its job, nor what a page is compared with, also if there is no delta then."""
    store = FileDeltaStore(tmp_path / "store", Lifetime())
    store.add([known := Row(bytes(20), 1.0, b"old", b"old", b"old")])

    def start(feed, delta="item"):
        settings = {"BLOOM_DELTA": delta, "BLOOM_DELTA_DIR": str(tmp_path / "store")}
        job = FeedJob(tmp_path, {tmp_path / feed: "json"}, **settings)
        if delta:
            job.marking = DeltaMiddleware.from_crawler(job.crawler)
            job.engine.scraper.spidermw.middlewares = [job.marking]
        return opened(job, request("never"), alone=True)

    job = start("lost")
    job.marking._delta.marks.add([Row(bytes(20), 2.0, b"new", b"new", b"new"), Row(b"2" * 20, 2.0)])
    job.pages(page={"n": 1}).pages(another={"n": 2}).drop()
    query(tmp_path / "job", "DELETE FROM items")
    for delta in (between, "item"):
        start("other", delta).close("shutdown")
    store.look()
    assert [*store.marks()] == [Row(known.key, 1.0, b"", b"", b"")]


def test_a_worker_that_waits_judges_anew_in_each_round(begin):
    """By what the store has then: a reset may have emptied it; and it compares anew."""
    worker, other = begin(), begin(crawl="other")
    other.do("known")
    other.close()
    worker.delta.marks.add([Row(bytes(20), None)], "new")
    assert worker.skips("known")
    begin().close()
    begin(BLOOM_REDIS_ROUND="2").store.clear()
    talk(worker.scheduler)
    assert [worker.skips("known"), worker.delta.marks.verdicts] == [False, {}]


def test_marks_wait_for_a_store_that_does_not_answer(begin, caplog):
    """Tried again, less and less often, and at the close: none is lost. A test crawl has none."""
    test_crawl = begin(BLOOM_DELTA_READ_ONLY=True)
    test_crawl.do("one", "two")
    test_crawl.close()
    worker, tries = begin(), []
    assert [*worker.store.marks(None)] == []
    add, worker.store.add = worker.store.add, lambda _: tries.append(1) or broken()
    worker.delta.least_seconds = 1000.0
    for number in range(5):
        worker.do(f"page{number}")
    assert (worker.marked, len(tries)) == ([], 1)
    answers = iter([broken, broken, add])
    worker.store.add = lambda rows: next(answers)(rows)
    worker.close()
    assert len([*begin().store.marks(None)]) == 5
    assert not [each for each in caplog.records if "not in" in each.getMessage()]


def test_what_is_lost_is_told_once(begin, caplog, monkeypatch):
    """The oldest marks beyond the most that wait, and what is left when the worker closes. The
    summary has what it knows itself."""
    caplog.set_level("INFO")
    monkeypatch.setattr(delta_crawl, "_MOST_READY", 3)
    worker = begin()
    worker.store.add = worker.middleware._update_stats = broken
    worker.do("one", "two")
    worker.do("three", "four", "five")
    assert {worker.keys[row.key] for row in worker.delta._ready} == {"three", "four", "five"}
    worker.close()
    (record,) = [each for each in caplog.records if "not in" in each.getMessage()]
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        f"5 marks of this crawl are not in {worker.store.name}, which could not be reached: the"
        " next crawl fetches those pages again."
    )
    (line,) = [each.getMessage() for each in caplog.records if "crawls: sk" in each.getMessage()]
    assert re.search("skipped 0 requests .* marked 5 pages .* cannot be reached.$", line)


@pytest.mark.parametrize("is_off", [False, True])
def test_a_store_that_fails_at_the_opening_is_told_in_a_line(begin, caplog, monkeypatch, is_off):
    """Without a traceback; where it could be opened, the crawl marks its pages."""
    owner, name = (middleware_module, "DeltaCrawl") if is_off else (RedisDeltaStore, "nbytes")
    monkeypatch.setattr(owner, name, broken if is_off else property(broken))
    worker = begin()
    told = [("BLOOM_DELTA is off in this crawl: no answer", None)] * is_off
    errors = [each for each in caplog.records if each.levelname == "ERROR"]
    assert [(each.getMessage(), each.exc_info) for each in errors] == told
    assert (worker.delta is None) == is_off


def test_a_worker_needs_the_rights_that_the_documents_name(begin, redis_server, key):
    """And no others, to mark."""
    text = (DOCS / "delta.md").read_text()
    more = re.search(r"needs these \[rights\].*?\n(.*?); for `delta list`", text, re.DOTALL)[1]
    words = more.replace("books:done", key).replace("`", "").replace(",", "").split()
    url = redis_server.user("workers.md", f"{key}-crawl", commands=False)
    redis_server.command("ACL", "SETUSER", f"{key}-crawl", *words)
    worker = begin(url)
    worker.do("one", "two")
    worker.ledger.commit()
    assert (worker.store.holds, worker.store.nbytes > 0) == ("1 slice", True)
    worker.close()
    assert len([*begin().store.marks(None)]) == 2


@pytest.mark.parametrize(("waits", "gone"), [(True, False), (False, True), (True, True)])
def test_a_new_round_comes_with_an_empty_filter(tmp_path, opened, monkeypatch, waits, gone):
    """Wherever the process dies, only what waits for a dead host passes for seen, or is retried."""

    def start():
        job = RoundJob(tmp_path / "job", BLOOM_DELTA="success", BLOOM_DELTA_DIR=str(tmp_path))
        if waits:
            job.crawler.signals.connect(lambda: job.push("c"), signals.spider_opened, weak=False)
        job.engine.scraper.spidermw.middlewares = [DeltaMiddleware.from_crawler(job.crawler)]
        return opened(job, later=True, alone=True).open()

    job = start().started().pushed(*"abc")
    job.pushed(*"d" * waits, meta={"download_slot": "gone"}).scheduler.hold("gone", 3600, DEAD)
    job.round.awaits_feeds = not waits
    assert sorted(job.finish())[-3:] == [*"abc"]
    (tmp_path / "job" / "requests.seen").write_text("of a job that was taken over")
    with monkeypatch.context() as patch:
        patch.setattr(delta_crawl, "remove_filter", lambda it: sys.exit(gone and remove_filter(it)))
        with pytest.raises(SystemExit):
            start()
    if waits and gone:
        opened(job, alone=True, later=True)
        Failed(tmp_path / "job").retry()
    for is_resumed in (False, True):
        job = start()
        assert (job.round.number, job.round.is_resumed) == (2, is_resumed)
        assert len(job.scheduler) == 2 * waits
        job.commit()
    assert sorted(job.pushed(*"abcd").names()) == [*"abcd"]
    monkeypatch.setattr(type(job.round), "_enter", raising(job.scheduler.ledger.store.failures[0]))
    assert start().scheduler.ledger.stopped  # its round cannot begin
