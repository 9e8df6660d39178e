"""The fast ways to test and set bits do exactly what `hashing.positions` says."""

import os

import pytest

from scrapy_bloom import BloomFilter, ScalableBloomFilter
from scrapy_bloom.bloom.hashing import positions

KINDS = [BloomFilter, ScalableBloomFilter]
ERROR_RATES = [0.7, 0.3, 0.05, 0.01, 1e-3, 1e-6, 1e-9, 1e-12]


@pytest.mark.parametrize("error_rate", ERROR_RATES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_bit_is_asked_and_no_other(kind, error_rate):
    """A key is there if its bits are set, and is not if just one of them is clear."""
    tested = kind(10_000, error_rate)
    (layer,) = tested.layers
    bits = layer._store.bits
    for _ in range(5):
        key = os.urandom(20)
        own = positions(tested.secret, key, layer.header.blocks, layer.header.probes)
        bits.setall(0)
        for position in own:
            bits[position] = 1
        assert key in tested
        assert tested.add(key)
        bits.setall(1)
        for position in own:
            bits[position] = 0
            assert key not in tested
            assert not tested.add(key)
            assert all(bits[position] for position in own)


@pytest.mark.parametrize("error_rate", ERROR_RATES)
@pytest.mark.parametrize("layers", [1, 4])
def test_key_goes_into_the_newest_layer_only(error_rate, layers):
    """A new key sets its bits in the only or the newest one, and none in the others."""
    tested = ScalableBloomFilter(100, error_rate)
    while len(tested.layers) < layers:
        tested.add(os.urandom(20))
    *older, newest = tested.layers
    before = [layer._store.bits.copy() for layer in older]
    for _ in range(50):
        key = os.urandom(20)
        expected = newest._store.bits.copy()
        known = key in tested
        assert tested.add(key) is known
        if not known:
            expected[positions(tested.secret, key, newest.header.blocks, newest.header.probes)] = 1
        assert newest._store.bits == expected
    assert [layer._store.bits for layer in older] == before
    assert len(tested.layers) == layers
