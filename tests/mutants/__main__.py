"""Small changes of a package, which its tests must notice: `make mutants`.

A sample of the changes, which the seed decides, is made one after the other in a copy of the tree.
The tests that call the changed function run, the quickest first. The exit status is 1 if fewer than
90 % of the changes are noticed, but for those that `accepted.txt` explains, or more than 5 % make a
test take eight times as long as it did, and again with three times that limit.
"""

from __future__ import annotations

import argparse
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
from collections import Counter
from contextlib import suppress
from importlib import import_module
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from tests.mutants.changes import Change, of_lua, of_python
from tests.mutants.reach import LUA, Reach

TESTS = {
    "bloom": "tests/bloom tests/contracts/test_seen.py tests/test_dupefilter.py"
    " tests/crawl/test_shared_folders.py",
    "fingerprints": "tests/fingerprints tests/test_audit.py tests/test_dupefilter.py"
    " tests/migration/test_sources.py",
    "speed": "tests/test_speed.py tests/test_streams.py tests/test_audit.py"
    " tests/test_early.py tests/delta/test_skipping.py",
    "crawl": "tests/crawl tests/contracts tests/commands/test_top.py",
    "sqlite": "tests/crawl tests/contracts tests/commands/test_queue.py"
    " tests/commands/test_requests.py tests/commands/test_top.py tests/migration/test_load.py",
    "feeds": "tests/crawl/test_feeds.py tests/crawl/test_kills.py tests/crawl/test_stories.py"
    " tests/crawl/test_session.py tests/crawl/test_shared_folders.py tests/commands/test_study.py",
    "early": "tests/test_early.py tests/test_early_crawls.py",
    "addon": "tests/test_addon.py tests/test_start_line.py tests/test_early.py"
    " tests/test_one_page.py tests/crawl/test_feeds.py tests/delta/test_skipping.py",
    "delta": "tests/delta tests/contracts/test_delta_stores.py tests/commands/test_delta.py",
    "migration": "tests/migration tests/commands/test_filters.py",
    "commands": "tests/commands",
    "redis": "tests/redis/test_[!f]*.py tests/redis/test_f[!l]*.py tests/contracts"
    " tests/delta/test_stores.py tests/migration/test_load.py tests/test_dupefilter.py"
    " tests/crawl/test_damages.py tests/commands/test_redis.py tests/commands/test_queue.py"
    " tests/test_one_page.py",
    "scrapy_private": "tests/test_private_names.py tests/test_crawls.py tests/crawl"
    " tests/delta/test_skipping.py tests/contracts/test_store.py tests/test_early.py"
    " tests/delta/test_crawls.py tests/redis/test_idle.py tests/redis/test_scheduler.py",
    "study": "tests/study tests/commands/test_study.py",
    "": "tests/test_a*.py tests/test_dupefilter.py tests/test_files.py"
    " tests/test_metrics.py"
    " tests/test_re*.py tests/test_s*.py tests/fingerprints tests/contracts/test_seen.py"
    " tests/bloom/test_file.py tests/bloom/test_growing.py tests/crawl/test_job_file.py"
    " tests/crawl/test_shared_folders.py tests/study tests/commands/test_study.py"
    " tests/commands/test_requests.py",
}
"""The tests of each package, the last of them of the modules beside the packages. Without
`test_fleet`, whose crawls would run for minutes where they cannot end."""
NOTICED, SURVIVED, SLOW, ACCEPTED = "noticed", "SURVIVED", "TIMED OUT", "accepted"
LEAST, MOST_SLOW = 0.9, 0.05
"""The share of changes to be noticed, and that of those that make a test slow."""
PRELOADED = "scrapy.crawler scrapy.utils.test scrapy.extensions.feedexport redis"


class Copy:
    """A copy of the tree, in which changes are made one after the other."""

    def __init__(self, folder: Path, seed: str) -> None:
        self.folder, self.took = folder, {}
        self._clock, self._sound = int(time.time()), set()
        self._options = f"-x -q --tb=no -p no:cacheprovider --hypothesis-seed={seed}".split()
        listed = ["git", "ls-files", "-coz", "--exclude-standard"]
        files = subprocess.run(listed, capture_output=True, check=True).stdout
        copy = ["xargs", "-0", "cp", "--parents", "-t", str(folder)]
        subprocess.run(copy, input=files, check=True)

    def judge(self, path: Path, text: str, tests: list[str]) -> tuple[str, str]:
        """Return what has come of a change, and which test has failed."""
        if not tests:
            return SURVIVED, "no test calls it"
        self._write(path, text)
        try:
            result, test = self._run(tests, 1)
            if result == SLOW:
                result, test = self._run(tests, 3)
        finally:
            self._write(path, path.read_text(encoding="utf-8"))
        if test in self.took and test not in self._sound:
            if self._run([test], 3)[0] == NOTICED:  # without the change, too
                del self.took[test]
                return self.judge(path, text, [each for each in tests if each != test])
            self._sound.add(test)
        return result, test

    def _write(self, path: Path, text: str) -> None:
        # Python knows a file's bytecode by its time: no two versions have the same
        self._clock += 2
        (self.folder / path).write_text(text, encoding="utf-8")
        os.utime(self.folder / path, (self._clock, self._clock))

    def _run(self, tests: list[str], times: int) -> tuple[str, str]:
        pid = os.fork()
        if pid == 0:
            try:
                os._exit(self._run_here(tests, times))
            finally:
                os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        shutil.rmtree(self.folder / ".hypothesis", ignore_errors=True)
        if code == -signal.SIGALRM:
            return SLOW, ""
        whole = list(dict.fromkeys(test.partition("[")[0] for test in tests))
        if code == pytest.ExitCode.USAGE_ERROR and whole != tests:  # its parameters are others
            return self._run(whole, times)
        if code in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            return SURVIVED, ""
        return NOTICED, (self.folder / "failed").read_text(encoding="utf-8") or f"status {code}"

    def _run_here(self, tests: list[str], times: int) -> int:
        os.setsid()
        for number, name in enumerate(["/dev/null", "output", "output"]):
            os.dup2(os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
        os.chdir(self.folder)
        for name in [*sys.modules]:
            if name.partition(".")[0] in {"tests", "scrapy_bloom"}:
                del sys.modules[name]
        sys.path.insert(0, str(self.folder))
        os.environ["PYTHONPATH"] = str(self.folder)
        # what fails need not fail in the simplest way, whose search takes minutes
        settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate])
        settings.load_profile("mutants")
        watch = Watch(self.took, times)
        return pytest.main([*self._options, "--basetemp=t", *tests], plugins=[watch])


class Watch:
    """A plugin of pytest: ends the process when a test takes too long, and tells which failed."""

    def __init__(self, took: dict[str, float], times: int) -> None:
        self._took, self._times = took, times
        self._failed = Path("failed").resolve()
        self._failed.write_text("")

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        signal.alarm(int(self._times * (15 + 8 * self._took.get(item.nodeid, 1))))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.write_text(report.nodeid)


def changes(target: Path, folder: Path) -> list[Change]:
    """Return all changes of a package or a file."""
    own = "*.py" if target.name == "scrapy_bloom" else "**/*.py"
    if LUA not in (target, *target.parents):
        return [c for each in (sorted(target.glob(own)) or [target]) for c in of_python(each)]
    from redis import ResponseError

    from tests.redis.server import Server

    server = Server(folder)
    atexit.register(server.stop)

    def compiles(text: str) -> bool:
        with suppress(ResponseError):
            return bool(server.command("SCRIPT", "LOAD", text))
        return False

    scripts = sorted(target.rglob("*.lua")) or [target]
    return [change for script in scripts for change in of_lua(script, compiles)]


def main(target: Path, seed: str, sample: int, folder: Path) -> int:
    """Make the changes; return the exit status."""
    room = Path(*target.parts[1:2]).stem
    patterns = TESTS.get(room, TESTS[""]).split()
    print(f"{target}, seed {seed}, tests: {' '.join(patterns)}", flush=True)
    found = {each: sorted(map(str, Path().glob(each))) for each in patterns}
    if absent := [each for each, paths in found.items() if not paths]:
        sys.exit(f"{absent} of TESTS are not there")
    tests = [path for paths in found.values() for path in paths]
    copy = Copy(folder, seed)
    reach = Reach(Path(*target.parts[:2]), tests, folder)
    copy.took = reach.took
    ranked = sorted(changes(target, folder), key=lambda change: change.rank(seed))
    print(f"{len(ranked)} changes, {len(reach.took)} tests", flush=True)
    lines = Path(__file__).with_name("accepted.txt").read_text(encoding="utf-8").splitlines()
    accepted = dict(line.rsplit("  # ", 1) for line in lines)
    for name in PRELOADED.split():
        import_module(name)
    gc.freeze()
    counts, survivors = Counter(), []
    made = ((change.path, change.text()) for change in ranked)
    for path, text in islice((each for each in made if each[1]), sample):
        versions = (each.splitlines(True) for each in (path.read_text(encoding="utf-8"), text))
        head, _, at, *diff = difflib.unified_diff(*versions, str(path), n=0)
        short = " ".join([f"{path}:", *(line[0] + line[1:].strip() for line in diff)])
        line, began = int(re.search(r"\d+", at)[0]), time.monotonic()
        tests = reach.tests_of(path, line)
        why = accepted.get(short)
        result, by = (ACCEPTED, why) if why else copy.judge(path, text, tests)
        counts[result] += 1
        cost = f"({len(tests)} tests, {time.monotonic() - began:.0f} s)"
        print(f"{result} line {line} of {short[:150]} {cost} {by}", flush=True)
        survivors += [head, at, *diff, "\n"] if result in {SURVIVED, SLOW} else []
    print("".join(survivors))
    judged = sum(counts.values()) - counts[ACCEPTED]
    share, slow = counts[NOTICED] / judged, counts[SLOW] / judged
    print(f"{target}, seed {seed}: {share:.0%} noticed of {judged}: {dict(counts)}")
    return int(share < LEAST or slow > MOST_SLOW)


if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m tests.mutants", description=__doc__)
    parser.add_argument("package", help="scrapy_bloom, a package or a module in it, or `lua`")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sample", type=int, default=60)
    options = parser.parse_args()
    seed = str(options.seed)
    os.environ |= {"SEED": seed, "SLOW_DAY": "all"}  # of random tests; and all run
    target = LUA if options.package == "lua" else Path(options.package)
    with tempfile.TemporaryDirectory(prefix="mutants") as made:
        sys.exit(main(target, seed, options.sample, Path(made)))
