"""The subcommands about a crawl that many workers share: push, workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from scrapy import Request

from ..errors import BloomError
from ..migration.url_list import open_list, url_in
from ..redis_backend.client import RedisClient
from ..redis_backend.failed_store import RedisFailedStore
from ..redis_backend.layout import in_one_slot
from ..redis_backend.push import push as push_into
from ..redis_backend.status import CrawlView, PendingView, WorkerView, look_at, pending_of
from ..reporting import counted, in_brief, in_bytes
from ..sqlite_backend.watching import rates_of
from .running import aligned, table

if TYPE_CHECKING:
    from .running import Session

_MOST_SHOWN = 10


def push(session: Session) -> int:
    """Push URLs into a crawl."""
    options = session.options
    key = in_one_slot(session.key(options.url))
    crawler = session.crawler()
    with RedisClient(options.url) as client:
        new, seen = push_into(
            client,
            key,
            _requests(options.urls, options.priority),
            settings=crawler.settings,
            fingerprinter=session.fingerprinter(crawler),
            callback=options.callback,
        )
    session.print(
        {"new": new, "seen": seen}, [f"pushed {counted(new, 'request')}, {seen:,} were seen before"]
    )
    return 0


def workers(session: Session) -> int:
    """List who works on a crawl."""
    with session.crawl(session.options.url) as (client, key):
        crawl = look_at(client, key)
    if crawl is None:
        raise BloomError(f"the crawl {key[1:-1]!r} in Redis at {client.name} has just been removed")
    session.print([asdict(worker) for worker in crawl.workers], _worker_lines(crawl.workers))
    return 0


def queue_in(client: RedisClient, key: str) -> tuple[dict[str, Any] | None, list[str]]:
    """Return what `info` says of the crawl beside the filter at `key`, as figures and as
    lines, of which there are none without a crawl."""
    crawl = look_at(client, key)
    if crawl is None:
        return None, []
    pending, reasons = pending_of(client, key), RedisFailedStore(client, key).by_reason()
    nbytes = None
    if crawl.nbytes is not None and pending.nbytes is not None:
        nbytes = crawl.nbytes + pending.nbytes
    waiting = crawl.alone + sum(pending.by_slot.values())
    lately = rates_of(crawl.samples) if crawl.state == "running" else {}
    figures = {
        **asdict(crawl),
        "state": crawl.state,
        "seconds": crawl.seconds,
        "pages_per_second": lately.get("pages"),
        "pending": pending.counts,
        "pending_count": waiting,
        "in_flight": crawl.in_flight,
        "failed_by_reason": reasons,
        "bytes": nbytes,
    }
    for name in ("samples", "nbytes", "waiting"):
        del figures[name]
    return figures, _queue_lines(crawl, pending, waiting, reasons, lately.get("pages"), nbytes)


def _queue_lines(
    crawl: CrawlView,
    pending: PendingView,
    waiting: int,
    reasons: dict[str, int],
    pages_per_second: float | None,
    nbytes: int | None,
) -> list[str]:
    state = "over" if crawl.over else "start() is through" if crawl.start_done else "in start()"
    rate = crawl.done / crawl.seconds if crawl.seconds > 0 else 0.0
    lately = "" if pages_per_second is None else f", {pages_per_second:,.1f} pages a second now"
    failed = ", ".join(f"{count:,} {in_brief(name)}" for name, count in reasons.items())
    rows = [
        ("crawl", f"{crawl.state}, {state}{f', round {crawl.round}' if crawl.round else ''}"),
        ("pending", f"{waiting:,} requests"),
        ("in flight", f"{crawl.in_flight:,} with {counted(len(crawl.workers), 'worker')}"),
        ("done", f"{crawl.done:,} requests, {rate:,.1f} a second since it began{lately}"),
        ("failed", f"{crawl.failed:,} requests{f': {failed}' if failed else ''}"),
        ("memory", "not known" if nbytes is None else f"{in_bytes(nbytes)} beside the filter"),
    ]
    lines = ["", *aligned(rows)]
    for priority, counts in sorted(pending.counts.items(), reverse=True):
        slots = ", ".join(f"{slot} {n:,}" for slot, n in Counter(counts).most_common(_MOST_SHOWN))
        more = len(counts) - _MOST_SHOWN
        tail = f", and {counted(more, 'slot')} more" if more > 0 else ""
        if slots:
            lines.append(f"  priority {priority}: {slots}{tail}")
    return [*lines, "", *_worker_lines(crawl.workers)] if crawl.workers else lines


def _worker_lines(workers: Sequence[WorkerView]) -> list[str]:
    if not workers:
        return ["nobody works on it"]
    heads = ["worker", "lease left", "claimed", "oldest", "handed out", "start()"]
    return table([heads, *(_row(worker) for worker in workers)])


def _row(worker: WorkerView) -> list[str]:
    return [
        worker.name,
        f"{worker.lease_left:.0f} s" if worker.lease_left >= 0 else "run out",
        f"{worker.claimed:,}",
        "" if worker.oldest is None else f"{worker.oldest:,.0f} s",
        f"{worker.handed:,}",
        "runs" if worker.in_start else "",
    ]


def _requests(urls: list[str], priority: int) -> Iterator[Request]:
    for name in urls:
        if name != "-":
            yield Request(name, priority=priority)
            continue
        with open_list(None) as lines:
            for line in lines:
                if url := url_in(line):
                    yield Request(url, priority=priority)
