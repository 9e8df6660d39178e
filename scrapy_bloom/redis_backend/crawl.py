"""A crawl in Redis, found or made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import SharedFilterError
from .crawl_scripts import OPEN, crawl_id

if TYPE_CHECKING:
    from ..settings import WorkerSettings
    from .client import RedisClient


@dataclass(frozen=True)
class CrawlState:
    """What a crawl is at the moment."""

    round: str
    start_done: bool
    over: bool
    workers: int
    """How many work on it: those whose lease has not run out."""
    spider: str
    """Whose it was until now, empty if no spider has had it."""


def open_crawl(
    client: RedisClient,
    key: str,
    crawl: str,
    settings: WorkerSettings,
    spider: str = "",
    *,
    any_spider: bool = False,
) -> CrawlState:
    """Return the state of the crawl beside the filter at `key`, whose generation is
    `crawl`; it is made if there is none, and a new round of it begins if it is over and
    the settings name another one. It is `spider`'s from then on; one of another spider stays
    as it is, without `any_spider`, and the state tells whose it is. Raises
    SharedFilterError for a queue of another filter or version, or workers with another lease or
    of 0.2.0."""
    lease = int(settings.lease * 1000)
    found, lease_found, round_, start_done, over, _, workers, owner = client.run(
        OPEN, [key], crawl, lease, settings.round, spider, "1" if any_spider else ""
    )
    if found.decode() != crawl_id(crawl):
        raise SharedFilterError(
            f"the queue {key!r} in Redis at {client.name}"
            + _why_not(found.decode(), crawl, f"{int(lease_found) / 1000:g}")
        )
    if int(lease_found) != lease:
        raise SharedFilterError(
            f"the workers of {key!r} in Redis at {client.name} have BLOOM_REDIS_LEASE ="
            f" {int(lease_found) / 1000:g}, and this one has {settings.lease:g}: all need the same"
        )
    return CrawlState(round_.decode(), start_done == b"1", over == b"1", workers, owner.decode())


def _why_not(found: str, crawl: str, lease: str) -> str:
    """Return why no worker can join the crawl with the id `found`."""
    if found == crawl:
        return (
            " has workers of scrapy-bloom 0.2.0, which cannot share it with those of this version:"
            " stop all of them first; if they were killed, wait until their BLOOM_REDIS_LEASE of"
            f" {lease} seconds has run out"
        )
    if found.endswith(f":{crawl}"):
        return " is of a later version of scrapy-bloom: install that"
    return (
        " belongs to a filter that is gone: remove both with 'scrapy bloom clear', or use another"
        " BLOOM_REDIS_KEY"
    )


def crawl_is_gone(name: str) -> SharedFilterError:
    """Return the error for a running crawl of which the server has lost something."""
    return SharedFilterError(
        f"the crawl of {name} is gone, or a part of it: it was removed, or Redis was"
        " flushed, restarted without persistence, or has evicted keys (maxmemory-policy). To begin"
        " anew, remove what is left with 'scrapy bloom clear' and start the workers again"
    )


def in_reactor() -> Callable[..., Any]:
    """Return a function that has another one called in the thread of this one's reactor
    or event loop, from any thread."""
    try:
        return asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:
        from twisted.internet import reactor

        return reactor.callFromThread  # type: ignore[no-any-return]
