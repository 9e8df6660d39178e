"""Charts, and the values that they show."""

import struct

import pytest

from scrapy_bloom import BloomFilter
from scrapy_bloom.study import Plan, draw, error_rate, set_bytes


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """A function that draws a chart, and returns its axes and the bytes of the file."""
    figures = pytest.importorskip("matplotlib.figure")
    saved, save = [], figures.Figure.savefig

    def noted(figure, *arguments, **options):
        saved.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(figures.Figure, "savefig", noted)

    def drawn(chart, suffix, curves):
        path = tmp_path / f"chart{suffix}"
        draw(chart, path, curves)
        (axes,) = saved.pop().axes
        return axes, path.read_bytes()

    return drawn


def points_of(axes):
    """Return the points of each curve, by its label."""
    lines = (line for line in axes.get_lines() if not line.get_label().startswith("_"))
    return {line.get_label(): [*map(tuple, line.get_xydata())] for line in lines}


def test_error_by_bits(drawn):
    """From 2 to 40 bits, a curve for each number of probes, as an SVG without a date."""
    axes, data = drawn("error-by-bits", ".svg", [1, 14])
    assert data.startswith(b"<?xml")
    assert b"<dc:date>" not in data
    assert (axes.get_xlabel(), axes.get_yscale()) == ("bits per item", "log")
    for label, probes in (("k = 1", 1), ("k = 14", 14)):
        curve = points_of(axes)[label]
        assert [bits for bits, _ in curve] == [n / 2 for n in range(4, 81)]
        assert [rate for _, rate in curve] == [error_rate(n / 2, probes) for n in range(4, 81)]
    assert axes.get_ylim()[1] == 1


def test_error_by_probes(drawn):
    """Up to 30 of them, with a circle around the best, as a PNG of 900 to 920."""
    axes, data = drawn("error-by-probes", ".png", [8, 16])
    assert struct.unpack(">2I", data[16:24]) == (900, 920)
    assert (axes.get_xlabel(), axes.get_yscale()) == ("probes k (circle: the best k)", "log")
    circles = [line.get_xydata()[0] for line in axes.get_lines() if line.get_marker() == "o"]
    for bits in (8, 16):
        curve = points_of(axes)[f"{bits} bits"]
        assert curve == [(k, error_rate(bits, k)) for k in range(1, 31)]
        best = min(curve, key=lambda point: point[1])
        assert best in [*map(tuple, circles)]
        assert best[0] == pytest.approx(bits * 0.69, abs=1.5)


def test_memory(drawn):
    """What a filter takes in memory, which is the same with BLOOM_EXACT, beside a set."""
    axes, _ = drawn("memory", ".png", [1e-2, 1e-6])
    curves = points_of(axes)
    assert [*curves] == ["RFPDupeFilter", "Bloom filter, p = 0.01", "Bloom filter, p = 1e-06"]
    urls = [10 ** (n / 4) for n in range(16, 37)]
    assert all([number for number, _ in curve] == urls for curve in curves.values())
    for number, size in curves["RFPDupeFilter"]:
        assert size == set_bytes(round(number))
    for number, size in curves["Bloom filter, p = 1e-06"]:
        exact = Plan(round(number), 1e-6, exact=True)
        assert size == Plan(round(number), 1e-6).bytes == exact.bytes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["10 kB", "100 kB", "1 MB", "10 MB", "100 MB", "1 GB", "10 GB", "100 GB"]
    assert [*axes.get_yticks()] == [10**n for n in range(4, 12)]
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert axes.get_legend() is not None


def test_curves_have_the_values_of_the_filter():
    """A curve shows what `sizing` sizes with."""
    bits = BloomFilter(1_000_000, 1e-6).nbytes * 8 / 1_000_000
    assert error_rate(bits, 14) == pytest.approx(1e-6, rel=0.05)
    assert error_rate(9.6, 7) == pytest.approx(0.00988, rel=0.02)
