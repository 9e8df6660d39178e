"""A crawl in Redis: its keys, its id, and how it is opened.

All of its keys are in the hash slot of the filter beside it:

    {KEY}                    the filter's header; {KEY}:0 … its shards
    {KEY}:crawl              hash: id (see crawl_id), spider, lease, round, start_done, over;
                             heard (ms, when a script ran last), claims (the last number),
                             done (how many were acknowledged), waiting and waiting_bytes (of
                             what is pending; too few after an aborted script; never too
                             many, so where nothing is pending they have to be 0), and what
                             workers have counted: pages, items, duplicates, retries, added
    {KEY}:progress           list: JSON of the time and the counts, one a second, of a minute
    {KEY}:workers            sorted set: worker, by the end of its lease (ms)
    {KEY}:starting           set: workers that are in start()
    {KEY}:busy               set: workers that may have claims
    {KEY}:batch:WORKER       hash: number and reply of its last call
    {KEY}:claims:WORKER      hash: claim → priority, slot, entry, losses alone or false, when (ms)
    {KEY}:handed:WORKER      set: claims that the engine may have got
    {KEY}:priorities         sorted set: priorities that may have pending requests
    {KEY}:slots:PRIORITY     list: slots that may have some, the next one last
    {KEY}:pending:PRIORITY:SLOT   list: entries, each a digit (losses) and a payload
    {KEY}:alone              list: requests that were lost with two workers
    {KEY}:failed             hash: page → priority, slot, entry, reason, attempts, worker,
                             when (ms), what the worker knows of it as JSON, and the claim;
                             where no worker has told it, claim → the same, '' for the JSON;
                             of an earlier version claim → the first six or eight
    {KEY}:start              set: marks of the start requests that were taken
    {KEY}:owners             hash: slot → who has it until when, if one worker may

A list is named in the slots of its priority, and the priority in the priorities, before the list
holds anything, and until it is empty. A worker is among the busy ones before its first claim.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import SharedFilterError
from .scripts import OPEN_CRAWL

if TYPE_CHECKING:
    from ..settings import WorkerSettings
    from .client import RedisClient

FORMAT = 2
"""Of a crawl; also in `lua/include/crawl_id.lua`. Crawls of version 0.2.0 have no number for 1."""


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


def crawl_id(generation: str) -> str:
    """Return the id of the crawl beside the filter of that generation. Version 0.2.0 used the
    generation alone, so its workers are told that their crawl is gone."""
    return f"{FORMAT}:{generation}"


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
        OPEN_CRAWL, [key], crawl, lease, settings.round, spider, "1" if any_spider else ""
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
