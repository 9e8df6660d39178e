"""Randomised stories that a module of the tests tells in a process of its own."""

import os
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def seed_of(variable):
    """Return the seed that an environment variable has, to repeat a run, or a new one."""
    return int(os.environ.get(variable, random.randrange(1 << 32)))


def run_module(module, *arguments, seed):
    """Run a module of this checkout; return what has become of it. Prints the command, with
    the seed, and what it has printed."""
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = ["-m", module, *map(str, arguments), "--seed", str(seed)]
    print("python", *command)
    run = subprocess.run(
        [sys.executable, "-W", "ignore", *command],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        timeout=7200,
        check=False,
    )
    print(run.stdout, run.stderr)
    return run
