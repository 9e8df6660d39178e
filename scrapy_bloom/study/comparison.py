"""Ways to remember the URLs of a crawl, side by side, as in the literature on crawlers.

Each method gets the same URLs in the same order and says of each whether it was seen. The set of
URLs is exact; a new URL that another method takes for a seen one is a false positive.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha1
from itertools import islice
from math import exp
from operator import mul
from time import perf_counter

from bitarray import bitarray
from mmh3 import hash64

from ..bloom.fixed import BloomFilter

SEEDS = (5, 7, 11, 13, 19, 31, 37, 61)
MULTIPLICATIVE_BITS = 1 << 31

_MASK = MULTIPLICATIVE_BITS - 1
_TAIL = 31
# h * (1 + seed) + ord(c), where 1 + seed is even: the factor of a character that 31
# others follow is a multiple of 2**31, so it is forgotten
_FACTORS = [[pow(1 + seed, n, MULTIPLICATIVE_BITS) for n in range(_TAIL)] for seed in SEEDS]


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
