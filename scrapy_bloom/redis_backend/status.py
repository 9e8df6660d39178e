"""What a crawl in Redis has pending, in flight and failed, and how to remove it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .layout import is_in_one_slot
from .protocol import COUNTED
from .scripts import CRAWL_STATUS, REMOVE_QUEUE, SLOT_COUNTS, WORKER_STATUS

if TYPE_CHECKING:
    from .client import RedisClient

_SLOTS_AT_ONCE = 500
_WORKERS_AT_ONCE = 20
_REMOVED_AT_ONCE = 100


@dataclass(frozen=True)
class WorkerView:
    """One worker: how long its lease lasts yet, in seconds, below 0 where it has run out; how
    many requests it has claimed, how long ago the oldest of them (seconds, None without one),
    and how many of them the engine may have got."""

    name: str
    lease_left: float
    claimed: int
    oldest: float | None
    handed: int
    in_start: bool


@dataclass(frozen=True)
class CrawlView:
    """What a crawl is, but for what waits. `time` is the server's; `waiting` counts what
    waits, too few after a script that was aborted; `counted` is what its workers have
    counted; `samples` is the same of the last minute, oldest first, with the time of each;
    `nbytes` are those of its keys, None where the server may not be asked."""

    round: str
    start_done: bool
    over: bool
    lease: float
    time: float
    began: float
    done: int
    workers: Sequence[WorkerView]
    failed: int
    alone: int
    waiting: int
    counted: dict[str, int]
    samples: Sequence[tuple[float, dict[str, Any]]] = field(repr=False)
    nbytes: int | None

    @property
    def seconds(self) -> float:
        """How long ago it began."""
        return self.time - self.began

    @property
    def in_flight(self) -> int:
        """How many requests workers have claimed."""
        return sum(worker.claimed for worker in self.workers)

    @property
    def living(self) -> Sequence[WorkerView]:
        """The workers whose lease has not run out."""
        return [worker for worker in self.workers if worker.lease_left >= 0]

    @property
    def state(self) -> str:
        """What has become of it."""
        if self.living:
            return "running"
        return "finished" if self.over else "at rest"


@dataclass(frozen=True)
class PendingView:
    """What waits, by Scrapy's priority, then by slot; without what is to be handed out
    alone. `nbytes` as in CrawlView."""

    counts: dict[int, dict[str, int]]
    nbytes: int | None

    @property
    def by_slot(self) -> Counter[str]:
        """How many wait in each slot."""
        return sum(map(Counter, self.counts.values()), Counter[str]())


def look_at(client: RedisClient, key: str) -> CrawlView | None:
    """Return what the crawl beside the filter at `key` is, None if there is none. Cost: a
    round trip, and one for twenty workers."""
    if not is_in_one_slot(key):
        return None
    crawl, now, names, failed, alone, notes, nbytes = client.run(CRAWL_STATUS, [key], *COUNTED)
    if crawl[0] is None:
        return None
    lease, round_, start_done, over, began, done, waiting, *counted = crawl
    workers: list[WorkerView] = []
    names = [*zip(names[::2], names[1::2], strict=True)]
    for first in range(0, len(names), _WORKERS_AT_ONCE):
        group = names[first : first + _WORKERS_AT_ONCE]
        found, more = client.run(WORKER_STATUS, [key], *(name for name, _ in group))
        nbytes = _sum(nbytes, more)
        for (name, until), (claimed, handed, in_start, oldest) in zip(group, found, strict=True):
            age = max(0.0, (now - oldest) / 1000) if oldest else None
            left = (float(until) - now) / 1000
            workers.append(WorkerView(name.decode(), left, claimed, age, handed, bool(in_start)))
    return CrawlView(
        round=round_.decode(),
        start_done=start_done == b"1",
        over=over == b"1",
        lease=int(lease) / 1000,
        time=now / 1000,
        began=int(began) / 1000,
        done=int(done or 0),
        workers=workers,
        failed=failed,
        alone=alone,
        waiting=max(0, int(waiting or 0)),
        counted={name: int(value or 0) for name, value in zip(COUNTED, counted, strict=True)},
        samples=[_sample(json.loads(note)) for note in reversed(notes)],
        nbytes=None if nbytes < 0 else nbytes,
    )


def pending_of(client: RedisClient, key: str) -> PendingView:
    """Return what waits in the crawl beside the filter at `key`. Cost: a round trip for five
    hundred slots of a priority."""
    nbytes = 0
    pending: dict[int, Counter[str]] = {}
    for priority in client.call("zrange", f"{key}:priorities", 0, -1):
        # two for each of Scrapy's: others, start requests
        counts = pending.setdefault(-(int(priority) // 2), Counter())
        first, found = 0, [b""]
        while found:
            last = first + _SLOTS_AT_ONCE - 1
            found, more = client.run(SLOT_COUNTS, [key], priority, first, last)
            nbytes = _sum(nbytes, more)
            for slot, count in zip(found[::2], found[1::2], strict=True):
                counts[slot.decode()] += count
            first += _SLOTS_AT_ONCE
    return PendingView(
        {priority: dict(+counts) for priority, counts in pending.items()},
        None if nbytes < 0 else nbytes,
    )


def remove_queue(client: RedisClient, key: str) -> int:
    """Remove the crawl beside the filter at `key`; return how many keys are gone."""
    removed = 0
    while gone := client.run(REMOVE_QUEUE, [key], _REMOVED_AT_ONCE):
        removed += gone
    return removed


def _sum(one: int, other: int) -> int:
    """Return the sum of two sizes, -1 if one of them is not known."""
    return -1 if one < 0 or other < 0 else one + other


def _sample(note: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    note["filter_items"] = note.pop("added")
    return note.pop("time") / 1000, note
