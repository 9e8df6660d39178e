"""What the benchmarks share: fair clocks, tables, and the request streams."""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import os
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import exp, log
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT))  # the package of this checkout, in processes started too
sys.path.append(str(ROOT / "example_project"))
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
SAMPLES = HERE.parent / "data"
CHUNK = 500
OPERATIONS = ("add new", "add known", "test known", "test absent")
OURS = {"ADDONS": {"scrapy_bloom.Addon": 300}}


def parser_of(about: str | None, **given: Any) -> argparse.ArgumentParser:
    """Return a parser of options, each given as its default, or as that and its help."""
    parser = argparse.ArgumentParser(description=about and about.partition("\n\n")[0])
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

    def run(self, name: str, call: Callable[[object], object], items: Sequence[object]) -> list:
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


def operations(made: Mapping[str, Any], capacity: int, keys: int, rounds: int) -> dict[str, list]:
    """Fill sets to half of `capacity`; return microseconds of each of OPERATIONS, by name."""
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
    print(f"half full, capacity {capacity:,}: time relative to BloomFilter's, and in ns")
    return {name: [clock.each(f"{name} {what}") for what in OPERATIONS] for name in made}


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


def forked(what: str, work: Callable[[Callable[[object], None]], object]) -> tuple[Any, Any]:
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


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@contextmanager
def redis_server(kind: str = "Server") -> Iterator[Any]:
    """Start a server, or a Cluster, and stop it at the end."""
    from tests.redis_backend import server

    with tempfile.TemporaryDirectory() as folder:
        started = getattr(server, kind)(Path(folder))
        try:
            yield started
        finally:
            started.stop()


def server_seconds(client: Any) -> float:
    """The CPU seconds of the server so far."""
    used = client.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print aligned columns, the first to the left."""
    lines = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        print("  ".join([line[0].ljust(widths[0]), *cells]).rstrip(), flush=True)


def mean(ratios: Iterable[float]) -> float:
    logs = [log(ratio) for ratio in ratios]
    return exp(sum(logs) / len(logs))


def read(path: Path) -> list[str]:
    """The lines of a list of URLs, plain or gzip."""
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    return [line for line in text.decode("utf-8", "surrogateescape").split("\n") if line]


def streams(files: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """The files given, or those of SCRAPY_BLOOM_DATA, or samples; then two made from them."""
    folder = Path(os.environ.get("SCRAPY_BLOOM_DATA", SAMPLES))
    paths = [Path(file) for file in files] or sorted(
        [*folder.glob("stream_*.txt.gz"), *folder.glob("urls_[kt]*.txt.gz")]
    )
    for path in paths:
        yield path.name.removesuffix(".gz").removesuffix(".txt"), read(path)
    if not files:
        real = [url for path in paths if path.name.startswith("urls_") for url in read(path)]
        yield "made: links with queries", crawl_of([url for url in real if "?" in url], real)
        yield "made: shop", crawl_of(list(shop()), [f"http://shop.example/{n}" for n in range(40)])


def crawl_of(queries: list[str], others: list[str], pages: int = 6_000) -> list[str]:
    """A crawl of a site of `pages` pages, 95 % of them with a query: each links to two
    dozen, the popular ones much more often than the others, some with a fragment."""
    chance = random.Random(95)
    urls = list(dict.fromkeys(queries))
    chance.shuffle(urls)
    urls = urls[: pages * 95 // 100]
    urls += chance.sample(others, min(len(others), len(urls) // 19))
    chance.shuffle(urls)
    weights = [1 / (rank + 5) for rank in range(len(urls))]
    stream = []
    for page in urls:
        stream += [page, *chance.choices(urls, weights, k=15)]
        at = chance.randrange(len(urls))
        stream += urls[at : at + 8]
    return [
        f"{url}#p{n % 9}" if n % 5 == 0 and "#" not in url else url for n, url in enumerate(stream)
    ]


def shop() -> Iterator[str]:
    """The URLs of a shop: lists with filters in any order, items, sessions and searches."""
    chance = random.Random(7)
    while True:
        fields = [
            f"category={chance.randrange(60)}",
            f"page={chance.randrange(30)}",
            chance.choice(["sort=price_asc", "sort=name", "order=desc"]),
            chance.choice(["filter%5Bcolor%5D=red", "q=blue+shoes", "q=caf%C3%A9", "view=grid"]),
            chance.choice(["ref=/home", "date=2024-01-01T10:00", "per_page=48", "in_stock"]),
        ]
        chance.shuffle(fields)
        query = "&".join(fields[: chance.randrange(1, 6)])
        yield f"http://shop.example/{chance.choice(['list', 'search', 'item.php'])}?{query}"
        if chance.random() < 1 / 20_000:
            return
