"""Jobs of `tests.job.rounds`, for the modules that ask for them."""

import os
import shutil

import pytest

from tests.job.mutants import MUTANTS
from tests.job.rounds import RoundJob


@pytest.fixture
def make_round(tmp_path):
    """Return a function that makes and opens a RoundJob, by default in one folder."""
    made = []

    def make(folder=tmp_path / "job", **options):
        made.append(RoundJob(folder, **options))
        return made[-1].open()

    yield make
    for job in made:
        job.drop()


@pytest.fixture
def crash_round(tmp_path, make_round):
    """Return a function that opens what a killed process would leave of the job now."""

    def crash(**options):
        copy = tmp_path / f"copy{len(list(tmp_path.glob('copy*')))}"
        shutil.copytree(tmp_path / "job", copy)
        return make_round(copy, **options)

    return crash


if "DURABLE_MUTANT" in os.environ:
    MUTANTS[os.environ["DURABLE_MUTANT"]]()
