"""The subcommand top: the figures of a job, or of a crawl in Redis, in the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import BloomError, RequestFileError, SharedFilterError
from ..job.failure import CAPPED
from ..job.figures import COUNTED
from ..redis_backend.status import CrawlStatus
from ..reporting import (
    counted,
    duration,
    held_for,
    in_brief,
    in_bytes,
    in_percent,
    shortened,
    visible,
    waiting,
)
from ..sqlite_backend.status import JobStatus
from .running import aligned, table
from .target import Kind

if TYPE_CHECKING:
    from ..job.figures import Figures, Status
    from .running import Session

SECONDS = 1.0
"""Between two readings of the figures."""
PATIENCE = 5
"""A job may be unreadable this many times in a row, as while its file is opened or closed."""
SHOWN = 8
"""The view has this many slots, reasons and workers, or fewer in a terminal of few lines, …"""
LEAST_SHOWN = 2
"""… but at least this many."""
TALL = 100
LINES = {2: 11, 3: 14}
"""Lines of the view beside those of books and in lists, by the number of lists."""
FEW = 2
"""It names this many held slots and feeds."""
NAME = 40
"""Their names have at most this many characters."""
BESIDE_TITLE = 8
LEAST_NAME = 12

Listing = tuple[list[str], list[list[str]], int, str]
"""Heads, rows, how many there are in all, and what is said without any."""


def top(session: Session) -> int:
    """Show the figures once, or each second until an interrupt."""
    target = session.target(session.options.place, Kind.REQUESTS, Kind.REDIS)
    if target.job is not None:
        return _top(session, JobStatus(target.job.path), target.name)
    with session.crawl(target.name) as (client, key):
        return _top(session, CrawlStatus(client, key), f"{client.name} {key[1:-1]}")


def _top(session: Session, status: Status, name: str) -> int:
    options = session.options
    if options.follow and not options.json:
        raise BloomError("--follow goes with --json: without both the view is live anyway")
    try:
        if options.json:
            for figures in _looks(status, once=not options.follow):
                session.print_json(figures)
                sys.stdout.flush()
        else:
            _show(name, status, once=options.once or not sys.stdout.isatty())
    except KeyboardInterrupt:
        pass  # how it ends
    return 0


def _looks(status: Status, *, once: bool) -> Iterator[Figures]:
    """Yield the present figures, once or each second. Raises BloomError."""
    failures = 0
    while True:
        began = time.monotonic()
        try:
            figures = status.figures()
        except (RequestFileError, SharedFilterError):
            failures += 1
            if once or failures > PATIENCE:
                raise
        else:
            failures = 0
            yield figures
            if once:
                return
        time.sleep(max(0.0, SECONDS - (time.monotonic() - began)))


def _show(name: str, status: Status, *, once: bool) -> None:
    try:
        console = import_module("rich.console").Console(highlight=False)
        live = import_module("rich.live").Live
    except ImportError:
        if not once:
            raise BloomError(
                "rich is missing: pip install 'scrapy-bloom[cli]' (--once and --json work without)"
            ) from None
        for figures in _looks(status, once=True):
            print(*map(visible, lines(name, figures)), sep="\n")  # noqa: T201 - see Session
        return
    if once:
        for figures in _looks(status, once=True):
            console.print(view(name, figures, width=console.width))
        return
    with live(console=console, auto_refresh=False, screen=True) as screen:
        for figures in _looks(status, once=False):
            shown = view(name, figures, width=console.width, height=console.height)
            screen.update(shown, refresh=True)


def lines(name: str, figures: Figures) -> Iterator[str]:
    """Yield the lines of `figures`, as plain text of any width."""
    yield f"{_state(figures)}  {name}"
    for rows in (_counts(figures), _present(figures)):
        yield ""
        yield from table(rows)
    yield ""
    yield from aligned(_books(figures))
    for heads, rows, total, none in _lists(figures):
        yield ""
        yield from table([heads, *rows[:SHOWN]])
        if more := _more(rows, SHOWN, total, none):
            yield more


def view(name: str, figures: Figures, *, width: int = 80, height: int = TALL) -> Any:
    """Return the view of `figures`, for a terminal of at least 80 columns and 24 lines."""
    group, panel = import_module("rich.console").Group, import_module("rich.panel").Panel
    text = import_module("rich.text").Text
    rows, found = _books(figures), _lists(figures)
    counts = _filled(_grid(*[None] * 4), _counts(figures))
    present = _filled(_grid(None, None, None), _present(figures))
    # the lists of a crawl's workers are wide, and stand below
    lines_left = height - len(rows) - LINES[len(found)]
    shown = max(LEAST_SHOWN, min(SHOWN, lines_left // (len(found) - 1)))
    listings = [_listing(each, shown) for each in found]
    parts = [
        _beside(None, counts, import_module("rich.align").Align.right(present)),
        _filled(_grid(None, 1), rows),
        _beside(1, *listings[:2]),
        *listings[2:],
    ]
    body = group(*[each for part in parts for each in (part, text(""))][:-1])
    state = _state(figures)
    title = f"{state}  {shortened(name, max(LEAST_NAME, width - len(state) - BESIDE_TITLE))}"
    return panel(body, title=text(title), title_align="left")


def _counts(figures: Figures) -> list[list[str]]:
    """Return rows of what this start has counted, of the rates, and of what the round has."""
    of_job = "workers" not in figures
    rows = [["", "this start" if of_job else "crawl", "", *(["round"] if of_job else [])]]
    values: Mapping[str, Any] = figures
    for key in COUNTED:
        of_round = [_number(values[f"round_{key}"])] if of_job else []
        rows.append([key, _number(values[key]), _rate(key, values), *of_round])
    return rows


def _present(figures: Figures) -> list[list[str]]:
    """Return rows of what is there now."""
    time_left = duration(figures["seconds_left"])
    if (figures["pending_per_second"] or 0) > 0:
        time_left = "grows"
    capped = figures["failed_by_reason"].get(CAPPED)
    return [
        ["pending", _number(figures["pending"]), _rate("pending", figures)],
        ["time left", time_left, ""],
        ["in flight", _number(figures["in_flight"]), ""],
        ["failed", _number(figures["failed"]), ""],
        *([["  capped", _number(capped), ""]] if capped else []),
    ]


def _rate(key: str, figures: Mapping[str, Any]) -> str:
    rate = figures.get(f"{key}_per_second")
    return "" if rate is None else f"{rate:{'+' if key == 'pending' else ''},.1f}/s"


def _books(figures: Figures) -> list[tuple[str, str]]:
    """Return name and text of each line about what waits, is held and is stored."""
    rows = []
    if waits := waiting(figures["later"], figures["next_due"], 0):
        rows.append(("waiting", waits))
    held = figures["held_slots"].items()
    names = [f"{shortened(slot, NAME)} {held_for(left)}" for slot, left in held]
    rows += _named("held", names, figures["held"])
    items, capacity = figures["filter_items"], figures["filter_capacity"]
    if items is not None and capacity is not None:
        parts = [
            f"{items:,} of {capacity:,} ({in_percent(items / capacity)})",
            in_bytes(figures["filter_bytes"] or 0),
        ]
        if figures["seconds_to_growth"] is not None:
            parts.append(f"grows in {duration(figures['seconds_to_growth'])}")
        rows.append(("filter", ", ".join(parts)))
    if "workers" in figures:
        nbytes = figures["memory_bytes"]
        known = "not known: the right MEMORY is missing" if nbytes is None else in_bytes(nbytes)
        return [*rows, ("memory of Redis", known)]
    if figures["commits"] is not None:
        age, slowest = figures["seconds_since_commit"], figures["commit_seconds_max"]
        times = f"the last {duration(age)} ago, the slowest took {slowest:.3g} s"
        rows.append(("commits", f"{_number(figures['commits'])}, {times}"))
    sizes = in_bytes(figures["file_bytes"]), in_bytes(figures["log_bytes"])
    rows.append(("requests.sqlite", f"{sizes[0]}, log {sizes[1]}"))
    feeds = figures["feeds"]
    names = [f"{shortened(feed['uri'], NAME)}, {counted(feed['items'], 'item')}" for feed in feeds]
    return rows + _named("feed", names, len(feeds))


def _named(what: str, names: Sequence[str], total: int) -> list[tuple[str, str]]:
    """Return lines of the first names, and of how many more there are."""
    rows = [(what, name) for name in names[:FEW]]
    return rows + ([("", f"and {total - len(rows):,} more")] if total > len(rows) else [])


def _lists(figures: Figures) -> list[Listing]:
    """Return pending requests by slot, failed ones by reason, and the workers of a crawl."""
    by_slot, by_reason = _rows(figures["pending_by_slot"]), _rows(figures["failed_by_reason"])
    found: list[Listing] = [
        (["pending by slot", ""], by_slot, figures["slots"], "none"),
        (["failed by reason", ""], by_reason, len(by_reason), "none"),
    ]
    if "workers" in figures:
        heads = ["in flight by worker", "requests", "oldest", "lease left"]
        rows = _workers(figures["workers"])
        found.append((heads, rows, len(rows), "no worker is at work on it"))
    return found


def _rows(counts: Mapping[str, int]) -> list[list[str]]:
    return [[in_brief(name or "(all slots)"), _number(count)] for name, count in counts.items()]


def _workers(workers: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return rows of the workers, with the oldest request first."""
    by_age = sorted(workers, key=lambda worker: -(worker["oldest_seconds"] or 0))
    return [
        [
            in_brief(worker["name"]),
            _number(worker["in_flight"]),
            duration(worker["oldest_seconds"]),
            "run out" if worker["lease_seconds"] < 0 else duration(worker["lease_seconds"]),
        ]
        for worker in by_age
    ]


def _more(rows: Sequence[object], shown: int, total: int, none: str) -> str:
    """Return the line below the first rows of a list."""
    if not rows:
        return none
    left = total - min(shown, len(rows))
    return f"and {left:,} more" if left else ""


def _listing(listing: Listing, shown: int) -> Any:
    """Return a table of the first rows of `listing`. Their cells may be any text."""
    heads, rows, total, none = listing
    table, text = _grid(1, *[None] * (len(heads) - 1)), import_module("rich.text").Text
    table.add_row(*(text(head, style="bold") for head in heads))
    _filled(table, rows[:shown])
    if more := _more(rows, shown, total, none):
        table.add_row(more)
    return table


def _beside(ratio: int | None, left: Any, right: Any) -> Any:
    """Return tables side by side: halves, or without a ratio the left one as wide as it is."""
    table = _grid(ratio, 1)
    table.add_row(left, right)
    return table


def _filled(table: Any, rows: Iterable[Sequence[str]]) -> Any:
    """Return `table` with `rows`, of any text."""
    text = import_module("rich.text").Text
    for row in rows:
        table.add_row(*map(text, row))
    return table


def _grid(*ratios: int | None) -> Any:
    """Return a table without lines, of a column for each ratio. Columns with a ratio share the
    width; the others, after the first, are numbers."""
    table = import_module("rich.table").Table.grid(expand=any(ratios), padding=(0, 2))
    for number, ratio in enumerate(ratios):
        table.add_column(
            ratio=ratio,
            no_wrap=True,
            overflow="ellipsis",
            justify="left" if ratio or not number else "right",
        )
    return table


def _state(figures: Figures) -> str:
    parts: list[str] = [figures["state"]]
    if figures["round"] is not None:
        parts.append(visible(f"round {figures['round']}"))
    if figures["seconds"] is not None:
        parts.append(f"for {duration(figures['seconds'])}")
    return ", ".join(parts)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,}"
