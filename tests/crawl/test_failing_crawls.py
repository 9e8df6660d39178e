"""Failed requests of real crawls: what counts as failed, and what is asked again.

Each test runs stories of `tests.world.failing` in a process of its own, which forks
the crawls, in jobs and in Redis. Set DURABLE_SEED to repeat a run.
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

REDIS = pytest.param(
    "redis", marks=pytest.mark.skipif(missing() is not None, reason=str(missing()))
)
MEDIA = ("job", REDIS)


def tell(*arguments):
    """Return what became of the crawls of a story."""
    reports = told("tests.world.failing", *arguments, seed=SEED)
    return {name: report["runs"] for name, report in reports.items()}


def failing(*kinds, **others):
    """Return the pages that fail while the site is down, of these kinds, and their reasons."""
    found = {"status/9": "status/503"}
    for kind in kinds or REASONS:
        for number in NUMBERS:
            # what fails of a page that has moved is the one that it has moved to
            page = f"status/{number}7" if kind == "moved" else f"{kind}/{number}"
            found[page] = REASONS[kind]
    for kind, reason in others.items():
        found.update({f"{kind}/{number}": reason for number in NUMBERS})
    return found


def children(pages):
    """Return what is behind these pages."""
    return {f"plain/{page.replace('/', '-')}" for page in pages}


def pages(*kinds):
    """Return the pages of these kinds."""
    return {f"{kind}/{number}" for kind in kinds for number in NUMBERS}


REFUSED = {page: reason for page, reason in failing().items() if page.startswith("refused")}
ASKED_AGAIN = {*failing()} - {*REFUSED}
RAISING = pages("raising", "speechless")
BEHIND = children(ASKED_AGAIN) - children(RAISING | pages("unfit"))
"""What is given only when they are asked again."""
ALL_PAGES = {
    *ASKED_AGAIN,
    *children(ASKED_AGAIN),
    *pages("plain", "allowed", "rescued", "dropped", "ignored"),
    *children(pages("allowed", "dropped", "ignored")),
} - {*pages("ignored"), *children(pages("ignored"))}
ALL_ITEMS = {
    *(f"{page}:{part}" for page in ALL_PAGES - pages("dropped", "rescued") for part in (1, 2)),
    "handled:0",
    "late:0",
}


def in_medium(name):
    """Return the arguments for crawls in jobs, or in Redis."""
    return ["--redis"] if name == "redis" else []


@pytest.fixture(scope="module", params=MEDIA)
def medium(request):
    """Where the requests are: in a job, or in Redis."""
    return request.param


@pytest.fixture(scope="module")
def reports(medium):
    """What became of the crawls of all stories but the kills, in forked processes."""
    return tell("mended", "unmended", "all_kinds", "off", *in_medium(medium))


def test_what_the_spider_has_not_handled_fails(reports, medium):
    """For reasons that say why, each page once; and the crawl is finished all the same."""
    first, *_ = reports["mended"]
    assert (first["status"], first["reason"]) == (0, "finished")
    assert first["failed"] == failing()
    assert first["stats"]["scheduler/failed"] == len(failing())
    (line,) = first["line"]
    where = {"job": "job", "redis": "crawl"}[medium]
    assert f"{len(failing())} requests failed and stay in the {where}" in line
    assert "9 status/503" in line
    if medium == "redis":
        assert re.search(r"'scrapy bloom retry redis://[\d.:]+/0 --key mended'", line)


def test_attempts_are_counted_with_retries(reports):
    """One, and one retry; one where that was forbidden or is no matter of downloads."""
    attempts = reports["mended"][0]["attempts"]
    assert [attempts[page] for page in ("closed/1", "status/17", "dns/1")] == [2, 2, 2]
    assert {attempts[page] for page in pages("quick", "stubborn", "marked") | RAISING} == {1}
    assert {attempts[page] for page in pages("miscounted")} == {2}


def test_exactly_those_pages_are_asked_again(reports, medium):
    """And what they yield now that was not known; nothing else, no start page either."""
    first, second, _ = reports["mended"]
    assert second["retried"] == len(failing())
    assert second["asked"] == dict.fromkeys(ASKED_AGAIN | BEHIND, 1)
    assert second["failed"] == REFUSED
    assert first["stats"].get("scheduler/start_skipped") is None
    # in Redis start() is not run any more
    assert second["stats"].get("scheduler/start_skipped") == {"job": 2, "redis": None}[medium]


def test_a_retry_adds_to_the_feeds(reports):
    """All items of both runs are in them once, but what failed pages had given before."""
    _, second, _ = reports["mended"]
    items = Counter(second["items"])
    again = {f"{page}:1" for page in RAISING | pages("marked", "unfit")}
    of_errbacks = {"handled:0", "late:0"}
    assert items == Counter([*ALL_ITEMS, *again, *of_errbacks, "plain/0:1", "plain/0:2"])


def test_a_start_without_a_retry_is_a_new_round(reports, medium):
    """Start pages are asked again, failed ones stay, and a feed is overwritten."""
    third = reports["mended"][2]
    assert third["asked"] == {"plain/0": 1, "status/9": 1}
    assert third["failed"] == REFUSED
    if medium == "job":
        assert {*third["items"]} == {"plain/0:1", "plain/0:2", "status/9:1", "status/9:2"}


def test_what_fails_again_has_more_attempts(reports):
    """BLOOM_RETRY_FAILED asks all of them at each start, with all their retries."""
    first, second = reports["unmended"]
    assert second["failed"] == first["failed"] == failing()
    assert second["attempts"] == {page: 2 * n for page, n in first["attempts"].items()}
    # Twisted sends a request once more by itself where a connection was closed
    assert {*second["asked"]} == ASKED_AGAIN - pages("dns")
    assert second["asked"]["status/17"] == 2


def test_items_and_ignored_requests_count_if_they_are_named(reports):
    """robots.txt is no failure, and a cache does not answer with the old error."""
    first, second = reports["all"]
    expected = failing(dropped="item", ignored="ignored")
    assert first["failed"] == expected
    assert second["failed"] == REFUSED | dict.fromkeys(pages("ignored"), "ignored")
    assert {page for page in second["asked"] if page.startswith("status/")} == {
        page for page in failing() if page.startswith("status/")
    }


def test_nothing_is_kept_where_that_is_off(reports):
    """The crawl ends as Scrapy's does."""
    (only,) = reports["off"]
    assert (only["reason"], only["failed"], only["line"]) == ("finished", {}, [])


def test_kills_lose_no_failure(medium):
    """Killed while pages fail, and while they are asked again."""
    check_kills(2 if medium == "job" else 1, medium)


def check_kills(count, medium="job"):
    """The same pages fail in killed crawls as without, and in the end all is there."""
    for runs in tell("kills", "--count", count, *in_medium(medium)).values():
        *_, down, _, last = runs
        assert down["reason"] == "finished"
        assert down["failed"] == failing()
        assert down["stats"]["scheduler/failed"] == len(failing())
        assert last["failed"] == REFUSED
        assert last["reason"] == "finished"
        everything = Counter()
        for run in runs:
            everything.update(run["asked"])
        assert ALL_PAGES - {*everything} == set()
        assert ALL_ITEMS - {*last["items"]} == set()
