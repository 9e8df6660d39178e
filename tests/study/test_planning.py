"""What a number of URLs takes, known before the crawl."""

import sys
import tracemalloc
from hashlib import sha1

import pytest

from scrapy_bloom import BloomFilter, ScalableBloomFilter
from scrapy_bloom.study import Plan, _table_bytes, set_bytes


@pytest.mark.parametrize(("urls", "rate"), [(1, 0.5), (70_000, 1e-3), (1_000_000, 1e-6)])
def test_plan_is_exact(urls, rate):
    """A filter of that shape takes as many bytes."""
    assert Plan(urls, rate).bytes == ScalableBloomFilter(urls, rate).nbytes
    assert Plan(urls, rate).bytes >= BloomFilter(urls, rate).nbytes
    plan, made = Plan(urls, rate, exact=True), ScalableBloomFilter(urls, rate, exact=True)
    assert (plan.bytes, plan.table_bytes) == (made.nbytes, made.table_nbytes)


def test_set_of_fingerprints_is_measured_right():
    """The formula gives the size of real sets, at every step of their growth, and what the
    allocator was asked for."""
    members = set()
    empty = sys.getsizeof(members)
    for n in range(1, 200_000):
        members.add(n)
        assert sys.getsizeof(members) - empty == _table_bytes(n)
    tracemalloc.start()
    members = {sha1(str(n).encode()).digest() for n in range(100_000)}
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # blocks are rounded up to 16 bytes, which is not traced
    assert used <= set_bytes(len(members)) <= used + 11 * len(members) + 1000
