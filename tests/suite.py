"""Other people's tests, as their source distributions have them, and runs of them with an add-on
and a JOBDIR in every crawler."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

INJECT = Path(__file__).with_name("inject")
ADDON = "scrapy_bloom.Addon"
OURS_ALONE = "FAILS ONLY WITH OURS"
STALE = "EXPLAINED, BUT DID NOT FAIL"
PASSED_AGAIN = "passed when it was run again"
FAULTS = {OURS_ALONE, STALE}
"""The reasons that are for us to look into."""


@dataclass(frozen=True)
class Arm:
    """A way to run the tests: with which add-on, if any, and whether with a JOBDIR."""

    name: str
    addon: str = ""
    jobdir: bool = False


OURS = Arm("scrapy-bloom and a JOBDIR", ADDON, jobdir=True)
STOCK = Arm("stock Scrapy")
STOCK_WITH_JOBDIR = Arm("stock Scrapy and a JOBDIR", jobdir=True)


def fetch(project: str, code: str, cache: Path, sha256: str = "", number: str = "") -> Path:
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


def run(
    suite: Path,
    arm: Arm,
    jobs: Path,
    tests: Collection[str],
    options: Sequence[str] = (),
    without: Iterable[str] = (),
    environment: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Run `tests` (files or node ids), some node ids left out, and return the outcome of
    each by its node id: passed, skipped, or failed. Raises RuntimeError if pytest could not
    run them."""
    if not tests:
        return {}
    print(f"\n== {suite.name}, {arm.name}", flush=True)
    _inject_in_every_process()
    scripts = sysconfig.get_path("scripts")
    variables = {
        **environment,
        "PATH": os.pathsep.join([scripts, environment.get("PATH", "")]),
        "PYTHONHASHSEED": "0",  # some parametrize by a set, and workers have to agree
        "INJECT_JOBS": str(jobs) if arm.jobdir else "",
        "INJECT_ADDON": arm.addon,
    }
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
        command += [
            "--rootdir=.",
            *options,
            f"--junitxml={report}",
            "-ojunit_family=xunit1",
        ]
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
        return _outcomes(report)


def failing(outcomes: Mapping[str, str]) -> set[str]:
    """Return the tests that failed."""
    return {test for test, outcome in outcomes.items() if outcome == "failed"}


def compare(
    outcomes: Callable[[Arm, Collection[str]], Mapping[str, str]],
    failed: set[str],
    explained: Mapping[str, str],
    tries: int = 1,
) -> dict[str, str]:
    """Return the reason for each test that has failed with ours, and for each that is explained.

    `outcomes` runs tests in an arm. Those that have failed run again, then without ours, each so
    many times: some depend on the speed of the machine, with whichever add-ons.
    """

    def fails_once(arm: Arm, tests: set[str]) -> set[str]:
        return set().union(*(failing(outcomes(arm, sorted(tests))) for _ in range(tries)))

    again = set(failed)
    for _ in range(tries):
        again &= failing(outcomes(OURS, sorted(again)))
    reasons = dict.fromkeys(sorted(failed), PASSED_AGAIN)
    reasons |= dict.fromkeys(sorted(again), OURS_ALONE)
    for arm in (STOCK, STOCK_WITH_JOBDIR):
        anyway = fails_once(arm, again)
        reasons |= dict.fromkeys(sorted(anyway), f"fails with {arm.name}, too")
        again -= anyway
    found = failing(outcomes(OURS, list(explained)))
    return reasons | {test: why if test in found else STALE for test, why in explained.items()}


def faults(reasons: Mapping[str, str]) -> list[str]:
    """Return the tests that fail only with ours, or do not although they are explained."""
    return [test for test, reason in reasons.items() if reason in FAULTS]


def _inject_in_every_process() -> None:
    # Read at each start of this environment's Python, whatever a test puts into PYTHONPATH.
    line = "import os; os.environ.get('INJECT_JOBS') and __import__('inject_job')"
    path = Path(sysconfig.get_path("purelib")) / "inject_job.pth"
    path.write_text(f"{INJECT}\n{line}\n")


def _outcomes(report: Path) -> dict[str, str]:
    outcomes: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):
        outcome = "passed"
        if case.find("failure") is not None or case.find("error") is not None:
            outcome = "failed"
        elif case.find("skipped") is not None:
            outcome = "skipped"
        node = _node_id(case)
        if outcomes.get(node) != "failed":  # an error in the teardown is a case of its own
            outcomes[node] = outcome
    return outcomes


def _node_id(case: ET.Element) -> str:
    path = case.get("file", "")
    module = path.removesuffix(".py").replace("/", ".")
    inner = case.get("classname", "").removeprefix(module.removesuffix(".__init__"))
    classes = inner.removeprefix(".__init__").strip(".").split(".")
    return "::".join(filter(None, [path, *classes, case.get("name", "")]))
