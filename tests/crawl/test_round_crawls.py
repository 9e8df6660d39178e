"""Rounds of real crawls: killed, stopped, finished and begun again.

Each test runs stories of `tests.world.rounds` in a process of its own, which forks
the crawls. Set DURABLE_SEED to repeat a run.
"""

import os

import pytest

from tests.seeded import seed_of, told
from tests.world.rounds import FED

SEED = seed_of("DURABLE_SEED")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")]


def tell(*arguments):
    """Return what became of the crawls of stories, by name."""
    return told("tests.world.rounds", *arguments, seed=SEED)


def lost(reports):
    """Return what was lost, of whatever kind."""
    return [
        (report["crawl"], kind, report[kind])
        for report in reports
        for kind in ("lost", "lost_books", "lost_state")
        if report[kind]
    ]


def test_nothing_is_lost_and_no_start_page_fetched_again_by_random_kills():
    """In several crawls, but one that the last commit before the kill had not finished. Without a
    kill start pages are asked as often as by stock Scrapy, and again in the next round."""
    reports = [*tell("kills", "--count", 3).values()]
    assert lost(reports) == []
    for report in reports:
        *killed, resumed, daily = report["runs"]
        assert resumed["rounds"] == [[1, "over"]]
        again = sum(run["start"] for run in [*killed, resumed]) - report["start"]
        assert 0 <= again <= sum(run["left"] for run in killed)
        # the links are known then, and no page but those of start() is fetched
        assert (daily["rounds"], daily["answers"], daily["start"]) == ([[2, "over"]], 7, 5)


def test_nothing_is_lost_wherever_the_process_dies():
    """Several crawls: before and after commits and other calls on the database."""
    reports = [*tell("points", "--count", 2).values()]
    assert len(reports) == 10
    assert lost(reports) == []
    assert all(report["runs"][0]["status"] == -9 for report in reports)


def test_a_spider_that_its_idle_handler_feeds_goes_on():
    """Four crawls: the handler gives the rest at the next start, and its reason ends the round."""
    reports = tell("fed")
    for crawl, reason in (("interrupted", "shutdown"), ("counted", "closespider_pagecount")):
        stopped, resumed = reports[crawl]["runs"]
        assert (stopped["reason"], stopped["rounds"]) == (reason, [[1, "running"]])
        assert (resumed["reason"], resumed["rounds"]) == ("all fed", [[1, "over"]])
        assert sorted(item["page"] for item in reports[crawl]["fed"]) == [*range(FED)]
        assert stopped["answers"] + resumed["answers"] == FED
