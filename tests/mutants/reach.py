"""Which tests call which function, and how long each test takes."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from statistics import fmean

HOOKS = Path(__file__).parent / "hooks"
LUA = Path("scrapy_bloom/redis/lua")


class Reach:
    """What has been seen in one run of `tests`, in the copy `folder` of the tree. It is kept beside
    the environment for as long as they and the package stay as they are."""

    def __init__(self, package: Path, tests: list[str], folder: Path) -> None:
        self.took: dict[str, float] = Counter()
        """The seconds of each test that passes."""
        self._calls: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        failed = set()
        for line in _kept(package, tests, folder).read_text(encoding="utf-8").splitlines():
            test, *others = line.split("\t")
            if test == "time":
                self.took[others[0]] += float(others[1])
                failed |= {others[0]} if others[2] != "passed" else set()
            elif test:
                name, _, first = others[0].rpartition(":")
                self._calls[name][int(first)].add(test)
        for test in failed:
            del self.took[test]

    def tests_of(self, path: Path, line: int) -> list[str]:
        """Return the tests that may notice a change of a line, in the order to run them: those
        that call the function around it, or any of its file if none is known to, as for a line
        that runs at import. The quick files come first."""
        spans = [*_functions_around(path, line), range(1, 1 << 30)]
        called = [
            (at, tests) for each in _users(path) for at, tests in self._calls[str(each)].items()
        ]
        found = ({test for at, tests in called if at in span for test in tests} for span in spans)
        callers: set[str] = next(filter(None, found), set())
        of_file = defaultdict(list)
        for test in self.took:
            file, _, _ = test.partition("::")
            if test in callers or file in callers:
                of_file[file].append(test)
        order = []
        for file, tests in of_file.items():
            mean = fmean(map(self.took.get, tests))
            order += [(self.took[test] > 1, mean, file, self.took[test], test) for test in tests]
        return [test for *_, test in sorted(order)]


def _kept(package: Path, tests: list[str], folder: Path) -> Path:
    """Run the tests, unless that was done; return the file of what was seen."""
    folders = [HOOKS, package, *map(Path, tests)]
    files = [f for each in folders for f in (sorted(each.rglob("*")) if each.is_dir() else [each])]
    state = sha256(b"".join(f.read_bytes() for f in files if f.suffix in {".py", ".lua"}))
    kept = Path(sys.prefix, "mutants", state.hexdigest()[:16])
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        written = kept.with_suffix(f".{os.getpid()}")
        told = {"REACHED": str(written), "REACHED_PREFIX": str(package)}
        environment = {**os.environ, "PYTHONPATH": f"{HOOKS}{os.pathsep}{folder}", **told}
        options = "-q --tb=no -n 2 --dist worksteal -p no:cacheprovider -p sitecustomize"
        command = [sys.executable, "-m", "pytest", *options.split(), *tests]
        run = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        print(run.stdout.splitlines()[-1], flush=True)
        lines = dict.fromkeys(written.read_text(encoding="utf-8").splitlines())
        written.write_text("\n".join(lines), encoding="utf-8")
        written.rename(kept)
    return kept


def _users(path: Path) -> Iterable[Path]:
    """Yield a file and, of a script, those that include it."""
    yield path
    for other in LUA.rglob("*.lua") if path.suffix == ".lua" else ():
        if f"-- include {path.stem}\n" in other.read_text(encoding="utf-8"):
            yield from _users(other)


def _functions_around(path: Path, line: int) -> list[range]:
    """Return the lines of each function that a line is in, the innermost first."""
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8") if path.suffix == ".py" else "")):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            found.append(range(first, node.end_lineno + 1))
    return sorted((span for span in found if line in span), key=len)
