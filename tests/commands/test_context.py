"""Subcommands as an operator runs them: inside a project and outside, and in a shell."""

import os
import shutil

import pytest

from scrapy_bloom import ScalableBloomFilter
from tests.commands.command_line import SEEN, bloom, in_shell, make_project

pytestmark = pytest.mark.skipif(os.name != "posix", reason="filter files need Linux or macOS")


@pytest.mark.parametrize("is_project", [False, True])
def test_a_subcommand_works_inside_and_outside_a_project(run, job, is_project):
    """Through the real executable, with good input (status 0) and bad (status 2)."""
    folder = make_project(job.parent) if is_project else job.parent
    result = bloom(folder, "info", "job", module=is_project)
    assert (result.status, result.error) == (0, "")
    assert result.lines[0] == "job"
    assert "no holds no Bloom filter" in bloom(folder, "info", "no").refusal


def test_project_settings_apply(run, job):
    """A project's fingerprinter, capacity and spiders' settings count; others are refused."""
    outside, project = job.parent, make_project(job.parent / "project")
    (project / "list.txt").write_text("http://example.com/a?x=1\nhttp://example.com/b\n")
    page = "http://example.com/b"

    def inside(*arguments):
        return run(project, *arguments, scrapy=True)

    assert inside("add", "own", "list.txt").status == 0
    info = inside("info", "own", "--json").json
    assert (info["capacity"], info["fingerprinter"]) == (5000, "shop.identity.NoQuery")
    assert inside("check", "own", "http://example.com/a?x=2").status == 0
    refusal = inside("check", "own", page, "--spider", "plain").refusal
    assert "was shop.identity.NoQuery" in refusal
    assert "--spider" in refusal
    refusal = run(outside, "add", "project/own", "urls.txt").refusal
    assert "was shop.identity.NoQuery" in refusal
    assert inside("add", "plain", "list.txt", "--spider", "plain").status == 0
    assert run(outside, "check", "project/plain", page).status == 0
    assert "no spider 'nobody'" in inside("check", "own", page, "--spider", "nobody").refusal
    ScalableBloomFilter(100, 1e-3, project / "by hand").close()
    raising = "REQUEST_FINGERPRINTER_CLASS=shop.identity.Raising"
    assert "no idea" in inside("check", "by hand", page, "-s", raising).refusal


@pytest.mark.parametrize(
    ("output", "status", "error"),
    [
        pytest.param(
            ">/dev/full",
            2,
            "No space left",
            marks=pytest.mark.skipif(not os.path.exists("/dev/full"), reason="is on Linux only"),
        ),
        (">&-", 0, ""),
        ("--nonsense >&-", 2, "unrecognized"),
        (">&- 2>&-", 0, ""),
    ],
)
def test_output_that_cannot_be_written_gets_one_line(job, output, status, error):
    """A full disk is named; without any output a command does its work."""
    result = in_shell(job.parent, f"scrapy bloom info job {output}")
    assert (result.status, len(result.error.splitlines())) == (status, bool(error))
    assert error in result.error


def test_closed_output_is_no_error_to_talk_about(job):
    """`scrapy bloom … | head` ends quietly."""
    result = in_shell(job.parent, "scrapy bloom check job - | true", "\n".join(SEEN * 20_000))
    assert result.error == ""


def test_no_standard_input_is_named(job):
    """Where a list is to be read from it."""
    assert "no standard input" in in_shell(job.parent, "scrapy bloom check job - <&-").refusal


def test_names_need_no_encoding(job):
    """What the terminal's encoding does not have is shown escaped."""
    shutil.copytree(job, job.parent / os.fsdecode(b"caf\xe9"))
    assert "closed" in bloom(job.parent, "info", os.fsdecode(b"caf\xe9")).out
