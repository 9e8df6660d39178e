"""The subcommands about the requests of a job or a crawl that have failed: failed, retry,
drop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..amounts import counted, in_brief, in_utc
from ..errors import BloomError
from ..job.records import KEPT, Filter

if TYPE_CHECKING:
    from ..job.failed_request import FailedRequest
    from .context import Context

SHOWN = 5
"""So many requests of each reason are shown."""


def failed(session: Context) -> int:
    """List the requests that have failed."""
    options = session.options
    with session.desk() as (name, desk):
        found = [each.failed for each in desk.scan(_chosen(session)) if each.failed]
    if options.output is not None:
        _write_urls(session, found)
        return 0
    times = [in_utc(each.time) if each.time else None for each in found]
    figures = [{**each._asdict(), "time": time} for each, time in zip(found, times, strict=True)]
    session.print(figures, _lines(name, found))
    return 0


def retry(session: Context) -> int:
    """Make requests that have failed pending again."""
    with session.desk() as (name, desk):
        taker = desk.taker
        found = desk.change(_chosen(session), "retry")
    if found is None:
        return session.print_standing(name)
    count = found.states.total()
    session.print({"retried": count}, [f"{counted(count, 'request')} pending again, for {taker}"])
    return 0


def drop(session: Context) -> int:
    """Forget requests that have failed."""
    chosen = _chosen(session)
    with session.desk() as (name, desk):
        if not session.options.yes:
            count = desk.count(chosen, "reason").states.total()
            raise BloomError(
                f"{counted(count, 'failed request')} of {name} would be forgotten for good: say so"
                " with --yes"
            )
        found = desk.change(chosen, "drop")
    if found is None:
        return session.print_standing(name)
    session.print_lines([f"forgot {counted(found.states.total(), 'failed request')}"])
    return 0


def _chosen(session: Context) -> Filter:
    return Filter(KEPT, reasons=session.options.reason, urls=session.options.url)


def _write_urls(session: Context, found: Sequence[FailedRequest]) -> None:
    """Write their URLs, one a line, to a new file or to standard output."""
    lines = [each.url for each in found if each.url]
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


def _lines(name: str, found: Sequence[FailedRequest]) -> Iterator[str]:
    by_reason: defaultdict[str, list[FailedRequest]] = defaultdict(list)
    for each in found:
        by_reason[each.reason].append(each)
    yield f"{name}: {counted(len(found), 'failed request')}"
    for reason, requests in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        yield ""
        yield f"{reason}  {len(requests):,}"
        for each in requests[:SHOWN]:
            method = "" if each.method == "GET" else f"{each.method} "
            yield f"  {method}{each.url or '(a URL that cannot be read)'}"
            yield f"    {_details(each)}"
        if len(requests) > SHOWN:
            yield f"  and {len(requests) - SHOWN:,} more (all with --json, or -o FILE)"


def _details(each: FailedRequest) -> str:
    parts = [counted(each.attempts, "attempt")]
    if each.time:
        parts.append(f"last {in_utc(each.time)}")
    if each.status is not None:
        parts.append(f"status {each.status}")
    if each.exception is not None:
        parts.append(in_brief(each.exception))
    return ", ".join(parts)
