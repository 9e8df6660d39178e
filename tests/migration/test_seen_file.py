"""Scrapy's requests.seen, in both formats, whole and torn."""

import random

import pytest
from scrapy.dupefilters import RFPDupeFilter
from scrapy.http import Request
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.test import get_crawler

from scrapy_bloom import JobDirectoryError
from scrapy_bloom.migration.sources import SeenFile, form_of_seen


def binary(fingerprints):
    return b"".join(len(each).to_bytes(2, "big") + each for each in fingerprints)


def text(fingerprints):
    return b"".join(each.hex().encode() + b"\n" for each in fingerprints)


FORMATS = [binary, text]


def digests(count, seed=0):
    chance = random.Random(seed)
    return [chance.randbytes(20) for _ in range(count)]


def read(path, data):
    """Return what is read from a file with that content, and how much was skipped."""
    path.write_bytes(data)
    assert form_of_seen(path)
    seen = SeenFile(path)
    found, position = [], 0
    for batch, done in seen.batches():
        found += batch
        assert position <= done <= len(data)
        position = done
    assert position == len(data)
    assert seen.keys >= len(found)
    return found, seen.skipped


@pytest.mark.parametrize("written", FORMATS)
@pytest.mark.parametrize("count", [1, 2, 19_999, 20_000, 45_000])
def test_whole_file_is_read_in_order(tmp_path, written, count):
    """Whatever the batches, and the capacity that it asks for is exact."""
    fingerprints = digests(count)
    assert read(tmp_path / "requests.seen", written(fingerprints)) == (fingerprints, 0)
    assert SeenFile(tmp_path / "requests.seen").keys == count


def test_file_of_the_installed_scrapy_is_read(tmp_path):
    """What RFPDupeFilter has written is what is read."""
    crawler = get_crawler(settings_dict={"JOBDIR": str(tmp_path)})
    requests = [Request(f"http://example.com/{n}") for n in range(300)]
    dupefilter = RFPDupeFilter.from_crawler(crawler)
    dupefilter.open()
    for request in requests:
        assert not dupefilter.request_seen(request)
    dupefilter.close("finished")
    fingerprinter = RequestFingerprinter.from_crawler(crawler)
    found, skipped = read(tmp_path / "requests.seen", (tmp_path / "requests.seen").read_bytes())
    assert found == [fingerprinter.fingerprint(request) for request in requests]
    assert skipped == 0


def test_file_of_both_formats_is_read(tmp_path):
    """A job that was resumed after the upgrade to Scrapy 2.19 has lines, then records."""
    old, new = digests(50_000), digests(30_000, 1)
    assert read(tmp_path / "seen", text(old) + binary(new)) == (old + new, 0)
    assert SeenFile(tmp_path / "seen").keys == 80_000
    torn = text(old)[:-7]
    assert read(tmp_path / "seen", torn + binary(new)) == (old[:-1] + new, 1)


@pytest.mark.parametrize("written", FORMATS)
def test_torn_tail_costs_its_own_record_only(tmp_path, written):
    """Cut after any byte, the whole records are read and the rest is reported."""
    fingerprints = digests(4)
    data = written(fingerprints)
    size = len(data) // 4
    for cut in range(size + 1, len(data)):
        whole, rest = divmod(cut, size)
        found, skipped = read(tmp_path / "seen", data[:cut])
        # a last line that lacks nothing but its line end is whole
        complete = whole + (written is text and rest == size - 1)
        assert (found, skipped) == (fingerprints[:complete], complete == whole and rest > 0)


@pytest.mark.parametrize("torn", range(1, 22))
@pytest.mark.parametrize("whole", [400, 500], ids=["end of batch", "in batch"])
def test_lines_behind_a_torn_one_are_found(tmp_path, monkeypatch, torn, whole):
    """An unclean stop tears a line and the next run writes behind it: all others are read."""
    monkeypatch.setattr("scrapy_bloom.migration.sources._BATCH", 200)
    before, after = digests(whole), digests(500, 1)
    found, skipped = read(tmp_path / "seen", text(before)[:-torn] + text(after))
    assert skipped == 1
    assert found == before[:-1] + after


@pytest.mark.parametrize("torn", range(1, 22))
def test_what_is_behind_a_torn_record_is_left_out(tmp_path, torn):
    """Where Scrapy misreads the rest: one key at most is none of its fingerprints."""
    before, after = digests(400), digests(500, 1)
    found, skipped = read(tmp_path / "seen", binary(before)[:-torn] + binary(after))
    assert found[:399] == before[:399]
    assert len(found) <= 400
    assert 499 <= skipped <= 501


def test_fingerprints_of_any_length_are_read(tmp_path):
    """A fingerprinter of one's own may give other and unequal lengths."""
    fingerprints = [b"x" * (1 + n % 64) for n in range(1000)]
    assert read(tmp_path / "seen", binary(fingerprints)) == (fingerprints, 0)
    assert read(tmp_path / "seen", binary([b"x" * 65])) == ([], 1)
    fingerprints = [bytes([n % 256]) * 16 for n in range(1000)]
    assert read(tmp_path / "seen", text(fingerprints)) == (fingerprints, 0)


def test_empty_file_has_no_fingerprints(tmp_path):
    """A job that was stopped before its first request."""
    assert read(tmp_path / "seen", b"") == ([], 0)


@pytest.mark.parametrize("data", [b"http://example.com/\n", b"\0\0\0\0", b"\x89BLOOM", b"abc\n"])
def test_other_files_are_refused(tmp_path, data):
    """What begins like no fingerprint is no requests.seen."""
    path = tmp_path / "seen"
    path.write_bytes(data)
    assert not form_of_seen(path)
    with pytest.raises(JobDirectoryError, match=r"seen is no requests\.seen"):
        SeenFile(path)
