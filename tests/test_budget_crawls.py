"""A calendar without an end, in a budget: crawls of a local site that are killed five times.

Set TRAP_SEED to repeat a run.
"""

import sys

import pytest

from tests.redis.server import missing
from tests.seeded import seed_of, told

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks"),
]
WITH_REDIS = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.mark.parametrize("story", ["job", pytest.param("workers", marks=WITH_REDIS)])
def test_a_trap_takes_its_budget_and_no_other_page(story):
    """Takes as long as seven processes do: exactly so many days are asked, each other page is, and
    what is left of the calendar is kept, with the pattern that is full."""
    (found,) = told("tests.world.trap", story, seed=seed_of("TRAP_SEED")).values()
    assert found.pop("capped") > 50
    assert found == {
        "crawl": story,
        "pages": 150,
        "calendar": 40,
        "lost": [],
        "asked and capped": [],
        "why": ["capped: BLOOM_BUDGET has no room for pattern '*/calendar/*'"],
        "kills": 5,
        "stat": True,
    }
