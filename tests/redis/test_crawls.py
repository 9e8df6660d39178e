"""Real crawls that share a filter in Redis, with scrapy-redis's scheduler and Scrapy's."""

from functools import partial
from signal import SIGINT

import pytest

from tests.patience import wait_until
from tests.small_site import PAGES, SmallSite, crawl_until
from tests.small_site import crawl as start_crawl

HELD_AT = 40
PASSWORD = "s3cret"


@pytest.fixture
def server(own_server):
    """A server with a password, which keeps what it has over a restart."""
    own_server.restart(requirepass=PASSWORD, appendonly="yes", appendfsync="always")
    own_server.with_password = own_server.url.replace("redis://", f"redis://:{PASSWORD}@")
    return own_server


@pytest.fixture
def site():
    with SmallSite() as site:
        yield site


@pytest.fixture
def crawl(server, site, tmp_path):
    """Return a function that starts a crawl of `site`, by default with Scrapy's scheduler, which
    the site keeps waiting if it is to be `held`."""
    runs = []

    def start(SCHEDULER="scrapy.core.scheduler.Scheduler", held=False, **settings):  # noqa: N803
        settings |= {
            "job": SCHEDULER.startswith("scrapy."),
            "SCHEDULER": SCHEDULER,
            "DUPEFILTER_CLASS": "scrapy_bloom.RedisBloomDupeFilter",
            "BLOOM_CAPACITY": 10_000,
        }
        if settings["job"]:
            settings["BLOOM_REDIS_URL"] = server.with_password
            settings["ADDONS"] = '{"scrapy_bloom.Addon": 300}'
        begin = partial(crawl_until, HELD_AT) if held else start_crawl
        runs.append(begin(site, tmp_path, **settings))
        return runs[-1]

    yield start
    for run in runs:
        run.process.kill()
        run.process.wait()


def lines(run, *levels):
    """Return the lines of these levels, apart from scrapy-redis's use of deprecated things."""
    return [line for level in levels for line in run.lines(level) if "[py.warnings]" not in line]


def test_workers_that_share_a_queue_fetch_every_page_once(server, site, crawl):
    """Takes as long as three crawls with scrapy-redis's scheduler and REDIS_URL: each has done a
    part; the requests of the one that is stopped are left for the others."""
    pytest.importorskip("scrapy_redis")
    settings = {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "SCHEDULER_PERSIST": True,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 4,
        "REDIS_URL": server.with_password,
    }
    first = crawl(held=True, **settings)
    runs = [first, *(crawl(**settings) for _ in range(2))]
    for run in runs[1:]:
        wait_until(lambda run=run: "Spider opened" in run._log.read_text())
    first.stop(SIGINT)
    site.release()
    for run in runs:
        run.end()
        assert lines(run, "ERROR", "WARNING") == []
        assert int(run.stat("response_received_count")) > 10
        assert run.stat("bloom/outages") is None
    assert [run.reason for run in runs] == ["shutdown", "finished", "finished"]
    assert (site.missed, site.twice) == ([], [])
    assert max(int(run.stat("bloom/items")) for run in runs) >= len(PAGES)
    assert sum(int(run.stat("dupefilter/filtered")) for run in runs) > 4 * len(PAGES)


def test_scrapys_scheduler_stops_and_resumes(site, crawl):
    """Takes as long as two crawls: pending requests are in the job, seen ones in Redis, nothing is
    missed or fetched twice, and duplicates are dropped early."""
    first = crawl(held=True)
    site.stop(first, SIGINT)
    second = crawl().end()
    assert (first.reason, second.reason) == ("shutdown", "finished")
    assert (site.missed, site.twice) == ([], [])
    assert lines(first, "ERROR") == lines(second, "ERROR") == []
    assert "duplicates: dropped early" in first.log
    assert PASSWORD not in first.log + second.log


def test_redis_killed_under_a_crawl(server, site, crawl):
    """Takes as long as two crawls: the spider closes with bloom_error; no page of it is missed."""
    first = crawl(held=True, BLOOM_REDIS_TIMEOUT=0.5)
    server.stop()
    site.release()
    first.end()
    assert (first.status, first.reason) == (0, "bloom_error")
    assert "Traceback" not in first.log
    assert PASSWORD not in first.log
    assert int(first.stat("bloom/outages")) == 1
    server.start()
    assert crawl().end().reason == "finished"
    assert site.missed == []
