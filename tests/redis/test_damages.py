"""A key of a crawl in Redis is damaged: no command and no worker breaks, hangs or grows of it."""

import json

import pytest

from tests.redis.server import missing
from tests.seeded import run_module, seed_of

SEED = seed_of("DAMAGES_SEED")


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=str(missing()))
@pytest.mark.parametrize(
    ("count", "seed"), [(4, 3535), pytest.param(200, SEED, marks=pytest.mark.torture)]
)
def test_random_damages(count, seed):
    """A healthy page is fetched, at once or when the key that the worker names is mended."""
    run = run_module("tests.redis.damages", "--damages", count, seed=seed)
    assert run.returncode == 0
    told = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    assert len(told) == count
    assert [each for each in told if each["wrong"]] == []
