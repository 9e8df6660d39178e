"""The figures of a job or a crawl: what commands show of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from math import isinf
from typing import Any, Generic, Literal, TypedDict, TypeVar, cast

State = Literal["running", "finished", "stopped", "killed", "at rest"]
"""`running`: a process works on it. `finished`: its round is over. Otherwise a job was `stopped`,
or `killed` (or its last commit has failed), and a crawl in Redis without workers is `at rest`."""
RATE_SECONDS = 10.0
"""Rates are taken over this part of the past."""
MINUTE = 57.0
"""The time left is known when pending requests have fallen for so many seconds: a minute, less what
may lie between two notes."""
SLOTS = 10
"""The figures name this many slots, those with the most requests."""
COSTLY_SHARE = 0.005
"""A question that reads many rows may take this share of the time."""

Sample = tuple[float, Mapping[str, Any]]
"""Figures with the time at which they were noted."""
Source = TypeVar("Source")
Result = TypeVar("Result")


class Figures(TypedDict, total=False):
    """A job or a crawl at one moment: times in seconds, sizes in bytes. None is unknown. Pages to
    retries, and `seconds`, count from this start of a job, or from the beginning of a crawl."""

    time: float
    state: State
    round: int | str | None
    seconds: float | None
    pages: int | None
    items: int | None
    duplicates: int | None
    retries: int | None
    pending: int | None
    pending_count: int | None
    """The same, as `info` calls it."""
    in_flight: int | None
    failed: int
    later: int
    """Of the pending ones those that are not due, the first of them in `next_due` seconds."""
    next_due: float | None
    held: int
    """The slots that are on hold."""
    held_slots: Mapping[str, float | None]
    """Those of them that are held longest, with the seconds that are left, None until the
    release."""
    pages_per_second: float | None
    items_per_second: float | None
    pending_per_second: float | None
    seconds_left: float | None
    pending_by_slot: Mapping[str, int]
    """Of the slots with the most requests; `slots` counts all."""
    slots: int
    failed_by_reason: Mapping[str, int]
    filter_items: int | None
    filter_capacity: int | None
    filter_layers: int | None
    filter_bytes: int | None
    seconds_to_growth: float | None
    # of a job alone
    round_pages: int
    """These four count from the beginning of the round, in all starts."""
    round_items: int
    round_duplicates: int
    round_retries: int
    feeds: Sequence[Mapping[str, Any]]
    """The `uri` of each feed of the round, and how many `items` are in it, or will be."""
    commits: int | None
    commit_seconds_max: float | None
    seconds_since_commit: float
    file_bytes: int
    log_bytes: int
    # of a crawl in Redis alone
    memory_bytes: int | None
    workers: Sequence[Mapping[str, Any]]


class Costly(Generic[Source, Result]):
    """Repeats a question only so often that it takes a share of COSTLY_SHARE of the time."""

    def __init__(self, ask: Callable[[Source], Result]) -> None:
        self._ask = ask
        self._due = 0.0
        self._known: list[Result] = []

    def of(self, source: Source) -> Result:
        """Return the last answer of `source`, which is the same in each call."""
        began = time.monotonic()
        if began >= self._due or not self._known:
            self._known = [self._ask(source)]
            ended = time.monotonic()
            self._due = ended + (ended - began) / COSTLY_SHARE
        return self._known[0]


def longest_held(held: Mapping[str, float]) -> dict[str, float | None]:
    """Return the first SLOTS of the held slots, with None for a hold without an end."""
    longest = sorted(held.items(), key=lambda each: -each[1])[:SLOTS]
    return {slot: None if isinf(left) else left for slot, left in longest}


def with_rates(figures: Mapping[str, Any], samples: Sequence[Sample]) -> Figures:
    """Return the other `figures` of a job or a crawl with the rates of a running one, and with what
    follows if these stay."""
    growth = rates_of(samples) if figures["state"] == "running" else {}
    room = None
    if figures["filter_capacity"] is not None and figures["filter_items"] is not None:
        room = max(0, figures["filter_capacity"] - figures["filter_items"])
    found = {
        **figures,
        "pending_count": figures["pending"],
        **{f"{name}_per_second": growth.get(name) for name in ("pages", "items", "pending")},
        "seconds_left": _seconds_to(figures["pending"], _fall(samples) if growth else None, -1),
        "seconds_to_growth": _seconds_to(room, growth.get("filter_items"), 1),
    }
    return cast("Figures", found)


def rates_of(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the recent growth of each figure in a second; `samples` begin with the oldest."""
    # a clock may have been set back
    earlier = [each for each in samples[:-1] if each[0] < samples[-1][0]]
    if not earlier:
        return {}
    last_at, last = samples[-1]
    recent = (each for each in earlier if last_at - each[0] <= RATE_SECONDS)
    at, first = next(recent, earlier[-1])
    return {
        name: (last[name] - first[name]) / (last_at - at)
        for name in ("pages", "items", "pending", "filter_items")
        if name in last and name in first
    }


def _fall(samples: Sequence[Sample]) -> float | None:
    """Return the growth of pending requests in a second, None unless they have been fewer than at
    the first sample ever since, for a minute at least."""
    pending = [figures.get("pending", 0) for _, figures in samples]
    seconds = samples[-1][0] - samples[0][0]
    if seconds < MINUTE or max(pending[1:]) >= pending[0]:
        return None
    return float((pending[-1] - pending[0]) / seconds)


def _seconds_to(distance: float | None, rate: float | None, sign: int) -> float | None:
    """Return how long `distance` takes at a rate of that sign, None for any other."""
    if distance is None or rate is None or rate * sign <= 0:
        return None
    return distance / (rate * sign)
