"""What several test modules share: dupefilters built by Scrapy, and commands."""

import os
import subprocess
import tracemalloc
from contextlib import ExitStack, closing, suppress
from datetime import date
from functools import partial
from tempfile import TemporaryFile

import pytest
from hypothesis import settings
from scrapy.cmdline import execute
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.test import get_crawler
from twisted.internet import reactor  # installs the platform's own one, which is not asyncio's

from scrapy_bloom.commands import main
from tests.commands.command_line import Result
from tests.fakes import Engine
from tests.redis import server

pytest_plugins = ["tests.redis.fixtures", "tests.contracts.places"]

# a busy machine is no failure, and a failure must be repeatable from its output
settings.register_profile("unhurried", deadline=None, print_blob=True, max_examples=40)
settings.register_profile("torture", settings.get_profile("unhurried"), max_examples=1000)
settings.load_profile("unhurried")

# what Scrapy would take from the user's environment, for the crawls of processes, too
for _name in [name for name in os.environ if name.lower().endswith("_proxy")]:
    del os.environ[_name]
for _name in ("SCRAPY_SETTINGS_MODULE", "SCRAPY_PROJECT"):
    os.environ.pop(_name, None)


SLOW_DAY = "SLOW_DAY"
"""The environment's name for the day whose fifth of the slow tests runs: a number, or `all`."""


def pytest_configure():
    """Choose the day once, for the workers of pytest-xdist, too."""
    os.environ.setdefault(SLOW_DAY, str(date.today().toordinal() % 5))


def pytest_report_header():
    """Say on which server the tests of the shared filter run, and which of the slow tests do."""
    return f"server: {server.described()}", f"slow tests: {SLOW_DAY}={os.environ[SLOW_DAY]}"


def pytest_collection_modifyitems(config, items):
    """Leave out the slow tests of the four other days, but those that are asked for by name.

    In any five days in a row each of them runs; those of a module that is marked run together,
    since what they share is slow.
    """
    day = os.environ[SLOW_DAY]
    if day == "all" or any("::" in name for name in config.args):
        return
    unit_of = {item: _unit(item) for item in items if item.get_closest_marker("slow")}
    units = sorted({*unit_of.values()})
    today = units[int(day) % 5 :: 5]
    left = [item for item, unit in unit_of.items() if unit not in today]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


def _unit(item):
    """Return the name of what runs on one day: the module if that is marked, else the test."""
    module = item.getparent(pytest.Module)
    is_marked = any(mark.name == "slow" for mark in module.own_markers)
    return module.nodeid if is_marked else item.nodeid


@pytest.fixture
def make_dupefilter():
    """Return a function that builds a dupefilter as Scrapy does, from settings."""
    made = []

    def make(prepare=lambda crawler: None, **settings):
        settings = {"ADDONS": {"scrapy_bloom.Addon": 300}} | {
            name: str(value) if name == "JOBDIR" else value for name, value in settings.items()
        }
        crawler = get_crawler(settings_dict=settings)
        crawler.engine = Engine()
        crawler.spider = crawler.spidercls.from_crawler(crawler, "spider")
        prepare(crawler)
        dupefilter = build_from_crawler(load_object(crawler.settings["DUPEFILTER_CLASS"]), crawler)
        dupefilter.crawler = crawler
        made.append(dupefilter)
        dupefilter.open()
        return dupefilter

    yield make
    reactor.iterate()  # nothing may be left for the next test
    for dupefilter in made:
        with suppress(Exception):  # some are made to fail
            dupefilter.close("finished")


@pytest.fixture
def run(monkeypatch, capsys):
    """Return a function that runs a command in this process, as `python -m` does, or `scrapy`."""

    def run(folder, *arguments, stdin=b"", scrapy=False):
        monkeypatch.chdir(folder)
        capsys.readouterr()
        words = list(map(str, arguments))
        with TemporaryFile() as file, monkeypatch.context() as patch:
            file.write(stdin.encode() if isinstance(stdin, str) else stdin)
            file.seek(0)
            patch.setattr("sys.stdin", file)
            try:
                status = execute(["scrapy", "bloom", *words]) if scrapy else main(words)
            except SystemExit as end:
                status = end.code
        # which the first command in a project sets
        os.environ.pop("SCRAPY_SETTINGS_MODULE", None)
        out, error = capsys.readouterr()
        return Result(subprocess.CompletedProcess(arguments, status, out, error))

    return run


@pytest.fixture
def watch(monkeypatch):
    """Return a function that has something done before or after each call of a function."""

    def watch(owner, name, before=lambda *_, **__: None, after=lambda *_, **__: None):
        function = getattr(owner, name)

        def watched(*arguments, **options):
            before(*arguments, **options)
            found = function(*arguments, **options)
            after(*arguments, **options)
            return found

        monkeypatch.setattr(owner, name, watched)

    return watch


@pytest.fixture
def kept():
    """Return a function that returns what it gets, and closes that when the test is over."""
    with ExitStack() as stack:
        yield lambda made: stack.enter_context(closing(made))


@pytest.fixture(params=[0o000, 0o077])
def umask(request):
    """The umask of a test: none, or that of a user who lets nobody in."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture
def traced():
    """Return tracemalloc, which is stopped in the end."""
    yield tracemalloc
    tracemalloc.stop()


@pytest.fixture
def next_turn():
    """Return a function that lets the reactor do what was scheduled for its next turn."""
    return partial(reactor.iterate, 0)
