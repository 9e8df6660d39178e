"""Other people's code, with our add-on and a JOBDIR in every crawler: `make field`.

The own tests of the projects below run twice, without ours and with it. What fails only with ours
runs three times more, and, if it never passes, without ours. Then come two projects of our own in
the style of real ones (`projects.py`). The exit status is 1 if a test fails only with ours and is
not explained below, if one that is explained does not fail, or if a page, an item or a row is
missing.

python -m tests.field [-n WORKERS] [names of projects; `own` are the two of ours]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Collection
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from tests import suite
from tests.field.projects import crawl_all
from tests.redis.server import Server
from tests.small_site import Scrapy


@dataclass(frozen=True, eq=False)
class Project:
    """A project whose source distribution has tests: how they are run, and the settings that turn
    it on."""

    name: str
    sha256: str
    code: str
    options: tuple[str, ...] = ()
    is_serial: bool = False
    needs_redis: bool = False
    add_on: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    explained: dict[str, str] = field(default_factory=dict)


PROJECTS = [
    Project(
        "scrapy-poet",
        "32f39d7d287c345f5292a692c68bebed257eb0d271273c7149a6a1054f09118a",
        "scrapy_poet",
        options=("--reactor=asyncio",),
        is_serial=True,  # it parametrizes by a set of classes, which workers do not agree about
        add_on="scrapy_poet.Addon",
    ),
    Project(
        "scrapyrt",
        "58b39f502b979dca2031b6be6c6b6f740bf83731f208501ed69ec43cfc584710",
        "scrapyrt",
        options=("-p", "scrapyrt_patience"),
        is_serial=True,  # its servers take ports at random
    ),
    Project(
        "spidermon",
        "7b06add21c7bacbb41c5aa80c69c063258b0277343a8a57d1293d3ec0efd8e82",
        "spidermon",
        options=("-Wdefault",),
        is_serial=True,  # its tests share stored stats
        settings={
            "SPIDERMON_ENABLED": "1",
            "EXTENSIONS": '{"spidermon.contrib.scrapy.extensions.Spidermon": 500}',
        },
    ),
    Project(
        "scrapy-zyte-api",
        "b042df45988a17607511df534bfe8a7cf9f5b2c4d2d2a1e0ebe80cc7c0097b56",
        "scrapy_zyte_api",
        options=("--reactor=asyncio",),
        add_on="scrapy_zyte_api.Addon",
        settings={"ZYTE_API_KEY": "none"},
    ),
    Project(
        "duplicate-url-discarder",
        "581663608ad4f2477e30a64c5a531214ea74d05ec01868fdb6dd79883cdee070",
        "duplicate_url_discarder",
        add_on="duplicate_url_discarder.Addon",
    ),
    Project(
        "scrapy-redis",
        "5f8b18611fadb2d7726870535ad3b0d28e0a7a1375d807101579237462e346e7",
        "src",
        is_serial=True,  # its tests share keys
        needs_redis=True,
    ),
]
NOT_TRIED = {
    "scrapy-playwright 0.0.48": "its source distribution has no tests",
    "zyte-spider-templates 0.12.0": (
        "its tests do not start: they import TestSpider, which Scrapy's test utilities have no"
        " more, and fake-zyte-api, which is not in the package index"
    ),
}

TRIES = 3


@dataclass
class Result:
    """What the tests of a project came to: how many there are, how many passed without ours and
    with it, why others did not, how many jobs had a filter, and what the line at the start of a
    crawl says of duplicates."""

    tests: int
    without: int
    with_ours: int
    reasons: dict[str, str]
    jobs: int
    duplicates: str


def main() -> int:
    """Run all, print the table, and return the exit status."""
    names = [*(project.name for project in PROJECTS), "own"]
    parser = argparse.ArgumentParser(prog="python -m tests.field")
    parser.add_argument("-n", dest="workers", type=int, default=2, help="processes (2)")
    parser.add_argument("names", nargs="*", help="some projects only")
    options = parser.parse_args()
    chosen = options.names or names
    results = {
        project: check(project, options.workers) for project in PROJECTS if project.name in chosen
    }
    faults = crawl_all() if "own" in chosen else []
    print_table(results)
    for fault in faults:
        print(f"MISSING: {fault}")
    good = all(result.without and not suite.faults(result.reasons) for result in results.values())
    return 0 if good and not faults else 1


def check(project: Project, workers: int) -> Result:
    """Run the tests of a project without ours and with it."""
    checkout = suite.fetch(project.name, project.code, Path(sys.prefix), project.sha256)
    options = ["--timeout=120", *project.options, *([] if project.is_serial else [f"-n{workers}"])]
    with (
        tempfile.TemporaryDirectory(prefix="field-") as place,
        _environment(project, Path(place)) as environment,
    ):
        jobs = Path(place, "jobs")
        jobs.mkdir()

        def outcomes(arm: suite.Arm, tests: Collection[str]) -> dict[str, str]:
            return suite.run(checkout, arm, jobs, tests, options, (), environment)

        without, with_ours = outcomes(suite.STOCK, ["tests"]), outcomes(suite.OURS, ["tests"])
        with_filter = sum(1 for _ in jobs.glob("*/bloom"))
        differ = suite.failing(with_ours) - suite.failing(without)
        reasons = suite.compare(outcomes, differ, project.explained, TRIES)
    counts = [Counter(each.values())["passed"] for each in (without, with_ours)]
    return Result(len(with_ours), *counts, reasons, with_filter, duplicates_with(project))


def duplicates_with(project: Project) -> str:
    """Return whether duplicates are dropped early in a crawl with that project and ours."""
    if not (project.add_on or project.settings):
        return ""
    addons = dict.fromkeys(filter(None, [project.add_on, suite.ADDON]), 300)
    settings = {"DUPEFILTER_CLASS": None, "ADDONS": json.dumps(addons), **project.settings}
    with tempfile.TemporaryDirectory(prefix="field-") as place:
        spider = Path(__file__).with_name("idle.py")
        log = Scrapy(Path(place), "runspider", spider, JOBDIR="job", **settings).end().log
    found = re.search("duplicates: +(.*)", log)
    return found[1] if found else f"no line at the start:\n{log}"


@contextmanager
def _environment(project: Project, folder: Path):
    if not project.needs_redis:
        yield os.environ
        return
    server = Server(folder)
    try:
        yield {**os.environ, "REDIS_HOST": "127.0.0.1", "REDIS_PORT": str(server.port)}
    finally:
        server.stop()


def print_table(results: dict[Project, Result]) -> None:
    """Print a row for each project, then the reasons."""
    print(f"\nScrapy {version('scrapy')}, scrapy-bloom {version('scrapy-bloom')}\n")
    heads = ["Tests", "Passed without", "Passed with", "Only with ours", "Explained", "Jobs"]
    print(f"| Project | Version | {' | '.join(heads)} |")
    print(f"| --- | --- |{' --: |' * len(heads)}")
    for project, result in results.items():
        faults = len(suite.faults(result.reasons))
        explained = len(result.reasons) - faults
        figures = [result.tests, result.without, result.with_ours, faults, explained]
        cells = [project.name, version(project.name), *figures, result.jobs]
        print(f"| {' | '.join(map(str, cells))} |")
    print()
    for project, result in results.items():
        if result.duplicates:
            print(f"Duplicates with {project.name}: {result.duplicates}")
    for project, reason in NOT_TRIED.items():
        print(f"Not tried: {project}: {reason}")
    for project, result in results.items():
        for test, reason in result.reasons.items():
            print(f"{project.name}: {test}\n    {reason}")


if __name__ == "__main__":
    sys.exit(main())
