"""The status of a filter and of a crawl in Redis, read while workers run; nothing is changed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from ..bloom import sizing
from ..bloom.inspection import Description, Finding, Layer
from ..crawl.delays import DEAD
from ..crawl.failed_request import CAPPED, HOST, UNREADABLE
from ..crawl.figures import SLOTS, Costly, Figures, Sample, State, longest_held, with_rates
from ..crawl.stats import COUNTED
from ..errors import SharedFilterError
from ..fingerprints.recorded import fingerprinter_in
from .filter import RedisBloomFilter
from .layout import ODD_BYTES, in_one_slot, is_in_one_slot
from .lifecycle import no_crawl, require_whole
from .scripts import CRAWL_STATUS, SCAN, WORKER_STATUS

if TYPE_CHECKING:
    from .client import RedisClient

SLOTS_AT_ONCE = 100
"""In a call, which takes some ms of the server."""
_WORKERS_AT_ONCE = 20
_OF_CRAWL = ("time", "state", "seconds", "in_flight", "failed", "later", "next_due", "held")
READ_AT_ONCE = 200
"""So many requests are read by a call, which takes two ms of the server at most."""
MOST_TOLD = 10_000
"""The most failed requests whose reasons a worker counts."""


@dataclass(frozen=True)
class WorkerView:
    """One worker, under the names of `Figures`. Its lease lasts `lease_seconds`, below 0 after its
    end. The oldest of its claims is of that many seconds ago, None without one."""

    name: str
    in_flight: int
    oldest_seconds: float | None
    dispatched: int
    lease_seconds: float
    in_start: bool


@dataclass(frozen=True)
class CrawlView:
    """A crawl, without the pending requests of each slot. `time` is the server's. `waiting` is
    the number of pending requests, too low after an aborted script. `failed` has those over a
    budget and of dead hosts, too. `counted` and `samples` are what all workers have counted: now,
    and in the last minute. `nbytes` is None if the user may not ask for it."""

    round: str
    start_done: bool
    over: bool
    lease: float
    time: float
    began: float
    done: int
    workers: Sequence[WorkerView]
    failed: int
    quarantined: int
    waiting: int
    counted: dict[str, int]
    samples: Sequence[Sample] = field(repr=False)
    nbytes: int | None
    later: int
    """How many of the waiting requests are not due."""
    next_due: float | None
    """Seconds until the next of them is, None without any."""
    held: int
    """How many slots are held; more than 1,000 are counted with those whose hold is over."""

    @property
    def seconds(self) -> float:
        """Its age."""
        return self.time - self.began

    @property
    def in_flight(self) -> int:
        """The number of claimed requests."""
        return sum(worker.in_flight for worker in self.workers)

    @property
    def living(self) -> Sequence[WorkerView]:
        """The workers with a lease."""
        return [worker for worker in self.workers if worker.lease_seconds >= 0]

    @property
    def state(self) -> State:
        """`running` while a worker has a lease, then `finished` or `at rest`."""
        if self.living:
            return "running"
        return "finished" if self.over else "at rest"


class PendingView(NamedTuple):
    """The numbers of pending requests by Scrapy's priority and slot, without those that are
    quarantined or not due. `nbytes` as in CrawlView."""

    counts: dict[int, dict[str, int]]
    nbytes: int | None

    @property
    def by_slot(self) -> Counter[str]:
        """The numbers by slot alone."""
        return sum(map(Counter, self.counts.values()), Counter[str]())


class CrawlReader:
    """Reads the crawl beside the filter at `key`. Any method may raise SharedFilterError."""

    def __init__(self, client: RedisClient, key: str) -> None:
        self._client = client
        self._key = key

    def require(self) -> CrawlView:
        """Return the crawl. Raises SharedFilterError if there is none."""
        crawl = self.look()
        if crawl is None:
            raise no_crawl(self._client, self._key)
        return crawl

    def look(self) -> CrawlView | None:
        """Return the crawl, None if there is none. Cost: a round trip, and one for twenty
        workers."""
        if not is_in_one_slot(self._key):
            return None
        told = self._client.run(CRAWL_STATUS, [self._key], *COUNTED)
        crawl, now, leases, failed, quarantined, notes, nbytes, later, due, held, *rest = told
        if crawl[0] is None:
            return None
        slots, dead, host = rest
        lease, round_, start_done, over, began, done, waiting, *counted = crawl
        require_whole(self._client, self._key, round_, began)
        workers: list[WorkerView] = []
        sizes = [nbytes]
        capped = self.capped(sizes) if slots else {}
        host += sum(count for *_, count in self.parked(sizes, "dead")) if dead else 0
        names = [*pairs_of(leases)]
        for first in range(0, len(names), _WORKERS_AT_ONCE):
            group = names[first : first + _WORKERS_AT_ONCE]
            found, nbytes = self._client.run(
                WORKER_STATUS, [self._key], *(name for name, _ in group)
            )
            sizes.append(nbytes)
            for (name, until), (claimed, handed, in_start, oldest) in zip(
                group, found, strict=True
            ):
                age = max(0.0, (now - oldest) / 1000) if oldest else None
                left = (float(until) - now) / 1000
                named = name.decode(errors=ODD_BYTES)
                workers.append(WorkerView(named, claimed, age, handed, left, bool(in_start)))
        return CrawlView(
            round=round_.decode(errors=ODD_BYTES),
            start_done=start_done == b"1",
            over=over == b"1",
            lease=int(lease) / 1000,
            time=now / 1000,
            began=int(began) / 1000,
            done=int(done or 0),
            workers=workers,
            failed=failed + sum(capped.values()) + host,
            quarantined=quarantined,
            waiting=max(0, int(waiting or 0) - host),
            counted={name: int(value or 0) for name, value in zip(COUNTED, counted, strict=True)},
            samples=[*filter(None, map(_sample, reversed(notes)))],
            nbytes=total_bytes(*sizes),
            later=later,
            next_due=None if due == b"" else due / 1000,
            held=held,
        )

    def pending(self) -> PendingView:
        """Return the pending requests. Cost: a round trip for a hundred slots of a priority."""
        sizes: list[int | None] = []
        pending: dict[int, Counter[str]] = {}
        for priority, named, count in self.listed(sizes, ("slots", "lobby")):
            pending.setdefault(scrapys_priority(priority), Counter())[slot_of(named)] += count
        counts_by_priority = {priority: dict(+counts) for priority, counts in pending.items()}
        return PendingView(counts_by_priority, total_bytes(*sizes))

    def capped(self, sizes: list[int | None]) -> dict[str, int]:
        """Return how many requests are over the budget of each slot, the first slot first, and add
        the bytes of their lists to `sizes`. Cost: a round trip for a hundred slots."""
        return dict(self._counts_of("capped", sizes))

    def listed(
        self, sizes: list[int | None], kinds: Sequence[str] = ("slots",)
    ) -> Iterator[tuple[str, str, int]]:
        """Yield priority, name and length of the lists of slots that are parked, or in places of
        these `kinds`, and add the bytes of their keys to `sizes`."""
        yield from self.parked(sizes)
        for priority in self.priorities():
            for kind in kinds:
                for named, count in self._counts_of(f"{kind}:{priority}", sizes):
                    yield priority, named, count

    def parked(
        self, sizes: list[int | None], place: str = "parked"
    ) -> Iterator[tuple[str, str, int]]:
        """Yield the same of those that are parked; "dead" is the place of those of dead slots."""
        for name, count in self._counts_of(place, sizes):
            priority, _, named = name.partition(":")
            yield priority, named, count

    def priorities(self) -> Sequence[str]:
        """Return the priorities that may have pending requests, the first one first."""
        found = self._client.call("zrange", f"{self._key}:priorities", 0, -1)
        return [priority.decode(errors=ODD_BYTES) for priority in found]

    def reasons(self, most: int | None = MOST_TOLD) -> dict[str, int]:
        """Return how many requests have failed for each reason, most first; of more than `most`
        those that it has not looked at as `others`. Cost: a call, and one for 200 of them, and of
        the slots with capped ones."""
        seen: dict[bytes, str] = {}
        others = 0
        for page, parts in chain.from_iterable(map(pairs_of, self._pieces("failed", "1"))):
            seen[page] = parts[3].decode(errors=ODD_BYTES) if parts else UNREADABLE
            if len(seen) == most:
                others = self._client.call("hlen", f"{self._key}:failed") - len(seen)
                break
        host = self._client.run(CRAWL_STATUS, [self._key])[-1]
        host += sum(count for *_, count in self.parked([], "dead"))
        counts = Counter(seen.values())
        counts += Counter({CAPPED: sum(self.capped([]).values()), HOST: host})
        return dict(counts.most_common()) | ({"others": others} if others > 0 else {})

    def held(self) -> dict[str, float]:
        """Return the held slots, with the seconds of their holds that are left, `inf` until the
        release. Cost: a call for 200 holds."""
        holds = self._holds()
        return {slot: max(0, left) for slot, left, times in holds if left > 0 or times >= DEAD}

    def dead(self) -> set[str]:
        """Return the dead slots."""
        return {slot for slot, _, times in self._holds() if times >= DEAD}

    def _holds(self) -> Iterator[tuple[str, float, int]]:
        for slot, (left, times) in chain.from_iterable(map(pairs_of, self._pieces("holds"))):
            yield slot.decode(errors=ODD_BYTES), float(left) / 1000, times

    def dictionaries(self) -> dict[str, bytes | None]:
        """Return the dictionaries by their ids, None for one that is gone. Cost: two round
        trips."""
        crawl = f"{self._key}:crawl"
        ids = (self._client.call("hget", crawl, "dictionaries") or b"").decode().split()
        if not ids:
            return {}
        texts = self._client.call("hmget", crawl, *(f"dictionary:{each}" for each in ids))
        return dict(zip(ids, texts, strict=True))

    def _pieces(self, place: str, without: str = "", cursor: int = 0) -> Iterator[Any]:
        """Yield what `lua/scan.lua` tells of a `place`, in pieces."""
        return self._client.scan(SCAN, self._key, place, READ_AT_ONCE, without, cursor=cursor)

    def _counts_of(self, place: str, sizes: list[int | None]) -> Iterator[tuple[str, int]]:
        """Yield what a place names, and how many each has; None bytes are not known."""
        for found, nbytes in self._client.scan(SCAN, self._key, place, SLOTS_AT_ONCE, "count"):
            sizes.append(nbytes)
            for name, count in pairs_of(found):
                yield name.decode(errors=ODD_BYTES), count


class CrawlStatus(CrawlReader):
    """The figures of the crawl beside the filter at `key`, with all its workers. Raises
    SharedFilterError if there is no filter."""

    def __init__(self, client: RedisClient, key: str) -> None:
        super().__init__(client, key)
        self._filter = RedisBloomFilter.open(client, key)
        self._refresh = Costly(RedisBloomFilter.refresh)
        self._by_slot = Costly(CrawlReader.pending)
        self._held = Costly(CrawlReader.held)
        self._failed = Costly(partial(CrawlReader.reasons, most=None))

    def figures(self) -> Figures:
        """Return the figures that the workers noted last, and what Redis tells now. Raises
        SharedFilterError."""
        crawl = self.require()
        pending = self._by_slot.of(self)
        self._refresh.of(self._filter)
        found, slots = self._filter, pending.by_slot
        layers = zip(found.layers, found.loads, strict=True)
        figures = {
            **{name: getattr(crawl, name) for name in _OF_CRAWL},
            **crawl.counted,
            "round": crawl.round or None,
            "pending": crawl.waiting,
            "held_slots": longest_held(self._held.of(self)) if crawl.held else {},
            "pending_by_slot": dict(slots.most_common(SLOTS)),
            "slots": len(slots),
            "failed_by_reason": self._failed.of(self),
            "filter_items": len(found),
            # each shard grows by itself
            "filter_capacity": sum(int(layer.capacity * load.share) for layer, load in layers),
            "filter_layers": len(found.layers),
            "filter_bytes": found.nbytes,
            "memory_bytes": total_bytes(found.nbytes, crawl.nbytes, pending.nbytes),
            "workers": [*map(asdict, crawl.workers)],
        }
        return with_rates(figures, crawl.samples)


def slot_of(named: str) -> str:
    """Return the slot of a list, whose older one has a NUL behind it."""
    return named.partition("\0")[0]


def pairs_of(found: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield what a script returns in pairs."""
    return zip(found[::2], found[1::2], strict=True)


def scrapys_priority(stored: str | bytes) -> int:
    """Return the priority of requests that are stored under another: two for each of Scrapy's,
    others and start requests; 0 for a damaged one, which `verify` tells."""
    try:
        return -(int(stored) // 2)
    except ValueError:
        return 0


def total_bytes(*sizes: int | None) -> int | None:
    """Return the sum of `sizes`, None if one is unknown."""
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _sample(text: bytes) -> Sample | None:
    """Return a note of progress, None if it has another shape."""
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        note = json.loads(text)
        names = ("time", "pending", "failed", "done", *COUNTED, "added")
        figures = {name: note[name] + 0 for name in names}
        if all(map(isfinite, figures.values())):
            figures["filter_items"] = figures.pop("added")
            return figures.pop("time") / 1000, figures
    return None


def places_of(client: RedisClient, key: str) -> list[str]:
    """Return the keys at which the filter with that BLOOM_REDIS_KEY may be: beside a crawl, or
    alone. A key that the user has no right to is left out, unless that leaves none."""
    places = [in_one_slot(key), key]
    return [each for each in places if client.may_touch(each)] or places


class FilterView:
    """The filter with the BLOOM_REDIS_KEY `key`. Raises SharedFilterError if there is none, or if
    Redis does not answer."""

    def __init__(self, client: RedisClient, key: str) -> None:
        for place in places_of(client, key):
            with suppress(KeyError):
                self.filter = RedisBloomFilter.open(client, place)
                break
        else:
            raise SharedFilterError(
                f"there is no filter {key!r} in Redis at {client.name}: --key must be the"
                " BLOOM_REDIS_KEY of its crawl"
            )
        self.client = client
        self.key = place
        self.name = f"{client.name} {place}"

    def describe(self) -> Description:
        """Return all figures of the filter."""
        shared, header = self.filter, self.filter.header
        layers = [self._layer(number) for number in range(len(shared.layers))]
        known = fingerprinter_in(header.identity)
        return Description(self.name, shared, header, known, layers, file_bytes=shared.nbytes)

    def _layer(self, number: int) -> Layer:
        """Return the layer of that number in all shards that have it; each shard grows alone."""
        header, load = self.filter.header, self.filter.loads[number]
        sizes = [shard.sizes[number] for shard in self.filter.shards if len(shard.counts) > number]
        capacity = int(header.layer(number).capacity * load.share)
        bound = sizing.layer_error_rate(header.error_rate, number)
        return Layer.of(load, capacity, bound, sum(sizes) * sizing.BLOCK_BITS)

    def verify(self) -> Finding:
        """Read all strings, and compare them with the counts."""
        return Finding.of(self.name, self._checked)

    def _checked(self) -> str:
        self.filter.check()
        return f"sizes and bits agree on {len(self.filter):,} items"
