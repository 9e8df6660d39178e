"""Looking at filters: info, check, verify."""

import gzip
import os
import shutil

import pytest
from scrapy.http import Request
from scrapy.utils.request import fingerprint

from scrapy_bloom import ScalableBloomFilter
from tests.commands.command_line import SEEN

pytestmark = pytest.mark.skipif(os.name != "posix", reason="filter files need Linux or macOS")


def test_info_says_what_is_there(run, job):
    """All that the issue of a filter is about, in text and JSON, of a job, a filter and a file."""
    result = run(job.parent, "info", "job")
    assert result.status == 0
    assert result.lines[0] == "job"
    fields = result.fields
    assert fields["requests"] == "3"
    assert fields["capacity"] == "2,000 in 1 layer"
    assert fields["error rate"].endswith("at most 1e-06")
    assert fields["secret"] == "present"
    assert fields["fingerprinter"].endswith("RequestFingerprinter")
    assert "scrapy-bloom" in fields["made by"]
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


def test_info_says_what_helps_and_no_more(run, job):
    """Bits an item are told of a filter that has its items, not of a nearly empty one."""
    young = run(job.parent, "info", "job")
    assert young.fields["memory"] == "8.19 kB"
    with ScalableBloomFilter.open(job / "bloom") as bloom_filter:
        bloom_filter.update(str(n) for n in range(50_000))
        bits = 8 * bloom_filter.nbytes / len(bloom_filter)
    grown = run(job.parent, "info", "job")
    assert grown.fields["memory"].endswith(f" ({bits:.1f} bits a request)")
    assert grown.lines[-1].split()[:2] == ["4", "32,000"]
    assert max(young.width, grown.width) <= 80


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
    about, items = text.fields["requests"].split()
    assert (about, int(items.replace(",", ""))) == ("about", figures["items"])
    assert (seen.status, sound.status) == (0, 0)
    assert "not closed" in sound.out


def test_killed_job_is_told_from_a_running_one(run, job):
    """A filter that was not closed and that nobody holds was killed."""
    with ScalableBloomFilter.open(job / "bloom"):
        shutil.copytree(job / "bloom", job.parent / "killed" / "bloom")
    result = run(job.parent, "info", "killed")
    assert "NOT cleanly" in result.fields["closed"]
    assert run(job.parent, "info", "killed", "--json").json["held_by"] is None


@pytest.mark.parametrize("subcommand", ["info", "verify"])
def test_a_file_that_is_no_filter_is_named(run, tmp_path, subcommand):
    """By its name; one that is not there, too."""
    (tmp_path / "text.bloom").write_text("not a filter at all")
    result = run(tmp_path, subcommand, "text.bloom")
    assert result.status == 2
    assert "is not a filter file" in result.error + result.out
    assert "x.bloom is not there" in run(tmp_path, "check", "x.bloom", SEEN[0]).refusal


def test_check_answers_through_the_jobs_fingerprinter(run, job):
    """Equal pages are recognised however their URL is written; new ones give status 1."""
    result = run(job, "check", job, "http://example.com/a?y=2&x=1#top", SEEN[2])
    assert (result.status, [line[:4] for line in result.lines]) == (0, ["seen", "seen"])
    result = run(job, "check", job, *SEEN, "http://example.com/new")
    assert result.status == 1
    assert result.lines[-1] == "new  http://example.com/new"


@pytest.mark.parametrize("packed", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["no mark", "byte order mark"])
def test_check_reads_a_list_on_standard_input(run, job, packed, mark):
    """Plain or compressed, with whatever an editor has put at its start, and empty lines."""
    lines = packed(mark + "\r\n\n".join(SEEN).encode())
    result = run(job, "check", job, "-", "--json", stdin=lines)
    assert result.status == 0
    assert [(each["url"], each["seen"]) for each in result.json] == [(url, True) for url in SEEN]


def test_check_names_what_it_cannot_read(run, job):
    """What is no URL, a line that is no text, and a gzip file that was cut off."""
    lines = f"{SEEN[0]}\n".encode() + b"http://example.com/\xff\n"
    assert "'nonsense' has no fingerprint" in run(job, "check", job, "nonsense").refusal
    assert "'http://example.com/\\xff' has" in run(job, "check", job, "-", stdin=lines).refusal
    cut_off = gzip.compress(lines)[:-10]
    assert "no whole gzip file" in run(job, "check", job, "-", stdin=cut_off).refusal


def test_check_knows_methods_and_bodies(run, tmp_path):
    """A POST is another request than a GET, and so is another body."""
    request = Request("http://example.com/form", method="POST", body="q=1")
    with ScalableBloomFilter(100, 1e-6, tmp_path / "bloom") as bloom_filter:
        bloom_filter.add(fingerprint(request))
    arguments = ["check", tmp_path, request.url, "--method", "POST"]
    assert run(tmp_path, *arguments, "--body", "q=1").status == 0
    assert run(tmp_path, *arguments, "--body", "q=2").status == 1
    assert run(tmp_path, *arguments).status == 1


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
