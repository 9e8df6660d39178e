"""Crawls news day after day: all of them, then what is new or rewritten, then what has expired."""

import json
import sys
import time
from pathlib import Path

from example.news import ARTICLES, LISTS, NEW_A_DAY, REWRITTEN
from harness import read, serve, show, started, table, tail

# A mark counts for so many seconds here; in a real crawl it is days.
PERIOD = 16
COUNTED = ("skipped", "marked", "new", "changed", "unchanged")


def day(folder: Path, number: int, name: str) -> tuple[object, ...] | None:
    """Crawl the news of a day in a job of its own; return a row about that."""
    feed, stats, log = folder / f"{name}.jl", folder / f"{name}.stats", folder / f"{name}.log"
    settings = {
        "JOBDIR": folder / name,
        "STATS_FILE": stats,
        "BLOOM_DELTA_DIR": folder / "memory",
        "BLOOM_DELTA_DAYS": f"{PERIOD}s",
        "FEEDS": json.dumps({str(feed): {"format": "jsonlines"}}),
    }
    pairs = [word for key, value in settings.items() for word in ("-s", f"{key}={value}")]
    port = folder / "site.port"  # the URLs of all days are the same
    same = ["--port", port.read_text(encoding="utf-8")] if port.exists() else []
    with serve(folder, "--day", str(number), *same) as site:
        arguments = ["crawl", "news", "-a", f"start={site.url}", *pairs]
        with started("scrapy", *arguments, log=log) as process:
            status = process.wait()
        answered = len(site.requests())
        site.log.unlink()
    if status:
        print(tail(log))
        return None
    found, items = read(stats), len(feed.read_text(encoding="utf-8").splitlines())
    print(f"{name}: {answered:,} pages fetched", flush=True)
    return name, answered, items, *(int(found[f"bloom/delta_{what}"]) for what in COUNTED)


def days(folder: Path) -> bool:
    """Crawl on three days; true if each crawl has fetched the lists and what it had to."""
    print("A news site on this machine is crawled on three days: 30 s", flush=True)
    began = time.monotonic()
    rows = [day(folder, 1, "first"), day(folder, 2, "second")]
    if time.monotonic() - began > PERIOD:
        print("this machine is too slow for the demo: the marks have expired already")
        return False
    print(f"waiting for {PERIOD * 9 / 8 + 1:.0f} s, until the marks have expired", flush=True)
    time.sleep(PERIOD * 9 / 8 + 1)
    rows.append(day(folder, 2, "after expiry"))
    if None in rows:
        return False
    header = ("crawl", "pages fetched", "items", *COUNTED)
    print("\n" + table(header, [row for row in rows if row is not None]))
    fetched = [row[2] for row in rows if row is not None]
    every = LISTS * (ARTICLES + NEW_A_DAY)
    return fetched == [LISTS * ARTICLES, LISTS * (NEW_A_DAY + len(REWRITTEN)), every]


if __name__ == "__main__":
    sys.exit(show(__doc__, days))
