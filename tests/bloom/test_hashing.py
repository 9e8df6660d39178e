"""Golden vectors: a filter written by one release must be read by all later ones."""

from hashlib import sha256

import pytest

from scrapy_bloom.bloom.file import SCHEME, new_header
from scrapy_bloom.bloom.hashing import positions

SECRET = bytes(range(16))


def test_golden_vectors():
    """These numbers never change: they stand for the bits in every file ever written."""
    assert SCHEME == "mmh3-x64-128/block-32768/lanes-16/1"
    assert positions(SECRET, b"", 981, 14) == [*map(int, GOLDEN_EMPTY.split())]
    assert positions(SECRET, b"scrapy", 981, 14) == [*map(int, GOLDEN_SCRAPY.split())]
    assert positions(SECRET, bytes(20), 1, 22) == [*map(int, GOLDEN_FINGERPRINT.split())]
    all_probes = [positions(SECRET, bytes(range(n)), 100_000, n) for n in range(1, 31)]
    assert sha256(repr(all_probes).encode()).hexdigest() == GOLDEN_DIGEST


@pytest.mark.parametrize("secret", [b"", b"short", bytes(17), "0123456789abcdef", 16])
def test_bad_secret_is_named(secret):
    """The error says what a secret must be."""
    with pytest.raises(ValueError, match=r"secret is .* must be 16 bytes"):
        new_header(10, 0.1, secret, "")


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
GOLDEN_DIGEST = "c7d206c1202b144f51e3ad357aecadf6a7c553266a7409cc043353e1443ab713"
