"""Whole crawls with duplicates dropped early fetch and scrape what those of Scrapy do."""

import os

import pytest
import scrapy

from tests.fakes import HAS_SCOPES
from tests.seeded import told
from tests.world.early import ONE, VARIANTS

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")

# Scrapy counts these otherwise: links that are too deep, and links of several rules
COUNTED_OTHERWISE = {"depth limit", "new rules"}


@pytest.mark.slow
def test_pages_and_items_are_those_of_scrapy():
    """In many crawls: however a spider comes to its requests, with middlewares that rewrite URLs,
    fragments, `verbatim_url`, retries, redirects and fingerprinters of all kinds. Each page is
    fetched, and each item in the feed, as often as without, or at least once if it was killed."""
    # with Scrapy 2.14 or scopes two crawls without the add-on differ, too, where the order counts
    has_one = scrapy.version_info >= (2, 15) and not HAS_SCOPES
    ordered = {name for name, each in VARIANTS.items() if each.settings.items() >= ONE.items()}
    names = [name for name in VARIANTS if has_one or name not in ordered]
    results = told("tests.world.early", *names, "--beside", 2, seed=0)
    assert {*results} == {*names}
    for name, found in results.items():
        early, without = found["early"], found["without"]
        assert early["duplicates"] == VARIANTS[name].said, name
        assert early["reason"] == without["reason"] == "finished", name
        killed = early["deaths"] > 0
        assert early["deaths"] == len(VARIANTS[name].kills), name
        assert early["given"].keys() == without["given"].keys(), name
        assert killed or early["given"] == without["given"], name
        assert early["items"] == without["items"], name
        assert len(early["given"]) > 40, name
        if not killed and name not in COUNTED_OTHERWISE:
            assert early["filtered"] == without["filtered"] > 100, name
