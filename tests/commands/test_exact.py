"""The subcommands and filters with exact tables."""

import os
import shutil

import pytest

from scrapy_bloom import ScalableBloomFilter
from tests.commands.command_line import SEEN, URLS

EXACT = ["-s", "BLOOM_EXACT=True", "-s", "BLOOM_ERROR_RATE=0.5", "-s", "BLOOM_CAPACITY=2000"]

pytestmark = pytest.mark.skipif(os.name != "posix", reason="filter files need Linux or macOS")


@pytest.fixture
def job(run, tmp_path):
    """A job directory whose exact filter knows 20,000 URLs, two of which are one page."""
    result = run(tmp_path, "add", "job", URLS, *EXACT, "--capacity", "10k")
    assert "made an exact filter for 20,000 in job/bloom" in result.out
    assert "19,999 added, 1 were known" in result.out
    return tmp_path / "job"


def test_what_is_told_of_it(run, job):
    """Its table, in bytes, its items, which are exact, and no page lost; verify reads it."""
    fields = run(job, "info", job).fields
    assert fields["exact table"].endswith("of the files (9.6 bytes a request)")
    assert fields["pages lost"] == "none so far, probably"
    figures = run(job, "info", job, "--json").json
    files = sum(path.stat().st_size for path in job.glob("bloom/*.bloom"))
    assert figures["file_bytes"] == files
    assert files == figures["bytes"] + figures["table_bytes"] + 2 * 4096
    assert figures["expected_pages_lost"] < 1e-10
    verified = run(job, "verify", job)
    assert verified.status == 0
    assert "exact table agree on" in verified.out


def test_no_url_is_taken_for_a_seen_one(run, job):
    """Through check and add, at an error rate of 0.5; the filter stays exact."""
    absent = [f"http://absent.example/{number}" for number in range(300)]
    result = run(job, "check", job, *absent)
    assert result.status == 1
    assert all(line.startswith("new ") for line in result.lines)
    (job / "urls.txt").write_text("\n".join([*absent, *SEEN]))
    assert "303 added" in run(job, "add", job, job / "urls.txt").out
    assert run(job, "check", job, *absent, *SEEN).status == 0
    with ScalableBloomFilter.open(job / "bloom", read_only=True) as found:
        assert found.exact


def test_merge_refuses_it(run, job):
    """With the reason and the remedy, whichever of the two has a table; nothing changes."""
    shutil.copytree(job, copy := job.parent / "copy")
    (job / "few.txt").write_text("\n".join(SEEN))
    run(job, "add", plain := job.parent / "plain", job / "few.txt", "--error-rate", "0.5")
    before = (job / "bloom" / "0.bloom").read_bytes()
    for ours, theirs in ((job, copy), (job, plain), (plain, job)):
        refusal = run(job, "merge", ours, theirs).refusal
        assert (
            f"{theirs}/bloom does not fit {ours}/bloom: exact filters cannot be joined" in refusal
        )
        assert "scrapy bloom add" in refusal
    assert (job / "bloom" / "0.bloom").read_bytes() == before


def test_damage_is_not_trusted(run, job):
    """A table that has lost a page; the file is left as it is."""
    path = job / "bloom" / "0.bloom"
    content = path.read_bytes()
    path.write_bytes(content[:-4096] + bytes(4096))
    result = run(job, "verify", job)
    assert result.status == 2
    assert "8 buckets in its exact table that chance does not explain" in result.out
    assert path.read_bytes() == content[:-4096] + bytes(4096)
    assert run(job, "clear", job, "--yes").status == 0
    assert not path.exists()
