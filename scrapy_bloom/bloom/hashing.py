"""From a key to a block and the bits in it: keyed MurmurHash3.

Digest i is mmh3 x64 128 of the filter's secret followed by the key, with seed i,
in little-endian order. Digest 0 holds a 32-bit block selector and six lanes of
16 bits, each later digest eight lanes. The low 15 bits of a lane are the position
of one probe in the block, which is the selector scaled to the number of blocks
(multiply and shift, no modulo).

MurmurHash3 is no pseudorandom function. An attacker can choose keys such as URLs, but the filter
hashes their SHA-1 fingerprints behind a secret that the attacker does not know (Gerbet, Kumar and
Lauradoux 2015, "The Power of Evil Choices in Bloom Filters").
"""

from __future__ import annotations

from struct import Struct

from mmh3 import hash128

SCHEME = "mmh3-x64-128/block-32768/lanes-16/1"
"""Name and version of the scheme above, in the header of each file."""

TABLE_SCHEME = "blake2b-64/bucket-63/1"
"""Name and version of the layout of exact_table.py, in the header of files with such a table."""

SECRET_BYTES = 16
BLOCK_SHIFT = 15  # a block has 2**15 bits
FIRST_PROBES = 6  # of the first 128-bit hash, beside the block
NEXT_PROBES = 8  # of each further one

unpack_first = Struct("<I6H").unpack
unpack_next = Struct("<8H").unpack
LANE_MASK = 0x7FFF
FIRST_MASK = int.from_bytes(b"\xff\xff\xff\xff" + b"\xff\x7f" * FIRST_PROBES, "little")
NEXT_MASK = int.from_bytes(b"\xff\x7f" * NEXT_PROBES, "little")

Key = bytes | str
"""Text is encoded as UTF-8."""

Lanes = tuple[int, int, int, int, int, int, int]
"""A block selector (32 bits) and the first six probe positions (15 bits each)."""


def to_bytes(key: Key) -> bytes:
    """Return `key` as the filters hash it. Raises TypeError for other types."""
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, (bytes, bytearray, memoryview)):
        return bytes(key)
    raise TypeError(f"key is {key!r}, a {type(key).__name__}: keys are bytes or str")


def check_secret(secret: bytes) -> None:
    """Raise ValueError unless `secret` is 16 bytes."""
    if not isinstance(secret, bytes) or len(secret) != SECRET_BYTES:
        raise ValueError(
            f"secret is {secret!r}: it must be {SECRET_BYTES} bytes, or None for a random one"
        )


def first_lanes(salted: bytes) -> Lanes:
    """Return the block selector and first six probe positions of a key with the secret in front
    of it."""
    return unpack_first((hash128(salted, 0) & FIRST_MASK).to_bytes(16, "little"))


def next_lanes(salted: bytes, seed: int) -> tuple[int, ...]:
    """Return the eight probe positions in digest `seed` (from 1 on)."""
    return unpack_next((hash128(salted, seed) & NEXT_MASK).to_bytes(16, "little"))


def positions(secret: bytes, key: bytes, blocks: int, probes: int) -> list[int]:
    """Return the positions of the bits of `key` in a filter of that shape.

    This is the definition; `Layered` computes the same in fewer steps, with the code of
    `first_lanes` and `next_lanes` in line.
    """
    salted = secret + key
    selector, *lanes = first_lanes(salted)
    for seed in range(1, digests(probes)):
        lanes += next_lanes(salted, seed)
    origin = selector * blocks >> 32 << BLOCK_SHIFT
    return [origin + lane for lane in lanes[:probes]]


def digests(probes: int) -> int:
    """Return the number of 128-bit digests that yield `probes` positions."""
    return 1 + max(0, -(-(probes - FIRST_PROBES) // NEXT_PROBES))
