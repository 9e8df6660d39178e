"""Which jobs of Scrapy count as stopped cleanly; and their filters, made whole or not at all."""

import json
import os
import shutil
import sys
import time
from hashlib import sha1
from pathlib import Path
from signal import SIGKILL

import pytest
from scrapy import squeues

from scrapy_bloom import ScalableBloomFilter
from scrapy_bloom.bloom.file import BitStore
from scrapy_bloom.jobdir import JobDirectory
from scrapy_bloom.migration.scrapy_job import import_job, why_unclean
from scrapy_bloom.migration.sources import SeenFile
from scrapy_bloom.settings import BloomSettings
from tests.crawl.engine import STOCK, Job
from tests.migration.test_sources import binary
from tests.world.runner import fork

QUEUES = ["PickleFifoDiskQueue", "PickleLifoDiskQueue", "PickleLifoSQLiteQueue"]
QUEUES = [name for name in QUEUES if hasattr(squeues, name)]
PRIORITY_QUEUES = ["ScrapyPriorityQueue", "DownloaderAwarePriorityQueue"]


class StockJob:
    """A job directory, with Scrapy's scheduler and dupefilter as a crawl uses them."""

    def __init__(self, folder, queue, priority_queue):
        self.folder, self.number = folder, 0
        self.settings = {
            "DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter",
            "SCHEDULER_DISK_QUEUE": f"scrapy.squeues.{queue}",
            "SCHEDULER_PRIORITY_QUEUE": f"scrapy.pqueues.{priority_queue}",
        }

    def start(self):
        """Start a run, while the clock of the file system goes on, as between two processes."""
        time.sleep(0.03)
        self.job = Job(self.folder, STOCK, **self.settings).open()
        time.sleep(0.03)

    def push(self, count, meta=None, **options):
        """Schedule new requests, in two slots."""
        for _ in range(count):
            self.number += 1
            meta = {**(meta or {}), "download_slot": "ab"[self.number % 2]}
            assert self.job.push(str(self.number), meta=meta, **options)

    def pop(self, count):
        """Take requests out of the queue."""
        for _ in range(count):
            assert self.job.pop()

    def kill(self):
        """End the run as SIGKILL does: nothing is closed, what was written stays as it is."""
        self.job.scheduler.df.file.flush()
        copy = shutil.copytree(self.folder, self.folder.with_name("copy"))
        self.job.close("shutdown")
        shutil.rmtree(self.folder)
        copy.rename(self.folder)

    @property
    def why(self):
        return why_unclean(JobDirectory(self.folder))


@pytest.fixture(params=[(q, p) for q in QUEUES for p in PRIORITY_QUEUES], ids="-".join)
def job(request, tmp_path):
    """A job in its first run."""
    (tmp_path / "job").mkdir()
    job = StockJob(tmp_path / "job", *request.param)
    job.start()
    return job


def test_clean_stops_are_recognised(job):
    """With pending requests and without, after one run and after several."""
    for priority in (2, -1, 0):
        job.push(5)
        job.push(3, priority=priority)
        job.push(2, {"is_start_request": True})
        job.pop(4 if priority else len(job.job.scheduler))
        job.job.close("shutdown")
        assert job.why is None
        job.start()
    job.job.close("shutdown")


WORK = {
    "pop all": lambda job: job.pop(6),
    "pop and push": lambda job: [job.pop(2), job.push(4)],
    "push new priority": lambda job: job.push(1, priority=5),
    # the three above show in the queues of queuelib, too, in a copy that has other times
    "push": lambda job: job.push(1),
    # what cannot be serialized leaves no trace in the queues, but in requests.seen
    "keep in memory": lambda job: [time.sleep(1.1), job.push(3, callback=lambda response: None)],
    # those that are left do not stand in for the others
    "leave start requests": lambda job: job.pop(4),
}


@pytest.mark.parametrize("work", [None, *WORK])
def test_a_kill_is_recognised(job, work):
    """In the first run nothing says that it was stopped. In a later one it shows, whatever it had
    done that a crash makes pages lose; a look at its open queues may find it worse at most."""
    are_left = work == "leave start requests"
    job.push(4 if are_left else 6)
    job.push(2 if are_left else 0, {"is_start_request": True})
    if work:
        job.job.close("shutdown")
        job.start()
        assert job.why is None or "newer" in job.why
        WORK[work](job)
    job.kill()
    assert job.why
    assert work or "active.json" in job.why
    if work in [*WORK][:3] and "SQLite" not in job.settings["SCHEDULER_DISK_QUEUE"]:
        (job.folder / "requests.queue" / "active.json").touch()  # the last one of `cp -r`
        assert job.why


@pytest.mark.parametrize("content", ["", "{", "null", "7", '["x"]', '{"a": 1}', "[[1]]"])
def test_damaged_state_counts_as_unclean(tmp_path, content):
    """Whatever stands in active.json, the answer is a reason and no exception."""
    (tmp_path / "requests.seen").touch()
    (tmp_path / "requests.queue").mkdir()
    (tmp_path / "requests.queue" / "active.json").write_text(content)
    assert why_unclean(JobDirectory(tmp_path))


def test_reasons_name_the_file(tmp_path):
    """The user can look for himself."""
    job, queue = JobDirectory(tmp_path), tmp_path / "requests.queue"
    state, seen = queue / "active.json", tmp_path / "requests.seen"
    assert str(state) in why_unclean(job)
    queue.mkdir()
    state.write_text(json.dumps([0]))
    assert str(queue / "0") in why_unclean(job)
    (chunk := queue / "0" / "q00001").parent.mkdir()
    chunk.touch()
    for head, wrong in ([1, 1], chunk), ([0, 0], chunk), ([1, 0], seen):
        chunk.with_name("info.json").write_text(json.dumps({"head": head}))
        state.write_text("[]")
        assert f"{wrong}" in why_unclean(job)
    seen.touch()
    assert why_unclean(job) is None
    later = state.stat().st_mtime + 1.5
    os.utime(chunk, (later, later))
    assert f"{chunk} is newer" in why_unclean(job)
    os.utime(chunk, (0, 0))
    os.utime(seen, (later, later))
    assert "was written to after" in why_unclean(job)


FINGERPRINTS = [sha1(str(n).encode()).digest() for n in range(3000)]
SETTINGS = BloomSettings(capacity=100, error_rate=1e-9)


@pytest.fixture
def seen(tmp_path):
    """A job of Scrapy's dupefilter, stopped cleanly, with a record that was torn."""
    job = JobDirectory(tmp_path / "job")
    job.path.mkdir(parents=True, exist_ok=True)
    job.seen_file.write_bytes(binary(FINGERPRINTS) + b"\0\x14torn")
    job.scrapy_queue.mkdir()
    (job.scrapy_queue / "active.json").write_text("{}")
    return job


def test_job_gets_its_filter_whole_or_not_at_all(seen, monkeypatch):
    """An import that dies leaves none behind, and the next one starts afresh."""
    monkeypatch.setattr("scrapy_bloom.migration.sources._BATCH", 1000)
    batches = SeenFile.batches

    def dying(self):
        yield next(batches(self))
        raise KeyboardInterrupt

    monkeypatch.setattr(SeenFile, "batches", dying)
    with pytest.raises(KeyboardInterrupt):
        import_job(seen, SETTINGS, "me")
    assert not seen.filter.exists()
    monkeypatch.setattr(SeenFile, "batches", batches)
    line = import_job(seen, SETTINGS, "me")
    assert "Imported 3,000 requests" in line
    assert "(1 torn record left out)" in line
    assert ((seen.path / "bloom.importing").exists(), seen.seen_file.exists()) == (False, True)
    with ScalableBloomFilter.open(seen.filter) as bloom_filter:
        assert (len(bloom_filter.layers), bloom_filter.identity) == (1, "me")
        assert all(each in bloom_filter for each in FINGERPRINTS)
        bloom_filter.check()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")
@pytest.mark.parametrize("made", ["the import", "a filter"])
def test_an_import_that_is_killed_before_its_first_layer_is_run_again(seen, monkeypatch, made):
    """The directory without a layer goes."""

    def begin():
        monkeypatch.setattr(BitStore, "create", lambda *_: os.kill(os.getpid(), SIGKILL))
        if made == "a filter":
            ScalableBloomFilter(100, 1e-9, seen.filter, identity="me")
        import_job(seen, SETTINGS, "me")

    os.waitpid(fork(begin, seen.path.with_name("log")), 0)
    left = seen.filter if made == "a filter" else (seen.path / "bloom.importing")
    assert [*left.iterdir()] == []
    assert "Imported 3,000 requests" in import_job(seen, SETTINGS, "me")
    assert ((seen.path / "bloom.importing").exists(), seen.seen_file.exists()) == (False, True)


def test_an_imported_filter_is_whole_when_it_has_its_name(seen, watch):
    """A kill right then leaves a job that was stopped cleanly, whose filter knows all; and after a
    power cut the directory has that name."""
    left, synced = seen.path.with_name("left"), []

    def note(descriptor):
        is_job = os.path.samestat(os.fstat(descriptor), seen.path.stat())
        synced.append(is_job and seen.filter.exists())

    watch(Path, "rename", after=lambda *_: shutil.copytree(seen.path, left))
    watch(os, "fsync", note)
    import_job(seen, SETTINGS, "me")
    assert synced[-1]
    with ScalableBloomFilter.open(left / "bloom") as found:
        assert (found.clean, len(found)) == (True, 3000)
