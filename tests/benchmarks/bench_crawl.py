"""A whole crawl of the example project's site, with our dupefilter and with Scrapy's.

python tests/benchmarks/bench_crawl.py [--rounds N]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
from pathlib import Path

from sidebyside import HERE, table

sys.path.insert(0, str(HERE.parent.parent / "example_project"))

KINDS = {
    "RFPDupeFilter": {
        "ADDONS": "{}",
        "DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter",
    },
    "ours": {
        "ADDONS": "{}",
        "DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter",
    },
}


def main() -> None:
    """Print the seconds of the fastest crawl of each, and what they fetched and dropped."""
    from harness import crawl, serve

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    best: dict[str, tuple[float, int, int]] = {}
    for number in range(arguments.rounds):
        for kind, settings in KINDS.items():
            with (
                tempfile.TemporaryDirectory() as name,
                serve(Path(name)) as site,
                contextlib.redirect_stdout(io.StringIO()),
            ):
                run = crawl(site, Path(name) / f"job{number}", kind, settings=settings)
            if run.status:
                sys.exit(f"{kind}: the crawl ended with exit status {run.status}")
            outcome = (float(run.stats["elapsed_time_seconds"]), run.fetched, run.filtered)
            best[kind] = min(outcome, best.get(kind, outcome))
    base = best["RFPDupeFilter"][0]
    rows = [
        [kind, f"{base / seconds:.2f}", f"{seconds:.2f}", f"{fetched:,}", f"{filtered:,}"]
        for kind, (seconds, fetched, filtered) in best.items()
    ]
    table(["a whole crawl", "ratio", "seconds", "pages fetched", "duplicates dropped"], rows)


if __name__ == "__main__":
    main()
