"""Which job directories count as stopped cleanly, for every queue class of Scrapy."""

import json
import os
import shutil
import time

import pytest
from scrapy import Request, Spider, squeues
from scrapy.core.scheduler import Scheduler
from scrapy.utils.misc import build_from_crawler
from scrapy.utils.test import get_crawler

from scrapy_bloom.jobdir import JobDirectory
from scrapy_bloom.migration.scrapy_job import why_unclean
from tests.fakes import Engine

QUEUES = ["PickleFifoDiskQueue", "PickleLifoDiskQueue", "PickleLifoSQLiteQueue"]
QUEUES = [name for name in QUEUES if hasattr(squeues, name)]
PRIORITY_QUEUES = ["ScrapyPriorityQueue", "DownloaderAwarePriorityQueue"]


class Job:
    """A job directory, with Scrapy's scheduler and dupefilter as a crawl uses them."""

    def __init__(self, folder, queue, priority_queue):
        self.folder, self.number, self.scheduler = folder, 0, None
        self.settings = {
            "JOBDIR": str(folder),
            "SCHEDULER_DISK_QUEUE": f"scrapy.squeues.{queue}",
            "SCHEDULER_PRIORITY_QUEUE": f"scrapy.pqueues.{priority_queue}",
            "CONCURRENT_REQUESTS_PER_IP": 0,
            "DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter",
        }

    def start(self):
        """Start a run, while the clock of the file system goes on, as between two processes."""
        time.sleep(0.03)
        crawler = get_crawler(Spider, self.settings)
        crawler.engine = Engine()
        crawler.engine.downloader.get_slot_key = lambda request: request.url.split("/")[2]
        crawler.spider = crawler._create_spider("spider")
        self.scheduler = build_from_crawler(Scheduler, crawler)
        self.scheduler.open(crawler.spider)
        time.sleep(0.03)

    def push(self, count, **arguments):
        """Schedule new requests."""
        for _ in range(count):
            self.number += 1
            url = f"http://{'ab'[self.number % 2]}.example/{self.number}"
            assert self.scheduler.enqueue_request(Request(url, **arguments))

    def pop(self, count):
        """Take requests out of the queue."""
        for _ in range(count):
            assert self.scheduler.next_request()

    def kill(self):
        """End the run as SIGKILL does: nothing is closed, what was written stays as it is."""
        if self.scheduler.df.file:
            self.scheduler.df.file.flush()
        copy = self.folder.with_name("copy")
        shutil.copytree(self.folder, copy)
        self.stop()
        shutil.rmtree(self.folder)
        copy.rename(self.folder)

    def stop(self):
        """End the run cleanly."""
        self.scheduler.close("shutdown")
        time.sleep(0.03)

    @property
    def why(self):
        return why_unclean(JobDirectory(self.folder))


@pytest.fixture(params=[(q, p) for q in QUEUES for p in PRIORITY_QUEUES], ids="-".join)
def job(request, tmp_path):
    """A job in its first run."""
    (tmp_path / "job").mkdir()
    job = Job(tmp_path / "job", *request.param)
    job.start()
    return job


def test_clean_stops_are_recognised(job):
    """With pending requests and without, after one run and after several."""
    job.push(5)
    job.push(3, priority=2)
    job.push(2, meta={"is_start_request": True})
    job.pop(4)
    job.stop()
    assert job.why is None
    job.start()
    job.pop(3)
    job.push(7, priority=-1)
    job.stop()
    assert job.why is None
    job.start()
    job.pop(len(job.scheduler))
    job.stop()
    assert job.why is None


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
    job.push(2 if are_left else 0, meta={"is_start_request": True})
    if work:
        job.stop()
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
