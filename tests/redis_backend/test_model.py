"""The protocol loses no page, ends, and acknowledges nobody else's claim; without any one
of its rules it does not."""

import pytest

from tests.redis_backend.model import RULES, World

SEEDS = 400
SEEDS_WITHOUT = 20_000


def test_no_page_is_lost_and_every_crawl_ends():
    """Hundreds of crawls under kills, pauses, lost replies, aborted scripts, and a server that
    refuses or goes back in time; some with rounds, pages in memory, or a list of seeds."""
    wrong = {seed: what for seed in range(SEEDS) if (what := World(seed).run())}
    assert wrong == {}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_needed(rule):
    """The model without it is found out."""
    for seed in range(SEEDS_WITHOUT):
        if World(seed, [rule]).run():
            return
    pytest.fail(f"{SEEDS_WITHOUT} seeds went well without: {rule}")
