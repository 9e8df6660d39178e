"""Which job `requests.sqlite` is of, so that the filter of the same job is not used without
it: what the filter has seen and no row is kept of would never be fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..bloom.growing import stored_owner
from ..errors import JobDirectoryError
from .request_file import JobIdentity, read_identity

if TYPE_CHECKING:
    from ..bloom.header import Owner
    from ..jobdir import JobDirectory


def require_whole_job(job: JobDirectory) -> JobIdentity | None:
    """Return the identity of `job`, None if it has none yet. Raises JobDirectoryError if its
    filter belongs to other requests, or may know of commits that these do not have,
    RequestFileError."""
    owner, found = stored_owner(job.filter), read_identity(job.requests)
    if owner is None or (
        found is not None and found.id == owner.job and found.commits >= owner.commit
    ):
        return found
    raise JobDirectoryError(
        f"{job.requests} {_what_is_wrong(job, found, owner)}: pages that {job.filter} has seen"
        f" would be lost. Put back {job.requests.name}-wal, which belongs to it, or both from one"
        " copy of the stopped job, or use a new JOBDIR"
    )


def _what_is_wrong(job: JobDirectory, found: JobIdentity | None, owner: Owner) -> str:
    if found is not None and found.id == owner.job:
        return f"ends with commit {found.commits}, and {job.filter} knows of commit {owner.commit}"
    if found is None and not job.requests.exists():
        return f"is not there, and {job.filter} belongs to it"
    return f"is not the one that {job.filter} belongs to, or lacks what was committed last"
