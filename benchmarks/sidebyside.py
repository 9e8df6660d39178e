"""What the benchmarks share: fair clocks, runs by turns, ratios, and tables."""

import argparse
import gc
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import exp, log
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TREE = Path(os.environ.get("BENCH_TREE", ROOT))
"""The checkout whose package is measured: this one, or that of `python -m benchmarks --tree`."""
sys.path[:0] = [str(TREE), str(TREE / "example_project")]  # before what is installed
os.environ["PYTHONPATH"] = os.pathsep.join([str(TREE), os.environ.get("PYTHONPATH", "")])
CHUNK = 500
OPERATIONS = ("add new", "add known", "test known", "test absent")


def parser_of(about: str, **given: Any) -> argparse.ArgumentParser:
    """Return a parser of options, each given as its default, or as that and its help."""
    parser = argparse.ArgumentParser(description=about.partition("\n\n")[0])
    for name, each in given.items():
        default, told = each if isinstance(each, tuple) else (each, None)
        parser.add_argument(f"--{name}", type=type(default), default=default, help=told)
    return parser


class Clock:
    """Times calls of competing functions in small chunks.

    The sum over the chunks of the best time of each is the least disturbed by whatever
    else the machine does; the sum of one run can be off by half. Processor time counts.
    """

    def __init__(self) -> None:
        self.best: dict[str, dict[int, float]] = {}
        self.items: dict[str, int] = {}

    def run(self, name: str, call: Callable[[Any], object], items: Sequence[object]) -> list:
        """Call with each item, once; return the answers."""
        best = self.best.setdefault(name, {})
        self.items[name] = len(items)
        answers = []
        gc.collect()
        gc.disable()
        for start in range(0, len(items), CHUNK):
            chunk = items[start : start + CHUNK]
            started = time.process_time()
            found = [call(item) for item in chunk]
            taken = time.process_time() - started
            best[start] = min(taken, best.get(start, taken))
            answers += found
        gc.enable()
        return answers

    def each(self, name: str) -> float:
        """Microseconds for one item."""
        return sum(self.best[name].values()) / self.items[name] * 1e6


def operations(made: Mapping[str, Any], capacity: int, keys: int, rounds: int) -> None:
    """Fill sets to half of `capacity`; print what OPERATIONS take, relative to BloomFilter's."""
    for _ in range(capacity // 2 - keys * rounds):
        key = os.urandom(20)
        for tested in made.values():
            tested.add(key)
    clock = Clock()
    for _ in range(rounds):
        new, absent = ([os.urandom(20) for _ in range(keys)] for _ in range(2))
        for name, tested in made.items():
            calls = (tested.add, tested.add, tested.__contains__, tested.__contains__)
            for what, call, these in zip(OPERATIONS, calls, (new, new, new, absent), strict=True):
                clock.run(f"{name} {what}", call, these)
    each = {name: [clock.each(f"{name} {what}") for what in OPERATIONS] for name in made}
    rows = []
    for name, times in each.items():
        ratios = [time / own for time, own in zip(times, each["BloomFilter"], strict=True)]
        numbers = [f"{ratio:.2f}" for ratio in (*ratios, mean(ratios))]
        rows.append([name, *numbers, *(f"{time * 1000:.0f}" for time in times)])
    print(f"half full, capacity {capacity:,}: time relative to BloomFilter's, and in ns")
    table(["", *OPERATIONS, "mean", *(f"{operation}/ns" for operation in OPERATIONS)], rows)


def in_turns(arms: Iterable[Any], rounds: int, run: Callable[[Any], Any]) -> dict[Any, list]:
    """Run all of `arms` in random order, so many times; return what came of each, by round."""
    runs: dict[Any, list] = {arm: [] for arm in arms}
    for _ in range(rounds):
        for arm in random.sample([*runs], len(runs)):
            runs[arm].append(run(arm))
            print(arm, runs[arm][-1], file=sys.stderr, flush=True)
    return runs


def spread(ours: Iterable[float], theirs: Iterable[float]) -> list[str]:
    """The median of the ratios of runs that followed each other, and the lowest and highest."""
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    return [f"{statistics.median(ratios):.2f}", f"{ratios[0]:.2f} to {ratios[-1]:.2f}"]


def medians(form: str, *arms: Iterable[float]) -> list[str]:
    """Return the median of each of `arms`, formatted."""
    return [format(statistics.median(arm), form) for arm in arms]


def mean(ratios: Iterable[float]) -> float:
    """Return the geometric mean."""
    logs = [log(ratio) for ratio in ratios]
    return exp(sum(logs) / len(logs))


def forked(
    what: str, work: Callable[[Callable[[object], None]], object]
) -> tuple[Any, resource.struct_rusage]:
    """Return what `work` hands to the function it is given, in a forked process, which has
    imported everything already; and the resource usage of that."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:

        def answer(found: object) -> None:
            os.write(writing, json.dumps(found).encode())
            os._exit(0)

        try:
            work(answer)
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        found = pipe.read()
    _, status, used = os.wait4(pid, 0)
    if status:
        sys.exit(f"{what} failed")
    return json.loads(found), used


def seconds_of(used: resource.struct_rusage) -> float:
    """Return the CPU seconds of a process."""
    return used.ru_utime + used.ru_stime


SIDES = {
    "stock Scrapy": [],
    "scrapy-bloom": ["-s", 'ADDONS={"scrapy_bloom.Addon": 300}', "-s", "JOBDIR=job"],
}


def crawl_waiting(folder: str, side: str, pages: object, *words: str) -> tuple[float, float]:
    """Crawl with `waiting_spider.py` in a folder; return when that has begun, and ended."""
    command = [sys.executable, "-m", "scrapy", "runspider"]
    command += [str(TREE / "tests" / "crawl" / "waiting_spider.py"), *SIDES[side], *words]
    command += ["-a", f"pages={json.dumps(pages)}"]
    started = time.monotonic()
    subprocess.run(command, cwd=folder, stderr=subprocess.DEVNULL, check=True)
    return started, time.monotonic()


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@contextmanager
def redis_server(kind: str = "Server") -> Iterator[Any]:
    """Start a server, or a Cluster, and stop it at the end."""
    from tests.redis import server

    with (
        tempfile.TemporaryDirectory() as folder,
        getattr(server, kind)(Path(folder)) as started,
    ):
        yield started


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print aligned columns, the first to the left."""
    lines = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        print("  ".join([line[0].ljust(widths[0]), *cells]).rstrip(), flush=True)
