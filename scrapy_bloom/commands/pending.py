"""The subcommand queue: the pending requests of a job or a crawl, counted and listed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import BloomError
from ..job.pending import PendingCount, PendingRequest, Selection
from ..redis_backend.pending_store import RedisPendingStore
from ..reporting import counted
from ..settings import PICKLE
from ..sqlite_backend.pending_store import SQLitePendingStore
from .running import table
from .target import Kind

if TYPE_CHECKING:
    from ..job.pending import PendingStore
    from .running import Session

SHOWN = 20
"""So many requests are listed, and so many slots, without --limit."""


def queue(session: Session) -> int:
    """Count or list the selected pending requests; return 1 if there are none."""
    options = session.options
    run, takes = _ACTIONS[options.action]
    for name in ("by", "limit"):
        if getattr(options, name) is not None and name not in takes:
            others = " and ".join(each for each, (_, takes) in _ACTIONS.items() if name in takes)
            raise BloomError(f"--{name} goes with {others}, not with {options.action}")
    return run(session, Selection(options.slot, options.url, options.callback))


def _count(session: Session, selection: Selection) -> int:
    by = session.options.by
    with _store(session) as (name, store):
        found = store.count(selection, by or "priority")  # which costs least
    total = found.pending.total()
    figures: dict[str, Any] = {
        "pending": total,
        "later": found.later,
        "in_flight": found.in_flight,
        "unknown": found.unknown,
    }
    if by:
        ordered = found.pending.most_common()
        figures["by"] = [{by: value, "pending": count} for value, count in ordered]
    session.print(figures, _count_lines(session, name, found))
    return 0 if total else 1


def _count_lines(session: Session, name: str, found: PendingCount) -> Iterator[str]:
    line = f"{name}: {counted(found.pending.total(), 'pending request')}"
    if found.later:
        line += f", {found.later:,} of them later"
    if found.in_flight:
        line += f"; {found.in_flight:,} more in flight"
    yield line
    if found.unknown:
        yield f"of {counted(found.unknown, 'request')} only the spider can tell"
    if by := session.options.by:
        most = session.options.limit or SHOWN
        rows = [(_shown(by, value), f"{n:,}") for value, n in found.pending.most_common(most)]
        if rows:
            yield from table(rows)
        if len(found.pending) > most:
            yield f"and {len(found.pending) - most:,} more (--limit N, or all with --json)"


def _shown(by: str, value: object) -> str:
    if value is None:
        return "(only the spider can tell)"
    return f"priority {value}" if by == "priority" else str(value) or "(no slot)"


def _list(session: Session, selection: Selection) -> int:
    with _store(session) as (_, store):
        found = store.requests(selection, session.options.limit or SHOWN)
    session.print([each._asdict() for each in found], _list_lines(found))
    return 0 if found else 1


def _list_lines(found: Sequence[PendingRequest]) -> Iterator[str]:
    for each in found:
        method = "" if each.method == "GET" else f"{each.method} "
        yield f"{method}{each.url or '(a URL that only the spider can read)'}"
        parts = [f"slot {each.slot}"] if each.slot else []
        parts += [f"priority {each.priority}"] if each.priority else []
        parts += [each.callback] if each.callback else []
        parts += [] if each.due is None else [f"in {each.due:,.0f} s"]
        yield f"  {', '.join(parts)}"


_ACTIONS = {"count": (_count, {"by", "limit"}), "list": (_list, {"limit"})}
ACTIONS = tuple(_ACTIONS)


@contextmanager
def _store(session: Session) -> Iterator[tuple[str, PendingStore]]:
    """Yield the name of the job or the crawl, and its pending requests."""
    target = session.target(session.options.place, Kind.REQUESTS, Kind.REDIS)
    pickles = PICKLE.read(session.settings)
    if target.job is not None:
        yield str(target.job.path), SQLitePendingStore(target.job.path, pickles=pickles)
        return
    with session.crawl(target.name) as (client, key):
        yield f"{client.name} {key[1:-1]}", RedisPendingStore(client, key, pickles=pickles)
