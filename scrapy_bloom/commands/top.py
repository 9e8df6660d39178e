"""The subcommand top: the figures of a job, or of a crawl in Redis, in the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from shutil import get_terminal_size
from typing import Any

from ..amounts import counted, in_bytes
from ..crawl.failed_request import CAPPED
from ..crawl.figures import Figures
from ..crawl.stats import COUNTED
from ..errors import BloomError, RequestFileError, SharedFilterError
from ..redis.status import CrawlStatus
from ..sqlite.status import JobStatus
from ..texts import duration, escaped, waiting_text
from .context import Context, aligned, flush, table
from .texts import held_for, in_percent, shortened

SECONDS = 1.0
"""Between two readings of the figures."""
PATIENCE = 5
"""A job may be unreadable this many times in a row, as while its file is opened or closed."""
SHOWN = 8
"""The view has this many slots, reasons and workers, or fewer in a terminal of few lines, …"""
LEAST_SHOWN = 2
"""… but at least this many."""
FEW = 2
"""It names this many held slots and feeds."""
NAME = 40
"""Their names have at most this many characters."""
LEAST_NAME = 12
BETWEEN = 4
"""Columns between two tables side by side."""
ENDLESS = sys.maxsize
"""The width and the height of what is no terminal."""
OVER = "\x1b[H\x1b[J"
"""Puts the cursor into the first column of the first line, and clears the terminal from there."""

Listing = tuple[list[str], list[list[str]], int, str]
"""Heads, rows, how many there are in all, and what is said without any."""


def top(session: Context) -> None:
    """Show how far a running job is, or a crawl in Redis with all its workers, live in the
    terminal: its speed, what waits and has failed, and what it keeps, as it was last committed.
    Changes nothing. Ctrl-C ends it."""
    options, found = session.options, session.job_or_crawl(JobStatus, CrawlStatus)
    with found as (name, status), suppress(KeyboardInterrupt):  # how it ends
        if options.follow and not options.json:
            raise BloomError("--follow goes with --json: without both the view is live anyway")
        is_terminal = sys.stdout is not None and sys.stdout.isatty()
        is_live = options.follow if options.json else not options.once and is_terminal
        for figures in _looks(status, once=not is_live):
            if options.json:
                session.print_json(figures)
            else:
                size = get_terminal_size() if is_terminal else ()
                text = "\n".join(lines(name, figures, *size))
                print(f"{OVER if is_live else ''}{text}\n", end="")  # noqa: T201 - see print_json
            flush()


def _looks(status: JobStatus | CrawlStatus, *, once: bool) -> Iterator[Figures]:
    """Yield the present figures, once or each second. Raises BloomError."""
    failures = 0
    while True:
        began = time.monotonic()
        try:
            yield status.figures()
            if once:
                return
            failures = 0
        except (RequestFileError, SharedFilterError):
            failures += 1
            if once or failures > PATIENCE:
                raise
        time.sleep(max(0.0, SECONDS - (time.monotonic() - began)))


def lines(name: str, figures: Figures, width: int = ENDLESS, height: int = ENDLESS) -> list[str]:
    """Return the lines of `figures` for a terminal of that size: tables stand side by side where
    there is room, lists are shorter where there is none. Without a size all is below each other."""
    state = _state(figures)
    first = [
        f"{state}  {shortened(name, max(LEAST_NAME, width - len(state) - 2))}",
        "",
        *_beside(table(_counts(figures)), table(_present(figures)), width),
        "",
        *aligned(_books(figures)),
    ]
    longest = max(LEAST_NAME, min(NAME, width // 2 - 16))
    for shown in range(SHOWN, LEAST_SHOWN - 1, -1):
        slots, reasons, *more = (_listing(each, shown, longest) for each in _lists(figures))
        found = [*first, "", *_beside(slots, reasons, width)]
        found += [line for each in more for line in ("", *each)]
        if len(found) < height:
            break
    found = [line if len(line) <= width else f"{line[: width - 1]}…" for line in found]
    return found[: height - 1]


def _beside(left: list[str], right: list[str], width: int) -> list[str]:
    """Return two tables side by side if `width` allows it, else one below the other."""
    start = max(map(len, left)) + BETWEEN
    if not start + max(map(len, right)) <= width < ENDLESS:
        return [*left, "", *right]
    pairs = zip_longest(left, right, fillvalue="")
    return [f"{one:<{start}}{other}".rstrip() for one, other in pairs]


def _listing(listing: Listing, shown: int, longest: int) -> list[str]:
    """Return the lines of the first rows of `listing`, with names of at most `longest`
    characters."""
    heads, rows, total, none = listing
    found = table([heads, *([shortened(name, longest), *more] for name, *more in rows[:shown])])
    left = total - min(shown, len(rows))
    rest = none if not rows else f"and {left:,} more" if left else ""
    return [*found, rest] if rest else found


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
    rows = [("waiting", waiting_text(figures["later"], figures["next_due"], 0))]
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
    return [[name or "(all slots)", _number(count)] for name, count in counts.items()]


def _workers(workers: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return rows of the workers, with the oldest request first."""
    return [
        [
            worker["name"],
            _number(worker["in_flight"]),
            duration(worker["oldest_seconds"]),
            "run out" if worker["lease_seconds"] < 0 else duration(worker["lease_seconds"]),
        ]
        for worker in sorted(workers, key=lambda worker: -(worker["oldest_seconds"] or 0))
    ]


def _state(figures: Figures) -> str:
    parts: list[str] = [figures["state"]]
    if figures["round"] is not None:
        parts.append(escaped(f"round {figures['round']}"))
    if figures["seconds"] is not None:
        parts.append(f"for {duration(figures['seconds'])}")
    return ", ".join(parts)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,}"
