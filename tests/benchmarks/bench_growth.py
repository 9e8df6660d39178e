"""How the cost of `request_seen` for a new URL grows with the requests held, when the
filter grows from the default capacity, and when the capacity is set to what comes.

    python tests/benchmarks/bench_growth.py [--keys 1e8] [--minutes 10] [--only set]
"""

from __future__ import annotations

import os
import time

from scrapy import Request
from scrapy.utils.test import get_crawler
from sidebyside import Clock, parser_of, table

from scrapy_bloom import BloomDupeFilter

STEPS = (100_000, 1_000_000, 10_000_000, 100_000_000)


def open_dupefilter(capacity: int) -> BloomDupeFilter:
    crawler = get_crawler(settings_dict={"BLOOM_CAPACITY": capacity})
    crawler.spider = None
    dupefilter = BloomDupeFilter.from_crawler(crawler)
    dupefilter.open()
    return dupefilter


def main() -> None:
    parser = parser_of(
        __doc__, keys=(3e6, "at most, such as 1e8"), minutes=(10.0, "for each of the two")
    )
    parser.add_argument("--only", choices=("grown", "set"), help="one of the two")
    arguments = parser.parse_args()
    steps = [step for step in (*STEPS, int(arguments.keys)) if step <= arguments.keys]
    rows = []
    # with room for the samples, or the filter would grow at the very end
    kinds = {"grown": ("grown from 1 M", 1_000_000), "set": ("capacity set", max(steps) * 11 // 10)}
    for title, capacity in [kinds[arguments.only]] if arguments.only else kinds.values():
        dupefilter = open_dupefilter(capacity)
        keys, until = dupefilter.filter, time.monotonic() + arguments.minutes * 60
        costs: dict[int, float] = {}
        for step in sorted(set(steps)):
            while len(keys) < step and time.monotonic() < until:
                keys.update(map(os.urandom, [20] * min(100_000, step - len(keys))))
            clock = Clock()
            for sample in range(5):
                urls = [f"http://a.example/{step}/{sample}/{n}.html" for n in range(5_000)]
                requests = [Request(url) for url in urls]
                clock.run("new", dupefilter.request_seen, requests)
            costs[len(keys)] = clock.each("new")
            if len(keys) < step:
                break
        million = next((cost for held, cost in costs.items() if held >= 1_000_000), None)
        for held, cost in costs.items():
            relative = f"{cost / million:.2f}" if million else ""
            size = f"{keys.nbytes / 1e6:.0f} MB" if held == max(costs) else ""
            rows.append([f"{title}: {held:,} held", relative, f"{cost:.2f}", size])
        rows[-1].append(str(len(keys.layers)))
        dupefilter.close("finished")
    width = max(map(len, rows))
    rows = [row + [""] * (width - len(row)) for row in rows]
    table(["", "relative to 1 M", "µs a new URL", "filter", "layers"], rows)


if __name__ == "__main__":
    main()
