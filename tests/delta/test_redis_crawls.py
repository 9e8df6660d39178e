"""Real crawls that share a delta store in Redis, and those that ask only for what has changed: some
fifty seconds of worlds of processes, which the tests of a fixture look at."""

import os
from itertools import count

import pytest

from tests.delta.test_crawls import (
    AGAIN,
    KNOWN,
    PER_DAY,
    SEED,
    check_fleet,
    found_on,
    item_of,
    pages,
    tell,
    verdicts,
)
from tests.seeded import told
from tests.world.changes import item_of as dated
from tests.world.changes import since
from tests.world.delta import REWRITTEN, details

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")]


DATABASES = count(1)


@pytest.fixture(scope="module")
def database(redis_server):
    """A database of its own: a process that takes tests off others can come here twice."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DELTA_REDIS", f"{redis_server.url.removesuffix('/0')}/{next(DATABASES)}")
        yield


@pytest.fixture(scope="module")
def stories(database):
    """What became of the crawls in Redis."""
    return tell("redis", "fleet_job", "fleet")


def test_a_crawl_skips_what_another_has_done_and_a_reset_forgets_it(stories):
    """On whatever machine, with the crawl in Redis or its filter only. The worker that begins a
    round forgets, and none that joins it later."""
    for scheduler in ("Scheduler", "RedisDurableScheduler"):
        assert {*stories[scheduler][1]["asked"]} == AGAIN
    _, _, reset, late, third = stories["RedisDurableScheduler"]
    assert pages("item", "moved", "keyed", "posted") <= {*reset["asked"]}
    assert (late["reason"], late["asked"]) == ("bloom_over", [])
    assert {*third["asked"]} == found_on(3)


def test_workers_that_are_killed_have_marked_no_page_without_its_items(stories):
    """Three of them, with and without a JOBDIR, which is thrown away."""
    check_fleet(stories["fleet0"])


def test_the_last_second_of_a_killed_worker_is_fetched_again(stories):
    """By the next crawl: only what that worker has fetched."""
    killed, again, second = stories["jobless"]
    assert (killed["status"], again["reason"]) == (-9, "finished")
    assert AGAIN <= {*second["asked"]} <= AGAIN | {*killed["asked"]}
    assert {item_of(page) for page in details(2) - pages("error")} <= {*second["written"]}


def test_marks_of_feeds_that_are_stored_at_the_end_wait_in_the_job_of_their_worker(stories):
    """Which is killed, started again with its JOBDIR, and stores them."""
    _, again, second = stories["jobbed"]
    assert again["reason"] in {"finished", "bloom_over"}
    assert {*second["asked"]} == AGAIN


def test_a_crawl_compares_with_what_another_has_found(stories):
    """With the store in Redis; a worker with a JOBDIR leaves out the items of unchanged pages."""
    told = {name: stories[name] for name in ("redis_compared", "redis_left_out")}
    for runs in told.values():
        assert [verdicts(run) for run in runs] == PER_DAY[:3]
    assert [len(run["items"]) for run in told["redis_compared"][1:]] == [32, 32]
    assert [sorted(run["items"]) for run in told["redis_left_out"][1:]] == [
        KNOWN,
        [REWRITTEN[3]] * 2,
    ]


# Of what was crawled before, only what has changed


@pytest.fixture(scope="module")
def days(database):
    """What became of the crawls of undisturbed days."""
    reports = told("tests.world.changes", "days", "--beside", 2, seed=SEED)
    return {name: report["runs"] for name, report in reports.items()}


PAGES = [f"page/{number}" for number in range(60)]


@pytest.mark.parametrize(("story", "total"), [("versions", 1000), ("versions_redis", 100)])
def test_of_a_sitemap_only_what_has_another_version_is_asked_for(days, story, total):
    """Crawls a thousand pages, seven seconds: on the second day it takes 13 requests, of which
    three are for the files; also when all marks have expired."""
    pages = [f"page/{number}" for number in range(total)]
    files = ["sitemap", "map", "map"]
    for run, (day, before) in zip(days[story], [(1, 0), (2, 1), (30, 2)], strict=True):
        changed = [page for page in pages if day == 1 or since(page, day) > since(page, before)]
        assert sorted(run["items"]) == sorted(dated(page, day) for page in changed)
        asked = [page for page in run["asked"] if page.startswith("page")]
        assert sorted(asked) == sorted(changed)
        assert [page.split("/")[0] for page in run["asked"] if page not in asked] == files
    assert len(days[story][1]["asked"]) <= 15


FULL = {f"{kind}/1" for kind in ("first", "index", "keyed", "always", "posted", "bare", "awaited")}
FULL |= {"index/2", "page/3"}
"""What is fetched in full on each day; the last by a callback."""


@pytest.mark.parametrize("story", ["validators", "validators_redis"])
def test_a_page_that_has_not_changed_is_renewed_without_an_item(days, story):
    """Of a new redirect, a start page, an index page, one without validators and one whose mark is
    gone all is fetched; a page with conditions of its own gets its 304."""
    first = days[story][0]
    for day, run in enumerate(days[story][1:], 2):
        changed = {page for page in PAGES if since(page, day) > since(page, day - 1)}
        moved = ({"target/1"}, set())[day - 2 :]
        by_status = {200: set(), 302: set(), 304: set()}
        for page, status in run["answers"]:
            by_status[status].add(page)
        assert by_status[200] == FULL | changed | moved[0] | {"gone/1"}
        assert by_status[302] == {"moved/1"}
        others = {"named/1", "dated/1", "gone/1", "own/1"} | ({"target/1"} if day == 3 else set())
        assert by_status[304] == {*PAGES} - changed | others
        items = FULL - {"index/1", "index/2", "page/3"} | changed | moved[0] | {"gone/1"}
        own = dated("own/1", day) + " again"
        assert sorted(run["items"]) == sorted({dated(page, day) for page in items} | {own})
        assert (run["reason"], run["errors"]) == ("finished", [])
        unmodified = len(by_status[304]) - len({"own/1", "gone/1"})
        assert run["stats"]["bloom/delta_unmodified"] == unmodified
        received = "downloader/response_bytes"
        assert run["stats"][received] <= first["stats"][received] / 10
    assert "conditional, feeds lack the items of unmodified pages" in run["start"][0]


def test_a_renewed_mark_counts_from_then_on(days):
    """One that had expired, also by more than the store keeps of what has no validators."""
    _, twelfth, eighteenth = days["renewed"]
    asked = {page for page, status in twelfth["answers"] if status == 304}
    assert len(asked) > 50
    assert {*eighteenth["asked"]} == {"first/1", "index/1", "index/2", *AWAY}


AWAY = {"always/1", "awaited/1", "page/3"}


@pytest.mark.parametrize(("way", "total"), [("version", 100), ("validators", 60)])
def test_kills_lose_no_change_and_fetch_nothing_else_in_full(days, way, total):
    """A job dies in a commit on each of three days, on the first with marks on their way."""
    runs, pages = days[f"killed_by_{way}"], [f"page/{number}" for number in range(total)]
    assert [run["status"] for run in runs] == [-9, 0] * 3
    for day in (2, 3):
        answers = runs[2 * day - 2]["answers"] + runs[2 * day - 1]["answers"]
        full = {page for page, status in answers if status == 200 and page.startswith("page/")}
        assert full - {"page/3"} == {page for page in pages if since(page, day) == day}
    assert {dated(page, day) for page in pages for day in (1, 2, 3)} <= {*runs[-1]["written"]}
