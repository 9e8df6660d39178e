"""Runs all benchmarks, each in a process of its own: `python -m tests.benchmarks [files…]`."""

import subprocess
import sys
import time
from pathlib import Path

TAKES_FILES = {"bench_fingerprint", "bench_request_seen"}
SMALLER = {"bench_weight": ["--items", "5000"]}
"""The arguments of those that would take an hour."""


def main() -> int:
    """Run every bench_*.py beside this file; the files given go to those that take some."""
    failed = []
    for script in sorted(Path(__file__).parent.glob("bench_*.py")):
        given = sys.argv[1:] if script.stem in TAKES_FILES else SMALLER.get(script.stem, [])
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
