"""`scrapy bloom` as an operator types it: real processes, good input and bad."""

import argparse
import fcntl
import io
import os
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest
from scrapy.http import Request
from scrapy.settings import Settings
from scrapy.utils.request import fingerprint

from scrapy_bloom import BloomFilter, ScalableBloomFilter
from scrapy_bloom.commands import BloomCommand, main
from scrapy_bloom.commands.quantities import number
from tests.commands.command_line import (
    URLS,
    Result,
    bloom,
    environment,
    make_project,
    scrapy_executable,
)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="filter files need Linux or macOS")

SUBCOMMANDS = ["info", "size", "check", "add", "merge", "clear", "verify", "compare", "plot"]
WITH_REDIS = ["load", "export"]
SEEN = ["http://example.com/", "http://example.com/a?x=1&y=2", "http://example.com/b"]


@pytest.fixture
def run(monkeypatch, capsys):
    """Return a function that runs a command in this process, as `python -m` does."""

    def run(folder, *arguments, stdin=""):
        monkeypatch.chdir(folder)
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        capsys.readouterr()
        try:
            status = main(list(map(str, arguments)))
        except SystemExit as end:
            status = end.code
        out, error = capsys.readouterr()
        return Result(subprocess.CompletedProcess(arguments, status, out, error))

    return run


@pytest.fixture
def job(run, tmp_path):
    """A job directory whose filter knows SEEN, by Scrapy's fingerprints, outside a project."""
    (tmp_path / "urls.txt").write_text("\n".join(SEEN))
    result = run(tmp_path, "add", "job", "urls.txt", "--capacity", "2k")
    assert result.status == 0, result.error
    assert "3 added, 0 were known" in result.out
    return tmp_path / "job"


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


@pytest.mark.parametrize("where", ["project", "outside"])
@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        (["info", "job"], ["info", "no"], "no holds no Bloom filter"),
        (["size", "--urls", "1e6"], ["size", "--urls", "-1"], "'-1' is not a positive"),
        (["check", "job", SEEN[0]], ["check", "job", "x"], "'x' has no fingerprint"),
        (["add", "job", "urls.txt"], ["add", "job", "no"], "no is not a file"),
        (["merge", "job", "copy"], ["merge", "job", "job"], "is the destination itself"),
        (["clear", "doomed", "--yes"], ["clear", "job"], "--yes"),
        (["verify", "job"], ["verify", "urls.txt"], "cannot be trusted"),
        (["compare", "urls.txt"], ["compare", "no"], "no: No such file"),
        (["plot", "memory", "x.svg"], ["plot", "memory", "x.gif"], ".png or .svg"),
    ],
    ids=SUBCOMMANDS,
)
def test_every_subcommand_works_inside_and_outside_a_project(folders, where, good, bad, message):
    """Through the real executable, with good input (status 0) and bad (status 2)."""
    if good[0] == "plot":
        pytest.importorskip("matplotlib")
    result = bloom(folders[where], *good)
    assert result.status == 0, result.error
    assert result.out
    assert result.error == ""
    assert message in bloom(folders[where], *bad).refusal


def test_help_names_every_subcommand(tmp_path):
    """`scrapy` lists the command, and its help each subcommand with a line about it."""
    listed = subprocess.run(
        scrapy_executable(), cwd=tmp_path, env=environment(), capture_output=True, text=True
    ).stdout
    assert "bloom" in listed
    for module in (False, True):
        result = bloom(tmp_path, "--help", module=module)
        assert result.status == 0
        for name in SUBCOMMANDS + WITH_REDIS:
            (line,) = [each for each in result.lines if each.split()[:1] == [name]]
            assert len(line.split()) > 3


def test_help_of_each_subcommand_is_complete():
    """Each has a description, each argument a help text, and figures come as JSON."""
    command = BloomCommand()
    command.settings = Settings()
    parser = argparse.ArgumentParser()
    command.add_options(parser)
    (subparsers,) = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    assert set(subparsers.choices) == {*SUBCOMMANDS, *WITH_REDIS}
    for name, subparser in subparsers.choices.items():
        assert subparser.description
        assert all(action.help for action in subparser._actions)
        options = {option for action in subparser._actions for option in action.option_strings}
        assert {"--set", "--loglevel"} <= options
        assert ("--json" in options) == (name not in {"clear", "plot"})
        assert subparser.format_help()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: <subcommand>"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["info"], "required: PLACE"),
        (["info", "a", "b"], "unrecognized: b"),
        (["info", "a", "--nonsense"], "unrecognized: --nonsense"),
        (["size", "--urls", "many"], "'many' is not a positive whole number"),
        (["plot", "pie", "x.png"], "invalid choice: 'pie'"),
    ],
)
def test_wrong_arguments_get_one_line(run, tmp_path, arguments, message):
    """A mistyped command ends with status 2 and a line that says what and where to look."""
    result = run(tmp_path, *arguments)
    assert message in result.refusal
    assert "--help" in result.refusal
    assert not result.out


def test_wrong_arguments_get_one_line_from_scrapy_too(tmp_path):
    """The same through Scrapy's own parser, which would print its usage."""
    assert "invalid choice: 'nonsense'" in bloom(tmp_path, "nonsense").refusal
    assert "unrecognized: --nonsense" in bloom(tmp_path, "info", "x", "--nonsense").refusal


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), ("5_000", 5000), ("1,000,000", 10**6), ("1e8", 10**8), ("100M", 10**8),
     ("2.5k", 2500), ("1G", 10**9), ("123456789012345678901", 123456789012345678901)],
)  # fmt: skip
def test_numbers_may_be_written_as_people_do(text, value):
    """Underscores, commas, exponents and suffixes, exactly."""
    assert number(text) == value


@pytest.mark.parametrize("text", ["", "0", "-5", "1.5", "x", "M", "1e", "nan", "inf", "1e999"])
def test_other_numbers_are_refused(text):
    """What is no positive whole number is named."""
    with pytest.raises(argparse.ArgumentTypeError, match="positive whole number"):
        number(text)


def test_info_says_what_is_there(run, job):
    """All that the issue of a filter is about, in text and in JSON, of a job directory, the
    filter's own directory and one file."""
    result = run(job.parent, "info", "job")
    assert result.status == 0
    assert result.lines[0] == "job"
    fields = result.fields
    assert fields["items"] == "3"
    assert fields["capacity"] == "2,000 in 1 layer"
    assert fields["error rate"].endswith("at most 1e-06")
    assert fields["secret"] == "present"
    assert fields["fingerprinter"].endswith("RequestFingerprinter")
    assert "scrapy-bloom" in fields["made"]
    assert fields["closed"] == "cleanly"
    figures = run(job.parent, "info", "job", "--json").json
    with ScalableBloomFilter.open(job / "bloom") as bloom_filter:
        assert figures["items"] == len(bloom_filter) == 3
        assert figures["bytes"] == bloom_filter.nbytes
        assert figures["bits"] == 8 * bloom_filter.nbytes
        assert figures["error_rate"] == bloom_filter.current_error_rate
        assert figures["fill_ratio"] == bloom_filter.fill_ratio
    assert figures["file_bytes"] == (job / "bloom" / "0.bloom").stat().st_size
    assert (figures["clean"], figures["held_by"], figures["unfinished_requests"]) == (
        True, None, None,
    )  # fmt: skip
    for place in (job / "bloom", job / "bloom" / "0.bloom"):
        assert run(job.parent, "info", place, "--json").json["items"] == 3


def test_running_job_is_inspected_and_left_alone(run, job):
    """A filter that a process holds is counted as it is now, and goes on unharmed."""
    with ScalableBloomFilter.open(job / "bloom") as bloom_filter:
        bloom_filter.update(str(n) for n in range(1000))
        before = (job / "bloom" / "0.bloom").read_bytes()
        figures = run(job, "info", job, "--json").json
        text = run(job, "info", job)
        seen = run(job, "check", job, SEEN[0])
        sound = run(job, "verify", job)
        assert (job / "bloom" / "0.bloom").read_bytes() == before
        assert bloom_filter.add("another") is False
    assert figures["held_by"] == os.getpid()
    assert figures["clean"] is figures["items_exact"] is False
    assert figures["items"] == pytest.approx(1003, rel=0.02)
    assert f"process {os.getpid()} uses it now" in text.fields["closed"]
    assert text.fields["items"].startswith("about 1,0")
    assert (seen.status, sound.status) == (0, 0)
    assert "not closed" in sound.out


def test_held_filter_is_not_changed(run, job):
    """Adding to a filter that is in use, or removing it, is refused with the holder."""
    with ScalableBloomFilter.open(job / "bloom"):
        for arguments in (["add", job, job.parent / "urls.txt"], ["clear", job, "--yes"]):
            assert f"in use by process {os.getpid()}" in run(job, *arguments).refusal
    assert (job / "bloom" / "0.bloom").exists()


def test_killed_job_is_told_from_a_running_one(run, job):
    """A filter that was not closed and that nobody holds was killed."""
    with ScalableBloomFilter.open(job / "bloom"):
        shutil.copytree(job / "bloom", job.parent / "killed" / "bloom")
    result = run(job.parent, "info", "killed")
    assert "NOT cleanly" in result.fields["closed"]
    assert run(job.parent, "info", "killed", "--json").json["held_by"] is None


def test_places_without_a_filter_are_named(run, tmp_path):
    """Each error is one line that names the place and what to do."""
    assert "nowhere holds no Bloom filter" in run(tmp_path, "info", "nowhere").refusal
    old = tmp_path / "old"
    old.mkdir()
    (old / "requests.seen").write_bytes(b"")
    assert "scrapy bloom add old old/requests.seen" in run(tmp_path, "info", "old").refusal
    (tmp_path / "text.bloom").write_text("not a filter at all")
    for subcommand in ("info", "verify"):
        result = run(tmp_path, subcommand, "text.bloom")
        assert result.status == 2
        assert "is not a filter file" in result.error + result.out
    assert "x.bloom is not there" in run(tmp_path, "check", "x.bloom", SEEN[0]).refusal


def test_size_agrees_with_a_real_filter(run, tmp_path):
    """Memory, files and expected losses are those of filters of that shape, to the byte."""
    arguments = ["size", "--urls", "20k", "--from", "1000", "--error-rate", "1e-4"]
    at_once, grown = run(tmp_path, *arguments, "--json").json["filters"]
    for figures, capacity in ((at_once, 20_000), (grown, 1000)):
        place = tmp_path / str(capacity)
        with ScalableBloomFilter(capacity, 1e-4, place) as bloom_filter:
            n = 0
            while len(bloom_filter) < 20_000:
                bloom_filter.add(str(n))
                n += 1
            assert figures["bytes"] == bloom_filter.nbytes
            assert figures["bits"] == 8 * bloom_filter.nbytes
            assert figures["layers"] == len(bloom_filter.layers)
            lost = bloom_filter.expected_false_positives
            assert figures["pages_lost"] == pytest.approx(lost, rel=1e-9)
        files = sum(path.stat().st_size for path in place.glob("*.bloom"))
        assert figures["file_bytes"] == files
    text = run(tmp_path, *arguments)
    assert "RFPDupeFilter" in text.out
    assert f"{at_once['bits']:,}" in text.out
    assert (
        "--error-rate is 2.0" in run(tmp_path, "size", "--urls", "5", "--error-rate", "2").refusal
    )


def test_check_answers_through_the_jobs_fingerprinter(run, job):
    """Equal pages are recognised however their URL is written; new ones give status 1."""
    result = run(job, "check", job, "http://example.com/a?y=2&x=1#top", SEEN[2])
    assert (result.status, [line[:4] for line in result.lines]) == (0, ["seen", "seen"])
    result = run(job, "check", job, *SEEN, "http://example.com/new")
    assert result.status == 1
    assert result.lines[-1] == "new  http://example.com/new"
    result = run(job, "check", job, "-", "--json", stdin="\n".join(SEEN) + "\n\n")
    assert result.status == 0
    assert result.json == [{"url": url, "seen": True} for url in SEEN]


def test_check_knows_methods_and_bodies(run, tmp_path):
    """A POST is another request than a GET, and so is another body."""
    request = Request("http://example.com/form", method="POST", body="q=1")
    with ScalableBloomFilter(100, 1e-6, tmp_path / "bloom") as bloom_filter:
        bloom_filter.add(fingerprint(request))
    arguments = ["check", tmp_path, request.url, "--method", "POST"]
    assert run(tmp_path, *arguments, "--body", "q=1").status == 0
    assert run(tmp_path, *arguments, "--body", "q=2").status == 1
    assert run(tmp_path, *arguments).status == 1


def test_check_refuses_what_is_no_url(run, job):
    """The error names it."""
    assert "'nonsense' has no fingerprint" in run(job, "check", job, "nonsense").refusal


def test_project_settings_apply(folders):
    """Inside a project its fingerprinter, capacity and spiders' own settings are used, and a
    filter of other fingerprints is refused with the way out."""
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


def test_add_reads_lists_and_reports_what_it_skips(run, job):
    """Compressed lists, repeated runs and lines that are no URLs."""
    first = run(job, "add", job, URLS, "--json").json
    assert first["files"][0]["added"] == first["items"] - 3
    assert first["files"][0]["added"] + first["files"][0]["known"] == 20_000
    again = run(job, "add", job, URLS, "--json").json
    assert (again["items"], again["files"][0]["added"]) == (first["items"], 0)
    dirty = job.parent / "dirty.txt"
    dirty.write_bytes(b"http://example.com/new\n\nnonsense\nhttp://\xff\xfe/\r\n")
    result = run(job, "add", job, dirty)
    assert result.status == 0
    assert "1 added" in result.out
    assert "2 lines skipped, the first is line 3, b'nonsense'" in result.out


def test_add_refuses_what_it_cannot_read(run, job):
    """Missing files, directories and a fixed filter that is not there."""
    assert "missing.txt is not a file" in run(job, "add", job, "missing.txt").refusal
    assert "is not a file" in run(job, "add", job, job).refusal
    assert "x.bloom is not there" in run(job, "add", "x.bloom", URLS).refusal
    assert "needs --key" in run(job, "add", job, "redis://:hush@127.0.0.1:1/0").refusal


def test_interrupted_add_is_run_again(run, tmp_path):
    """Ctrl-C leaves a sound filter that knows a part, and the next run adds the rest."""
    urls = tmp_path / "urls.txt"
    urls.write_text("".join(f"http://example.com/p?b={n}&a={n}\n" for n in range(200_000)))
    command = [*scrapy_executable(), "bloom", "add", "job", "urls.txt"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
    )
    path = tmp_path / "job" / "bloom" / "0.bloom"
    for _ in range(600):
        if path.exists() and any(path.read_bytes()[8192:]):
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert error == "scrapy bloom add: error: interrupted; run it again to finish\n"
    part = run(tmp_path, "info", "job", "--json").json
    assert part["clean"]
    assert 0 < part["items"] < 200_000
    result = run(tmp_path, "add", "job", "urls.txt", "--json").json
    assert result["files"][0]["known"] >= part["items"]
    assert result["files"][0]["added"] + result["files"][0]["known"] == 200_000
    assert run(tmp_path, "verify", "job").status == 0


def test_progress_is_shown_on_a_terminal_only(run, tmp_path):
    """With tqdm installed, a bar on a terminal; never in a file."""
    pytest.importorskip("tqdm")
    import pty

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    command = [sys.executable, "-m", "scrapy_bloom", "add", "job", str(URLS)]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL, stderr=follower
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            part = os.read(leader, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(leader)
    assert process.wait(30) == 0
    assert b"%" in shown
    assert run(tmp_path, "add", "job", URLS).error == ""


def test_merge_joins_what_has_gone_separate_ways(run, job):
    """Copies of one filter get back together; the sources stay as they are."""
    for name in ("left", "right"):
        shutil.copytree(job, job.parent / name)
        with ScalableBloomFilter.open(job.parent / name / "bloom") as bloom_filter:
            bloom_filter.update(f"{name}{n}" for n in range(500))
    before = (job.parent / "right" / "bloom" / "0.bloom").read_bytes()
    result = run(job.parent, "merge", "job", "left", "right", "--json")
    assert result.status == 0
    assert result.json["items_before"] == 3
    assert result.json["items"] == pytest.approx(1003, rel=0.02)
    assert (job.parent / "right" / "bloom" / "0.bloom").read_bytes() == before
    with ScalableBloomFilter.open(job / "bloom") as bloom_filter:
        bloom_filter.check()
        assert all(f"{name}{n}" in bloom_filter for name in ("left", "right") for n in range(500))


def test_merge_refuses_what_does_not_fit(run, job):
    """Another origin, too many keys, a file and a directory, the filter itself."""
    folder = job.parent
    run(folder, "add", "other", "urls.txt", "--capacity", "2000")
    BloomFilter(100, 1e-3, folder / "one.bloom").close()
    shutil.copytree(job, folder / "full")
    with ScalableBloomFilter.open(folder / "full" / "bloom") as bloom_filter:
        bloom_filter.update(f"full{n}" for n in range(1990))
    with ScalableBloomFilter.open(job / "bloom") as bloom_filter:
        bloom_filter.update(str(n) for n in range(1000))
    before = (job / "bloom" / "0.bloom").read_bytes()
    assert "different secret" in run(folder, "merge", "job", "other").refusal
    assert "one is a filter of fixed size" in run(folder, "merge", "job", "one.bloom").refusal
    assert "is the destination itself" in run(folder, "merge", "job", "job/bloom").refusal
    assert "was made for 2,000" in run(folder, "merge", "job", "full").refusal
    assert (job / "bloom" / "0.bloom").read_bytes() == before
    result = run(folder, "merge", "job", "full", "--over-capacity", "--json")
    assert result.json["items"] == pytest.approx(2993, rel=0.02)


def test_clear_removes_the_filter_only(run, job):
    """It asks for --yes, and leaves what else is in the job."""
    (job / "requests.seen").write_bytes(b"")
    assert "--yes" in run(job, "clear", job).refusal
    result = run(job, "clear", job, "--yes")
    assert result.status == 0
    assert "0.bloom" in result.out
    assert "still holds requests.seen" in result.out
    assert [path.name for path in job.iterdir()] == ["requests.seen"]
    (job.parent / "foreign.bloom").write_text("mine")
    assert "is not a filter file" in run(job.parent, "clear", "foreign.bloom", "--yes").refusal
    assert (job.parent / "foreign.bloom").exists()


def test_verify_finds_damage_and_changes_nothing(run, job):
    """A sound filter is said to be; a damaged one has the page and status 2."""
    assert "can be trusted" in run(job, "verify", job).out
    assert run(job, "verify", job, "--json").json["trusted"] is True
    path = job / "bloom" / "0.bloom"
    sound = path.read_bytes()
    damaged = bytearray(sound)
    damaged[100] ^= 1
    path.write_bytes(damaged)
    result = run(job, "verify", job, "--json")
    assert (result.status, result.json["trusted"]) == (2, False)
    assert "damaged header" in result.out
    assert "cannot be trusted" in result.error
    assert path.read_bytes() == damaged


def test_compare_prints_the_running_share(run, tmp_path):
    """A row for each so many lines, then what each method has cost, in text and JSON."""
    text = run(tmp_path, "compare", URLS)
    assert text.status == 0
    assert [line.split()[0] for line in text.lines[:3]] == ["lines", "10,000", "20,000"]
    arguments = ["compare", URLS, "--every", "5k", "--slots", "50k", "--bits", "100k"]
    figures = run(tmp_path, *arguments, "--hashes", "4", "--json").json
    assert [row["lines"] for row in figures["rows"]] == [5000, 10_000, 15_000, 20_000]
    exact, digests, one, classic, eight, ours = figures["methods"]
    assert exact["false_positives"] == digests["false_positives"] == ours["false_positives"] == 0
    assert one["share"] == pytest.approx(one["expected"] / 20_000, rel=0.05)
    assert classic["share"] == pytest.approx(classic["expected"] / 20_000, rel=0.1)
    assert eight["false_positives"] > 0
    assert eight["bytes"] == 2**28
    assert "none.txt: No such file" in run(tmp_path, "compare", "none.txt").refusal


def test_plot_writes_pictures(run, tmp_path):
    """PNG and SVG; another suffix is refused."""
    pytest.importorskip("matplotlib")
    assert run(tmp_path, "plot", "memory", "memory.svg").status == 0
    assert "<svg" in (tmp_path / "memory.svg").read_text()
    assert ".png or .svg" in run(tmp_path, "plot", "memory", "memory.pdf").refusal
    assert "no/x.png: No such file" in run(tmp_path, "plot", "memory", "no/x.png").refusal


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
