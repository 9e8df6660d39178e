"""The subcommands that look at a filter and change nothing: info, check, verify."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from scrapy import Request

from ..bloom.inspection import Description, describe
from ..bloom.inspection import verify as findings_in
from ..bloom.place import REDIS_SCHEMES, AnyFilter
from ..errors import BloomError
from ..fingerprints.identity import fingerprinter_in
from ..migration.url_list import open_list, url_in
from ..redis_backend.verify import queue_findings
from ..reporting import counted, in_brief, in_bytes, in_percent, in_short, pages
from ..sqlite_backend.status import JobState, job_state, unfinished_requests
from .queue import queue_in
from .running import aligned, require_fingerprinter, table

if TYPE_CHECKING:
    from ..redis_backend.filter_status import RedisPlace
    from .running import Session


def info(session: Session) -> int:
    """Print what there is to know about a filter."""
    name = session.options.place
    if name.startswith(REDIS_SCHEMES):
        with session.redis(name) as shared:
            description = shared.describe()
            queue, lines = queue_in(shared.client, shared.key)
        session.print(
            {**asdict(description), "queue": queue},
            [*_info_lines(description, None, on_disk=False), *lines],
        )
        return 0
    place = session.place(name)
    description = describe(place, fingerprinter_in)
    unfinished, state = None, None
    if place.job is not None:
        state = job_state(place.job)
        unfinished = unfinished_requests(place.job)
    session.print(
        {
            **asdict(description),
            "job": state and state._asdict(),
            "unfinished_requests": unfinished,
        },
        _info_lines(description, unfinished, on_disk=True, state=state),
    )
    return 0


def check(session: Session) -> int:
    """Print for each URL whether the filter has seen it."""
    name = session.options.place
    if name.startswith(REDIS_SCHEMES):
        with session.redis(name) as shared:
            return _check(session, shared, shared.name)
    with session.place(name).open(read_only=True) as bloom_filter:
        return _check(session, bloom_filter, name)


def _check(session: Session, bloom_filter: AnyFilter | RedisPlace, name: str) -> int:
    return print_seen(session, bloom_filter.__contains__, bloom_filter.identity, name)


def print_seen(session: Session, knows: Callable[[bytes], bool], identity: str, name: str) -> int:
    """Print for each URL whether its fingerprint is known; return the exit status. `name` and
    `identity` are those of the filter or the memory, for errors."""
    options = session.options
    fingerprinter = session.fingerprinter(session.crawler())
    require_fingerprinter(identity, fingerprinter, name)
    answers = []
    for line in _lines(options.urls):
        try:
            url = url_in(line)
            if not url:
                continue
            request = Request(url, method=options.method, body=options.body)
            fingerprint = fingerprinter.fingerprint(request)
        except Exception as error:
            shown = in_brief(line.decode(errors="backslashreplace").strip())
            raise BloomError(f"'{shown}' has no fingerprint: {in_brief(str(error))}") from error
        answers.append((url, knows(fingerprint)))
        if not options.json:
            session.print_lines([f"{'seen' if answers[-1][1] else 'new '} {url}"])
    if options.json:
        session.print([{"url": url, "seen": seen} for url, seen in answers], [])
    return 0 if all(seen for _, seen in answers) else 1


def _lines(urls: list[str]) -> Iterator[bytes]:
    """Yield the URLs given, and the lines on standard input for `-`."""
    for url in urls:
        if url == "-":
            with open_list(None) as file:
                yield from file
        else:
            yield url.encode(errors="surrogateescape")


def verify(session: Session) -> int:
    """Print what was found out about each file, and a verdict."""
    name = session.options.place
    if name.startswith(REDIS_SCHEMES):
        with session.redis(name) as shared:
            name = shared.name
            findings = [shared.verify(), *queue_findings(shared.client, shared.key)]
    else:
        findings = list(findings_in(session.place(name)))
    trusted = all(finding.sound for finding in findings)
    session.print(
        {"trusted": trusted, "findings": [asdict(finding) for finding in findings]},
        [
            f"{'ok ' if finding.sound else 'BAD'}  {finding.path or name}:"
            f" {finding.text.removeprefix(f'{finding.path} ')}"
            for finding in findings
        ],
    )
    if not trusted:
        raise BloomError(f"{name} cannot be trusted")
    if not session.options.json:
        session.print_lines([f"{name} can be trusted"])
    return 0


def _info_lines(
    filter_: Description,
    unfinished: int | None,
    *,
    on_disk: bool,
    state: JobState | None = None,
) -> list[str]:
    about = "" if filter_.items_exact else "about "
    rows = [
        ("items", f"{about}{filter_.items:,}"),
        ("capacity", f"{filter_.capacity:,} in {counted(len(filter_.layers), 'layer')}"),
        ("memory", _memory(filter_)),
        ("exact table", _table(filter_)),
        ("file size", f"{filter_.file_bytes:,} bytes" if on_disk else ""),
        ("fill", f"{in_percent(filter_.fill_ratio)} of the bits are set"),
        ("error rate", f"{in_short(filter_.error_rate)} now, at most {filter_.error_rate_bound:g}"),
        ("pages lost", f"{pages(filter_.expected_pages_lost)} so far, probably"),
        ("secret", "present" if filter_.has_secret else "MISSING"),
        ("fingerprinter", filter_.fingerprinter or "not recorded"),
        ("identity", filter_.fingerprinter_identity or ""),
        ("made", filter_.created),
        ("made by", filter_.software),
        ("closed", _closed(filter_) if on_disk else ""),
        ("job", _job(state)),
        ("requests", _requests(filter_, unfinished)),
    ]
    lines = [filter_.place, *aligned((name, value) for name, value in rows if value)]
    if len(filter_.layers) > 1:
        lines += ["", *table(_layer_rows(filter_))]
    return lines


def _memory(filter_: Description) -> str:
    memory = in_bytes(filter_.bytes)
    # in a filter that is nearly empty the bits an item say nothing
    if filter_.items < filter_.capacity / 2:
        return memory
    return f"{memory} ({filter_.bits / filter_.items:.1f} bits an item)"


def _table(filter_: Description) -> str:
    if not filter_.table_bytes:
        return ""
    table = f"{in_bytes(filter_.table_bytes)} of the files"
    if filter_.items < filter_.capacity / 2:
        return table
    return f"{table} ({filter_.table_bytes / filter_.items:.1f} bytes an item)"


def _closed(filter_: Description) -> str:
    if filter_.clean:
        return "cleanly"
    if filter_.held_by is None:
        return "NOT cleanly: its process was killed; opening it counts the items"
    return f"no, process {filter_.held_by or '(unknown)'} uses it now"


def _job(state: JobState | None) -> str:
    if state is None:
        return ""
    line: str = "was killed" if state.state == "killed" else state.state
    if state.round is not None:
        line += f", round {state.round}"
    if state.to_be_stored:
        line += ", but feeds are to be stored: start it again"
    if state.failed:
        line += f", {counted(state.failed, 'failed request')} ('scrapy bloom failed')"
    return line


def _requests(filter_: Description, unfinished: int | None) -> str:
    if unfinished is None:
        return ""
    which = "pending" if filter_.held_by is None else "pending or in flight"
    return f"{unfinished:,} {which} in requests.sqlite"


def _layer_rows(filter_: Description) -> Iterator[list[str]]:
    yield ["layer", "capacity", "items", "memory", "probes", "fill", "errors", "at most"]
    for number, layer in enumerate(filter_.layers):
        yield [
            str(number),
            f"{layer.capacity:,}",
            f"{layer.items:,}",
            in_bytes(layer.bits // 8),
            str(layer.probes),
            in_percent(layer.fill_ratio),
            in_short(layer.error_rate),
            f"{layer.error_rate_bound:.2g}",
        ]
