"""Looking at filters, making and changing them: info, check, verify, add, merge, clear."""

import gzip
import os
import shutil
from contextlib import nullcontext

import pytest
from scrapy import Request

from scrapy_bloom import FilterLockedError, JobDirectoryError, ScalableBloomFilter
from scrapy_bloom.bloom.file import BitStore
from scrapy_bloom.commands import filters
from scrapy_bloom.jobdir import JobDirectory
from scrapy_bloom.migration import sources
from tests.commands.command_line import SEEN, URLS, files_in, on_terminal
from tests.fakes import raising


def test_info_says_what_is_there(run, job):
    """All that an issue of a filter is about, in text and JSON. Bits an item are told of a filter
    that has its items, not of a nearly empty one."""
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
    assert (figures["items"], figures["bits"], figures["clean"]) == (3, 8 * figures["bytes"], True)
    assert figures["held_by"] is figures["unfinished_requests"] is None
    with ScalableBloomFilter.open(job / "bloom") as bloom_filter:
        bloom_filter.update(str(n) for n in range(50_000))
        bits = 8 * bloom_filter.nbytes / len(bloom_filter)
    grown = run(job.parent, "info", "job")
    assert grown.fields["memory"].endswith(f" ({bits:.1f} bits a request)")
    assert grown.lines[-1].split()[:2] == ["4", "32,000"]
    assert grown.lines[-6].split()[:4] == ["layer", "capacity", "items", "memory"]
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
    """However a URL is written its page is known, a new one gives status 1; bad ones are named."""
    result = run(job, "check", job, "http://example.com/a?y=2&x=1#top", SEEN[2])
    assert (result.status, [line[:4] for line in result.lines]) == (0, ["seen", "seen"])
    result = run(job, "check", job, *SEEN, "http://example.com/new")
    assert (result.status, result.lines[-1]) == (1, "new  http://example.com/new")
    for option in (["--method", "POST"], ["--body", "q=1"]):  # make other requests
        assert run(job, "check", job, SEEN[0], *option).status == 1
    assert run(job, "check", job, SEEN[0], "--method", "GET", "--body", "").status == 0
    lines = f"{SEEN[0]}\n".encode() + b"http://example.com/\xff\n"
    assert "'nonsense' has no fingerprint" in run(job, "check", job, "nonsense").refusal
    assert "'http://example.com/\\xff' has" in run(job, "check", job, "-", stdin=lines).refusal
    cut_off = gzip.compress(lines)[:-10]
    assert "no whole gzip file" in run(job, "check", job, "-", stdin=cut_off).refusal


@pytest.fixture
def urls(tmp_path):
    """A list of URLs, and the words that add it to a job."""
    (tmp_path / "urls.txt").write_text("\n".join(SEEN))
    return "add", "job", "urls.txt"


def test_held_filter_is_not_changed(run, job):
    """Adding to a filter in use, removing it, making one in a used job: each names the holder."""
    used = f"in use by process {os.getpid()}"
    with ScalableBloomFilter.open(job / "bloom"):
        for arguments in (["add", job, "../urls.txt"], ["clear", job, "--yes"]):
            assert used in run(job, *arguments).refusal
    (job / "bloom").rename(job.parent / "moved")
    with JobDirectory(job).locked():
        assert f"job is {used}" in run(job.parent, "add", "job", "urls.txt").refusal
    assert not (job / "bloom").exists()


def test_a_filter_is_made_while_no_other_can_begin(run, tmp_path, urls, watch):
    """A crawl that is about to make its filter, or to import one, is not forestalled."""
    job = JobDirectory(tmp_path / "job")
    made = []

    def look(_header, path):
        with pytest.raises(FilterLockedError, match="job is in use"), job.locked():
            pass
        made.append(path.name)

    watch(BitStore, "create", look)
    assert run(tmp_path, *urls).status == 0
    assert made == ["0.bloom"]
    assert [path.name for path in job.path.iterdir() if path.name != "bloom.lock"] == ["bloom"]


def test_add_reads_lists_and_reports_what_it_skips(run, job):
    """Compressed lists, repeated runs, and lines that are no URLs."""
    folder = job.parent
    parts = [gzip.compress(f"{url}\n".encode()) for url in SEEN]
    (folder / "list.gz").write_bytes(b"".join(parts))  # as `cat` makes it
    assert "0 added, 3 were known" in run(folder, "add", "job", "list.gz").out
    first = run(job, "add", job, URLS, "--json").json
    assert first["files"][0]["added"] == first["items"] - 3
    assert first["files"][0]["added"] + first["files"][0]["known"] == 20_000
    again = run(job, "add", job, URLS, "--json").json
    assert (again["items"], again["files"][0]["added"]) == (first["items"], 0)
    listed = folder / "list.txt"
    listed.write_bytes(b"http://example.com/new\n\nnonsense\nhttp://\xff\xfe/\r\n")
    result = run(job, "add", job, listed)
    assert (result.status, "1 added" in result.out) == (0, True)
    assert "2 lines skipped, the first is line 3, b'nonsense'" in result.out
    # what is no list is told in brief
    listed.write_text("x" * 1_000_000)
    assert len(run(folder, "add", "job", listed).refusal) < 500
    assert len(run(folder, "check", "job", "x" * 100_000).refusal) < 500


def test_new_filter_has_room_for_all_that_comes(run, tmp_path, urls):
    """It is made for what is imported, from all files, unless more is asked for."""
    for wanted, made in (("1000", 20_003), ("30k", 30_000)):
        result = run(tmp_path, "add", made, URLS, "urls.txt", "--capacity", wanted)
        assert f"made a filter for {made:,} in {made}/bloom" in result.out
        info = run(tmp_path, "info", made, "--json").json
        assert (info["capacity"], len(info["layers"])) == (made, 1)


def test_add_refuses_what_it_cannot_take(run, job):
    """Missing files, directories, a server without a key, and another fingerprinter: a filter full
    of fingerprints that its crawl does not make would know nothing. Nothing is made or changed."""
    before = files_in(job.parent)
    other = "--set=REQUEST_FINGERPRINTER_CLASS=scrapy_bloom.ScrapyRedisFingerprinter"
    for words, message in (
        (["missing.txt"], "missing.txt is not a file"),
        ([job], "is not a file"),
        (["redis://:hush@127.0.0.1:1/0"], "needs --key"),
        (["../urls.txt", other], "run it in the job's project"),
    ):
        assert message in run(job, "add", job, *words).refusal
    for place, option, message in (
        (".", "--capacity=1e15", "cannot allocate"),
        ("new/in/new", "--error-rate=0", "--error-rate is 0.0"),
        ("urls.txt/job", "--json", "Not a directory"),
    ):
        assert message in run(job.parent, "add", place, "urls.txt", option).refusal
    assert files_in(job.parent) == before


def test_add_imports_what_scrapy_has_seen(run, tmp_path, urls, make_dupefilter):
    """As the command that a refused crawl names: what a killed job had pending is in it, too, is in
    no queue and will not be fetched, which a line says. A filter of other URLs would keep a crawl
    from importing it, so the job's own must be named."""
    job = JobDirectory(tmp_path / "job")
    job.path.mkdir(parents=True, exist_ok=True)
    job.seen_file.write_bytes(b"\0\x14" + b"x" * 20)
    shutil.copy(job.seen_file, tmp_path / "copy")
    for files in (["urls.txt"], ["urls.txt", "copy"]):
        refusal = run(tmp_path, "add", "job", *files).refusal
        assert "scrapy bloom add job job/requests.seen" in refusal
    with pytest.raises(JobDirectoryError, match="was not stopped cleanly") as refused:
        make_dupefilter(JOBDIR=job.path)
    assert [path.name for path in job.path.iterdir()] == ["requests.seen"]
    command = str(refused.value).partition("all the same: scrapy bloom ")[2].split()
    result = run(tmp_path, *command, "urls.txt", "--json")
    assert result.json["items"] == 4
    assert "job was not stopped cleanly (there is no " in result.error
    assert "that will not be fetched" in result.error
    assert run(tmp_path, "add", "job", "copy").error == ""
    assert make_dupefilter(JOBDIR=job.path).request_seen(Request(SEEN[0]))


WHOLE = gzip.compress("\n".join(f"http://example.com/{n}" for n in range(999)).encode())
NO_GZIP = "list is no whole gzip file"
UNUSABLE = {
    "empty": (b"", "list holds no URL (it is empty)"),
    "blank": (b"\n\n  \n", "list holds no URL (there are empty lines only)"),
    "words": (b"nonsense\n", "list holds no URL (line 1, b'nonsense'"),
    "UTF-16": ("http://example.com/\n".encode("utf-16"), "list holds no URL (line 1, b'"),
    "compressed": (gzip.compress(b"\nnonsense"), "list holds no URL (line 2, b'nonsense'"),
    "cut off": (WHOLE[: len(WHOLE) // 2], NO_GZIP),
    "cut off in its head": (WHOLE[:2], NO_GZIP),
    "cut off in its foot": (WHOLE[:-3], NO_GZIP),
    "no deflate": (WHOLE[:10] + b"\xff" + WHOLE[11:], NO_GZIP),
    "another checksum": (WHOLE[:-8] + b"1234" + WHOLE[-4:], NO_GZIP),
    "garbage behind it": (WHOLE + b"garbage", NO_GZIP),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_a_list_that_is_none_is_refused(run, tmp_path, urls, kind):
    """One line says what is in it; no filter is made, nor anything compared, whatever comes."""
    data, what = UNUSABLE[kind]
    (tmp_path / "list").write_bytes(data)
    for files in (["list"], ["urls.txt", "list"]):
        assert what in run(tmp_path, "add", "job", *files).refusal
        assert not (tmp_path / "job").exists()
        compared = run(tmp_path, "compare", *files)
        assert what.partition(" (")[0] in compared.refusal
        assert not compared.out


def test_interrupted_add_is_run_again(run, tmp_path, monkeypatch):
    """Ctrl-C leaves a sound filter that knows a part, and the next run adds the rest."""
    (tmp_path / "urls.txt").write_text("".join(f"http://example.com/{n}\n" for n in range(999)))
    monkeypatch.setattr(sources, "_BATCH_BYTES", 5000)
    with monkeypatch.context() as patch:
        patch.setattr(filters, "progress", lambda *_: nullcontext(raising(KeyboardInterrupt)))
        refusal = run(tmp_path, "add", "job", "urls.txt").refusal
        assert refusal == "interrupted; run it again to finish"
    part = run(tmp_path, "info", "job", "--json").json
    assert part["clean"]
    assert 0 < part["items"] < 999
    (result,) = run(tmp_path, "add", "job", "urls.txt", "--json").json["files"]
    assert (result["known"], result["added"]) == (part["items"], 999 - part["items"])
    assert run(tmp_path, "verify", "job").status == 0


def test_progress_is_shown_on_a_terminal_only(run, tmp_path, urls):
    """With tqdm installed, a bar on a terminal; never in a file."""
    pytest.importorskip("tqdm")
    status, shown = on_terminal(tmp_path, *urls)
    assert (status, b"%" in shown) == (0, True)
    assert run(tmp_path, *urls).error == ""


def test_merge_joins_what_has_gone_separate_ways(run, job):
    """Copies of one filter get back together; what does not fit is refused, and nothing changes."""
    folder, counts, path = job.parent, {"left": 500, "right": 1800}, job / "bloom" / "0.bloom"
    for name, count in counts.items():
        shutil.copytree(job, folder / name)
        with ScalableBloomFilter.open(folder / name / "bloom") as bloom_filter:
            bloom_filter.update(f"{name}{n}" for n in range(count))
    before = path.read_bytes()
    assert "was made for 2,000" in run(folder, "merge", "job", *counts).refusal
    assert path.read_bytes() == before
    result = run(folder, "merge", "job", *counts, "--over-capacity", "--json").json
    assert (result["items_before"], result["items"]) == (3, pytest.approx(2303, rel=0.02))
    with ScalableBloomFilter.open(job / "bloom") as bloom_filter:
        bloom_filter.check()
        assert all(f"{name}{n}" in bloom_filter for name in counts for n in range(counts[name]))


def test_clear_removes_the_filter_only(run, job):
    """It asks for --yes, and leaves what else is in the job."""
    (job / "requests.seen").write_bytes(b"")
    assert "--yes" in run(job, "clear", job).refusal
    result = run(job, "clear", job, "--yes")
    assert (result.status, "0.bloom" in result.out) == (0, True)
    assert "still holds requests.seen" in result.out
    assert [path.name for path in job.iterdir()] == ["requests.seen"]
    (job.parent / "foreign.bloom").write_text("mine")
    assert "is not a filter file" in run(job.parent, "clear", "foreign.bloom", "--yes").refusal
    assert (job.parent / "foreign.bloom").exists()


def test_a_filter_with_exact_tables(run, tmp_path):
    """No URL is taken for a seen one at an error rate of 0.5, and its table is told; merge refuses
    it, and damage of the table is not trusted."""
    exact = ["-s", "BLOOM_EXACT=True", "-s", "BLOOM_ERROR_RATE=0.5"]
    made = run(tmp_path, "add", "job", URLS, *exact, "-s", "BLOOM_CAPACITY=10000").out
    assert "made an exact filter for 20,000 in job/bloom" in made
    assert "19,999 added, 1 were known" in made
    fields, path = run(tmp_path, "info", "job").fields, tmp_path / "job" / "bloom" / "0.bloom"
    assert fields["exact table"].endswith("of the files (9.6 bytes a request)")
    assert fields["pages lost"] == "none so far, probably"
    figures = run(tmp_path, "info", "job", "--json").json
    assert figures["file_bytes"] == path.stat().st_size
    assert figures["file_bytes"] == figures["bytes"] + figures["table_bytes"] + 2 * 4096
    assert figures["expected_pages_lost"] < 1e-10
    sound = run(tmp_path, "verify", "job").out
    assert ("exact table agree on" in sound, "can be trusted" in sound) == (True, True)
    assert run(tmp_path, "verify", "job", "--json").json["trusted"] is True
    absent = [f"http://absent.example/{number}" for number in range(300)]
    assert {line[:4] for line in run(tmp_path, "check", "job", *absent).lines} == {"new "}
    (tmp_path / "urls.txt").write_text("\n".join(absent))
    run(tmp_path, "add", "plain", "urls.txt", "--error-rate", "0.5")
    content = path.read_bytes()
    shutil.copytree(tmp_path / "job", tmp_path / "copy")
    for other in ("plain", "copy"):
        refusal = run(tmp_path, "merge", "job", other).refusal
        assert f"{other}/bloom does not fit job/bloom: exact filters cannot be" in refusal
    assert "scrapy bloom add" in refusal
    path.write_bytes(content[:-4096] + bytes(4096))
    result = run(tmp_path, "verify", "job", "--json")
    assert (result.status, result.json["trusted"]) == (2, False)
    assert "8 buckets in its exact table that chance does not explain" in result.out
    assert "job cannot be trusted" in result.error
