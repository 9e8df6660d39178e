"""Which job directories count as stopped cleanly, for every queue class of Scrapy."""

import json
import os
import shutil
import time

import pytest
from scrapy import squeues

from scrapy_bloom.jobdir import JobDirectory
from scrapy_bloom.migration.scrapy_job import why_unclean
from tests.crawl.engine import STOCK, Job

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
        if (file := self.job.scheduler.df.file) is not None:
            file.flush()
        copy = self.folder.with_name("copy")
        shutil.copytree(self.folder, copy)
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
    "push": lambda job: job.push(1),
    "push new priority": lambda job: job.push(1, priority=5),
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
    state.write_text("[]")
    assert "requests.seen" in why_unclean(job)
    seen.touch()
    assert why_unclean(job) is None
    later = state.stat().st_mtime + 1.5
    os.utime(seen, (later, later))
    assert "was written to after" in why_unclean(job)
