"""The dupefilter as Scrapy's scheduler uses it, without a crawl: in memory, in a job, in Redis."""

import contextlib
import errno
import logging
import os

import pytest
from scrapy import Request
from scrapy.dupefilters import RFPDupeFilter
from scrapy.statscollectors import MemoryStatsCollector
from scrapy.utils.request import RequestFingerprinter, fingerprint

from scrapy_bloom import (
    BloomDupeFilter,
    FilterFileError,
    FilterLockedError,
    JobDirectoryError,
    ScalableBloomFilter,
    dupefilter,
)
from scrapy_bloom.bloom import GrowingFilter
from scrapy_bloom.crawl.overlay import Keeper
from scrapy_bloom.jobdir import JobDirectory
from tests.fakes import raising
from tests.test_refused_start import contents
from tests.test_speed import made as without_addon


def requests(start, stop):
    return [Request(f"http://example.com/{n}") for n in range(start, stop)]


def verdicts(tested, offered):
    return [tested.request_seen(request) for request in offered]


@pytest.fixture(params=["memory", "job"])
def jobdir(request, tmp_path):
    """Return the JOBDIR of a crawl without one, and with."""
    return tmp_path if request.param == "job" else ""


@pytest.fixture(params=["memory", "job", "redis"])
def place(request, tmp_path):
    """Return the settings of a dupefilter in memory, in a job, and in Redis."""
    if request.param == "redis":
        server, key = map(request.getfixturevalue, ("redis_server", "key"))
        where = {"BLOOM_REDIS_URL": server.url, "BLOOM_REDIS_KEY": key}
        return {"DUPEFILTER_CLASS": "scrapy_bloom.RedisBloomDupeFilter", **where}
    return {"JOBDIR": tmp_path if request.param == "job" else ""}


@pytest.fixture
def closed(next_turn):
    """Return a function that lets a turn of the reactor pass, and tells why spiders were closed."""

    def closed(tested):
        next_turn()
        return tested.crawler.engine.closed

    return closed


def test_a_request_is_seen_once_it_was_offered(make_dupefilter, place, told):
    """New requests are new, known ones are seen, in whatever form they come again, and a run after
    the clean end of another knows them, too, unless they were in memory; not those of a spider's
    `closed()`, which nothing fetches, and which are no failure."""
    tested = make_dupefilter(**place)
    assert verdicts(tested, requests(0, 100)) == [False] * 100
    assert verdicts(tested, requests(0, 101)) == [True] * 100 + [False]
    assert tested.request_seen(Request("http://example.com/7#part"))
    assert not tested.request_seen(Request("http://example.com/7", method="POST"))
    assert not tested.request_seen(Request("http://example.com/7?b=1&a=2"))
    assert tested.request_seen(Request("http://example.com/7?a=2&b=1"))
    tested.close("finished")
    assert verdicts(tested, requests(101, 102)) == [False]
    assert told(logging.ERROR) == []
    is_kept = place.get("JOBDIR") != ""
    assert verdicts(make_dupefilter(**place), requests(0, 102)) == [is_kept] * 101 + [False]


# refusals


@pytest.fixture
def refused(make_dupefilter, told):
    """Return a function that gives the message of a refusal, which is its one ERROR line."""

    def refused(kind, **settings):
        with pytest.raises(kind) as raised:
            make_dupefilter(**settings)
        (line,) = told(logging.ERROR)
        assert line == str(raised.value)
        assert "\n" not in line
        return str(raised.value)

    return refused


CAPACITIES = ["it must be a whole number from 1", "such as 10000000, '10M' or 1e7"]
BAD = {
    "BLOOM_CAPACITY": ([0, "10X", 1.5, True, float("nan")], CAPACITIES),
    "BLOOM_ERROR_RATE": ([0, 1, "small", "1e-999", float("nan"), True], ["above 0", "below 1"]),
    "BLOOM_ON_FULL": (["stop", ["grow"], "", False], ["'grow'", "'close'"]),
}


@pytest.mark.parametrize(("name", "value"), [(name, v) for name in BAD for v in BAD[name][0]])
def test_a_bad_setting_is_refused(refused, tmp_path, name, value):
    """With its name, its value and the range; the refusal leaves no filter behind."""
    message = refused(ValueError, JOBDIR=tmp_path, **{name: value})
    for words in (f"{name} is {value!r}", *BAD[name][1]):
        assert words in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("in_use", [True, False])
def test_requests_seen_without_a_filter_is_refused(refused, make_dupefilter, tmp_path, in_use):
    """A job of RFPDupeFilter's stays as it was, also one in use; one with a filter opens."""
    make_dupefilter(JOBDIR=tmp_path / "both").close("finished")
    for name in ("both", "alone"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "requests.seen").write_bytes(b"\0\x01x")
    make_dupefilter(JOBDIR=tmp_path / "both")
    alone = tmp_path / "alone"
    words = f"process {os.getpid()}, which is this one" if in_use else "requests.seen"
    with JobDirectory(alone).locked() if in_use else contextlib.nullcontext():
        before = contents(alone)
        message = refused(FilterLockedError if in_use else JobDirectoryError, JOBDIR=alone)
        assert str(alone) in message
        assert words in message
        assert contents(alone) == before


def test_capacity_that_finds_no_room_is_refused(refused, make_dupefilter, tmp_path, jobdir):
    """With the number, and nothing is left behind; so is a JOBDIR that is a file."""
    kind = OSError if jobdir else MemoryError
    message = refused(kind, BLOOM_CAPACITY=10**15, JOBDIR=jobdir)
    assert "1,000,000,000,000,000" in message
    assert "smaller capacity" in message
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises((OSError, FilterFileError), match=str(tmp_path / "file")):
        make_dupefilter(JOBDIR=tmp_path / "file")


# what it tells


def test_stats_tell_of_the_filter(make_dupefilter):
    """All stats are there from the start, and right at close."""
    tested = make_dupefilter(BLOOM_CAPACITY=1_000, BLOOM_ERROR_RATE=1e-3)
    stats = tested.crawler.stats
    names = ("items", "layers", "bytes", "fill_ratio", "error_rate", "expected_false_positives")
    before = {name: stats.get_value(f"bloom/{name}") for name in names}
    assert before["bytes"] > 0
    assert before == dict.fromkeys(names, 0) | {"layers": 1, "bytes": before["bytes"]}
    assert not {"bloom/false_positives_avoided", "bloom/table_bytes"} & {*stats.get_stats()}
    verdicts(tested, requests(0, 2_500) + requests(0, 2_500))
    tested.close("finished")
    after = {name: stats.get_value(f"bloom/{name}") for name in names}
    assert after["items"] == pytest.approx(2_500, abs=10)
    assert after["layers"] == 2
    assert after["bytes"] > before["bytes"]
    assert 0.05 < after["fill_ratio"] < 0.6
    assert 0 < after["error_rate"] < 1e-3
    assert 0 < after["expected_false_positives"] < 2.5


@pytest.mark.parametrize("debug", [False, True])
def test_log_is_that_of_scrapys_dupefilter(make_dupefilter, caplog, recwarn, debug):
    """Records, levels, extras and the stat are those of RFPDupeFilter, without a warning."""
    caplog.set_level(logging.DEBUG)
    tested, logged = make_dupefilter(DUPEFILTER_DEBUG=debug), []
    for each in (RFPDupeFilter.from_crawler(tested.crawler), tested):
        spider = tested.crawler.spider
        spider.crawler = tested.crawler
        tested.crawler.stats.set_value("dupefilter/filtered", 0)
        caplog.clear()
        for request in requests(0, 3):
            each.log(request.replace(headers={"Referer": "http://example.com/from"}), spider)
        records = [(r.levelno, r.getMessage(), r.spider) for r in caplog.records]
        logged.append((records, tested.crawler.stats.get_value("dupefilter/filtered")))
    assert logged[0] == logged[1]
    records, filtered = logged[0]
    assert (filtered, len(records), len(recwarn)) == (3, 3 if debug else 1, 0)
    assert ("example.com/from" in records[0][1]) == debug


# failures


@pytest.mark.parametrize("answer", [None, bytearray(b"x"), LookupError("no idea")])
def test_failing_fingerprinter_is_replaced(make_dupefilter, place, told, monkeypatch, answer):
    """By Scrapy's where it raises or gives no bytes, by the raw URL where that fails as well; it is
    logged once, counted each time, and the spider goes on."""

    class Failing(RequestFingerprinter):
        def fingerprint(self, request):
            if "bad" not in request.url:
                return super().fingerprint(request)
            if isinstance(answer, Exception):
                raise answer
            return answer

    tested = make_dupefilter(REQUEST_FINGERPRINTER_CLASS=Failing, **place)
    paths = ["bad/1", "good", "bad/2", "bad/1#part", "bad/2?b=1&a=2", "bad/2?a=2&b=1", "good"]
    offered = [Request(f"http://example.com/{path}") for path in paths]
    assert verdicts(tested, offered) == [False, False, False, True, False, True, True]
    (line,) = told(logging.ERROR)
    assert "http://example.com/bad/1" in line
    assert tested.crawler.stats.get_value("bloom/fingerprint_errors") == 5
    assert tested.crawler.engine.closed == []
    no_url = raising(ValueError("no URL"))
    monkeypatch.setattr("scrapy.utils.request.canonicalize_url", no_url)
    offered = [Request(f"http://example.com/bad{n}") for n in range(3)]
    assert verdicts(tested, offered + offered) == [False] * 3 + [True] * 3
    assert told(logging.ERROR) == [line]


@pytest.mark.parametrize("failure", [OSError(errno.EIO, "I/O error"), MemoryError()], ids=repr)
def test_failing_filter_is_replaced_by_memory(make_dupefilter, closed, told, monkeypatch, failure):
    """A filter that fails is logged once; memory answers for it, and the spider is closed
    once, on the next turn of the reactor. What was to be released stays held."""
    tested, held = make_dupefilter(), make_dupefilter()
    verdicts(tested, requests(0, 5))
    keeper = Keeper(held, requests_survive=False)
    verdicts(held, requests(0, 5))
    add = GrowingFilter.add
    monkeypatch.setattr(
        GrowingFilter,
        "add",
        lambda self, key: add(self, key) if key in self else raising(failure)(),
    )
    keeper.release(keeper.uncommitted)
    assert len(keeper.uncommitted) == 5
    assert verdicts(tested, requests(5, 10) + requests(5, 10)) == [False] * 5 + [True] * 5
    assert tested.crawler.engine.closed == held.crawler.engine.closed == []
    assert closed(tested) == closed(held) == ["bloom_error"]
    assert verdicts(tested, requests(0, 12)) == [True] * 10 + [False] * 2
    assert verdicts(held, requests(0, 6)) == [True] * 5 + [False]
    assert closed(tested) == ["bloom_error"]
    assert len(told(logging.ERROR)) == 2
    assert all((str(failure) or "MemoryError") in line for line in told(logging.ERROR))


def test_what_a_filter_could_not_grow_for_is_released(make_dupefilter, monkeypatch):
    """Into the layer that is full: the next start of the job does not fetch that page again."""
    held = make_dupefilter(BLOOM_CAPACITY=3)
    keeper = Keeper(held, requests_survive=True)
    verdicts(held, requests(0, 5))
    monkeypatch.setattr(GrowingFilter, "_grow", raising(OSError(errno.ENOSPC, "full")))
    keeper.release(keeper.uncommitted)
    assert (len(keeper.uncommitted), len(held.filter)) == (0, 5)


class FailingStats(MemoryStatsCollector):
    """Refuses to set a value while `failing`."""

    failing = True

    def set_value(self, key, value, **_):
        if self.failing:
            raise LookupError(key)
        super().set_value(key, value)


def test_failing_stats_do_not_reach_the_scheduler(make_dupefilter, monkeypatch, tmp_path):
    """They cost neither a verdict nor the clean end; those that work see the items grow."""
    monkeypatch.setattr(dupefilter, "STATS_INTERVAL", 0.0)
    tested = make_dupefilter(JOBDIR=tmp_path, STATS_CLASS=FailingStats)
    assert verdicts(tested, requests(0, 2)) == [False] * 2
    monkeypatch.setattr(FailingStats, "failing", False)
    assert verdicts(tested, requests(0, 3)) == [True] * 2 + [False]
    assert tested.crawler.stats.get_value("bloom/items") == 3
    monkeypatch.setattr(FailingStats, "failing", True)
    assert verdicts(tested, requests(0, 4)) == [True] * 3 + [False]
    with contextlib.suppress(LookupError):
        tested.close("finished")
    with ScalableBloomFilter.open(tmp_path / "bloom") as stored:
        assert (stored.clean, len(stored)) == (True, 4)


# BLOOM_ON_FULL


def test_full_filter_closes_the_spider(make_dupefilter, closed, told, jobdir):
    """The capacity is the end; what still comes is added as far as the error rate allows."""
    settings = {"BLOOM_ON_FULL": "close", "JOBDIR": jobdir, "BLOOM_ERROR_RATE": 1e-9}
    tested = make_dupefilter(BLOOM_CAPACITY=50, **settings)
    verdicts(tested, requests(0, 49))
    assert closed(tested) == []
    assert verdicts(tested, requests(0, 60)) == [True] * 49 + [False] * 11
    assert tested.crawler.engine.closed == []
    assert closed(tested) == ["bloom_full"]
    assert verdicts(tested, requests(0, 600)) == [True] * 60 + [False] * 540
    assert closed(tested) == ["bloom_full"]
    known = len(tested.filter)
    tested.close("bloom_full")
    assert tested.crawler.stats.get_value("bloom/layers") == 1
    (line,) = told(logging.ERROR)
    assert all(text in line for text in ("the 50 requests of", "a larger BLOOM_CAPACITY"))
    # the first new request finds the filter of a job still full, or has room in it
    for capacity in (50, 200) if jobdir else ():
        resumed = make_dupefilter(BLOOM_CAPACITY=capacity, **settings)
        assert verdicts(resumed, requests(0, known)) == [True] * known
        assert closed(resumed) == []
        new = max(1, capacity - known)
        assert verdicts(resumed, requests(known, known + new)) == [False] * new
        assert closed(resumed) == ["bloom_full"]
        resumed.crawler.engine.close_spider_async = raising(RuntimeError("Spider not opened"))
        assert (len(resumed.filter.capacities) == 1) == (capacity == 50)
        resumed.close("bloom_full")


# BLOOM_EXACT


EXACT = {"BLOOM_EXACT": True, "BLOOM_ERROR_RATE": 0.9, "BLOOM_CAPACITY": 2_000}


@pytest.mark.parametrize("name", ["", "exact"])
def test_no_page_is_lost(make_dupefilter, tmp_path, caplog, name):
    """At an error rate of 0.9 each new request is new, and the stats say what the table has saved;
    a job that has one keeps it without the setting, and without the error rate, too."""
    place = {"JOBDIR": name and tmp_path / name}
    tested = make_dupefilter(**place, **EXACT)
    assert verdicts(tested, requests(0, 16_000)) == [False] * 16_000
    assert verdicts(tested, requests(0, 16_000)) == [True] * 16_000
    caplog.set_level(logging.INFO)
    tested.close("finished")
    tested.close("finished")
    assert caplog.text.count("pages probably lost: none; memory: ") == 1
    assert ", and an exact table of " in caplog.text
    stats = tested.crawler.stats
    assert stats.get_value("bloom/items") == 16_000
    assert stats.get_value("bloom/false_positives_avoided") > 10
    assert stats.get_value("bloom/expected_false_positives") < 1e-9
    assert stats.get_value("bloom/error_rate") < 1e-15
    assert stats.get_value("bloom/table_bytes") > 9.4 * 16_000
    if name:
        tested = make_dupefilter(**place, BLOOM_ERROR_RATE=0.9)
        assert verdicts(tested, requests(14_000, 18_000)) == [True] * 2_000 + [False] * 2_000
        assert tested.filter.exact


def test_requests_seen_is_imported_exactly(make_dupefilter, tmp_path):
    """A job of Scrapy's RFPDupeFilter goes on with a table."""
    scrapys = make_dupefilter(
        JOBDIR=tmp_path, ADDONS={}, DUPEFILTER_CLASS="scrapy.dupefilters.RFPDupeFilter"
    )
    verdicts(scrapys, requests(0, 300))
    scrapys.close("finished")
    (tmp_path / "requests.queue").mkdir()
    (tmp_path / "requests.queue" / "active.json").write_text("{}")
    tested = make_dupefilter(JOBDIR=tmp_path, **EXACT)
    assert tested.filter.exact
    assert "RequestFingerprinter" in tested.filter.identity
    assert verdicts(tested, requests(0, 3_000)) == [True] * 300 + [False] * 2_700
    tested.close("shutdown")
    first = tmp_path / "bloom" / "0.bloom"
    first.rename(first.with_name("old-0.bloom"))  # what it has seen since is not in requests.seen
    with pytest.raises(FilterFileError, match=r"0\.bloom is missing, and there is a 1\.bloom"):
        make_dupefilter(JOBDIR=tmp_path, **EXACT)


# the seam for a scheduler that stores requests durably


def test_what_is_held_back_is_seen_and_forgotten(make_dupefilter, closed, jobdir):
    """It is new again, once, when it is forgotten, in whatever form; what was released before is
    not, fills the filter, and is all that a job has when it is resumed."""
    settings = {"JOBDIR": jobdir, "BLOOM_CAPACITY": 25}
    tested = make_dupefilter(BLOOM_ON_FULL="close", **settings)

    def page(n, form="?a=1&b=2"):
        return Request(f"http://example.com/{n}{form}")

    verdicts(tested, map(page, range(5)))
    keeper = Keeper(tested, requests_survive=False)
    for n in range(30):
        assert tested.request_seen(page(n)) == (n < 5)
        for form in ("?a=1&b=2#part", "?b=2&a=1", "?a=1&b=2"):
            assert tested.request_seen(page(n, form))
            keeper.forget(page(n, form))
            assert tested.request_seen(page(n)) == (n < 5)
    held = [fingerprint(page(n)) for n in range(5, 30)]
    assert [*keeper.uncommitted] == held
    keeper.release(iter(held[:19]))
    assert [*keeper.uncommitted] == held[19:]
    assert closed(tested) == []
    keeper.release(held[19:20])
    assert tested.crawler.engine.closed == []
    assert closed(tested) == ["bloom_full"]
    keeper.forget(page(7))
    assert tested.request_seen(page(7))
    tested.close("finished")
    if jobdir:
        resumed = make_dupefilter(**settings)
        assert verdicts(resumed, map(page, range(30))) == [n < 25 for n in range(30)]


def test_a_subclass_may_have_attributes_of_these_names():
    """They are common words, and say nothing here."""
    names = ["settings", "fingerprinter", "seen", "known", "audit", "closing", "recent"]

    class Own(BloomDupeFilter):
        def request_seen(self, request):
            for name in names:
                setattr(self, name, [getattr(self, name, None)])
            return super().request_seen(request)

    tested = Own.from_crawler(without_addon().crawler)
    tested.open()
    offered = [*requests(0, 2), Request("http://example.com/", method="POST")]
    assert verdicts(tested, offered) == [False] * 3
    assert verdicts(tested, [each.copy() for each in offered]) == [True] * 3
    tested.close("finished")
