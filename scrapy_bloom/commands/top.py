"""The subcommand top: how far a job is, or a crawl in Redis, in the terminal while it runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import BloomError, RequestFileError, SharedFilterError
from ..redis_backend.watching import RedisWatch
from ..reporting import in_brief, in_bytes, in_percent, visible
from ..sqlite_backend.watching import Watch
from .target import Kind

if TYPE_CHECKING:
    from .running import Session

SECONDS = 1.0
"""Between two looks at the job."""
PATIENCE = 5
"""So many times in a row its file may not be readable, as when it is just opened or closed."""
SHOWN = 8
"""So many slots, reasons and workers are shown …"""
FEWER = 4
LOW = 32
"""… or fewer of a crawl of many workers, where the terminal has fewer lines than this."""


class Watched(Protocol):
    """What is watched."""

    def figures(self) -> dict[str, Any]:
        """Return the figures of now. Raises BloomError."""


def top(session: Session) -> int:
    """Show how far a job or a crawl is, once, or again and again until it is interrupted."""
    target = session.target(session.options.place, Kind.REQUESTS, Kind.REDIS)
    if target.job is not None:
        return _top(session, Watch(target.job.path), target.name)
    with session.crawl(target.name) as (client, key):
        return _top(session, RedisWatch(client, key), f"{client.name} {key[1:-1]}")


def _top(session: Session, watch: Watched, name: str) -> int:
    options = session.options
    if options.follow and not options.json:
        raise BloomError("--follow goes with --json: without both the view is live anyway")
    try:
        if options.json:
            for figures in _looks(watch, once=not options.follow):
                session.print_json(figures)
                sys.stdout.flush()
        else:
            _show(name, watch, once=options.once or not sys.stdout.isatty())
    except KeyboardInterrupt:
        pass  # how it ends
    return 0


def _looks(watch: Watched, *, once: bool) -> Iterator[dict[str, Any]]:
    """Yield the figures of now, one a second or once. Raises BloomError."""
    failures = 0
    while True:
        began = time.monotonic()
        try:
            figures = watch.figures()
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


def _show(name: str, watch: Watched, *, once: bool) -> None:
    try:
        console = import_module("rich.console").Console(highlight=False)
        live = import_module("rich.live").Live
    except ImportError:
        raise BloomError(
            "rich is missing: pip install 'scrapy-bloom[cli]' (--json works without)"
        ) from None
    if once:
        for figures in _looks(watch, once=True):
            console.print(view(name, figures))
        return
    with live(console=console, auto_refresh=False, screen=True) as screen:
        for figures in _looks(watch, once=False):
            screen.update(view(name, figures, height=console.height), refresh=True)


def view(name: str, figures: Mapping[str, Any], *, height: int = LOW) -> Any:
    """Return what the terminal shows of `figures`, for 80 columns and 24 lines and more."""
    shown = FEWER if "workers" in figures and height < LOW else SHOWN
    group, panel = import_module("rich.console").Group, import_module("rich.panel").Panel
    text = import_module("rich.text").Text
    lists = _grid(1, 1)
    lists.add_row(
        _counts("pending by slot", figures["pending_by_slot"], figures["slots"], shown),
        _counts("failed by reason", reasons := figures["failed_by_reason"], len(reasons), shown),
    )
    parts = [_speed(figures), _books(figures), lists]
    if "workers" in figures:
        parts.append(_workers(figures["workers"], shown))
    body = group(*[each for part in parts for each in (part, text(""))][:-1])
    return panel(body, title=text(visible(f" {name}  {_state(figures)} ")), title_align="left")


def _speed(figures: Mapping[str, Any]) -> Any:
    """Return the figures that move, in two halves."""
    left, right, halves = _grid(None, None, None), _grid(None, None, None), _grid(1, 1)
    for key in ("pages", "items", "duplicates", "retries"):
        left.add_row(*_row(key, figures))
    for key in ("pending", "in_flight", "failed"):
        right.add_row(*_row(key, figures))
    time_left = _duration(figures["seconds_left"])
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


def _books(figures: Mapping[str, Any]) -> Any:
    """Return what the job keeps, a line each."""
    table = _grid(None, 1)
    if figures["filter_items"] is not None:
        capacity = figures["filter_capacity"]
        parts = [
            f"{_number(figures['filter_items'])} of {_number(capacity)}"
            f" ({in_percent(figures['filter_items'] / capacity)})",
            in_bytes(figures["filter_bytes"]),
        ]
        if figures["seconds_to_growth"] is not None:
            parts.append(f"grows in {_duration(figures['seconds_to_growth'])}")
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
            f"{_number(figures['commits'])}, the last {_duration(age)} ago,"
            f" the slowest took {slowest:.3g} s",
        )
    sizes = in_bytes(figures["file_bytes"]), in_bytes(figures["log_bytes"])
    table.add_row("requests.sqlite", f"{sizes[0]}, log {sizes[1]}")
    return table


def _counts(title: str, counts: Mapping[str, int], total: int, most: int) -> Any:
    table = _grid(1, None)
    table.add_row(f"[bold]{title}[/bold]", "")
    shown = list(counts.items())[:most]
    text = import_module("rich.text").Text
    for name, count in shown:
        table.add_row(text(in_brief(name) or "(all slots)"), _number(count))
    if total > len(shown):
        table.add_row(f"and {total - len(shown):,} more", "")
    if not shown:
        table.add_row("none", "")
    return table


def _workers(workers: Sequence[Mapping[str, Any]], most: int) -> Any:
    """Return what is in flight by worker, that with the oldest request first."""
    table = _grid(1, None, None, None)
    text = import_module("rich.text").Text
    heads = ("in flight by worker", "requests", "oldest", "lease left")
    table.add_row(*(f"[bold]{head}[/bold]" for head in heads))
    by_age = sorted(workers, key=lambda worker: -(worker["oldest_seconds"] or 0))
    for worker in by_age[:most]:
        left = worker["lease_seconds"]
        table.add_row(
            text(in_brief(worker["name"])),
            _number(worker["in_flight"]),
            _duration(worker["oldest_seconds"]),
            "run out" if left < 0 else _duration(left),
        )
    if len(workers) > most:
        table.add_row(f"and {len(workers) - most:,} more", "", "", "")
    if not workers:
        table.add_row("nobody works on it", "", "", "")
    return table


def _grid(*ratios: int | None) -> Any:
    """Return a table without lines, a column for each ratio; those with one take what room
    there is, the others are numbers but for the first."""
    table = import_module("rich.table").Table.grid(expand=any(ratios), padding=(0, 2))
    for number, ratio in enumerate(ratios):
        table.add_column(
            ratio=ratio,
            no_wrap=True,
            overflow="ellipsis",
            justify="left" if ratio or not number else "right",
        )
    return table


def _state(figures: Mapping[str, Any]) -> str:
    parts = [figures["state"] or "not there"]
    if figures["round"] is not None:
        parts.append(f"round {figures['round']}")
    if figures["seconds"] is not None:
        parts.append(f"for {_duration(figures['seconds'])}")
    return ", ".join(parts)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,}"


def _duration(seconds: float | None) -> str:
    """Return a time in its two largest units: `2 h 5 min`."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f} s"
    for unit, size, part, rest in (("d", 86400, "h", 3600), ("h", 3600, "min", 60)):
        if seconds >= size:
            return f"{seconds // size:,.0f} {unit} {seconds % size // rest:.0f} {part}"
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s" if seconds >= 60 else f"{seconds:.0f} s"
