"""Which job directories count as stopped cleanly, for every queue class of Scrapy."""

import json
import os
import shutil
import time

import pytest
from scrapy import Request, Spider
from scrapy.core.scheduler import Scheduler
from scrapy.utils.misc import build_from_crawler
from scrapy.utils.test import get_crawler

from scrapy_bloom.jobdir import JobDirectory
from scrapy_bloom.migration.scrapy_job import why_unclean

QUEUES = ["PickleFifoDiskQueue", "PickleLifoDiskQueue", "PickleLifoSQLiteQueue"]
QUEUES = [name for name in QUEUES if hasattr(__import__("scrapy.squeues").squeues, name)]
PRIORITY_QUEUES = ["ScrapyPriorityQueue", "DownloaderAwarePriorityQueue"]


class Downloader:
    def __init__(self):
        self.slots = {}

    def get_slot_key(self, request):
        return request.url.split("/")[2]


class Job:
    """A job directory, with Scrapy's scheduler and dupefilter as a crawl uses them."""

    def __init__(self, folder, queue, priority_queue):
        self.folder = folder
        self.settings = {
            "JOBDIR": str(folder),
            "SCHEDULER_DISK_QUEUE": f"scrapy.squeues.{queue}",
            "SCHEDULER_PRIORITY_QUEUE": f"scrapy.pqueues.{priority_queue}",
            "CONCURRENT_REQUESTS_PER_IP": 0,
            "DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter",
        }
        self.number = 0
        self.verdicts = []

    def start(self):
        """Start a run; what BloomDupeFilter would have found is noted just before."""
        self.tick()
        self.verdicts.append(why_unclean(JobDirectory(self.folder)))
        crawler = get_crawler(Spider, self.settings)
        crawler.engine = type("Engine", (), {"downloader": Downloader()})()
        crawler.spider = crawler._create_spider("spider")
        self.scheduler = build_from_crawler(Scheduler, crawler)
        self.scheduler.open(crawler.spider)
        self.tick()

    def push(self, count, **arguments):
        """Schedule new requests."""
        for _ in range(count):
            self.number += 1
            host = f"{'ab'[self.number % 2]}.example"
            request = Request(f"http://{host}/{self.number}", **arguments)
            assert self.scheduler.enqueue_request(request)

    def pop(self, count):
        """Take requests out of the queue."""
        for _ in range(count):
            assert self.scheduler.next_request()

    def kill(self):
        """End the run as SIGKILL does: what was written stays, nothing is closed."""
        if self.scheduler.df.file:
            self.scheduler.df.file.flush()
        copy = self.folder.with_name("copy")
        shutil.copytree(self.folder, copy)
        self.stop()
        shutil.rmtree(self.folder)
        # copytree keeps the times of files and directories
        copy.rename(self.folder)

    def stop(self):
        """End the run cleanly."""
        self.scheduler.close("shutdown")
        self.tick()

    def resumed(self, count, starts=0):
        """Begin the run after one that has left so many requests, and so many start requests."""
        self.start()
        self.push(count)
        self.push(starts, meta={"is_start_request": True})
        self.stop()
        self.start()

    def tick(self):
        """Let the clock of the file system go on, as it does between two processes."""
        time.sleep(0.03)

    @property
    def why(self):
        return why_unclean(JobDirectory(self.folder))


@pytest.fixture(params=[(q, p) for q in QUEUES for p in PRIORITY_QUEUES], ids="-".join)
def job(request, tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    return Job(folder, *request.param)


def test_clean_stops_are_recognised(job):
    """With pending requests and without, after one run and after several."""
    job.start()
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
    assert job.verdicts[1:] == [None, None]


def test_kill_in_the_first_run_is_recognised(job):
    """Nothing says that it was stopped."""
    job.start()
    job.push(5)
    job.kill()
    assert "active.json" in job.why


WORK = {
    "pop all": lambda job: job.pop(6),
    "pop and push": lambda job: [job.pop(2), job.push(4)],
    "push": lambda job: job.push(1),
    "push new priority": lambda job: job.push(1, priority=5),
    # what cannot be serialized leaves no trace in the queues, but in requests.seen
    "keep in memory": lambda job: [time.sleep(1.1), job.push(3, callback=lambda response: None)],
}


@pytest.mark.parametrize("work", WORK)
def test_kill_in_a_later_run_is_recognised(job, work):
    """Whatever the run had done that a crash makes pages lose, it shows."""
    job.resumed(6)
    WORK[work](job)
    job.kill()
    assert job.why


def test_start_requests_hide_nothing(job):
    """A queue of start requests that is left does not stand in for the one that is gone."""
    job.resumed(2, starts=2)
    job.pop(2)
    job.kill()
    assert job.why


def test_looking_too_late_errs_on_the_safe_side(job):
    """When the scheduler has opened its queues, the job may only look worse."""
    job.resumed(4)
    job.kill()
    assert job.why is None or "newer" in job.why


@pytest.mark.parametrize("content", ["", "{", "null", "7", '["x"]', '{"a": 1}', "[[1]]"])
def test_damaged_state_counts_as_unclean(tmp_path, content):
    """Whatever stands in active.json, the answer is a reason and no exception."""
    (tmp_path / "requests.seen").touch()
    (tmp_path / "requests.queue").mkdir()
    (tmp_path / "requests.queue" / "active.json").write_text(content)
    assert why_unclean(JobDirectory(tmp_path))


def test_reasons_name_the_file(tmp_path):
    """The user can look for himself."""
    assert str(tmp_path / "requests.queue" / "active.json") in why_unclean(JobDirectory(tmp_path))
    queue = tmp_path / "requests.queue"
    queue.mkdir()
    (queue / "active.json").write_text(json.dumps([0]))
    assert str(queue / "0") in why_unclean(JobDirectory(tmp_path))
    (queue / "active.json").write_text("[]")
    assert "requests.seen" in why_unclean(JobDirectory(tmp_path))
    (tmp_path / "requests.seen").touch()
    assert why_unclean(JobDirectory(tmp_path)) is None
    later = (queue / "active.json").stat().st_mtime + 1.5
    os.utime(tmp_path / "requests.seen", (later, later))
    assert "was written to after" in why_unclean(JobDirectory(tmp_path))
