"""Marks of a job: from its `requests.sqlite` to the delta store, at its end or its next start."""

import os

import pytest

from scrapy_bloom.delta.crawl import DeltaCrawl
from scrapy_bloom.delta.file_store import FileDeltaStore
from scrapy_bloom.delta.settings import DeltaSettings, Lifetime
from tests.crawl.conftest import make, opened  # noqa: F401 - fixtures
from tests.fakes import raising

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a job needs Linux or macOS")


@pytest.fixture
def crawl(tmp_path, make):  # noqa: F811
    """Return a function that fetches a page in the job; the delta store takes marks or fails."""

    def crawl(name, *, fails=False):
        job = make()
        job.engine.scheduler = job.scheduler
        store = FileDeltaStore(tmp_path / "memory", Lifetime())
        if fails:
            store.add = raising(OSError("the disk is full"))
        delta = DeltaCrawl(job.crawler, DeltaSettings("success", "memory"), store)
        job.push(name)
        request = job.pop()
        delta.pages.begin(request).is_complete = True
        job.done(request)
        job.commit()
        job.close()
        delta.stopped()
        store.look()
        return store.count

    return crawl


def test_marks_stay_in_the_job_until_the_store_has_taken_them(crawl):
    """Those of two rounds, of which neither the end nor the next start could add them."""
    assert crawl("one", fails=True) == 0
    assert crawl("two", fails=True) == 0
    assert crawl("three") == 3
