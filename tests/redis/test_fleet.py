"""Real workers on a real server, killed, stopped and cut off: no page is lost. Set FLEET_SEED to
repeat a run; a thousand kills are in `make torture`."""

import importlib.util
import sys
from functools import partial

import pytest

from tests.redis.fleet import STORIES
from tests.redis.server import missing
from tests.seeded import seed_of, told

HELD = 40
"""What three workers hold at most: in the engine, claimed, not acknowledged yet, and what
waits for a request in memory."""
HAS_SCRAPY_REDIS = importlib.util.find_spec("scrapy_redis") is not None

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks"),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]

fleet = partial(told, "tests.redis.fleet", seed=seed_of("FLEET_SEED"))


@pytest.fixture(scope="module")
def reports():
    """The reports of all crawls with several workers each, by name; they run side by side."""
    wanted = {*STORIES} - ({"start_urls"} if not HAS_SCRAPY_REDIS else set())
    return fleet(*sorted(wanted), "--pages", 60)


def assert_whole(report):
    """No page or item was missed, and all workers that were not killed ended as they should."""
    assert report["lost"] == report["items_lost"] == report["errors"] == []
    assert {*report["reasons"]} <= {"finished", "bloom_over"}
    assert {*report["statuses"]} == {0}


def test_no_page_is_lost_by_kills(reports):
    """SIGKILL at random moments, also of all workers at once: every page is fetched and each item
    is in a feed of each kind, compressed and in a JSON array, since who was killed is started again
    with its JOBDIR; all that are left finish, also where the crawl is over by then, and no more is
    repeated than what the dead held, and what each of the others met that cannot be stored."""
    report = reports["kill0"]
    assert_whole(report)
    assert report["repeated"] <= (report["kills"] + 1) * HELD / 2
    assert report["accidents"].keys() == {"kill"}


@pytest.mark.parametrize("name", ["kill-stop-move0", "stop-restart0", "back-kill0"])
def test_no_page_is_lost_where_workers_sleep_or_redis_restarts(reports, name):
    """Workers that were stopped for longer than their lease go on as new ones; Redis is restarted
    with what it had, or an earlier state; a Cluster moves a crawl while one of them is killed."""
    report = reports[name]
    assert_whole(report)
    assert report["accidents"].keys() == {*name[:-1].split("-")}


def test_a_worker_that_is_cut_off_leaves_the_crawl_to_others(reports):
    """It says so once, closes, and fails no page."""
    report = reports["cut_off"]
    assert report["reasons"] == ["bloom_cut_off", "finished", "finished"]
    [line] = report["told"]
    assert (report["errors"], report["missing"]) == ([line], [])


def test_a_crawl_that_is_gone_is_an_error(reports):
    """Redis restarted without its data: no worker takes that for the end."""
    report = reports["wiped"]
    assert {*report["reasons"]} == {"bloom_error"}
    assert {*report["statuses"]} == {0}
    assert report["errors"]
    assert all("is gone" in line for line in report["errors"])


def test_workers_that_are_stopped_give_back(reports):
    """By themselves or with SIGINT: the next start goes on at once, and no page comes twice."""
    report = reports["stopped"]
    assert_whole(report)
    assert report["closed"] == [*["closespider_pagecount"] * 2, "shutdown"]
    assert report["left"] == ["at rest", 0, 0, True]
    assert report["rest"] > 0
    assert report["reclaimed"] == 0
    assert all(page.startswith("piped/") for page in report["more"])
    assert report["repeated"] == len(report["more"])
    assert all(report["early"])


def test_workers_wait_for_seeds(reports):
    """For BLOOM_REDIS_IDLE seconds, and fetch what is pushed; then they end. Where start() has
    failed, the crawl was not over: they have all of it."""
    report = reports["idle"]
    assert report["lost"] == report["items_lost"] == report["errors"] == []
    assert report["failed"] > 0
    assert report["reasons"][1:] == ["shutdown", "shutdown", "finished"]
    assert (report["there"], report["pushed"]) == (2, [1, 0, 0])
    assert report["more"] == ["pushed/0"]


@pytest.mark.skipif(not HAS_SCRAPY_REDIS, reason="scrapy-redis is not installed")
def test_seeds_of_scrapy_redis_are_taken_from_their_list(reports):
    """Its spiders need no setting; a killed worker loses no seed, nor an item of its pipeline."""
    report = reports["start_urls"]
    assert_whole(report)
    assert report["more"] == [f"pushed/{number}" for number in range(1000, 1060)]
    assert report["left"] == []
    assert report["not_stored"] == []


def test_an_outage_may_close_workers(reports):
    """With BLOOM_REDIS_ON_ERROR "close"; when Redis is back, nothing is lost."""
    report = reports["close_on_error"]
    assert {*report["closed"]} == {"bloom_error"}
    assert (report["lost"], report["reasons"]) == ([], ["finished"])
