"""A thousand crawls that die in every way: `make torture` (an hour or less).

What it prints last are the totals; the last result stands in the README.
"""

import pytest

from scrapy_bloom import ScalableBloomFilter
from tests.crawl.test_kills import MIXED, SEED, TORTURE, torture
from tests.delta.test_crawls import check as check_days
from tests.delta.test_crawls import check_digests, check_fleet, item_of
from tests.delta.test_crawls import pages as error_pages
from tests.delta.test_crawls import tell as day_after_day
from tests.redis.server import PACKAGES, Server, inside
from tests.redis.test_fleet import assert_whole, fleet
from tests.test_early_crawls import crawls, require_same
from tests.world.delta import details
from tests.world.early import VARIANTS

pytestmark = pytest.mark.torture


def test_a_thousand_random_kills():
    """And other stops between them, one to six a crawl: each item is in each feed once."""
    result = torture("kills", "--count", 1000)
    assert result["kills"] >= 1000
    assert result["wrong"] == {}


def test_crawls_that_mix_it_all():
    """Two hundred kills: every state, orders, budgets, holds, delays, settings that change."""
    result = torture("kills", "--count", 200, module=MIXED)
    assert result["kills"] >= 200
    assert result["wrong"] == {}


def test_a_power_cut_at_each_sync():
    """Of a crawl that mixes it all; what is synced there is on the disk, or not yet."""
    result = torture("cuts", "--pages", 30, module=MIXED)
    assert (
        0 < result["crawls"] - result["kills"] <= 3
    )  # as many as were at work when one had no cut
    assert result["wrong"] == {}


def test_kill_points():
    """Before and after the first of each call, and four later ones."""
    assert torture("points", "--count", 4)["wrong"] == {}


def test_failing_calls():
    """Five hundred calls that fail, once or for good, and sixty disks that are too small."""
    result = torture("faults", "--count", 500)
    assert result["wrong"] == {}
    assert result["kills"] == 0
    assert torture("short", "--count", 60)["wrong"] == {}


def test_a_million_absent_keys_of_an_exact_filter():
    """In a filter grown from 1,000 to a million keys at an error rate of 0.5."""
    tested = ScalableBloomFilter(1_000, 0.5, exact=True)
    for number in range(1_000_000):
        assert not tested.add(b"key %d" % number)
    assert not any(b"absent %d" % number in tested for number in range(1_000_000))
    assert all(b"key %d" % number in tested for number in range(1_000_000))
    tested.check()


def test_crawls_day_after_day():
    """A hundred, killed on each of three days, in one job or in many, or thrown away."""
    for crawl in day_after_day("kills", "--count", 100).values():
        check_days(crawl)
    for *_, last in day_after_day("thrown_away", "--count", 30).values():
        assert {item_of(page) for page in details(2) - error_pages("error")} <= {*last["written"]}


def test_what_has_changed_day_after_day():
    """Eighty crawls, killed on each of four days, at any time."""
    for crawl in day_after_day("digest_kills", "--count", 80).values():
        check_digests(crawl, in_time=False)


@pytest.mark.parametrize("package", PACKAGES)
def test_workers_that_are_thrown_away(package, tmp_path, monkeypatch):
    """Thirty fleets of three that share a delta store, on each server."""
    if not (server := inside(package)):
        pytest.skip(f"the package {package} is not installed")
    monkeypatch.setenv("REDIS_SERVER", server)
    for runs in fleets_thrown_away(tmp_path, monkeypatch, "--count", 30).values():
        check_fleet(runs)


def fleets_thrown_away(tmp_path, monkeypatch, *arguments):
    """Return what became of fleets, by name."""
    server = Server(tmp_path)
    monkeypatch.setenv("DELTA_REDIS", server.url)
    try:
        return day_after_day("fleet", *arguments)
    finally:
        server.stop()


def test_a_broken_delta_store_is_noticed():
    """With the mutant a job that is thrown away takes pages with it."""
    broken = ("--count", 30, "--mutant", "marked_before_the_commit")
    needed = {item_of(page) for page in details(2) - error_pages("error")}
    for _ in range(12):
        told = day_after_day("thrown_away", *broken)
        if any(not needed <= {*last["written"]} for *_, last in told.values()):
            return
    pytest.fail("no crawl has lost a page")


@pytest.mark.parametrize(
    ("mutant", "module", "arguments"),
    [
        ("mark_before_commit", TORTURE, ("kills", "--count", 10, "--feeds", "all.jl")),
        ("header_not_synced", MIXED, ("cuts", "--count", 15, "--pages", 20)),
        (
            "told_after_the_commit",
            TORTURE,
            ("points", "--count", 6, "--names", "sql COMMIT", "--pages", 8),
        ),
        (
            "acknowledged_before_the_items_are_final",
            TORTURE,
            ("kills", "--count", 2, "--feeds", "all.jl"),
        ),
    ],
)
def test_a_broken_package_is_noticed(mutant, module, arguments):
    """With the mutant pages or items are lost, so the tests above test something."""
    arguments = (*arguments, "--mutant", mutant)
    seeds = range(SEED, SEED + 12)
    assert any(torture(*arguments, module=module, seed=seed)["wrong"] for seed in seeds)


def test_crawls_with_duplicates_dropped_early():
    """All of them, in every way in which a spider comes to its requests."""
    results = crawls()
    assert results.keys() == VARIANTS.keys()
    require_same(results)


def test_a_thousand_kills_of_many_workers():
    """Three at a time on one Redis, now and then all at once."""
    reports = fleet("kills", "--count", 150).values()
    for report in reports:
        assert_whole(report)
    assert sum(report["kills"] for report in reports) >= 1000


@pytest.mark.parametrize("package", PACKAGES)
def test_workers_on_each_server(package, monkeypatch):
    """Killed, stopped, and on a Cluster, and servers that restart."""
    if not (server := inside(package)):
        pytest.skip(f"the package {package} is not installed")
    monkeypatch.setenv("REDIS_SERVER", server)
    for report in fleet("kills", "cluster", "restarts", "goes_back", "--count", 5).values():
        assert_whole(report)
