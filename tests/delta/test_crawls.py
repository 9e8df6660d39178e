"""What real crawls fetch, day after day, and what they skip.

Each test runs stories of `tests.world.delta` in a process of its own, which forks the
crawls. `make torture` kills a hundred crawls on each of three days. Set DELTA_SEED to repeat a
run.
"""

import os

import pytest

from tests.seeded import seed_of, told
from tests.world.delta import COMPARED, FAILING, LISTS, REWRITTEN, details

SEED = seed_of("DELTA_SEED")
ALWAYS = {f"list/{number + 1}" for number in range(LISTS)} | {"always/1", "once/1", "once/2"}

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")]


def tell(*arguments):
    """Return what became of the crawls of a story."""
    reports = told("tests.world.delta", *arguments, "--beside", 2, seed=SEED)
    return {name: report["runs"] for name, report in reports.items()}


def pages(*kinds):
    """Return the details of these kinds that the lists have on each day."""
    return {f"{kind}/{list_ + 1}1" for kind in kinds for list_ in range(LISTS)}


def found_on(day):
    """Return what is new on a day and fetched again on each."""
    return ALWAYS | {f"item/{list_ + 1}{19 + day}" for list_ in range(LISTS)} | {f"poll/{day}"}


def item_of(page):
    """Return the page that an item of a detail names."""
    return page.replace("moved/", "target/")


@pytest.fixture(scope="module")
def stories():
    """What became of the crawls of all stories, each once, in forked processes."""
    return tell("days", "thrown_away", "--count", 2)


AGAIN = found_on(2) | pages(*FAILING) | {"status/29"}
"""What the second day fetches of a crawl whose first came to its end."""


@pytest.mark.parametrize(
    "way", ["onejob", "manyjobs", "scrapys", "one", "other", "undelivered", "gzipped", "opening"]
)
def test_the_second_crawl_fetches_lists_what_is_new_and_what_was_not_done(stories, way):
    """Whatever has kept a page from giving an item, it is fetched again; nothing else is. Also
    where two crawls share a store, or a process has died before its marks were in it."""
    first, *_, second = stories[way][:2] if way == "onejob" else stories[way]
    assert (stories[way][-2]["status"] == 9) is (way in {"undelivered", "gzipped", "opening"})
    assert {*second["asked"]} == AGAIN
    assert second["reason"] == "finished"
    # a round does not skip what it polls itself; the first list is fetched twice
    assert second["asked"].count("poll/2") == LISTS + 1
    done = pages("item", "keyed", "posted", *(k for k in FAILING if k != "status"))
    assert done <= {*first["asked"]} or way in {"other", "gzipped"}


def test_skipped_and_marked_pages_are_counted(stories):
    """In stats, and in words at the end; a line tells of an index page that asks to be skipped."""
    _, second, third = stories["onejob"]
    assert {*third["asked"]} == found_on(3)
    assert "poll/1" not in third["asked"]
    marked = [page for page in second["asked"] if page not in ALWAYS]
    assert second["stats"]["bloom/delta_marked"] == len(marked)
    assert third["stats"]["bloom/delta_skipped"] > second["stats"]["bloom/delta_skipped"] > 0
    assert third["stats"]["bloom/delta_oldest_days"] == 2.0
    assert (
        f"skipped {second['stats']['bloom/delta_skipped']} requests that earlier crawls have done"
        in second["line"][0]
    )
    assert [len(run["warned"]) for run in stories["onejob"]] == [1, 2, 3]  # in the log of all days
    assert "is an index page, which each crawl fetches: bloom_delta = True" in third["warned"][0]


def test_success_and_response_count_more_as_done(stories):
    """Without an item, or with an item that was dropped; and a callback that has raised."""
    again = found_on(2) | {"status/29"} | pages("status")
    assert {*stories["success"][1]["asked"]} == again | pages("raising", "torn", "error", "refused")
    assert {*stories["response"][1]["asked"]} == again


def test_nothing_is_done_whose_feed_has_failed(stories):
    """Without a job: the next crawl fetches all of it, the one after that does not."""
    lost, again, third = stories["lost"]
    assert {*again["asked"]} == {*lost["asked"]}
    assert "item/7" in again["items"]
    assert "item/7" not in third["asked"]


def test_a_test_crawl_changes_no_byte_of_the_memory(stories):
    """It skips what is done, and the next crawl fetches what the test has fetched."""
    first, *tests, after = stories["ro"]
    assert first["memory"]
    assert {page for run in tests for page in run["asked"]} == {*after["asked"]} == AGAIN
    assert all(run["memory"] == first["memory"] for run in tests)
    assert "for ever, read-only, " in tests[-1]["start"][0]
    assert "marked 0 pages" in tests[-1]["line"][0]
    assert tests[-1]["reason"] == "finished"


def test_a_reset_forgets_what_was_done_before(stories):
    """What the round itself does counts for the next one."""
    _, second, third = stories["reset"]
    assert pages("item", "moved", "keyed", "posted") <= {*second["asked"]}
    assert {*third["asked"]} == found_on(3)


def test_a_page_whose_links_are_known_is_a_list(stories):
    """It is fetched again, so what is new on it is found; so is what a middleware makes a list."""
    first, second = [{*run["asked"]} for run in stories["links"]]
    lists = {"links/1", "links/2", "links/3"}
    assert first == lists | {"item/1", "item/2", "item/3", "item/5"}
    assert second == lists | {"item/29", "item/39", "item/3", "item/5"}


@pytest.fixture(scope="module")
def digests():
    """What became of the crawls that compare pages, killed ones too."""
    return tell("digests", "digest_kills", "--count", 2)


def verdicts(run):
    """Return how many pages of a round are new, changed and unchanged."""
    return [run["stats"][f"bloom/delta_{name}"] for name in ("new", "changed", "unchanged")]


ALL = len(COMPARED)
PER_DAY = [[ALL, 0, 0], [0, 0, ALL - 1], [0, 1, ALL - 1], [0, 1, ALL - 1]]
"""On the second day the callback of a page raises: that is not compared."""
KNOWN = ["shaky/1"]
"""The items of that page up to there."""


@pytest.mark.parametrize("way", ["compared", "expired"])
def test_an_unchanged_site_has_no_changed_page(digests, way):
    """One rewritten page is one, whatever pipelines write; what is fetched twice counts once."""
    runs = digests[way]
    assert [verdicts(run) for run in runs] == PER_DAY
    assert {run["reason"] for run in runs} == {"finished"}
    line = f"Between crawls: compared {ALL} pages: 0 new, 1 changed, {ALL - 1} unchanged."
    assert runs[2]["compared"][0].endswith(line)


def test_only_what_is_fetched_is_compared(digests):
    """With skipping: index pages, and a page without items. A round that goes on counts on."""
    first, retried, second = digests["skipped"]
    assert verdicts(first) == verdicts(retried) == PER_DAY[0]
    assert verdicts(second) == [0, 0, 4]
    assert {*second["asked"]} == {"front/1", "front/2", "leaf/1", "quiet/1", "broken/1"}


def test_items_of_unchanged_pages_are_in_no_feed(digests):
    """Those of a page that has changed are, and all of them. A test crawl finds what the crawl
    after it finds, and changes no byte of the memory."""
    first, second, test, *later = digests["left_out"]
    assert [verdicts(run) for run in (first, test, *later)] == [PER_DAY[0], *[PER_DAY[2]] * 3]
    assert {*first["items"]} == COMPARED - {"quiet/1"}
    assert sorted(second["items"]) == KNOWN
    assert [run["items"] for run in (test, *later)] == [[REWRITTEN[day]] * 2 for day in (3, 3, 4)]
    assert test["memory"] == second["memory"] != later[0]["memory"]
    assert "compared, items of unchanged pages left out, read-only" in test["start"][0]


def check_digests(runs, *, in_time=True):
    """Each day has the verdicts and items of a crawl that was not killed. A kill that was not
    `in_time` may come when a round is over, or nearly: then nothing has changed in the next one."""
    for day, expected in enumerate(PER_DAY, 1):
        mine = [run for run in runs if run["feed"].endswith(f"-{day}")]
        first, *more = ends = [run for run in mine if run["reason"] is not None]
        last, again = ends[-1], [0, 0, sum(expected)]
        assert len(mine) > 1
        assert {run["reason"] for run in ends} == {"finished"}
        assert all(verdicts(run) in [expected, again] for run in more)
        assert verdicts(first) in [expected, *[again] * (not in_time and len(mine) > len(ends))]
        if day == 2:
            assert {*last["items"]} == {*KNOWN}
        elif day > 2:
            assert last["items"] == [REWRITTEN[day]] * 2


@pytest.mark.parametrize("name", ["digest0", "digest1"])
def test_kills_change_no_verdict(digests, name):
    """A page is counted once over all starts, and its items are in the feed as without a kill."""
    check_digests(digests[name])


def check(runs):
    """Every detail is fetched by some round, and what an earlier round has done is not."""
    done, rounds, asked = set(), 0, []
    for run in runs:
        assert done.isdisjoint(run["asked"])
        asked += run["asked"]
        if run["reason"] is not None:
            assert run["reason"] == "finished"
            items = {*run["items"]}
            done |= {page for page in items if page.split("/")[0] not in {"list", "once"}}
            done -= {"always/1", *pages("torn")}
            rounds += 1
    assert {item_of(page) for page in details(3)} <= {*runs[-1]["written"]}
    # a crawl that misses nothing is no proof, if it fetches all each time
    assert len(runs[-1]["asked"]) < 20


def test_a_job_that_is_thrown_away_takes_no_page_with_it(stories):
    """Its feed has the items of all that the next crawl skips."""
    for number in range(2):
        *_, last = stories[f"thrown{number}"]
        assert {item_of(page) for page in details(2) - pages("error")} <= {*last["written"]}
        assert last["reason"] == "finished"


def check_fleet(runs):
    """No page is lost: killed workers have marked some, and none whose items are not safe."""
    assert {item_of(page) for page in details(2) - pages("error")} <= {*runs["written"]}
    assert {*runs["reasons"]} <= {"finished", "bloom_over"}
    assert not details(1) <= {*runs["next"]}
