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


@pytest.fixture
def drawn(monkeypatch):
    """The curves of a chart that is drawn, by their labels."""
    axes = pytest.importorskip("matplotlib.axes").Axes
    drawn = {}
    monkeypatch.setattr(
        study, "_curve", lambda _, points, label, *__, **___: drawn.update({label: points})
    )
    monkeypatch.setattr(axes, "legend", lambda self, **_: None)
    return drawn


def test_memory_is_drawn_without_the_table_on_the_disk(tmp_path, drawn):
    """A curve shows what a filter takes in memory, which is the same with BLOOM_EXACT. The same
    chart is the same file, whenever it is drawn."""
    draw("memory", tmp_path / "chart.svg", [1e-2, 1e-6])
    assert [*drawn] == ["RFPDupeFilter", "Bloom filter, p = 0.01", "Bloom filter, p = 1e-06"]
    for urls, size in drawn["Bloom filter, p = 1e-06"]:
        assert size == Plan(round(urls), 1e-6).bytes == Plan(round(urls), 1e-6, exact=True).bytes
    assert "<dc:date>" not in (tmp_path / "chart.svg").read_text()


@pytest.mark.parametrize(
    ("chart", "given", "label", "rate_at"),
    [
        ("error-by-bits", 7, "k = 7", lambda bits: error_rate(bits, 7)),
        ("error-by-probes", 9.5, "9.5 bits per item", lambda probes: error_rate(9.5, int(probes))),
    ],
)
def test_error_rates_are_those_of_their_place(tmp_path, drawn, chart, given, label, rate_at):
    """From few bits or probes to many."""
    draw(chart, tmp_path / "chart.png", [given])
    assert [*drawn] == [label]
    places, rates = zip(*drawn[label], strict=True)
    assert (places[0], places[-1]) == ((2, 40) if chart == "error-by-bits" else (1, 30))
    assert [*rates] == [rate_at(place) for place in places]


def test_curves_have_the_values_of_the_filter():
    """A curve shows what `sizing` sizes with."""
    bloom_filter = BloomFilter(1_000_000, 1e-6)
    bits = bloom_filter.nbytes * 8 / 1_000_000
    assert error_rate(bits, 14) == pytest.approx(1e-6, rel=0.05)
    assert error_rate(9.6, 7) == pytest.approx(0.00988, rel=0.02)
