"""Charts, and the values that they show."""

import pytest

from scrapy_bloom import BloomFilter, study
from scrapy_bloom.study import Plan, draw, error_rate


@pytest.mark.parametrize(
    ("chart", "suffix", "curves"),
    [
        ("error-by-bits", ".png", [1, 6, 14]),
        ("error-by-probes", ".svg", [8, 16]),
        ("memory", ".png", [1e-2, 1e-6]),
    ],
)
def test_charts_are_drawn(tmp_path, chart, suffix, curves):
    """Every chart, with units on its axes and a title."""
    pytest.importorskip("matplotlib")
    path = tmp_path / f"chart{suffix}"
    draw(chart, path, curves)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")
    assert len(data) > 10_000


def test_memory_is_drawn_without_the_table_on_the_disk(tmp_path, monkeypatch):
    """A curve shows what a filter takes in memory, which is the same with BLOOM_EXACT."""
    axes = pytest.importorskip("matplotlib.axes").Axes
    drawn = {}
    monkeypatch.setattr(
        study, "_curve", lambda _, points, label, *__, **___: drawn.update({label: points})
    )
    monkeypatch.setattr(axes, "legend", lambda self, **_: None)
    draw("memory", tmp_path / "chart.svg", [1e-2, 1e-6])
    assert [*drawn] == ["RFPDupeFilter", "Bloom filter, p = 0.01", "Bloom filter, p = 1e-06"]
    for urls, size in drawn["Bloom filter, p = 1e-06"]:
        assert size == Plan(round(urls), 1e-6).bytes == Plan(round(urls), 1e-6, exact=True).bytes


def test_curves_have_the_values_of_the_filter():
    """A curve shows what `sizing` sizes with."""
    bloom_filter = BloomFilter(1_000_000, 1e-6)
    bits = bloom_filter.nbytes * 8 / 1_000_000
    assert error_rate(bits, 14) == pytest.approx(1e-6, rel=0.05)
    assert error_rate(9.6, 7) == pytest.approx(0.00988, rel=0.02)
