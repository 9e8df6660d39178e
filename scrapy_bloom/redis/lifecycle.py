"""Crawls in Redis: opened and removed, or why they cannot be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..crawl.budget import Budget
from ..errors import SharedFilterError
from ..texts import waiting_text
from .layout import CRAWL_FORMAT, ODD_BYTES, crawl_id
from .scripts import CRAWL_NAMES, OPEN_CRAWL

if TYPE_CHECKING:
    from .client import RedisClient
    from .settings import WorkerSettings

NO_BUDGET = "{}"
"""The budget of a crawl without one, as JSON."""


def budget_in(text: str) -> Budget:
    """Return the budget of a crawl, none if the start that has set it was aborted."""
    with suppress(AttributeError, TypeError, ValueError):
        return Budget(json.loads(text))
    return Budget({})


@dataclass(frozen=True)
class CrawlState:
    """The state of a crawl when it was opened."""

    round: str
    start_done: bool
    over: bool
    workers: int
    """How many workers have a lease."""
    spider: str
    """The spider whose crawl it was until now, empty without one."""
    waits: str = ""
    """What waits for its time, as `texts.waiting_text` says it."""
    begins: bool = False
    """True if a round began when it was opened."""
    budget: str = NO_BUDGET
    """Its budget, as JSON."""


def open_crawl(
    client: RedisClient,
    key: str,
    crawl: str,
    settings: WorkerSettings,
    spider: str = "",
    *,
    any_spider: bool = False,
    budget: str = "",
    counted: Mapping[str, int] | None = None,
) -> CrawlState:
    """Return the state of the crawl beside the filter at `key`, whose generation is `crawl`. The
    crawl is made if there is none; a new round begins if it is over and the settings name another
    round. It belongs to `spider` from then on; without `any_spider`, the crawl of another spider
    stays as it is, and the state names that spider. So does that of living workers with another
    `budget` (JSON, empty for that of the crawl), and one that had none, unless what is pending was
    `counted` by slot; the state has its budget then. Raises SharedFilterError for a crawl of
    another filter or format, and for workers with another lease."""
    lease = int(settings.lease * 1000)
    options: list[str | int] = [settings.round, spider, "1" * any_spider, budget]
    if counted is not None:
        options += ["1", *(part for slot_and_count in counted.items() for part in slot_and_count)]
    found, lease_found, round_, start_done, over, more = client.run(
        OPEN_CRAWL, [key], crawl, lease, *options
    )
    workers, owner, begins, has, later, due, held = more
    if (present := found.decode(errors=ODD_BYTES)) != crawl_id(crawl):
        raise SharedFilterError(
            f"the queue {key!r} in Redis at {client.name}" + why_not(present, crawl)
        )
    require_whole(client, key, round_)
    if int(lease_found) != lease:
        raise SharedFilterError(
            f"the workers of {key!r} in Redis at {client.name} have BLOOM_REDIS_LEASE ="
            f" {int(lease_found) / 1000:g}, and this one has {settings.lease:g}: all need the same"
        )
    return CrawlState(
        round_.decode(errors=ODD_BYTES),
        start_done == b"1",
        over == b"1",
        workers,
        owner.decode(errors=ODD_BYTES),
        waiting_text(later, None if due == b"" else due / 1000, held),
        bool(begins),
        has.decode(errors=ODD_BYTES),
    )


def require_whole(client: RedisClient, key: str, *fields: bytes | None) -> None:
    """Raise SharedFilterError if one of the `fields` of a crawl is missing."""
    if None in fields:
        raise SharedFilterError(
            f"{key}:crawl in Redis at {client.name} is damaged: it has no round or no beginning;"
            " restore it, or use another BLOOM_REDIS_KEY"
        )


def why_not(found: str, crawl: str) -> str:
    """Return why no worker can join the crawl with the id `found`."""
    if not found:
        return (
            " has requests left, and no crawl that they belong to: it was removed in part, by"
            " eviction or an interrupted 'scrapy bloom clear'. Remove the rest with that, or use"
            " another BLOOM_REDIS_KEY"
        )
    if found.endswith(crawl):
        return (
            f" has format {found.removesuffix(crawl).rstrip(':') or 'none'}, and this scrapy-bloom"
            f" reads {CRAWL_FORMAT}: use the version that has made it, or another BLOOM_REDIS_KEY"
        )
    return (
        " belongs to a filter that is gone: remove both with 'scrapy bloom clear', or use another"
        " BLOOM_REDIS_KEY"
    )


def remove_queue(client: RedisClient, key: str) -> int:
    """Remove the crawl beside the filter at `key`; return how many keys were removed. Cost: a call
    for some thousand keys of the server."""
    return sum(map(len, client.scan(CRAWL_NAMES, key, "1")))


def no_crawl(client: RedisClient, key: str) -> SharedFilterError:
    """Return the error of a command for a `key` without a crawl."""
    return SharedFilterError(
        f"there is no crawl {key[1:-1]!r} in Redis at {client.name}: --key must be the"
        " BLOOM_REDIS_KEY of its workers, of which the first one begins it"
    )


def require_crawl_format(client: RedisClient, key: str) -> None:
    """Raise SharedFilterError unless a crawl of this format is beside the filter at `key`."""
    if not client.call("exists", f"{key}:crawl"):
        raise no_crawl(client, key)
    found = (client.call("hget", f"{key}:crawl", "id") or b"").decode(errors=ODD_BYTES)
    if found.partition(":")[0] != str(CRAWL_FORMAT):
        name = f"the queue {key!r} in Redis at {client.name}"
        raise SharedFilterError(name + why_not(found, found.rpartition(":")[2]))


def require_no_eviction(client: RedisClient) -> None:
    """Raise SharedFilterError if Redis may drop requests when its memory is full."""
    if policy := client.evicting():
        raise SharedFilterError(
            f"Redis at {client.name} evicts keys when its memory is full (maxmemory-policy"
            f" {policy}), and with them requests of the crawl: set maxmemory-policy to noeviction"
            " or a volatile one, or use another server (BLOOM_REDIS_URL)"
        )


def gone(name: str) -> SharedFilterError:
    """Return the error for a filter or a crawl of which Redis has lost a part."""
    return SharedFilterError(
        f"{name} is gone, or a part of it: it was removed, or Redis was flushed, restarted without"
        " persistence, or has evicted keys (maxmemory-policy). To begin anew, remove what is left"
        " with 'scrapy bloom clear', or use another BLOOM_REDIS_KEY"
    )
