"""The subcommand top: the figures of a job, or of a crawl in Redis, in the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import BloomError, RequestFileError, SharedFilterError
from ..redis_backend.status import CrawlStatus
from ..reporting import duration, in_brief, in_bytes, in_percent, visible, waiting
from ..sqlite_backend.status import JobStatus
from .target import Kind

if TYPE_CHECKING:
    from ..job.figures import Figures, Status
    from .running import Session

SECONDS = 1.0
"""Between two readings of the figures."""
PATIENCE = 5
"""A job may be unreadable this many times in a row, as while its file is opened or closed."""
SHOWN = 8
"""The view has this many slots, reasons and workers …"""
FEWER = 4
LOW = 32
"""… or fewer of a crawl of many workers, where the terminal has fewer lines than this."""


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
        raise BloomError(
            "rich is missing: pip install 'scrapy-bloom[cli]' (--json works without)"
        ) from None
    if once:
        for figures in _looks(status, once=True):
            console.print(view(name, figures))
        return
    with live(console=console, auto_refresh=False, screen=True) as screen:
        for figures in _looks(status, once=False):
            screen.update(view(name, figures, height=console.height), refresh=True)


def view(name: str, figures: Figures, *, height: int = LOW) -> Any:
    """Return the view of `figures`, for a terminal of at least 80 columns and 24 lines."""
    shown = FEWER if "workers" in figures and height < LOW else SHOWN
    group, panel = import_module("rich.console").Group, import_module("rich.panel").Panel
    text = import_module("rich.text").Text
    lists = _grid(1, 1)
    by_slot, by_reason = _rows(figures["pending_by_slot"]), _rows(figures["failed_by_reason"])
    lists.add_row(
        _listing(["pending by slot", ""], by_slot[:shown], figures["slots"], "none"),
        _listing(["failed by reason", ""], by_reason[:shown], len(by_reason), "none"),
    )
    parts = [_speed(figures), _books(figures), lists]
    if "workers" in figures:
        parts.append(_workers(figures["workers"], shown))
    body = group(*[each for part in parts for each in (part, text(""))][:-1])
    return panel(body, title=text(visible(f" {name}  {_state(figures)} ")), title_align="left")


def _speed(figures: Figures) -> Any:
    """Return the counts and their rates, in two halves."""
    left, right, halves = _grid(None, None, None), _grid(None, None, None), _grid(1, 1)
    for key in ("pages", "items", "duplicates", "retries"):
        left.add_row(*_row(key, figures))
    for key in ("pending", "in_flight", "failed"):
        right.add_row(*_row(key, figures))
    time_left = duration(figures["seconds_left"])
    if (figures["pending_per_second"] or 0) > 0:
        time_left = "grows"
    right.add_row("time left", time_left, "")
    halves.add_row(left, right)
    return halves


def _row(key: str, figures: Mapping[str, Any]) -> tuple[str, str, str]:
    sign = "+" if key == "pending" else ""
    rate = figures.get(f"{key}_per_second")
    return (
        key.replace("_", " "),
        _number(figures[key]),
        "" if rate is None else f"{rate:{sign},.1f}/s",
    )


def _books(figures: Figures) -> Any:
    """Return a line for each store: the filter, the memory or the file, the commits."""
    table = _grid(None, 1)
    if waits := waiting(figures.get("later", 0), figures.get("next_due"), figures.get("held", 0)):
        table.add_row("waiting", waits)
    items, capacity = figures["filter_items"], figures["filter_capacity"]
    if items is not None and capacity is not None:
        parts = [
            f"{items:,} of {capacity:,} ({in_percent(items / capacity)})",
            in_bytes(figures["filter_bytes"] or 0),
        ]
        if figures["seconds_to_growth"] is not None:
            parts.append(f"grows in {duration(figures['seconds_to_growth'])}")
        table.add_row("filter", ", ".join(parts))
    if "workers" in figures:
        nbytes = figures["memory_bytes"]
        known = "not known: the right MEMORY is missing" if nbytes is None else in_bytes(nbytes)
        table.add_row("memory of Redis", known)
        return table
    if figures["commits"] is not None:
        age, slowest = figures["seconds_since_commit"], figures["commit_seconds_max"]
        table.add_row(
            "commits",
            f"{_number(figures['commits'])}, the last {duration(age)} ago,"
            f" the slowest took {slowest:.3g} s",
        )
    sizes = in_bytes(figures["file_bytes"]), in_bytes(figures["log_bytes"])
    table.add_row("requests.sqlite", f"{sizes[0]}, log {sizes[1]}")
    return table


def _rows(counts: Mapping[str, int]) -> list[tuple[str, ...]]:
    return [(name or "(all slots)", _number(count)) for name, count in counts.items()]


def _workers(workers: Sequence[Mapping[str, Any]], most: int) -> Any:
    """Return a table of the workers, with the oldest request first."""
    by_age = sorted(workers, key=lambda worker: -(worker["oldest_seconds"] or 0))
    rows = [
        (
            worker["name"],
            _number(worker["in_flight"]),
            duration(worker["oldest_seconds"]),
            "run out" if worker["lease_seconds"] < 0 else duration(worker["lease_seconds"]),
        )
        for worker in by_age[:most]
    ]
    heads = ["in flight by worker", "requests", "oldest", "lease left"]
    return _listing(heads, rows, len(workers), "no worker is at work on it")


def _listing(heads: list[str], rows: Sequence[tuple[str, ...]], total: int, none: str) -> Any:
    """Return a table of `rows`, the first of `total`. Their first cells may be any text."""
    table, text = _grid(1, *[None] * (len(heads) - 1)), import_module("rich.text").Text
    table.add_row(*(f"[bold]{head}[/bold]" for head in heads))
    for name, *cells in rows:
        table.add_row(text(in_brief(name)), *cells)
    if total > len(rows):
        table.add_row(f"and {total - len(rows):,} more")
    if not rows:
        table.add_row(none)
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
        parts.append(f"round {figures['round']}")
    if figures["seconds"] is not None:
        parts.append(f"for {duration(figures['seconds'])}")
    return ", ".join(parts)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,}"
