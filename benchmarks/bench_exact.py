"""Filters with an exact table: time beside the plain filter, bytes a key in memory and on the disk.

python benchmarks/bench_exact.py [--capacity N] [--keys N] [--rounds N]
"""

import tempfile
from itertools import count
from pathlib import Path

from sidebyside import operations, parser_of, table

from scrapy_bloom import BloomFilter, ScalableBloomFilter

RATE = 1e-6
KINDS = {
    "BloomFilter": (BloomFilter, RATE, False),
    "exact": (BloomFilter, RATE, True),
    "exact, p = 0.01": (BloomFilter, 0.01, True),
    "ScalableBloomFilter": (ScalableBloomFilter, RATE, False),
    "ScalableBloomFilter, exact": (ScalableBloomFilter, RATE, True),
}


def times(capacity: int, keys: int, rounds: int) -> None:
    """Print the ratios of each filter's time to that of BloomFilter, then nanoseconds."""
    with tempfile.TemporaryDirectory() as folder:
        made = {
            name: kind(capacity, rate, Path(folder) / name, exact=exact)
            for name, (kind, rate, exact) in KINDS.items()
        }
        operations(made, capacity, keys, rounds)
        for tested in made.values():
            tested.close()


def sizes(capacity: int) -> None:
    """Print the bytes a key of filters that are full, and just after growing."""
    rows, numbers = [], count()
    with tempfile.TemporaryDirectory() as folder:
        for title in ("plain", "exact"):
            path = Path(folder) / title
            with ScalableBloomFilter(capacity, RATE, path, exact=title == "exact") as tested:
                for layers in range(1, 4):
                    full = capacity * (2**layers - 1)
                    for what, keys in ((f"{layers} full", 0), (f"grown to {layers + 1}", 1)):
                        while len(tested) < full + keys:
                            tested.add(b"%d" % next(numbers))
                        sums = tested.nbytes, sum(p.stat().st_blocks * 512 for p in path.iterdir())
                        each = [f"{size / len(tested):.2f}" for size in sums]
                        rows.append([f"{title}, {what}", f"{len(tested):,}", *each])
    print("\nbytes a key: bits, which belong in memory, and the whole on the disk")
    table(["", "keys", "memory", "disk"], rows)


def main() -> None:
    parser = parser_of(__doc__, capacity=1_000_000, keys=(10_000, "timed a round"), rounds=10)
    options = parser.parse_args()
    times(options.capacity, options.keys, options.rounds)
    sizes(options.capacity)


if __name__ == "__main__":
    main()
