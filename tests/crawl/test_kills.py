"""Crawls that die in every way are resumed, and have lost no page.

Each test runs `tests.crawl.torture` in a process of its own, which forks the crawls. Set
DURABLE_SEED to repeat a run. `make torture` has a thousand random kills, of all kinds of pages
and requests.

The torture breaks the scheduler on purpose, too. What each mutant does, and which test
notices it (run by hand with `python -m tests.crawl.torture --mutant …`):

- `mark_before_commit`: random kills, and a kill before any commit. The filter knows
  requests whose rows were never written.
- `delete_on_pop`: random kills, and a kill after any commit. What was in flight is gone.
- `acknowledge_at_the_end_of_the_callback`: a kill right after a commit. Random kills
  seldom notice: the requests that the callback yielded are enqueued some milliseconds
  after its generator ended, and mostly share its commit.
- `noted_before_the_commit`: a kill before any commit. The job is refused, though it is whole.
- `header_not_synced`: power cuts. A filter without a header is refused, and the job lost.
"""

import json
import sys

import pytest
import scrapy

from tests.seeded import run_module, seed_of

SEED = seed_of("DURABLE_SEED")
CONCURRENCY = 8
IN_PROGRESS = 2 if scrapy.version_info >= (2, 15) else 4
"""Times as many requests as are downloaded at once; before Scrapy 2.15 more callbacks wait."""

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="forks, and reads /proc"
)


MIXED = "tests.crawl.mixed_crawls"


def torture(*arguments, module="tests.crawl.torture", seed=SEED):
    """Return what a run prints in the end."""
    run = run_module(module, "--kills", 0, *arguments, seed=seed)
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.slow
def test_only_what_was_in_flight_or_uncommitted_is_repeated():
    """In killed crawls: of what was answered before the last commit, only what was in progress."""
    kinds = ("moved", "gone", "raising", "swapped")
    result = torture("--kills", 4, "--pages", 50, "--kinds", *kinds)
    assert result["kills"] >= 4
    assert result["odd"] == []
    assert result["stale"] <= result["kills"] * (IN_PROGRESS * CONCURRENCY + 2)


@pytest.mark.slow
def test_no_page_is_lost_wherever_the_process_dies():
    """A crawl each: after the first of each kind of call on the database, on files and on bits."""
    result = torture("--points", 0, "--pages", 10, "--sides", "after")
    assert result["killed"] >= 25
    assert result["odd"] == []


@pytest.mark.slow
def test_no_page_is_lost_around_any_commit():
    """Before and after each commit of a small crawl: two crawls for each."""
    result = torture("--points", 100, "--names", "sql COMMIT", "--pages", 8)
    assert result["killed"] >= 8
    assert result["odd"] == []


@pytest.mark.slow
def test_no_delayed_page_is_lost_or_early():
    """With half of the pages delayed, over kills: crawls that wait."""
    result = torture("--kills", 3, "--pages", 40, "--later", 0.5)
    assert result["kills"] >= 3
    assert result["odd"] == []


@pytest.mark.slow
def test_nothing_is_lost_or_twice_where_all_is_mixed():
    """Requests in every state, with orders and other settings at each start of many crawls."""
    result = torture("--kills", 2, "--pages", 40, module=MIXED)
    assert result["kills"] >= 2
    assert result["wrong"] == []


@pytest.mark.slow
def test_no_page_is_lost_by_a_power_cut():
    """Whatever the disk has of what was not synced, each of many jobs is resumed in full."""
    result = torture("--cuts", 4, "--pages", 40)
    assert result["kills"] >= 4
    assert result["odd"] == []


@pytest.mark.slow
def test_no_page_is_lost_by_failing_calls():
    """A crawl each: where a call fails, once or for good, the run ends, the next has the rest."""
    result = torture("--faults", 8)
    assert result["crawls"] == 8
    assert result["odd"] == []
    assert result["killed"] == 0


@pytest.mark.slow
def test_no_page_is_lost_on_a_disk_that_is_too_small():
    """Where files cannot grow any more, the same holds, in whole crawls."""
    result = torture("--short", 2, "--pages", 60)
    assert result["odd"] == []
    assert result["killed"] == 0
