"""The way up from the `requests.sqlite` of earlier versions, whatever happens on it."""

import json
import os
import shutil
import signal
import sqlite3
import sys
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from scrapy_bloom.errors import RequestFileError
from scrapy_bloom.job.failure import Choice
from scrapy_bloom.sqlite_backend import schema
from scrapy_bloom.sqlite_backend.failed_store import SQLiteFailedStore
from scrapy_bloom.sqlite_backend.request_file import RequestFile
from scrapy_bloom.sqlite_backend.status import job_state
from tests.job.harness import fork
from tests.job.points import Points

OLD = Path(__file__).parent.parent / "data" / "v010" / "jobs"
JOBS = ("clean", "killed", "held")

pytestmark = pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS")
forks = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")


def copy_of(job, folder):
    """Return a copy of the file that 0.1.0 has left of a job."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for path in (OLD / job).glob("requests.sqlite*"):
        shutil.copy(path, folder)
    return folder / "requests.sqlite"


def contents(path):
    """Return version, tables and all rows of a file, of which this makes a copy."""
    folder = path.parent.with_name(f"{path.parent.name}.read")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(path.parent, folder)
    with closing(sqlite3.connect(folder / path.name)) as connection:
        tables = dict(
            connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
        )
        return {
            "version": schema.version(connection),
            "tables": tables,
            **{name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in tables},
        }


def requests_in(contents):
    """Return the rows of the requests, without whether they were popped."""
    return [row[:4] + row[5:] for row in contents["requests"]]


def open_in_a_process(path, points):
    """Return how a forked process has ended that opened a file with these points laid: 7
    if that was refused, 1 for any other error, -9 if it was killed."""

    def open_file():
        points.lay()
        try:
            RequestFile.open(path)
        except RequestFileError:
            os._exit(7)

    _, status = os.waitpid(fork(open_file, path.parent.with_suffix(".log")), 0)
    return os.waitstatus_to_exitcode(status)


@pytest.mark.parametrize("job", JOBS)
def test_a_file_of_version_1_becomes_one_of_this_version(tmp_path, job):
    """With all it had; its tables are those of a new file."""
    path = copy_of(job, tmp_path / "old")
    before = contents(path)
    assert before["version"] == 1
    file = RequestFile.open(path)
    assert file.clean == (job == "clean")
    assert sum(file.counts.values()) == len(before["requests"])
    ((_, unreleased, taken_over),) = before["job"]
    assert [each.hex() for each in file.unreleased] == json.loads(unreleased)
    assert file.taken_over == taken_over
    after = contents(path)
    assert (after["version"], requests_in(after)) == (schema.VERSION, requests_in(before))
    assert {popped for *_, popped, _, _ in after["requests"]} == {0}
    file.close(clean=True)
    new = tmp_path / "new" / path.name
    new.parent.mkdir()
    RequestFile.open(new).close(clean=True)
    assert contents(new)["tables"] == after["tables"]
    assert RequestFile.open(path).clean


@forks
@pytest.mark.parametrize("job", ["clean", "killed"])
def test_a_kill_on_the_way_up_loses_nothing(tmp_path, job):
    """After each call on database and files while the file is opened: it is of one version or
    the other, and the next opening has it all."""
    path = copy_of(job, tmp_path / "old")
    before = contents(path)
    versions = set()

    for number in count(1):
        copy_of(job, tmp_path / "old")
        status = open_in_a_process(path, Points(None, number, "after"))
        left = contents(path)
        versions.add(left["version"])
        assert requests_in(left) == requests_in(before)
        if left["version"] == 1:
            assert left == before
        with closing(RequestFile.open(path)._connection):
            after = contents(path)
        assert (after["version"], requests_in(after)) == (schema.VERSION, requests_in(before))
        assert [job[1:] for job in after["job"]] == [job[1:] for job in before["job"]]
        if status == 0:
            break
        assert status == -signal.SIGKILL
    assert number > 20
    assert versions == {1, schema.VERSION}


@forks
@pytest.mark.parametrize("always", [False, True])
def test_a_way_up_that_fails_leaves_the_file_as_it_was(tmp_path, always):
    """Wherever a call on the database or a file fails, once or from then on: the start is
    refused, and the version before could still go on."""
    path = copy_of("killed", tmp_path / "old")
    before = contents(path)

    error = sqlite3.OperationalError("disk I/O error")
    for number in count(1):
        copy_of("killed", tmp_path / "old")
        status = open_in_a_process(path, Points(None, number, error, always=always))
        if status == 0:
            break
        assert status == 7
        assert contents(path) == before
    assert number > 20


SET_ASIDE = [
    (2, "x", 0, 0, "pickle", b"b", "KeyError: 'gone'"),
    (5, "x", 0, 0, "pickle", b"e", "no callback"),
]


@pytest.fixture
def set_aside(tmp_path):
    """The folder of a file of 0.2.0 with two requests that could not be read back, one that
    has failed, and one that was retried, which has got the row of another one."""
    with closing(sqlite3.connect(tmp_path / "requests.sqlite", isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 3")
        for step in (1, 2, 3):
            for statement in schema.STEPS[step]:
                connection.execute(statement)
        connection.execute("INSERT INTO requests VALUES (2, 'x', 0, 0, 0, 'pickle', x'61')")
        connection.executemany("INSERT INTO set_aside VALUES (?, ?, ?, ?, ?, ?, ?)", SET_ASIDE)
        connection.execute("INSERT INTO rounds VALUES (1, 'over but for failed requests')")
        for parent in (2, 5):
            connection.execute("INSERT INTO taken_children VALUES (?, x'00', 1, 1)", (parent,))
        connection.execute(
            "INSERT INTO failed VALUES"
            " (7, 'x', 0, 0, 'pickle', x'66', 'f', 'GET', 'callback', 200, NULL, 1, 9.0, NULL)"
        )
    return tmp_path


def test_what_0_2_0_could_not_read_back_has_failed(set_aside):
    """It is listed without a change of the file."""
    path = set_aside / "requests.sqlite"
    before = path.read_bytes()
    found = SQLiteFailedStore(set_aside).requests()
    assert [(each.url, each.reason, each.exception) for each in found] == [
        ("", "unreadable", "KeyError: 'gone'"),
        ("", "unreadable", "no callback"),
        ("f", "callback", None),
    ]
    assert job_state(set_aside).failed == 3
    assert path.read_bytes() == before


def test_what_0_2_0_could_not_read_back_is_tried_again(set_aside):
    """Each with what its page has given, and in a row of its own."""
    file = RequestFile.open(set_aside / "requests.sqlite")
    rows = dict(file.query("SELECT request, id FROM requests"))
    assert {*rows} == {b"a", b"b", b"e"}
    assert (rows[b"a"], rows[b"e"]) == (2, 5)
    parents = {parent for (parent,) in file.query("SELECT parent FROM taken_children")}
    assert parents == {rows[b"b"], rows[b"e"]}
    file.close(clean=True)
    assert [each.url for each in SQLiteFailedStore(set_aside).requests()] == ["f"]


@pytest.mark.parametrize("change", [SQLiteFailedStore.retry, SQLiteFailedStore.drop])
def test_what_0_2_0_could_not_read_back_is_chosen(set_aside, change):
    """And nothing else is."""
    assert change(SQLiteFailedStore(set_aside), Choice(reasons=["unreadable"])) == 2
    assert [each.url for each in SQLiteFailedStore(set_aside).requests()] == ["f"]
    file = RequestFile.open(set_aside / "requests.sqlite")
    kept = {request for (request,) in file.query("SELECT request FROM requests")}
    assert kept == ({b"a", b"b", b"e"} if change is SQLiteFailedStore.retry else {b"a"})
    parents = file.query("SELECT COUNT(*) FROM taken_children")
    assert parents == [(2 if change is SQLiteFailedStore.retry else 0,)]
    file.close(clean=True)


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
    ],
)
def test_an_old_file_that_is_not_sound_is_left_as_it_was(tmp_path, change):
    """What is wrong is found before anything is written."""
    path = copy_of("clean", tmp_path / "old")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(change)
        connection.commit()
    before = path.read_bytes()
    with pytest.raises(RequestFileError, match="left as it is"):
        RequestFile.open(path)
    assert path.read_bytes() == before


def test_statistics_of_sqlite_are_no_tables_of_ours(tmp_path):
    """Whoever has run ANALYZE on a job has done it no harm."""
    path = copy_of("clean", tmp_path / "old")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("ANALYZE")
    RequestFile.open(path).close(clean=True)
    RequestFile.open(path).close(clean=True)
