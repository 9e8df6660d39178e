"""The files of a job's feeds after the job was moved or copied."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import FeedError

if TYPE_CHECKING:
    from .outbox import Batch


def follow_job(batch: Batch, job: Path, file: str) -> None:
    """Let the files of `batch` be those beside `job` if that, with `file` in it, was copied, or
    moved with them. Raises FeedError if a file is the original's."""
    stored, before = batch.stored, Path(batch.stored["job"])
    stored["job"], is_copy = str(job), (before / file).exists()

    def followed(path: str) -> str:
        real = Path(path).parent.resolve() / Path(path).name
        beside = os.path.normpath(job / os.path.relpath(real, before))
        if is_copy and beside == str(real):
            raise FeedError(f"{path} belongs to {before}, of which {job} is a copy")
        return beside if is_copy or not real.exists() else path

    batch.path = batch.path and followed(batch.path)
    if "path" in stored:
        stored["path"] = followed(stored["path"])
    elif is_copy and "place" in stored:  # nothing is there yet, and the original will write there
        stored["path"] = followed(stored["place"])
