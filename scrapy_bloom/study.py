"""Plans, compares and draws ways to remember URLs.

A plan is the memory for a number of URLs, calculated before the crawl: in one layer, in layers
grown from a smaller start, and in the set of Scrapy's RFPDupeFilter.

In a comparison, as in the literature on crawlers, each method gets the same URLs in the same order
and says of each whether it was seen. The set of URLs is exact; a new URL that another method takes
for a seen one is a false positive.

The charts of what a Bloom filter costs are readable in black and white, and need matplotlib.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha1
from importlib import import_module
from io import BytesIO, StringIO
from itertools import islice
from math import exp
from operator import mul
from pathlib import Path
from time import perf_counter
from typing import Any

from bitarray import bitarray
from mmh3 import hash64

from .bloom import sizing
from .bloom.exact_table import pages_in_table
from .bloom.file import PAGE
from .bloom.fixed import BloomFilter
from .errors import BloomError

_SET_ENTRY_BYTES = 16  # a pointer and a hash (CPython, Objects/setobject.c)
_SMALLEST_SET = 8
_LARGE_SET = 50_000  # from here on a set doubles, before it grows by four
_ALIGNMENT = 16
_FINGERPRINT_BYTES = 20  # SHA-1

SEEDS = (5, 7, 11, 13, 19, 31, 37, 61)
MULTIPLICATIVE_BITS = 1 << 31

_MASK = MULTIPLICATIVE_BITS - 1
_TAIL = 31
# h * (1 + seed) + ord(c), where 1 + seed is even: the factor of a character that 31
# others follow is a multiple of 2**31, so it is forgotten
_FACTORS = [[pow(1 + seed, n, MULTIPLICATIVE_BITS) for n in range(_TAIL)] for seed in SEEDS]

Axes = Any
"""Of matplotlib, which need not be installed."""

_STYLES = {
    "linestyle": ["-", "--", "-.", ":", (0, (1, 1, 4, 1)), (0, (8, 2)), (0, (3, 3, 1, 3, 1, 3))],
    "marker": list("os^Dvx*"),
}
_INK, _GRID = "#000000", "#d9d9d9"
_DARK = """<style>@media (prefers-color-scheme: dark) {
  [style*="fill: #ffffff"] { fill: #161b22 !important }
  [style*="stroke: #000000"] { stroke: #e6edf3 !important }
  [style*="stroke: #d9d9d9"] { stroke: #3d4753 !important }
  text, use, [style^="fill: #000000"] { fill: #e6edf3 !important }
}
text { font-family: system-ui, Helvetica, Arial, sans-serif !important }
svg { max-width: 100%; height: auto }</style>
 <defs>"""
"""What makes an SVG of matplotlib follow light and dark."""
_KEYS_PER_BLOCK_AT_LEAST = 200  # a filter of any size: whole blocks do not matter
_LOWEST = 1e-12


class Plan:
    """A growing filter with `urls` in it, made for `capacity` (default: all): `bytes` of bits, in
    memory as in the files, and of the exact tables in the files, `probes` of the first and the last
    layer, and the pages that are probably lost on the way.

    Exact to the byte: this is how `ScalableBloomFilter` grows. Raises ValueError for
    numbers out of range.
    """

    def __init__(
        self, urls: int, error_rate: float, capacity: int | None = None, *, exact: bool = False
    ) -> None:
        sizing.check_capacity(urls, "urls")
        sizing.check_error_rate(error_rate)
        capacity = room = urls if capacity is None else capacity
        layers: list[sizing.LayerLoad] = []
        held = 0
        while held < urls:
            if layers:
                room = sizing.layer_capacity(room, capacity, held)
            shape = sizing.shape(room, sizing.layer_error_rate(error_rate, len(layers)))
            keys = min(room, urls - held)
            table = pages_in_table(room) if exact else 0
            layers.append(sizing.LayerLoad(*shape, keys, table_pages=table))
            held += keys
        blocks = sum(layer.blocks for layer in layers)
        table_pages = sum(layer.table_pages for layer in layers)
        self.capacity = capacity
        self.layers = len(layers)
        self.bits = blocks * sizing.BLOCK_BITS
        self.bytes = blocks * PAGE
        self.table_bytes = table_pages * PAGE
        self.file_bytes = (blocks + table_pages + 2 * len(layers)) * PAGE
        self.first_probes = layers[0].probes
        self.last_probes = layers[-1].probes
        self.pages_lost = sizing.total_false_positives(layers)


def set_bytes(urls: int) -> int:
    """Return the memory of RFPDupeFilter for `urls` fingerprints: a set of 20 bytes
    objects in CPython (Scrapy 2.19; earlier ones keep 40 characters, 32 bytes more).
    """
    fingerprint = sys.getsizeof(bytes(_FINGERPRINT_BYTES))
    each = -(-fingerprint // _ALIGNMENT) * _ALIGNMENT
    return urls * each + _table_bytes(urls) + sys.getsizeof(set())


def _table_bytes(members: int) -> int:
    """Return the size of a set's table after that many members were added: it grows
    when three fifths are taken."""
    size = _SMALLEST_SET
    used = 0
    while True:
        # the number of members at which set_add_entry resizes: used * 5 >= (size - 1) * 3
        used = max(used, -(-(size - 1) * 3 // 5))
        if members < used:
            return 0 if size == _SMALLEST_SET else size * _SET_ENTRY_BYTES
        wanted = used * 2 if used > _LARGE_SET else used * 4
        while size <= wanted:
            size *= 2


@dataclass
class Method:
    """A way to remember URLs, called `name`. `add` returns True for a URL that was seen before, or
    is taken for it, else remembers it; `measure` returns the memory in bytes."""

    name: str
    add: Callable[[str], bool]
    measure: Callable[[], int]


def url_set() -> Method:
    """Return Python's `set` of the URLs as text."""
    return _set("set of URLs", str)


def fingerprint_set() -> Method:
    """Return a set of SHA-1 digests, as Scrapy's dupefilter keeps them (here of the URL as it
    is)."""
    return _set(
        "set of fingerprints", lambda url: sha1(url.encode(), usedforsecurity=False).digest()
    )


def _set(name: str, key_of: Callable[[str], str | bytes]) -> Method:
    seen: set[str | bytes] = set()

    def add(url: str) -> bool:
        key = key_of(url)
        if key in seen:
            return True
        seen.add(key)
        return False

    # with what the set refers to
    return Method(name, add, lambda: sys.getsizeof(seen) + sum(map(sys.getsizeof, seen)))


def _bit_table(name: str, bits: int, positions_of: Callable[[str], list[int]]) -> Method:
    """Return a table of `bits`, in which a URL sets one bit for each of its positions."""
    table = bitarray(bits)
    table.setall(False)

    def add(url: str) -> bool:
        positions = positions_of(url)
        for position in positions:
            if not table[position]:
                break
        else:
            return True
        for position in positions:
            table[position] = 1
        return False

    return Method(name, add, lambda: bits // 8)


def page_local(capacity: int, error_rate: float, *, exact: bool = False) -> Method:
    """Return the filter of this package, with an exact table if `exact`, which in a job is on the
    disk."""
    made = BloomFilter(capacity, error_rate, exact=exact)
    name = "scrapy-bloom, exact" if exact else "scrapy-bloom"
    return Method(name, made.add, lambda: made.nbytes + made.table_nbytes)


def single_hash(slots: int) -> Method:
    """Return a table of bits with one hash function."""
    return _bit_table("one hash", slots, lambda url: [hash64(url, signed=False)[0] % slots])


def classic_bloom(bits: int, hashes: int) -> Method:
    """Return the Bloom filter of textbooks, with hash functions f1 + i·f2 (Kirsch and
    Mitzenmacher 2006)."""
    numbers = range(hashes)

    def positions(url: str) -> list[int]:
        first, second = hash64(url, signed=False)
        return [(first + i * second) % bits for i in numbers]

    return _bit_table("classic Bloom", bits, positions)


def multiplicative() -> Method:
    """Return the filter that has been copied from crawler to crawler: 2^31 bits, eight
    functions h = h + seed·h + ord(c). Takes 256 MiB once all pages were touched."""
    return _bit_table("eight multiplicative", MULTIPLICATIVE_BITS, multiplicative_positions)


def multiplicative_positions(url: str) -> list[int]:
    """Return the values of the eight functions, from the last 31 characters, on which
    alone they depend."""
    codes = list(map(ord, reversed(url[-_TAIL:])))
    return [sum(map(mul, codes, factors)) & _MASK for factors in _FACTORS]


def expected_false_positives(bits: int, hashes: int, urls: int) -> float:
    """Return how many of `urls` new ones are taken for seen ones on the way: the sum of
    (1 - e^(-kn/m))^k, as an integral by the midpoint rule."""
    steps = 2_000
    width = urls / steps
    return width * sum(
        (1 - exp(-hashes * (step + 0.5) * width / bits)) ** hashes for step in range(steps)
    )


@dataclass
class Row:
    """The state after `lines`: for each method the seconds so far and the false positives among
    `urls`, the distinct URLs."""

    lines: int
    urls: int
    seconds: dict[str, float]
    false_positives: dict[str, int]

    def share(self, name: str) -> float:
        """False positives of a method as a share of the distinct URLs, 0 to 1."""
        return self.false_positives[name] / max(self.urls, 1)


def compare(methods: Sequence[Method], urls: Iterable[str], every: int) -> Iterator[Row]:
    """Yield a row after each `every` URLs, and one at the end. The first of `methods` is exact;
    they take turns, so that each is timed alone."""
    urls = iter(urls)
    names = [method.name for method in methods]
    row = Row(0, 0, dict.fromkeys(names, 0.0), dict.fromkeys(names, 0))
    exact = array("b")
    while (batch := list(islice(urls, every))) or not row.lines:
        row = Row(row.lines + len(batch), row.urls, {**row.seconds}, {**row.false_positives})
        for method in methods:
            start = perf_counter()
            answers = array("b", map(method.add, batch))
            row.seconds[method.name] += perf_counter() - start
            if method is methods[0]:
                exact = answers
            row.false_positives[method.name] += sum(map(int.__gt__, answers, exact))
        row.urls += exact.count(0)
        yield row
        if not batch:
            return


def draw(chart: str, path: Path, curves: Sequence[Any]) -> bytes:
    """Return a chart for `path`, whose suffix says the format: `error-by-bits` with `curves` for
    these numbers of probes, `error-by-probes` for these bits an item, `memory` for these error
    rates.

    Raises BloomError without matplotlib, ValueError for another format.
    """
    if path.suffix not in (".png", ".svg"):
        raise ValueError(f"{str(path)!r} must end in .png or .svg")
    try:
        figures = import_module("matplotlib.figure")
    except ImportError:
        raise BloomError("matplotlib is missing: pip install 'scrapy-bloom[plot]'") from None
    figure = figures.Figure(figsize=(4.5, 4.6), dpi=200, layout="constrained")
    axes = figure.add_subplot()
    axes.set_prop_cycle(**_STYLES)
    CHARTS[chart](axes, curves)
    axes.grid(visible=True, color=_GRID, linewidth=0.6)
    if path.suffix == ".png":
        figure.savefig(png := BytesIO(), format="png")
        return png.getvalue()
    svg = StringIO()
    with import_module("matplotlib").rc_context({"svg.fonttype": "none", "svg.hashsalt": chart}):
        figure.savefig(svg, format="svg", metadata={"Date": None, "Title": axes.get_title()})
    return svg.getvalue().replace("<defs>", _DARK, 1).encode()


def _error_by_bits(axes: Axes, probes: Sequence[int]) -> None:
    for count in probes:
        _curve(axes, [(n / 2, error_rate(n / 2, count)) for n in range(4, 81)], f"k = {count}")
    _error_axes(axes, "Error rate by bits per item, for k probes", "bits per item")


def _error_by_probes(axes: Axes, bits: Sequence[float]) -> None:
    for each in bits:
        curve = [(float(k), error_rate(each, k)) for k in range(1, 31)]
        _curve(axes, curve, f"{each:g} bits")
        best = min(curve, key=lambda point: point[1])
        axes.plot(*best, "ok", markersize=11, fillstyle="none")
    _error_axes(axes, "Error rate by probes, for bits per item", "probes k (circle: the best k)")


def _memory(axes: Axes, error_rates: Sequence[float]) -> None:
    urls = [10 ** (n / 4) for n in range(16, 37)]  # 1e4 to 1e9
    sets = [(n, float(set_bytes(round(n)))) for n in urls]
    _curve(axes, sets, "RFPDupeFilter", linestyle="-", marker="", linewidth=2.6)
    for rate in error_rates:
        curve = [(n, float(Plan(round(n), rate).bytes)) for n in urls]
        _curve(axes, curve, f"Bloom filter, p = {rate:g}")
    axes.set(
        title="Memory by the number of URLs",
        xscale="log",
        yscale="log",
        xlabel="URLs = BLOOM_CAPACITY (log scale)",
        ylabel="memory, also with BLOOM_EXACT (log scale)",
    )
    units = ("B", "kB", "MB", "GB", "TB")
    ticks = [(10**n, f"{10 ** (n % 3)} {units[n // 3]}") for n in range(4, 12)]
    axes.set_yticks([size for size, _ in ticks], [label for _, label in ticks])
    axes.legend()


CHARTS: dict[str, Callable[[Axes, Sequence[Any]], None]] = {
    "error-by-bits": _error_by_bits,
    "error-by-probes": _error_by_probes,
    "memory": _memory,
}


def error_rate(bits_per_item: float, probes: int) -> float:
    """Return the error rate of a large filter with so many bits an item."""
    keys = _KEYS_PER_BLOCK_AT_LEAST * sizing.BLOCK_BITS
    blocks = round(keys * bits_per_item / sizing.BLOCK_BITS) or 1
    return sizing.error_rate_at(blocks, probes, keys)


def _curve(axes: Axes, points: Sequence[tuple[float, float]], label: str, **style: object) -> None:
    xs, ys = zip(*((x, y) for x, y in points if y > 0), strict=True)
    style = {"linewidth": 1.3, "color": "black", "markersize": 4, **style}
    axes.plot(xs, ys, label=label, markevery=max(1, len(xs) // 9), **style)


def _error_axes(axes: Axes, title: str, below: str) -> None:
    beside = "error rate of a full filter (log scale)"
    axes.set(title=title, xlabel=below, yscale="log", ylabel=beside)
    axes.set_ylim(max(axes.get_ylim()[0], _LOWEST), 1)
    axes.figure.legend(loc="outside lower center", ncols=3, columnspacing=1)
