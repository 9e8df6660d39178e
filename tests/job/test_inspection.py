"""What is in a job's durable queue, without opening it for use."""

import shutil
import sqlite3

import pytest

from scrapy_bloom import RequestFileError
from scrapy_bloom.sqlite_backend.status import unfinished_requests
from tests.stored import Stored


def contents(folder):
    """Everything in a folder, byte for byte."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_unfinished_requests_are_counted(tmp_path):
    """In a durable queue at rest, in use, and after a kill; nothing is changed."""
    assert unfinished_requests(tmp_path) is None
    path = tmp_path / "requests.sqlite"
    job = Stored(path)
    for _ in range(7):
        job.put()
    job.file.commit()
    assert unfinished_requests(tmp_path) == 7
    killed = tmp_path / "killed"
    killed.mkdir()
    for each in tmp_path.glob("requests.sqlite*"):
        shutil.copy(each, killed)
    job.file.close(clean=True)
    before = contents(tmp_path)
    assert unfinished_requests(tmp_path) == 7
    assert contents(tmp_path) == before
    data = (killed / "requests.sqlite").read_bytes()
    assert unfinished_requests(killed) == 7
    assert (killed / "requests.sqlite").read_bytes() == data
    path.write_bytes(b"SQLite format 3\0" + bytes(200))
    with pytest.raises((RequestFileError, sqlite3.Error)):
        unfinished_requests(tmp_path)
