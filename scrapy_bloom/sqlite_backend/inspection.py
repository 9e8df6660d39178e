"""What is in a job's `requests.sqlite`, read without a change, also while the job runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from ..errors import RequestFileError
from ..jobdir import JobDirectory, reading_mode
from . import schema
from .request_file import check_header, connect
from .rounds import KEPT, OVER, RUNNING, TO_BE_STORED


class JobState(NamedTuple):
    """What has become of a job: it is `running`, or was `finished`, `stopped` or `killed`
    (or its last commit has failed), in `round`, which is None before the first.

    With `to_be_stored` nothing is missing but that feeds are stored.
    """

    state: str
    round: int | None
    failed: int
    to_be_stored: bool = False


def job_state(job: Path) -> JobState | None:
    """Return what has become of `job`, None without a durable queue; reads only. Raises
    RequestFileError."""
    directory = JobDirectory(job)
    if not check_header(directory.requests):
        return None
    is_running = directory.is_locked
    with reading(directory.requests) as connection:
        (clean,) = connection.execute("SELECT clean FROM job").fetchone()
        is_empty = not connection.execute("SELECT 1 FROM requests LIMIT 1").fetchone()
        number, phase, failed = None, OVER if is_empty else RUNNING, 0
        if schema.version(connection) >= schema.WITH_FAILED:
            for found in connection.execute("SELECT number, phase FROM rounds"):
                number, phase = found
            (failed,) = connection.execute("SELECT COUNT(*) FROM failed").fetchone()
    if is_running:
        state = "running"
    elif not clean:
        state = "killed"
    else:
        state = "finished" if phase in (OVER, KEPT) else "stopped"
    return JobState(state, number, failed, phase == TO_BE_STORED and is_empty)


def unfinished_requests(job: Path) -> int | None:
    """Return the number of requests in the durable queue of `job`, pending or in
    flight, or None if it has none. Raises RequestFileError if it is damaged."""
    path = JobDirectory(job).requests
    if not check_header(path):
        return None
    with reading(path) as connection:
        return int(connection.execute("SELECT COUNT(*) FROM requests").fetchone()[0])


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Give a connection to the file at `path` that changes nothing, also while the job
    runs; of a killed job without `-shm` SQLite makes that. Raises RequestFileError."""
    try:
        with closing(connect(path, reading_mode(path))) as connection:
            schema.look_as_now(connection)
            yield connection
    except sqlite3.Error as error:
        raise RequestFileError(f"{path} cannot be read: {error}") from error
