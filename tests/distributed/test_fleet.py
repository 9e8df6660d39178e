"""Real workers on a real server, killed, stopped and cut off: no page is lost.

The crawls run in a process of its own, which forks the workers. Set FLEET_SEED to repeat a
run. A thousand kills are in `make torture`.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared.server import missing

TESTS = Path(__file__).resolve().parent.parent
SEED = int(os.environ.get("FLEET_SEED", random.randrange(1 << 32)))
HELD = 40
"""What three workers hold at most: in the engine, claimed, not acknowledged yet, and what
waits for a request in memory."""

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks"),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]


def fleet(*arguments):
    """Return the reports of the crawls that the arguments ask for."""
    path = [str(TESTS.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    arguments = [*map(str, arguments), "--seed", str(SEED)]
    print("python -m tests.distributed.fleet", *arguments)
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.distributed.fleet", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        timeout=7200,
        check=False,
    )
    print(run.stdout, run.stderr)
    assert run.returncode == 0
    return [json.loads(line) for line in run.stdout.splitlines()][1:]


def assert_whole(reports):
    """No page was missed, and all workers that were not killed said that all is done."""
    for report in reports:
        assert report["lost"] == report["errors"] == []
        assert {*report["reasons"]} <= {"finished", "bloom_over"}
        assert {*report["statuses"]} == {0}


def test_no_page_is_lost_by_kills():
    """SIGKILL at random moments, also of all workers at once: every page is fetched, all
    that are left finish, and no more is repeated than what the dead ones held."""
    reports = fleet("--kills", 40, "--pages", 100)
    assert_whole(reports)
    assert sum(report["kills"] for report in reports) >= 40
    assert all(report["repeated"] <= report["kills"] * HELD / 2 for report in reports)


def test_no_page_is_lost_where_workers_sleep_and_redis_restarts():
    """Workers that were stopped for longer than their lease go on as new ones, Redis is
    restarted with what it had, and a Cluster of three serves a crawl, too."""
    assert_whole(fleet("--stops", 2, "--restarts", 1, "--cluster", 1, "--pages", 100))


def test_a_crawl_that_is_gone_is_an_error():
    """Redis restarted without its data: no worker takes that for the end."""
    (report,) = fleet("--wipes", 1)
    assert {*report["reasons"]} == {"bloom_error"}
    assert {*report["statuses"]} == {0}
    assert all("is gone" in line for line in report["errors"])
