"""Looking at filters: info, check, verify."""

import gzip
import os
import shutil

import pytest
from scrapy.http import Request
from scrapy.utils.request import fingerprint

from scrapy_bloom import ScalableBloomFilter
from tests.commands.command_line import SEEN


def test_info_says_what_is_there(run, job):
    """All that an issue of a filter is about, in text and JSON, of a job, a filter and a file. Bits
    an item are told of a filter that has its items, not of a nearly empty one."""
    result = run(job.parent, "info", "job")
    assert (result.status, result.lines[0]) == (0, "job")
    fields = result.fields
    assert fields["requests"] == "3"
    assert fields["capacity"] == "2,000 in 1 layer"
    assert fields["error rate"].endswith("at most 1e-06")
    assert fields["secret"] == "present"
    assert fields["fingerprinter"].endswith("RequestFingerprinter")
    assert "scrapy-bloom" in fields["made by"]
    assert (fields["closed"], fields["memory"]) == ("cleanly", "8.19 kB")
    figures = run(job.parent, "info", "job", "--json").json
    with ScalableBloomFilter.open(job / "bloom") as bloom_filter:
        assert figures["items"] == len(bloom_filter) == 3
        assert figures["bytes"] == bloom_filter.nbytes
        assert figures["bits"] == 8 * bloom_filter.nbytes
        assert figures["error_rate"] == bloom_filter.current_error_rate
        assert figures["fill_ratio"] == bloom_filter.fill_ratio
    assert figures["file_bytes"] == (job / "bloom" / "0.bloom").stat().st_size
    assert figures["clean"]
    assert figures["held_by"] is figures["unfinished_requests"] is None
    for place in (job / "bloom", job / "bloom" / "0.bloom"):
        assert run(job.parent, "info", place, "--json").json["items"] == 3
    with ScalableBloomFilter.open(job / "bloom") as bloom_filter:
        bloom_filter.update(str(n) for n in range(50_000))
        bits = 8 * bloom_filter.nbytes / len(bloom_filter)
    grown = run(job.parent, "info", "job")
    assert grown.fields["memory"].endswith(f" ({bits:.1f} bits a request)")
    assert grown.lines[-1].split()[:2] == ["4", "32,000"]
    assert max(result.width, grown.width) <= 80


def test_running_job_is_inspected_and_left_alone(run, job):
    """A filter that a process holds is counted as it is now, and goes on unharmed; one that was not
    closed and that nobody holds was killed."""
    with ScalableBloomFilter.open(job / "bloom") as bloom_filter:
        bloom_filter.update(str(n) for n in range(1000))
        before = (job / "bloom" / "0.bloom").read_bytes()
        figures = run(job, "info", job, "--json").json
        text = run(job, "info", job)
        seen = run(job, "check", job, SEEN[0])
        sound = run(job, "verify", job)
        assert (job / "bloom" / "0.bloom").read_bytes() == before
        shutil.copytree(job / "bloom", job.parent / "killed" / "bloom")
        assert bloom_filter.add("another") is False
    assert figures["held_by"] == os.getpid()
    assert figures["clean"] is figures["items_exact"] is False
    assert figures["items"] == pytest.approx(1003, rel=0.02)
    assert f"process {os.getpid()} uses it now" in text.fields["closed"]
    assert text.fields["requests"] == f"about {figures['items']:,}"
    assert (seen.status, sound.status, "not closed" in sound.out) == (0, 0, True)
    assert "NOT cleanly" in run(job.parent, "info", "killed").fields["closed"]
    assert run(job.parent, "info", "killed", "--json").json["held_by"] is None


def test_check_answers_through_the_jobs_fingerprinter(run, job):
    """Equal pages are recognised however their URL is written, new ones give status 1; and what it
    cannot read is named."""
    result = run(job, "check", job, "http://example.com/a?y=2&x=1#top", SEEN[2])
    assert (result.status, [line[:4] for line in result.lines]) == (0, ["seen", "seen"])
    result = run(job, "check", job, *SEEN, "http://example.com/new")
    assert (result.status, result.lines[-1]) == (1, "new  http://example.com/new")
    lines = f"{SEEN[0]}\n".encode() + b"http://example.com/\xff\n"
    assert "'nonsense' has no fingerprint" in run(job, "check", job, "nonsense").refusal
    assert "'http://example.com/\\xff' has" in run(job, "check", job, "-", stdin=lines).refusal
    cut_off = gzip.compress(lines)[:-10]
    assert "no whole gzip file" in run(job, "check", job, "-", stdin=cut_off).refusal


@pytest.mark.parametrize("packed", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_check_reads_a_list_on_standard_input(run, job, packed):
    """Plain or compressed, with whatever an editor has put at its start, and empty lines."""
    for mark in (b"", b"\xef\xbb\xbf"):
        lines = packed(mark + "\r\n\n".join(SEEN).encode())
        result = run(job, "check", job, "-", "--json", stdin=lines)
        assert (result.status, result.json) == (0, [{"url": url, "seen": True} for url in SEEN])


def test_check_knows_methods_and_bodies(run, tmp_path):
    """A POST is another request than a GET, and so is another body."""
    request = Request("http://example.com/form", method="POST", body="q=1")
    with ScalableBloomFilter(100, 1e-6, tmp_path / "bloom") as bloom_filter:
        bloom_filter.add(fingerprint(request))
    for options, status in (("POST --body q=1", 0), ("POST --body q=2", 1), ("GET", 1)):
        words = ["check", tmp_path, request.url, "--method", *options.split()]
        assert run(tmp_path, *words).status == status


def test_verify_finds_damage_and_changes_nothing(run, job):
    """A sound filter is said to be; a damaged one has the page and status 2, and what is no filter
    is named."""
    assert "can be trusted" in run(job, "verify", job).out
    assert run(job, "verify", job, "--json").json["trusted"] is True
    path = job / "bloom" / "0.bloom"
    damaged = bytearray(path.read_bytes())
    damaged[100] ^= 1
    path.write_bytes(damaged)
    result = run(job, "verify", job, "--json")
    assert (result.status, result.json["trusted"]) == (2, False)
    assert "damaged header" in result.out
    assert "cannot be trusted" in result.error
    assert path.read_bytes() == damaged
    (job / "text.bloom").write_text("not a filter at all")
    for subcommand in ("info", "verify"):
        result = run(job, subcommand, "text.bloom")
        assert result.status == 2
        assert "is not a filter file" in result.error + result.out
