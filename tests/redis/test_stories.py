"""No page is lost, asked too early or too often, and each crawl ends, whatever happens to workers,
calls, answers and the server. Set STORY_SEED to repeat a run."""

import pytest

from scrapy_bloom.redis import desk
from tests.redis.story import Story
from tests.redis.workers import lobby_from
from tests.seeded import seed_of

pytestmark = pytest.mark.usefixtures("few_shards")

SEED = seed_of("STORY_SEED")
STORIES = [
    *("orders counters grows", "lose fail", "abort fail grows", "abort counters kill slots grows"),
    *("kill sleep fail grows", "back fail kill", "dictionaries back abort", "dead drops lose"),
    *("budgets lose fail", "budgets abort fail", "budgets kill", "budgets abort kill lose"),
    *("holds delays hands", "holds delays abort kill", "drops holds delays lose"),
    *("drops fail hands counters", "drops fail hands abort"),
    "dead holds delays abort kill sleep hands slots",
    "drops budgets fail delays",
    "abort lose kill sleep back fail budgets holds delays dead drops hands counters dictionaries",
]
"""What happens in each."""


@pytest.mark.parametrize(
    "numbers", [range(2), pytest.param(range(2, 200), marks=pytest.mark.torture)]
)
@pytest.mark.parametrize("kinds", STORIES)
def test_no_page_is_lost(join, redis_server, monkeypatch, kinds, numbers):
    """In several stories: each is fetched, has failed or is over the budget of its slot, and each
    crawl ends. Some slots, or all, share a lobby."""
    monkeypatch.setattr(desk, "AT_ONCE", 3)
    for number in numbers:
        with monkeypatch.context() as patch:
            lobby_from(patch, (0, 3, 256)[(SEED + number) % 3])
            story = Story(join, redis_server, SEED + number, kinds)
            patch.setattr(desk.RedisDesk, "_pause", lambda _, story=story: story.pause())
            story.tell()
        redis_server.command("FLUSHALL")
