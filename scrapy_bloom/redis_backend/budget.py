"""The budget of a crawl in Redis: how many requests of each download slot its round may have. The
counting is in `lua/include/budget.lua`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ..errors import SharedFilterError
from .codec import is_storable_slot
from .desk import RedisDesk
from .lifecycle import NO_BUDGET

if TYPE_CHECKING:
    from .client import RedisClient
    from .lifecycle import CrawlState


def budget_text(limits: Mapping[str, int]) -> str:
    """Return the JSON of a budget, the same for equal ones."""
    storable = {slot: most for slot, most in limits.items() if is_storable_slot(slot)}
    return json.dumps(storable, sort_keys=True)


def require_budget(
    client: RedisClient, key: str, state: CrawlState, text: str, join: Callable[..., CrawlState]
) -> CrawlState:
    """Return `state`, the crawl's, with the budget `text`, which is counted in from now on: `join`
    opens the crawl again if need be. Raises SharedFilterError if living workers have another
    one."""
    if state.budget == NO_BUDGET != text and not state.workers:
        # it had none: what waits is fetched in this round, too
        state = join(counted=RedisDesk(client, key).unfinished())
    if state.budget != text:
        raise SharedFilterError(
            f"the workers of {key!r} in Redis at {client.name} have BLOOM_BUDGET = {state.budget},"
            f" and this one has {text}: all need the same. Stop them first; if they were killed,"
            " wait until their BLOOM_REDIS_LEASE has run out"
        )
    return state
