"""Real workers on a real server, killed, stopped and cut off: no page is lost. Set FLEET_SEED to
repeat a run; a thousand kills are in `make torture`."""

import importlib.util
import json
import sys

import pytest

from tests.redis.server import missing
from tests.seeded import run_module, seed_of

SEED = seed_of("FLEET_SEED")
HELD = 40
"""What three workers hold at most: in the engine, claimed, not acknowledged yet, and what
waits for a request in memory."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks"),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]


def fleet(*arguments):
    """Return the reports of the crawls that the arguments ask for."""
    run = run_module("tests.redis.fleet", *arguments, seed=SEED)
    assert run.returncode == 0
    return [json.loads(line) for line in run.stdout.splitlines()][1:]


SCENES = [
    "clean_stop",
    "seeds",
    "close_on_error",
]
SCENES += ["start_urls"] if importlib.util.find_spec("scrapy_redis") else []


@pytest.fixture(scope="module")
def reports():
    """The reports of all crawls with several workers each, by name; they run side by side."""
    found = fleet(
        *("--kills", 4, "--stops", 1, "--restarts", 1, "--wipes", 1),
        *("--pages", 60, "--scenes", *SCENES),
    )
    return {report["name"]: report for report in found}


def assert_whole(report):
    """No page or item was missed, and all workers that were not killed ended as they should."""
    assert report["lost"] == report["items_lost"] == report["errors"] == []
    assert {*report["reasons"]} <= {"finished", "bloom_over"}
    assert {*report["statuses"]} == {0}


def test_no_page_is_lost_by_kills(reports):
    """SIGKILL at random moments, also of all workers at once: every page is fetched and each
    item is in a feed, all that are left finish, and no more is repeated than what the dead
    ones held, and what each of the others met that cannot be stored."""
    killed = [report for name, report in reports.items() if name.startswith("kills")]
    for report in killed:
        assert_whole(report)
        assert report["repeated"] <= (report["kills"] + 1) * HELD / 2
    assert sum(report["kills"] for report in killed) >= 4


@pytest.mark.parametrize("name", ["stops0", "restart0"])
def test_no_page_is_lost_where_workers_sleep_or_redis_restarts(reports, name):
    """Workers that were stopped for longer than their lease go on as new ones, and Redis is
    restarted with what it had."""
    assert_whole(reports[name])


def test_a_crawl_that_is_gone_is_an_error(reports):
    """Redis restarted without its data: no worker takes that for the end."""
    report = reports["wipe1"]
    assert {*report["reasons"]} == {"bloom_error"}
    assert {*report["statuses"]} == {0}
    assert all("is gone" in line for line in report["errors"])


def test_a_worker_that_is_stopped_gives_back(reports):
    """With SIGINT: the next one goes on at once, and need not wait for the lease."""
    report = reports["clean_stop"]
    assert report["lost"] == report["items_lost"] == report["errors"] == []
    assert report["reasons"] == ["shutdown", "finished"]
    assert report["unanswered"] == report["stats"]["reclaimed"] == 0
    assert report["repeated"] <= HELD


def test_workers_wait_for_seeds(reports):
    """For BLOOM_REDIS_IDLE seconds, and fetch what is pushed; then they end."""
    report = reports["seeds"]
    assert report["lost"] == report["items_lost"] == report["errors"] == []
    assert report["reasons"] == ["shutdown", "shutdown", "finished"]
    assert (report["still_there"], report["pushed"]) == (2, [1, 0, 0])
    assert report["more"] == ["pushed/0"]


@pytest.mark.skipif("start_urls" not in SCENES, reason="scrapy-redis is not installed")
def test_seeds_of_scrapy_redis_are_taken_from_their_list(reports):
    """Its spiders need no setting; no seed is lost with a worker that is killed."""
    report = reports["start_urls"]
    assert_whole(report)
    assert report["more"] == [f"pushed/{number}" for number in range(1000, 1060)]
    assert report["left"] == 0


def test_an_outage_may_close_workers(reports):
    """With BLOOM_REDIS_ON_ERROR "close"; when Redis is back, nothing is lost."""
    report = reports["close_on_error"]
    assert report["closed"] == ["bloom_error"] * 2
    assert (report["lost"], report["reasons"]) == ([], ["finished"])
