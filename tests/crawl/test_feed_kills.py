"""Crawls with feeds die in every way, are resumed, and have each item once.

Each test runs `tests.crawl.feed_torture` in a process of its own, which forks the crawls.
Set DURABLE_SEED to repeat a run; what each `--mutant` does stands in `mutants`.
"""

import sys

import pytest

from tests.crawl.test_kills import torture

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="forks, and reads /proc"
)


def feed_torture(*arguments, **options):
    """Return what a run prints."""
    return torture(*arguments, module="tests.crawl.feed_torture", **options)


@pytest.mark.slow
def test_random_stops_leave_each_item_once():
    """SIGKILL, SIGINT, SIGTERM and Ctrl-C two times, one to six a crawl, on both reactors,
    with every kind of page and callback, fifteen feeds in all formats: local, compressed,
    stored at the end, in batches, filtered. At every stop but a kill each file is whole."""
    result = feed_torture("--kills", 3, "--pages", 30)
    assert result["kills"] >= 3
    assert result["odd"] == []


@pytest.mark.slow
def test_each_item_once_wherever_the_process_dies():
    """A crawl each: after any write, sync, record, cut, store, in a first run and a later one."""
    result = feed_torture("--points", 0, "--sides", "after")
    assert result["killed"] >= 9  # of 12: some may come to fewer writes
    assert result["odd"] == []


@pytest.mark.slow
def test_no_item_is_lost_by_a_power_cut():
    """Whatever the disk has of what was not synced, in many crawls; a page may come again."""
    result = feed_torture("--cuts", 2)
    assert result["kills"] >= 2
    assert result["odd"] == []


@pytest.mark.slow
def test_each_item_once_on_a_disk_that_fills_up():
    """While a feed is written, while it is synced, and while a part is stored: whole crawls."""
    assert feed_torture("--full", 3)["odd"] == []
