"""Fingerprints alone: ours against Scrapy's, on distinct URLs.

python tests/benchmarks/bench_fingerprint.py [--urls N] [files…]
"""

from __future__ import annotations

from contextlib import suppress

from scrapy import Request
from scrapy.utils.request import fingerprint as scrapy_fingerprint
from sidebyside import Clock, mean, parser_of, streams, table

from scrapy_bloom.fingerprints.fast import canonical_url, fingerprint


def main() -> None:
    parser = parser_of(__doc__, urls=(4_000, "distinct ones, of each list"), rounds=5)
    parser.add_argument("files", nargs="*", help="lists of URLs, one a line, plain or .gz")
    arguments = parser.parse_args()
    rows, ratios = [], []
    for name, lines in streams(arguments.files):
        urls = list(dict.fromkeys(lines))
        urls = urls[:: max(1, len(urls) // arguments.urls)]
        clock = Clock()
        for _ in range(arguments.rounds):
            made: list[list[Request]] = [[], []]
            for url in urls:
                with suppress(ValueError):
                    for requests in made:
                        requests.append(Request(url))
            expected = clock.run("Scrapy", scrapy_fingerprint, made[0])
            assert clock.run("ours", fingerprint, made[1]) == expected
        left = sum(canonical_url(request.url) is None for request in made[0]) / len(made[0])
        ratios.append(clock.each("Scrapy") / clock.each("ours"))
        times = [f"{clock.each(way):.2f}" for way in ("Scrapy", "ours")]
        rows.append([name, f"{ratios[-1]:.1f}", *times, f"{left:.1%}"])
    table(["distinct URLs of", "ratio", "Scrapy/µs", "ours/µs", "left to Scrapy"], rows)
    print(f"{mean(ratios):.1f} times as the geometric mean")


if __name__ == "__main__":
    main()
