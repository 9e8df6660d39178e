"""A stored request is one record with a state. What the engine does with records is a Store
(protocols.py), and what an operator does a Desk (choice.py); a job on the disk, the memory and a
crawl in Redis have both."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple


class State(IntEnum):
    """The states of a record. What is acknowledged or dropped has no record any more."""

    PENDING = 0
    CLAIMED = 1  # by an engine; pending again after a crash
    DELAYED = 2  # pending when it is due
    FAILED = 3
    CAPPED = 4  # over the budget of its slot
    ASKED = 5  # to be retried by the next start, as far as the budget of its slot has room
    QUARANTINED = 6  # lost with two workers of a crawl in Redis, and claimed alone


WAITING = frozenset({State.PENDING, State.DELAYED, State.ASKED, State.QUARANTINED})
KEPT = frozenset({State.FAILED, State.CAPPED})


def rank_of(priority: int, *, start: bool) -> int:
    """Return where a priority of Scrapy's stands in its order, the first one lowest: start requests
    come behind the others of their priority."""
    return -2 * priority + start


class Claimed(NamedTuple):
    """A record that the engine gets."""

    id: int
    slot: str
    payload: Any
