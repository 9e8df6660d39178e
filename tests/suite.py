"""Other people's tests from their source distributions, run with an add-on and a JOBDIR."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

INJECT = Path(__file__).with_name("inject")
ADDON = "scrapy_bloom.Addon"
OURS_ALONE = "FAILS ONLY WITH OURS"
STALE = "EXPLAINED, BUT DID NOT FAIL"
PASSED_AGAIN = "passed when it was run again"


class Arm(NamedTuple):
    """A way to run the tests: with which add-on, if any, and whether with a JOBDIR."""

    name: str
    addon: str = ""
    jobdir: bool = False


OURS = Arm("scrapy-bloom and a JOBDIR", ADDON, jobdir=True)
STOCK = Arm("stock Scrapy")
STOCK_WITH_JOBDIR = Arm("stock Scrapy and a JOBDIR", jobdir=True)


def fetch(project, code, cache, sha256="", number=""):
    """Return the directory with the tests of that release of `project`, or of the one that is
    installed; they are downloaded from the package index once.

    Its directory `code` is left out, so that the package that is installed is tested.
    """
    number = number or version(project)
    release = f"{project.replace('-', '_')}-{number}"
    suite = cache / release
    (cache / "pytest.ini").touch()  # for those without one: pytest would look for ours
    if suite.exists():
        return suite
    with tempfile.TemporaryDirectory(dir=cache) as place:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        pip += ["--no-deps", "--no-binary", project, "--dest", place]
        subprocess.run([*pip, f"{project}=={number}"], check=True)
        source = next(Path(place).glob("*.tar.gz"))
        found = hashlib.sha256(source.read_bytes()).hexdigest()
        if sha256 not in ("", found):
            raise ValueError(f"{source.name} has the SHA-256 {found}, not {sha256}")
        with tarfile.open(source) as archive:
            members = [m for m in archive if not m.name.startswith(f"{release}/{code}/")]
            archive.extractall(place, members, filter="data")
        (Path(place) / release).rename(suite)
    return suite


def run(suite, arm, jobs, tests, options=(), without=(), environment=os.environ):
    """Run `tests` (files or node ids), some node ids left out; return the outcome of each by its
    node id: passed, skipped, or failed. Raises RuntimeError if pytest could not run them."""
    if not tests:
        return {}
    print(f"\n== {suite.name}, {arm.name}", flush=True)
    # read at each start of this environment's Python, whatever a test puts into PYTHONPATH
    line = "import os; os.environ.get('INJECT_JOBS') and __import__('inject_job')"
    path = Path(sysconfig.get_path("purelib")) / "inject_job.pth"
    path.write_text(f"{INJECT}\n{line}\n")
    scripts = sysconfig.get_path("scripts")
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.json"
        variables = {
            **environment,
            "PATH": os.pathsep.join([scripts, environment.get("PATH", "")]),
            "PYTHONHASHSEED": "0",  # some parametrize by a set, and workers have to agree
            "INJECT_JOBS": str(jobs) if arm.jobdir else "",
            "INJECT_ADDON": arm.addon,
            "OUTCOMES": str(report),
        }
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
        command += ["-p", "outcomes", "--rootdir=.", *options]
        command += [f"--deselect={test}" for test in without]
        pytest = subprocess.Popen(
            [*command, *tests], cwd=suite, env=variables, start_new_session=True
        )
        try:
            status = pytest.wait()
        finally:
            with suppress(ProcessLookupError):  # some tests leave servers behind
                os.killpg(pytest.pid, signal.SIGKILL)
        if status not in (0, 1):  # all passed, some failed
            raise RuntimeError(f"pytest {tests} ended with status {status}")
        return json.loads(report.read_text())


def failing(outcomes):
    """Return the tests that failed."""
    return {test for test, outcome in outcomes.items() if outcome == "failed"}


def compare(outcomes, failed, explained, tries=1):
    """Return the reason for each test that has failed with ours, and for each that is explained.

    `outcomes(arm, tests)` runs them. Those that have failed run again, then without ours, each so
    many times: some depend on the speed of the machine, with whichever add-ons.
    """
    again = set(failed)
    for _ in range(tries):
        again &= failing(outcomes(OURS, sorted(again)))
    reasons = dict.fromkeys(sorted(failed), PASSED_AGAIN)
    reasons |= dict.fromkeys(sorted(again), OURS_ALONE)
    for arm in (STOCK, STOCK_WITH_JOBDIR):
        anyway = set().union(*(failing(outcomes(arm, sorted(again))) for _ in range(tries)))
        reasons |= dict.fromkeys(sorted(anyway), f"fails with {arm.name}, too")
        again -= anyway
    found = failing(outcomes(OURS, list(explained)))
    return reasons | {test: why if test in found else STALE for test, why in explained.items()}


def faults(reasons):
    """Return the tests that fail only with ours, or do not although they are explained."""
    return [test for test, reason in reasons.items() if reason in {OURS_ALONE, STALE}]
