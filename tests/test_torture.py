"""A thousand crawls that die in every way: `make torture` (an hour or less).

What it prints last are the totals; the last result stands in docs/durability.md.
"""

import itertools

import pytest

from scrapy_bloom import ScalableBloomFilter
from tests.crawl.test_kills import SEED, torture
from tests.delta.test_crawls import check as check_days
from tests.delta.test_crawls import check_digests, check_fleet, item_of
from tests.delta.test_crawls import pages as error_pages
from tests.delta.test_crawls import tell as day_after_day
from tests.redis.server import PACKAGES, inside
from tests.redis.test_fleet import assert_whole, fleet
from tests.world.delta import details

pytestmark = pytest.mark.torture


def test_a_thousand_random_kills():
    """And other stops between them, one to six a crawl: each item is in each feed once."""
    result = torture("kills", "--count", 1000)
    assert result["kills"] >= 1000
    assert result["wrong"] == {}


def test_a_power_cut_at_each_sync():
    """Of a crawl; what is synced there is on the disk, or not yet."""
    result = torture("cuts", "--pages", 30)
    # as many as were at work when one had no cut
    assert 0 < result["crawls"] - result["kills"] <= 3
    assert result["wrong"] == {}


def test_kill_points():
    """Before and after the first of each call, and four later ones."""
    assert torture("points", "--count", 4)["wrong"] == {}


def test_failing_calls():
    """Five hundred calls that fail, once or for good, and sixty disks that are too small."""
    for story, count in (("faults", 500), ("short", 60)):
        result = torture(story, "--count", count)
        assert result["wrong"] == {}
        assert result["kills"] == 0


def test_a_million_absent_keys_of_an_exact_filter():
    """In a filter grown from 1,000 to a million keys at an error rate of 0.5."""
    tested = ScalableBloomFilter(1_000, 0.5, exact=True)
    for number in range(1_000_000):
        assert not tested.add(b"key %d" % number)
    assert not any(b"absent %d" % number in tested for number in range(1_000_000))
    assert all(b"key %d" % number in tested for number in range(1_000_000))
    tested.check()


NEEDED = {item_of(page) for page in details(2) - error_pages("error")}


def test_crawls_day_after_day():
    """A hundred, killed on each of three days, in one job or in many, or thrown away; and eighty
    that compare pages, killed on each of four days, at any time."""
    for crawl in day_after_day("kills", "--count", 100).values():
        check_days(crawl)
    for *_, last in day_after_day("thrown_away", "--count", 30).values():
        assert {*last["written"]} >= NEEDED
    for crawl in day_after_day("digest_kills", "--count", 80).values():
        check_digests(crawl, in_time=False)


def test_a_broken_delta_store_is_noticed():
    """With the mutant a job that is thrown away takes pages with it."""
    broken = ("thrown_away", "--count", 30, "--mutant", "marked_before_the_commit")
    crawls = itertools.chain.from_iterable(day_after_day(*broken).values() for _ in range(12))
    assert any(not {*last["written"]} >= NEEDED for *_, last in crawls)


ONE_FEED = ("--feeds", "all.jl")


@pytest.mark.parametrize(
    ("mutant", "arguments"),
    [
        ("mark_before_commit", ("kills", "--count", 10, *ONE_FEED)),
        ("header_not_synced", ("cuts", "--count", 15, "--pages", 20)),
        ("told_after_the_commit", ("points", "--count", 6, "--names", "sql COMMIT", "--pages", 8)),
        ("acknowledged_before_the_items_are_final", ("kills", "--count", 2, *ONE_FEED)),
    ],
)
def test_a_broken_package_is_noticed(mutant, arguments):
    """With the mutant pages or items are lost, so the tests above test something."""
    arguments = (*arguments, "--mutant", mutant)
    seeds = range(SEED, SEED + 12)
    assert any(torture(*arguments, seed=seed)["wrong"] for seed in seeds)


def test_a_thousand_kills_of_many_workers():
    """Three at a time on one Redis, now and then all at once."""
    reports = fleet("kills", "--count", 150).values()
    for report in reports:
        assert_whole(report)
    assert sum(report["kills"] for report in reports) >= 1000


@pytest.mark.parametrize("package", PACKAGES)
def test_workers_on_each_server(package, request, monkeypatch):
    """Killed, stopped, on a Cluster, with restarts; and 30 fleets of three share a delta store."""
    if not (server := inside(package)):
        pytest.skip(f"the package {package} is not installed")
    monkeypatch.setenv("REDIS_SERVER", server)
    for report in fleet("kills", "cluster", "restarts", "goes_back", "--count", 5).values():
        assert_whole(report)
    monkeypatch.setenv("DELTA_REDIS", request.getfixturevalue("own_server").url)
    for runs in day_after_day("fleet", "--count", 30).values():
        check_fleet(runs)
