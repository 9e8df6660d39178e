"""The subcommands about figures: size, compare, plot."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .. import study
from ..amounts import counted, in_bytes, pages_text
from ..bloom.sizing import check_error_rate
from ..errors import BloomError
from ..feeds.waiting import mode_of
from ..files import replace
from ..migration.sources import open_list, url_in
from ..settings import BloomSettings
from .context import Context, flush, table


def size(session: Context) -> None:
    """Print the memory that a filter for N URLs takes, set at once or grown from a smaller
    capacity, without and with BLOOM_EXACT, whose table is on the disk, beside that of Scrapy's
    RFPDupeFilter; with --json exact to the byte."""
    options = session.options
    settings = BloomSettings.read(session.crawler.settings)
    rate = settings.error_rate if options.error_rate is None else options.error_rate
    check_error_rate(rate, "--error-rate")
    start = options.start or settings.capacity
    capacities = [options.urls, start] if start < options.urls else [options.urls]
    plans, exact = (
        [study.Plan(options.urls, rate, capacity, exact=table) for capacity in capacities]
        for table in (False, True)
    )
    memory = study.set_bytes(options.urls)
    figures = {
        "urls": options.urls,
        "error_rate": rate,
        "filters": [vars(each) for each in plans],
        "exact_filters": [vars(each) for each in exact],
        "rfpdupefilter_bytes": memory,
    }
    rows = [["BLOOM_CAPACITY", "memory", "bits/URL", "layers", "probes", "pages lost"]]
    rows += [_size_row(each, options.urls) for each in plans]
    rows.append(["Scrapy's RFPDupeFilter", in_bytes(memory), "", "", "", "none"])
    exact_rows = [["with BLOOM_EXACT", "memory", "table, on the disk", "pages lost"]]
    exact_rows += [_exact_row(each, options.urls) for each in exact]
    title = f"{counted(options.urls, 'URL')} at an error rate of at most {rate:g}"
    session.print(figures, [title, "", *table(rows), "", *table(exact_rows)])


def _size_row(each: study.Plan, urls: int) -> list[str]:
    probes = {each.first_probes, each.last_probes}
    return [
        _capacity(each, urls),
        in_bytes(each.bytes),
        f"{each.bits / urls:.1f}",
        str(each.layers),
        " to ".join(str(count) for count in sorted(probes)),
        pages_text(each.pages_lost),
    ]


def _exact_row(each: study.Plan, urls: int) -> list[str]:
    table_bytes, lost = in_bytes(each.table_bytes), f"{each.pages_lost:.1g}"
    return [_capacity(each, urls), in_bytes(each.bytes), table_bytes, lost]


def _capacity(each: study.Plan, urls: int) -> str:
    return f"{each.capacity:_}{' (grows)' if each.capacity < urls else ''}"


def compare(session: Context) -> None:
    """Remember the URLs of a list in several ways, and print what each costs and how many new URLs
    it takes for seen ones: a set of URLs, a set of fingerprints, a table of bits with one hash, a
    small classic Bloom filter, eight multiplicative hash functions as copied from crawler to
    crawler, and the filter of this package without and with its exact table."""
    options = session.options
    urls = [url for name in options.files for url in _urls(name)]
    rate = BloomSettings.read(session.crawler.settings).error_rate
    one, eight = study.single_hash(options.slots), study.multiplicative()
    classic = study.classic_bloom(options.bits, options.hashes)
    ours, exact = (study.page_local(len(urls), rate, exact=exact) for exact in (False, True))
    methods = [study.url_set(), study.fingerprint_set(), one, classic, eight, ours, exact]
    theory = {one.name: (options.slots, 1), classic.name: (options.bits, options.hashes)}
    names = [one.name, classic.name, eight.name, ours.name]
    rows = []
    session.print_now(_heading(names))
    for row in study.compare(methods, urls, options.every):
        rows.append(row)
        shares = [_in_percent(row.share(name)) for name in names]
        session.print_now([_columns([f"{row.lines:,}", f"{row.urls:,}", *shares], names)])
        flush()
    last = rows[-1]
    found: list[dict[str, Any]] = [
        {
            "name": method.name,
            "bytes": method.measure(),
            "seconds": last.seconds[method.name],
            "false_positives": last.false_positives[method.name],
            "share": last.share(method.name),
            "expected": study.expected_false_positives(*theory[method.name], last.urls)
            if method.name in theory
            else None,
        }
        for method in methods
    ]
    figures = {"rows": [asdict(row) for row in rows], "methods": found}
    session.print(figures, ["", *table(_summary(found, last))])


def _urls(name: str) -> list[str]:
    """Return the lines of a list that are not empty; `-` is standard input. Raises
    BloomError if none looks like a URL."""
    path = None if name == "-" else Path(name)
    with open_list(path) as file:
        urls = [url for line in file if (url := url_in(line, "replace"))]
    if not any("://" in url for url in urls):
        what = path or "standard input"
        raise BloomError(f"{what} holds no URL: give a list of URLs, one a line")
    return urls


def _heading(names: Sequence[str]) -> list[str]:
    """Return the heads of the columns, in two lines."""
    above = ["", "", *(name.rpartition(" ")[0] for name in names)]
    below = ["lines", "distinct", *(name.rpartition(" ")[2] for name in names)]
    return [_columns(above, names), _columns(below, names)]


def _columns(cells: Sequence[str], names: Sequence[str]) -> str:
    """Return cells in columns whose widths do not wait for the last row."""
    widths = [11, 12, *(2 + max(len("100.000 %"), *map(len, name.split())) for name in names)]
    line = "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    return line.rstrip()


def _in_percent(share: float) -> str:
    return f"{100 * share:.3f} %"


def _summary(methods: Sequence[Mapping[str, Any]], last: study.Row) -> Iterator[list[str]]:
    yield ["", "memory", "µs/URL", "false positives", "share", "in theory"]
    for each in methods:
        expected = each["expected"]
        yield [
            each["name"],
            in_bytes(each["bytes"]),
            f"{1e6 * each['seconds'] / last.lines:.2f}",
            f"{each['false_positives']:,}",
            _in_percent(each["share"]),
            "" if expected is None else _in_percent(expected / last.urls),
        ]


def plot(session: Context) -> None:
    """Draw a chart into a PNG or SVG file, readable in black and white (needs matplotlib)."""
    options = session.options
    for rate in options.error_rate:
        check_error_rate(rate, "--error-rate")
    for bits in options.bits:
        if not 0 < bits <= 1000:
            raise ValueError(f"--bits is {bits!r}: it must be above 0 and at most 1000")
    curves = {
        "error-by-bits": options.probes,
        "error-by-probes": options.bits,
        "memory": options.error_rate,
    }
    chart = study.draw(options.chart, Path(options.file), curves[options.chart])
    path = Path(os.path.realpath(options.file))
    if path.is_file() or not path.exists():
        replace(path, chart, mode_of(path))
    else:  # such as a pipe
        path.write_bytes(chart)
    session.print_lines([f"wrote {options.file}"])
