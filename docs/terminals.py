"""Draws the terminals of the documents: `python docs/terminals.py` writes them to docs/images.

It crawls the site of example_project, kills the crawl and goes on, and looks at it with `scrapy
bloom top`; what is drawn is what these commands have printed.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.text import Text

DOCS = Path(__file__).resolve().parent
PROJECT = DOCS.parent / "example_project"
sys.path.insert(0, str(PROJECT))

import harness  # noqa: E402

WIDTH = 80
PAGES = 1_300
"""The crawl is killed when the site has given so many pages, and looked at with twice as many."""
SHOWN = re.compile(r"\[scrapy_bloom\S*\] (?!INFO: Early|INFO: Drop).*|INFO: Spider closed.*")


def draw(lines: Iterable[str], title: str) -> str:
    """Return the lines, which may have colours, as the SVG of a terminal."""
    console = Console(
        record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    for line in lines:
        console.print(Text.from_ansi(line))
    svg = console.export_svg(title=title, unique_id=re.sub(r"\W", "-", title))
    # a picture in a page loads no fonts
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def log_lines(log: Path) -> list[str]:
    """Return what matters of a crawl's log, without the time."""
    found = (SHOWN.search(line) for line in log.read_text(encoding="utf-8").splitlines())
    return [match[0] for match in found if match]


def crawl(folder: Path, served: harness.Site, log: Path) -> subprocess.Popen[bytes]:
    """Start the crawl as a user would, in `folder`."""
    command = [sys.executable, "-m", "scrapy", "crawl", "site", "-a", f"start={served.url}"]
    command += ["-s", "JOBDIR=jobs/site", "-o", "items.jsonl", "-s", "BLOOM_CAPACITY=10_000"]
    command += ["-s", "CONCURRENT_REQUESTS=8"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (PROJECT, DOCS.parent))),
        "SCRAPY_SETTINGS_MODULE": "example.settings",
    }
    with log.open("wb") as output:
        return subprocess.Popen(command, cwd=folder, env=environment, stderr=output, stdout=output)


def top(folder: Path) -> list[str]:
    """Return what `scrapy bloom top jobs/site --once` prints in a terminal of 80 columns."""
    environment = {**os.environ, "COLUMNS": str(WIDTH), "FORCE_COLOR": "1"}
    command = [sys.executable, "-m", "scrapy_bloom", "top", "jobs/site", "--once"]
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return ended.stdout.splitlines()


def main() -> None:
    typed = "\x1b[1;32m$\x1b[0m scrapy crawl site -s JOBDIR=jobs/site -o items.jsonl"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with harness.serve(folder) as served:
            first, second = folder / "first.log", folder / "second.log"
            process = crawl(folder, served, first)
            while served.fetched() < PAGES:
                time.sleep(0.05)
            process.send_signal(signal.SIGKILL)
            process.wait()
            process = crawl(folder, served, second)
            while served.fetched() < 2 * PAGES:
                time.sleep(0.05)
            seen = top(folder)
            process.wait()
            account = harness.account(served)
        items = [json.loads(line) for line in (folder / "items.jsonl").read_text().splitlines()]
        command = "\x1b[1;32m$\x1b[0m scrapy bloom top jobs/site --once"
        (DOCS / "images" / "top.svg").write_text(
            draw([command, *seen], "scrapy bloom top"), encoding="utf-8"
        )
        lines = [
            typed,
            *log_lines(first),
            "\x1b[1;31mKilled\x1b[0m",
            "",
            typed,
            *log_lines(second),
            "",
        ]
        lines += [f"\x1b[1m{len(items):,} items; pages missed: {len(account.missed)}\x1b[0m"]
        picture = draw(lines, "a crawl that is killed, and goes on")
        (DOCS / "images" / "killed.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
