"""The signal before_commit, and the pipeline of docs/pipelines.md that uses it."""

from pathlib import Path

import pytest
from scrapy import signals
from twisted.internet.defer import Deferred

from scrapy_bloom.crawl.ledger import CommitHook
from scrapy_bloom.signals import before_commit
from tests.crawl.engine import query
from tests.world.feeds import documented_pipeline


def started(job, *names):
    """Let start() of a job give requests for these pages, and be exhausted."""
    job.started(*names).commit()
    return job


@pytest.mark.parametrize("at_the_end", [True, False])
def test_a_database_that_is_gone_costs_a_repetition(
    make_round, next_turn, caplog, monkeypatch, tmp_path, at_the_end
):
    """It acknowledges nothing, the spider closes with bloom_error, and those pages come again."""
    monkeypatch.chdir(tmp_path)
    pipeline_class = documented_pipeline()

    def opened():
        job = started(make_round(), "a", "b")
        pipeline = pipeline_class.from_crawler(job.crawler)
        pipeline.open_spider()
        return job, pipeline

    def scrape(job, pipeline):
        popped = job.pop()
        pipeline.process_item({"url": popped.url, "title": ""})
        job.done(popped)
        return popped.url

    job, pipeline = opened()
    scrape(job, pipeline)
    job.commit()
    scrape(job, pipeline)
    pipeline.connection.execute("DROP TABLE books")
    if not at_the_end:
        job.commit()
        next_turn()
        assert job.engine.closed == ["bloom_error"]
        assert not job.push("later")
    job.close()
    (message,) = [r.getMessage() for r in caplog.records if "before_commit" in r.getMessage()]
    assert "no such table: books" in message
    assert "flush" in message
    job, pipeline = opened()
    assert job.round.is_resumed
    url = scrape(job, pipeline)
    job.close()
    assert query(Path("books.sqlite"), "SELECT url FROM books") == [(url,)]
    assert make_round().round.number == 2


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
    (error,) = [r.getMessage() for r in caplog.records if "The job failed" in r.getMessage()]
    assert reason in error
    assert "a handler of before_commit" in error
    assert "\n" not in error
    assert job.engine.closed == ["bloom_error"]
    job.close()
    assert make_round().names() == ["a"]


def test_a_handler_may_crawl(make_round, crash_round):
    """What it enqueues is in the commit; what it finishes is acknowledged by the next one."""
    job, handled = started(make_round(), "a", "b"), []
    job.scheduler.ledger._operations = 1
    popped = job.pop()

    def handler():
        if not handled:
            handled.append(job.push("c"))
            job.done(popped)

    job.crawler.signals.connect(handler, before_commit)
    job.commit()
    assert len(crash_round().scheduler) == 3
    job.commit()
    assert len(crash_round().scheduler) == 2


def test_the_signal_is_sent_from_the_first_start_request_to_the_last_commit(make_round):
    """Before the spider starts no pipeline is ready for it; a connection that a handler of
    spider_closed has closed is not asked for again."""
    job, sent = make_round(), []
    job.crawler.signals.connect(handler := lambda spider: sent.append(spider), before_commit)
    job.push("a")
    job.commit()
    assert sent == []
    started(job)
    assert len(sent) == 1
    job.scheduler.close("finished")
    assert len(sent) == 2
    job.send(signals.spider_closed, reason="finished")
    job.commit()
    assert sent == [job.crawler.spider] * 2
    assert handler


@pytest.mark.parametrize("is_handler", [True, False])
def test_slow_handlers_and_hooks_space_the_commits(make_round, monkeypatch, is_handler):
    """They take a twentieth of the time, whatever the number of requests."""
    called, now = [], [1000]
    monkeypatch.setattr("scrapy_bloom.crawl.ledger.monotonic", lambda: now[0])
    job = started(make_round())
    job.scheduler.ledger._operations = 1

    def slow(*_):
        called.append(now[0])
        now[0] += 1

    if is_handler:
        job.crawler.signals.connect(slow, before_commit)
    else:
        job.scheduler.ledger.commit_hooks.append(hook := CommitHook())
        hook.before_commit = slow
    for number in range(50):
        now[0] += 1
        job.push(str(number))
    assert called == [1001, 1021, 1041]
    job.close()
    assert len(make_round().scheduler) == 50
