"""The real `scrapy bloom`, in processes of its own, inside and outside a project."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import scrapy_bloom
from tests import processes

PACKAGE = Path(scrapy_bloom.__file__).resolve().parent.parent
URLS = PACKAGE / "tests" / "data" / "urls_kasztp_20000.txt.gz"

SUBCOMMANDS = ["info", "size", "check", "add", "merge", "clear", "verify", "compare", "plot"]
SUBCOMMANDS_OF_JOBS = ["top", "queue", "failed", "retry", "drop", "delta"]
SUBCOMMANDS_OF_REDIS = ["load", "export", "push", "workers"]
SEEN = ["http://example.com/", "http://example.com/a?x=1&y=2", "http://example.com/b"]

SETTINGS = """
BOT_NAME = "shop"
SPIDER_MODULES = ["shop.spiders"]
REQUEST_FINGERPRINTER_CLASS = "shop.identity.NoQuery"
ADDONS = {"scrapy_bloom.Addon": 300}
BLOOM_CAPACITY = 5_000
"""

IDENTITY = '''
from scrapy.utils.request import RequestFingerprinter


class NoQuery(RequestFingerprinter):
    """Takes pages for the same whatever their query."""

    def fingerprint(self, request):
        return super().fingerprint(request.replace(url=request.url.partition("?")[0]))


class Raising:
    def fingerprint(self, request):
        raise LookupError("no idea")
'''

SPIDER = """
import scrapy


class Plain(scrapy.Spider):
    name = "plain"
    custom_settings = {"REQUEST_FINGERPRINTER_CLASS": "scrapy.utils.request.RequestFingerprinter"}
"""


def make_project(folder):
    """Make a project whose fingerprinter ignores queries, with a spider that has Scrapy's."""
    package = folder / "shop"
    (package / "spiders").mkdir(parents=True)
    (folder / "scrapy.cfg").write_text("[settings]\ndefault = shop.settings\n")
    (package / "__init__.py").touch()
    (package / "settings.py").write_text(SETTINGS)
    (package / "identity.py").write_text(IDENTITY)
    (package / "spiders" / "__init__.py").write_text(SPIDER)
    return folder


class Result:
    """What a command has printed; `status` is its exit status."""

    def __init__(self, process):
        self.status = process.returncode
        self.out = process.stdout
        self.error = process.stderr
        assert "Traceback" not in self.error + self.out, self.error

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def lines(self):
        return self.out.splitlines()

    @property
    def width(self):
        """Columns that a terminal needs."""
        return max(map(len, self.lines))

    @property
    def fields(self):
        """The rows of a name and a value."""
        return dict(re.split(r"\s{2,}", line, maxsplit=1) for line in self.lines if "  " in line)

    @property
    def refusal(self):
        """The message of a command that has failed, with one line and status 2."""
        assert self.status == 2, self.out + self.error
        (line,) = self.error.splitlines()
        _, _, message = line.partition(": error: ")
        assert message
        return message


def environment():
    """Return the environment in which `scrapy` finds this package."""
    path = [str(PACKAGE), *filter(None, [os.environ.get("PYTHONPATH")])]
    installed = any(entry.name == "bloom" for entry in entry_points(group="scrapy.commands"))
    if not installed:
        path.append(_metadata())
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "COLUMNS": "80"}


def _metadata():
    """Return a directory that says what pyproject.toml does, as an installation would."""
    folder = PACKAGE / ".pytest_cache" / "entry-points"
    metadata = folder / "scrapy_bloom_tests-0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    text = (PACKAGE / "pyproject.toml").read_text()
    entry = re.search(r'\[project\.entry-points\."scrapy\.commands"\]\n(.*)\n', text)[1]
    (metadata / "METADATA").write_text("Name: scrapy-bloom-tests\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(
        "[scrapy.commands]\n" + entry.replace('"', "") + "\n"
    )
    return str(folder)


def begun(folder, *arguments, before=("-m", "scrapy_bloom")):
    """Begin a command in `folder`, as a process that prints to pipes."""
    return processes.Process(
        [*before, *arguments],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def scrapy_executable():
    """Return the command `scrapy` of this Python."""
    script = Path(sys.executable).with_name("scrapy")
    return [str(script)] if script.exists() else [sys.executable, "-m", "scrapy"]


def bloom(folder, *arguments, stdin="", module=False):
    """Run `scrapy bloom` (or `python -m scrapy_bloom`) in `folder`, to its end."""
    command = ["-m", "scrapy_bloom"] if module else ["-m", "scrapy", "bloom"]
    done = processes.run(
        [*command, *arguments],
        cwd=folder,
        env=environment(),
        input=stdin.encode() if isinstance(stdin, str) else stdin,
    )
    done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
    return Result(done)
