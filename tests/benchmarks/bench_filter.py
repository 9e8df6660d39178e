"""The filter alone, at 1e-6: add new keys, add known ones, test for both; against other
Bloom filters and a set. Keys are 20 random bytes, as fingerprints are.

    python tests/benchmarks/bench_filter.py [--capacity N] [--keys N] [--rounds N]
"""

from __future__ import annotations

from peers import filters
from sidebyside import OPERATIONS, mean, operations, parser_of, table

from scrapy_bloom import BloomFilter, ScalableBloomFilter


def main() -> None:
    arguments = parser_of(
        __doc__, capacity=1_000_000, keys=(10_000, "timed in each round"), rounds=10
    ).parse_args()
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
