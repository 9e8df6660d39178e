"""The subcommands about the requests of a job or a crawl: queue, which counts, lists and drops the
pending ones and holds download slots; failed, retry and drop for those that have failed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from math import inf, isinf
from pathlib import Path
from typing import Any

from ..amounts import counted
from ..amounts import seconds as seconds_of
from ..crawl.choice import DROPPED, OF_URL, Action, Counts, Filter, Record
from ..crawl.failed_request import FailedRequest
from ..crawl.records import KEPT, State
from ..errors import BloomError
from ..feeds.waiting import mode_of
from ..files import replace
from ..redis.codec import is_storable_slot
from ..texts import escaped, in_brief
from .context import Context, table
from .texts import held_for, in_utc

SHOWN = 20
"""So many requests are listed, and so many slots, without --limit."""
BY = ("slot", "callback", "priority", "path", "parameter")
FAILED_SHOWN = 5
"""So many requests of each reason are shown."""


def queue(session: Context) -> int:
    """Count, list or drop pending requests of a job or a crawl, or hold hosts, also while it runs:
    queue count JOB --by slot. What is dropped stays seen. Nothing of a host on hold is asked. The
    exit status is 1 if nothing is selected."""
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
    if by == "path":
        each, least = found, 1
        while least == 1 or len(found.by.keys() - {""}) > (session.options.limit or SHOWN):
            found = each.folded(least := 2 * least)
    figures: dict[str, Any] = {
        "pending": total,
        **_figures(found),
        "held_slots": {slot: None if isinf(left) else left for slot, left in held.items()},
    }
    if by:
        figures["by"] = [
            {by: each, "pending": count}
            | ({"example": found.examples[each]} if by in OF_URL else {})
            for each, count in found.by.most_common()
        ]
    return session.print(figures, _count_lines(session, name, found, held), found=total > 0)


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
        rows = found.by.most_common(most + (by == "path"))  # what is elsewhere, too
        lines = table([(_shown(by, each), f"{n:,}") for each, n in rows])
        for line, (each, _) in zip(lines, rows, strict=True):
            yield f"{line}  {found.examples[each]}" if each in found.examples else line
        if len(found.by) > len(rows):
            yield f"and {len(found.by) - len(rows):,} more (--limit N, or all with --json)"


def _counted(found: Counts) -> str:
    later = found.states[State.DELAYED]
    line = counted(found.states.total(), "pending request")
    return f"{line}, {later:,} of them later" if later else line


def _and_more(count: int) -> str:
    return f", and {count:,} more" if count > 0 else ""


def _shown(by: str, value: object) -> str:
    if value is None:
        return "(cannot be read)"
    if by == "priority":
        return f"priority {value}"
    return str(value) or ("(elsewhere)" if by in OF_URL else "(no slot)")


def _list(session: Context, chosen: Filter) -> int:
    with session.desk() as (_, desk):
        found = [*islice(desk.scan(chosen), session.options.limit or SHOWN)]
    names = ("url", "method", "slot", "priority", "callback", "due")
    figures = [{name: getattr(each, name) for name in names} for each in found]
    return session.print(figures, _list_lines(found), found=bool(found))


def _title(each: Record | FailedRequest) -> str:
    method = "" if each.method == "GET" else f"{each.method} "
    return f"{method}{each.url or '(a URL that cannot be read)'}"


def _list_lines(found: Sequence[Record]) -> Iterator[str]:
    for each in found:
        yield _title(each)
        parts = [f"slot {each.slot}"] if each.slot else []
        parts += [f"priority {each.priority}"] if each.priority else []
        parts += [each.callback] if each.callback else []
        parts += [] if each.due is None else [f"in {each.due:,.0f} s"]
        yield f"  {', '.join(parts)}"


def _drop(session: Context, chosen: Filter) -> int:
    options = session.options
    if not (chosen.slots or chosen.reads):
        raise BloomError("say what to drop: --slot, --url or --callback")
    action: Action = "fail" if options.keep else "drop"
    end = f"fail, for the reason {DROPPED}" if options.keep else "be dropped for good"
    name, found = _changed(session, chosen, action, "pending request", end)
    if found is None:
        return session.print_standing(name)
    dropped = found.states.total()
    figures = {"stands": False, "dropped": dropped, **_figures(found)}
    return session.print(figures, _drop_lines(name, found), found=dropped > 0)


def _changed(
    session: Context, chosen: Filter, action: Action, noun: str, end: str
) -> tuple[str, Counts | None]:
    """Return the name of the JOB, and the answer of its Desk to `action`. Raises BloomError that
    tells their `end` without --yes."""
    with session.desk() as (name, desk):
        if not session.options.yes:
            count = desk.count(chosen).states.total()
            raise BloomError(f"{counted(count, noun)} of {name} would {end}: say so with --yes")
        return name, desk.change(chosen, action)


def _drop_lines(name: str, found: Counts) -> Iterator[str]:
    more = f"; {found.in_flight:,} more are in flight, and stay" if found.in_flight else ""
    yield f"{name}: dropped {_counted(found)}{more}"
    if found.unknown:
        yield f"{counted(found.unknown, 'request')} stayed that cannot be read"


def _hold(session: Context, chosen: Filter) -> int:
    """Hold the slots that are named, and those that match globs, or release them."""
    options, slots = session.options, dict.fromkeys(session.options.slots)
    age = vars(options)["for"]
    seconds = inf if age is None else seconds_of(age)
    if not seconds:
        raise BloomError(f"--for is {age!r}: it must be a time such as 90s, 30m, 12h or 7d")
    is_release = options.action == "release"
    if not (slots or chosen.slots):
        raise BloomError(f"say what to {options.action}: a SLOT, or globs with --slot")
    for slot in slots:
        if not is_storable_slot(slot):
            raise BloomError(f"{slot!r} is no download slot: it has a NUL or half a character")
    with session.desk() as (name, desk):
        held = desk.held()
        if chosen.slots:
            slots |= dict.fromkeys(filter(chosen.includes_slot, held))
            if not is_release:
                slots |= dict.fromkeys(map(str, desk.count(chosen, "slot").by))
        if is_release:
            slots = dict.fromkeys(each for each in held if each in slots)
        if slots and desk.hold([*slots], None if is_release else seconds) is None:
            return session.print_standing(name)
    verb = "released" if is_release else "held"
    figures: dict[str, Any] = {"stands": False, verb: [*slots]}
    line = f"{name}: {counted(len(slots), 'download slot')} {verb}"
    if slots and not is_release:
        figures["seconds"] = None if isinf(seconds) else seconds
        line += f" {held_for(seconds)}"
    shown = ", ".join(islice(slots, SHOWN))
    line += f"{': ' if slots else ''}{shown}{_and_more(len(slots) - SHOWN)}"
    return session.print(figures, [line], found=bool(slots))


_ACTIONS: dict[str, tuple[Callable[[Context, Filter], int], set[str]]] = {
    "count": (_count, {"by", "limit", "url", "callback"}),
    "list": (_list, {"limit", "url", "callback"}),
    "drop": (_drop, {"keep", "yes", "url", "callback"}),
    "hold": (_hold, {"slots", "for"}),
    "release": (_hold, {"slots"}),
}
ACTIONS = tuple(_ACTIONS)


def failed(session: Context) -> None:
    """List the requests of a job or a crawl that have failed, by reason, with how often they were
    asked and why they failed. Changes nothing, and works while the job runs."""
    options = session.options
    with session.desk() as (name, desk):
        found = [each.failed for each in desk.scan(_kept(session)) if each.failed]
    if options.output is not None:
        _write_urls(session, found)
        return
    figures = [
        {**each._asdict(), "time": in_utc(each.time) if each.time else None} for each in found
    ]
    session.print(figures, _failed_lines(name, found))


def retry(session: Context) -> int:
    """Make requests of a job or a crawl that have failed pending again: a job that runs, or its
    next start, asks them once more, goes on with the round, and adds to its feeds. In Redis its
    workers do, at once if there are any."""
    with session.desk() as (name, desk):
        found = desk.change(_kept(session), "retry")
    if found is None:
        return session.print_standing(name)
    count = found.states.total()
    line = f"{counted(count, 'request')} pending again, for {desk.taker}"
    return session.print({"retried": count}, [line])


def drop(session: Context) -> int:
    """Forget requests of a job or a crawl that have failed: they count as done."""
    end = "be forgotten for good"
    name, found = _changed(session, _kept(session), "drop", "failed request", end)
    if found is None:
        return session.print_standing(name)
    session.print_lines([f"forgot {counted(found.states.total(), 'failed request')}"])
    return 0


def _kept(session: Context) -> Filter:
    return Filter(KEPT, reasons=session.options.reason, urls=session.options.url)


def _write_urls(session: Context, found: Sequence[FailedRequest]) -> None:
    """Write their URLs, one a line, to a new file or to standard output."""
    urls = [each.url for each in found if each.url]
    if session.options.output == "-":
        session.print(urls, urls)
        return
    path = Path(session.options.output)
    if path.is_symlink() or path.exists():
        raise BloomError(f"{path} is there already: remove it, or name another file")
    replace(path, "".join(f"{escaped(url)}\n" for url in urls).encode(), mode_of(path))
    line = f"wrote {counted(len(urls), 'URL')} to {path}"
    session.print({"file": str(path), "urls": len(urls)}, [line])


def _failed_lines(name: str, found: Sequence[FailedRequest]) -> Iterator[str]:
    by_reason: defaultdict[str, list[FailedRequest]] = defaultdict(list)
    for each in found:
        by_reason[each.reason].append(each)
    yield f"{name}: {counted(len(found), 'failed request')}"
    for reason, requests in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        yield ""
        yield f"{reason}  {len(requests):,}"
        for each in requests[:FAILED_SHOWN]:
            yield f"  {_title(each)}"
            yield f"    {_details(each)}"
        if len(requests) > FAILED_SHOWN:
            yield f"  and {len(requests) - FAILED_SHOWN:,} more (all with --json, or -o FILE)"


def _details(each: FailedRequest) -> str:
    parts = [counted(each.attempts, "attempt")]
    if each.time:
        parts.append(f"last {in_utc(each.time)}")
    if each.status is not None:
        parts.append(f"status {each.status}")
    if each.exception is not None:
        parts.append(in_brief(each.exception))
    return ", ".join(parts)
