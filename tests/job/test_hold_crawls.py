"""Real crawls of hosts that ask for a rest: no page fails, and no retry is used up for it."""

import json
import signal
import sqlite3
from contextlib import closing
from threading import Event

import pytest

from tests.job.resting_site import Rest, RestingSite
from tests.patience import wait_until
from tests.small_site import PACKAGE, Scrapy

CONCURRENT = 8
"""Requests at once: so many may be on their way when a host refuses one, since Scrapy has more of a
slot on their way than CONCURRENT_REQUESTS_PER_DOMAIN."""
SPIDER = PACKAGE / "tests" / "job" / "hold_spider.py"
OURS = {"ADDONS": '{"scrapy_bloom.Addon": 300}', "DUPEFILTER_CLASS": None}


def start(folder, site, pages, arguments=(), **settings):
    """Start a crawl of so many pages of each host."""
    return Scrapy(
        folder,
        "runspider",
        SPIDER,
        *("-a", f"site={site.url}", "-a", f"pages={json.dumps(pages)}", *arguments),
        CONCURRENT_REQUESTS=CONCURRENT,
        **{**OURS, **settings},
    )


WITH_JOB_AND_CACHE = {"JOBDIR": "job", "HTTPCACHE_ENABLED": 1, "HTTPCACHE_DIR": "cache"}


@pytest.mark.parametrize("settings", [WITH_JOB_AND_CACHE, {"DOWNLOAD_DELAY": 0.01}])
def test_hosts_that_ask_for_a_rest_get_it_and_lose_no_page(tmp_path, settings):
    """However they say how long; and meanwhile others are asked."""
    rests = {
        "named": Rest(1.0),
        "dated": Rest(1.0, "date", status=503),
        "silent": Rest(0.5, ""),
    }
    pages = {**dict.fromkeys(rests, 30), "busy": 30}
    with RestingSite(rests) as site:
        rests["named"].goes_on = lambda: len(site.pages("busy")) < pages["busy"]
        crawl = start(tmp_path, site, pages, BLOOM_HOLD_MAX=2, **settings).end()
        assert crawl.reason == "finished", crawl.log
        for host, count in pages.items():
            assert sorted(map(int, site.pages(host))) == [*range(count)], crawl.log
        assert crawl.stat("httperror/response_ignored_count") is None
        # those of the silent one before its hold
        assert int(crawl.stat("retry/count") or 0) <= 2
        assert crawl.stat("scheduler/failed") in {None, "0"}
        for host in ("named", "dated"):
            refused = len(site.pages(host, rests[host].status))
            assert refused <= CONCURRENT + int(crawl.stat("scheduler/holds"))
            # what was on its way when the first refusal came
            assert len(site.too_early(host)) < CONCURRENT


def test_a_hold_outlives_a_kill(tmp_path):
    """Its host is asked when it is over, for all that there is."""
    killed = Event()
    with RestingSite({"named": Rest(2.0, goes_on=lambda: not killed.is_set())}) as site:
        job = tmp_path / "job"
        crawl = start(tmp_path, site, {"named": 30}, JOBDIR=job)

        def is_held():
            if not (job / "requests.sqlite").exists():
                return False
            with closing(sqlite3.connect(job / "requests.sqlite")) as file:
                return file.execute("SELECT COUNT(*) FROM holds").fetchone() == (1,)

        wait_until(is_held)
        crawl.stop(signal.SIGKILL)
        assert crawl.end().status == -signal.SIGKILL
        killed.set()
        asked = len(site.asked["named"])
        crawl = start(tmp_path, site, {"named": 30}, JOBDIR=job).end()
        assert crawl.reason == "finished", crawl.log
        assert {*map(int, site.pages("named"))} == {*range(30)}
        # of later refusals the killed process may not have heard
        refusal = next(each for each in site.asked["named"] if each.status == 429)
        end = refusal.answered + refusal.retry_after
        assert [each for each in site.asked["named"][asked:] if each.came < end] == []


def test_it_is_off_without_a_scheduler_that_waits(tmp_path):
    """One line says so where it is named, and Scrapy's own goes on as ever."""
    with RestingSite({"named": Rest(0.2, after=0)}) as site:
        settings = {"ADDONS": None, "DUPEFILTER_CLASS": None}
        crawl = start(
            tmp_path,
            site,
            {"named": 1},
            **settings,
            DOWNLOADER_MIDDLEWARES='{"scrapy_bloom.HoldMiddleware": 560}',
            RETRY_TIMES=1,
        ).end()
    assert crawl.stat("retry/count") == "1"
    (line,) = crawl.lines("WARNING")
    assert "holds need DurableScheduler or RedisDurableScheduler" in line
