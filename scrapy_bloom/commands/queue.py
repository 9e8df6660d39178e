"""The subcommand queue: the pending requests of a job or a crawl, counted, listed and dropped, and
its download slots held."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import islice
from math import inf, isinf
from typing import TYPE_CHECKING, Any

from ..errors import BloomError
from ..job.choice import Filter, State
from ..job.pending import DROPPED, By, PendingCount, PendingRequest, Selection
from ..quantities import seconds as seconds_of
from ..redis_backend.codec import is_storable_slot
from ..redis_backend.desk import RedisDesk
from ..reporting import counted, held_for
from ..sqlite_backend.orders import HoldOrder, Order, carry_out, send
from ..sqlite_backend.pending_store import SQLitePendingStore
from .context import table

if TYPE_CHECKING:
    from ..jobdir import JobDirectory
    from ..redis_backend.client import RedisClient
    from .context import Context

SHOWN = 20
"""So many requests are listed, and so many slots, without --limit."""

PATIENCE = 30.0
"""Seconds that a running job has for the answer to an order."""


def queue(session: Context) -> int:
    """Do what is asked with the selected pending requests; return 1 if there are none."""
    options = session.options
    run, takes = _ACTIONS[options.action]
    for name in ("by", "limit", "keep", "yes", "for", "url", "callback", "slots"):
        if getattr(options, name) and name not in takes:
            others = " and ".join(each for each, (_, takes) in _ACTIONS.items() if name in takes)
            shown = "SLOT" if name == "slots" else f"--{name}"
            raise BloomError(f"{shown} goes with {others}, not with {options.action}")
    return run(session, Selection(options.slot, options.url, options.callback))


def _count(session: Context, selection: Selection) -> int:
    by = session.options.by
    with _store(session) as (name, store):
        found = store.count(selection, by or "priority")  # which costs least
        held = store.held(selection)
    total = found.pending.total()
    figures: dict[str, Any] = {
        "pending": total,
        "later": found.later,
        "in_flight": found.in_flight,
        "unknown": found.unknown,
        "held_slots": {slot: None if isinf(left) else left for slot, left in held.items()},
    }
    if by:
        ordered = found.pending.most_common()
        figures["by"] = [{by: value, "pending": count} for value, count in ordered]
    session.print(figures, _count_lines(session, name, found, held))
    return 0 if total else 1


def _count_lines(
    session: Context, name: str, found: PendingCount, held: Mapping[str, float]
) -> Iterator[str]:
    most = session.options.limit or SHOWN
    line = f"{name}: {counted(found.pending.total(), 'pending request')}"
    if found.later:
        line += f", {found.later:,} of them later"
    if found.in_flight:
        line += f"; {found.in_flight:,} more in flight"
    yield line
    if found.unknown:
        yield f"{counted(found.unknown, 'request')} cannot be read"
    if held:
        shown = ", ".join(f"{slot} {held_for(left)}" for slot, left in islice(held.items(), most))
        yield f"held: {shown}{_and_more(len(held) - most)}"
    if by := session.options.by:
        rows = [(_shown(by, value), f"{n:,}") for value, n in found.pending.most_common(most)]
        if rows:
            yield from table(rows)
        if len(found.pending) > most:
            yield f"and {len(found.pending) - most:,} more (--limit N, or all with --json)"


def _and_more(count: int) -> str:
    return f", and {count:,} more" if count > 0 else ""


def _shown(by: str, value: object) -> str:
    if value is None:
        return "(cannot be read)"
    return f"priority {value}" if by == "priority" else str(value) or "(no slot)"


def _list(session: Context, selection: Selection) -> int:
    with _store(session) as (_, store):
        found = store.requests(selection, session.options.limit or SHOWN)
    session.print([each._asdict() for each in found], _list_lines(found))
    return 0 if found else 1


def _list_lines(found: Sequence[PendingRequest]) -> Iterator[str]:
    for each in found:
        method = "" if each.method == "GET" else f"{each.method} "
        yield f"{method}{each.url or '(a URL that cannot be read)'}"
        parts = [f"slot {each.slot}"] if each.slot else []
        parts += [f"priority {each.priority}"] if each.priority else []
        parts += [each.callback] if each.callback else []
        parts += [] if each.due is None else [f"in {each.due:,.0f} s"]
        yield f"  {', '.join(parts)}"


def _drop(session: Context, selection: Selection) -> int:
    options = session.options
    if not any(selection):
        raise BloomError("say what to drop: --slot, --url or --callback")
    with _store(session) as (name, store):
        if not options.yes:
            count = store.count(selection, "priority").pending.total()
            end = f"fail, for the reason {DROPPED}" if options.keep else "be dropped for good"
            raise BloomError(
                f"{counted(count, 'pending request')} of {name} would {end}: say so with --yes"
            )
        figures: dict[str, int] | None
        if isinstance(store, _CrawlStore):
            figures = store.drop(selection, keep=options.keep)
        else:
            figures = _ordered(store.job, Order(selection, options.keep))
    if figures is None:
        return _stands(session, name)
    session.print({"stands": False, **figures}, _drop_lines(name, figures))
    return 0 if figures["dropped"] else 1


def _drop_lines(name: str, figures: Mapping[str, int]) -> Iterator[str]:
    line = f"{name}: dropped {counted(figures['dropped'], 'pending request')}"
    if figures["later"]:
        line += f", {figures['later']:,} of them later"
    if figures["in_flight"]:
        line += f"; {figures['in_flight']:,} more are in flight, and stay"
    yield line
    if figures["unknown"]:
        yield f"{counted(figures['unknown'], 'request')} stayed that cannot be read"


def _hold(session: Context, selection: Selection) -> int:
    age = vars(session.options)["for"]
    seconds = inf if age is None else seconds_of(age)
    if seconds is None:
        raise BloomError(f"--for is {age!r}: it must be a time such as 90s, 30m, 12h or 7d")
    return _set_holds(session, selection, seconds)


def _release(session: Context, selection: Selection) -> int:
    return _set_holds(session, selection, None)


def _set_holds(session: Context, selection: Selection, seconds: float | None) -> int:
    """Hold the slots that are named, and those that match globs, or release them."""
    options, slots = session.options, dict.fromkeys(session.options.slots)
    if not (slots or selection.slots):
        raise BloomError(f"say what to {options.action}: a SLOT, or globs with --slot")
    for slot in slots:
        if not is_storable_slot(slot):
            raise BloomError(f"{slot!r} is no download slot: it has a NUL or half a character")
    with _store(session) as (name, store):
        if selection.slots:
            slots |= dict.fromkeys(store.held(selection))
            if seconds is not None:
                slots |= dict.fromkeys(map(str, store.count(selection, "slot").pending))
        if seconds is None:
            slots = dict.fromkeys(each for each in store.held(Selection()) if each in slots)
        if isinstance(store, _CrawlStore):
            if slots:
                store.desk.hold([*slots], seconds)
        elif slots:
            until = None if seconds is None else time.time() + seconds
            if _ordered(store.job, HoldOrder([*slots], until)) is None:
                return _stands(session, name)
    verb = "released" if seconds is None else "held"
    figures: dict[str, Any] = {"stands": False, verb: [*slots]}
    line = f"{name}: {counted(len(slots), 'download slot')} {verb}"
    if seconds is not None and slots:
        figures["seconds"] = None if isinf(seconds) else seconds
        line += f" {held_for(seconds)}"
    shown = ", ".join(islice(slots, SHOWN))
    session.print(figures, [f"{line}{': ' if slots else ''}{shown}{_and_more(len(slots) - SHOWN)}"])
    return 0 if slots else 1


def _stands(session: Context, name: str) -> int:
    line = (
        f"the order stands: the process that has {name} has not answered in {PATIENCE:.0f} s;"
        " it, or the next start, carries it out"
    )
    session.print({"stands": True}, [line])
    return 0


def _ordered(job: JobDirectory, order: Order | HoldOrder) -> dict[str, int] | None:
    """Have an order carried out, and return its figures; None if a running job does not answer."""
    if not job.is_locked:
        return carry_out(job, order)
    answer = send(job, order)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        with suppress(FileNotFoundError):
            figures: dict[str, int] = json.loads(answer.read_bytes())
            answer.unlink()
            return figures
        time.sleep(0.05)
    return None


_ACTIONS: dict[str, tuple[Callable[[Context, Selection], int], set[str]]] = {
    "count": (_count, {"by", "limit", "url", "callback"}),
    "list": (_list, {"limit", "url", "callback"}),
    "drop": (_drop, {"keep", "yes", "url", "callback"}),
    "hold": (_hold, {"slots", "for"}),
    "release": (_release, {"slots"}),
}
ACTIONS = tuple(_ACTIONS)


class _CrawlStore:
    """The pending requests of a crawl, as those of a job are asked for."""

    def __init__(self, client: RedisClient, key: str) -> None:
        self.desk = RedisDesk(client, key)

    def count(self, selection: Selection, by: By) -> PendingCount:
        found = self.desk.count(_waiting(selection), by)
        return PendingCount(found.by, found.states[State.DELAYED], found.in_flight, found.unknown)

    def requests(self, selection: Selection, most: int) -> list[PendingRequest]:
        found = islice(self.desk.scan(_waiting(selection)), most)
        return [
            PendingRequest.of(each.fields, each.slot, each.priority, each.due) for each in found
        ]

    def held(self, selection: Selection) -> dict[str, float]:
        held = self.desk.held()
        return {slot: left for slot, left in held.items() if selection.includes_slot(slot)}

    def drop(self, selection: Selection, *, keep: bool) -> dict[str, int]:
        found = self.desk.change(_waiting(selection), "fail" if keep else "drop")
        return {
            "dropped": found.states.total(),
            "later": found.states[State.DELAYED],
            "in_flight": found.in_flight,
            "unknown": found.unknown,
        }


def _waiting(selection: Selection) -> Filter:
    slots, urls, callbacks = selection
    return Filter(slots=slots, urls=urls, callbacks=callbacks)


def _store(
    session: Context,
) -> AbstractContextManager[tuple[str, SQLitePendingStore | _CrawlStore]]:
    """Give the name of the job or the crawl, and its pending requests."""
    return session.job_or_crawl(SQLitePendingStore, _CrawlStore)
