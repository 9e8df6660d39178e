"""Rounds of real crawls: killed, stopped, refused, finished and begun again.

Each test runs stories of `tests.world.rounds` in a process of its own, which forks
the crawls. Set DURABLE_SEED to repeat a run.
"""

import os

import pytest

from tests.seeded import seed_of, told
from tests.world.rounds import FED, RETURNING
from tests.world.runner import CONCURRENCY

SEED = seed_of("DURABLE_SEED")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")]


def tell(*arguments):
    """Return what became of the crawls of stories, by name."""
    return told("tests.world.rounds", *arguments, seed=SEED)


@pytest.fixture(scope="module")
def reports():
    """What became of the forked crawls of the other stories."""
    return tell("second", "stops", "stock", "daily", "refused", "gone", "fed")


def lost(reports):
    """Return what was lost, of whatever kind."""
    return [
        (report["crawl"], kind, report[kind])
        for report in reports
        for kind in ("lost", "lost_books", "lost_state")
        if report[kind]
    ]


def test_nothing_is_lost_and_no_start_page_fetched_again_by_random_kills():
    """But one that the last commit before the kill had not finished."""
    reports = [*tell("kills", "--count", 2).values()]
    assert lost(reports) == []
    for report in reports:
        assert report["runs"][-1]["rounds"] == [[1, "over"]]
        assert report["extra_start"] <= sum(run["left"] for run in report["runs"][:-1])


def test_nothing_is_lost_wherever_the_process_dies():
    """Before and after commits and other calls on the database."""
    reports = [*tell("points", "--count", 2).values()]
    assert len(reports) == 10
    assert lost(reports) == []
    assert all(report["runs"][0]["status"] == -9 for report in reports)


def test_the_second_run_of_a_round_and_the_second_round_survive(reports):
    """Stopped, killed, resumed; begun again, killed, resumed."""
    report = reports["second"]
    assert lost([report]) == []
    stopped, killed, resumed, killed_again, resumed_again = report["runs"]
    expected = [[1, "running"], [1, "running"], [1, "over"], [2, "running"], [2, "over"]]
    assert [run["rounds"] for run in report["runs"]] == [[each] for each in expected]
    assert stopped["start"] + killed["start"] + resumed["start"] < 2 * 7
    # the second time the links are known, and no page but those of start() is fetched
    assert killed_again["answers"] + resumed_again["answers"] < 2 * 7 + 2
    assert all(run["login"] and run["skipped"] for run in (resumed, resumed_again))


def test_ctrl_c_once_and_twice(reports):
    """The round goes on after both; what was in progress at the second one is repeated."""
    once, twice = reports["stop1"], reports["stop2"]
    assert lost([once, twice]) == []
    assert once["extra_start"] == 0
    for report in (once, twice):
        assert [run["rounds"] for run in report["runs"]] == [[[1, "running"]], [[1, "over"]]]
        assert report["runs"][1]["skipped"] >= 1


@pytest.mark.parametrize(
    ("crawl", "reason"),
    [("interrupted", "shutdown"), ("counted", "closespider_pagecount")],
)
def test_a_spider_that_its_idle_handler_feeds_goes_on(reports, crawl, reason):
    """The handler gives the rest at the next start, and its reason ends the round."""
    report = reports[crawl]
    assert lost([report]) == []
    stopped, resumed = report["runs"]
    assert (stopped["reason"], stopped["rounds"]) == (reason, [[1, "running"]])
    assert (resumed["reason"], resumed["rounds"]) == ("all fed", [[1, "over"]])
    assert sorted(item["page"] for item in report["more"]) == [*range(FED)]
    assert stopped["answers"] + resumed["answers"] == FED


def test_a_daily_crawl_fetches_its_start_pages_each_time(reports):
    """As often as with stock Scrapy, and without a word of rounds."""
    stock, daily = reports["stock"], reports["daily"]
    assert lost([stock, daily]) == []
    assert stock["extra_start"] == 0
    first, *others = daily["runs"]
    for key in ("answers", "start"):
        assert first[key] == stock["runs"][0][key]
    for number, run in enumerate(others, 2):
        assert (run["rounds"], run["answers"], run["start"]) == ([[number, "over"]], 7, 5)
        assert run["skipped"] is None


def test_starts_that_come_to_nothing_change_no_round_and_no_state(reports):
    """A pipeline whose database is down, and bad settings, in a round and after it."""
    report = reports["refused"]
    assert lost([report]) == []
    stopped, *refused, resumed, after, new = report["runs"]
    for run in refused:
        assert (run["answers"], run["rounds"]) == (0, stopped["rounds"])
        assert run["state"] == stopped["state"] != []
    assert resumed["rounds"] == after["rounds"] == [[1, "over"]]
    assert after["state"] == resumed["state"]
    assert (new["rounds"], new["start"]) == ([[2, "over"]], 5)


def test_a_database_that_is_gone_costs_a_repetition(reports):
    """Nothing is acknowledged without it, and the next start brings the books home."""
    for name, reason in (("gone_in_the_middle", "bloom_error"), ("gone_at_the_end", "finished")):
        assert lost([reports[name]]) == []
        failed, resumed = reports[name]["runs"]
        assert (failed["reason"], failed["rounds"]) == (reason, [[1, "running"]])
        assert (resumed["reason"], resumed["rounds"]) == ("finished", [[1, "over"]])


def test_what_comes_back_goes_on_in_the_round_that_has_kept_it():
    """Over kills each page is once in either kind of feed."""
    check_returns(2)


def check_returns(count):
    """Tell so many stories of each kind."""
    for report in tell("returns", "--count", count).values():
        *_, back, last = report["runs"]
        assert [*report["more"].values()] == [[*range(RETURNING)]] * 2, report
        assert (back["rounds"], back["reason"]) == ([[1, "over"]], "finished"), report
        assert (last["rounds"][0][0], last["answers"]) == (2, 1), report
        asked = sum(run["answers"] for run in report["runs"] if run["status"] == 0)
        kills = sum(run["status"] != 0 for run in report["runs"])
        # the site may count late what a killed process has asked
        assert asked <= RETURNING + 1 + CONCURRENCY * kills, report
