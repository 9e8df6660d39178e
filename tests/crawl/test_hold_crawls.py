"""Real crawls of hosts that ask for a rest: no page fails, and no retry is used up for it."""

import json
import signal
from threading import Event
from urllib.request import urlopen

import pytest

from tests.crawl.engine import query
from tests.crawl.resting_site import Rest, RestingSite
from tests.patience import wait_until
from tests.small_site import PACKAGE, Scrapy

CONCURRENT = 8
"""Requests at once: so many may be on their way when a host refuses one, since Scrapy has more of a
slot on their way than CONCURRENT_REQUESTS_PER_DOMAIN."""
SPIDER = PACKAGE / "tests" / "crawl" / "hold_spider.py"
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
        # those of the silent one that were asked before its last answer, and two more
        assert int(crawl.stat("retry/count") or 0) <= CONCURRENT + 2
        assert crawl.stat("scheduler/failed") in {None, "0"}
        for host in ("named", "dated"):
            refused = len(site.pages(host, rests[host].status))
            assert refused <= CONCURRENT + int(crawl.stat("scheduler/holds"))
            # what was on its way when the first refusal came
            assert len(site.too_early(host)) < CONCURRENT


def kill_held(crawl, site, job, least):
    """Kill a crawl that has held a slot at `least` so many times in a row; return how many requests
    the host got, and how many times it was."""

    def times(path=job / "requests.sqlite"):
        found = path.exists() and query(path, "SELECT times FROM slot WHERE times > 0")
        return found[0][0] if found else 0

    wait_until(lambda: times() >= least)
    crawl.stop(signal.SIGKILL)
    assert crawl.end().status == -signal.SIGKILL
    # what the site has of the killed one comes before
    with urlopen(f"{site.url}/other/0") as answer:
        answer.read()
    return len(site.asked["named"]), times()


def test_a_hold_outlives_a_kill(tmp_path):
    """Its host is asked when it is over, for all that there is."""
    killed = Event()
    with RestingSite({"named": Rest(2.0, goes_on=lambda: not killed.is_set())}) as site:
        job = tmp_path / "job"
        crawl = start(tmp_path, site, {"named": 30}, JOBDIR=job)
        asked, _ = kill_held(crawl, site, job, 1)
        killed.set()
        crawl = start(tmp_path, site, {"named": 30}, JOBDIR=job).end()
        assert crawl.reason == "finished", crawl.log
        assert {*map(int, site.pages("named"))} == {*range(30)}
        # of later refusals the killed process may not have heard
        refusal = next(each for each in site.asked["named"] if each.status == 429)
        end = refusal.answered + refusal.retry_after
        assert [each for each in site.asked["named"][asked:] if each.came < end] == []


def test_holds_in_a_row_outlive_a_kill_between_them(tmp_path):
    """The next start asks for one page, and its refusal is of the next hold."""
    settings = {"JOBDIR": (job := tmp_path / "job"), "BLOOM_HOLD_MAX": 0.5}
    answers = Event()
    with RestingSite({"named": Rest(0, "", 4, goes_on=lambda: not answers.is_set())}) as site:
        crawl = start(tmp_path, site, {"named": 30}, **settings)
        asked, times = kill_held(crawl, site, job, 2)
        crawl = start(tmp_path, site, {"named": 30}, **settings)
        wait_until(lambda: len(site.asked["named"]) > asked)
        answers.set()
        crawl = crawl.end()
    holds = [line for line in crawl.lines("INFO") if "in a row" in line]
    assert f"(hold {times + 1} in a row)" in holds[0]
    assert crawl.reason == "finished", crawl.log
    assert {*map(int, site.pages("named"))} == {*range(30)}


@pytest.mark.parametrize("says", ["seconds", ""])
def test_a_host_that_refuses_for_ever_is_given_up(tmp_path, says):
    """After so many holds, or page by page if it says how long it takes."""
    with RestingSite({"gone": Rest(1e6, says, after=0)}) as site:
        settings = {"BLOOM_HOLD_MAX": 0.2, "BLOOM_HOLD_TIMES": 2, "JOBDIR": "job"}
        crawl = start(tmp_path, site, {"gone": 3, "busy": 3}, **settings).end()
    assert crawl.reason == "finished", crawl.log
    assert sorted(site.pages("busy")) == ["0", "1", "2"]
    assert crawl.stat("scheduler/failed") == "3"
    assert ("gone still refuses requests after 2 holds in a row" in crawl.log) is not bool(says)


def test_a_redirect_into_a_held_slot_waits(tmp_path):
    """It is a request of its slot as any other."""
    meta = ("-a", 'meta={"download_slot": "one"}')
    with RestingSite({"named": Rest(0.5, after=0)}) as site:
        crawl = start(tmp_path, site, {"named": 2, "moved": 4}, meta, BLOOM_HOLD_MAX=1).end()
    assert crawl.reason == "finished", crawl.log
    assert sorted(site.pages("named")) == ["0", "1", "to-0", "to-1", "to-2", "to-3"]
    assert crawl.stat("retry/count") is None
    assert crawl.stat("scheduler/failed") in {None, "0"}


def test_a_stop_loses_no_delayed_request(tmp_path):
    """The next start asks it when it is due."""
    job = tmp_path / "job"
    meta = ("-a", 'meta={"bloom_not_before": 1000}')

    def delayed(statement="SELECT COUNT(*) FROM request WHERE state = 2"):
        if not (job / "requests.sqlite").exists():
            return []
        return [count for (count,) in query(job, statement)]

    with RestingSite({"late": Rest(0)}) as site:
        crawl = start(tmp_path, site, {"late": 5}, meta, JOBDIR=job)
        wait_until(lambda: delayed() == [5])
        crawl.stop(signal.SIGINT)
        assert crawl.end().reason == "shutdown"
        assert site.asked["late"] == []
        assert delayed() == [5]
        delayed("UPDATE request SET due = due - 1000")
        crawl = start(tmp_path, site, {"late": 5}, meta, JOBDIR=job).end()
        assert crawl.reason == "finished", crawl.log
        assert sorted(site.pages("late")) == ["0", "1", "2", "3", "4"]


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
    # a Scrapy with throttling has deprecated what the site's spider uses
    (line,) = (each for each in crawl.lines("WARNING") if "[py.warnings]" not in each)
    assert "holds need DurableScheduler or RedisDurableScheduler" in line
