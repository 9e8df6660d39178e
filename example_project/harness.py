"""Serves the site, crawls it in processes of their own, and holds the result against its list."""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urljoin

from example.model import Page, pages, session_of
from example.settings import USER_AGENT
from scrapy import Request
from scrapy.utils.request import fingerprint

PROJECT = Path(__file__).resolve().parent
SESSION = session_of(USER_AGENT)
# The site starts, and hears of a running crawl, within this many seconds, or something is stuck.
PATIENCE = 60
# Seconds between two lines about a run, where they do not replace one another.
SELDOM = 5
Result = TypeVar("Result")


@dataclass(frozen=True)
class Site:
    """A site that is being served, and the log of its 200s."""

    url: str
    log: Path

    def fetched(self) -> int:
        return self.log.read_bytes().count(b"\n")

    def request(self, method: str, target: str, body: str) -> Request:
        return Request(urljoin(self.url, target), method=method, body=body)

    def requests(self) -> list[Request]:
        """Return the requests that got a 200, in the order of the answers."""
        lines = self.log.read_text(encoding="utf-8").splitlines()
        return [self.request(*json.loads(line)) for line in lines]


@dataclass(frozen=True)
class Run:
    """One run of a crawl: how many 200s the site gave it, its exit status, its last stats, and the
    seconds of CPU time that its process took."""

    fetched: int = 0
    status: int | None = None
    stats: Mapping[str, Any] = field(default_factory=dict)
    cpu: float = 0

    @property
    def reason(self) -> str | None:
        """Return why the spider closed, None if it was not given the time to."""
        return self.stats.get("finish_reason")

    @property
    def filtered(self) -> int:
        return int(self.stats.get("dupefilter/filtered", 0))

    @property
    def offered(self) -> int:
        """Return how many requests the dupefilter was asked about: retries pass it by."""
        accepted = self.stats.get("scheduler/enqueued", 0) - self.stats.get("retry/count", 0)
        return self.filtered + int(accepted)


@dataclass(frozen=True)
class Account:
    """What the site's log says about a whole job, however many runs it took."""

    fetched: int
    twice: list[Request]
    missed: list[Page]


class Progress:
    """Shows how far a run is: a line that changes on a terminal, else, or beside others, one now
    and then."""

    def __init__(self, label: str, alone: bool) -> None:
        self.label = label
        self.total = len(pages(SESSION))
        self.live = alone and sys.stdout.isatty()
        self.began = self.shown = time.monotonic()

    def show(self, run: Run, note: str = "") -> None:
        now = time.monotonic()
        if not (note or self.live) and now - self.shown < SELDOM:
            return
        self.shown = now
        line = (
            f"   {self.label}: {run.fetched:,} of {self.total:,} pages fetched,"
            f" duplicates dropped: {run.filtered:,}{note}, {now - self.began:.0f} s"
        )
        if self.live:
            # Written over what was there; only the last word on a run stays.
            print(f"\r\x1b[K{line}", end="\n" if note else "", flush=True)
        else:
            print(line, flush=True)


@contextlib.contextmanager
def started(module: str, *arguments: str, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a module of the project, out of reach of the terminal's Ctrl-C, and see it end."""
    command = [sys.executable, "-m", module, *arguments]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, cwd=PROJECT, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


@contextlib.contextmanager
def serve(folder: Path, *options: str) -> Iterator[Site]:
    """Serve the embedded site from a process of its own, its files in `folder`."""
    port, answers, log = folder / "site.port", folder / "site.jsonl", folder / "site.log"
    # A note of an earlier site would be taken for one of this.
    port.unlink(missing_ok=True)
    arguments = ("--port-file", str(port), "--log", str(answers), "--with-parent", *options)
    with started("example.site", *arguments, log=log) as process:
        deadline = time.monotonic() + PATIENCE
        while not port.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the site did not start:\n{tail(log)}")
            time.sleep(0.02)
        yield Site(f"http://127.0.0.1:{port.read_text(encoding='utf-8')}/", answers)


def crawl(site: Site, job: Path, label: str, **options: Any) -> Run:
    """Run a job until it ends, with nothing beside it; the options are those of `crawling`."""
    (run,) = side_by_side(crawling(site, job, label, alone=True, **options))
    return run


def side_by_side(*crawls: Generator[None, None, Result]) -> list[Result]:
    """Return what the crawls return, which yield while they wait; end all of them with one."""
    results: dict[int, Result] = {}
    with contextlib.ExitStack() as ends:
        for each in crawls:
            ends.callback(each.close)
        while len(results) < len(crawls):
            for number, each in enumerate(crawls):
                if number not in results:
                    try:
                        next(each)
                    except StopIteration as end:
                        results[number] = end.value
            time.sleep(0.05)
    return [results[number] for number in range(len(crawls))]


def crawling(
    site: Site,
    job: Path,
    label: str,
    *,
    alone: bool = False,
    settings: Mapping[str, object] | None = None,
    stop_after: int | None = None,
    stop_with: signal.Signals = signal.SIGINT,
) -> Generator[None, None, Run]:
    """Run a job until it ends; send it `stop_with` once the site gave it `stop_after` 200s."""
    before, progress = site.fetched(), Progress(label, alone)
    stats, log = job.with_suffix(".stats"), job.with_suffix(".log")
    stats.unlink(missing_ok=True)
    options = {"JOBDIR": job, "STATS_FILE": stats, **(settings or {})}
    pairs = [word for name, value in options.items() for word in ("-s", f"{name}={value}")]
    run, heard, stopped = Run(), time.monotonic(), ""
    with started("scrapy", "crawl", "site", "-a", f"start={site.url}", *pairs, log=log) as process:
        while (cpu := ended(process)) is None:
            fetched = site.fetched() - before
            if fetched != run.fetched:
                heard = time.monotonic()
            elif time.monotonic() - heard > PATIENCE:
                raise RuntimeError(f"{label}: stuck after {fetched:,} pages:\n{tail(log)}")
            if stop_after and not stopped and fetched >= stop_after:
                process.send_signal(stop_with)
                stopped = f", {stop_with.name}"
            run = Run(fetched, None, read(stats))
            progress.show(run)
            yield
    run = Run(site.fetched() - before, process.returncode, read(stats), cpu)
    progress.show(run, stopped or f", {run.reason or f'exit {run.status}'}")
    return run


def ended(process: "subprocess.Popen[bytes]") -> float | None:
    """Return the seconds of CPU time that a process has taken, None while it runs."""
    pid, status, usage = os.wait4(process.pid, os.WNOHANG)
    if not pid:
        return None
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def read(stats: Path) -> dict[str, Any]:
    """Return the stats that a crawl wrote last, none if it wrote none yet."""
    try:
        return dict(json.loads(stats.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}


def tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])


def account(site: Site) -> Account:
    """Hold the site's log against the site's own list, by Scrapy's fingerprints."""
    answered = {fingerprint(request): request for request in site.requests()}
    times = Counter(map(fingerprint, site.requests()))
    known = {fingerprint(site.request(*page)): page for page in pages(SESSION)}
    return Account(
        fetched=times.total(),
        twice=[answered[key] for key, count in times.items() if count > 1],
        missed=[page for key, page in known.items() if key not in times],
    )


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Lay out rows in columns: the first to the left, the others to the right."""
    cells = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    lines = [list(header), *cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]).rstrip()
        for first, *rest in lines
    )


def show(description: str | None, act: Callable[[Path], bool]) -> int:
    """Run a demo from the command line, in a folder of its own that is removed again, and
    return its exit status: 0 if `act` is content."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--keep", action="store_true", help="keep the job directory and the logs")
    options = parser.parse_args()
    # Ended by `kill` or with its terminal, the demo tidies up as it does after Ctrl-C.
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="scrapy-bloom-demo-"))
    try:
        return 0 if act(folder) else 1
    except RuntimeError as error:
        print(f"\n{error}")
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted")
        return 130
    finally:
        if options.keep:
            print(f"kept {folder}")
        else:
            shutil.rmtree(folder)
