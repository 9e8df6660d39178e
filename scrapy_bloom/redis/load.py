"""Makes a crawl in Redis from a job on a disk, or from a crawl of scrapy-redis.

The filter is marked as loading until the load is complete, so no worker joins before. The load has
a lease as a worker has. The next load removes the rest of an interrupted one, and begins anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic, time
from typing import TYPE_CHECKING

from ..errors import BloomError, JobDirectoryError, SharedFilterError
from ..fingerprints import FingerprinterIdentity
from ..migration.scrapy_redis import RedisQueue, RedisSet
from ..settings import BloomSettings
from ..sqlite.job_file import whole_job
from ..sqlite.listing import stopped_job
from ..sqlite.scrapy_queues import ScrapyQueues
from .call import Entry, Holding
from .codec import RedisCodec, is_storable_slot
from .copying import open_inexact, put_layers, to_fill
from .filter import RedisBloomFilter, delete_filter, fresh_header
from .layout import crawl_id
from .lifecycle import open_crawl, remove_queue, require_no_eviction
from .push import Pusher
from .scripts import LOADING, MAKE_HEADER
from .settings import WorkerSettings
from .status import CrawlReader

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings
    from scrapy.utils.request import RequestFingerprinterProtocol

    from ..jobdir import JobDirectory
    from .client import RedisClient

LEASE = 15.0
"""Seconds without a call after which a load counts as interrupted."""


@dataclass(frozen=True)
class Loaded:
    """The result of a load: items of the filter and pending requests that were copied; failed
    requests, items that no feed has, and members of a set that are no fingerprints, which were
    not."""

    items: int
    pending: int
    failed: int = 0
    items_left: int = 0
    skipped: int = 0
    first_skipped: str | None = None


def load_job(client: RedisClient, key: str, job: JobDirectory, settings: BaseSettings) -> Loaded:
    """Make the crawl at `key` from a stopped job of DurableScheduler: its filter, its pending
    requests, its holds, and the marks of start requests that were taken. The job stays as it is.
    Cost: two calls for each MB of the filter, one for each 50 requests.

    Raises FilterLockedError while the job runs, BloomError or ValueError for a job that cannot be
    loaded; then Redis is left as it was. No code of a stored request is run.
    """
    codec = RedisCodec(settings)
    with job.locked(), whole_job(job) as file:
        if ScrapyQueues(job).state:
            raise JobDirectoryError(
                f"{job.scrapy_queue} holds pending requests of Scrapy's own scheduler: start the"
                " job once with SCHEDULER = 'scrapy_bloom.DurableScheduler', which takes them over,"
                " stop it, and load it then"
            )
        with stopped_job(job.requests) as left, open_inexact(job.filter) as local:
            shared = to_fill(client, key, local)
            with _crawl(shared, codec) as pusher:
                put_layers(shared, local, pusher.beat)
                unreleased = file.unreleased if file else []
                pusher.push(Entry(0, None, fingerprint) for fingerprint in unreleased)
                pusher.push(Entry(0, None, None, mark) for mark in left.taken_start_requests())
                offset = monotonic() - time()
                pusher.push(
                    Entry(0, packed, due=due and due + offset)
                    for packed, due in left.requests(codec.dump_fields)
                )
                pusher.hold(
                    Holding(slot, until - time(), times)
                    for slot, until, times in left.holds()
                    if until > time() and is_storable_slot(slot)
                )
            return Loaded(len(local), left.pending, left.failed, left.items)


def load_scrapy_redis(
    client: RedisClient,
    key: str,
    source: RedisClient,
    spider: str,
    settings: BaseSettings,
    fingerprinter: RequestFingerprinterProtocol,
) -> Loaded:
    """Make the crawl at `key` from scrapy-redis's queue and dupefilter's set in `source`, those of
    `spider`; they stay as they are. Cost: a call for each 50 members.

    Raises BloomError or ValueError for what cannot be loaded, also if a worker of scrapy-redis
    changes it meanwhile; then Redis is left as it was.
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
    shared = RedisBloomFilter(client, key, header.capacity, header.error_rate, loading=header)

    def stored() -> Iterator[Entry]:
        # the last one pushed is the newest
        for fields in queue.requests(next_first=not codec.queues.newest_first[0]):
            if seen is None and not fields["dont_filter"]:
                raise BloomError(
                    f"{queue.name} holds requests that a dupefilter has seen, and {queue.set_key}"
                    " is not there: set SCHEDULER_DUPEFILTER_KEY as the crawl has it"
                )
            yield Entry(0, codec.dump_fields(fields))

    with _crawl(shared, codec) as pusher:
        shared.make_shards()
        pusher.push(stored())
        for fingerprints, _ in seen.batches() if seen else ():
            pusher.push(Entry(0, None, fingerprint) for fingerprint in fingerprints)
        if (len(queue), queue.set_size()) != sizes:
            raise BloomError(
                f"{queue.name} or {queue.set_key} has changed meanwhile: stop the workers of"
                " scrapy-redis, and load it again"
            )
    skipped, first = (seen.skipped, seen.first_skipped or None) if seen else (0, None)
    return Loaded(items - skipped, pending, skipped=skipped, first_skipped=first)


@contextmanager
def _crawl(shared: RedisBloomFilter, codec: RedisCodec) -> Iterator[Pusher]:
    """Yield a pusher into a new crawl, whose filter has no shards yet. Workers can join it after
    the context; if the context fails, the crawl is removed."""
    settings, client, key = WorkerSettings(lease=LEASE), shared.client, shared.key
    require_no_eviction(client)
    _remove_interrupted(client, key)
    with shared.filling():
        open_crawl(client, key, shared.generation, settings)
        try:
            pusher = Pusher(shared, settings, codec, "load")
            pusher.beat()
            yield pusher
            pusher.leave()
        except BaseException:
            with suppress(SharedFilterError):
                # another load may have replaced this one
                found = client.call("hget", f"{key}:crawl", "id")
                if found == crawl_id(shared.generation).encode():
                    remove_queue(client, key)
            raise


def _remove_interrupted(client: RedisClient, key: str) -> None:
    """Remove the rest of an interrupted load at `key`. Raises SharedFilterError while a load
    runs."""
    if client.run(MAKE_HEADER, [key], "", "")[2] != LOADING.encode():
        return
    queue = CrawlReader(client, key).look()
    for worker in queue.workers if queue else ():
        if worker.lease_seconds > 0:
            raise SharedFilterError(
                f"{key} in Redis at {client.name} is being loaded ({worker.name}): wait for the"
                f" end, or, if that was killed, {worker.lease_seconds:.0f} seconds"
            )
    remove_queue(client, key)
    delete_filter(client, key)
