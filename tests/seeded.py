"""Randomised stories that a module of the tests tells in a process of its own."""

import json
import os
import random

from tests import processes


def seed_of(variable):
    """Return the seed that an environment variable has, or SEED, to repeat a run, or a new one."""
    return int(os.environ.get(variable) or os.environ.get("SEED") or random.randrange(1 << 32))


def run_module(module, *arguments, seed):
    """Run a module of this checkout; return what has become of it. Prints the command, with
    the seed, and what it has printed."""
    command = ["-m", module, *map(str, arguments), "--seed", str(seed)]
    print("python", *command)
    run = processes.run(command, cwd=processes.PACKAGE, text=True, timeout=7200)
    print(run.stdout, run.stderr)
    return run


def told(module, *arguments, seed):
    """Return what became of the crawls whose stories a module of `tests.world` tells, by name."""
    run = run_module(module, *arguments, seed=seed)
    assert run.returncode == 0
    return {report["crawl"]: report for report in map(json.loads, run.stdout.splitlines())}
