"""Commands for one page (`parse`, `fetch`, `view`, `shell`) touch no job, though JOBDIR is set."""

import os
import re

import pytest

from tests import processes
from tests.crawl.engine import Job
from tests.test_refused_start import contents

PROJECT = {
    "scrapy.cfg": "[settings]\ndefault = project.settings\n",
    "project/__init__.py": "",
    "project/settings.py": """
SPIDER_MODULES = ["project.spider"]
DOWNLOADER_MIDDLEWARES = {"project.spider.Answer": 1}
TELNETCONSOLE_ENABLED = False
FEEDS = {"items.jsonl": {"format": "jsonlines"}}
BLOOM_DELTA = "item"
BLOOM_DELTA_DIR = "memory"
LOG_FILE = "log"
LOG_ENABLED = True
""",
    "project/spider.py": '''
import scrapy


class Answer:
    """Answers without a network."""

    def process_request(self, request, spider=None):
        return scrapy.http.HtmlResponse(request.url, body=b"<p>page</p>", request=request)


class TestSpider(scrapy.Spider):
    """Gives an item and a link for each page."""

    name = "test"
    allowed_domains = ["example.com"]

    def parse(self, response):
        yield {"url": response.url}
        yield response.follow("/next")
''',
}
LOCAL = 'ADDONS = {"scrapy_bloom.Addon": 300}\nJOBDIR = "job"\n'
BY_HAND = (
    'SCHEDULER = "scrapy_bloom.DurableScheduler"\n'
    'DUPEFILTER_CLASS = "scrapy_bloom.BloomDupeFilter"\nJOBDIR = "job"\nBLOOM_DELTA = None\n'
    "LOGSTATS_INTERVAL = 30.0\n"
)
NOBODY = 'BLOOM_REDIS_URL = "redis://127.0.0.1:1/0"\n'
"""A Redis that refuses whoever asks."""


@pytest.fixture
def project(tmp_path):
    """A project with a job that was stopped: two requests are pending, and one page is done."""
    for name, text in PROJECT.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "items.jsonl").write_text('{"url": "http://example.com/c"}\n')
    job = Job(tmp_path / "job").open().pushed(*"abc")
    job.done(job.pop())
    job.close("shutdown")
    (tmp_path / "job" / "spider.state").write_bytes(b"\x80\x04}.")
    return tmp_path


def run(project, *command, settings):
    """Run a command for one page to its end; return output, log, and if no file has changed."""
    with (project / "project" / "settings.py").open("a") as file:
        file.write(settings)
    before = contents(project)
    done = processes.run(
        ["-m", "scrapy", *command, "-L", "INFO", "http://example.com/a"],
        cwd=project,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        text=True,
    )
    log = (project / "log").read_text()
    (project / "log").unlink()
    assert done.returncode == 0, done.stderr + log
    return done.stdout, log, contents(project) == before


SHELL = ("shell", "-c", "response.url")


@pytest.mark.parametrize(
    ("settings", "command"),
    [
        pytest.param(LOCAL, ("parse", "-d", "2"), id="parse"),
        pytest.param(LOCAL + NOBODY, ("parse", "--pipelines"), id="parse, Redis"),
        pytest.param(BY_HAND, ("fetch", "--spider", "test"), id="fetch, by hand"),
        pytest.param(LOCAL, SHELL, id="shell"),  # which has no spider
        pytest.param(LOCAL + NOBODY, (*SHELL, "--spider", "test"), id="shell, Redis"),
        pytest.param(BY_HAND, SHELL, id="shell, by hand"),
    ],
)
def test_a_command_for_one_page_touches_no_job(project, settings, command):
    """Neither requests nor filter, state, feeds nor the memory of past crawls; a line says so."""
    out, log, is_unchanged = run(project, *command, settings=settings)
    assert ("page" if command[0] == "fetch" else "http://example.com/a") in out
    assert is_unchanged
    assert "ERROR" not in log
    # nothing is said in a shell, whose engine starts before its spider
    is_shell = command[0] == "shell"
    assert log.count("a command for one page touches no job") == (not is_shell), log
    told = re.findall("requests: +in memory", log)
    assert len(told) == (not is_shell and settings != BY_HAND), log


def test_a_command_for_one_page_warns_of_no_settings(project):
    """Those that keep off what a crawl gets are said when there is one."""
    off = (
        "DUPEFILTER_CLASS = 'scrapy.dupefilters.RFPDupeFilter'\n"
        "SCHEDULER = 'scrapy.core.scheduler.Scheduler'\nBLOOM_DELTA = None\n"
    )
    assert "WARNING" not in run(project, "fetch", settings=LOCAL + off)[1]
