"""Pushes requests into a crawl from outside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from ..errors import SharedFilterError
from .call import LEAVE, Call, Entry, Holding, Policy, Reply
from .codec import RedisCodec
from .filter import RedisBloomFilter
from .lifecycle import budget_in, gone, open_crawl
from .request_store import MOST_ENTRIES, worker_name
from .scripts import CAPPED, CAPPED_BY_PATTERN, COMMIT, GROWN, NEW
from .settings import WorkerSettings
from .status import CrawlReader

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.settings import BaseSettings
    from scrapy.utils.request import RequestFingerprinterProtocol

    from .client import RedisClient


class Pusher:
    """Pushes into the crawl beside `bloom_filter` as a worker without claims; `what` begins its
    name. Raises SharedFilterError if the crawl is gone, the lease was lost, or Redis does not
    answer or has gone back in time: an answer proves that the calls before it were kept."""

    def __init__(
        self, bloom_filter: RedisBloomFilter, settings: WorkerSettings, codec: RedisCodec, what: str
    ) -> None:
        self._filter = bloom_filter
        self._dictionaries = codec.dictionaries
        self._worker = worker_name(what)
        # each call may reclaim requests of dead workers, as any worker's call does
        self._policy = Policy(
            lease=int(settings.lease * 1000),
            claims_per_slot=1,
            newest_first=codec.queues.newest_first,
            keeps_slot=0,
            max_attempts=settings.max_attempts,
        )
        self._number = 0

    def push(self, entries: Iterable[Entry]) -> tuple[int, int, int]:
        """Push `entries`; return how many were new, how many were seen, and how many are over the
        budget. Cost: a call for each 50."""
        entries = iter(entries)
        new = known = over = 0
        again: list[Entry] = []
        while group := [*again, *islice(entries, MOST_ENTRIES - len(again))]:
            answers = self._call(group).answers
            again = [e for e, answer in zip(group, answers, strict=True) if answer == GROWN]
            capped = answers.count(CAPPED) + answers.count(CAPPED_BY_PATTERN)
            new += answers.count(NEW)
            over += capped
            known += len(group) - answers.count(NEW) - capped - len(again)
        return new, known, over

    def hold(self, holds: Iterable[Holding]) -> None:
        """Hold slots. Cost: a call for each 50."""
        holds = iter(holds)
        while group := [*islice(holds, MOST_ENTRIES)]:
            self._call([], holds=group)

    def beat(self) -> bool:
        """Renew the lease; return True if nothing is pending or claimed in the crawl."""
        return self._call([]).still

    def leave(self) -> None:
        """Leave the crawl."""
        if self._number:
            self._call([], LEAVE)

    def _call(self, entries: list[Entry], action: str = "", holds: Sequence[Holding] = ()) -> Reply:
        self._number += 1
        # -1: no other worker waits for what hosts answer this one, which asks none
        batch = Call(self._number, entries, self._dictionaries, action, wanted=-1, holds=holds)
        client, key = self._filter.client, self._filter.key
        while True:
            arguments = batch.encode(self._worker, self._policy, self._filter)
            answer, again = client.insist(COMMIT, [key], *arguments)
            reply = Reply(answer)
            if not reply.asked_for:
                break
            batch.offer(reply.asked_for)
        name = f"the crawl at {key!r} in Redis at {client.name}"
        if reply.gone:
            raise gone(name)
        # a worker that has left is unknown when its last call is repeated
        if reply.fenced and not (action and again):
            raise SharedFilterError(
                f"{name} may have forgotten what was pushed: Redis has gone back in time, or has"
                " not heard of it for longer than BLOOM_REDIS_LEASE. Push it again: what is there"
                " is left out"
            )
        if not reply.fenced:
            reply.teach(self._filter, batch)
        return reply


def push(
    client: RedisClient,
    key: str,
    requests: Iterable[Request],
    *,
    settings: BaseSettings,
    fingerprinter: RequestFingerprinterProtocol,
    callback: str | None = None,
) -> tuple[int, int, int]:
    """Push `requests`, for the spider's method `callback`, into the crawl beside the filter at
    `key`; return how many are new, how many were seen, and how many are over the budget.

    Raises SharedFilterError if there is no crawl, or Redis does not answer: some requests may be
    pushed then, and all can be pushed again. Raises ValueError if one cannot be stored.
    """
    state = CrawlReader(client, key).require()
    codec = RedisCodec(settings)
    entries = (entry_of(each, codec, fingerprinter, callback) for each in requests)
    workers = WorkerSettings.read(settings).but(lease=state.lease, round="")
    shared = RedisBloomFilter.open(client, key)
    opened = open_crawl(client, key, shared.generation, workers)
    codec.budget = budget_in(opened.budget)
    pusher = Pusher(shared, workers, codec, "push")
    try:
        return pusher.push(entries)
    finally:
        pusher.leave()


def entry_of(
    request: Request,
    codec: RedisCodec,
    fingerprinter: RequestFingerprinterProtocol,
    callback: str | None = None,
) -> Entry:
    """Return `request` as it is pushed, with the callback of that name, if there is one.
    Raises ValueError if it cannot be stored, and what the fingerprinter raises."""
    fingerprint = None if request.dont_filter else fingerprinter.fingerprint(request)
    packed = codec.dump(request, callback=callback)
    return Entry(0, packed, fingerprint, names=codec.budget.names(packed.slot, request.url))
