"""Golden vectors: a filter written by one release must be read by all later ones."""

import random

import pytest

from scrapy_bloom.bloom.hashing import positions
from scrapy_bloom.bloom.header import SCHEME, check_secret
from scrapy_bloom.bloom.sizing import digests

SECRET = bytes(range(16))
MASK = (1 << 64) - 1


def murmur3_x64_128(data: bytes, seed: int) -> bytes:
    """Austin Appleby's MurmurHash3_x64_128 from its description, for comparison."""

    def rotate(x, r):
        return (x << r | x >> (64 - r)) & MASK

    def finish(x):
        x = (x ^ x >> 33) * 0xFF51AFD7ED558CCD & MASK
        x = (x ^ x >> 33) * 0xC4CEB9FE1A85EC53 & MASK
        return x ^ x >> 33

    c1, c2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
    h1 = h2 = seed
    tail = len(data) // 16 * 16
    for start in range(0, tail, 16):
        k1 = int.from_bytes(data[start : start + 8], "little")
        k2 = int.from_bytes(data[start + 8 : start + 16], "little")
        h1 ^= rotate(k1 * c1 & MASK, 31) * c2 & MASK
        h1 = (rotate(h1, 27) + h2) * 5 + 0x52DCE729 & MASK
        h2 ^= rotate(k2 * c2 & MASK, 33) * c1 & MASK
        h2 = (rotate(h2, 31) + h1) * 5 + 0x38495AB5 & MASK
    k1 = int.from_bytes(data[tail : tail + 8], "little")
    k2 = int.from_bytes(data[tail + 8 :], "little")
    h2 ^= rotate(k2 * c2 & MASK, 33) * c1 & MASK
    h1 ^= rotate(k1 * c1 & MASK, 31) * c2 & MASK
    h1, h2 = h1 ^ len(data), h2 ^ len(data)
    h1 = h1 + h2 & MASK
    h2 = h2 + h1 & MASK
    h1, h2 = finish(h1), finish(h2)
    h1 = h1 + h2 & MASK
    h2 = h2 + h1 & MASK
    return h1.to_bytes(8, "little") + h2.to_bytes(8, "little")


def described_positions(secret, key, blocks, probes):
    """The scheme as its docstring describes it, lane by lane."""
    lanes = []
    for seed in range(digests(probes)):
        digest = murmur3_x64_128(secret + key, seed)
        start = 0
        if seed == 0:
            block = int.from_bytes(digest[:4], "little") * blocks // 2**32
            start = 4
        lanes += [int.from_bytes(digest[i : i + 2], "little") % 32_768 for i in range(start, 16, 2)]
    return [block * 32_768 + lane for lane in lanes[:probes]]


@pytest.mark.parametrize("probes", [1, 5, 6, 14, 22, 30])
def test_positions_follow_the_described_scheme(probes):
    """Our positions equal those of an independent implementation, for any key."""
    rng = random.Random(probes)
    for length in (0, 1, 15, 16, 17, 20, 31, 32, 33, 100):
        key, blocks = rng.randbytes(length), rng.choice([1, 2, 981, 100_000])
        assert positions(SECRET, key, blocks, probes) == described_positions(
            SECRET, key, blocks, probes
        )


def test_golden_vectors():
    """These numbers never change: they stand for the bits in every file ever written."""
    assert SCHEME == "mmh3-x64-128/block-32768/lanes-16/1"
    assert positions(SECRET, b"", 981, 14) == [*map(int, GOLDEN_EMPTY.split())]
    assert positions(SECRET, b"scrapy", 981, 14) == [*map(int, GOLDEN_SCRAPY.split())]
    assert positions(SECRET, bytes(20), 1, 22) == [*map(int, GOLDEN_FINGERPRINT.split())]


@pytest.mark.parametrize("secret", [b"", b"short", bytes(17), "0123456789abcdef", 16])
def test_bad_secret_is_named(secret):
    """The error says what a secret must be."""
    with pytest.raises(ValueError, match=r"secret is .* must be 16 bytes"):
        check_secret(secret)


GOLDEN_EMPTY = """
    18261173 18269257 18278469 18282031 18277462 18262928 18260500 18279357 18279123 18257429
    18267274 18264323 18254434 18277041
"""
GOLDEN_SCRAPY = """
    26285331 26304269 26296267 26284462 26291652 26307890 26299852 26304614 26297796 26307952
    26296373 26309378 26297042 26311818
"""
GOLDEN_FINGERPRINT = """
    15681 8246 23577 27541 22039 11881 28621 14901 2282 10466 4314 22997 1024 8604 8077 5842
    20970 21702 30393 9561 21769 6475
"""
