"""Small changes of a package, which its tests must notice: `make mutants`.

A sample of the changes, which the seed decides, is made one after the other in a copy of the tree.
The tests that call the changed function run, the quickest first. The exit status is 1 if fewer than
90 % of the changes are noticed, but for those that `accepted.txt` explains, or more than 5 % make a
test take eight times as long as it did, and again with three times that limit.
"""

from __future__ import annotations

import argparse
import ast
import atexit
import difflib
import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import sha256
from importlib import import_module
from itertools import islice
from pathlib import Path
from statistics import fmean

from tests.mutants.changes import Change, of_lua, of_python

NOTICED, SURVIVED, SLOW, ACCEPTED = "noticed", "SURVIVED", "TIMED OUT", "accepted"
HERE = Path(__file__).parent
LUA = Path("scrapy_bloom/redis_backend/lua")
TESTS = {
    "bloom": "tests/bloom tests/contracts/test_seen.py tests/test_dupefilter.py",
    "fingerprints": "tests/fingerprints tests/test_audit.py tests/migration/test_url_list.py",
    "speed": "tests/test_speed.py tests/test_recent.py tests/test_streams.py tests/test_audit.py",
    "job": "tests/job tests/contracts",
    "sqlite_backend": "tests/job tests/contracts tests/commands/test_queue.py"
    " tests/commands/test_failed.py tests/commands/test_top.py",
    "feeds": "tests/job/test_feeds.py tests/job/test_feed_kills.py tests/test_traps.py",
    "early": "tests/test_early.py tests/test_early_crawls.py",
    "delta": "tests/delta tests/commands/test_delta.py",
    "migration": "tests/migration",
    "study": "tests/study tests/commands/test_study.py",
    "commands": "tests/commands",
    "redis_backend": "tests/redis_backend tests/contracts",
    "lua": "tests/redis_backend tests/contracts tests/delta/test_redis_store.py",
    "scrapy_private": "tests/test_private_names.py tests/test_crawls.py tests/job",
    "": "tests/test_*.py tests/fingerprints tests/migration tests/job/test_job_file.py",
}
"""The tests of each package, the last of them of the modules beside the packages."""
PRELOADED = "pytest hypothesis scrapy.crawler scrapy.utils.test scrapy.extensions.feedexport redis"
BUDGET = 90.0
"""Seconds of tests, as they took before, for one change."""
LEAST, MOST_SLOW = 0.9, 0.05
"""The share of changes to be noticed, and that of those that make a test slow."""


Calls = dict[str, dict[int, set[str]]]
"""By file, and first line of a function, the tests that call it, or files of tests."""


def reached(target: Path, tests: list[str]) -> tuple[Calls, dict[str, float]]:
    """Run the tests once, or read what that has written; return what they call, and the seconds
    that each takes."""
    folders = [target, *map(Path, tests)]
    files = [f for each in folders for f in (sorted(each.rglob("*")) if each.is_dir() else [each])]
    state = sha256(b"".join(f.read_bytes() for f in files if f.suffix in {".py", ".lua"}))
    kept = Path(sys.prefix, "mutants", state.hexdigest()[:16])
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        written = kept.with_suffix(f".{os.getpid()}")
        told = {"REACHED": str(written), "REACHED_PREFIX": str(target)}
        path = f"{HERE / 'hooks'}{os.pathsep}{Path.cwd()}"
        options = "-q --tb=no -n 2 --dist worksteal -p no:cacheprovider -p sitecustomize"
        command = [sys.executable, "-m", "pytest", *options.split(), *tests]
        environment = {**os.environ, "PYTHONPATH": path, **told}
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        print(run.stdout.splitlines()[-1])
        lines = dict.fromkeys(written.read_text(encoding="utf-8").splitlines())
        kept.write_text("\n".join(lines), encoding="utf-8")
        written.unlink()
    took, failed, calls = Counter(), set(), defaultdict(lambda: defaultdict(set))
    for line in kept.read_text(encoding="utf-8").splitlines():
        test, *others = line.split("\t")
        if test == "time":
            name, seconds, outcome = others
            took[name] += float(seconds)
            failed |= {name} if outcome != "passed" else set()
        elif test:
            name, _, first = others[0].rpartition(":")
            calls[name][int(first)].add(test)
    return calls, {test: seconds for test, seconds in took.items() if test not in failed}


def users(script: Path) -> Iterable[Path]:
    """Yield a script and those that include it."""
    yield script
    for other in LUA.rglob("*.lua"):
        if f"-- include {script.stem}\n" in other.read_text(encoding="utf-8"):
            yield from users(other)


def functions_around(source: str, line: int) -> list[range]:
    """Return the lines of each function that a line is in, the innermost first."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            found.append(range(first, node.end_lineno + 1))
    return sorted((span for span in found if line in span), key=len)


def callers(path: Path, line: int, calls: Calls) -> set[str]:
    """Return the tests, and files of tests, that run a line: those that call the function around
    it, or any of its file if none is known to, as of a line that runs at import."""
    if path.suffix == ".lua":
        return {test for script in users(path) for test in calls[str(script)][1]}
    called = calls[str(path)]
    for span in [*functions_around(path.read_text(encoding="utf-8"), line), range(1, 1 << 30)]:
        if found := {test for at, tests in called.items() if at in span for test in tests}:
            return found
    return set()


def in_order(found: set[str], took: dict[str, float]) -> list[str]:
    """Return tests in the order to run them, the quick files first, and as many as the budget has
    room for."""
    of_file = defaultdict(list)
    for test in took:
        file, _, _ = test.partition("::")
        if test in found or file in found:
            of_file[file].append(test)
    means = {file: fmean(map(took.get, tests)) for file, tests in of_file.items()}
    tests = [
        (took[t] > 1, means[file], file, took[t], t) for file in of_file for t in of_file[file]
    ]
    left, result = BUDGET, []
    for _, _, _, seconds, test in sorted(tests):
        left -= seconds
        result += [test] if left > 0 else []
    return result


class Alarm:
    """A plugin of pytest: ends the process when a test takes too long."""

    def __init__(self, took: dict[str, float], times: int) -> None:
        self._took, self._times = took, times

    def pytest_runtest_setup(self, item: object) -> None:
        signal.alarm(int(self._times * (15 + 8 * self._took.get(item.nodeid, 1))))


def run(
    folder: Path, tests: list[str], took: dict[str, float], times: int, seed: str
) -> tuple[str, str]:
    """Run tests in the copy of the tree, in a process of their own; return what has come of it, and
    the test that has failed."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(output, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(folder)
        for name in [
            name for name in sys.modules if name.partition(".")[0] in {"tests", "scrapy_bloom"}
        ]:
            del sys.modules[name]
        sys.path.insert(0, str(folder))
        os.environ["PYTHONPATH"] = str(folder)
        options = (
            f"-x -q --tb=no -p no:cacheprovider --basetemp={folder}/t --hypothesis-seed={int(seed)}"
        )
        pytest = import_module("pytest")
        status = pytest.main([*options.split(), *tests], plugins=[Alarm(took, times)])
        sys.stdout.flush()
        os._exit(status)
    _, status = os.waitpid(pid, 0)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    shutil.rmtree(folder / ".hypothesis", ignore_errors=True)
    told = (folder / "output").read_text(encoding="utf-8", errors="replace")
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGALRM:
        return SLOW, ""
    if code == 4 and "conftest" not in told:  # its parameters are others
        whole = list(dict.fromkeys(test.partition("[")[0] for test in tests))
        return (
            run(folder, whole, took, times, seed) if whole != tests else (NOTICED, "is not found")
        )
    by = next(
        (line for line in told.splitlines() if line.startswith(("FAILED", "ERROR"))), f"{code}"
    )
    return (SURVIVED, "") if code in {0, 5} else (NOTICED, by)


def compiler() -> Callable[[str], bool]:
    """Return a function that says whether a server compiles a script, its includes left out."""
    import redis

    from tests.redis_backend.server import Server

    server = Server(Path(tempfile.mkdtemp()))
    atexit.register(server.stop)

    def compiles(text: str) -> bool:
        with suppress(redis.ResponseError):
            return bool(server.command("SCRIPT", "LOAD", text))
        return False

    return compiles


def changes(target: Path) -> list[Change]:
    """Return all changes of a package or a file."""
    if target.name == "lua" or target.suffix == ".lua":
        scripts = sorted(target.rglob("*.lua")) if target.is_dir() else [target]
        compiles = compiler()
        return [change for script in scripts for change in of_lua(script, compiles)]
    modules = (
        sorted(target.glob("*.py" if target.name == "scrapy_bloom" else "**/*.py"))
        if target.is_dir()
        else [target]
    )
    return [change for module in modules for change in of_python(module)]


class Copy:
    """A copy of the tree, in which changes are made one after the other."""

    def __init__(self, folder: Path, took: dict[str, float], seed: str) -> None:
        self.folder, self._took, self._seed = folder, took, seed
        self._clock = int(time.time())
        listed = ["git", "ls-files", "-coz", "--exclude-standard"]
        files = subprocess.run(listed, capture_output=True, check=True).stdout
        subprocess.run(
            ["xargs", "-0", "cp", "--parents", "-t", str(folder)], input=files, check=True
        )

    def _write(self, path: Path, text: str) -> None:
        # Python knows a file's bytecode by its time: no two versions have the same
        self._clock += 2
        (self.folder / path).write_text(text, encoding="utf-8")
        os.utime(self.folder / path, (self._clock, self._clock))

    def judge(self, change: Change, text: str, tests: list[str]) -> tuple[str, str]:
        """Return what has come of a change, and which test has failed."""
        if not tests:
            return SURVIVED, "no test calls it"
        self._write(change.path, text)
        try:
            result = run(self.folder, tests, self._took, 1, self._seed)
            return (
                run(self.folder, tests, self._took, 3, self._seed) if result[0] == SLOW else result
            )
        finally:
            self._write(change.path, change.path.read_text(encoding="utf-8"))


def room_of(target: Path) -> str:
    """Return the key of its tests."""
    if LUA in (target, *target.parents):
        return "lua"
    return target.parts[1] if len(target.parts) > 1 and target.parts[1] in TESTS else ""


def main() -> int:
    """Make the changes; return the exit status."""
    parser = argparse.ArgumentParser("python -m tests.mutants", description=__doc__)
    parser.add_argument("package", help="scrapy_bloom, a package or a module in it, or `lua`")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--sample", type=int, default=60)
    options = parser.parse_args()
    os.environ["SEED"] = options.seed  # of random tests
    target = LUA if options.package == "lua" else Path(options.package)
    patterns = TESTS[room_of(target)].split()
    print(f"{target}, seed {options.seed}, tests: {' '.join(patterns)}", flush=True)
    calls, took = reached(target, [str(p) for each in patterns for p in sorted(Path().glob(each))])
    ranked = sorted(changes(target), key=lambda change: change.rank(options.seed))
    print(f"{len(ranked)} changes, {len(took)} tests", flush=True)
    lines = (HERE / "accepted.txt").read_text(encoding="utf-8").splitlines()
    accepted = dict(line.split("  # ") for line in lines)
    for name in PRELOADED.split():
        import_module(name)
    gc.freeze()
    counts, survivors = Counter(), []
    with tempfile.TemporaryDirectory(prefix="mutants") as made:
        copy = Copy(Path(made), took, options.seed)
        made_of = ((change, change.text()) for change in ranked)
        for change, text in islice((each for each in made_of if each[1]), options.sample):
            old = change.path.read_text(encoding="utf-8").splitlines(keepends=True)
            diff = [
                *difflib.unified_diff(old, text.splitlines(keepends=True), str(change.path), n=0)
            ]
            short = (
                f"{change.path}: {' '.join(d[0] + d[1:].strip() for d in diff[3:] if d[0] in '+-')}"
            )
            line, began = int(re.search(r"\d+", diff[2])[0]), time.monotonic()
            tests = in_order(callers(change.path, line, calls), took)
            result, why = ACCEPTED, accepted.get(short)
            if not why:
                result, why = copy.judge(change, text, tests)
            counts[result] += 1
            cost = f"({len(tests)} tests, {time.monotonic() - began:.0f} s)"
            print(f"{result} line {line} of {short[:150]} {cost} {why[:120]}", flush=True)
            survivors += [*diff, "\n"] if result in {SURVIVED, SLOW} else []
    print("".join(survivors))
    judged = sum(counts.values()) - counts[ACCEPTED]
    share, slow = counts[NOTICED] / judged, counts[SLOW] / judged
    print(f"{target}, seed {options.seed}: {share:.0%} noticed of {judged}: {dict(counts)}")
    return int(share < LEAST or slow > MOST_SLOW)


if __name__ == "__main__":
    sys.exit(main())
