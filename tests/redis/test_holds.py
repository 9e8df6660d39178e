"""Five workers, and a host that asks for a rest: none of them asks it, and no page is lost."""

import pytest

from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.desk import RedisDesk
from scrapy_bloom.redis.layout import in_one_slot
from tests.crawl import test_silent_crawls as silent
from tests.crawl.resting_site import Rest, RestingSite
from tests.crawl.test_hold_crawls import CONCURRENT, start
from tests.failures import Failed
from tests.patience import wait_until

WORKERS = 5


@pytest.mark.slow
@pytest.mark.parametrize("says", ["seconds", pytest.param("", marks=pytest.mark.torture)])
def test_all_workers_leave_a_host_alone(tmp_path, redis_server, says):
    """What is on their way is refused, and then one request at a time; others go on meanwhile."""
    rest, pages = Rest(1.5, says, after=10), {"rests": 100, "busy": 40}
    with RestingSite({"rests": rest}) as site:
        rest.goes_on = lambda: len(site.pages("busy")) < pages["busy"]
        crawls = []
        for number in range(WORKERS):
            folder = tmp_path / f"{number}"
            folder.mkdir()
            settings = {"BLOOM_REDIS_URL": redis_server.url, "BLOOM_REDIS_KEY": tmp_path.name}
            crawls.append(start(folder, site, pages, BLOOM_HOLD_MAX=2, **settings))
        ended = [crawl.end() for crawl in crawls]
        for host, count in pages.items():
            assert sorted(map(int, site.pages(host))) == [*range(count)]
        assert {crawl.reason for crawl in ended} <= {"finished", "bloom_over"}
        holds = sum(int(crawl.stat("scheduler/holds") or 0) for crawl in ended)
        assert len(site.pages("rests", 429)) <= WORKERS * CONCURRENT + holds
        retries = [int(crawl.stat("retry/count") or 0) for crawl in ended]
        # of those before its hold
        assert max(retries) <= (0 if says else 2)


def test_a_host_that_is_held_until_its_release_is_due_never(tmp_path, redis_server):
    """A worker with BLOOM_DELAY_WAIT leaves it, and the next one finds its pages."""
    key = {"BLOOM_REDIS_URL": redis_server.url, "BLOOM_REDIS_KEY": tmp_path.name}
    with RestingSite({"held": Rest(0)}) as site:
        arguments = ("-a", "held=held")
        for _ in range(2):
            crawl = start(tmp_path, site, {"held": 3}, arguments, **key, BLOOM_DELAY_WAIT=600).end()
            assert crawl.reason == "bloom_later", crawl.log
            assert crawl.stat("scheduler/pending") == "3"
    assert "due when its slot is released" in crawl.log
    assert "1 host held" in crawl.log
    assert site.asked["held"] == []


def test_a_hold_that_begins_while_a_call_is_open_goes_with_the_next(join):
    """The other workers hear of it all the same."""
    worker = join()
    worker.enqueue("page")
    worker.store.commit(())
    assert worker.sender.busy
    worker.store.hold("slot", 60, 1)
    worker.wait()
    worker.exchange()
    assert worker.client.call("hkeys", f"{worker.key}:holds") == [b"slot"]


@pytest.mark.slow
def test_nothing_fails_while_no_worker_is_answered(tmp_path, redis_server):
    """Takes an outage of some seconds: two workers leave all hosts alone, and then fetch all."""
    settings = {"BLOOM_REDIS_URL": redis_server.url, "BLOOM_REDIS_KEY": tmp_path.name}
    settings |= {"JOBDIR": None, "DOWNLOAD_TIMEOUT": 0.5, "DOWNLOAD_DELAY": 0.05}
    with silent.Site() as one, silent.Site() as two, silent.Site() as three:
        sites, crawls = (one, two, three), []
        for number in range(2):
            (tmp_path / f"{number}").mkdir()
            pages = {site.url: 60 for site in sites}
            crawls.append(silent.start(tmp_path / f"{number}", pages, **settings))
        wait_until(lambda: len(one.asked) > 10)
        for site in sites:
            site.is_down = True
        logs = [tmp_path / f"{number}" / "log0" for number in range(2)]
        wait_until(lambda: all("seems to be offline" in log.read_text() for log in logs))
        for site in sites:
            site.is_down = False
        assert [crawl.end().reason for crawl in crawls] == ["finished"] * 2
        assert [len({*site.asked}) for site in sites] == [60] * 3
    with RedisClient(redis_server.url) as client:
        assert Failed(RedisDesk(client, in_one_slot(tmp_path.name))).by_reason() == {}
