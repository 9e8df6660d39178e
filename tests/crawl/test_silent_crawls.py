"""Real crawls with hosts that do not answer: closed ports, a black hole, and an outage."""

import asyncio
import json
import signal
import socket
from contextlib import contextmanager

import pytest

from scrapy_bloom.crawl.delays import DEAD, SILENT
from tests.crawl.engine import query
from tests.failures import Failed
from tests.patience import wait_until
from tests.small_site import PACKAGE, Scrapy
from tests.web_server import ServedInThread

SPIDER = PACKAGE / "tests" / "crawl" / "silent_spider.py"
SETTINGS = {"ADDONS": '{"scrapy_bloom.Addon": 300}', "DUPEFILTER_CLASS": None, "JOBDIR": "job"}
SHORT = {"PAUSES": [0.05, 0.1, 0.2, 0.3, 0.4]}


class Site(ServedInThread):
    """A site that notes which pages it was asked for, and does not answer while it `is_down`."""

    def __init__(self):
        self.asked, self.is_down = [], False

    async def _answer(self, _method, path, _body):
        while self.is_down:
            await asyncio.sleep(0.05)
        self.asked.append(path)
        return 200, {}, b"-"


@contextmanager
def silent(listens):
    """Give the URL of a port that is closed, or takes connections and never answers."""
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        if listens:
            port.listen(200)
        yield f"http://127.0.0.1:{port.getsockname()[1]}"


def start(folder, pages, rules=SHORT, **settings):
    """Start a crawl of so many pages of each site."""
    given = {"pages": json.dumps(pages), "rules": json.dumps(rules)}
    arguments = [part for name in given for part in ("-a", f"{name}={given[name]}")]
    return Scrapy(folder, "runspider", SPIDER, *arguments, **{**SETTINGS, **settings})


@pytest.mark.slow
@pytest.mark.parametrize("listens", [False, True], ids=["closed", "hole"])
def test_a_host_that_is_gone_costs_little_and_keeps_no_other_waiting(tmp_path, listens):
    """Takes two starts with six holds each: its pages are listed as failed for one reason, errbacks
    of those in the queue are not called, and the next start asks again."""
    settings = {"DOWNLOAD_TIMEOUT": 0.5}
    with Site() as site, silent(listens) as gone:
        crawl = start(tmp_path, {site.url: 50, gone: 50}, **settings).end()
        assert crawl.reason == "finished", crawl.log
        assert {*map(int, (path[1:] for path in site.asked))} == {*range(50)}
        assert int(crawl.stat("scheduler/dequeued")) <= 50 + 40
        assert crawl.stat("silent/errbacks") is None
        assert Failed(tmp_path / "job").by_reason() == {"host": 50}
        assert crawl.stat("scheduler/failed") == "50"
        assert ("is dead" in crawl.log, "50 host" in crawl.log) == (True, True)
        rules = {**SHORT, "ALONE_SECONDS": 0}  # no other one answers
        crawl = start(tmp_path, {site.url: 1, gone: 1}, rules, **settings).end()
        assert "(hold 1 in a row)" in crawl.log
        assert Failed(tmp_path / "job").by_reason() == {"host": 50}


@pytest.mark.torture
def test_a_crawl_that_is_killed_five_times_beside_a_silent_host_loses_nothing(tmp_path):
    """Takes seven starts: killed before, in and after the holds, it goes on where it was, and when
    the host answers all its pages are there."""
    job, rules = tmp_path / "job", {**SHORT, "ALONE_SECONDS": 0}
    with Site() as site, Site() as gone:
        gone.is_down = True
        for times in (0, SILENT - 1, SILENT, SILENT + 2, DEAD - 1):
            pages = {site.url: 200, gone.url: 20}
            crawl = start(tmp_path, pages, rules, DOWNLOAD_TIMEOUT=0.3, DOWNLOAD_DELAY=0.01)
            ended = crawl.process.poll
            wait_until(lambda times=times, ended=ended: holds(job) > times or ended() is not None)
            crawl.stop(signal.SIGKILL)
            # a fast one is at its end before it is seen to be there
            assert crawl.end().status in {0, -signal.SIGKILL}, crawl.log
        gone.is_down = False
        crawl = start(tmp_path, pages, rules).end()
    assert crawl.reason == "finished", crawl.log
    assert {*site.asked} >= {f"/{number}" for number in range(200)}
    assert {*gone.asked} == {f"/{number}" for number in range(20)}
    assert Failed(job).by_reason() == {}


def holds(job):
    """Return the largest `times` of a hold in a job."""
    path = job / "requests.sqlite"
    found = query(path, "SELECT MAX(times) FROM slot") if path.exists() else [(None,)]
    return found[0][0] or 0
