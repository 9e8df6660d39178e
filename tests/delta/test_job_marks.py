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
    """Return a function that fetches a page in the job, the first of some, while the delta store
    takes marks or fails. It returns how many marks the job began with, and the store has then."""

    def crawl(*names, fails=False):
        job = make()
        job.engine.scheduler = job.scheduler
        store = FileDeltaStore(tmp_path / "memory", Lifetime())
        if fails:
            store.add = raising(OSError("the disk is full"))
        delta = DeltaCrawl(job.crawler, DeltaSettings(mode="success", name="memory"), store)
        found = len([*delta.marks])
        if len(names) > 1:
            job.scheduler.round.begin()
        job.pushed(*names)
        request = job.pop()
        delta.pages.begin(request).is_complete = True
        job.done(request)
        job.commit()
        job.close("shutdown" if len(job.scheduler) else "finished")
        delta.stopped()
        store.look()
        return found, store.count

    return crawl


def test_marks_stay_in_the_job_until_the_store_has_taken_them(crawl):
    """Those of two rounds, of which neither the end nor the next start could add them."""
    assert crawl("one", fails=True) == (0, 0)
    assert crawl("two", fails=True) == (1, 0)
    assert crawl("three") == (0, 3)
    assert crawl("four") == (0, 4)


def test_marks_stay_in_the_job_while_the_round_goes_on(crawl):
    """Though the store has them: the round does not skip its own pages, also when it is resumed."""
    assert crawl("one", "left") == (0, 1)
    assert crawl() == (1, 2)
