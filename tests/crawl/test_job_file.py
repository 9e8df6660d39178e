"""The file of a job by itself: commits, what a crash leaves of it, and which file is refused."""

import os
import shutil
import signal
import sqlite3
import sys
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from scrapy_bloom import sqlite_file
from scrapy_bloom.errors import RequestFileError
from scrapy_bloom.jobdir import JobDirectory
from scrapy_bloom.sqlite import job_file
from scrapy_bloom.sqlite.job_file import RequestFile, check_header, whole_job
from scrapy_bloom.sqlite.status import job_view
from tests.commands.command_line import bloom
from tests.crawl.engine import query
from tests.fakes import raising
from tests.stored import LIFO, UNREADABLE, put, records_in, taken
from tests.world.points import Points
from tests.world.runner import fork

forks = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "requests.sqlite"


@pytest.fixture
def open_file(path):
    """Return a function that opens the file anew, and commits requests with these payloads."""
    opened = []

    def open_file(*payloads):
        for file in opened:
            file._connection.close()
        opened.append(file := RequestFile.open(path))
        if payloads:
            put(records_in(file), *payloads)
            file.commit()
        return file

    yield open_file
    for file in opened:
        file._connection.close()


@pytest.fixture
def copied(path, tmp_path):
    """Return a function that copies the file and its log as a kill would leave them."""

    def copied():
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        (tmp_path / "copy").mkdir()
        for each in path.parent.glob("requests.sqlite*"):
            shutil.copy(each, tmp_path / "copy")
        return tmp_path / "copy" / path.name

    return copied


# Commits


def test_only_a_close_without_changes_is_clean(open_file):
    """Whatever the caller believes."""
    found = []
    for clean in (None, False, True):
        found.append((file := open_file()).clean)
        if clean is not None:
            file.close(clean=clean)
    file = open_file()
    assert [*found, file.clean] == [True, False, False, True]
    records_in(file).next()
    file.execute("UPDATE job SET taken_over = 'x'")
    file.close(clean=True)
    file = open_file()
    assert not file.clean
    file._connection.execute("PRAGMA query_only = 1")
    with pytest.raises(sqlite3.OperationalError):
        file.close(clean=True)
    with pytest.raises(sqlite3.ProgrammingError):
        file.query("SELECT 1")  # it is let go of all the same
    assert not open_file().clean


def test_other_programs_see_what_is_committed(open_file, path, copied):
    """They hold nobody up, and change nothing, also of a job that was killed or stopped."""
    file = open_file(b"a")
    with closing(sqlite3.connect(path)) as reader:
        reader.execute("BEGIN")
        assert job_view(path.parent).unfinished == 1
        assert reader.execute("SELECT payload FROM request").fetchall() == [(b"a",)]
        put(records_in(file), b"b")
        file.commit()
        assert len(reader.execute("SELECT * FROM request").fetchall()) == 1
    killed = copied()
    file.close(clean=True)
    for each in (killed, path):
        before = each.read_bytes()
        assert job_view(each.parent).unfinished == 2
        assert each.read_bytes() == before


@pytest.mark.parametrize("by_slot", [True, False])
def test_a_claim_costs_the_same_however_much_is_pending(open_file, by_slot):
    """SQLite takes no more steps for it."""
    file, parts = open_file(), []
    records = records_in(file, by_slot=by_slot)
    for _ in range(2):
        for slot in "ab":
            put(records, *[b"a"] * 1000, slot=slot)
        file.commit()
        steps = []
        file._connection.set_progress_handler(lambda found=steps: found.append(1) and 0, 1)
        records.next()
        file._connection.set_progress_handler(None, 1)
        parts.append(len(steps))
    assert parts[0] == parts[1] < 200


def test_an_opening_reads_no_requests(open_file, path):
    """Only the indexes and the ends of the table: other damaged pages are not noticed."""
    open_file(*(b"request %d" % n * 10 for n in range(1000))).close(clean=True)
    contents = bytearray(path.read_bytes())
    page = contents.index(b"request 555") // 4096
    contents[page * 4096 : (page + 1) * 4096] = b"\xff" * 4096
    path.write_bytes(contents)
    file = open_file()
    assert len(records_in(file)) == 1000
    with pytest.raises(sqlite3.DatabaseError):
        file._connection.execute("SELECT payload FROM request").fetchall()


# Openings


@pytest.fixture
def made(open_file, copied):
    """A killed job with a request that is pending, one in flight and one that was unreadable."""
    file = open_file(b"unreadable", b"claimed")
    records = records_in(file, (False, False))
    records.fail(records.next()[0], UNREADABLE)
    records.next()
    put(records, b"pending")
    file.commit()
    return copied


def contents(path):
    """Return all rows of the tables in a file, and their statements."""
    return query(path, "SELECT sql FROM sqlite_master"), [
        query(path, f"SELECT * FROM {table}")
        for (table,) in query(path, "SELECT name FROM sqlite_master WHERE type = 'table'")
    ]


def open_in_a_process(path, points, order):
    """Return how a process has ended that opened a file: 7 if that was refused."""

    def open_and_commit():
        points.lay()
        try:
            file = RequestFile.open(path)
        except RequestFileError:
            os._exit(7)
        records_in(file, order, by_slot=False)
        file.commit()

    _, status = os.waitpid(fork(open_and_commit, path.parent.with_suffix(".log")), 0)
    return os.waitstatus_to_exitcode(status)


@forks
@pytest.mark.parametrize("order", [LIFO, (False, None)])
def test_a_kill_while_a_job_is_opened_loses_nothing(made, order):
    """After each call on database and files, also with other settings than before."""
    for number in count(1):
        path = made()
        status = open_in_a_process(path, Points(None, number, "after"), order)
        with closing(RequestFile.open(path)._connection) as connection:
            pending = "SELECT payload FROM request WHERE state = 0"
            found = sorted(payload for (payload,) in connection.execute(pending))
            assert found == [b"claimed", b"pending", b"unreadable"]
            in_order = taken(records_in(RequestFile(connection), (False, False)))
            assert in_order == [b"claimed", b"unreadable", b"pending"]  # as they were stored
        if status == 0:
            break
        assert status == -signal.SIGKILL
    assert number > 3


@forks
@pytest.mark.parametrize("always", [False, True])
def test_an_opening_that_fails_leaves_the_file_as_it_was(made, always):
    """Wherever a call fails, once or from then on, the start is refused."""
    before = contents(made())
    error = sqlite3.OperationalError("disk I/O error")
    for number in count(1):
        path = made()
        if open_in_a_process(path, Points(None, number, error, always=always), LIFO) != 7:
            break
        assert contents(path) == before
    assert number > 3


@pytest.mark.parametrize(
    "change",
    [
        "CREATE TABLE set_aside (id INTEGER)",
        "DROP INDEX pending",
        "ALTER TABLE job ADD COLUMN more",
        "DELETE FROM job",
        "UPDATE job SET unreleased = 'x'",
        f"UPDATE job SET last = {(1 << 62) + 1}",
        f"INSERT INTO request VALUES ({2**63 - 1}, 1, 0, 0, 0, '', NULL, NULL, NULL)",
        "PRAGMA user_version = 0",
        "PRAGMA application_id = 7",
        "DROP TABLE job; CREATE VIEW job AS SELECT 1 AS id",
    ],
)
def test_a_file_that_is_not_sound_is_left_as_it_was(open_file, path, change):
    """What is wrong, another version or another program's is found before anything is written."""
    open_file().close(clean=True)
    for statement in change.split("; "):
        query(path, statement)
    before = path.read_bytes()
    with pytest.raises(RequestFileError, match="it was left as it is"):
        open_file()
    assert path.read_bytes() == before


def test_a_locked_file_is_refused(open_file, path, monkeypatch):
    """After a while, with the reason. Who gets room back by hand loses nothing."""
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 0.05)
    open_file(b"a").close(clean=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.executescript("VACUUM; ANALYZE")  # its tables of statistics are left alone
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(RequestFileError, match="locked"):
            open_file()
    assert taken(records_in(open_file())) == [b"a"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")
def test_a_refused_file_is_let_go_of(path, monkeypatch):
    """Nothing of it stays open, also while somebody holds the error."""
    RequestFile.open(path).close(clean=True)
    monkeypatch.setattr(job_file, "_set_up", raising(sqlite3.OperationalError("disk I/O error")))
    before = os.listdir("/proc/self/fd")
    with pytest.raises(RequestFileError, match="disk I/O error") as caught:
        RequestFile.open(path)
    assert os.listdir("/proc/self/fd") == before
    assert caught.value


def test_leftovers_of_a_killed_start_are_removed(open_file, path):
    """A new file gets its name when it is whole; what is older than that goes, but a directory."""
    (mine := path.with_name(".mine.bloom.tmp")).mkdir()
    for end in ("", "-journal"):
        path.with_name(f".0123456789abcdef.bloom.tmp{end}").write_bytes(b"half")
    assert not check_header(path)
    open_file()
    assert check_header(path)
    assert list(path.parent.glob("*.tmp*")) == [mine]


def test_whatever_sqlite_was_built_to_do(path, monkeypatch):
    """There is a write-ahead log, each commit is on the disk, and what is done is gone from it."""
    connect = sqlite3.connect

    def connect_otherwise(*arguments, **options):
        connection = connect(*arguments, **options)
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA secure_delete = OFF")
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_otherwise)
    file = RequestFile.open(path)
    assert file.query("PRAGMA journal_mode") == [("wal",)]
    assert file.query("PRAGMA synchronous") == [(2,)]
    records = records_in(file)
    put(records, *(b"Authorization: secret" + bytes(100 * (n % 30)) for n in range(200)))
    file.commit()
    assert len(taken(records)) == 200
    file.commit()
    file.close(clean=True)
    assert b"Authorization" not in path.read_bytes()


def test_a_later_version_that_only_a_log_tells_is_refused(open_file, path, copied):
    """That of a killed process; nothing is changed."""
    open_file().close(clean=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 2")
        copy = copied()
    before = {each: each.read_bytes() for each in copy.parent.iterdir()}
    with pytest.raises(RequestFileError, match=r"has version 2, and .* reads version 1;"):
        RequestFile.open(copy)
    for each, contents in before.items():
        assert each.name.endswith("-shm") or each.read_bytes() == contents


def test_a_job_that_was_killed_as_it_began_a_log_opens(open_file, path, copied):
    """The log has its header, and the index is of the one before."""
    file, log = open_file(b"a"), path.with_name(f"{path.name}-wal")
    header = log.read_bytes()[:32]
    file.query("PRAGMA wal_checkpoint(TRUNCATE)")
    copy = copied()
    copy.with_name(log.name).write_bytes(header[:16] + b"new salt" + header[24:])
    with whole_job(JobDirectory(copy.parent)) as found:
        assert len(found.query("SELECT * FROM request")) == 1
    with closing(RequestFile.open(copy)._connection) as connection:
        assert taken(records_in(RequestFile(connection))) == [b"a"]


@pytest.mark.parametrize(
    ("owner", "name"), [(os, "access"), (job_file, "connect"), (job_file, "_is_index_of")]
)
def test_a_file_that_another_program_closes_meanwhile_opens(open_file, copied, watch, owner, name):
    """As sqlite3 does with a killed job: with that it removes the log and the index."""
    open_file(b"a")
    copy = copied()
    watch(owner, name, lambda *_: query(copy, "SELECT 1 FROM job"))
    opened = RequestFile.open(copy)
    assert taken(records_in(opened)) == [b"a"]
    opened.close(clean=False)


def test_commands_do_not_wait_for_a_table_that_is_none(tmp_path):
    """Each meets a view that never ends with one line."""
    job = tmp_path / "job"
    job.mkdir()
    RequestFile.open(job / "requests.sqlite").close(clean=True)
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT x AS id"
    query(job, "DROP TABLE request")
    query(job, f"CREATE VIEW request AS {endless}, x AS slot FROM n WHERE x > 1")
    for command in ("top job --once", "queue count job", "failed job", "drop job --yes"):
        told = bloom(tmp_path, *command.split()).refusal
        assert "its tables are not those of version" in told
