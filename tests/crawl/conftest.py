"""Jobs of `tests.crawl.engine` and `tests.crawl.rounds`, for the modules that ask for them."""

import shutil

import pytest

from tests.crawl.engine import Job
from tests.crawl.rounds import RoundJob


@pytest.fixture
def opened():
    """Return a function that opens a job, which is dropped in the end, or before one `alone`."""
    made = []

    def open_job(job, *start, alone=False, later=False):
        for other in made if alone else ():
            other.drop()
        made.append(job)
        return job if later else job.open(*start)

    yield open_job
    for job in made:
        job.drop()


def making(kind, **how):
    """Return a fixture: a function that makes and opens such a job, by default in one folder."""

    @pytest.fixture
    def make(tmp_path, opened):
        return lambda folder=tmp_path / "job", **options: opened(kind(folder, **options), **how)

    return make


make, make_round = making(Job), making(RoundJob)
new_job = making(Job, alone=True)


@pytest.fixture
def job(make_round):
    """A RoundJob in its first run."""
    return make_round()


def killed(folder):
    """Return a copy of the job in a folder, as a process that is killed now would leave it."""
    copy = folder / f"copy{len(list(folder.glob('copy*')))}"
    return shutil.copytree(folder / "job", copy)


@pytest.fixture
def crash(tmp_path, make):
    """Return a function that opens what a killed process would leave of the job now."""
    return lambda **options: make(killed(tmp_path), **options)


@pytest.fixture
def crash_round(tmp_path, make_round):
    """The same for a RoundJob."""
    return lambda **options: make_round(killed(tmp_path), **options)
