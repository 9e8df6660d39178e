"""Other people's code, with our add-on and a JOBDIR in every crawler: `make field`.

The own tests of the projects below run twice, without ours and with it. What fails only with ours
runs three times more, and, if it never passes, without ours. Then comes a project of our own in
the style of real ones (`project.py`). The exit status is 1 if a test fails only with ours and is
not explained below, if one that is explained does not fail, or if a page, an item or a row is
missing.

python -m tests.field [-n WORKERS] [names of projects; `own` is ours]
"""

import argparse
import json
import os
import re
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from tests import suite
from tests.field.project import crawl
from tests.redis.server import Server
from tests.small_site import Scrapy


@dataclass(frozen=True, eq=False)
class Project:
    """A project whose source has tests: how they are run, and the settings that turn it on."""

    name: str
    sha256: str
    code: str
    options: tuple[str, ...] = ()
    is_serial: bool = False
    needs_redis: bool = False
    add_on: str = ""
    settings: dict = field(default_factory=dict)
    explained: dict = field(default_factory=dict)


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


def main():
    """Run all, print what came of each, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.field")
    parser.add_argument("-n", dest="workers", type=int, default=2, help="processes (2)")
    parser.add_argument("names", nargs="*", help="some projects only")
    options = parser.parse_args()
    names = options.names or [*(project.name for project in PROJECTS), "own"]
    good = [check(each, options.workers) for each in PROJECTS if each.name in names]
    for project, reason in NOT_TRIED.items():
        print(f"Not tried: {project}: {reason}")
    if "own" in names:
        with tempfile.TemporaryDirectory(prefix="field-magazine-") as place:
            good.append(not crawl(Path(place)))
    return 0 if all(good) else 1


def check(project, workers):
    """Run the tests of a project without ours and with it; print what came of them, and return
    True if nothing is for us to explain."""
    checkout = suite.fetch(project.name, project.code, Path(sys.prefix), project.sha256)
    options = ["--timeout=120", *project.options, *([] if project.is_serial else [f"-n{workers}"])]
    with (
        tempfile.TemporaryDirectory(prefix="field-") as place,
        _environment(project, Path(place)) as environment,
    ):
        jobs = Path(place, "jobs")
        jobs.mkdir()

        def outcomes(arm, tests):
            return suite.run(checkout, arm, jobs, tests, options, (), environment)

        without, with_ours = outcomes(suite.STOCK, ["tests"]), outcomes(suite.OURS, ["tests"])
        with_filter = sum(1 for _ in jobs.glob("*/bloom"))
        differ = suite.failing(with_ours) - suite.failing(without)
        reasons = suite.compare(outcomes, differ, project.explained, TRIES)
    print(f"\n== {project.name} {version(project.name)}, Scrapy {version('scrapy')}")
    for name, found in (("without", without), ("with ours", with_ours)):
        print(f"{name}: {dict(Counter(found.values()))}")
    print(f"jobs with a filter: {with_filter}; duplicates: {duplicates_with(project)}")
    for test, reason in reasons.items():
        print(f"{test}\n    {reason}")
    return bool(without) and not suite.faults(reasons)


def duplicates_with(project):
    """Return whether duplicates are dropped early in a crawl with that project and ours."""
    addons = dict.fromkeys(filter(None, [project.add_on, suite.ADDON]), 300)
    settings = {"DUPEFILTER_CLASS": None, "ADDONS": json.dumps(addons), **project.settings}
    with tempfile.TemporaryDirectory(prefix="field-") as place:
        spider = Path(__file__).with_name("idle.py")
        log = Scrapy(Path(place), "runspider", spider, JOBDIR="job", **settings).end().log
    found = re.search("duplicates: +(.*)", log)
    return found[1] if found else f"no line at the start:\n{log}"


@contextmanager
def _environment(project, folder):
    if not project.needs_redis:
        yield os.environ
        return
    with Server(folder) as server:
        yield {**os.environ, "REDIS_HOST": "127.0.0.1", "REDIS_PORT": str(server.port)}


if __name__ == "__main__":
    sys.exit(main())
