"""The filter alone, at 1e-6: add new keys, add known ones, test for both; against other
Bloom filters and a set. Keys are 20 random bytes, as fingerprints are.

    python benchmarks/bench_filter.py [--capacity N] [--keys N] [--rounds N]
"""

from peers import filters
from sidebyside import operations, parser_of

from scrapy_bloom import BloomFilter, ScalableBloomFilter


def main() -> None:
    parser = parser_of(__doc__, capacity=1_000_000, keys=(10_000, "timed a round"), rounds=10)
    options = parser.parse_args()
    makers = {"BloomFilter": BloomFilter, "ScalableBloomFilter": ScalableBloomFilter, **filters()}
    made = {name: maker(options.capacity, 1e-6) for name, maker in makers.items()}
    operations({**made, "set": set()}, options.capacity, options.keys, options.rounds)


if __name__ == "__main__":
    main()
