"""Subcommands as an operator runs them: inside a project and outside, and in a shell."""

import os
import shutil

import pytest

from scrapy_bloom import ScalableBloomFilter
from tests.commands.command_line import SEEN, bloom, in_shell

# a project whose fingerprinter ignores queries, with a spider that has Scrapy's
PROJECT = {
    "scrapy.cfg": "[settings]\ndefault = shop.settings\n",
    "shop/settings.py": """
SPIDER_MODULES = ["shop.spiders"]
REQUEST_FINGERPRINTER_CLASS = "shop.NoQuery"
ADDONS = {"scrapy_bloom.Addon": 300}
BLOOM_CAPACITY = 5_000
""",
    "shop/__init__.py": """
from scrapy.utils.request import RequestFingerprinter

class NoQuery(RequestFingerprinter):
    def fingerprint(self, request):
        return super().fingerprint(request.replace(url=request.url.partition("?")[0]))

class Raising:
    def fingerprint(self, request):
        raise LookupError("no idea")
""",
    "shop/spiders.py": """
import scrapy

class Plain(scrapy.Spider):
    name = "plain"
    custom_settings = {"REQUEST_FINGERPRINTER_CLASS": "scrapy.utils.request.RequestFingerprinter"}
""",
}


@pytest.fixture
def project(tmp_path):
    """The folder of that project."""
    for name, text in PROJECT.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "project"


@pytest.mark.parametrize("is_project", [False, True])
def test_a_subcommand_works_inside_and_outside_a_project(job, project, is_project):
    """Through the real executable, with good input (status 0) and bad (status 2)."""
    folder = project if is_project else job.parent
    result = bloom(folder, "info", str(job), module=is_project)
    assert (result.status, result.error) == (0, "")
    assert result.lines[0] == str(job)
    assert "no holds no Bloom filter" in bloom(folder, "info", "no").refusal


def test_project_settings_apply(run, job, project):
    """A project's fingerprinter, capacity and spiders' settings count; others are refused."""
    outside, page = job.parent, "http://example.com/b"
    (project / "list.txt").write_text(f"http://example.com/a?x=1\n{page}\n")

    def inside(*arguments):
        return run(project, *arguments, scrapy=True)

    assert inside("add", "own", "list.txt").status == 0
    info = inside("info", "own", "--json").json
    assert (info["capacity"], info["fingerprinter"]) == (5000, "shop.NoQuery")
    assert inside("check", "own", "http://example.com/a?x=2").status == 0
    refusal = inside("check", "own", page, "--spider", "plain").refusal
    assert "was shop.NoQuery" in refusal
    assert "--spider" in refusal
    refusal = run(outside, "add", "project/own", "urls.txt").refusal
    assert "was shop.NoQuery" in refusal
    assert inside("add", "plain", "list.txt", "--spider", "plain").status == 0
    assert run(outside, "check", "project/plain", page).status == 0
    assert "no spider 'nobody'" in inside("check", "own", page, "--spider", "nobody").refusal
    ScalableBloomFilter(100, 1e-3, project / "by hand").close()
    raising = "REQUEST_FINGERPRINTER_CLASS=shop.Raising"
    assert "no idea" in inside("check", "by hand", page, "-s", raising).refusal


@pytest.mark.slow
def test_what_cannot_be_written_or_read_gets_one_line(job):
    """Slow, since it starts shells and Scrapy: a full disk and a missing standard input are named;
    without any output a command does its work, and `scrapy bloom … | head` ends quietly."""
    rows = [("--nonsense >&-", 2, "unrecognized"), (">&- 2>&-", 0, "")]
    rows += [(">/dev/full", 2, "No space left")] if os.path.exists("/dev/full") else []
    for output, status, error in rows:
        result = in_shell(job.parent, f"scrapy bloom info job {output}")
        assert (result.status, len(result.error.splitlines())) == (status, bool(error))
        assert error in result.error
    lines = "\n".join(SEEN * 4000)
    assert in_shell(job.parent, "scrapy bloom check job - | true", lines).error == ""
    assert "no standard input" in in_shell(job.parent, "scrapy bloom check job - <&-").refusal


def test_names_need_no_encoding(job):
    """What the terminal's encoding does not have is shown escaped."""
    shutil.copytree(job, job.parent / os.fsdecode(b"caf\xe9"))
    assert "closed" in bloom(job.parent, "info", os.fsdecode(b"caf\xe9")).out
