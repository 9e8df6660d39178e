"""The subcommands that copy a filter, or a crawl, between a job and Redis: load, export."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from ..amounts import counted
from ..errors import BloomError
from ..redis_backend.client import RedisClient, public_url
from ..redis_backend.copying import load_into_redis, save_from_redis
from ..redis_backend.layout import in_one_slot
from ..redis_backend.load import Loaded, load_job, load_scrapy_redis
from ..redis_backend.scheduler import RedisDurableScheduler
from ..sqlite_backend.status import job_view
from ..startup import is_component
from .filters import PATIENCE
from .target import Kind

if TYPE_CHECKING:
    from .context import Context


def load(session: Context) -> int:
    """Copy the filter of a job, or a crawl that is not finished, into Redis."""
    options = session.options
    key = session.key(options.url)
    settings = session.crawler.settings
    where = f"{public_url(options.url)} {key}"
    target = session.target(options.place, Kind.FILTER, Kind.SCRAPY_REDIS)
    if Kind.SCRAPY_REDIS in target.kinds:
        if not options.spider:
            raise BloomError("a crawl of scrapy-redis needs --spider, the name of its spider")
        fingerprinter = session.fingerprinter
        with RedisClient(options.place, PATIENCE) as source, RedisClient(options.url) as client:
            loaded = load_scrapy_redis(
                client, in_one_slot(key), source, options.spider, settings, fingerprinter
            )
            name = f"scrapy-redis's {options.spider!r} at {source.name}"
        session.print(asdict(loaded), _loaded_lines(loaded, name, where))
        return 0
    if is_component(settings["SCHEDULER"], RedisDurableScheduler):
        if target.job is None:
            raise BloomError(f"{target.name} is a filter alone: give a job directory, JOBDIR")
        with RedisClient(options.url) as client:
            loaded = load_job(client, in_one_slot(key), target.job, settings)
        session.print(asdict(loaded), _loaded_lines(loaded, options.place, where))
        return 0
    if target.job and (pending := job_view(target.job.path).unfinished):
        sys.stderr.write(
            f"{options.place} has {counted(pending, 'pending request')}, which only"
            " RedisDurableScheduler can go on with: they are not copied, though the filter has"
            " seen them. To load them too, remove the copy, and run this with the workers'"
            " settings, or with -s SCHEDULER=scrapy_bloom.RedisDurableScheduler\n"
        )
    items = load_into_redis(target.path, options.url, key)
    session.print(
        {"items": items}, [f"copied {counted(items, 'item')} from {options.place} to {where}"]
    )
    return 0


def _loaded_lines(loaded: Loaded, source: str, where: str) -> Iterator[str]:
    yield (
        f"copied {counted(loaded.items, 'item')} and {counted(loaded.pending, 'pending request')}"
        f" from {source} to {where}, for RedisDurableScheduler"
    )
    if loaded.failed:
        yield f"  {source} keeps {counted(loaded.failed, 'failed request')}"
    if loaded.items_left:
        yield (
            f"  {source} keeps {counted(loaded.items_left, 'item')} that no feed has got yet: start"
            " it once more and stop it with Ctrl-C to have them written"
        )


def export(session: Context) -> int:
    """Copy a filter in Redis into a job directory."""
    options = session.options
    key = session.key(options.url)
    path = session.target(options.place, Kind.NEW, Kind.FILTER).path
    with session.shared_filter(options.url) as shared:
        found = shared.key
    items = save_from_redis(options.url, found, path)
    where = f"{public_url(options.url)} {key}"
    session.print(
        {"items": items}, [f"copied {counted(items, 'item')} from {where} to {options.place}"]
    )
    return 0
