"""The subcommands that make or change a filter: add, merge, load, export, clear."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ..bloom.merging import merge as merge_places
from ..bloom.place import REDIS_SCHEMES
from ..bloom.removal import remove
from ..errors import BloomError
from ..fingerprints.identity import FingerprinterIdentity
from ..jobdir import JobDirectory
from ..migration.clean_stop import why_unclean
from ..migration.scrapy_redis_set import RedisSet
from ..migration.sources import Imported, Source, import_into, make_filter, source_in
from ..redis_backend.client import RedisClient, public_url
from ..redis_backend.copying import load_into_redis, save_from_redis
from ..redis_backend.crawl import remove_queue
from ..redis_backend.filter_status import places_of
from ..redis_backend.layout import in_one_slot
from ..redis_backend.lifecycle import delete_filter
from ..redis_backend.load import Loaded, load_job, load_scrapy_redis
from ..redis_backend.scheduler import RedisDurableScheduler
from ..reporting import counted
from ..sqlite_backend.status import unfinished_requests
from ..startup import is_component
from .progress import Progress
from .running import require_fingerprinter

if TYPE_CHECKING:
    from scrapy.utils.request import RequestFingerprinterProtocol

    from ..bloom.place import AnyFilter, Place
    from .running import Session

_PATIENCE = 30.0  # seconds to wait for a large set


def add(session: Session) -> int:
    """Import what the files hold into the filter, which is made if it is not there."""
    options = session.options
    place = session.place(options.place)
    fingerprinter = session.fingerprinter(session.crawler())
    figures = []
    with ExitStack() as stack:
        sources = [_source(session, name, fingerprinter, stack) for name in options.files]
        _warn_of_pending(options.files)
        bloom_filter = _filter(session, place, sources, fingerprinter)
        stack.callback(bloom_filter.close)
        for source in sources:
            with Progress(source.name, source.size, source.unit) as progress:
                imported = import_into(bloom_filter, source, progress.show)
            figures.append(_figures(source, imported))
            if not options.json:
                session.print_lines(_lines(source, imported))
        items = len(bloom_filter)
    session.print(
        {"place": options.place, "items": items, "files": figures},
        [f"{options.place} holds {counted(items, 'item')} now"],
    )
    return 0


def _source(
    session: Session, name: str, fingerprinter: RequestFingerprinterProtocol, stack: ExitStack
) -> Source:
    """Return the source called `name`; its connection, if it has one, lives in `stack`."""
    if not name.startswith(REDIS_SCHEMES):
        return source_in(Path(name), fingerprinter)
    if not session.options.key:
        raise BloomError(
            "a set in Redis needs --key, its name (in scrapy-redis that of the spider and"
            " ':dupefilter')"
        )
    client = stack.enter_context(RedisClient(name, _PATIENCE))
    return RedisSet(client, session.options.key, fingerprinter)


def _warn_of_pending(names: list[str]) -> None:
    """Say it if a requests.seen holds requests that were lost while they were pending."""
    for path in map(Path, names):
        job = JobDirectory(path.parent)
        if path == job.seen_file and (reason := why_unclean(job)):
            sys.stderr.write(
                f"{job.path} was not stopped cleanly ({reason}): {path} also holds what was"
                " pending then, and that will not be fetched\n"
            )


def _filter(
    session: Session,
    place: Place,
    sources: list[Source],
    fingerprinter: RequestFingerprinterProtocol,
) -> AnyFilter:
    """Return the filter at `place`, open; a new one if there is none."""
    options = session.options
    if place.exists:
        with ExitStack() as undo:
            bloom_filter = place.open()
            undo.callback(bloom_filter.close)
            require_fingerprinter(bloom_filter.identity, fingerprinter, place.name)
            undo.pop_all()
        return bloom_filter
    settings = session.bloom_settings(session.crawler())
    made = make_filter(
        place,
        sources,
        options.capacity or settings.capacity,
        settings.error_rate if options.error_rate is None else options.error_rate,
        FingerprinterIdentity.of(fingerprinter).to_text(),
        exact=settings.exact,
    )
    if not options.json:
        kind = "an exact filter" if made.exact else "a filter"
        session.print_lines([f"made {kind} for {made.capacity:,} in {place.path}"])
    return made


def _figures(source: Source, imported: Imported) -> dict[str, object]:
    return {
        "file": source.name,
        "added": imported.added,
        "known": imported.known,
        "skipped": source.skipped,
        "first_skipped": source.first_skipped or None,
    }


def _lines(source: Source, imported: Imported) -> Iterator[str]:
    yield f"{source.name}: {imported.added:,} added, {imported.known:,} were known"
    if source.skipped:
        skipped = counted(source.skipped, source.noun)
        yield f"  {skipped} skipped, the first is {source.first_skipped}"


def merge(session: Session) -> int:
    """Join filters of one origin into one of them."""
    options = session.options
    place = session.place(options.place)
    before, after = merge_places(
        place,
        [session.place(name) for name in options.sources],
        over_capacity=options.over_capacity,
    )
    session.print(
        {"place": options.place, "items_before": before, "items": after},
        [f"{options.place} holds {counted(after, 'item')} now (by its bits), {before:,} before"],
    )
    return 0


def load(session: Session) -> int:
    """Copy the filter of a job, or a crawl that is not finished, into Redis."""
    options = session.options
    key = session.key(options.url)
    crawler = session.crawler()
    where = f"{public_url(options.url)} {key}"
    if options.place.startswith(REDIS_SCHEMES):
        if not options.spider:
            raise BloomError("a crawl of scrapy-redis needs --spider, the name of its spider")
        fingerprinter = session.fingerprinter(crawler)
        with RedisClient(options.place, _PATIENCE) as source, RedisClient(options.url) as client:
            loaded = load_scrapy_redis(
                client, in_one_slot(key), source, options.spider, crawler.settings, fingerprinter
            )
            name = f"scrapy-redis's {options.spider!r} at {source.name}"
        session.print(asdict(loaded), _loaded_lines(loaded, name, where))
        return 0
    place = _directory(session.place(options.place))
    place.require()
    if is_component(crawler.settings["SCHEDULER"], RedisDurableScheduler):
        if place.job is None:
            raise BloomError(f"{place.name} is a filter alone: give a job directory, JOBDIR")
        job = JobDirectory(place.job)
        with RedisClient(options.url) as client:
            loaded = load_job(client, in_one_slot(key), job, crawler.settings)
        session.print(asdict(loaded), _loaded_lines(loaded, options.place, where))
        return 0
    if place.job and (pending := unfinished_requests(place.job)):
        sys.stderr.write(
            f"{options.place} has {counted(pending, 'pending request')}, which only"
            " RedisDurableScheduler can go on with: they are not copied, though the filter has"
            " seen them. To load them too, remove the copy, and run this with the workers'"
            " settings, or with -s SCHEDULER=scrapy_bloom.RedisDurableScheduler\n"
        )
    items = load_into_redis(place.path, options.url, key)
    session.print(
        {"items": items}, [f"copied {counted(items, 'item')} from {options.place} to {where}"]
    )
    return 0


def _loaded_lines(loaded: Loaded, source: str, where: str) -> Iterator[str]:
    yield (
        f"copied {counted(loaded.items, 'item')} and {counted(loaded.pending, 'pending request')}"
        f" from {source} to {where}, for RedisDurableScheduler"
    )
    if loaded.failed:
        yield f"  {source} keeps {counted(loaded.failed, 'failed request')}"
    if loaded.items_left:
        yield (
            f"  {source} keeps {counted(loaded.items_left, 'item')} that no feed has got yet: start"
            " it once more and stop it with Ctrl-C to have them written"
        )


def export(session: Session) -> int:
    """Copy a filter in Redis into a job directory."""
    options = session.options
    key = session.key(options.url)
    path = _directory(session.place(options.place)).path
    with session.redis(options.url) as shared:
        found = shared.key
    items = save_from_redis(options.url, found, path)
    where = f"{public_url(options.url)} {key}"
    session.print(
        {"items": items}, [f"copied {counted(items, 'item')} from {where} to {options.place}"]
    )
    return 0


def _directory(place: Place) -> Place:
    """Return `place`. Raises BloomError unless a filter there is, or would be, one of a crawl."""
    if place.is_file:
        raise BloomError(f"{place.name} is one file: give a job directory, which a crawl has")
    return place


def clear(session: Session) -> int:
    """Remove a filter from the disk, or from Redis."""
    options = session.options
    if options.place.startswith(REDIS_SCHEMES):
        key = session.key(options.place)
        name = f"{public_url(options.place)} {key}"
        _require_yes(session, name)
        with RedisClient(options.place) as client:
            removed = 0
            for each in places_of(client, key):
                if each == in_one_slot(key):
                    removed += remove_queue(client, each)
                removed += delete_filter(client, each)
            if not removed:
                raise BloomError(f"{name} is no filter, and nothing is left of one")
        session.print_lines([f"deleted {name}"])
        return 0
    place = session.place(options.place)
    place.require()
    _require_yes(session, place.name)
    session.print_lines([f"removed {path}" for path in remove(place)])
    if place.job is not None:
        job = JobDirectory(place.job)
        others = (job.seen_file, job.scrapy_queue, job.requests)
        if left := [path.name for path in others if path.exists()]:
            session.print_lines([f"{place.job} still holds {', '.join(left)}"])
    return 0


def _require_yes(session: Session, name: str) -> None:
    if not session.options.yes:
        raise BloomError(f"{name} would be forgotten for good: say so with --yes")
