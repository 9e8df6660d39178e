"""Failed requests of real crawls: what counts as failed, and what is asked again.

Set DURABLE_SEED to repeat a run of the stories of `tests.world.failing`.
"""

import os
import re
from collections import Counter

import pytest

from tests.redis.server import missing
from tests.seeded import seed_of, told
from tests.world.failing import NUMBERS, REASONS

SEED = seed_of("DURABLE_SEED")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")]

IN_REDIS = pytest.mark.skipif(missing() is not None, reason=str(missing()))
in_both = pytest.mark.parametrize("medium", ["job", pytest.param("redis", marks=IN_REDIS)])


def tell(story, medium, *arguments):
    """Return what became of the crawls of a story."""
    redis = ["--redis"] * (medium == "redis")
    reports = told("tests.world.failing", story, *arguments, *redis, seed=SEED)
    return [report["runs"] for report in reports.values()]


def failing(**others):
    """Return the pages that fail while the site is down, and their reasons."""
    found = {"status/9": "status/503"}
    for kind, reason in (REASONS | others).items():
        for number in NUMBERS:
            # what fails of a page that has moved is the one that it has moved to
            page = f"status/{number}7" if kind == "moved" else f"{kind}/{number}"
            found[page] = reason
    return found


def children(pages):
    """Return what is behind these pages."""
    return {f"plain/{page.replace('/', '-')}" for page in pages}


def pages(*kinds):
    """Return the pages of these kinds."""
    return {f"{kind}/{number}" for kind in kinds for number in NUMBERS}


REFUSED = dict.fromkeys(pages("refused"), REASONS["refused"])
ASKED_AGAIN = {*failing()} - {*REFUSED}
BEHIND = children(ASKED_AGAIN) - children(pages("raising", "unfit"))
"""What is given only when they are asked again."""
ALL_PAGES = {
    *(ASKED_AGAIN | children(ASKED_AGAIN)),
    *pages("plain", "allowed", "rescued", "dropped"),
    *children(pages("allowed", "dropped")),
}
ALL_ITEMS = {
    *(f"{page}:{part}" for page in ALL_PAGES - pages("dropped", "rescued") for part in (1, 2)),
    "handled:0",
    "late:0",
}


@in_both
def test_what_the_spider_has_not_handled_fails_and_is_asked_again(medium):
    """Takes as long as three crawls do: for reasons that say why, each page once, and the crawl is
    finished all the same; a retry asks just those, and a start without one is a new round."""
    ((first, second, third),) = tell("mended", medium)
    assert first["reason"] == "finished"
    assert first["failed"] == failing()
    assert first["stat"] == len(failing())
    (line,) = first["line"]
    assert f"{len(failing())} requests failed and stay in the " in line
    assert "5 status/503" in line
    where = r"redis://[\d.:]+/0 --key" if medium == "redis" else "job"
    assert re.search(f"'scrapy bloom retry .*{where}", line)
    # one, and one retry, unless that was forbidden or is no matter of downloads
    attempts = [first["attempts"][f"{kind}/1"] for kind in ("closed", "dns", "stubborn", "raising")]
    assert attempts == [2, 2, 1, 1]

    assert second["asked"] == dict.fromkeys(ASKED_AGAIN | BEHIND, 1)
    assert second["failed"] == third["failed"] == REFUSED
    # all items of both runs are in the feed once, but what failed pages had given before
    again = {f"{page}:1" for page in pages("raising", "marked", "unfit")} | {"handled:0", "late:0"}
    both = Counter([*ALL_ITEMS, *again, "plain/0:1", "plain/0:2"])
    assert second["items"] == both

    assert third["asked"] == {"plain/0": 1, "status/9": 1}


def test_items_and_ignored_requests_count_if_they_are_named():
    """Takes as long as two crawls do: robots.txt is no failure, and a cache does not answer with
    the old error."""
    ((first, second),) = tell("all_kinds", "job")
    assert first["failed"] == failing(dropped="item", ignored="ignored")
    assert second["failed"] == REFUSED | dict.fromkeys(pages("ignored"), "ignored")
    assert {page for page in failing() if page.startswith("status/")} <= second["asked"].keys()


@in_both
def test_kills_lose_no_failure(medium):
    """Takes as long as some crawls that are killed while pages fail, and while they are asked
    again."""
    check_kills(1, medium)


def check_kills(count, medium="job"):
    """The same pages fail in killed crawls as without, and in the end all is there."""
    for runs in tell("kills", medium, "--count", count):
        *_, down, _, last = runs
        assert down["failed"] == failing()
        assert down["stat"] == len(failing())
        assert last["failed"] == REFUSED
        assert down["reason"] == last["reason"] == "finished"
        asked = {page for run in runs for page in run["asked"]}
        assert ALL_PAGES - asked == ALL_ITEMS - {*last["items"]} == set()
