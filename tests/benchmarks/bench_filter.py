"""The filter alone, at 1e-6: add new keys, add known ones, test for both; against other
Bloom filters and a set. Keys are 20 random bytes, as fingerprints are.

    python tests/benchmarks/bench_filter.py [--capacity N] [--keys N] [--rounds N]
"""

from __future__ import annotations

import argparse

from peers import filters
from sidebyside import OPERATIONS, mean, operations, table

from scrapy_bloom import BloomFilter, ScalableBloomFilter


def main() -> None:
    """Print the ratios of each filter's time to that of BloomFilter, then nanoseconds."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--capacity", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=10_000, help="timed in each round")
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    makers = {"BloomFilter": BloomFilter, "ScalableBloomFilter": ScalableBloomFilter, **filters()}
    made = {name: maker(arguments.capacity, 1e-6) for name, maker in makers.items()}
    made["set"] = set()
    each = operations(made, arguments.capacity, arguments.keys, arguments.rounds)
    rows = []
    for name, times in each.items():
        ratios = [time / own for time, own in zip(times, each["BloomFilter"], strict=True)]
        numbers = [f"{ratio:.2f}" for ratio in (*ratios, mean(ratios))]
        rows.append([name, *numbers, *(f"{time * 1000:.0f}" for time in times)])
    table(["", *OPERATIONS, "mean", *(f"{operation}/ns" for operation in OPERATIONS)], rows)


if __name__ == "__main__":
    main()
