"""Stored requests are crafted, a job's file is damaged, or a key of a crawl in Redis: no command,
no start and no worker breaks, hangs or grows of it."""

import json

import pytest
import scrapy

from tests.redis.server import missing
from tests.seeded import run_module, seed_of

SEED = seed_of("DAMAGES_SEED")
pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=str(missing())),
    pytest.mark.skipif(scrapy.version_info < (2, 15), reason="get_crawler needs a reactor there"),
]


@pytest.mark.parametrize(
    ("module", "words", "least", "seed"),
    [
        ("crawl", ("--payloads", 2, "--damages", 4), 8, 7000),
        ("redis", ("--damages", 4), 4, 3535),
        pytest.param(
            *("crawl", ("--payloads", 99, "--damages", 200), 280, SEED), marks=pytest.mark.torture
        ),
        pytest.param("redis", ("--damages", 200), 200, SEED, marks=pytest.mark.torture),
    ],
)
@pytest.mark.slow
def test_payloads_and_damages(module, words, least, seed):
    """In many jobs and crawls, which takes half a minute: a healthy page beside them is fetched, at
    once or when the key that a worker names is mended, or a refused start changes nothing."""
    run = run_module(f"tests.{module}.damages", *words, seed=seed)
    assert run.returncode == 0
    told = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    assert len(told) >= least
    assert [each for each in told if each["wrong"]] == []
