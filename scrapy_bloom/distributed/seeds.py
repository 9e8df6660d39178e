"""Requests that are pushed into a crawl from outside."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ..durable.queues import FORMATS, QueueSettings
from ..errors import SharedFilterError
from ..shared.filter import RedisBloomFilter
from .commit import COMMIT, GROWN, NEW
from .inspection import look_at
from .messages import LEAVE, Batch, Claims, Entry, Policy, Reply, WorkerState
from .payload import Packed, fields_of
from .store import MOST_ENTRIES

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.settings import BaseSettings
    from scrapy.utils.request import RequestFingerprinterProtocol

    from ..shared.client import RedisClient


def push(
    client: RedisClient,
    key: str,
    requests: Iterable[Request],
    *,
    settings: BaseSettings,
    fingerprinter: RequestFingerprinterProtocol,
    callback: str | None = None,
) -> tuple[int, int]:
    """Push `requests` into the crawl beside the filter at `key`, in the form that the
    settings of its project want, for the spider's method `callback`; return how many are
    new, and how many were seen.

    Raises SharedFilterError if there is no crawl, or Redis does not answer: then some of
    them may be pushed, and can be pushed again.
    """
    state = look_at(client, key)
    if state is None:
        raise SharedFilterError(
            f"there is no crawl at {key!r} in Redis at {client.name}: start a worker first, with"
            " BLOOM_REDIS_IDLE to have it wait"
        )
    bloom_filter = RedisBloomFilter.open(client, key)
    serialize, _ = FORMATS[QueueSettings.read(settings).kind.format]
    host = socket.gethostname().partition(".")[0]
    worker = f"push:{host}:{os.getpid()}:{secrets.token_hex(4)}"
    policy = Policy(int(state.lease * 1000), 1, (False, False), 0, 1)
    entries = (
        Entry(
            0,
            Packed(
                str(-2 * request.priority),
                urlsplit(request.url).hostname or "",
                serialize(fields_of(request, callback=callback)),
            ),
            fingerprinter.fingerprint(request),
        )
        for request in requests
    )
    number = new = seen = 0
    again: list[Entry] = []
    while group := [*again, *islice(entries, MOST_ENTRIES - len(again))]:
        number += 1
        batch = Batch(number, group, Claims(), WorkerState())
        reply = _call(client, key, worker, policy, bloom_filter, batch)
        again = [e for e, answer in zip(group, reply.answers, strict=True) if answer == GROWN]
        new += reply.answers.count(NEW)
        seen += len(group) - reply.answers.count(NEW) - len(again)
    if number:
        last = Batch(number + 1, [], Claims(), WorkerState(), LEAVE)
        _call(client, key, worker, policy, bloom_filter, last)
    return new, seen


def _call(
    client: RedisClient,
    key: str,
    worker: str,
    policy: Policy,
    bloom_filter: RedisBloomFilter,
    batch: Batch,
) -> Reply:
    arguments = batch.encode(bloom_filter.header.generation, worker, policy, bloom_filter)
    reply = Reply(client.run(COMMIT, [key], *arguments))
    if reply.gone or (reply.fenced and not batch.action):
        raise SharedFilterError(f"the crawl at {key!r} in Redis at {client.name} is gone")
    if not reply.fenced:
        reply.teach(bloom_filter, batch)
    return reply
