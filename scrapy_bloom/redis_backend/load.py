"""A crawl in Redis that is made of what another one has left: of a job on a disk, or of
scrapy-redis.

The filter is marked as being loaded until all is there, so no worker joins before. What
loads it has a lease as a worker has. What an interrupted load has left is removed by the
next one, which begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import BloomError, JobDirectoryError, SharedFilterError
from ..fingerprints.identity import FingerprinterIdentity
from ..migration.scrapy_redis_queue import RedisQueue
from ..migration.scrapy_redis_set import RedisSet
from ..settings import BloomSettings, WorkerSettings
from ..sqlite_backend.leftover import left_requests
from ..sqlite_backend.request_file import require_whole_job
from ..sqlite_backend.takeover import ScrapyJob
from .codec import RedisCodec
from .copying import open_inexact, put_layers, redis_header
from .filter import RedisBloomFilter, fresh_header
from .layout import crawl_id
from .lifecycle import (
    delete_filter,
    filling,
    make_shards,
    open_crawl,
    require_no_eviction,
)
from .protocol import Entry
from .push import Pusher
from .scripts import LOADING, MAKE_HEADER
from .start_marks import mark_of
from .status import look_at, remove_queue

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings
    from scrapy.utils.request import RequestFingerprinterProtocol

    from ..job.queue_settings import QueueSettings
    from ..jobdir import JobDirectory
    from .client import RedisClient
    from .layout import RedisHeader

LEASE = 15.0
"""Seconds after which a load that gives no sign of life counts as interrupted."""


@dataclass(frozen=True)
class Loaded:
    """What a load has copied, and what is left where it was: requests that have `failed`,
    and items that are in no feed yet."""

    items: int
    pending: int
    failed: int = 0
    items_left: int = 0


def load_job(client: RedisClient, key: str, job: JobDirectory, settings: BaseSettings) -> Loaded:
    """Make the crawl at `key` of a job of DurableScheduler that nobody runs: its filter, its
    requests that are not done, and which start requests it has taken. The job stays as it
    is. Cost: two calls for a MB of the filter, one for 50 requests.

    Raises FilterLockedError while the job runs, BloomError or ValueError for what cannot be
    loaded; then Redis is left as it was.
    """
    codec = RedisCodec(settings)
    lock = job.lock()
    try:
        require_whole_job(job)
        if ScrapyJob(job).state:
            raise JobDirectoryError(
                f"{job.scrapy_queue} holds pending requests of Scrapy's own scheduler: start the"
                " job once with SCHEDULER = 'scrapy_bloom.DurableScheduler', which takes them over,"
                " stop it, and load it then"
            )
        with (
            left_requests(job.requests) as left,
            open_inexact(job.filter, read_only=True) as local,
        ):
            header = redis_header(local)

            def fill(beat: Callable[[], None]) -> None:
                put_layers(client, key, header, local, beat)

            with _crawl(client, key, header, codec.queues, fill) as pusher:
                pusher.push(Entry(0, None, fingerprint) for fingerprint in left.unreleased)
                pusher.push(
                    Entry(0, None, None, mark_of(*taken)) for taken in left.taken_start_requests()
                )
                pusher.push(Entry(0, codec.dump_fields(fields)) for fields in left.requests())
            return Loaded(len(local), left.pending, left.failed, left.items)
    finally:
        lock.release(remove=True)


def load_scrapy_redis(
    client: RedisClient,
    key: str,
    source: RedisClient,
    spider: str,
    settings: BaseSettings,
    fingerprinter: RequestFingerprinterProtocol,
) -> Loaded:
    """Make the crawl at `key` of what scrapy-redis has in `source` for the spider of that
    name: its queue and its dupefilter's set, which stay as they are. Cost: a call for 50
    members.

    Raises BloomError or ValueError for what cannot be loaded, also where a worker of
    scrapy-redis has changed it meanwhile; then Redis is left as it was.
    """
    codec = RedisCodec(settings)
    wanted = BloomSettings.read(settings)
    queue = RedisQueue(source, settings, spider)
    seen = None
    if source.call("type", queue.set_key) != b"none":
        seen = RedisSet(source, queue.set_key, fingerprinter)
    elif not len(queue):
        raise BloomError(
            f"there is no crawl of scrapy-redis at {source.name}: neither {queue.key} nor"
            f" {queue.set_key}"
        )
    sizes = pending, items = len(queue), queue.set_size()
    identity = FingerprinterIdentity.of(fingerprinter).to_text()
    header = fresh_header(wanted.capacity, wanted.error_rate, identity)

    def fill(_beat: Callable[[], None]) -> None:
        make_shards(client, key, header)

    def stored() -> Iterator[Entry]:
        # who is pushed last is the newest
        for fields in queue.requests(next_first=not codec.queues.kind.newest_first):
            if seen is None and not fields["dont_filter"]:
                raise BloomError(
                    f"{queue.name} holds requests that a dupefilter has seen, and {queue.set_key}"
                    " is not there: set SCHEDULER_DUPEFILTER_KEY as the crawl has it"
                )
            yield Entry(0, codec.dump_fields(fields))

    with _crawl(client, key, header, codec.queues, fill) as pusher:
        pusher.push(stored())
        for fingerprints, _ in seen.batches() if seen else ():
            pusher.push(Entry(0, None, fingerprint) for fingerprint in fingerprints)
        if (len(queue), queue.set_size()) != sizes:
            raise BloomError(
                f"{queue.name} or {queue.set_key} has changed meanwhile: stop the workers of"
                " scrapy-redis, and load it again"
            )
    return Loaded(items, pending)


@contextmanager
def _crawl(
    client: RedisClient,
    key: str,
    header: RedisHeader,
    queues: QueueSettings,
    fill: Callable[[Callable[[], None]], None],
) -> Iterator[Pusher]:
    """Give a pusher into a new crawl, which workers can join when the context has ended
    well; else nothing is left of it. `fill` makes the shards of its filter, and calls what it
    gets now and then."""
    settings = WorkerSettings(lease=LEASE)
    require_no_eviction(client)
    _remove_interrupted(client, key)
    with filling(client, key, header):
        open_crawl(client, key, header.generation, settings)
        try:
            shared = RedisBloomFilter(
                client, key, header.capacity, header.error_rate, loading=header
            )
            pusher = Pusher(client, key, shared, settings, queues, "load")
            pusher.beat()
            fill(pusher.beat)
            yield pusher
            pusher.leave()
        except BaseException:
            with suppress(SharedFilterError):
                # another load may have taken this one for interrupted, and its place
                found = client.call("hget", f"{key}:crawl", "id")
                if found == crawl_id(header.generation).encode():
                    remove_queue(client, key)
            raise


def _remove_interrupted(client: RedisClient, key: str) -> None:
    """Remove what a load has left at `key` that was interrupted. Raises SharedFilterError
    while one is under way."""
    if client.run(MAKE_HEADER, [key], "", "")[2] != LOADING.encode():
        return
    queue = look_at(client, key)
    for worker in queue.workers if queue else ():
        if worker.lease_left > 0:
            raise SharedFilterError(
                f"{key} in Redis at {client.name} is being loaded ({worker.name}): wait for the"
                f" end, or, if that was killed, {worker.lease_left:.0f} seconds"
            )
    remove_queue(client, key)
    delete_filter(client, key)
