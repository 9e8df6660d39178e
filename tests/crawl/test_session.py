"""Who has a job's lock, and in which order a job is closed."""

import gc
import json
import sqlite3

import pytest
from scrapy import signals
from scrapy.utils.test import get_crawler

from scrapy_bloom import DurableFeedExporter
from scrapy_bloom.errors import RequestFileError
from scrapy_bloom.jobdir import session_of
from scrapy_bloom.sqlite import scheduler as scheduler_module
from scrapy_bloom.sqlite.status import job_view
from tests.crawl.engine import Job, query
from tests.crawl.feed_jobs import FeedJob
from tests.crawl.rounds import RoundJob
from tests.crawl.test_rounds import phases


class Quiet(DurableFeedExporter):
    """Does not call the method that it overrides."""

    async def close_spider(self, spider):
        pass


class Curious(DurableFeedExporter):
    """Takes the reason, too, which Scrapy gives a handler that wants it."""

    async def close_spider(self, spider, reason):
        self.reason = reason
        await super().close_spider(spider)


def test_a_job_closes_in_one_order(tmp_path):
    """Functions, newest first, store, lock; when the last part ended. An error keeps none open."""
    crawler = get_crawler(settings_dict={"JOBDIR": str(tmp_path / "job")})
    session, closed = session_of(crawler), []

    def note(name):
        return lambda: closed.append((name, session.directory.is_locked))

    session.begin("dupefilter")
    session.closers.append(note("first"))
    session.closers.insert(0, note("store"))
    session.begin("scheduler")
    session.closers.append(lambda: 1 / 0)
    session.closers.append(note("second"))
    session.end("dupefilter")
    session.end("dupefilter")
    assert session.directory.is_locked
    with pytest.raises(ZeroDivisionError):
        session.end("scheduler")
    assert closed == [("second", True), ("first", True), ("store", True)]
    assert not session.directory.is_locked
    assert session.directory.path.is_dir()


def test_a_crawler_that_is_thrown_away_has_no_job(tmp_path):
    """A start that fails in another component, or a script, closes nothing."""
    for _ in range(2):
        crawler = get_crawler(settings_dict={"JOBDIR": str(tmp_path / "job")})
        session_of(crawler).begin(crawler)  # a part refers to the crawler
        del crawler
        gc.collect()


def test_a_job_with_feeds_is_free_when_they_are_stored(tmp_path, watch):
    """Its file is open until then, with what is the round's, and closed before another has it."""
    job, folder = FeedJob(tmp_path, {tmp_path / "items.json": "json"}).open(), tmp_path / "job"
    directory, store = session_of(job.crawler).directory, job.scheduler.ledger.store
    closed, items = [], tmp_path / "items.json"
    watch(store, "close", lambda **_: closed.append((directory.is_locked, items.read_text())))
    job.pages(a={"n": 1})
    job.scheduler.close("finished")
    assert (closed, phases(folder)) == ([], [(1, "to be stored")])
    assert job_view(folder).state == ("running", 1, 0, True)
    assert query(folder, "SELECT COUNT(*) FROM feeds") == [(1,)]
    job.send(signals.spider_closed, reason="finished")
    assert [(is_locked, json.loads(text)) for is_locked, text in closed] == [(True, [{"n": 1}])]
    assert not directory.is_locked
    assert (query(folder, "SELECT * FROM feeds"), phases(folder)) == ([], [(1, "over")])
    assert job_view(folder).state == ("finished", 1, 0, False)
    assert query(folder, "SELECT clean FROM job") == [(1,)]


@pytest.mark.parametrize("exporter", [Quiet, Curious])
def test_an_exporter_may_override_the_close(tmp_path, exporter):
    """Without it feeds wait for the next start, and the job is free; one may ask for the reason."""
    extensions = {"scrapy.extensions.feedexport.FeedExporter": None, exporter: 0}
    job = FeedJob(tmp_path, {tmp_path / "items.json": "json"}, EXTENSIONS=extensions)
    job.exporter = job.crawler.get_extension(exporter)
    job.open().pages(a={"n": 1}).scheduler.close("finished")
    assert session_of(job.crawler).directory.is_locked
    job.send(signals.spider_closed, reason="finished")
    assert not session_of(job.crawler).directory.is_locked
    is_curious = exporter is Curious
    assert getattr(job.exporter, "reason", None) == ("finished" if is_curious else None)
    assert (tmp_path / "items.json").exists() == is_curious


def test_a_start_that_is_refused_when_feeds_have_attached(tmp_path, monkeypatch):
    """The feeds are no part any more, and nothing is called."""
    closed = []

    def fail(crawler, *_, **__):
        session_of(crawler).closers.append(lambda: closed.append("function"))
        raise sqlite3.OperationalError("no")

    job = FeedJob(tmp_path, {tmp_path / "items.json": "json"})
    with monkeypatch.context() as patched:
        patched.setattr(scheduler_module, "Progress", fail)
        with pytest.raises(RequestFileError, match="no"):
            Job.open(job)
    assert not session_of(job.crawler).directory.is_locked
    job.send(signals.spider_closed, reason="shutdown")
    assert closed == []
    RoundJob(tmp_path / "job").open().close()
