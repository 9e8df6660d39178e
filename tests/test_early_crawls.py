"""Whole crawls with duplicates dropped early fetch and scrape what those of Scrapy do."""

import json
import os
import subprocess
import sys

import pytest

from tests.early_crawls import VARIANTS
from tests.small_site import PACKAGE

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")

OFF = {
    "False": "BLOOM_DROP_EARLY is False",
    "a handler": "tests.early_crawls.heard handles request_dropped",
    "rewriting, between": "tests.early_crawls.Rewriting is between the spider and the engine",
    "own fingerprints": "the fingerprinter is tests.early_crawls.FragmentFingerprinter",
}
# with these the package takes redirects for new that Scrapy's dupefilter drops
REDIRECTS = {"own fingerprints", "wider identity", "wider identity, follow_new"}
# Scrapy counts these otherwise: links that are too deep, and links of several rules
COUNTED_OTHERWISE = {"depth limit", "new rules"}
NAMES = list(VARIANTS)


@pytest.mark.parametrize("names", [NAMES[:9], NAMES[9:15], NAMES[15:]], ids=lambda names: names[0])
def test_pages_and_items_are_those_of_scrapy(names):
    """However a spider comes to its requests, with middlewares that rewrite URLs, fragments,
    `verbatim_url`, retries, redirects and fingerprinters of all kinds: each page is fetched
    as often, and each item scraped as often, as with stock Scrapy."""
    command = [sys.executable, "-c", "from tests.early_crawls import main; main()", *names]
    ended = subprocess.run(command, cwd=PACKAGE, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = json.loads(ended.stdout)
    assert list(results) == names
    for name, found in results.items():
        early, late, stock = found["early"], found["late"], found["stock"]
        assert {run["reason"] for run in found.values()} == {"finished"}, name
        assert late["duplicates"] == "not dropped early, BLOOM_DROP_EARLY is False", name
        expected = f"not dropped early, {OFF[name]}" if name in OFF else "dropped early"
        assert early["duplicates"] == expected, name
        assert early["given"] == late["given"], name
        assert early["items"] == late["items"], name
        assert len(early["given"]) > 40, name
        if name not in COUNTED_OTHERWISE:
            assert early["filtered"] == late["filtered"] > 100, name
        if name not in REDIRECTS:
            assert early["given"] == stock["given"], name
            assert early["items"] == stock["items"], name
            assert late["filtered"] == stock["filtered"], name
