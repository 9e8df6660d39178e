"""The file of requests by itself: groups of rows, commits, and what a crash leaves."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from scrapy_bloom.sqlite_backend.failed_store import OpenFailedStore

from scrapy_bloom.errors import RequestFileError
from scrapy_bloom.job.failed_request import FailedRequest
from scrapy_bloom.jobdir import JobDirectory
from scrapy_bloom.sqlite_backend import job_file, schema
from scrapy_bloom.sqlite_backend.job_file import (
    POPPED_IN_MEMORY,
    RequestFile,
    check_header,
    read_identity,
)
from tests.commands.command_line import bloom
from tests.job.engine import query

GROUP = ("slot", 0, 0)
OTHER = ("slot", 0, 1)

pytestmark = pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "requests.sqlite"


@pytest.fixture
def open_file(path):
    """Return a function that opens the file anew, and commits these requests."""
    opened = []

    def open_file(*contents):
        for file in opened:
            file._connection.close()
        opened.append(file := RequestFile.open(path))
        if contents:
            pushed(file, *contents)
            file.commit()
        return file

    yield open_file
    for file in opened:
        file._connection.close()


def pushed(file, *contents, group=GROUP):
    for content in contents:
        file.push(group, content)


def popped(file, group=GROUP, newest=True, count=1):
    return [file.pop(group, newest=newest)[1] for _ in range(count)]


@pytest.mark.parametrize(
    ("newest", "expected"), [(True, [b"c", b"b", b"a"]), (False, [b"a", b"b", b"c"])]
)
def test_both_orders(open_file, newest, expected):
    """A group is served from its newest or its oldest row, whatever was committed."""
    file = open_file(b"a", b"b")
    pushed(file, b"c")
    pushed(file, b"x", group=OTHER)
    assert popped(file, newest=newest, count=3) == expected


def test_nothing_is_stored_before_the_commit_and_all_after(open_file):
    """A group of operations is there as a whole, or not at all."""
    file = open_file(b"a")
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
    file.close(clean=False)
    file = open_file()
    assert not file.clean
    file.close(clean=True)
    assert open_file().clean


def test_a_close_that_leaves_something_out_is_not_clean(open_file):
    """Rows that were not committed are no clean stop, whatever the caller believes."""
    file = open_file()
    pushed(file, b"a")
    file.close(clean=True)
    file = open_file()
    assert (file.clean, file.counts) == (0, {})
    pushed(file, b"a")
    file.commit()
    file.delete(file.pop(GROUP, newest=True)[0])
    file.rollback()
    file.close(clean=True)
    file = open_file()
    assert (file.clean, file.counts) == (0, {GROUP: 1})


def test_a_close_that_fails_is_not_clean(open_file):
    """The file is let go of all the same."""
    file = open_file()
    file._connection.execute("PRAGMA query_only = 1")
    with pytest.raises(sqlite3.OperationalError):
        file.close(clean=True)
    with pytest.raises(sqlite3.ProgrammingError):
        file._connection.execute("SELECT 1")
    assert not open_file().clean


def test_fingerprints_of_the_last_commit_are_kept(open_file):
    """The filter may not have got them when the process died."""
    file = open_file()
    pushed(file, b"a")
    file.commit([b"\0\1", b"\xff"])
    assert open_file().unreleased == [b"\0\1", b"\xff"]


def test_the_stamp_of_queues_that_were_taken_over_is_kept(open_file):
    """Until others are taken over."""
    file = open_file()
    assert file.taken_over == ""
    file.commit(taken_over="now")
    file.commit()
    assert open_file().taken_over == "now"


def test_rolling_back(open_file):
    """What was not committed is gone, also what SQLite had, and comes with no later commit."""
    file = open_file(b"a")
    pushed(file, b"b")
    file.delete(file.pop(GROUP, newest=False)[0])
    file.write()
    pushed(file, b"c")
    file.rollback()
    file.commit()
    assert open_file().counts == {GROUP: 1}


def test_other_programs_can_read_while_the_job_runs(open_file, path):
    """They see what is committed, and hold nobody up."""
    file = open_file(b"a")
    with closing(sqlite3.connect(path)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT slot, request FROM requests").fetchall() == [("slot", b"a")]
        pushed(file, b"b")
        file.commit()
        assert len(reader.execute("SELECT * FROM requests").fetchall()) == 1
        reader.execute("COMMIT")
        assert len(reader.execute("SELECT * FROM requests").fetchall()) == 2


def test_statements_of_others_share_the_commit(open_file):
    """They are durable with the rows that were pushed beside them, or dropped with them."""
    file = open_file()
    file.execute("CREATE TABLE others (number INTEGER)")
    file.commit()
    file.execute("INSERT INTO others VALUES (?)", (1,))
    assert file.changed
    pushed(file, b"a")
    file.rollback()
    count = file._connection.execute("SELECT COUNT(*) FROM others")
    assert count.fetchone() == (0,)


def test_rows_keep_their_order_over_stops(open_file):
    """What is pushed later is newer than all that is stored, what is pushed back is older."""
    file = open_file()

    def push_back(content):
        file.pushing_back = True
        file.push(GROUP, content, newest_first=True)
        file.pushing_back = False

    pushed(file, b"a", b"b", b"deleted")
    push_back(b"old")
    file.delete(file.pop(GROUP, newest=True)[0])
    file.commit()
    file = open_file()
    pushed(file, b"c")
    push_back(b"older")
    file.pushing_back = True
    pushed(file, b"in a queue that has the oldest first")
    assert popped(file, count=6)[1:] == [b"c", b"b", b"a", b"old", b"older"]


@pytest.mark.parametrize("newest", [True, False])
def test_a_pop_costs_the_same_however_much_is_pending(open_file, newest):
    """SQLite takes no more steps for it, in the same queue or in another."""
    file = open_file()

    def steps():
        count = 0

        def step():
            nonlocal count
            count += 1

        file._connection.set_progress_handler(step, 1)
        file.pop(GROUP, newest=newest, keep=True)
        file._connection.set_progress_handler(None, 1)
        return count

    parts = []
    for _ in range(2):
        for _ in range(1000):
            pushed(file, b"a")
            pushed(file, b"b", group=OTHER)
        file.commit()
        parts.append(steps())
    assert parts[0] == parts[1] < 200


def test_an_opening_reads_no_requests(open_file, path):
    """Only the index and the ends of the table: other damaged pages are not noticed."""
    file = open_file(*(b"request %d" % n * 10 for n in range(1000)))
    file.close(clean=True)
    contents = bytearray(path.read_bytes())
    page = contents.index(b"request 555") // 4096
    contents[page * 4096 : (page + 1) * 4096] = b"\xff" * 4096
    path.write_bytes(contents)
    file = open_file()
    assert file.counts == {GROUP: 1000}
    with pytest.raises(sqlite3.DatabaseError):
        file._connection.execute("SELECT request FROM requests").fetchall()


def test_merged_groups_are_one(open_file):
    """Their rows keep their order, and the other columns; one that cannot be moved stays."""
    file = open_file()
    pushed(file, b"a", group=("x", 1, 0))
    pushed(file, b"b", group=("y", 1, 0))
    pushed(file, b"c", b"no request", group=("y", 2, 1))
    file.commit()

    def moved(_row, slot, request):
        return None if b" " in request else request + slot.encode()

    file = open_file()
    file.merge_slots(moved)
    assert file.counts == {("", 1, 0): 2, ("", 2, 1): 1}
    file.merge_starts()
    assert file.counts == {("", 1, 0): 2, ("", 2, 0): 1}
    assert popped(file, ("", 1, 0), count=2) == [b"by", b"ax"]
    file.commit()
    assert open_file().counts == {("", 1, 0): 2, ("", 2, 0): 1, ("y", 2, 0): 1}


# What cannot be read back


def fail_to_read(file):
    """Let the newest row be one that cannot be made a request; return it."""
    row, *_ = file.pop(GROUP, newest=True)
    OpenFailedStore(file).add_unreadable(row, "no callback")
    file.delete(row)
    return row


def test_a_row_that_cannot_be_read_back_has_failed(open_file, path):
    """From the next commit on, for this program and for others."""
    file = open_file(b"a", b"b", b"c")
    fail_to_read(file)
    assert Failed(path.parent).requests() == []
    file.commit()
    (found,) = Failed(path.parent).requests()
    assert (found.reason, found.exception, found.url) == ("unreadable", "no callback", "")
    assert query(path, "SELECT request FROM requests") == [(b"a",), (b"b",)]
    assert popped(file, count=2) == [b"b", b"a"]
    file.close(clean=True)
    assert Failed(path.parent).requests() == [found]


def test_what_cannot_be_read_back_is_pending_again_when_the_file_is_opened(open_file, path):
    """At its place among the others; rows that are pushed then are newer."""
    file = open_file(b"a", b"b")
    fail_to_read(file)
    file.commit()
    file = open_file()
    assert file.counts == {GROUP: 2}
    assert Failed(path.parent).requests() == []
    assert file.query("SELECT * FROM unreadable") == []
    pushed(file, b"c")
    assert popped(file, count=3) == [b"c", b"b", b"a"]


def test_a_crash_or_a_rollback_fails_nothing(open_file, path):
    """The row is where it was before the commit that did not come."""
    file = open_file(b"a")
    fail_to_read(file)
    file = open_file()
    assert file.counts == {GROUP: 1}
    fail_to_read(file)
    file.rollback()
    file.close(clean=False)
    assert Failed(path.parent).requests() == []
    assert open_file().counts == {GROUP: 1}


@pytest.mark.parametrize("is_chosen", [True, False])
def test_a_retry_leaves_its_row_to_what_cannot_be_read_back(open_file, path, is_chosen):
    """Whichever of both comes back first."""
    file = open_file(b"a", b"b")
    row, *_ = file.pop(GROUP, newest=False)
    OpenFailedStore(file).add(
        row, b"a again", FailedRequest("", "GET", "x", None, None, 1, 0, None)
    )
    file.delete(row)
    unread = fail_to_read(file)
    file.commit()
    file.close(clean=True)
    choice = Choice(reasons=["*" if is_chosen else "x"])
    assert Failed(path.parent).retry(choice) == 1 + is_chosen
    file = open_file()
    rows = dict(file.query("SELECT request, id FROM requests"))
    assert {*rows} == {b"a again", b"b"}
    assert rows[b"b"] == unread < rows[b"a again"]


# The file


def test_a_locked_file_is_refused(open_file, path, monkeypatch):
    """After a while, with the reason."""
    monkeypatch.setattr("scrapy_bloom.sqlite_backend.job_file.BUSY_SECONDS", 0.05)
    open_file().close(clean=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(RequestFileError, match="locked"):
            open_file()
        other.execute("ROLLBACK")
    assert open_file().counts == {}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
def test_a_refused_file_is_let_go_of(path, monkeypatch):
    """Nothing of it stays open, also while somebody holds the error."""

    def fail(*_):
        raise sqlite3.OperationalError("disk I/O error")

    RequestFile.open(path).close(clean=True)
    monkeypatch.setattr(job_file, "_set_up", fail)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(RequestFileError, match="disk I/O error") as caught:
        RequestFile.open(path)
    assert os.listdir("/proc/self/fd") == before
    assert caught.value


def test_leftovers_of_a_killed_start_are_removed(open_file, path):
    """A new file gets its name when it is whole; what is older than that goes."""
    path.with_name(".0123456789abcdef.bloom.tmp").write_bytes(b"half")
    path.with_name(".0123456789abcdef.bloom.tmp-journal").write_bytes(b"half")
    assert not check_header(path)
    open_file()
    assert check_header(path)
    assert list(path.parent.glob("*.tmp*")) == []


def build_sqlite_with(monkeypatch, pragma):
    """Let SQLite have another default."""
    connect = sqlite3.connect

    def connect_otherwise(*arguments, **options):
        connection = connect(*arguments, **options)
        connection.execute(f"PRAGMA {pragma}")
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_otherwise)


def test_it_is_durable_by_its_settings(open_file, monkeypatch):
    """Write-ahead log, and an fsync at each commit, whatever SQLite was built to do."""
    build_sqlite_with(monkeypatch, "synchronous = OFF")
    connection = open_file()._connection
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_a_new_file_is_on_the_disk_before_it_has_its_name(open_file, path, monkeypatch):
    """And its name before its contents: a power cut leaves a whole file or none."""
    synced = []
    fsync, rename = os.fsync, Path.rename

    def note(descriptor):
        fsync(descriptor)
        found = os.fstat(descriptor)
        synced.append((found.st_ino, found.st_size))

    def check_and_rename(temporary, target):
        found = temporary.stat()
        assert synced == [(found.st_ino, found.st_size)]
        assert not temporary.with_name(f"{temporary.name}-wal").exists()
        synced.clear()
        return rename(temporary, target)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(Path, "rename", check_and_rename)
    open_file()
    assert [number for number, _ in synced] == [path.parent.stat().st_ino]


@pytest.mark.parametrize("only_in_log", [False, True])
def test_a_later_version_is_refused_by_name(open_file, path, only_in_log, tmp_path):
    """Also where only the log of a killed process tells it; nothing is changed."""
    open_file().close(clean=True)
    later = schema.VERSION + 1
    copy = tmp_path / "copy" / path.name
    copy.parent.mkdir()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {later}")
        if only_in_log:
            for each in path.parent.glob("requests.sqlite*"):
                shutil.copy(each, copy.parent)
    if not only_in_log:
        shutil.copy(path, copy)
        with pytest.raises(RequestFileError, match=f"version {later}"):
            check_header(copy)
    before = {each: each.read_bytes() for each in copy.parent.iterdir()}
    told = f"has version {later}, and .* reads version {schema.VERSION};"
    with pytest.raises(RequestFileError, match=told):
        RequestFile.open(copy)
    for each, contents in before.items():
        assert each.name.endswith("-shm") or each.read_bytes() == contents


def test_a_job_that_was_killed_as_it_began_a_log_opens(open_file, path, tmp_path):
    """The log has its header, and the index is of the one before."""
    file = open_file()
    file.push(GROUP, b"a")
    file.commit()
    log = path.with_name(f"{path.name}-wal").read_bytes()
    file._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    copy = tmp_path / "copy" / path.name
    copy.parent.mkdir()
    for each in path.parent.glob("requests.sqlite*"):
        shutil.copy(each, copy.parent)
    copy.with_name(f"{path.name}-wal").write_bytes(log[:16] + b"new salt" + log[24:32])
    assert read_identity(copy) is not None
    opened = RequestFile.open(copy)
    assert opened.pop(GROUP, newest=False)[1:] == (b"a",)
    opened.close(clean=False)


def test_another_programs_file_is_refused_by_its_id(path):
    """Even if its tables have the names of ours."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        schema.create(connection)
        connection.execute("PRAGMA application_id = 7")
    with pytest.raises(RequestFileError, match=r"another program's \(its id is 0x7\)"):
        RequestFile.open(path)


@pytest.mark.parametrize("secure", ["OFF", "FAST"])
def test_what_is_done_is_gone(open_file, path, monkeypatch, secure):
    """Of a request that is done nothing is left in the file, whatever SQLite was built to do."""
    build_sqlite_with(monkeypatch, f"secure_delete = {secure}")
    file = open_file()
    for number in range(200):
        file.push(("", 0, 0), b"Authorization: secret" + bytes(100 * (number % 30)))
    file.commit()
    for _ in range(200):
        file.delete(file.pop(("", 0, 0), newest=False)[0])
    file.commit()
    file.close(clean=True)
    assert b"Authorization" not in path.read_bytes()


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT x AS id"
IN_VAIN = "FROM n WHERE x > 1"


@pytest.mark.parametrize(
    "statements",
    [
        ["DROP TABLE requests", f"CREATE VIEW requests AS {ENDLESS}, x AS slot {IN_VAIN}"],
        ["DROP TABLE job", f"CREATE VIEW job AS {ENDLESS} {IN_VAIN}"],
        [
            "INSERT INTO failed VALUES (1, '', 0, 0, '', x'', 'u', 'GET', 'r', 0, '', 1, 0, '')",
            "CREATE TRIGGER endless BEFORE DELETE ON failed BEGIN"
            f" SELECT id FROM ({ENDLESS} {IN_VAIN}); END",
        ],
    ],
    ids=["view requests", "view job", "trigger"],
)
def test_commands_do_not_wait_for_a_table_that_is_none(tmp_path, statements):
    """Each meets a view or trigger that never ends with one line."""
    job = tmp_path / "job"
    job.mkdir()
    RequestFile.open(job / "requests.sqlite").close(clean=True)
    with closing(sqlite3.connect(job / "requests.sqlite", isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)
    for arguments in (
        ["top", "job", "--once"],
        ["queue", "count", "job"],
        ["queue", "drop", "job", "--slot", "x", "--yes"],
        ["failed", "job"],
        ["drop", "job", "--yes"],
        ["retry", "job"],
    ):
        assert "its tables are not those of version" in bloom(tmp_path, *arguments).refusal
    assert not JobDirectory(job).has_stored_requests()


@pytest.mark.parametrize("table", ["requests", "later"])
def test_a_row_after_which_none_can_be_numbered_refuses_the_start(open_file, path, table):
    """With the number, and the file stays as it is."""
    file = open_file(b"a")
    file.delay(1.0, GROUP, b"b")
    file.commit()
    file.close(clean=True)
    query(path, f"UPDATE {table} SET id = {2**63 - 1}")
    before = path.read_bytes()
    with pytest.raises(RequestFileError, match=rf"requests\.sqlite.* has the number {2**63 - 1}"):
        RequestFile.open(path)
    assert path.read_bytes() == before


def test_an_index_that_names_a_row_which_is_not_there(open_file, path):
    """The error names the file."""
    open_file(b"a").close(clean=True)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA writable_schema = ON")
        index = connection.execute("SELECT * FROM sqlite_master WHERE name = 'pending'").fetchone()
        connection.execute("DELETE FROM sqlite_master WHERE name = 'pending'")
    query(path, "DELETE FROM requests")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", index)
    with pytest.raises(sqlite3.DatabaseError, match=r"requests\.sqlite: a request of .* missing"):
        open_file().pop(GROUP, newest=True)
