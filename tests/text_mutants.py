"""Mutants as changes of the text of the package, each of which tests must notice."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

Mutants = Mapping[str, tuple[str, str, str]]
"""By name: a file, what stands there once, and what stands there instead."""


def run(mutants: Mutants, tests: Sequence[str], names: Sequence[str] | None = None) -> int:
    """Run `tests` with each mutant of `names`, which are those of the command line, or with all, in
    a copy of the package, and print what noticed it. What prints `SURVIVED` is a hole in the tests;
    return the exit status, 1 then. The tests must pass without a mutant."""
    assert not _noticing(None, tests), "the tests fail without a mutant"
    survivors = []
    for name in (sys.argv[1:] if names is None else names) or mutants:
        noticing = _noticing(mutants[name], tests)
        print(f"{name}: {noticing or 'SURVIVED'}"[:110], flush=True)
        if not noticing:
            survivors.append(name)
    return int(bool(survivors))


def _noticing(mutant: tuple[str, str, str] | None, tests: Sequence[str]) -> str:
    """Return the line of the first test that fails, "" if all pass."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for part in ("scrapy_bloom", "tests", "docs"):
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        if mutant is not None:
            file, old, new = mutant
            text = (copy / file).read_text()
            assert text.count(old) == 1, f"{text.count(old)} places to change: {old}"
            (copy / file).write_text(text.replace(old, new))
        command = [sys.executable, "-m", "pytest", "-x", "-q", *tests]
        ran = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
        failed = [line for line in ran.stdout.splitlines() if line.startswith("FAILED")]
        assert failed or " passed" in ran.stdout, ran.stdout
        return failed[0] if failed else ""
