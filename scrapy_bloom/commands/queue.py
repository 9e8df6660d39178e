"""The subcommand queue: the pending requests of a job or a crawl, counted, listed and dropped, and
its download slots held."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from math import inf, isinf
from typing import TYPE_CHECKING, Any

from ..amounts import counted, held_for
from ..amounts import seconds as seconds_of
from ..errors import BloomError
from ..job.failed_request import DROPPED
from ..job.records import Counts, Filter, Record, State
from ..redis_backend.codec import is_storable_slot
from .context import table

if TYPE_CHECKING:
    from .context import Context

SHOWN = 20
"""So many requests are listed, and so many slots, without --limit."""


def queue(session: Context) -> int:
    """Do what is asked with the chosen pending requests; return 1 if there are none."""
    options = session.options
    run, takes = _ACTIONS[options.action]
    for name in ("by", "limit", "keep", "yes", "for", "url", "callback", "slots"):
        if getattr(options, name) and name not in takes:
            others = " and ".join(each for each, (_, takes) in _ACTIONS.items() if name in takes)
            shown = "SLOT" if name == "slots" else f"--{name}"
            raise BloomError(f"{shown} goes with {others}, not with {options.action}")
    return run(session, Filter(slots=options.slot, urls=options.url, callbacks=options.callback))


def _count(session: Context, chosen: Filter) -> int:
    by = session.options.by
    with session.desk() as (name, desk):
        found = desk.count(chosen, by or "priority")  # which costs least
        held = {slot: left for slot, left in desk.held().items() if chosen.includes_slot(slot)}
    total = found.states.total()
    figures: dict[str, Any] = {
        "pending": total,
        **_figures(found),
        "held_slots": {slot: None if isinf(left) else left for slot, left in held.items()},
    }
    if by:
        ordered = found.by.most_common()
        figures["by"] = [{by: value, "pending": count} for value, count in ordered]
    session.print(figures, _count_lines(session, name, found, held))
    return 0 if total else 1


def _figures(found: Counts) -> dict[str, Any]:
    later = found.states[State.DELAYED]
    return {"later": later, "in_flight": found.in_flight, "unknown": found.unknown}


def _count_lines(
    session: Context, name: str, found: Counts, held: Mapping[str, float]
) -> Iterator[str]:
    most = session.options.limit or SHOWN
    more = f"; {found.in_flight:,} more in flight" if found.in_flight else ""
    yield f"{name}: {_counted(found)}{more}"
    if found.unknown:
        yield f"{counted(found.unknown, 'request')} cannot be read"
    if held:
        shown = ", ".join(f"{slot} {held_for(left)}" for slot, left in islice(held.items(), most))
        yield f"held: {shown}{_and_more(len(held) - most)}"
    if by := session.options.by:
        rows = [(_shown(by, value), f"{n:,}") for value, n in found.by.most_common(most)]
        if rows:
            yield from table(rows)
        if len(found.by) > most:
            yield f"and {len(found.by) - most:,} more (--limit N, or all with --json)"


def _counted(found: Counts) -> str:
    later = found.states[State.DELAYED]
    line = counted(found.states.total(), "pending request")
    return f"{line}, {later:,} of them later" if later else line


def _and_more(count: int) -> str:
    return f", and {count:,} more" if count > 0 else ""


def _shown(by: str, value: object) -> str:
    if value is None:
        return "(cannot be read)"
    return f"priority {value}" if by == "priority" else str(value) or "(no slot)"


def _list(session: Context, chosen: Filter) -> int:
    with session.desk() as (_, desk):
        found = [*islice(desk.scan(chosen), session.options.limit or SHOWN)]
    names = ("url", "method", "slot", "priority", "callback", "due")
    figures = [{name: getattr(each, name) for name in names} for each in found]
    session.print(figures, _list_lines(found))
    return 0 if found else 1


def _list_lines(found: Sequence[Record]) -> Iterator[str]:
    for each in found:
        method = "" if each.method == "GET" else f"{each.method} "
        yield f"{method}{each.url or '(a URL that cannot be read)'}"
        parts = [f"slot {each.slot}"] if each.slot else []
        parts += [f"priority {each.priority}"] if each.priority else []
        parts += [each.callback] if each.callback else []
        parts += [] if each.due is None else [f"in {each.due:,.0f} s"]
        yield f"  {', '.join(parts)}"


def _drop(session: Context, chosen: Filter) -> int:
    options = session.options
    if not (chosen.slots or chosen.reads):
        raise BloomError("say what to drop: --slot, --url or --callback")
    with session.desk() as (name, desk):
        if not options.yes:
            count = desk.count(chosen, "priority").states.total()
            end = f"fail, for the reason {DROPPED}" if options.keep else "be dropped for good"
            raise BloomError(
                f"{counted(count, 'pending request')} of {name} would {end}: say so with --yes"
            )
        found = desk.change(chosen, "fail" if options.keep else "drop")
    if found is None:
        return session.print_standing(name)
    dropped = found.states.total()
    figures = {"stands": False, "dropped": dropped, **_figures(found)}
    session.print(figures, _drop_lines(name, found))
    return 0 if dropped else 1


def _drop_lines(name: str, found: Counts) -> Iterator[str]:
    more = f"; {found.in_flight:,} more are in flight, and stay" if found.in_flight else ""
    yield f"{name}: dropped {_counted(found)}{more}"
    if found.unknown:
        yield f"{counted(found.unknown, 'request')} stayed that cannot be read"


def _hold(session: Context, chosen: Filter) -> int:
    age = vars(session.options)["for"]
    seconds = inf if age is None else seconds_of(age)
    if seconds is None:
        raise BloomError(f"--for is {age!r}: it must be a time such as 90s, 30m, 12h or 7d")
    return _set_holds(session, chosen, seconds)


def _release(session: Context, chosen: Filter) -> int:
    return _set_holds(session, chosen, None)


def _set_holds(session: Context, chosen: Filter, seconds: float | None) -> int:
    """Hold the slots that are named, and those that match globs, or release them."""
    options, slots = session.options, dict.fromkeys(session.options.slots)
    if not (slots or chosen.slots):
        raise BloomError(f"say what to {options.action}: a SLOT, or globs with --slot")
    for slot in slots:
        if not is_storable_slot(slot):
            raise BloomError(f"{slot!r} is no download slot: it has a NUL or half a character")
    with session.desk() as (name, desk):
        held = desk.held()
        if chosen.slots:
            slots |= dict.fromkeys(filter(chosen.includes_slot, held))
            if seconds is not None:
                slots |= dict.fromkeys(map(str, desk.count(chosen, "slot").by))
        if seconds is None:
            slots = dict.fromkeys(each for each in held if each in slots)
        if slots and desk.hold([*slots], seconds) is None:
            return session.print_standing(name)
    verb = "released" if seconds is None else "held"
    figures: dict[str, Any] = {"stands": False, verb: [*slots]}
    line = f"{name}: {counted(len(slots), 'download slot')} {verb}"
    if seconds is not None and slots:
        figures["seconds"] = None if isinf(seconds) else seconds
        line += f" {held_for(seconds)}"
    shown = ", ".join(islice(slots, SHOWN))
    session.print(figures, [f"{line}{': ' if slots else ''}{shown}{_and_more(len(slots) - SHOWN)}"])
    return 0 if slots else 1


_ACTIONS: dict[str, tuple[Callable[[Context, Filter], int], set[str]]] = {
    "count": (_count, {"by", "limit", "url", "callback"}),
    "list": (_list, {"limit", "url", "callback"}),
    "drop": (_drop, {"keep", "yes", "url", "callback"}),
    "hold": (_hold, {"slots", "for"}),
    "release": (_release, {"slots"}),
}
ACTIONS = tuple(_ACTIONS)
