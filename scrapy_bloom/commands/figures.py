"""The subcommands about numbers: size, compare, plot."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ..bloom.sizing import check_error_rate
from ..migration.sources import open_lines
from ..reporting import in_bytes, in_percent, pages
from ..study.comparison import (
    Comparison,
    FingerprintSet,
    PageLocal,
    Row,
    UrlSet,
    classic_bloom,
    expected_false_positives,
    multiplicative,
    single_hash,
)
from ..study.planning import Plan, plan, set_bytes
from ..study.plots import draw
from .running import table

if TYPE_CHECKING:
    from .running import Session


def size(session: Session) -> int:
    """Print what a filter for so many URLs takes."""
    options = session.options
    settings = session.bloom_settings(session.crawler())
    rate = settings.error_rate if options.error_rate is None else options.error_rate
    check_error_rate(rate, "--error-rate")
    start = options.start or settings.capacity
    plans = [plan(options.urls, rate)]
    if start < options.urls:
        plans.append(plan(options.urls, rate, start))
    memory = set_bytes(options.urls)
    figures = {
        "urls": options.urls,
        "error_rate": rate,
        "filters": [asdict(each) for each in plans],
        "rfpdupefilter_bytes": memory,
    }
    rows = [["", "memory", "bits", "bits/URL", "layers", "probes", "pages lost"]]
    rows += [_size_row(each, options.urls) for each in plans]
    rows.append(["Scrapy's RFPDupeFilter", in_bytes(memory), "", "", "", "", "none"])
    lines = [f"{options.urls:,} URLs at an error rate of at most {rate:g}", "", *table(rows)]
    session.print(figures, lines)
    return 0


def _size_row(each: Plan, urls: int) -> list[str]:
    grown = each.capacity < urls
    probes = {each.first_probes, each.last_probes}
    return [
        f"{'grown from' if grown else 'BLOOM_CAPACITY ='} {each.capacity:_}",
        in_bytes(each.bytes),
        f"{each.bits:,}",
        f"{each.bits / urls:.1f}",
        str(each.layers),
        " to ".join(str(count) for count in sorted(probes)),
        pages(each.pages_lost),
    ]


def compare(session: Session) -> int:
    """Print how the methods do on the user's list."""
    options = session.options
    urls = [url for name in options.files for url in _lines(name)]
    rate = session.bloom_settings(session.crawler()).error_rate
    one, classic, eight = (
        single_hash(options.slots),
        classic_bloom(options.bits, options.hashes),
        multiplicative(),
    )
    ours = PageLocal(max(len(urls), 1), rate)
    comparison = Comparison([UrlSet(), FingerprintSet(), one, classic, eight, ours])
    theory = {one.name: (options.slots, 1), classic.name: (options.bits, options.hashes)}
    rows = []
    if not options.json:
        session.print_lines(_heading([one.name, classic.name, eight.name, ours.name]))
    for row in comparison.run(urls, options.every):
        rows.append(row)
        if not options.json:
            session.print_lines([_running(row, [one.name, classic.name, eight.name, ours.name])])
            sys.stdout.flush()
    last = rows[-1]
    expected = {
        name: expected_false_positives(bits, hashes, last.urls)
        for name, (bits, hashes) in theory.items()
    }
    methods = [
        {
            "name": method.name,
            "bytes": method.nbytes,
            "seconds": last.seconds[method.name],
            "false_positives": last.false_positives[method.name],
            "share": last.share(method.name),
            "expected": expected.get(method.name),
        }
        for method in comparison.methods
    ]
    figures = {"rows": [asdict(row) for row in rows], "methods": methods}
    session.print(figures, ["", *table(_summary(comparison, last, expected))])
    return 0


def _lines(name: str) -> Iterator[str]:
    """Yield the lines of a file that are not empty; `-` is standard input."""
    file: IO[bytes] = sys.stdin.buffer if name == "-" else open_lines(Path(name))
    with file:
        for line in file:
            if url := line.decode(errors="replace").strip():
                yield url


_WIDTH = 21


def _heading(names: list[str]) -> list[str]:
    columns = "".join(f"{name:>{_WIDTH}}" for name in names)
    return [f"{'lines':>10}  {'distinct':>10}{columns}"]


def _running(row: Row, names: list[str]) -> str:
    columns = "".join(
        f"{f'{row.false_positives[name]:,}  {100 * row.share(name):6.3f} %':>{_WIDTH}}"
        for name in names
    )
    return f"{row.lines:>10,}  {row.urls:>10,}{columns}"


def _summary(comparison: Comparison, last: Row, expected: dict[str, float]) -> Iterator[list[str]]:
    yield ["", "memory", "µs a URL", "false positives", "of the distinct", "in theory"]
    for method in comparison.methods:
        name = method.name
        in_theory = in_percent(expected[name] / max(last.urls, 1)) if name in expected else ""
        yield [
            name,
            in_bytes(method.nbytes),
            f"{1e6 * last.seconds[name] / max(last.lines, 1):.2f}",
            f"{last.false_positives[name]:,}",
            in_percent(last.share(name)),
            in_theory,
        ]


def plot(session: Session) -> int:
    """Draw a chart."""
    options = session.options
    for rate in options.error_rate:
        check_error_rate(rate, "--error-rate")
    for bits in options.bits:
        if not 0 < bits <= 1000:
            raise ValueError(f"--bits is {bits!r}: it must be above 0 and at most 1000")
    draw(
        options.chart,
        Path(options.file),
        probes=options.probes,
        bits=options.bits,
        error_rates=options.error_rate,
    )
    session.print_lines([f"wrote {options.file}"])
    return 0
