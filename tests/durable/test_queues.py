"""The file of requests by itself: groups of rows, commits, and what a crash leaves."""

import os
import sqlite3
from contextlib import closing

import pytest

from scrapy_bloom.durable.request_file import POPPED_IN_MEMORY, RequestFile, check_header
from scrapy_bloom.errors import RequestFileError

GROUP = ("slot", 0, 0)
OTHER = ("slot", 0, 1)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "requests.sqlite"


@pytest.fixture
def open_file(path):
    """Return a function that opens the file, after letting go of the last one."""
    opened = []

    def open_file():
        for file in opened:
            file._connection.close()
        opened.append(RequestFile.open(path))
        return opened[-1]

    yield open_file
    for file in opened:
        file._connection.close()


def pushed(file, *contents, group=GROUP):
    for content in contents:
        file.push(group, "pickle", content)


def popped(file, group=GROUP, newest=True, count=1):
    return [file.pop(group, newest=newest)[2] for _ in range(count)]


@pytest.mark.parametrize(
    ("newest", "expected"), [(True, [b"c", b"b", b"a"]), (False, [b"a", b"b", b"c"])]
)
def test_both_orders(open_file, newest, expected):
    """A group is served from its newest or its oldest row, whatever was committed."""
    file = open_file()
    pushed(file, b"a", b"b")
    file.commit()
    pushed(file, b"c")
    pushed(file, b"x", group=OTHER)
    assert popped(file, newest=newest, count=3) == expected


def test_nothing_is_stored_before_the_commit_and_all_after(open_file):
    """A group of operations is there as a whole, or not at all."""
    file = open_file()
    pushed(file, b"a")
    file.commit()
    pushed(file, b"b")
    file.delete(file.pop(GROUP, newest=False)[0])
    file.write()
    file = open_file()
    assert file.counts == {GROUP: 1}
    assert popped(file) == [b"a"]


def test_popped_rows_come_back_until_they_are_deleted(open_file):
    """Also those that were too many to be kept in mind."""
    file = open_file()
    count = POPPED_IN_MEMORY * 2
    pushed(file, *(b"%d" % n for n in range(count)))
    file.commit()
    row, *_ = file.pop(GROUP, newest=True)
    popped(file, count=count - 1)
    file.delete(row)
    file.commit()
    file = open_file()
    assert file.counts == {GROUP: count - 1}
    assert popped(file, count=count - 1) == [b"%d" % n for n in reversed(range(count - 1))]


def test_a_missing_row_is_an_error(open_file):
    """A queue that has more requests than its group has rows does not go on."""
    file = open_file()
    with pytest.raises(sqlite3.DatabaseError, match="missing"):
        file.pop(GROUP, newest=True)


def test_the_clean_mark(open_file):
    """It is set by a clean close alone."""
    file = open_file()
    assert file.clean
    file = open_file()
    assert not file.clean
    file.close(clean=True)
    assert open_file().clean


def test_fingerprints_of_the_last_commit_are_kept(open_file):
    """The filter may not have got them when the process died."""
    file = open_file()
    pushed(file, b"a")
    file.commit([b"\0\1", b"\xff"])
    assert open_file().unreleased == [b"\0\1", b"\xff"]


def test_rolling_back(open_file):
    """What was not committed is gone, also what SQLite had already."""
    file = open_file()
    pushed(file, b"a")
    file.commit()
    pushed(file, b"b")
    file.write()
    pushed(file, b"c")
    file.rollback()
    assert open_file().counts == {GROUP: 1}


def test_other_programs_can_read_while_the_job_runs(open_file, path):
    """They see what is committed, and hold nobody up."""
    file = open_file()
    pushed(file, b"a")
    file.commit()
    with closing(sqlite3.connect(path)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT slot, request FROM requests").fetchall() == [("slot", b"a")]
        pushed(file, b"b")
        file.commit()
        assert len(reader.execute("SELECT * FROM requests").fetchall()) == 1
        reader.execute("COMMIT")
        assert len(reader.execute("SELECT * FROM requests").fetchall()) == 2


def test_a_locked_file_is_refused(open_file, path, monkeypatch):
    """After a while, with the reason."""
    monkeypatch.setattr("scrapy_bloom.durable.request_file.BUSY_SECONDS", 0.05)
    open_file().close(clean=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(RequestFileError, match="locked"):
            open_file()
        other.execute("ROLLBACK")
    assert open_file().counts == {}


def test_leftovers_of_a_killed_start_are_removed(open_file, path):
    """A new file gets its name when it is whole; what is older than that goes."""
    path.with_name("requests.sqlite.tmp").write_bytes(b"half")
    path.with_name("requests.sqlite.tmp-journal").write_bytes(b"half")
    assert not check_header(path)
    open_file()
    assert check_header(path)
    assert list(path.parent.glob("*.tmp*")) == []


def test_it_is_durable_by_its_settings(open_file):
    """Write-ahead log, and an fsync at each commit."""
    connection = open_file()._connection
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
