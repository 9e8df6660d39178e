"""When a round of a job begins, goes on and is over."""

from functools import partial
from pathlib import Path

import pytest
from scrapy import signals
from scrapy.exceptions import CloseSpider

from tests.crawl.engine import STOCK, query, unserializable
from tests.crawl.engine import unfiltered as start
from tests.fakes import Engine


def finish(job, *names):
    """Crawl all there is; return what start() gave."""
    sent = job.start(*map(start, names))
    job.finish()
    return sent


def phases(folder):
    """Return the rounds as another program sees them."""
    return query(folder, "SELECT number, phase FROM rounds")


def test_each_start_after_a_finished_round_is_a_new_one(make_round, tmp_path):
    """People crawl daily with one JOBDIR: start pages come each time, others once. What was taken
    goes with its round."""
    for number, names in enumerate(("ab", "bcd", "ab"), 1):
        job = make_round()
        assert (job.round.number, job.round.is_resumed) == (number, False)
        assert finish(job, *names) == [*names]
        assert phases(tmp_path / "job") == [(number, "over")]
        assert query(tmp_path / "job", "SELECT * FROM taken") == []


@pytest.mark.parametrize("reason", ["finished", "closespider_pagecount", "shutdown"])
@pytest.mark.parametrize("what", [start, partial(unserializable, dont_filter=True)])
def test_what_is_left_decides_whatever_the_reason_but_ctrl_c(
    make_round, tmp_path, caplog, reason, what
):
    """Nothing ends the round, one request, in memory too, does not. People go on after Ctrl-C until
    it says `finished`: a new round before that would overwrite their feeds, with start pages."""
    caplog.set_level("INFO")
    (job := make_round()).start(what("a"))
    job.close(reason)
    assert phases(tmp_path / "job") == [(1, "running")]
    job = make_round()
    assert (job.round.number, job.round.is_resumed) == (1, True)
    job.start(what("a"))
    job.finish(reason)
    told = "Round 1 is over: the next start begins a new one" in caplog.text
    assert told == (reason == "closespider_pagecount")
    if reason == "shutdown":
        assert phases(tmp_path / "job") == [(1, "running")]
        assert finish(make_round(), "a") == []
    assert phases(tmp_path / "job") == [(1, "over")]
    job = make_round().started("b")
    job.scheduler._idle_checks.has_closed = True  # a handler of spider_idle may stop the crawler
    job.finish(reason)
    assert phases(tmp_path / "job") == [(2, "over")]


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize(
    ("handler", "goes_on"),
    [(partial(print, "idle"), True), (lambda: None, True), (CloseSpider, False), (None, False)],
)
def test_who_listens_to_spider_idle_keeps_the_round(
    make_round, monkeypatch, handler, goes_on, tells
):
    """If it was not asked, or Scrapy does not tell; those of Scrapy's and ours give nothing."""
    if not tells:
        monkeypatch.delattr(Engine, "_spider_idle")
    job = make_round()
    if handler is not None:
        job.crawler.signals.connect(handler, signals.spider_idle, weak=False)
    finish(job, "a")
    assert make_round().round.is_resumed == goes_on


@pytest.mark.parametrize("how", [RuntimeError, CloseSpider, "stopped", "cancelled"])
def test_start_that_was_not_asked_to_the_end_does_not_end_the_round(make_round, job, how):
    """It breaks off, the spider is stopped, or Ctrl-C cancels it, and one that cleans up may just
    return. The next run asks it again for what it did not give, and for no more."""
    more = {"stopped": [start("b")], "cancelled": []}
    starting = job.starting(start("a"), *(more[how] if how in more else [how("no list")]))
    next(starting)
    job.names()
    if how == "cancelled":
        job.engine.running = False
        assert [*starting] == []
    elif how != "stopped":
        with pytest.raises(how):
            next(starting)
    job.close()
    job = make_round()
    assert job.round.is_resumed
    assert finish(job, "a", "b") == ["b"]
    assert make_round().round.number == 2


@pytest.mark.parametrize("pending", [True, False])
def test_a_job_that_knows_no_rounds(make_round, pending):
    """One of stock Scrapy or 0.1.0 goes on if anything is pending, and else begins anew. Which
    start requests it has taken nobody knows."""
    job = make_round(scheduler=STOCK)
    if pending:
        job.scheduler.enqueue_request(start("a"))
    job.close()
    job = make_round()
    assert (job.round.number, job.round.is_resumed) == (1, pending)
    assert finish(job, "a", "b") == ["a", "b"]
    assert make_round().round.number == 2


def test_feeds_that_are_gone_keep_no_round(job, crash_round):
    """The next start, without them, waits for nothing."""
    job.round.awaits_feeds = True
    finish(job, "a")
    without = crash_round()
    assert (without.round.number, without.round.is_resumed) == (2, False)
    assert finish(without, "a") == ["a"]
    assert phases(Path(without.crawler.settings["JOBDIR"])) == [(2, "over")]
