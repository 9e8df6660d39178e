"""Ways to test and set the 14 bits of a key in a half-full filter for 1 M keys.

What the filters do is `three, then rest`. Most of the time goes into waiting for cache
lines, which a benchmark on the same few keys over and over does not show.

    python tests/benchmarks/bench_probes.py [--rounds N]
"""

from __future__ import annotations

import argparse
import os

from mmh3 import hash128
from sidebyside import Clock, table

from scrapy_bloom import BloomFilter
from scrapy_bloom.bloom.hashing import NEXT_MASK, first_lanes, next_lanes, unpack_next

FILTER = BloomFilter(1_000_000, 1e-6)
SECRET, BITS, BLOCKS = FILTER.secret, FILTER._store.bits, FILTER.header.blocks


def positions(key: bytes) -> list[int]:
    salted = SECRET + key
    selector, *lanes = first_lanes(salted)
    origin = selector * BLOCKS >> 32 << 15
    return [origin + lane for lane in (*lanes, *next_lanes(salted, 1))]


def loop(key: bytes) -> bool:
    """One probe after the other, all derived first."""
    bits = BITS
    for position in positions(key):  # noqa: SIM110 - it is what is measured
        if not bits[position]:
            return False
    return True


def lazy_shifts(key: bytes) -> bool:
    """One probe after the other, each cut from the hash when it is needed."""
    bits, salted = BITS, SECRET + key
    number = hash128(salted, 0)
    origin = (number & 0xFFFFFFFF) * BLOCKS >> 32 << 15
    number >>= 32
    for _ in range(6):
        if not bits[origin + (number & 0x7FFF)]:
            return False
        number >>= 16
    number = hash128(salted, 1)
    for _ in range(8):
        if not bits[origin + (number & 0x7FFF)]:
            return False
        number >>= 16
    return True


def chain(key: bytes) -> bool:
    """Straight-line code, a digest at a time."""
    bits, salted = BITS, SECRET + key
    selector, a, b, c, d, e, f = first_lanes(salted)
    o = selector * BLOCKS >> 32 << 15
    if not (
        bits[o + a] and bits[o + b] and bits[o + c]
        and bits[o + d] and bits[o + e] and bits[o + f]
    ):  # fmt: skip
        return False
    a, b, c, d, e, f, g, h = next_lanes(salted, 1)
    return bool(
        bits[o + a] and bits[o + b] and bits[o + c] and bits[o + d]
        and bits[o + e] and bits[o + f] and bits[o + g] and bits[o + h]
    )  # fmt: skip


def fetch_all(key: bytes) -> bool:
    return BITS[positions(key)].all()


def page(key: bytes) -> bool:
    """A copy of the block, and all bits of it in one call."""
    salted = SECRET + key
    selector, *lanes = first_lanes(salted)
    origin = selector * BLOCKS >> 32 << 15
    return BITS[origin : origin + 32_768][[*lanes, *next_lanes(salted, 1)]].all()


def set_loop(key: bytes) -> None:
    bits = BITS
    for position in positions(key):
        bits[position] = 1


def set_chain(key: bytes) -> None:
    bits, salted = BITS, SECRET + key
    selector, a, b, c, d, e, f = first_lanes(salted)
    o = selector * BLOCKS >> 32 << 15
    bits[o + a] = bits[o + b] = bits[o + c] = bits[o + d] = bits[o + e] = bits[o + f] = 1
    a, b, c, d, e, f, g, h = unpack_next((hash128(salted, 1) & NEXT_MASK).to_bytes(16, "little"))
    bits[o + a] = bits[o + b] = bits[o + c] = bits[o + d] = 1
    bits[o + e] = bits[o + f] = bits[o + g] = bits[o + h] = 1


def set_all(key: bytes) -> None:
    BITS[positions(key)] = 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    FILTER.update(os.urandom(20) for _ in range(500_000))
    tests = {
        "three, then rest": FILTER.__contains__,
        **{way.__name__: way for way in (loop, lazy_shifts, chain, fetch_all, page)},
    }
    stores = {way.__name__: way for way in (set_all, set_loop, set_chain)}
    clock = Clock()
    for _ in range(arguments.rounds):
        known, absent = ([os.urandom(20) for _ in range(5_000)] for _ in range(2))
        FILTER.update(known)
        for name, way in tests.items():
            assert all(clock.run(f"{name} known", way, known))
            assert not any(clock.run(f"{name} absent", way, absent))
        for name, way in stores.items():
            clock.run(name, way, [os.urandom(20) for _ in range(5_000)])
    rows = []
    for name in tests:
        for kind in ("known", "absent"):
            each = clock.each(f"{name} {kind}")
            ratio = each / clock.each(f"three, then rest {kind}")
            rows.append([f"test {kind}: {name}", f"{ratio:.2f}", f"{each * 1000:.0f}"])
    for name in stores:
        ratio = clock.each(name) / clock.each("set_all")
        rows.append([f"store: {name}", f"{ratio:.2f}", f"{clock.each(name) * 1000:.0f}"])
    table(["", "relative", "ns"], sorted(rows, key=lambda row: row[0].partition(":")[0]))


if __name__ == "__main__":
    main()
