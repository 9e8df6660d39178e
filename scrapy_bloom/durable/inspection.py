"""What is in a job's `requests.sqlite`, read without a change, also while the job runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from ..errors import RequestFileError
from ..jobdir import JobDirectory
from . import schema
from .request_file import check_header, connect


class SetAside(NamedTuple):
    """A row that could not be made a request when it was due."""

    row: int
    slot: str
    priority: int
    start: int
    format: str
    request: bytes
    reason: str


def unfinished_requests(job: Path) -> int | None:
    """Return the number of requests in the durable queue of `job`, pending or in
    flight, or None if it has none. Raises RequestFileError if it is damaged."""
    path = JobDirectory(job).requests
    if not check_header(path):
        return None
    with reading(path) as connection:
        return int(connection.execute("SELECT COUNT(*) FROM requests").fetchone()[0])


def set_aside_requests(path: Path) -> list[SetAside]:
    """Return what is set aside in the file at `path`, if there is one. Raises
    RequestFileError if it is damaged."""
    if not check_header(path):
        return []
    with reading(path) as connection:
        if schema.version(connection) < schema.WITH_SET_ASIDE:
            return []
        return [SetAside(*row) for row in connection.execute("SELECT * FROM set_aside ORDER BY id")]


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Give a connection to the file at `path` that changes nothing, also while the job
    runs. Raises RequestFileError."""
    # without a log nobody has it open, and not even the log's index need be made
    log = path.with_name(f"{path.name}-wal")
    try:
        with closing(connect(path, "ro" if log.exists() else "ro&immutable=1")) as connection:
            yield connection
    except sqlite3.Error as error:
        raise RequestFileError(f"{path} cannot be read: {error}") from error
