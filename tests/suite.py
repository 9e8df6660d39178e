"""Scrapy's own tests, as its source distribution has them, and runs of them."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

INJECT = Path(__file__).with_name("inject")
ADDON = "scrapy_bloom.Addon"


@dataclass(frozen=True)
class Arm:
    """A way to run the tests: with which add-on, if any, and whether with a JOBDIR."""

    name: str
    addon: str = ""
    jobdir: bool = False


OURS = Arm("scrapy-bloom and a JOBDIR", ADDON, jobdir=True)
STOCK = Arm("stock Scrapy")
STOCK_WITH_JOBDIR = Arm("stock Scrapy and a JOBDIR", jobdir=True)


def fetch(cache: Path) -> Path:
    """Return the directory with the tests of the Scrapy that is installed; they are
    downloaded from the package index once."""
    release = f"scrapy-{version('scrapy')}"
    suite = cache / release
    if suite.exists():
        return suite
    with tempfile.TemporaryDirectory(dir=cache) as place:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        requirement = release.replace("-", "==")
        subprocess.run(
            [*pip, "--no-deps", "--no-binary", "scrapy", "--dest", place, requirement], check=True
        )
        with tarfile.open(next(Path(place).glob("*.tar.gz"))) as archive:
            # without its package, so that the one that is installed is tested
            members = [m for m in archive if not m.name.startswith(f"{release}/scrapy/")]
            archive.extractall(place, members, filter="data")
        (Path(place) / release).rename(suite)
    return suite


def run(
    suite: Path,
    arm: Arm,
    jobs: Path,
    reactor: str,
    tests: list[str],
    without: Iterable[str],
    workers: int,
) -> dict[str, str]:
    """Run `tests` (files or node ids), some node ids left out, and return the outcome of
    each by its node id: passed, skipped, or failed. Raises RuntimeError if pytest could not
    run them."""
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
        command += [f"-n{workers}", "--timeout=120", f"--reactor={reactor}"]
        command += ["-p", "no:twisted"] if reactor == "none" else ["-p", "no:asyncio"]
        command += ["-m", "not requires_internet", f"--junitxml={report}", "-ojunit_family=xunit1"]
        command += [f"--deselect={test}" for test in without]
        finished = subprocess.run(
            [*command, *tests], cwd=suite, env=_environment(arm, jobs), check=False
        )
        if finished.returncode not in (0, 1):  # all passed, some failed
            raise RuntimeError(f"pytest ended with status {finished.returncode}")
        return _outcomes(report)


def _environment(arm: Arm, jobs: Path) -> dict[str, str]:
    paths = [str(INJECT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environment["SCRAPYS_OWN_JOBS"] = str(jobs) if arm.jobdir else ""
    environment["SCRAPYS_OWN_ADDON"] = arm.addon
    return environment


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
