"""Crawls that die in every way and are resumed have lost no page, nothing of spider.state or of a
pipeline with a buffer, and their feeds have each item once.

Each test runs `tests.world.torture` in a process of its own, which forks the crawls. Set
DURABLE_SEED to repeat a run. `make torture` has a thousand random kills, and breaks the package on
purpose (`tests.world.mutants`).
"""

import json
import shlex
import sys
from collections import Counter

import pytest
import scrapy

from tests.seeded import run_module, seed_of, told
from tests.world.rounds import FED
from tests.world.runner import CONCURRENCY

SEED = seed_of("DURABLE_SEED")
IN_PROGRESS = 2 if scrapy.version_info >= (2, 15) else 4
"""Times as many requests as are downloaded at once; before Scrapy 2.15 more callbacks wait."""

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="forks, and reads /proc"
)


def torture(*arguments, seed=SEED):
    """Return the totals of the reports of a run, what was `wrong` by crawl, and their number."""
    run = run_module("tests.world.torture", *arguments, seed=seed)
    reports = [json.loads(line) for line in run.stdout.splitlines()]
    totals = Counter({"crawls": len(reports)})
    for report in reports:
        totals.update({k: v for k, v in report.items() if isinstance(v, int)})
    wrong = {each["crawl"]: each["wrong"] for each in reports if each["wrong"]}
    assert run.returncode == bool(wrong)  # 1 without a wrong crawl is a traceback
    return {**totals, "wrong": wrong}


@pytest.mark.slow
def test_random_stops_lose_no_page_and_leave_each_item_once():
    """In many crawls: SIGKILL, SIGINT, SIGTERM and two Ctrl-C, one to six each, on both reactors.

    With every kind of page and callback, and sixteen feeds in all formats: local, compressed,
    stored at the end, in batches, filtered. At every stop but a kill each file is whole. Of what
    was answered before the last commit, only what was in progress is repeated.
    """
    result = torture("kills", "--count", 3, "--pages", 30)
    assert result["kills"] >= 3
    assert result["wrong"] == {}
    assert result["stale"] <= result["stops"] * (IN_PROGRESS * CONCURRENCY + 2)


WAYS = {
    # how, and so many crawls or more, of which so many or more are killed
    "first of each kind of call": ("points --count 0 --pages 10 --sides after", 30, 30),
    "commits": ("points --count 6 --names sql\\ COMMIT --pages 8", 8, 8),
    "power cuts": ("cuts --count 15 --pages 20", 5, 4),
    "failing calls": ("faults --count 10", 10, 0),
    "disks that are too small": ("short --count 2 --pages 60", 2, 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_lost(way):
    """Two to forty crawls: where a run ends or dies, the next one has the rest."""
    arguments, crawls, kills = WAYS[way]
    result = torture(*shlex.split(arguments))
    assert result["wrong"] == {}
    assert result["crawls"] >= crawls
    assert result["kills"] >= kills
    assert kills or not result["kills"]


@pytest.mark.slow
def test_a_spider_that_its_idle_handler_feeds_goes_on():
    """Four crawls: the handler gives the rest at the next start, and its reason ends the round."""
    reports = told("tests.world.rounds", seed=SEED)
    for crawl, reason in (("interrupted", "shutdown"), ("counted", "closespider_pagecount")):
        stopped, resumed = reports[crawl]["runs"]
        assert (stopped["reason"], stopped["rounds"]) == (reason, [[1, "running"]])
        assert (resumed["reason"], resumed["rounds"]) == ("all fed", [[1, "over"]])
        assert reports[crawl]["pages"] == [*range(FED)]
        assert stopped["answers"] + resumed["answers"] == FED
