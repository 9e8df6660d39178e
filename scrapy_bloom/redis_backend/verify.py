"""Checks the requests of a crawl in Redis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..bloom.inspection import Finding
from ..job.dictionaries import id_of
from ..reporting import counted
from .codec import stored_dictionaries
from .layout import ODD_BYTES, crawl_id
from .lifecycle import stored_header, why_not
from .scripts import (
    VERIFY_ALONE,
    VERIFY_BOOKS,
    VERIFY_CAPPED,
    VERIFY_CLAIMS,
    VERIFY_ENTRIES,
    VERIFY_LATER,
    VERIFY_LIST,
    VERIFY_NAMES,
    VERIFY_RECORDS,
)
from .status import look_at, parked_in

if TYPE_CHECKING:
    from .client import RedisClient

_AT_ONCE = 500
_KEYS_AT_ONCE = 1000


def queue_findings(client: RedisClient, key: str) -> Iterator[Finding]:
    """Yield what is wrong with the crawl beside the filter at `key`, or that it is sound; nothing
    without a crawl. Reads all requests, some hundred in a call, while workers go on. Raises
    SharedFilterError."""
    crawl = look_at(client, key)
    if crawl is None:
        return
    name = f"{client.name} {key}:crawl"
    names = sorted(set(_names(client, key)))
    waiting, bad = _count_waiting(client, key, names)
    wrong = [*bad, *_wrong_claims(client, key, names), *_wrong_books(client, key)]
    wrong += _wrong_dictionaries(client, key)
    failed, bad_records = _records(client, key, "failed", 6)
    if bad_records:
        wrong.append(f"{counted(bad_records, 'failed request')} cannot be read")
    capped, bad_capped = _count_capped(client, key, names)
    wrong += bad_capped
    if bad_alone := client.run(VERIFY_ALONE, [key]):
        wrong.append(f"{counted(bad_alone, 'quarantined request')} cannot be read")
    if not crawl.living and waiting < crawl.waiting:
        missing = counted(crawl.waiting - waiting, "request")
        wrong.append(f"{waiting:,} requests wait, and {crawl.waiting:,} should: {missing} is gone")
    yield from (Finding(name, sound=False, text=text) for text in wrong)
    if not wrong:
        text = (
            f"each of {counted(waiting, 'waiting request')} is where workers find it, each of"
            f" {counted(crawl.in_flight, 'claimed one')} has a worker"
            f"{_of_the_dead(len(crawl.workers) - len(crawl.living))},"
            f" {counted(failed + capped, 'failed one')} can be read"
        )
        yield Finding(name, sound=True, text=text)


def _of_the_dead(count: int) -> str:
    if not count:
        return ""
    return f" ({counted(count, 'worker')} is dead: what it has comes back with the next call)"


def _names(client: RedisClient, key: str) -> Iterator[str]:
    for names in client.scan(VERIFY_NAMES, key, None):
        yield from (name.decode(errors=ODD_BYTES) for name in names)


def _count_waiting(client: RedisClient, key: str, names: list[str]) -> tuple[int, list[str]]:
    """Return how many requests are pending, and what is wrong with them."""
    later, bad_later = map(sum, zip(*client.scan(VERIFY_LATER, key, None), strict=True))
    waiting, wrong = client.call("llen", f"{key}:alone") + later, []
    if bad_later:
        wrong.append(f"{counted(bad_later, 'delayed request')} cannot be read")
    lists: list[tuple[str, int]] = []
    found: set[tuple[str, str]] = set()
    # what is delayed comes first, then the lobbies, the lists, the rings: so a slot's list goes on
    for name in names:
        if name.partition(":")[0] not in {"lobby", "pending"}:
            continue
        count = bad = read = 0
        priority = name.split(":", 2)[1]
        while True:
            # from the end, since entries leave the lobby at its front while it is read
            span = -read - _AT_ONCE, -read - 1
            elements, entries, wrong_ones, slots = client.run(VERIFY_ENTRIES, [key], name, *span)
            read, count, bad = read + elements, count + entries, bad + wrong_ones
            found.update((priority, slot.decode(errors=ODD_BYTES)) for slot in slots)
            if elements < _AT_ONCE:
                break
        waiting += count
        lists.append((name, count))
        if bad:
            wrong.append(f"{counted(bad, 'request')} of {name!r} cannot be read")
    found.update(_in_rings(client, key))
    for name, count in lists:
        kind, priority, slot = (*name.split(":", 2), "")[:3]
        # a ring turns while it is read, and to read all of it at once takes long
        if (kind == "lobby" or (priority, slot) not in found) and client.run(
            VERIFY_LIST, [key], name, priority, slot
        ):
            where = "" if kind == "lobby" else f" its slot is not in 'slots:{priority}', or"
            wrong.append(
                f"{counted(count, 'request')} of {name!r}: no worker finds that list, since{where}"
                " its priority is not in 'priorities'"
            )
    return waiting, wrong


def _in_rings(client: RedisClient, key: str) -> Iterator[tuple[str, str]]:
    """Yield priority and slot of each list that workers find, or will when a hold is over."""
    yield from parked_in(client, key)
    for priority in client.call("zrange", f"{key}:priorities", 0, -1):
        ring, first = f"{key}:slots:{priority.decode()}", 0
        while slots := client.call("lrange", ring, first, first + _KEYS_AT_ONCE - 1):
            yield from ((priority.decode(), each.decode(errors=ODD_BYTES)) for each in slots)
            first += _KEYS_AT_ONCE


def _wrong_claims(client: RedisClient, key: str, names: list[str]) -> Iterator[str]:
    for name in names:
        kind, _, worker = name.partition(":")
        if kind != "claims":
            continue
        if count := client.run(VERIFY_CLAIMS, [key], worker):
            yield (
                f"{counted(count, 'claim')} of {worker}, which is none of the workers: they never"
                " come back"
            )
        _, bad = _records(client, key, name, 3)
        if bad:
            yield f"{counted(bad, 'claim')} of {worker} cannot be read"


def _wrong_books(client: RedisClient, key: str) -> Iterator[str]:
    crawl, over, strangers, claims, waits = client.run(VERIFY_BOOKS, [key])
    header = stored_header(client, key)
    if header is None or crawl.decode() != crawl_id(header.generation):
        yield "the queue" + why_not(crawl.decode(), header.generation if header else "-")
    if strangers:
        yield f"{counted(strangers, 'worker')} at work without a lease: the crawl has no end"
    if over and (claims or waits):
        yield "the crawl is over, but something waits or is claimed"


def _wrong_dictionaries(client: RedisClient, key: str) -> Iterator[str]:
    for name, text in stored_dictionaries(client, key).items():
        if text is None or id_of(text) != name:
            what = "gone" if text is None else "damaged"
            yield f"the dictionary {name} is {what}: requests that need it cannot be read"


def _count_capped(client: RedisClient, key: str, names: list[str]) -> tuple[int, list[str]]:
    """Return how many requests are over the budget, and what is wrong with them."""
    wrong: list[str] = []
    total = 0
    for name in names:
        if not name.startswith("capped:"):
            continue
        bad, first, found, is_named = 0, 0, _AT_ONCE, True
        while found == _AT_ONCE:
            span = first, first + _AT_ONCE - 1
            found, more, is_named = client.run(
                VERIFY_CAPPED, [key], name.encode(errors=ODD_BYTES), *span
            )
            bad, first = bad + more, first + found
        total += first
        if bad:
            wrong.append(f"{counted(bad, 'request')} of {name!r} cannot be read")
        if not is_named:
            wrong.append(
                f"{counted(first, 'request')} of {name!r}: its slot is not in 'capped', so none of"
                " them can be retried"
            )
    return total, wrong


def _records(client: RedisClient, key: str, name: str, parts: int) -> tuple[int, int]:
    """Return how many records a hash has, and how many of them cannot be read."""
    records, bad = zip(*client.scan(VERIFY_RECORDS, key, name, None, parts), strict=True)
    return sum(records), sum(bad)
