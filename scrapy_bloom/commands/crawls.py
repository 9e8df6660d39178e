"""The subcommands about a crawl that many workers share: load, export, push, workers."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scrapy import Request

from ..amounts import counted, in_bytes
from ..crawl.figures import rates_of
from ..errors import BloomError
from ..migration.sources import require_imported
from ..redis.client import RedisClient, public_url
from ..redis.copying import load_into_redis, save_from_redis
from ..redis.filter import stored_header
from ..redis.layout import in_one_slot
from ..redis.load import Loaded, load_job, load_scrapy_redis
from ..redis.push import push as push_into
from ..redis.status import CrawlReader, total_bytes
from ..sqlite.status import job_view
from ..startup import is_component
from ..texts import in_brief, waiting_text
from .context import Context, aligned, requests_of, table
from .target import Kind, Target

PATIENCE = 30.0
"""Seconds to wait for a large set in Redis."""
_MOST_SHOWN = 10


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
    elif is_component(settings["SCHEDULER"], "RedisDurableScheduler"):
        if target.job is None:
            raise BloomError(f"{target.name} is a filter alone: give a job directory, JOBDIR")
        with RedisClient(options.url) as client:
            loaded = load_job(client, in_one_slot(key), target.job, settings)
        name = options.place
    else:
        if target.job and (pending := job_view(target.job.path).unfinished):
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
    if loaded.skipped:
        skipped = counted(loaded.skipped, "member")
        yield f"  {skipped} of the set skipped, the first is {loaded.first_skipped}"
    if loaded.failed:
        yield f"  {source} keeps {counted(loaded.failed, 'failed request')}"
    if loaded.items_left:
        yield (
            f"  {source} keeps {counted(loaded.items_left, 'item')} that no feed has got yet: start"
            " it once more and stop it with Ctrl-C to have them written"
        )


def export(session: Context) -> None:
    """Copy a filter in Redis into a job directory that has none yet, and no requests.seen."""
    options = session.options
    key = session.key(options.url)
    target = Target.find(options.place).require(Kind.NEW, Kind.FILTER)
    if target.job is not None:
        require_imported(target.job, (), "export into a directory without one")
    with session.shared_filter(options.url) as shared:
        found = shared.key
    items = save_from_redis(options.url, found, target.path)
    _print_copied(session, items, f"{public_url(options.url)} {key}", options.place)


def _print_copied(session: Context, items: int, source: str, where: str) -> None:
    line = f"copied {counted(items, 'item')} from {source} to {where}"
    session.print({"items": items}, [line])


def push(session: Context) -> None:
    """Push URLs into a crawl with RedisDurableScheduler, as GET requests, unless it has seen them,
    up to the first that is none. Run it in the crawl's project. What was interrupted can be run
    again."""
    options = session.options
    key = in_one_slot(session.key(options.url))
    settings = session.crawler.settings
    wrong: list[BloomError] = []

    def requests() -> Iterator[Request]:
        try:
            for _, _, request in requests_of(session, priority=options.priority):
                yield request
        except BloomError as error:
            wrong.append(error)

    with RedisClient(options.url) as client:
        if header := stored_header(client, key):
            session.require_fingerprinter(header.identity, f"{client.name} {key[1:-1]}")
        new, seen, over = push_into(
            client,
            key,
            requests(),
            settings=settings,
            fingerprinter=session.fingerprinter,
            callback=options.callback,
        )
    line = f"pushed {counted(new, 'request')}, {seen:,} were seen before"
    line += f", {over:,} are over the budget" if over else ""
    session.print({"new": new, "seen": seen, "capped": over}, [line])
    for error in wrong:
        raise BloomError(f"{error}; mend that, and push all again: what is there is left out")


def workers(session: Context) -> None:
    """List the workers of a crawl with RedisDurableScheduler.

    columns:
      lease left   until then the requests of the worker are its own, unless it
                   renews that; run out: it is dead, and the others get them
      claimed      requests that it has
      oldest       for how long it has had the oldest of them
      dispatched   how many of them its engine has, or may have got
      start()      runs, while it sends the start requests of the crawl

    In --json they are lease_seconds, in_flight, oldest_seconds, dispatched and
    in_start, as in 'top --json' and 'info --json'.
    """
    name = session.options.url
    if Path(name).is_dir():
        raise BloomError(f"{name} is a job without workers: 'scrapy bloom top' shows it")
    with session.crawl(name) as (client, key):
        crawl = CrawlReader(client, key).require()
    figures = [*map(asdict, crawl.workers)]
    session.print(figures, _worker_lines(figures))


def queue_in(client: RedisClient, key: str) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the figures that `info` has of the crawl beside the filter at `key`, and its lines:
    None and no lines without a crawl."""
    reader = CrawlReader(client, key)
    crawl = reader.look()
    if crawl is None:
        return None, []
    pending = reader.pending()
    lately = rates_of(crawl.samples) if crawl.state == "running" else {}
    figures = {
        **asdict(crawl),
        **crawl.counted,
        "state": crawl.state,
        "seconds": crawl.seconds,
        "pages_per_second": lately.get("pages"),
        "pending": pending.counts,
        "pending_count": crawl.quarantined + crawl.later + sum(pending.by_slot.values()),
        "in_flight": crawl.in_flight,
        "failed_by_reason": reader.reasons(most=None),
        "bytes": total_bytes(crawl.nbytes, pending.nbytes),
    }
    for name in ("samples", "nbytes", "waiting"):
        del figures[name]
    return figures, _queue_lines(figures)


def _queue_lines(queue: Mapping[str, Any]) -> list[str]:
    state = "in start()"
    if queue["over"] or queue["start_done"]:
        state = "over" if queue["over"] else "start() is through"
    done, now, nbytes = queue["done"], queue["pages_per_second"], queue["bytes"]
    rate = done / queue["seconds"] if queue["seconds"] > 0 else 0.0
    lately = "" if now is None else f", {now:,.1f} pages a second now"
    failed = ", ".join(f"{n:,} {in_brief(name)}" for name, n in queue["failed_by_reason"].items())
    workers = queue["workers"]
    rows = [
        ("crawl", f"{queue['state']}, {state}{queue['round'] and ', round '}{queue['round']}"),
        ("pending", f"{queue['pending_count']:,} requests"),
        ("waiting", waiting_text(*(queue[name] for name in ("later", "next_due", "held")))),
        ("in flight", f"{queue['in_flight']:,} with {counted(len(workers), 'worker')}"),
        ("done", f"{done:,} requests, {rate:,.1f} a second since it began{lately}"),
        ("failed", f"{queue['failed']:,} requests{failed and ': '}{failed}"),
        ("memory", "not known" if nbytes is None else f"{in_bytes(nbytes)} beside the filter"),
    ]
    lines = ["", *aligned(rows)]
    for priority, counts in sorted(queue["pending"].items(), reverse=True):
        slots = ", ".join(f"{slot} {n:,}" for slot, n in Counter(counts).most_common(_MOST_SHOWN))
        more = len(counts) - _MOST_SHOWN
        tail = f", and {counted(more, 'slot')} more" if more > 0 else ""
        if slots:
            lines.append(f"  priority {priority}: {slots}{tail}")
    return [*lines, "", *_worker_lines(workers)] if workers else lines


def _worker_lines(workers: Sequence[Mapping[str, Any]]) -> list[str]:
    if not workers:
        return ["no worker is at work on it"]
    rows = [["worker", "lease left", "claimed", "oldest", "dispatched", "start()"]]
    for worker in workers:
        left, oldest = worker["lease_seconds"], worker["oldest_seconds"]
        row = [
            worker["name"],
            f"{left:.0f} s" if left >= 0 else "run out",
            f"{worker['in_flight']:,}",
            "" if oldest is None else f"{oldest:,.0f} s",
            f"{worker['dispatched']:,}",
            "runs" if worker["in_start"] else "",
        ]
        rows.append(row)
    return table(rows)
