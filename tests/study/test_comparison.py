"""The ways to remember URLs, against counts made independently and against theory."""

import gzip
import os
from itertools import product
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mmh3 import hash64

from scrapy_bloom.study import (
    SEEDS,
    classic_bloom,
    compare,
    expected_false_positives,
    fingerprint_set,
    multiplicative,
    multiplicative_positions,
    page_local,
    single_hash,
    url_set,
)
from tests.commands.command_line import URLS

SAMPLE = [line for line in gzip.decompress(URLS.read_bytes()).decode().split("\n") if line]
LISTS = Path(os.environ.get("SCRAPY_BLOOM_DATA", "/nowhere"))


def distinct(count):
    """Return so many distinct URLs, made of real ones."""
    pages = (f"{url}#{n}" for n, url in product(range(1 + count // len(SAMPLE)), SAMPLE))
    return [url for url, _ in zip(pages, range(count), strict=False)]


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
    assert multiplicative_positions(url) == [original(url, seed) for seed in SEEDS]
    assert multiplicative_positions("x" + url[-31:]) == (
        multiplicative_positions("y" + url[-31:]) if len(url) >= 31 else
        [original("x" + url, seed) for seed in SEEDS]
    )  # fmt: skip


def false_positives(urls, positions):
    """Count them with sets, one URL after the other."""
    exact, bits, count = set(), set(), 0
    for url in urls:
        where = positions(url)
        if url not in exact and bits.issuperset(where):
            count += 1
        exact.add(url)
        bits.update(where)
    return len(exact), count


def run(urls, every=10_000, slots=1_000_000, bits=480_833, hashes=3):
    methods = [
        url_set(), fingerprint_set(), single_hash(slots), classic_bloom(bits, hashes),
        multiplicative(), page_local(max(len(urls), 1), 1e-6),
    ]  # fmt: skip
    return methods, list(compare(methods, urls, every))


def test_known_sizes_give_what_was_published():
    """100,000 distinct URLs: 4.84 % for one hash in 1,000,000 slots, 3.0 % for 480,833 bits
    and three hashes, growing from line 10,000 on as theory has it."""
    methods, rows = run(distinct(100_000))
    one, classic, eight, ours = (method.name for method in methods[2:])
    assert [row.lines for row in rows] == list(range(10_000, 100_001, 10_000))
    for row in rows:
        assert row.urls == row.lines
        for name, bits, hashes in ((one, 1_000_000, 1), (classic, 480_833, 3)):
            expected = expected_false_positives(bits, hashes, row.urls)
            assert abs(row.false_positives[name] - expected) < 5 * expected**0.5 + 5
    assert rows[-1].share(one) == pytest.approx(0.0484, abs=0.002)
    assert rows[-1].share(classic) == pytest.approx(0.0300, abs=0.002)
    assert rows[-1].false_positives[ours] == 0
    assert rows[-1].false_positives[methods[1].name] == 0
    assert rows[-1].false_positives[eight] > 0


def test_theory_has_the_known_values():
    """The integral agrees with the sum it stands for."""
    for bits, hashes, urls in ((1_000_000, 1, 100_000), (480_833, 3, 100_000), (5000, 4, 3000)):
        total = sum((1 - 2.718281828459045 ** (-hashes * n / bits)) ** hashes for n in range(urls))
        assert expected_false_positives(bits, hashes, urls) == pytest.approx(total, rel=1e-3)
    assert expected_false_positives(1_000_000, 1, 100_000) == pytest.approx(4837, abs=2)
    assert expected_false_positives(480_833, 3, 100_000) == pytest.approx(2995, abs=20)


def real_lists():
    names = ["urls_twir_links.txt.gz", "urls_kasztp.txt.gz"]
    return [LISTS / name for name in names if (LISTS / name).exists()] or [URLS]


@pytest.mark.parametrize("path", real_lists(), ids=lambda path: path.name)
def test_real_lists_agree_with_an_independent_count(path):
    """Duplicates included, for each method, to the last one."""
    urls = [line for line in gzip.decompress(path.read_bytes()).decode().split("\n") if line]
    urls += urls[::3]
    methods, rows = run(urls)
    one, classic, eight, ours = (method.name for method in methods[2:])
    last = rows[-1]

    def halves(url):
        return hash64(url, signed=False)

    for name, positions in (
        (one, lambda url: [halves(url)[0] % 1_000_000]),
        (classic, lambda url: [(halves(url)[0] + i * halves(url)[1]) % 480_833 for i in range(3)]),
        (eight, multiplicative_positions),
    ):
        assert (last.urls, last.false_positives[name]) == false_positives(urls, positions)
    assert last.false_positives[ours] == 0
    if "twir" in path.name:
        assert last.share(eight) == pytest.approx(0.009, abs=0.0006)


def test_memory_is_that_of_the_sizes():
    """Bits in bytes; the sets with what they hold."""
    methods, _ = run(SAMPLE[:1000], slots=8000, bits=16_000)
    sizes = [method.measure() for method in methods]
    assert sizes[2:5] == [1000, 2000, 2**28]
    assert sizes[0] > sum(map(len, SAMPLE[:1000]))
    assert sizes[1] > 1000 * 53
    assert sizes[5] % 4096 == 0


def test_empty_list_has_one_row():
    """Nothing in, zeros out."""
    _, rows = run([])
    assert [(row.lines, row.urls) for row in rows] == [(0, 0)]
    assert set(rows[0].false_positives.values()) == {0}
