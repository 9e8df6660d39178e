"""A calendar without an end, in a budget: set TRAP_SEED to repeat a run."""

import sys

import pytest

from tests.seeded import seed_of, told


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")
def test_a_trap_takes_its_budget_and_no_other_page():
    """Takes as long as six processes do: exactly so many days are asked, each other page is, and
    what is left of the calendar is kept, with the pattern that is full."""
    (found,) = told("tests.world.trap", seed=seed_of("TRAP_SEED")).values()
    assert found.pop("capped") > 50
    assert found == {
        "crawl": "job",
        "pages": 150,
        "calendar": 40,
        "lost": [],
        "asked and capped": [],
        "why": ["capped: BLOOM_BUDGET has no room for pattern '*/calendar/*'"],
        "kills": 5,
        "stat": True,
    }
