"""Stored requests are crafted, or a job's file is damaged: no command and no start breaks, hangs or
grows of it."""

import json
import os

import pytest
import scrapy

from tests.redis.server import missing
from tests.seeded import run_module, seed_of

SEED = seed_of("DAMAGES_SEED")
pytestmark = [
    pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS"),
    pytest.mark.skipif(bool(missing()), reason=str(missing())),
    pytest.mark.skipif(scrapy.version_info < (2, 15), reason="get_crawler needs a reactor there"),
]


@pytest.mark.parametrize(
    ("payloads", "damages", "seed"),
    [(2, 4, 7000), pytest.param(99, 200, SEED, marks=pytest.mark.torture)],
)
@pytest.mark.slow
def test_payloads_and_damages(payloads, damages, seed):
    """In many jobs: a healthy page beside them is fetched, or a refused start changes nothing."""
    words = ("--payloads", payloads, "--damages", damages)
    run = run_module("tests.crawl.damages", *words, seed=seed)
    assert run.returncode == 0
    told = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    assert len(told) >= 2 * min(payloads, 40) + damages
    assert [each for each in told if each["wrong"]] == []
