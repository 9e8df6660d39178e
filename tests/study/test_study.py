"""What URLs take, ways to remember them, and charts, against independent counts and theory."""

import gzip
import sys
from hashlib import sha1

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mmh3 import hash64

from scrapy_bloom import BloomFilter, study
from scrapy_bloom.study import Plan, error_rate, expected_false_positives, set_bytes
from tests.commands.command_line import URLS

SAMPLE = [line for line in gzip.decompress(URLS.read_bytes()).decode().split("\n") if line]


def test_set_of_fingerprints_is_measured_right(traced):
    """Real sets have the size of the formula, around each step, and were allocated that much."""
    members = set()
    empty, last = sys.getsizeof(members), 0
    for n in range(1, 200_000):
        members.add(n)
        if (size := sys.getsizeof(members) - empty) != last:
            assert (study._table_bytes(n - 1), study._table_bytes(n)) == (last, size)
            last = size
    traced.start()
    members = {sha1(str(n).encode()).digest() for n in range(100_000)}
    used, _ = traced.get_traced_memory()
    # blocks are rounded up to 16 bytes, which is not traced
    assert set_bytes(len(members)) == pytest.approx(used + 11 * len(members), abs=1000)


def original(url, seed):
    """The hash function as it stands in the crawlers."""
    value = 0
    for character in url:
        value += seed * value + ord(character)
    return ((1 << 31) - 1) & value


@given(st.text(max_size=100))
@example("a" * 31)
@example("http://example.com/a/page/of/some/length?q=1")
def test_multiplicative_hash_depends_on_the_end_only(url):
    """Its value, from the last 31 characters, is what the original gives for all."""
    positions = study.multiplicative_positions(url)
    assert positions == [original(url, seed) for seed in study.SEEDS]
    assert len(url) < 31 or positions == study.multiplicative_positions("y" + url[-31:])


EXPECTED = [(1_000_000, 1, 0.0484), (480_833, 3, 0.0300)]


def test_known_sizes_give_what_was_published():
    """100,000 distinct URLs: 4.84 % for one hash in 1,000,000 slots, 3.0 % for 480,833 bits
    and three hashes, growing from line 10,000 on as theory has it."""
    methods = [study.single_hash(1_000_000), study.classic_bloom(480_833, 3)]
    urls = (f"http://example.com/{n}" for n in range(100_000))
    rows = [*study.compare([study.url_set(), *methods], urls, 10_000)]
    assert [row.lines for row in rows] == list(range(10_000, 100_001, 10_000))
    for method, (bits, hashes, share) in zip(methods, EXPECTED, strict=True):
        for row in rows:
            assert row.urls == row.lines
            expected = expected_false_positives(bits, hashes, row.urls)
            assert abs(row.false_positives[method.name] - expected) < 5 * expected**0.5 + 5
        assert rows[-1].share(method.name) == pytest.approx(share, abs=0.002)
    # the integral agrees with the sum it stands for
    for bits, hashes, urls in ((1_000_000, 1, 100_000), (480_833, 3, 100_000), (5000, 4, 3000)):
        total = sum((1 - 2.718281828459045 ** (-hashes * n / bits)) ** hashes for n in range(urls))
        assert expected_false_positives(bits, hashes, urls) == pytest.approx(total, rel=1e-3)


def test_a_real_list_agrees_with_an_independent_count():
    """Duplicates included, for each method, to the last one; the sizes are known, the sets' with
    what they hold; an empty list has one row."""
    methods = [study.url_set(), study.fingerprint_set(), study.single_hash(80_000)]
    methods += [study.classic_bloom(160_000, 3), study.multiplicative()]
    methods += [study.page_local(30_000, 1e-6), study.page_local(30_000, 1e-6, exact=True)]
    assert [(each.lines, each.urls) for each in study.compare(methods, [], 9)] == [(0, 0)]
    urls = SAMPLE[:7000] + SAMPLE[:7000:3]
    *_, last = study.compare(methods, urls, 3000)

    def halves(url):
        return hash64(url, signed=False)

    positions_of = [
        lambda url: [halves(url)[0] % 80_000],
        lambda url: [(halves(url)[0] + i * halves(url)[1]) % 160_000 for i in range(3)],
        study.multiplicative_positions,
    ]
    whole = [lambda url: [url]] * 2
    for method, positions in zip(methods, [*whole, *positions_of, *whole], strict=True):
        exact, bits, count = set(), set(), 0
        for url in urls:
            where = positions(url)
            count += url not in exact and bits.issuperset(where)
            exact.add(url)
            bits.update(where)
        assert (last.urls, last.false_positives[method.name]) == (len(exact), count)
    sizes = [each.measure() for each in methods]
    assert sizes[2:5] == [10_000, 20_000, 2**28]
    assert sizes[0] > sum(map(len, exact))
    assert sizes[1] > len(exact) * 53
    assert sizes[5] % 4096 == 0 < sizes[6] - sizes[5]


def charted(chart, curves):
    """Return the axes of a chart, and its curves by their labels."""
    axes = pytest.importorskip("matplotlib.figure").Figure().add_subplot()
    study.CHARTS[chart](axes, curves)
    return axes, {line.get_label(): [*map(tuple, line.get_xydata())] for line in axes.get_lines()}


def test_charts_of_error_rates():
    """From 2 to 40 bits for each number of probes; and for up to 30 probes, with a circle around
    the best. They show what `sizing` sizes with."""
    axes, points = charted("error-by-bits", [1, 14])
    assert (axes.get_xlabel(), axes.get_yscale()) == ("bits per item", "log")
    assert "k probes" in axes.get_title()
    for probes in (1, 14):
        curve = [(n / 2, error_rate(n / 2, probes)) for n in range(4, 81)]
        assert points[f"k = {probes}"] == curve
    low, high = axes.get_ylim()
    assert low < high == 1
    assert axes.figure.legends
    axes, points = charted("error-by-probes", [8, 16])
    assert (axes.get_xlabel(), axes.get_yscale()) == ("probes k (circle: the best k)", "log")
    circles = [line.get_xydata()[0] for line in axes.get_lines() if line.get_marker() == "o"]
    for bits in (8, 16):
        curve = points[f"{bits} bits"]
        assert curve == [(k, error_rate(bits, k)) for k in range(1, 31)]
        best = min(curve, key=lambda point: point[1])
        assert best in [*map(tuple, circles)]
        assert best[0] == pytest.approx(bits * 0.69, abs=1.5)
    bits = BloomFilter(1_000_000, 1e-6).nbytes * 8 / 1_000_000
    assert error_rate(bits, 14) == pytest.approx(1e-6, rel=0.05)
    assert error_rate(9.6, 7) == pytest.approx(0.00988, rel=0.02)


def test_chart_of_memory():
    """What a filter takes in memory, which is the same with BLOOM_EXACT, beside a set. What cannot
    be planned is refused by its name."""
    axes, points = charted("memory", [1e-2, 1e-6])
    urls = [10 ** (n / 4) for n in range(16, 37)]
    assert points.pop("RFPDupeFilter") == [(n, set_bytes(round(n))) for n in urls]
    for rate in (1e-2, 1e-6):
        plans = [(n, Plan(round(n), rate, exact=True).bytes) for n in urls]
        assert points.pop(f"Bloom filter, p = {rate:g}") == plans
    assert points == {}
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["10 kB", "100 kB", "1 MB", "10 MB", "100 MB", "1 GB", "10 GB", "100 GB"]
    assert [*axes.get_yticks()] == [10**n for n in range(4, 12)]
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert axes.get_legend() is not None
    with pytest.raises(ValueError, match="urls is 0"):
        Plan(0, 0.01)
