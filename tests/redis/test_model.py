"""The protocol loses no page, ends, and acknowledges nobody else's claim; without any one
of its rules it does not."""

import pytest

from tests.redis.model import RULES, World
from tests.seeded import seed_of

SEED = seed_of("BUDGET_MODEL_SEED")
SEEDS = 400
SEEDS_WITHOUT = 20_000
RARE = {
    "a worker is busy before its first claim": 10_302,
    "acknowledge after the children's answers": 983,
}
"""The first crawls in which the model without these rules goes wrong."""


@pytest.mark.slow
def test_no_page_is_lost_and_every_crawl_ends():
    """Hundreds of crawls under kills, pauses, lost replies, aborted scripts and full servers."""
    wrong = {seed: what for seed in range(SEEDS) if (what := World(seed).run())}
    assert wrong == {}


def require_budgets(seed, crawls):
    """Run so many crawls with a budget, aborted calls, lost answers and killed workers."""
    print("BUDGET_MODEL_SEED", seed)
    kinds = ("budgets", "abort", "kill", "lose", "pause", "rounds", "failure", "holds", "delays")
    worlds = {each: World(each, only=kinds) for each in range(seed, seed + crawls)}
    assert {each: what for each, world in worlds.items() if (what := world.run())} == {}
    assert sum(world.server.aborted > 0 for world in worlds.values()) > crawls / 2


@pytest.mark.slow
def test_no_budget_is_exceeded():
    """In hundreds of crawls; and all of it is used, but for one page for each aborted call."""
    require_budgets(SEED, SEEDS)


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_needed(rule):
    """The model without it is found out, in as many crawls as that takes."""
    for seed in (RARE.get(rule, 0), *range(SEEDS_WITHOUT)):
        if World(seed, [rule]).run():
            return
    pytest.fail(f"{SEEDS_WITHOUT} seeds went well without: {rule}")
