"""The subcommands about the requests of a job that have failed: failed, retry, drop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from ..durable.failed_rows import Choice, drop_failed, failed_requests, retry_failed
from ..errors import BloomError, JobDirectoryError
from ..jobdir import JobDirectory
from ..reporting import counted, in_brief

if TYPE_CHECKING:
    from ..durable.failed import FailedRequest
    from .running import Session

SHOWN = 5
"""So many requests of each reason are shown."""


def failed(session: Session) -> int:
    """List the requests that have failed."""
    options = session.options
    job = job_in(session)
    found = failed_requests(job, _choice(session))
    if options.output is not None:
        _write_urls(session, found)
        return 0
    session.print(
        [{**each._asdict(), "time": _written(each.time)} for each in found], _lines(job, found)
    )
    return 0


def retry(session: Session) -> int:
    """Make requests that have failed pending again."""
    count = retry_failed(job_in(session), _choice(session))
    session.print(
        {"retried": count}, [f"{counted(count, 'request')} pending again, for the next start"]
    )
    return 0


def drop(session: Session) -> int:
    """Forget requests that have failed."""
    options = session.options
    job, choice = job_in(session), _choice(session)
    if not options.yes:
        count = len(failed_requests(job, choice))
        raise BloomError(
            f"{counted(count, 'failed request')} of {options.place} would be forgotten for good:"
            " say so with --yes"
        )
    session.print_lines([f"forgot {counted(drop_failed(job, choice), 'failed request')}"])
    return 0


def job_in(session: Session) -> Path:
    """Return the job directory that was named. Raises BloomError."""
    place = session.place(session.options.place)
    job = place.path if place.job is None else place.job
    if not JobDirectory(job).requests.exists():
        raise JobDirectoryError(
            f"{place.name} holds no requests of DurableScheduler (there is no"
            f" {JobDirectory(job).requests}): give the JOBDIR of a crawl with it"
        )
    return job


def _choice(session: Session) -> Choice:
    return Choice(session.options.reason, session.options.url)


def _write_urls(session: Session, found: Sequence[FailedRequest]) -> None:
    """Write their URLs, one a line, to a new file or to standard output."""
    lines = [each.url for each in found]
    if session.options.output == "-":
        session.print_lines(lines)
        return
    path = Path(session.options.output)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
    except FileExistsError:
        raise BloomError(f"{path} is there already: remove it, or name another file") from None
    session.print_lines([f"wrote {counted(len(lines), 'URL')} to {path}"])


def _lines(job: Path, found: Sequence[FailedRequest]) -> Iterator[str]:
    by_reason: defaultdict[str, list[FailedRequest]] = defaultdict(list)
    for each in found:
        by_reason[each.reason].append(each)
    yield f"{job}: {counted(len(found), 'failed request')}"
    for reason, requests in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        yield ""
        yield f"{reason}  {len(requests):,}"
        for each in requests[:SHOWN]:
            method = "" if each.method == "GET" else f"{each.method} "
            yield f"  {method}{each.url}"
            yield f"    {_details(each)}"
        if len(requests) > SHOWN:
            yield f"  and {len(requests) - SHOWN:,} more (all with --json, or -o FILE)"


def _details(each: FailedRequest) -> str:
    parts = [counted(each.attempts, "attempt"), f"last {_written(each.time)}"]
    if each.status is not None:
        parts.append(f"status {each.status}")
    if each.exception is not None:
        parts.append(in_brief(each.exception))
    return ", ".join(parts)


def _written(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
