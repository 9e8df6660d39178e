"""Real crawls, in a job and on Redis, of hosts that ask for a rest or do not answer: others are
crawled meanwhile, no page fails for it, and no retry is used up."""

import json
import socket

import pytest

from tests.crawl.resting_site import Rest, RestingSite
from tests.failures import Failed
from tests.small_site import PACKAGE, Scrapy

CONCURRENT = 8
"""Requests at once: so many may be on their way when a host refuses one, since Scrapy has more of a
slot on their way than CONCURRENT_REQUESTS_PER_DOMAIN."""
SPIDER = PACKAGE / "tests" / "crawl" / "waiting_spider.py"
OURS = {"ADDONS": '{"scrapy_bloom.Addon": 300}', "DUPEFILTER_CLASS": None}
WORKERS = 5


def start(folder, pages, arguments=None, **settings):
    """Start a crawl of so many pages of each host or site."""
    given = {"pages": json.dumps(pages), **(arguments or {})}
    words = [part for name in given for part in ("-a", f"{name}={given[name]}")]
    settings = {**OURS, "CONCURRENT_REQUESTS": CONCURRENT, **settings}
    return Scrapy(folder, "runspider", SPIDER, *words, **settings)


def crawl_rests(folder, site, pages, **settings):
    """Start one of the hosts of a site."""
    return start(folder, pages, {"site": site.url}, **settings)


WITH_JOB_AND_CACHE = {"JOBDIR": "job", "HTTPCACHE_ENABLED": 1, "HTTPCACHE_DIR": "cache"}


@pytest.mark.parametrize("settings", [WITH_JOB_AND_CACHE, {"DOWNLOAD_DELAY": 0.01}])
def test_hosts_that_ask_for_a_rest_get_it_and_lose_no_page(tmp_path, settings):
    """Takes the rests of three hosts, some seconds: however they say how long, others are asked."""
    rests = {"named": Rest(1.0), "dated": Rest(1.0, "date", status=503), "silent": Rest(0.5, "")}
    pages = {**dict.fromkeys(rests, 30), "busy": 30}
    with RestingSite(rests) as site:
        rests["named"].goes_on = lambda: len(site.pages("busy")) < pages["busy"]
        crawl = crawl_rests(tmp_path, site, pages, BLOOM_HOLD_MAX=2, **settings).end()
    assert crawl.reason == "finished", crawl.log
    for host, count in pages.items():
        assert sorted(map(int, site.pages(host))) == [*range(count)], crawl.log
    assert crawl.stat("httperror/response_ignored_count") is None
    # those of the silent one that were asked before its last answer, and two more
    assert int(crawl.stat("retry/count") or 0) <= CONCURRENT + 2
    for host in ("named", "dated"):
        refused = len(site.pages(host, rests[host].status))
        assert refused <= CONCURRENT + int(crawl.stat("scheduler/holds"))
        # what was on its way when the first refusal came
        assert len(site.too_early(host)) < CONCURRENT


def test_a_host_that_refuses_for_ever_is_given_up(tmp_path):
    """After so many holds. A redirect into a held slot waits as any other request of it."""
    pages = {"gone": 3, "named": 2, "moved": 4}
    with RestingSite({"gone": Rest(1e6, "", after=0), "named": Rest(0.5, after=0)}) as site:
        settings = {"BLOOM_HOLD_MAX": 1, "BLOOM_HOLD_TIMES": 2, "JOBDIR": "job"}
        crawl = crawl_rests(tmp_path, site, pages, **settings).end()
    assert crawl.reason == "finished", crawl.log
    assert "gone still refuses requests after 2 holds in a row" in crawl.log
    assert Failed(tmp_path / "job").by_reason() == {"status/429": 3}
    assert sorted(site.pages("named")) == ["0", "1", "to-0", "to-1", "to-2", "to-3"]


@pytest.mark.parametrize("slot", [None, "both"])
def test_a_redirect_to_another_host_rests_with_it(tmp_path, slot):
    """And not the host of its source, unless the spider has named one for both."""
    with RestingSite({"named": Rest(0.5, after=0)}) as site:
        given = {"site": site.url, "meta": json.dumps({"download_slot": slot})}
        crawl = start(tmp_path, {"moved": 4}, given, BLOOM_HOLD_MAX=1, JOBDIR="job").end()
    assert sorted(site.pages("named")) == ["to-0", "to-1", "to-2", "to-3"], crawl.log
    assert f"{slot or 'localhost'} has answered 429 with Retry-After" in crawl.log
    assert crawl.stat("retry/count") is None


@pytest.mark.slow
def test_all_workers_leave_a_host_alone(tmp_path, redis_server):
    """Starts five: what is on its way is refused, then one request at a time; others go on."""
    rest, pages = Rest(1.5, after=10), {"rests": 100, "busy": 40}
    with RestingSite({"rests": rest}) as site:
        rest.goes_on = lambda: len(site.pages("busy")) < pages["busy"]
        key = {"BLOOM_REDIS_URL": redis_server.url, "BLOOM_REDIS_KEY": tmp_path.name}
        folders = [tmp_path / str(number) for number in range(WORKERS)]
        for folder in folders:
            folder.mkdir()
        crawls = [crawl_rests(each, site, pages, BLOOM_HOLD_MAX=2, **key) for each in folders]
        ended = [crawl.end() for crawl in crawls]
    for host, count in pages.items():
        assert sorted(map(int, site.pages(host))) == [*range(count)]
    assert {crawl.reason for crawl in ended} <= {"finished", "bloom_over"}
    holds = sum(int(crawl.stat("scheduler/holds") or 0) for crawl in ended)
    assert len(site.pages("rests", 429)) <= WORKERS * CONCURRENT + holds
    assert {crawl.stat("retry/count") for crawl in ended} == {None}


PAUSES = {"PAUSES": [0.05, 0.1, 0.2, 0.3, 0.4]}


@pytest.mark.slow
@pytest.mark.parametrize("listens", [False, True], ids=["closed", "hole"])
def test_a_host_that_is_gone_costs_little_and_keeps_no_other_waiting(tmp_path, listens):
    """Takes two starts with six holds each: its pages are listed as failed for one reason, errbacks
    of those in the queue are not called, and the next start asks again."""
    settings = {"DOWNLOAD_TIMEOUT": 0.5, "JOBDIR": "job"}
    with RestingSite({"up": Rest(0)}) as site, socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        if listens:
            port.listen(200)
        gone, up = f"http://127.0.0.1:{port.getsockname()[1]}", f"{site.url}/up"
        rules = {"rules": json.dumps(PAUSES)}
        crawl = start(tmp_path, {up: 50, gone: 50}, rules, **settings).end()
        assert crawl.reason == "finished", crawl.log
        assert {*map(int, site.pages("up"))} == {*range(50)}
        assert int(crawl.stat("scheduler/dequeued")) <= 50 + 40
        assert crawl.stat("waiting/errbacks") is None
        assert Failed(tmp_path / "job").by_reason() == {"host": 50}
        assert crawl.stat("scheduler/failed") == "50"
        assert ("is dead" in crawl.log, "50 host" in crawl.log) == (True, True)
        rules = {"rules": json.dumps({**PAUSES, "ALONE_SECONDS": 0})}  # no other one answers
        crawl = start(tmp_path, {up: 1, gone: 1}, rules, **settings).end()
        assert "(hold 1 in a row)" in crawl.log
        assert Failed(tmp_path / "job").by_reason() == {"host": 50}
