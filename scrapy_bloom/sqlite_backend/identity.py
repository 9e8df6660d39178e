"""Whose requests are stored: the filter of a job is not used without the requests of the same
job, since what it has seen and no row is kept of would never be fetched; and a spider does not
get those of another, whose callbacks it has not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..bloom.growing import stored_owner
from ..errors import JobDirectoryError
from ..settings import takes_any_spider
from .request_file import JobIdentity, read_identity

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

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


def require_same_spider(place: str, found: str, crawler: Crawler, remedy: str) -> None:
    """Raise JobDirectoryError if the requests at `place` are those of the spider `found`, and
    `crawler` has another, unless BLOOM_ANY_SPIDER is True. An empty name is that of any."""
    assert crawler.spider is not None
    name = crawler.spider.name
    if takes_any_spider(crawler.settings) or found in ("", name):
        return
    raise JobDirectoryError(
        f"{place} holds the requests of spider {found!r}, and this is {name!r}: {remedy}. If the"
        " spider was renamed, or spiders share their requests on purpose, set BLOOM_ANY_SPIDER to"
        " True"
    )


def _what_is_wrong(job: JobDirectory, found: JobIdentity | None, owner: Owner) -> str:
    if found is not None and found.id == owner.job:
        return f"ends with commit {found.commits}, and {job.filter} knows of commit {owner.commit}"
    if found is None and not job.requests.exists():
        return f"is not there, and {job.filter} belongs to it"
    return f"is not the one that {job.filter} belongs to, or lacks what was committed last"
