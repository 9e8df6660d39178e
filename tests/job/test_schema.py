"""Opening `requests.sqlite`: what is not of this version, or not sound, is left as it is."""

import os
import shutil
import signal
import sqlite3
import sys
from contextlib import closing
from itertools import count

import pytest
from scrapy_bloom.sqlite_backend.failed_store import OpenFailedStore

from scrapy_bloom.errors import RequestFileError
from scrapy_bloom.job.failed_request import FailedRequest
from scrapy_bloom.sqlite_backend.job_file import RequestFile
from tests.job.engine import query
from tests.job.harness import fork
from tests.job.points import Points

pytestmark = pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS")
forks = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")


def contents(path):
    """Return the tables and all rows of a file, of which this makes a copy."""
    folder = path.parent.with_name(f"{path.parent.name}.read")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(path.parent, folder)
    with closing(sqlite3.connect(folder / path.name)) as connection:
        found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for (name,) in found}


def open_in_a_process(path, points):
    """Return how a process has ended that opened a file: 7 if that was refused."""

    def open_file():
        points.lay()
        try:
            RequestFile.open(path)
        except RequestFileError:
            os._exit(7)

    _, status = os.waitpid(fork(open_file, path.parent.with_suffix(".log")), 0)
    return os.waitstatus_to_exitcode(status)


@pytest.fixture
def made(tmp_path):
    """The folder of a killed job, with a pending request, and one that could not be read back."""
    path = tmp_path / "made" / "requests.sqlite"
    path.parent.mkdir()

    def crawl():
        file = RequestFile.open(path)
        file.push(("x", 0, 0), b"pending")
        file.push(("x", 0, 0), b"popped")
        file.commit()
        file.pop(("x", 0, 0), newest=True)
        OpenFailedStore(file).add(2, b"popped", FailedRequest.unreadable("url", "GET", "KeyError"))
        file.execute("INSERT INTO unreadable VALUES (2, 1)")
        file.delete(2)
        file.commit()
        os._exit(9)

    os.waitpid(fork(crawl, path.parent.with_suffix(".log")), 0)
    return path.parent


@pytest.fixture
def copy(made, tmp_path):
    """Return a function that makes a fresh copy of it."""

    def make():
        shutil.rmtree(tmp_path / "old", ignore_errors=True)
        return shutil.copytree(made, tmp_path / "old") / "requests.sqlite"

    return make


@forks
def test_a_kill_while_a_job_is_opened_loses_nothing(copy):
    """After each call on database and files: the next opening has it all."""
    for number in count(1):
        path = copy()
        status = open_in_a_process(path, Points(None, number, "after"))
        file = RequestFile.open(path)
        assert sorted(file.query("SELECT request FROM requests")) == [(b"pending",), (b"popped",)]
        assert file.query("SELECT * FROM failed") == []
        file.close(clean=True)
        if status == 0:
            break
        assert status == -signal.SIGKILL
    assert number > 3


@forks
@pytest.mark.parametrize("always", [False, True])
def test_an_opening_that_fails_leaves_the_file_as_it_was(copy, always):
    """Wherever a call fails, once or from then on, the start is refused."""
    before = contents(copy())
    error = sqlite3.OperationalError("disk I/O error")
    for number in count(1):
        path = copy()
        status = open_in_a_process(path, Points(None, number, error, always=always))
        if status == 0:
            break
        assert status == 7
        assert contents(path) == before
    assert number > 3


@pytest.mark.parametrize(
    "change",
    [
        "CREATE TABLE set_aside (id INTEGER)",
        "DROP INDEX popped",
        "ALTER TABLE job ADD COLUMN more",
        "DELETE FROM job",
        "UPDATE job SET unreleased = 'x'",
        "PRAGMA user_version = 0",
        "PRAGMA user_version = 2",
        "PRAGMA user_version = 4",
    ],
)
def test_a_file_that_is_not_sound_is_left_as_it_was(tmp_path, change):
    """What is wrong, or another version, is found before anything is written."""
    path = tmp_path / "requests.sqlite"
    RequestFile.open(path).close(clean=True)
    query(path, change)
    before = path.read_bytes()
    version = change.partition("user_version = ")[2]
    expected = f"version {version}, and this scrapy-bloom reads version 1" if version else "left as"
    with pytest.raises(RequestFileError, match=expected):
        RequestFile.open(path)
    assert path.read_bytes() == before


def test_statistics_of_sqlite_are_no_tables_of_ours(tmp_path):
    """Whoever has run ANALYZE on a job has done it no harm."""
    path = tmp_path / "requests.sqlite"
    RequestFile.open(path).close(clean=True)
    query(path, "ANALYZE")
    RequestFile.open(path).close(clean=True)
    RequestFile.open(path).close(clean=True)
