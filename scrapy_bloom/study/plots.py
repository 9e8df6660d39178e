"""Charts of what a Bloom filter costs, readable in black and white (needs matplotlib)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ..bloom import sizing
from ..errors import BloomError
from .planning import Plan, set_bytes

Axes = Any
"""Of matplotlib, which need not be installed."""

_STYLES = {
    "linestyle": ["-", "--", "-.", ":", (0, (1, 1, 4, 1)), (0, (8, 2)), (0, (3, 3, 1, 3, 1, 3))],
    "marker": list("os^Dvx*"),
}
_KEYS_PER_BLOCK_AT_LEAST = 200  # a filter of any size: whole blocks do not matter
_LOWEST = 1e-12


def draw(chart: str, path: Path, curves: Sequence[Any]) -> None:
    """Write a chart to `path`, whose suffix says the format: `error-by-bits` with `curves` for
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
    figure = figures.Figure(figsize=(8, 5.5), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    axes.set_prop_cycle(**_STYLES)
    CHARTS[chart](axes, curves)
    axes.grid(visible=True, which="major", color="0.85", linewidth=0.6)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _error_by_bits(axes: Axes, probes: Sequence[int]) -> None:
    for count in probes:
        _curve(axes, [(n / 2, error_rate(n / 2, count)) for n in range(4, 81)], f"k = {count}")
    _error_axes(axes, "Error rate of a full filter by its size, for k probes", "bits per item")


def _error_by_probes(axes: Axes, bits: Sequence[float]) -> None:
    for each in bits:
        curve = [(float(k), error_rate(each, k)) for k in range(1, 31)]
        _curve(axes, curve, f"{each:g} bits per item")
        best = min(curve, key=lambda point: point[1])
        axes.plot(*best, "ok", markersize=11, fillstyle="none")
    _error_axes(axes, "Error rate of a full filter by its probes (circle: the best k)", "probes k")


def _memory(axes: Axes, error_rates: Sequence[float]) -> None:
    urls = [10 ** (n / 4) for n in range(16, 37)]  # 1e4 to 1e9
    sets = [(n, float(set_bytes(round(n)))) for n in urls]
    _curve(axes, sets, "RFPDupeFilter", linestyle="-", marker="", linewidth=2.6)
    for rate in error_rates:
        curve = [(n, float(Plan(round(n), rate).bytes)) for n in urls]
        _curve(axes, curve, f"Bloom filter, p = {rate:g}")
    axes.set(
        title="Memory by the number of URLs, BLOOM_CAPACITY set to it",
        xscale="log",
        yscale="log",
        xlabel="URLs (log scale)",
        ylabel="memory in bytes (log scale), with BLOOM_EXACT the same",
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
    blocks = round(keys * bits_per_item / sizing.BLOCK_BITS)
    return sizing.error_rate_at(blocks, probes, keys)


def _curve(axes: Axes, points: Sequence[tuple[float, float]], label: str, **style: object) -> None:
    xs, ys = zip(*((x, y) for x, y in points if y > 0), strict=True)
    style = {"linewidth": 1.3, "color": "black", "markersize": 4, **style}
    axes.plot(xs, ys, label=label, markevery=max(1, len(xs) // 9), **style)


def _error_axes(axes: Axes, title: str, below: str) -> None:
    beside = "error rate: share of new URLs taken for seen ones (log scale)"
    axes.set(title=title, xlabel=below, yscale="log", ylabel=beside)
    axes.set_ylim(max(axes.get_ylim()[0], _LOWEST), 1)
    axes.legend(fontsize="small")
