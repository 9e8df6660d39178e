"""Runs the benchmarks, each in a process of its own: `python -m tests.benchmarks [files…]` all of
them, `python -m tests.benchmarks --quick` those behind the README, with less to do."""

import argparse
import subprocess
import sys
import time
from pathlib import Path

TAKES_FILES = {"bench_fingerprint", "bench_request_seen"}
SMALLER = {"bench_weight": ["--items", "5000"]}
"""The arguments of those that would take an hour."""
QUICK = {
    "bench_memory": ["--items", "1e6"],
    "bench_request_seen": ["--requests", "20000", "--rounds", "1"],
    "bench_crawl": ["--only", "demo", "--pairs", "1", "--pages", "300"],
    "bench_scheduler": ["--pending", "100000", "--rounds", "3"],
    "bench_hold": ["--seconds", "10"],
}
"""Five minutes: their figures differ more from one run to the next than those of a whole one."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks")
    parser.add_argument("--quick", action="store_true", help="five minutes instead of an hour")
    parser.add_argument("files", nargs="*", help="lists of URLs, for those that take some")
    options = parser.parse_args()
    failed = []
    for script in sorted(Path(__file__).parent.glob("bench_*.py")):
        if options.quick and script.stem not in QUICK:
            continue
        given = QUICK[script.stem] if options.quick else SMALLER.get(script.stem, [])
        if script.stem in TAKES_FILES:
            given = [*given, *options.files]
        print(f"\n== {script.stem} {' '.join(given)}".rstrip(), flush=True)
        started = time.monotonic()
        if subprocess.run([sys.executable, str(script), *given], check=False).returncode:
            failed.append(script.stem)
        print(f"({time.monotonic() - started:.0f} s)", flush=True)
    if failed:
        print(f"\nfailed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
