"""The signal before_commit, and the pipeline of docs/pipelines.md that uses it."""

import itertools
import os
import time
from pathlib import Path

import pytest
from scrapy import signals
from twisted.internet.defer import Deferred

from scrapy_bloom.signals import before_commit
from tests.crawl.engine import name_of, query
from tests.world.rounds import documented_pipeline

pytestmark = pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS")


def started(job, *names):
    """Let start() of a job give requests for these pages, and be exhausted."""
    job.started(*names).commit()
    return job


@pytest.fixture
def books_pipeline(monkeypatch, tmp_path):
    """The class in the document, which works in the folder of the test."""
    monkeypatch.chdir(tmp_path)
    return documented_pipeline()


class Crawl:
    """Does for a job what Scrapy's engine does around a pipeline."""

    def __init__(self, job, pipeline_class):
        self.job = job
        self.pipeline = pipeline_class.from_crawler(job.crawler)
        self.pipeline.open_spider()

    def scrape(self):
        """Crawl the next page; return its name."""
        popped = self.job.pop()
        title = {"url": name_of(popped), "title": f"Title of {name_of(popped)}"}
        self.pipeline.process_item(title)
        self.job.done(popped)
        return name_of(popped)


def books(path="books.sqlite"):
    return sorted(url for (url,) in query(Path(path), "SELECT url FROM books"))


def test_no_book_is_lost_wherever_the_process_dies(make_round, crash_round, books_pipeline):
    """After each page, a crash leaves it in the database or among what is fetched again."""
    names = [f"book{number}" for number in range(6)]
    crawl = Crawl(started(make_round(), *names), books_pipeline)
    for number in range(6):
        crawl.scrape()
        if number % 2:
            crawl.job.commit()
        resumed = crash_round()
        assert sorted(set(books()) | set(resumed.names())) == names
        resumed.drop()
    crawl.job.close()
    assert books() == names
    assert make_round().round.number == 2


def test_a_database_that_is_gone_at_the_end_costs_a_repetition(
    make_round, books_pipeline, caplog, tmp_path
):
    """The last commit acknowledges nothing, and the next start fetches those pages again."""
    crawl = Crawl(started(make_round(), "a", "b"), books_pipeline)
    crawl.scrape()
    crawl.job.commit()
    crawl.scrape()
    crawl.pipeline.connection.execute("DROP TABLE books")
    crawl.job.close()
    messages = [r.getMessage() for r in caplog.records if "before_commit" in r.getMessage()]
    assert len(messages) == 1
    assert "no such table: books" in messages[0]
    assert "flush" in messages[0]
    crawl = Crawl(started(make_round(), "a", "b"), books_pipeline)
    assert crawl.job.round.is_resumed
    names = [crawl.scrape()]
    crawl.job.close()
    assert books() == names
    assert make_round().round.number == 2


def test_a_database_that_goes_away_closes_the_spider(make_round, books_pipeline, next_turn):
    """With reason bloom_error; what is in the buffer then is not acknowledged."""
    crawl = Crawl(started(make_round(), "a", "b", "c"), books_pipeline)
    crawl.pipeline.connection.close()
    crawl.scrape()
    crawl.job.commit()
    next_turn()
    assert crawl.job.engine.closed == ["bloom_error"]
    assert not crawl.job.push("later")
    crawl.job.close()
    crawl = Crawl(make_round(), books_pipeline)
    for _ in range(3):
        crawl.scrape()
    crawl.job.close()
    assert books() == ["a", "b", "c"]


async def coroutine():
    pass


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (coroutine, "it must do its work before it returns"),
        (lambda: Deferred(), "it must do its work before it returns"),
        (lambda: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_handler_that_has_not_done_its_work_stops_the_acknowledging(
    make_round, next_turn, caplog, handler, reason
):
    """One ERROR line says which one it was, and why."""
    job = started(make_round(), "a")
    job.crawler.signals.connect(handler, before_commit)
    job.names()
    job.commit()
    next_turn()
    (error,) = [r.getMessage() for r in caplog.records if "A commit failed" in r.getMessage()]
    assert reason in error
    assert "a handler of before_commit" in error
    assert "\n" not in error
    assert job.engine.closed == ["bloom_error"]
    job.close()
    assert make_round().names() == ["a"]


def test_a_handler_may_crawl(make_round, crash_round):
    """What it enqueues is in the commit; what it finishes is acknowledged by the next one."""
    job = started(make_round(), "a", "b")
    job.scheduler.ledger._operations = 1
    handled = []

    def handler(spider):
        if not handled:
            handled.append(spider)
            job.push("c")
            job.done(popped)

    job.crawler.signals.connect(handler, before_commit)
    popped = job.pop()
    job.commit()
    assert handled == [job.spider]
    assert len(crash_round().scheduler) == 3
    job.commit()
    assert len(crash_round().scheduler) == 2


def test_the_signal_is_sent_from_the_first_start_request_to_the_last_commit(make_round):
    """Before the spider starts no pipeline is ready for it."""
    job = make_round()
    sent = []
    job.crawler.signals.connect(handler := lambda: sent.append(1), before_commit)
    job.push("a")
    job.commit()
    assert sent == []
    started(job)
    assert len(sent) == 1
    job.close()
    assert len(sent) == 2
    assert handler


def test_slow_handlers_space_the_commits(make_round, monkeypatch):
    """They take a twentieth of the time, whatever the number of requests."""
    job = started(make_round())
    job.scheduler.ledger._operations = 1
    # each look at this clock is a second later than the one before
    clock, sent = itertools.count(time.monotonic() + 1000), []
    monkeypatch.setattr("scrapy_bloom.crawl.ledger.monotonic", lambda: next(clock))

    def handler():
        sent.append(1)

    job.crawler.signals.connect(handler, before_commit)
    job.pushed(*map(str, range(50)))
    assert 2 <= len(sent) <= 4
    job.close()
    assert len(make_round().scheduler) == 50


def test_nothing_is_sent_after_the_close(make_round):
    """A connection that a handler of spider_closed has closed is not asked for again."""
    job = started(make_round(), "a")
    sent = []
    job.crawler.signals.connect(handler := lambda: sent.append(1), before_commit)
    job.scheduler.close("finished")
    before = len(sent)
    job.send(signals.spider_closed, reason="finished")
    job.commit()
    assert len(sent) == before
    assert handler
