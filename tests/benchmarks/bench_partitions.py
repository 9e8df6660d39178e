"""What comes after one Redis: a crawl of 10^10 requests by 1,000 workers, as a simulation.

`python tests/benchmarks/bench_partitions.py` reckons how many servers such a crawl needs, and
simulates the way to have them: the requests of a crawl partitioned by their fingerprints, each
partition a crawl of its own (filter, queue, claims) on some node of a Cluster. A worker's group
commit becomes a call to each partition that one of its new requests falls into. No Redis here.
"""

import random
from hashlib import blake2b

from sidebyside import parser_of, table

# What bench_redis_queue.py prints of one server, on a core that others used too.
NEW_SECONDS = 54e-6
"""Server time of a new request, tested, pushed, claimed and acknowledged."""
CALL_SECONDS = 25e-6
"""Server time of a call beside that."""
PENDING_BYTES = 241
SEEN_BYTES = 4.2


def partition(number, partitions):
    """Return the partition of a fingerprint, by its first bytes."""
    digest = blake2b(number.to_bytes(8, "big"), digest_size=20).digest()
    return int.from_bytes(digest[:8], "big") * partitions >> 64


def shares(requests, partitions):
    """Return how many of so many requests fall into each partition."""
    counts = [0] * partitions
    for number in range(requests):
        counts[partition(number, partitions)] += 1
    return counts


def calls_a_commit(new, partitions, commits, chance):
    """Return the mean number of partitions that a commit of `new` requests speaks to."""
    total = 0
    for _ in range(commits):
        numbers = (chance.getrandbits(63) for _ in range(new))
        total += len({partition(number, partitions) for number in numbers})
    return total / commits


def main():
    options = parser_of(
        __doc__,
        requests=1e10,
        workers=1000,
        pages=(50.0, "a second and worker"),
        pending=(0.1, "share of the requests"),
        seed=1,
    ).parse_args()
    chance = random.Random(options.seed)
    rate = options.workers * options.pages
    memory = options.requests * (SEEN_BYTES + options.pending * PENDING_BYTES)
    print(
        f"{options.requests:.0e} requests, {options.workers:,} workers with {options.pages:g}"
        f" pages a second each: {rate:,.0f} a second, {options.requests / rate / 86400:.1f} days;"
        f" {memory / 1e9:,.0f} GB where {options.pending:.0%} are pending"
    )
    rows = []
    for partitions in (1, 4, 16, 64, 256):
        new = max(1, round(options.pages / 10))  # a commit each tenth of a second
        calls = calls_a_commit(new, partitions, 2000, chance)
        counts = shares(200_000, partitions)
        busiest = max(counts) * partitions / sum(counts)
        load = (rate * NEW_SECONDS + options.workers * 10 * calls * CALL_SECONDS) / partitions
        rows.append(
            [
                partitions,
                f"{calls:.1f}",
                f"{busiest:.2f}",
                f"{load:.2f}",
                f"{memory / partitions / 1e9:,.1f} GB",
                "yes" if load * busiest < 0.7 else "no",
            ]
        )
    table(
        ["partitions", "calls a commit", "busiest/mean", "load of a core", "memory each", "fits"],
        rows,
    )


if __name__ == "__main__":
    main()
