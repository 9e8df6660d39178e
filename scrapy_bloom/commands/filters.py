"""The subcommands about whole filters: info, verify, merge, clear."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from ..bloom.inspection import Description, describe
from ..bloom.inspection import verify as findings_of
from ..bloom.merging import merge as merge_places
from ..bloom.place import REDIS_SCHEMES, Place
from ..bloom.removal import remove
from ..durable.request_file import unfinished_requests
from ..errors import BloomError
from ..fingerprints.identity import fingerprinter_in
from ..reporting import counted, in_bytes, in_percent, in_short, pages
from ..shared.copying import load_into_redis, save_from_redis
from .running import aligned, table

if TYPE_CHECKING:
    from .running import Session


def info(session: Session) -> int:
    """Print what there is to know about a filter."""
    name = session.options.place
    if name.startswith(REDIS_SCHEMES):
        with session.redis(name) as shared:
            description = shared.describe()
        session.print(asdict(description), _info_lines(description, None))
        return 0
    place = Place.find(name)
    description = describe(place, fingerprinter_in)
    unfinished = None if place.job is None else unfinished_requests(place.job)
    session.print(
        asdict(description) | {"unfinished_requests": unfinished},
        _info_lines(description, unfinished),
    )
    return 0


def verify(session: Session) -> int:
    """Print what was found out about each file, and a verdict."""
    name = session.options.place
    if name.startswith(REDIS_SCHEMES):
        with session.redis(name) as shared:
            findings = [shared.verify()]
    else:
        findings = list(findings_of(Place.find(name)))
    trusted = all(finding.sound for finding in findings)
    session.print(
        {"trusted": trusted, "findings": [asdict(finding) for finding in findings]},
        [
            f"{'ok ' if finding.sound else 'BAD'}  {finding.path or session.options.place}:"
            f" {finding.text.removeprefix(f'{finding.path} ')}"
            for finding in findings
        ],
    )
    if not trusted:
        raise BloomError(f"{session.options.place} cannot be trusted")
    if not session.options.json:
        session.print(None, [f"{session.options.place} can be trusted"])
    return 0


def merge(session: Session) -> int:
    """Add the keys of filters to another one."""
    options = session.options
    before, after = merge_places(
        Place.find(options.place),
        [Place.find(source) for source in options.sources],
        over_capacity=options.over_capacity,
    )
    session.print(
        {"place": options.place, "items_before": before, "items": after},
        [f"{options.place} holds {after:,} items now (by its bits), {before:,} before"],
    )
    return 0


def clear(session: Session) -> int:
    """Remove a filter from the disk, or from Redis."""
    if session.options.place.startswith(REDIS_SCHEMES):
        with session.redis(session.options.place) as shared:
            if not session.options.yes:
                raise BloomError(f"{shared.name} would be forgotten for good: say so with --yes")
            shared.filter.delete()
            session.print_lines([f"deleted {shared.name}"])
        return 0
    place = Place.find(session.options.place)
    place.require()
    if not session.options.yes:
        raise BloomError(f"{place.name} would be forgotten for good: say so with --yes")
    removed = remove(place)
    session.print_lines([f"removed {path}" for path in removed])
    if place.job is not None:
        left = [
            name
            for name in ("requests.seen", "requests.queue", "requests.sqlite")
            if (place.job / name).exists()
        ]
        if left:
            session.print_lines([f"{place.job} still holds {', '.join(left)}"])
    return 0


def load(session: Session) -> int:
    """Copy the filter of a job into Redis."""
    options = session.options
    place = Place.find(options.place)
    place.require()
    if place.is_file:
        raise BloomError(f"{place.name} is one file: give a job directory, which a crawl has")
    items = load_into_redis(place.path, options.url, session.key(options.url))
    session.print(
        {"items": items}, [f"copied {items:,} items from {options.place} to {session.where}"]
    )
    return 0


def export(session: Session) -> int:
    """Copy a filter in Redis into a job directory."""
    options = session.options
    path = Place.find(options.place).path
    try:
        items = save_from_redis(options.url, session.key(options.url), path)
    except KeyError as error:
        raise BloomError(error.args[0]) from None
    session.print(
        {"items": items}, [f"copied {items:,} items from {session.where} to {options.place}"]
    )
    return 0


def _info_lines(filter_: Description, unfinished: int | None) -> list[str]:
    about = "" if filter_.items_exact else "about "
    rows = [
        ("items", f"{about}{filter_.items:,}"),
        ("capacity", f"{filter_.capacity:,} in {counted(len(filter_.layers), 'layer')}"),
        ("memory", f"{in_bytes(filter_.bytes)} ({filter_.bits:,} bits, {_per_item(filter_)})"),
        ("file size", f"{filter_.file_bytes:,} bytes"),
        ("fill", f"{in_percent(filter_.fill_ratio)} of the bits are set"),
        ("error rate", f"{in_short(filter_.error_rate)} now, at most {filter_.error_rate_bound:g}"),
        ("pages lost", f"{pages(filter_.expected_pages_lost)} so far, probably"),
        ("secret", "present" if filter_.has_secret else "MISSING"),
        ("fingerprinter", _fingerprinter(filter_)),
        ("made", f"{filter_.created} by {filter_.software}"),
        ("closed", _closed(filter_)),
    ]
    if unfinished is not None:
        which = "pending" if filter_.held_by is None else "pending or in flight"
        rows.append(("requests", f"{unfinished:,} {which} in requests.sqlite"))
    lines = [filter_.place, *aligned(rows)]
    if len(filter_.layers) > 1:
        lines += ["", *table(_layer_rows(filter_))]
    return lines


def _layer_rows(filter_: Description) -> Iterator[list[str]]:
    yield ["layer", "capacity", "items", "memory", "probes", "fill", "error rate", "at most"]
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


def _per_item(filter_: Description) -> str:
    if not filter_.items:
        return "no items yet"
    return f"{filter_.bits / filter_.items:,.1f} an item"


def _fingerprinter(filter_: Description) -> str:
    if filter_.fingerprinter is None:
        return filter_.fingerprinter_identity or "not recorded"
    if filter_.fingerprinter_identity:
        return f"{filter_.fingerprinter} ({filter_.fingerprinter_identity})"
    return filter_.fingerprinter


def _closed(filter_: Description) -> str:
    if filter_.clean:
        return "cleanly"
    if filter_.held_by is None:
        return "NOT cleanly: its process was killed; items are recounted when it is opened"
    return f"no, process {filter_.held_by or '(unknown)'} uses it now"
