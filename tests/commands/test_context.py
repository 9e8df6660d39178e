"""Subcommands as an operator runs them: inside a project and outside, with good input and bad."""

import os
import shutil
import subprocess

import pytest
from scrapy.http import Request
from scrapy.utils.request import fingerprint

from scrapy_bloom import ScalableBloomFilter
from tests.commands.command_line import (
    SEEN,
    SUBCOMMANDS,
    URLS,
    bloom,
    environment,
    make_project,
    scrapy_executable,
)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="filter files need Linux or macOS")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A project, and a folder that is none, each with a filter and a list of URLs."""
    project = make_project(tmp_path_factory.mktemp("project"))
    outside = tmp_path_factory.mktemp("outside")
    for folder in (project, outside):
        (folder / "job").mkdir()
        with ScalableBloomFilter(2000, 1e-6, folder / "job" / "bloom") as bloom_filter:
            bloom_filter.update(fingerprint(Request(url)) for url in SEEN)
        shutil.copytree(folder / "job", folder / "copy")
        shutil.copytree(folder / "job", folder / "doomed")
        (folder / "urls.txt").write_text("\n".join(SEEN))
    return {"project": project, "outside": outside}


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        (["info", "job"], ["info", "no"], "no holds no Bloom filter"),
        (["size", "--urls", "1e6"], ["size", "--urls", "-1"], "'-1' is not a whole number"),
        (["check", "job", SEEN[0]], ["check", "job", "x"], "'x' has no fingerprint"),
        (["add", "job", "urls.txt"], ["add", "job", "no"], "no is not a file"),
        (["merge", "job", "copy"], ["merge", "job", "job"], "is the destination itself"),
        (["clear", "doomed", "--yes"], ["clear", "job"], "--yes"),
        (["verify", "job"], ["verify", "urls.txt"], "is one file, and no filter"),
        (["compare", "urls.txt"], ["compare", "no"], "no: No such file"),
        (["plot", "memory", "x.svg"], ["plot", "memory", "x.gif"], ".png or .svg"),
    ],
    ids=SUBCOMMANDS,
)
def test_every_subcommand_works_inside_and_outside_a_project(folders, good, bad, message):
    """Through the real executable, with good input (status 0) and bad (status 2)."""
    if good[0] == "plot":
        pytest.importorskip("matplotlib")
    result = bloom(folders["outside"], *good)
    assert result.status == 0, result.error
    assert result.out
    assert result.error == ""
    assert message in bloom(folders["project"], *bad).refusal


def test_project_settings_apply(folders):
    """A project's fingerprinter, capacity and spiders' settings count; others are refused."""
    project, outside = folders["project"], folders["outside"]
    (project / "list.txt").write_text("http://example.com/a?x=1\nhttp://example.com/b\n")
    assert bloom(project, "add", "own", "list.txt").status == 0
    info = bloom(project, "info", "own", "--json").json
    assert (info["capacity"], info["fingerprinter"]) == (5000, "shop.identity.NoQuery")
    assert bloom(project, "check", "own", "http://example.com/a?x=2").status == 0
    page = "http://example.com/b"
    refusal = bloom(project, "check", "own", page, "--spider", "plain").refusal
    assert "was shop.identity.NoQuery" in refusal
    assert "--spider" in refusal
    assert "was shop.identity.NoQuery" in bloom(outside, "add", project / "own", URLS).refusal
    assert bloom(project, "add", "plain", "list.txt", "--spider", "plain").status == 0
    assert bloom(outside, "check", project / "plain", page).status == 0
    assert (
        "no spider 'nobody'" in bloom(project, "check", "own", page, "--spider", "nobody").refusal
    )
    raising = "REQUEST_FINGERPRINTER_CLASS=shop.identity.Raising"
    assert "no idea" in bloom(project, "check", "job", page, "-s", raising).refusal


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a full disk is at hand on Linux only")
def test_output_that_cannot_be_written_gets_one_line(folders):
    """A full disk is named; without any output a command does its work."""
    folder = folders["outside"]
    command = " ".join([*scrapy_executable(), "bloom", "info", "job"])
    for output, status, lines in (("/dev/full", 2, 1), ("&-", 0, 0)):
        process = subprocess.run(
            f"{command} >{output}",
            shell=True,
            cwd=folder,
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        assert (process.returncode, len(process.stderr.splitlines())) == (status, lines)
    assert "No space left" not in process.stderr


def test_names_and_urls_need_no_encoding(folders):
    """What the terminal's encoding does not have is shown escaped."""
    name = os.fsdecode(b"caf\xe9")
    shutil.copytree(folders["outside"] / "job", folders["outside"] / name)
    assert "closed" in bloom(folders["outside"], "info", name).out


def test_closed_output_is_no_error_to_talk_about(run, job):
    """`scrapy bloom … | head` ends quietly."""
    process = subprocess.run(
        " ".join([*scrapy_executable(), "bloom", "check", str(job), "-", "|", "true"]),
        shell=True,
        env=environment(),
        input="\n".join(SEEN * 20_000),
        capture_output=True,
        text=True,
    )
    assert process.stderr == ""
