"""Crawls that die in every way and are resumed have lost no page, nothing of spider.state or of a
pipeline with a buffer, and their feeds have each item once.

Each test runs a module of `tests.world` in a process of its own, which forks the crawls. Set
DURABLE_SEED to repeat a run. `make torture` has a thousand random kills, and breaks the package on
purpose (`tests.world.mutants`).
"""

import json
import shlex
import sys

import pytest
import scrapy

from tests.seeded import run_module, seed_of, told
from tests.world.rounds import FED

SEED = seed_of("DURABLE_SEED")
CONCURRENCY = 8
IN_PROGRESS = 2 if scrapy.version_info >= (2, 15) else 4
"""Times as many requests as are downloaded at once; before Scrapy 2.15 more callbacks wait."""
MIXED = "tests.world.mixed"

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="forks, and reads /proc"
)


def torture(*arguments, module="tests.world.torture", seed=SEED):
    """Return what a run prints in the end."""
    run = run_module(module, *arguments, seed=seed)
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.slow
def test_random_stops_lose_no_page_and_leave_each_item_once():
    """In many crawls: SIGKILL, SIGINT, SIGTERM and two Ctrl-C, one to six each, on both reactors.

    With every kind of page and callback, and sixteen feeds in all formats: local, compressed,
    stored at the end, in batches, filtered. At every stop but a kill each file is whole. Of what
    was answered before the last commit, only what was in progress is repeated.
    """
    result = torture("--kills", 3, "--pages", 30)
    assert result["kills"] >= 3
    assert result["odd"] == []
    assert result["stale"] <= result["stops"] * (IN_PROGRESS * CONCURRENCY + 2)


WAYS = {
    "after the first of each kind of call": ("--points 0 --pages 10 --sides after", 30),
    "around any commit": ("--points 6 --names sql\\ COMMIT --pages 8", 8),
    "power cuts": ("--cuts 4 --pages 30", 4),
    "failing calls, once or for good": ("--faults 10", 0),
    "disks that are too small": ("--short 2 --pages 60", 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_nothing_is_lost(way):
    """One to thirty crawls: where a run ends or dies, the next one has the rest."""
    arguments, deaths = WAYS[way]
    result = torture(*shlex.split(arguments))
    assert result["odd"] == []
    assert max(result["killed"], result["kills"]) >= deaths
    assert deaths or not result["killed"]


@pytest.mark.slow
def test_nothing_is_lost_or_twice_where_all_is_mixed():
    """Requests in every state, with orders and other settings at each start of many crawls."""
    result = torture("--kills", 2, "--pages", 40, module=MIXED)
    assert result["kills"] >= 2
    assert result["wrong"] == []


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
