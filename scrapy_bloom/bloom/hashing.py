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

from mmh3 import hash128

from .layers import BLOCK_SHIFT, FIRST_MASK, NEXT_MASK, unpack_first, unpack_next
from .sizing import digests

Lanes = tuple[int, int, int, int, int, int, int]
"""A block selector (32 bits) and the first six probe positions (15 bits each)."""


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
