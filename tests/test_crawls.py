"""Real crawls of a small site, in processes of their own, stopped in every way and resumed."""

import json
import shutil
from contextlib import suppress
from signal import SIGINT, SIGKILL, SIGTERM

import pytest
from scrapy import version_info

from scrapy_bloom import ScalableBloomFilter
from tests.crawl.engine import query
from tests.patience import wait_until
from tests.small_site import PAGES, Scrapy, SmallSite, crawl, crawl_until

ASYNCIO = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"
SELECT = "twisted.internet.selectreactor.SelectReactor"
STOP_AT = 50
# the add-on alone, with nobody having set a dupefilter
ADDON = {"ADDONS": '{"scrapy_bloom.Addon": 300}', "DUPEFILTER_CLASS": None}


@pytest.mark.parametrize(("signal", "reactor"), [(SIGINT, ASYNCIO), (SIGTERM, SELECT)])
def test_stopped_crawl_resumes_and_misses_nothing(tmp_path, signal, reactor):
    """Over a stop by signal and a resumption no page is missed and none fetched twice."""
    with SmallSite() as site:
        first = crawl_until(STOP_AT, site, tmp_path, TWISTED_REACTOR=reactor)
        site.stop(first, signal)
        between = site.answered.total()
        second = crawl(site, tmp_path, TWISTED_REACTOR=reactor).end()
    assert (first.reason, second.reason) == ("shutdown", "finished")
    assert first.status == second.status == 0
    assert STOP_AT <= between < len(PAGES)
    assert (site.missed, site.twice) == ([], [])
    assert second.lines("ERROR") == second.lines("WARNING") == []
    assert int(second.stat("bloom/items")) > len(PAGES)
    assert int(second.stat("dupefilter/filtered")) > len(PAGES)


def test_bytes_that_flip_are_told_of_in_one_line(tmp_path):
    """It names what failed, and shows no traceback."""
    with SmallSite() as site:
        run = crawl_until(STOP_AT, site, tmp_path, **ADDON, BLOOM_KEEP_FAILED=0)
        site.release()
        # until it reads some of them: what SQLite has in memory heals others
        while run.process.poll() is None:
            for each in (tmp_path / "job").glob("requests.sqlite*"):
                with suppress(FileNotFoundError), each.open("r+b") as file:
                    file.write(b"\x5a" * each.stat().st_size)
        run.end()
    (line,) = run.lines("ERROR")
    assert "job/requests.sqlite: " in line
    assert "Traceback" not in run.log


def test_killed_crawl_keeps_its_filter_and_says_what_was_lost(tmp_path):
    """After SIGKILL the filter knows its keys, one line warns, and the job runs on, its
    lock being no obstacle; the next run finds a job that was stopped cleanly."""
    with SmallSite() as site:
        first = crawl_until(STOP_AT, site, tmp_path)
        first.stop(SIGKILL)
        first.end()
        known = site.fingerprints()
        shutil.copytree(tmp_path / "job" / "bloom", tmp_path / "copy")
        site.release()
        second = crawl(site, tmp_path).end()
        third = crawl(site, tmp_path).end()
    with ScalableBloomFilter.open(tmp_path / "copy") as copy:
        forgotten = [fingerprint for fingerprint in known if fingerprint not in copy]
        clean = copy.clean
    assert first.status == -SIGKILL
    assert len(known) >= STOP_AT
    assert (forgotten, clean) == ([], False)
    assert (second.status, second.reason) == (0, "finished")
    assert second.lines("ERROR") == []
    (warning,) = second.lines("WARNING")
    assert "not stopped cleanly" in warning
    assert "pending" in warning
    assert "new JOBDIR" in warning
    assert int(second.stat("bloom/items")) >= STOP_AT
    assert site.twice == []
    assert (third.status, third.reason) == (0, "finished")
    assert third.lines("WARNING") == []


def test_a_kill_and_an_end_without_feeds_lose_no_item(tmp_path):
    """The feed has each page that is not fetched again, also in a copy of the whole project. Only
    then -O of a new round empties it."""
    folder, copy = tmp_path / "here", tmp_path / "there"
    folder.mkdir()
    path, waiting = copy / "a.json", "SELECT 1 FROM items WHERE feed < 0"
    options = {**ADDON, "job": False, "JOBDIR": "job"}
    feed = {**options, "FEEDS": '{"a.json": {"format": "json", "overwrite": true}}'}
    with SmallSite() as site:
        first = crawl_until(STOP_AT, site, folder, **feed)
        wait_until(lambda: query(folder / "job", waiting))
        first.stop(SIGKILL)
        first.end()
        site.answered.clear()
        site.release()
        shutil.copytree(folder, copy)
        without = crawl(site, copy, **options).end()
        assert len(PAGES) - len(site.answered) == len(json.loads(path.read_text())) > 0
        last = crawl(site, copy, **feed).end()
    assert (without.reason, last.reason) == ("finished", "finished")
    assert json.loads(path.read_text()) == []


def test_full_filter_closes_the_spider_and_a_larger_one_resumes(tmp_path):
    """BLOOM_ON_FULL = "close" ends the crawl cleanly, as does a filter that finds no room to grow,
    with one ERROR line each; with more of it the crawl goes on where it was, and misses nothing."""
    limit = {"FILE_SIZE_LIMIT": "1000000"}
    with SmallSite() as site:
        full = crawl(site, tmp_path, BLOOM_CAPACITY=40, BLOOM_ON_FULL="close").end()
        before = site.answered.total()
        failed = crawl(site, tmp_path, environment=limit).end()
        between = site.answered.total()
        names = {path.name for path in (tmp_path / "job" / "bloom").iterdir()}
        resumed = crawl(site, tmp_path, BLOOM_ON_FULL="close", BLOOM_CAPACITY=500).end()
    assert (full.status, full.reason) == (0, "bloom_full")
    assert int(full.stat("bloom/items")) >= 40
    assert int(full.stat("bloom/layers")) == 1
    (error,) = full.lines("ERROR")
    assert "BLOOM_CAPACITY" in error
    assert (failed.status, failed.reason) == (0, "bloom_error")
    assert before < between < len(PAGES)
    (error,) = failed.lines("ERROR")
    assert "1.bloom" in error
    assert names == {"0.bloom"}
    assert (resumed.status, resumed.reason) == (0, "finished")
    assert int(resumed.stat("bloom/layers")) == 2
    assert resumed.lines("ERROR") == resumed.lines("WARNING") == []
    assert (site.missed, site.twice) == ([], [])


SLOW_ITEM = """
import asyncio
import scrapy

class Slow:
    async def process_item(self, item):
        await asyncio.sleep(1)
        return item

class ItemSpider(scrapy.Spider):
    name = "item"
    custom_settings = {"ITEM_PIPELINES": {Slow: 1}}

    async def start(self):
        yield {"page": None}
        for number in range(60):
            yield scrapy.Request(f"data:,{number}")

    def parse(self, response):
        pass
"""


@pytest.mark.parametrize("how", [ADDON, {"DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter"}])
def test_a_close_waits_for_an_item_of_start_and_no_longer(tmp_path, how):
    """Scrapy looks whether its scraper can be closed after responses only. 2.14 does not wait."""
    (tmp_path / "slow.py").write_text(SLOW_ITEM)
    limits = {"BLOOM_CAPACITY": 40, "BLOOM_ON_FULL": "close", "JOBDIR": tmp_path / "job"}
    run = Scrapy(tmp_path, "runspider", "slow.py", **how, **limits).end()
    assert (run.status, run.reason) == (0, "bloom_full")
    assert version_info < (2, 19) or run.stat("item_scraped_count") == "1"
