"""Making and changing filters: add, merge, clear."""

import fcntl
import gzip
import os
import shutil
import signal
import struct
import subprocess
import termios

import pytest

from scrapy_bloom import BloomFilter, FilterLockedError, ScalableBloomFilter
from scrapy_bloom.bloom.file import BitStore
from scrapy_bloom.jobdir import JobDirectory
from tests.commands.command_line import SEEN, URLS, begun
from tests.patience import PATIENCE

pytestmark = pytest.mark.skipif(os.name != "posix", reason="filter files need Linux or macOS")


def test_held_filter_is_not_changed(run, job):
    """Adding to a filter that is in use, or removing it, is refused with the holder."""
    with ScalableBloomFilter.open(job / "bloom"):
        for arguments in (["add", job, job.parent / "urls.txt"], ["clear", job, "--yes"]):
            assert f"in use by process {os.getpid()}" in run(job, *arguments).refusal
    assert (job / "bloom" / "0.bloom").exists()


def test_job_in_use_gets_no_filter(run, tmp_path, monkeypatch):
    """A crawl that is about to make its filter, or to import one, is not forestalled."""
    (tmp_path / "urls.txt").write_text("\n".join(SEEN))
    job = JobDirectory(tmp_path / "job")
    job.make()
    with job.locked():
        refusal = run(tmp_path, "add", "job", "urls.txt").refusal
        assert f"job is in use by process {os.getpid()}" in refusal
        assert not job.filter.exists()
    create, made = BitStore.create, []

    def watched(header, path):
        with pytest.raises(FilterLockedError, match="job is in use"), job.locked():
            pass
        made.append(path.name)
        return create(header, path)

    monkeypatch.setattr(BitStore, "create", watched)
    assert run(tmp_path, "add", "job", "urls.txt").status == 0
    assert made == ["0.bloom"]
    assert [path.name for path in job.path.iterdir() if path.name != "bloom.lock"] == ["bloom"]


def test_add_reads_lists_and_reports_what_it_skips(run, job):
    """Compressed lists, repeated runs and lines that are no URLs."""
    parts = [gzip.compress(f"{url}\n".encode()) for url in SEEN]
    (job.parent / "list.gz").write_bytes(b"".join(parts))  # as `cat` makes it
    assert "0 added, 3 were known" in run(job.parent, "add", "job", "list.gz").out
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


def test_what_is_no_list_is_told_in_brief(run, job):
    """One line that can be read, however long those of the file are."""
    (job.parent / "page.html").write_text("x" * 1_000_000)
    assert len(run(job.parent, "add", "job", "page.html").refusal) < 500
    assert len(run(job.parent, "check", "job", "x" * 100_000).refusal) < 500


def test_new_filter_has_room_for_all_that_comes(run, tmp_path):
    """It is made for what is imported, from all files, unless more is asked for."""
    (tmp_path / "urls.txt").write_text("\n".join(SEEN))
    for wanted, made in (("1000", 20_003), ("30k", 30_000)):
        result = run(tmp_path, "add", made, URLS, "urls.txt", "--capacity", wanted)
        assert f"made a filter for {made:,} in {made}/bloom" in result.out
        info = run(tmp_path, "info", made, "--json").json
        assert (info["capacity"], len(info["layers"])) == (made, 1)


def test_add_refuses_what_it_cannot_read(run, job):
    """Missing files, directories and a server without a key."""
    assert "missing.txt is not a file" in run(job, "add", job, "missing.txt").refusal
    assert "is not a file" in run(job, "add", job, job).refusal
    assert "needs --key" in run(job, "add", job, "redis://:hush@127.0.0.1:1/0").refusal


def test_add_warns_of_what_scrapy_has_lost(run, tmp_path):
    """What a killed job had pending is in it, too, which is in no queue and will not be fetched."""
    job = JobDirectory(tmp_path / "job")
    job.make()
    job.seen_file.write_bytes(b"\0\x14" + b"x" * 20)
    result = run(tmp_path, "add", "job", "job/requests.seen")
    assert result.status == 0
    assert "job was not stopped cleanly (there is no " in result.error
    assert "that will not be fetched" in result.error
    shutil.copy(job.seen_file, tmp_path / "copy")
    assert run(tmp_path, "add", "job", "copy").error == ""


def test_add_refuses_another_fingerprinter(run, job):
    """A filter full of fingerprints that its crawl does not make would know nothing."""
    before = (job / "bloom" / "0.bloom").read_bytes()
    option = "--set=REQUEST_FINGERPRINTER_CLASS=scrapy_bloom.ScrapyRedisFingerprinter"
    refusal = run(job.parent, "add", "job", "urls.txt", option).refusal
    assert "run it in the job's project" in refusal
    assert (job / "bloom" / "0.bloom").read_bytes() == before


def test_add_takes_a_list_with_a_byte_order_mark(run, job):
    """The first URL of a list is the same request whatever the editor has put before it."""
    listed = job.parent / "list.txt"
    for mark in (b"\xef\xbb\xbf", b""):
        listed.write_bytes(mark + "\n".join(SEEN).encode())
        assert "0 added, 3 were known" in run(job, "add", job, listed).out
    listed.write_bytes(listed.read_bytes() + b"\n\xef\xbb\xbf" + SEEN[0].encode())
    assert "0 added, 4 were known" in run(job, "add", job, listed).out


WITHOUT_A_URL = {
    "empty": (b"", "it is empty"),
    "blank": (b"\n\n  \n", "empty lines only"),
    "words": (b"nonsense\n", "line 1, b'nonsense'"),
    "bytes": (bytes(range(128, 256)), "line 1, b'"),
    "UTF-16": ("http://example.com/\n".encode("utf-16"), "line 1, b'"),
    "compressed nothing": (gzip.compress(b""), "it is empty"),
    "compressed words": (gzip.compress(b"\nnonsense"), "line 2, b'nonsense'"),
}


@pytest.mark.parametrize("kind", WITHOUT_A_URL)
def test_add_refuses_a_list_without_a_url(run, tmp_path, kind):
    """One line says what is in it, and no filter is made, whatever else was to be imported."""
    data, what = WITHOUT_A_URL[kind]
    (tmp_path / "list").write_bytes(data)
    (tmp_path / "urls.txt").write_text("\n".join(SEEN))
    for files in (["list"], ["urls.txt", "list"]):
        refusal = run(tmp_path, "add", "job", *files).refusal
        assert "list holds no URL" in refusal
        assert what in refusal
        assert not (tmp_path / "job").exists()


DAMAGES = {
    "cut off": lambda data: data[: len(data) // 2],
    "cut off in its head": lambda data: data[:2],
    "cut off in its foot": lambda data: data[:-3],
    "no deflate": lambda data: data[:10] + b"\xff" + data[11:],
    "a bit flipped": lambda data: data[:100] + bytes([data[100] ^ 8]) + data[101:],
    "another checksum": lambda data: data[:-8] + b"1234" + data[-4:],
    "garbage behind it": lambda data: data + b"garbage",
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("command", [["add", "job"], ["compare"]], ids=["add", "compare"])
def test_damaged_gzip_gets_one_line(run, tmp_path, command, damage):
    """Whatever is wrong with it, it is named, and nothing is made of its first half."""
    whole = gzip.compress("\n".join(f"http://example.com/{n}" for n in range(999)).encode())
    (tmp_path / "list.gz").write_bytes(DAMAGES[damage](whole))
    assert "list.gz is no whole gzip file" in run(tmp_path, *command, "list.gz").refusal
    assert not (tmp_path / "job").exists()


def test_empty_requests_seen_is_imported(run, tmp_path):
    """The command that a refused crawl names works also if nothing had been seen."""
    (tmp_path / "requests.seen").touch()
    result = run(tmp_path, "add", ".", "requests.seen")
    assert result.status == 0
    assert "0 added, 0 were known" in result.out


def test_own_requests_seen_of_a_job_is_not_forgotten(run, tmp_path):
    """A filter of other URLs would keep a crawl from importing it, so it must be named."""
    seen = tmp_path / "job" / "requests.seen"
    seen.parent.mkdir()
    seen.write_bytes(b"\0\x14" + b"x" * 20)
    (tmp_path / "urls.txt").write_text("\n".join(SEEN))
    refusal = run(tmp_path, "add", "job", "urls.txt").refusal
    assert "scrapy bloom add job job/requests.seen" in refusal
    assert [path.name for path in seen.parent.iterdir()] == ["requests.seen"]
    result = run(tmp_path, "add", "job", "urls.txt", "job/requests.seen", "--json")
    assert result.json["items"] == 4


def test_filters_that_cannot_be_are_refused(run, tmp_path):
    """Too many keys, an error rate out of range, a place below a file."""
    (tmp_path / "urls.txt").write_text("\n".join(SEEN))
    arguments = ["add", "job", "urls.txt"]
    assert "cannot allocate" in run(tmp_path, *arguments, "--capacity", "1e15").refusal
    assert "1e300" in run(tmp_path, *arguments, "--capacity", "1e300").refusal
    assert "error_rate is 2.0" in run(tmp_path, *arguments, "--error-rate", "2").refusal
    assert "Not a directory" in run(tmp_path, "add", "urls.txt/job", "urls.txt").refusal


STOPPING = """
import sys, time
from contextlib import nullcontext
from scrapy_bloom.commands import filters, main

def show(*_):
    print("in the middle", flush=True)
    while True: time.sleep(0.1)  # a signal just before a sleep does not end that one

filters.progress = lambda *_: nullcontext(show)
sys.exit(main())
"""


def test_interrupted_add_is_run_again(run, tmp_path):
    """Ctrl-C leaves a sound filter that knows a part, and the next run adds the rest."""
    urls = tmp_path / "urls.txt"
    urls.write_text("".join(f"http://example.com/p?b={n}&a={n}\n" for n in range(60_000)))
    with begun(tmp_path, "add", "job", "urls.txt", before=["-c", STOPPING]) as process:
        while process.stdout.readline() != "in the middle\n":
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        error = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 2
    assert error == "python -m scrapy_bloom add: error: interrupted; run it again to finish\n"
    part = run(tmp_path, "info", "job", "--json").json
    assert part["clean"]
    assert 0 < part["items"] < 60_000
    result = run(tmp_path, "add", "job", "urls.txt", "--json").json
    assert result["files"][0]["known"] >= part["items"]
    assert result["files"][0]["added"] + result["files"][0]["known"] == 60_000
    assert run(tmp_path, "verify", "job").status == 0


def test_progress_is_shown_on_a_terminal_only(run, tmp_path):
    """With tqdm installed, a bar on a terminal; never in a file."""
    pytest.importorskip("tqdm")
    import pty

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    options = {"stdout": subprocess.DEVNULL, "stderr": follower}
    process = begun(tmp_path, "add", "job", str(URLS), **options)
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
    assert process.wait(PATIENCE) == 0
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
