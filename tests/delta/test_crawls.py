"""What real crawls fetch, day after day, and what they skip.

Each test runs stories of `tests.world.delta` in a process of its own, which forks the
crawls. `make torture` kills a hundred crawls on each of three days. Set DELTA_SEED to repeat a
run.
"""

import os
from collections import Counter

import pytest

from tests.delta.test_digests import digest as digest_of_items
from tests.seeded import seed_of, told
from tests.world.delta import (
    COMPARED,
    EACH,
    FAILING,
    LISTS,
    REWRITTEN,
    SOUND,
    THROWN_AWAY,
    details,
)

SEED = seed_of("DELTA_SEED")
ALWAYS = {f"list/{number + 1}" for number in range(LISTS)} | {"always/1", "once/1", "once/2"}

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")]


def tell(*arguments):
    """Return what became of the crawls of a story."""
    reports = told("tests.world.delta", *arguments, "--beside", 2, seed=SEED)
    return {name: report["runs"] for name, report in reports.items()}


def pages(*kinds):
    """Return the details of these kinds that the lists have on each day."""
    return {f"{kind}/{list_ + 1}{n}" for kind in kinds for list_ in range(LISTS) for n in EACH}


def new_on(day):
    """Return the details that the lists have from that day on."""
    return {f"item/{list_ + 1}{19 + day}" for list_ in range(LISTS)}


def found_on(day):
    """Return what is new on a day and fetched again on each."""
    return ALWAYS | new_on(day) | {f"poll/{day}"}


def item_of(page):
    """Return the page that an item of a detail names."""
    return page.replace("moved/", "target/")


@pytest.fixture(scope="module")
def stories():
    """What became of the crawls of all stories, each once, in forked processes."""
    return tell("days", "thrown_away")


WAYS = ("onejob", "manyjobs", "nojob", "scrapys")


@pytest.mark.parametrize("way", WAYS)
def test_the_second_crawl_fetches_lists_what_is_new_and_what_was_not_done(stories, way):
    """Whatever has kept a page from giving an item, it is fetched again; nothing else is."""
    first, second, *later = stories[way]
    assert {*second["asked"]} == (found_on(2) | pages(*FAILING) | {"status/29"})
    assert [{*third["asked"]} for third in later] == [found_on(3)] * len(later)
    assert {run["reason"] for run in stories[way]} == {"finished"}
    assert pages("item", "keyed", "posted", *(k for k in FAILING if k != "status")) <= {
        *first["asked"]
    }


@pytest.mark.parametrize("way", WAYS)
def test_a_round_does_not_skip_its_own_repeats(stories, way):
    """A page that is polled without the filter is fetched each time."""
    for day, run in enumerate(stories[way], 1):
        # the first list is fetched twice
        assert run["asked"].count(f"poll/{day}") == LISTS + 1
        assert day == 1 or f"poll/{day - 1}" not in run["asked"]


def test_skipped_and_marked_pages_are_counted(stories):
    """In the stats, and in words at the end."""
    _, second, third = stories["onejob"]
    marked = [page for page in second["asked"] if page not in ALWAYS]
    assert second["stats"]["bloom/delta_marked"] == len(marked)
    assert third["stats"]["bloom/delta_skipped"] > second["stats"]["bloom/delta_skipped"] > 0
    assert third["stats"]["bloom/delta_oldest_days"] == 2.0
    assert (
        f"skipped {second['stats']['bloom/delta_skipped']} requests that earlier crawls have done"
        in second["line"][0]
    )


def test_success_and_response_count_more_as_done(stories):
    """Without an item, or with an item that was dropped; and a callback that has raised."""
    again = found_on(2) | {"status/29"} | pages("status")
    assert {*stories["success"][1]["asked"]} == again | pages("raising", "torn", "error", "refused")
    assert {*stories["response"][1]["asked"]} == again


def test_what_is_done_is_fetched_again_after_the_period(stories):
    """On the ninth day nothing of the first is, on the eleventh all but what the ninth has done."""
    _, ninth, eleventh = stories["period"]
    new = {page for day in range(2, 10) for page in found_on(day)} - ALWAYS
    again = pages(*FAILING) | {"status/29"}
    brief = pages("posted")  # those ask for three days
    assert {*ninth["asked"]} == ALWAYS | new | again | brief
    sound = pages(*SOUND) - brief
    assert sound | new_on(1) <= {*eleventh["asked"]}
    assert (new | again | brief).isdisjoint(eleventh["asked"])


def test_nothing_is_done_whose_feed_has_failed(stories):
    """Without a job: the next crawl fetches all of it, the one after that does not."""
    lost, again, third = stories["lost"]
    assert {*again["asked"]} == {*lost["asked"]}
    assert "item/7" in again["items"]
    assert "item/7" not in third["asked"]


@pytest.mark.parametrize("name", ["one", "other"])
def test_two_crawls_share_a_memory_at_the_same_time(stories, name):
    """Each has its own marks in it, and those of the other."""
    second = stories[name][-1]
    assert {*second["asked"]} == found_on(2) | pages(*FAILING) | {"status/29"}
    assert not [line for line in second["errors"] if "not in" in line or "BLOOM_DELTA" in line]


@pytest.mark.parametrize("name", ["ro", "ro_nojob"])
def test_a_test_crawl_changes_no_byte_of_the_memory(stories, name):
    """It skips what is done, and the next crawl fetches what the test has fetched."""
    first, *tests, after = stories[name]
    again = found_on(2) | pages(*FAILING) | {"status/29"}
    assert first["memory"]
    assert {page for run in tests for page in run["asked"]} == {*after["asked"]} == again
    assert all(run["memory"] == first["memory"] for run in tests)
    assert "for ever, read-only, " in tests[-1]["start"][0]
    assert "marked 0 pages" in tests[-1]["line"][0]
    assert tests[-1]["reason"] == "finished"


def test_a_reset_forgets_what_was_done_before(stories):
    """What the round itself does counts for the next one."""
    _, second, third = stories["reset"]
    assert pages("item", "moved", "keyed", "posted") <= {*second["asked"]}
    assert {*third["asked"]} == found_on(3)


@pytest.mark.parametrize(
    ("spider", "lists"),
    [
        ("follow_new", {"links/1", "links/2"}),
        ("rules", {"links/1", "links/2"}),
        ("of_sitemap", {"sitemap/2", "links/2"}),
    ],
)
def test_a_page_whose_links_are_known_is_a_list(stories, spider, lists):
    """It is fetched again, and so what is new on it is found; duplicates are dropped early."""
    first, second = stories[spider]
    # what another middleware leads to makes a page a list, too
    behind, paged = ({"item/5"}, {"item/3"}) if spider == "follow_new" else (set(), set())
    assert {*first["asked"]} == lists | {"item/1", "item/2", "item/3"} | behind
    assert {*second["asked"]} == lists | {"item/9"} | paged | behind
    assert first["drops_early"]


def test_what_leads_to_a_page_is_not_skipped_before_the_page_is_done(stories):
    """Not for a key that was copied, of a cached page or in an errback; nor if it is a list."""
    first, second, third = [sorted(run["items"]) for run in stories["odd"]]
    assert first == ["item/2", "item/4", "item/5", "item/9", "odd/2"]
    assert second == ["item/3", "item/6", "odd/2", "status/1"]
    assert third == ["item/7", "odd/2"]
    for day, run in enumerate(stories["odd"], 1):
        assert len(run["warned"]) == day  # the log is that of all days
        line = run["warned"][-1]
        assert "odd/2> is an index page, which each crawl fetches: bloom_delta = True" in line


@pytest.fixture(scope="module")
def digests():
    """What became of the crawls that compare pages, killed ones too."""
    return tell("digests", "digest_kills")


def verdicts(run):
    """Return how many pages of a round are new, changed and unchanged."""
    return [run["stats"][f"bloom/delta_{name}"] for name in ("new", "changed", "unchanged")]


ALL = len(COMPARED)
PER_DAY = [[ALL, 0, 0], [0, 0, ALL - 1], [0, 1, ALL - 1], [0, 1, ALL - 1]]
"""On the second day the callback of a page raises: that is not compared."""
KNOWN = ["shaky/1"]
"""The items of that page up to there."""


@pytest.mark.parametrize("way", ["", "_nojob", "_expired"], ids=lambda way: way or "manyjobs")
def test_an_unchanged_site_has_no_changed_page(digests, way):
    """One rewritten page is one, whatever pipelines write; what is fetched twice counts once."""
    runs = digests[f"compared{way}"]
    assert [verdicts(run) for run in runs] == PER_DAY
    assert {run["reason"] for run in runs} == {"finished"}
    line = f"Between crawls: compared {ALL} pages: 0 new, 1 changed, {ALL - 1} unchanged."
    assert runs[2]["compared"][0].endswith(line)


def test_only_what_is_fetched_is_compared(digests):
    """With skipping: index pages, and a page without items."""
    first, second = digests["compared_skipped"]
    assert verdicts(first) == PER_DAY[0]
    assert verdicts(second) == [0, 0, 4]
    assert {*second["asked"]} == {"front/1", "front/2", "leaf/1", "quiet/1", "broken/1"}


def test_a_field_that_is_not_left_out_is_compared(digests):
    """A time of the crawl, for instance: all pages with items have changed."""
    _, second = digests["all_fields"]
    assert verdicts(second) == [0, ALL - 2, 1]


@pytest.mark.parametrize("way", ["left_out", "left_out_own"])
def test_items_of_unchanged_pages_are_in_no_feed(digests, way):
    """Those of a page that has changed are, and all of them; also of a feed that waits pickled."""
    first, *later = digests[way]
    assert verdicts(first) == PER_DAY[0]
    assert {*first["items"]} == COMPARED - {"quiet/1"}
    assert sorted(later[0]["items"]) == KNOWN
    for day, run in enumerate(later[1:], 3):
        assert verdicts(run) == PER_DAY[2]
        assert run["items"] == [REWRITTEN[day]] * 2


def test_a_test_crawl_compares_and_changes_no_byte_of_the_memory(digests):
    """Two of them find what the crawl after them finds."""
    _, second, test, again, third = digests["compared_test"]
    assert [verdicts(run) for run in (test, again, third)] == [PER_DAY[2]] * 3
    assert test["memory"] == again["memory"] == second["memory"] != third["memory"]
    assert test["items"] == third["items"] == [REWRITTEN[3]] * 2
    assert "compared, items of unchanged pages left out, read-only" in test["start"][0]


def check_digests(runs, *, in_time=True):
    """Each day has the verdicts and the items of a crawl that was not killed. Of a kill that was
    not `in_time`, the round may have been over: then there is another one, in which nothing has
    changed."""
    for day, expected in enumerate(PER_DAY, 1):
        mine = [run for run in runs if run["feed"].endswith(f"-{day}")]
        *_, last = ends = [run for run in mine if run["reason"] is not None]
        assert len(mine) > 1
        assert {run["reason"] for run in ends} == {"finished"}
        again = [[0, 0, sum(expected)]] * (not in_time)
        assert all(verdicts(run) in [expected, *again] for run in ends)
        assert in_time or verdicts(ends[0]) in [expected, *again * (len(mine) > len(ends))]
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


@pytest.mark.parametrize("name", ["undelivered", "gzipped"])
def test_the_next_start_delivers_what_a_dying_process_has_not(stories, name):
    """The marks wait in the job, in whatever feed its items are."""
    *_, died, second = stories[name]
    assert died["status"] == 9
    failed = pages(*FAILING) | {"status/29"}
    assert {*second["asked"]} == found_on(2) | failed


def test_a_job_that_is_thrown_away_takes_no_page_with_it(stories):
    """Its feed has the items of all that the next crawl skips."""
    for number in range(THROWN_AWAY):
        *_, last = stories[f"thrown{number}"]
        assert {item_of(page) for page in details(2) - pages("error")} <= {*last["written"]}
        assert last["reason"] == "finished"


def check_fleet(runs):
    """Killed workers have marked no page whose items are not safe, and no page is lost."""
    asked, kept = Counter(runs["killed"]), runs["kept"]
    # others are fetched whenever a list leads to them
    sound = {page for page in details(1) if page.split("/")[0] in {"item", "moved", "posted"}}
    marked = sound & {*runs["marked"]}
    assert {item_of(page) for page in marked} <= {page for feed in kept.values() for page in feed}
    # what was fetched twice may be acknowledged by a worker whose feed is not safe
    by_one = {page for page in sound if asked[page] == asked[item_of(page)] == 1}
    safe = {page for page in by_one if item_of(page) in kept.get("plain.jsonl", ())}
    assert safe - marked <= {*runs["again"], *runs["next"]}
    check_digests_of_fleet(runs["digests"], marked, kept)
    assert {item_of(page) for page in details(2) - pages("error")} <= {*runs["written"]}
    assert {*runs["reasons"]} <= {"finished", "bloom_over"}
    assert marked.isdisjoint(runs["next"])


def check_digests_of_fleet(digests, needed, kept):
    """They are those of the items, of all pages that are marked and of index pages."""
    assert needed <= digests.keys()
    assert digests.keys().isdisjoint(pages("status", "raising", "torn", "error", "refused"))
    items = {page for feed in kept.values() for page in feed}
    for page, digest in digests.items():
        item = {"page": item_of(page)} | ({} if page.startswith("list") else {"day": 1})
        has_none = page in pages("empty", "dropped")
        assert digest == digest_of_items(*[] if has_none else [item]).hex(), page
        assert has_none or item["page"] in items
