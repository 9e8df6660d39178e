"""Scrapy's own tests, with our add-on and a JOBDIR in every crawler: `make scrapys-own`.

What fails with them is run once more, then without them, then with a JOBDIR alone. The exit
status is 1 if a test fails only with ours and is not explained below.

python -m tests.scrapys_own [-n WORKERS] [--reactor REACTOR] [test files or node ids]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

from tests.scrapys_own.suite import OURS, STOCK, STOCK_WITH_JOBDIR, Arm, fetch, run

# Tests that fail with ours and have to, each with its reason.
EXPLAINED = {
    "tests/test_addons.py::TestAddonManager::*": "asserts which add-ons there are",
    "tests/test_dupefilters.py::TestRFPDupeFilter::test_seenreq_truncated": (
        "reads RFPDupeFilter's file requests.seen"
    ),
    "tests/test_dupefilters.py::TestRFPDupeFilter::test_log_debug?None?": (
        "asserts that the logger is scrapy.dupefilters"
    ),
    "tests/test_dupefilters.py::TestRFPDupeFilter::test_fingerprints_deprecation": (
        "reads RFPDupeFilter's deprecated set of fingerprints"
    ),
    "tests/test_engine.py::TestEngine::test_start_request_processing_exception": (
        "expects a fingerprinter that raises to end the crawl; ours logs it once and takes"
        " Scrapy's fingerprint"
    ),
    "tests/test_engine_close_spider.py::test_exception_scheduler": (
        "deletes the scheduler's attribute dqs and expects close to fail; ours does not need it"
    ),
}

# The files whose tests crawl, for the reactors that are not the default one.
CRAWLING = [
    "tests/test_closespider.py",
    "tests/test_crawl.py",
    "tests/test_crawler.py",
    "tests/test_engine.py",
    "tests/test_engine_close_spider.py",
    "tests/test_engine_loop.py",
    "tests/test_feedexport.py",
    "tests/test_pipelines.py",
    "tests/test_request_left.py",
    "tests/test_scheduler.py",
    "tests/test_spider_start.py",
    "tests/test_spidermiddleware_output_chain.py",
]
LANES = {"asyncio": ["tests"], "default": CRAWLING, "none": CRAWLING}


def main() -> int:
    """Run the lanes and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.scrapys_own")
    parser.add_argument("-n", dest="workers", type=int, default=2, help="processes (2)")
    parser.add_argument("--reactor", choices=LANES, help="one of the lanes only")
    parser.add_argument("tests", nargs="*", help="test files or node ids instead of all")
    options = parser.parse_args()
    suite = fetch(Path(sys.prefix))
    reactors = [options.reactor] if options.reactor else list(LANES)
    good = [
        check(suite, reactor, options.tests or LANES[reactor], options.workers)
        for reactor in reactors
    ]
    return 0 if all(good) else 1


def check(suite: Path, reactor: str, tests: list[str], workers: int) -> bool:
    """Run `tests` with ours, say what fails and why, and return True if all of it is
    explained and the filter was in use."""
    with tempfile.TemporaryDirectory(prefix="scrapys-own-") as place:
        jobs = Path(place)

        def outcomes(arm: Arm, tests: list[str]) -> dict[str, str]:
            print(f"\n== {suite.name}, reactor {reactor}, {arm.name}", flush=True)
            return run(suite, arm, jobs, reactor, tests, workers) if tests else {}

        first = outcomes(OURS, tests)
        crawls = sum(1 for _ in jobs.glob("*/bloom"))
        failed = [test for test, outcome in first.items() if outcome == "failed"]
        again = failing(outcomes(OURS, failed))
        anyway = failing(outcomes(STOCK, sorted(again)))
        with_jobdir = failing(outcomes(STOCK_WITH_JOBDIR, sorted(again - anyway)))

    total = Counter(first.values())
    print(f"\n{suite.name}, reactor {reactor}: {total['passed']:,} passed with {OURS.name},")
    print(f"{total['skipped']:,} skipped, {len(failed):,} failed; {crawls:,} jobs with a filter")
    unexplained = 0
    for test in failed:
        reason = explanation(test, again, anyway, with_jobdir)
        unexplained += not reason
        print(f"  {test}\n    {reason or 'FAILS ONLY WITH OURS'}")
    if not crawls:
        print("No crawl had our filter: the add-on did not get into the crawlers.")
    return bool(crawls) and not unexplained


def failing(outcomes: dict[str, str]) -> set[str]:
    """Return the tests that failed."""
    return {test for test, outcome in outcomes.items() if outcome == "failed"}


def explanation(test: str, again: set[str], anyway: set[str], with_jobdir: set[str]) -> str:
    """Return why `test` failed in the first run, or nothing if it is for us to explain."""
    if test not in again:
        return "passed the second time"
    if test in anyway:
        return f"fails with {STOCK.name}, too"
    if test in with_jobdir:
        return f"fails with {STOCK_WITH_JOBDIR.name}, too"
    return next((reason for name, reason in EXPLAINED.items() if fnmatch(test, name)), "")


if __name__ == "__main__":
    sys.exit(main())
