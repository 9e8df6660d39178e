"""Runs the benchmarks, each in a process of its own: `python -m benchmarks [names…]` all of them,
or those; `--quick` those behind the README, with less to do; `--tree` each also, by turns, with
the package and the tests of another checkout."""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

SMALLER = {"bench_crawl": ["--pairs", "3"], "bench_weight": ["--items", "5000"]}
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
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("--quick", action="store_true", help="five minutes instead of an hour")
    parser.add_argument("--tree", type=Path, help="another checkout")
    parser.add_argument("names", nargs="*", help="such as bench_crawl")
    options = parser.parse_args()
    here = Path(__file__).resolve().parent
    arguments = QUICK if options.quick else SMALLER
    names = options.names or (options.quick and sorted(QUICK))
    failed = []
    for name in names or sorted(script.stem for script in here.glob("bench_*.py")):
        for tree in filter(None, (options.tree, here.parent)):
            given = arguments.get(name, [])
            print(f"\n== {name} {' '.join(given)} ({tree.resolve().name})", flush=True)
            started = time.monotonic()
            command = [sys.executable, str(here / f"{name}.py"), *given]
            env = {**os.environ, "BENCH_TREE": str(tree.resolve())}
            if subprocess.run(command, env=env, check=False).returncode:
                failed.append(name)
            print(f"({time.monotonic() - started:.0f} s)", flush=True)
    if failed:
        print(f"\nfailed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
