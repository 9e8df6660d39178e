"""The subcommands about requests: check and add."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy import Request

from ..bloom.growing import ScalableBloomFilter
from ..bloom.place import REDIS_SCHEMES, AnyFilter, Place
from ..errors import BloomError, IncompatibleFilterError
from ..fingerprints.identity import FingerprinterIdentity
from ..migration.clean_stop import why_unclean
from ..migration.scrapy_redis_set import RedisSet
from ..migration.sources import Imported, Source, import_into, source
from ..reporting import counted
from .progress import Progress

if TYPE_CHECKING:
    from scrapy.utils.request import RequestFingerprinterProtocol

    from ..shared.inspection import RedisPlace
    from .running import Session


def check(session: Session) -> int:
    """Print for each URL whether the filter has seen it."""
    options = session.options
    fingerprinter = session.fingerprinter(session.crawler())
    answers = []
    with _look(session, options.place) as bloom_filter:
        _require_fingerprinter(bloom_filter.identity, fingerprinter, options.place)
        for url in _urls(options.urls):
            try:
                request = Request(url, method=options.method, body=options.body)
                fingerprint = fingerprinter.fingerprint(request)
            except Exception as error:
                raise BloomError(f"{url!r} has no fingerprint: {error}") from error
            answers.append((url, fingerprint in bloom_filter))
            if not options.json:
                print("seen" if answers[-1][1] else "new ", url)  # noqa: T201
    if options.json:
        session.print([{"url": url, "seen": seen} for url, seen in answers], [])
    return 0 if all(seen for _, seen in answers) else 1


def _look(session: Session, name: str) -> AbstractContextManager[AnyFilter | RedisPlace]:
    if name.startswith(REDIS_SCHEMES):
        return session.redis(name)
    return Place.find(name).open(read_only=True)


def add(session: Session) -> int:
    """Add what the files hold to the filter, which is made if it is not there."""
    options = session.options
    if options.place.startswith(REDIS_SCHEMES):
        raise BloomError(
            f"{options.place.partition('://')[0]}:// cannot be added to: add to a job directory,"
            " then copy that with 'scrapy bloom load'"
        )
    place = Place.find(options.place)
    crawler = session.crawler()
    fingerprinter = session.fingerprinter(crawler)
    sources = [_source(name, fingerprinter, options.key) for name in options.files]
    _warn_of_pending(options.files)
    figures = []
    with _open(session, place, sources, fingerprinter) as bloom_filter:
        for each in sources:
            with Progress(each.name, each.size, each.unit) as progress:
                imported = import_into(bloom_filter, each, progress.show)
            figures.append(_figures(each, imported))
            if not options.json:
                session.print_lines(_lines(each, imported))
        items = len(bloom_filter)
    session.print(
        {"place": options.place, "items": items, "files": figures},
        [f"{options.place} holds {items:,} items now"],
    )
    return 0


def _source(name: str, fingerprinter: RequestFingerprinterProtocol, key: str | None) -> Source:
    if name.startswith(REDIS_SCHEMES):
        return RedisSet(name, key, fingerprinter)
    return source(Path(name), fingerprinter)


def _warn_of_pending(names: list[str]) -> None:
    """Say it if a requests.seen holds requests that were lost while they were pending."""
    for path in map(Path, names):
        if path.name == "requests.seen" and (reason := why_unclean(path.parent)):
            sys.stderr.write(
                f"{path.parent} was not stopped cleanly ({reason}): {path} also holds what was"
                " pending then, and that will not be fetched\n"
            )


def _open(
    session: Session,
    place: Place,
    sources: list[Source],
    fingerprinter: RequestFingerprinterProtocol,
) -> AnyFilter:
    """Open the filter at `place`, or make it with room for all that comes."""
    if place.exists:
        bloom_filter = place.open()
        try:
            _require_fingerprinter(bloom_filter.identity, fingerprinter, str(place.path))
        except BaseException:
            bloom_filter.close()
            raise
        return bloom_filter
    if place.is_file:
        raise BloomError(
            f"{place.name} is not there, and what a crawl uses is a directory: give a job"
            " directory, which gets a filter"
        )
    options = session.options
    settings = session.bloom_settings(session.crawler())
    capacity = options.capacity or settings.capacity
    expected = sum(each.keys for each in sources)
    place.path.parent.mkdir(parents=True, exist_ok=True)
    bloom_filter = ScalableBloomFilter(
        max(capacity, expected),
        settings.error_rate if options.error_rate is None else options.error_rate,
        place.path,
        identity=FingerprinterIdentity.of(fingerprinter).to_text(),
    )
    if not options.json:
        session.print_lines([f"made a filter for {max(capacity, expected):,} in {place.path}"])
    return bloom_filter


def _require_fingerprinter(
    identity: str, fingerprinter: RequestFingerprinterProtocol, place: str
) -> None:
    """Raise IncompatibleFilterError if the filter knows other fingerprints."""
    if not identity:
        return
    try:
        then = FingerprinterIdentity.from_text(identity)
    except ValueError:
        return  # made by hand, with some identity of its own
    try:
        warning = then.require_same(FingerprinterIdentity.of(fingerprinter), place)
    except IncompatibleFilterError as error:
        raise IncompatibleFilterError(
            f"{error}; for this command: run it in the job's project, with --spider if its spider"
            " has settings of its own, or with -s REQUEST_FINGERPRINTER_CLASS=..."
        ) from None
    if warning:
        sys.stderr.write(f"{warning}\n")


def _urls(given: list[str]) -> Iterator[str]:
    """Yield the URLs given, and those on standard input for `-`."""
    for url in given:
        if url == "-":
            yield from filter(None, map(str.strip, sys.stdin))
        else:
            yield url


def _figures(each: Source, imported: Imported) -> dict[str, object]:
    return {
        "file": each.name,
        "added": imported.added,
        "known": imported.known,
        "skipped": each.skipped,
        "first_skipped": each.first_skipped or None,
    }


def _lines(each: Source, imported: Imported) -> Iterator[str]:
    yield f"{each.name}: {imported.added:,} added, {imported.known:,} were known"
    if each.skipped:
        yield f"  {counted(each.skipped, each.noun)} skipped, the first is {each.first_skipped}"
