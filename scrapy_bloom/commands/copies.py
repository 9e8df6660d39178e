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
from ..sqlite_backend.status import unfinished_requests
from ..startup import is_component
from .filters import PATIENCE
from .target import Kind, Target

if TYPE_CHECKING:
    from .context import Context


def load(session: Context) -> None:
    """Copy a job into Redis. Where SCHEDULER is RedisDurableScheduler, its filter and all of its
    requests that are not done, from a job of DurableScheduler or from scrapy-redis; else the filter
    alone, for crawls with RedisBloomDupeFilter. Workers need the same BLOOM_CAPACITY and
    BLOOM_ERROR_RATE. The source stays as it is; what was interrupted can be run again."""
    options = session.options
    key = session.key(options.url)
    settings = session.crawler.settings
    where = f"{public_url(options.url)} {key}"
    target = Target.find(options.place).require(Kind.FILTER, Kind.SCRAPY_REDIS)
    if Kind.SCRAPY_REDIS in target.kinds:
        if not options.spider:
            raise BloomError("a crawl of scrapy-redis needs --spider, the name of its spider")
        fingerprinter = session.fingerprinter
        with RedisClient(options.place, PATIENCE) as source, RedisClient(options.url) as client:
            loaded = load_scrapy_redis(
                client, in_one_slot(key), source, options.spider, settings, fingerprinter
            )
            name = f"scrapy-redis's {options.spider!r} at {source.name}"
    elif is_component(settings["SCHEDULER"], RedisDurableScheduler):
        if target.job is None:
            raise BloomError(f"{target.name} is a filter alone: give a job directory, JOBDIR")
        with RedisClient(options.url) as client:
            loaded = load_job(client, in_one_slot(key), target.job, settings)
        name = options.place
    else:
        if target.job and (pending := unfinished_requests(target.job.path)):
            sys.stderr.write(
                f"{options.place} has {counted(pending, 'pending request')}, which only"
                " RedisDurableScheduler can go on with: they are not copied, though the filter has"
                " seen them. To load them too, remove the copy, and run this with the workers'"
                " settings, or with -s SCHEDULER=scrapy_bloom.RedisDurableScheduler\n"
            )
        _print_copied(session, load_into_redis(target.path, options.url, key), options.place, where)
        return
    session.print(asdict(loaded), _loaded_lines(loaded, name, where))


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


def export(session: Context) -> None:
    """Copy a filter in Redis into a job directory that has none yet."""
    options = session.options
    key = session.key(options.url)
    path = Target.find(options.place).require(Kind.NEW, Kind.FILTER).path
    with session.shared_filter(options.url) as shared:
        found = shared.key
    items = save_from_redis(options.url, found, path)
    _print_copied(session, items, f"{public_url(options.url)} {key}", options.place)


def _print_copied(session: Context, items: int, source: str, where: str) -> None:
    line = f"copied {counted(items, 'item')} from {source} to {where}"
    session.print({"items": items}, [line])
