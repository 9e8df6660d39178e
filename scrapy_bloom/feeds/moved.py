"""The files of a job's feeds after the job was moved or copied."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import FeedError

if TYPE_CHECKING:
    from .outbox import Outbox, Row


def follow_job(row: Row, outbox: Outbox) -> None:
    """Let the file of `row` be that beside the job if that was copied, or moved with it. Raises
    FeedError if it is the original's."""
    job, before = outbox.job, Path(row.job)
    row.job, is_copy = str(job), (before / Path(outbox.file.name).name).exists()
    # where nothing is yet the original will write
    if path := row.path or (row.place if is_copy else ""):
        real = Path(path).parent.resolve() / Path(path).name
        beside = os.path.normpath(job / os.path.relpath(real, before))
        if is_copy and beside == str(real):
            raise FeedError(f"{path} belongs to {before}, of which {job} is a copy")
        row.path = beside if is_copy or not real.exists() else path
