"""The subcommands about a crawl that many workers share: push, workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from scrapy import Request

from ..distributed.inspection import QueueView, WorkerView, look_at
from ..distributed.seeds import push as push_into
from ..errors import BloomError
from ..migration.url_list import open_list, url_in
from ..reporting import counted
from ..shared.client import RedisClient
from ..shared.layout import in_one_slot
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
    options = session.options
    key = session.key(options.url)
    with RedisClient(options.url) as client:
        queue = look_at(client, in_one_slot(key))
        if queue is None:
            raise BloomError(f"there is no crawl {key!r} in Redis at {client.name}")
    session.print([asdict(worker) for worker in queue.workers], _worker_lines(queue))
    return 0


def queue_lines(queue: QueueView) -> list[str]:
    """Return what `info` says of the queue of a crawl."""
    rate = queue.done / queue.seconds if queue.seconds > 0 else 0.0
    state = "over" if queue.over else "start() is through" if queue.start_done else "in start()"
    rows = [
        ("crawl", f"{state}{f', round {queue.round}' if queue.round else ''}"),
        ("pending", f"{queue.pending_count:,} requests"),
        ("in flight", f"{queue.in_flight:,} with {counted(len(queue.workers), 'worker')}"),
        ("done", f"{queue.done:,} requests, {rate:,.1f} a second since it began"),
        ("failed", f"{queue.failed_count:,} requests were set aside"),
    ]
    lines = [*aligned(rows)]
    for priority, counts in sorted(queue.pending.items(), reverse=True):
        slots = ", ".join(f"{slot} {n:,}" for slot, n in Counter(counts).most_common(_MOST_SHOWN))
        more = len(counts) - _MOST_SHOWN
        tail = f", and {counted(more, 'slot')} more" if more > 0 else ""
        if slots:
            lines.append(f"  priority {priority}: {slots}{tail}")
    lines += [
        f"  failed {each.claim} of {each.slot}: {each.reason} ({each.attempts} times, last"
        f" {each.worker})"
        for each in queue.failed[:_MOST_SHOWN]
    ]
    return lines


def _worker_lines(queue: QueueView) -> list[str]:
    if not queue.workers:
        return ["nobody works on it"]
    heads = ["worker", "lease left", "claimed", "handed out", "start()"]
    return table([heads, *(_row(worker) for worker in queue.workers)])


def _row(worker: WorkerView) -> list[str]:
    return [
        worker.name,
        f"{worker.lease_left:.0f} s",
        f"{worker.claimed:,}",
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
