"""Crawls with feeds that die in every way and are resumed have lost no page, and each item once.

Each test runs `tests.world.torture` in a process of its own, which forks the crawls. Set
DURABLE_SEED to repeat a run. `make torture` has a thousand random kills, and breaks the package on
purpose (`tests.world.mutants`).
"""

import json
import sys
from collections import Counter

import pytest
import scrapy

from tests.seeded import run_module, seed_of

SEED = seed_of("DURABLE_SEED")
CONCURRENCY = 8
IN_PROGRESS = 2 if scrapy.version_info >= (2, 15) else 4
"""Times as many requests as are downloaded at once; before Scrapy 2.15 more callbacks wait."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, and reads /proc"),
]


def torture(*arguments, seed=SEED):
    """Return the totals of the reports of a run, what was `wrong` by crawl, and their number."""
    run = run_module("tests.world.torture", *arguments, seed=seed)
    reports = [json.loads(line) for line in run.stdout.splitlines()]
    totals = Counter({"crawls": len(reports)})
    for report in reports:
        totals.update({k: v for k, v in report.items() if isinstance(v, int)})
    return {**totals, "wrong": {each["crawl"]: each["wrong"] for each in reports if each["wrong"]}}


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


def test_nothing_is_lost_wherever_the_process_dies():
    """A crawl each: after the first of each kind of call on the database, on files, feeds and bits,
    in a first run or a later one."""
    result = torture("points", "--count", 0, "--pages", 10, "--sides", "after")
    assert result["kills"] >= 30
    assert result["wrong"] == {}


def test_nothing_is_lost_around_any_commit():
    """Before and after each commit of a small crawl: two crawls for each."""
    result = torture("points", "--count", 100, "--names", "sql COMMIT", "--pages", 8)
    assert result["kills"] >= 8
    assert result["wrong"] == {}


def test_nothing_is_lost_by_a_power_cut():
    """Whatever the disk has of what was not synced, each of many jobs is resumed in full."""
    result = torture("cuts", "--count", 31, "--pages", 20)
    assert result["kills"] >= 4
    assert result["wrong"] == {}


def test_nothing_is_lost_by_failing_calls():
    """A crawl each: where a call fails, once or for good, the run ends, the next has the rest."""
    result = torture("faults", "--count", 10)
    assert result["crawls"] == 10
    assert result["wrong"] == {}
    assert result["kills"] == 0


def test_nothing_is_lost_on_a_disk_that_is_too_small():
    """Where files cannot grow any more, the same holds, in whole crawls."""
    result = torture("short", "--count", 2, "--pages", 60)
    assert result["wrong"] == {}
    assert result["kills"] == 0
