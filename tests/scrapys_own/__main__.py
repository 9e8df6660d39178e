"""Scrapy's own tests, with our add-on and a JOBDIR in every crawler, and with our scheduler in the
place of Scrapy's where they ask for none: `make scrapys-own`.

What fails with them is run once more, then without them, then with a JOBDIR alone. The exit
status is 1 if a test fails only with ours and is not explained below, or if one that is
explained does not fail.

python -m tests.scrapys_own [-n WORKERS] [--reactor REACTOR] [test files or node ids]
"""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests import suite

# Tests that have to fail with ours, each with its reason. They are run apart: some break off
# and leave a crawl behind, which others would stumble over.
_ADDONS = "asserts which add-ons there are"
EXPLAINED = {
    "addons.py::TestAddonManager::test_load_settings_order": _ADDONS,
    "addons.py::TestAddonManager::test_logging_message": _ADDONS,
    "addons.py::TestAddonManager::test_no_update_settings": _ADDONS,
    "addons.py::TestAddonManager::test_notconfigured": _ADDONS,
    "addons.py::TestAddonManager::test_notconfigured_with_args": _ADDONS,
    "dupefilters.py::TestRFPDupeFilter::test_fingerprints_deprecation": (
        "reads RFPDupeFilter's deprecated set of fingerprints"
    ),
    "dupefilters.py::TestRFPDupeFilter::test_log_debug[None]": (
        "asserts that the logger is scrapy.dupefilters"
    ),
    "dupefilters.py::TestRFPDupeFilter::test_request_fingerprint": (
        "has no engine, which tells redirects from links where an identity is not Scrapy's"
    ),
    "dupefilters.py::TestRFPDupeFilter::test_seenreq_truncated": (
        "reads RFPDupeFilter's file requests.seen"
    ),
    "engine.py::TestEngine::test_start_request_processing_exception": (
        "expects a fingerprinter that raises to end the crawl; ours logs it once and takes"
        " Scrapy's fingerprint"
    ),
    "engine_close_spider.py::test_exception_scheduler": (
        "deletes the scheduler's attribute dqs, which is a property of ours"
    ),
    "feedexport.py::TestFeedExport::test_stats_file_failed": (
        "makes FileFeedStorage.store fail, which ours does not need to write a local file"
    ),
    "feedexport_batch.py::TestBatchDeliveries::test_batch_delivered_when_full": (
        "expects a full batch at once; ours delivers it with the next commit, 0.1 s later"
    ),
    "scheduler.py::test_scheduler_without_crawler": (
        "builds a scheduler without a crawler, which tells ours what is in progress"
    ),
}
EXPLAINED = {f"tests/test_{test}": why for test, why in EXPLAINED.items()}
# What these find was left behind by other tests: to run them alone tells nothing.
LEFT_BEHIND = "tests/test_zz_resources.py"

# The files whose tests crawl, for the reactors that are not the default one.
CRAWLING = [
    f"tests/test_{name}.py"
    for name in (
        *("closespider", "crawl", "crawler", "engine", "engine_close_spider", "engine_loop"),
        *("feedexport", "pipelines", "request_left", "scheduler", "spider_start"),
        "spidermiddleware_output_chain",
    )
]
LANES = {"asyncio": ["tests"], "default": CRAWLING, "none": CRAWLING}


def main():
    """Run the lanes and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.scrapys_own")
    parser.add_argument("-n", dest="workers", type=int, default=2, help="processes (2)")
    parser.add_argument("--reactor", choices=LANES, help="one of the lanes only")
    parser.add_argument("tests", nargs="*", help="test files or node ids instead of all")
    options = parser.parse_args()
    checkout = suite.fetch("scrapy", "scrapy", Path(sys.prefix))
    reactors = [options.reactor] if options.reactor else LANES
    good = [
        check(checkout, reactor, options.tests or LANES[reactor], options.workers)
        for reactor in reactors
    ]
    return 0 if all(good) else 1


def check(checkout, reactor, tests, workers):
    """Run `tests` with ours, say what fails and why, and return True if nothing is for us
    to explain and the filter was in use."""
    plugin = "twisted" if reactor == "none" else "asyncio"
    options = [f"-n{workers}", f"--reactor={reactor}", "-p", f"no:{plugin}"]
    options += ["-m", "not requires_internet", "--timeout=120"]
    with tempfile.TemporaryDirectory(prefix="scrapys-own-") as place:
        jobs = Path(place)

        def outcomes(arm, tests, without=()):
            plugin = ["-p", "our_scheduler"] if arm is suite.OURS else []
            return suite.run(checkout, arm, jobs, tests, [*options, *plugin], without)

        first = outcomes(suite.OURS, tests, without=EXPLAINED)
        crawls = sum(1 for _ in jobs.glob("*/bloom"))
        explained = EXPLAINED if tests == LANES["asyncio"] else {}
        reasons = suite.compare(outcomes, suite.failing(first), explained)

    total = Counter(first.values())
    print(f"\n{checkout.name}, reactor {reactor}: {dict(total)} with {suite.OURS.name};")
    print(f"{crawls:,} jobs with a filter")
    for test, reason in reasons.items():
        if reason == suite.PASSED_AGAIN and test.startswith(LEFT_BEHIND):
            reason = reasons[test] = suite.OURS_ALONE
        print(f"  {test}\n    {reason}")
    if not crawls:
        print("No crawl had our filter: the add-on did not get into the crawlers.")
    return bool(crawls) and not suite.faults(reasons)


if __name__ == "__main__":
    sys.exit(main())
