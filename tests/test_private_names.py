"""Each private name of Scrapy, taken away: a start is refused, or a WARNING says what is off."""

import logging
import re
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from scrapy import Request
from scrapy.extensions.feedexport import FeedExporter
from scrapy.http import Response
from scrapy.settings import Settings
from scrapy.spidermiddlewares import httperror
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from scrapy_bloom import JobDirectoryError, scrapy_private
from scrapy_bloom.crawl.failed_request import FailedRequest
from scrapy_bloom.crawl.holds import sent_again
from scrapy_bloom.scrapy_private.middlewares import on_unhandled_status
from scrapy_bloom.scrapy_private.progress import EngineProgress, scheduler_of
from scrapy_bloom.scrapy_private.slots import slot_keys
from scrapy_bloom.scrapy_private.throttling import slot_named
from scrapy_bloom.startup import close_spider
from tests import fakes
from tests.crawl.engine import Job, name_of
from tests.crawl.feed_jobs import FeedJob
from tests.fakes import HAS_SCOPES

TABLE = Path(__file__).parents[1].joinpath("CONTRIBUTING.md").read_text(encoding="utf-8")
ROWS = {
    name: without
    for names, without in re.findall(
        r"^\| (`.*?`) \| .* \| (.*) \|$",
        TABLE.partition("### Private names")[2].partition("\n## ")[0],
        re.MULTILINE,
    )
    for name in re.findall("`(.*?)`", names)
}
REFUSED = [name for name, without in ROWS.items() if without.startswith("refused")]
MISSED = [name for name in ROWS if name not in REFUSED]
OF_SLOTS = ("Downloader.get_slot_key", "Downloader.slots", "downloader.Slot.queue")


@pytest.fixture(autouse=True)
def _anew():
    """Have everything be found, and said, anew."""
    scrapy_private.miss.cache_clear()
    yield
    scrapy_private.miss.cache_clear()


class Throttler:
    """As that of https://github.com/scrapy/scrapy/pull/6931."""

    def get_scopes_key(self, request):
        return "|".join(sorted(self.get_applied_scopes(request)))

    def get_applied_scopes(self, request):
        return request.meta.get("throttling_scopes", [])

    def get_scope_load(self, scope):
        return 0.0


def take_away(job, name, monkeypatch):
    """Have `job`, which is not open, find a Scrapy without `name`."""
    engine = job.engine
    if name == "engine._throttler_waiting":
        job.crawler.throttler = Throttler()
    engine.downloader.stop_async = lambda: None
    engine._handle_downloader_output = lambda result, request: None
    *path, last = name.split(".")
    if name in {"engine._spider_idle", "Downloader.get_slot_key"}:
        monkeypatch.delattr(getattr(fakes, path[0].title()), last)
    elif path == ["FeedExporter"]:
        monkeypatch.delattr(FeedExporter, last)
    elif name == "downloader.Slot.queue":
        engine.downloader.slots["example.com"] = SimpleNamespace(active=set())
    else:
        owner = engine.downloader if path == ["Downloader"] else engine
        for each in path[1:]:
            owner = getattr(owner, each, SimpleNamespace())
        with suppress(AttributeError):
            delattr(owner, last)


def test_the_table_has_every_name():
    """Also what a Scrapy that is to come has."""
    room = Path(scrapy_private.__file__).parent
    source = "".join(each.read_text(encoding="utf-8") for each in room.glob("*.py"))
    named = {*re.findall(r'"((?:engine|Downloader|downloader|scrapy)\.[\w.]*_?\w+)"', source)}
    named -= {"scrapy.core.scheduler.Scheduler"}
    assert {name for name in named if not name.startswith("scrapy.utils")} <= {*ROWS}
    assert len(REFUSED) >= 10
    assert len(MISSED) >= 5


@pytest.mark.parametrize("name", REFUSED)
def test_a_start_that_could_lose_a_page_is_refused(tmp_path, monkeypatch, name):
    """Before a file is made, with the name and the version."""
    if name.startswith("FeedExporter."):
        job = FeedJob(tmp_path, {tmp_path / "items.jsonl": "jsonlines"})
    else:
        job = Job(tmp_path / "job", BLOOM_FAILED_KINDS="download, status, ignored")
    job.engine.downloader.middleware = SimpleNamespace(methods={"process_exception": []})
    take_away(job, name, monkeypatch)
    with pytest.raises(JobDirectoryError, match=f" has no {re.escape(name)}, which "):
        job.open()
    assert [*(tmp_path / "job").iterdir()] == []


def test_a_close_lets_the_scraper_look(next_turn):
    """Scrapy looks whether its scraper is done after responses, not after items of `start()`."""
    engine, closing = fakes.Engine(), Deferred()
    engine.scraper.slot.closing = closing
    engine.scraper._check_if_closing = lambda: closing.callback(None)
    close_spider(SimpleNamespace(engine=engine), "over")
    next_turn()
    assert (engine.closed, closing.called) == (["over"], True)


def test_what_another_middleware_does_about_an_error_goes_on_behind_it():
    """Scrapy finds its successor by its number, in another list."""
    spidermw, other = SimpleNamespace(), object()
    refuses = httperror.HttpErrorMiddleware(Settings()).process_spider_exception
    spidermw.methods = {"process_spider_exception": [None, refuses, other]}
    spidermw.methods["process_spider_output"] = [1, 2, 3]
    engine = SimpleNamespace(scraper=SimpleNamespace(spidermw=spidermw))
    on_unhandled_status(SimpleNamespace(engine=engine), print)
    pairs = [*zip(*spidermw.methods.values(), strict=True)]
    assert pairs == [(None, 1), (print, None), (refuses, 2), (other, 3)]
    # without it, behind all others
    spidermw.methods = {"process_spider_exception": [other], "process_spider_output": [3]}
    on_unhandled_status(SimpleNamespace(engine=engine), print)
    assert [*zip(*spidermw.methods.values(), strict=True)] == [(other, 3), (print, None)]


@pytest.mark.parametrize("name", MISSED)
def test_any_other_is_missed_in_one_line(tmp_path, monkeypatch, caplog, name):
    """And no request is lost without it."""
    if HAS_SCOPES and name in OF_SLOTS:
        pytest.skip("this Scrapy has scopes in their place")
    with caplog.at_level(logging.WARNING):
        for expected in "cba":
            job = Job(tmp_path / "job")
            take_away(job, name, monkeypatch)
            job.open().pushed(*"abc").scheduler.hold("example.com", 60, 0)
            job.scheduler.release("example.com")
            scheduler_of(job.crawler)
            popped = job.pop()
            assert name_of(popped) == expected
            job.done(popped)
            job.close()
            monkeypatch.undo()
    lines = [each.getMessage() for each in caplog.records]
    assert [line for line in lines if f"has no {name}: " in line] == lines
    assert len(lines) == 1


def test_what_a_fast_stop_breaks_off_stays_pending(tmp_path):
    """As https://github.com/scrapy/scrapy/pull/7455 does: it may call an errback, but it has not
    failed. What was answered, or has failed before, is done."""
    job, handled = Job(tmp_path / "job"), []

    async def stop():
        return 1

    job.engine.downloader.stop_async = stop
    job.engine._handle_downloader_output = lambda result, request: handled.append(request)
    job.open().pushed(*"abc")
    failed, broken_off, answered = requests = [job.pop() for _ in range(3)]
    ledger = job.scheduler.ledger
    job.engine._handle_downloader_output(Failure(OSError("before")), failed)
    ledger.fail(failed, FailedRequest.of(failed, "download/other"))
    with suppress(StopIteration):
        job.engine.downloader.stop_async().send(None)
    job.engine._handle_downloader_output(Failure(OSError("cut off")), broken_off)
    ledger.fail(broken_off, FailedRequest.of(broken_off, "download/cancelled"))
    job.engine._handle_downloader_output(Response(answered.url), answered)
    assert handled == requests
    for request in requests:
        job.done(request)
    job.close()
    job = Job(tmp_path / "job").open()
    assert job.scheduler.ledger.store.failed == 1
    assert job.names() == [name_of(broken_off)]


def test_what_waits_for_its_scopes_is_not_what_is_sent_again(tmp_path):
    """Two forms of one URL: that which waits is not the source of the other's retry, nor is another
    page."""
    job = Job(tmp_path / "job")
    job.crawler.throttler = Throttler()
    sent, waits = (Request("http://example.com/form", method="POST", body=body) for body in "ab")
    job.engine._slot.inprogress |= {Request("http://example.com/other"), sent, waits}
    job.engine._throttler_waiting = {waits}
    assert [*EngineProgress(job.crawler).sent_again_as(sent_again(sent))] == [sent]


def test_the_first_scope_is_the_slot():
    """Of those that the throttler applies; without it or a slot, that in the meta, or the host."""
    of_host = slot_keys(SimpleNamespace(engine=SimpleNamespace(downloader=None)))
    for meta, slot in (({}, "example.com"), ({"download_slot": "named"}, "named")):
        assert of_host(Request("http://example.com/", meta=meta)) == slot
    of_crawler = slot_keys(SimpleNamespace(throttler=Throttler()))
    for scopes, slot in ((["z", "a"], "z"), (["only"], "only"), ([], "")):
        meta = {"throttling_scopes": scopes}
        assert of_crawler(Request("http://example.com/", meta=meta)) == slot
        assert slot_named(meta) == slot
