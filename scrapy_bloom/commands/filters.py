"""The subcommands about a filter, wherever it is: info, check, verify, add, merge, clear.

There is a class for each kind of place, with a method for what each subcommand asks of it; that of
a delta store is in delta.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from ..amounts import counted, in_bytes, pages_text
from ..bloom import GrowingFilter
from ..bloom.fixed import BloomFilter
from ..bloom.inspection import Description, Finding, describe, open_filter
from ..bloom.inspection import verify as findings_in
from ..bloom.merging import merge as merge_filters
from ..bloom.removal import remove_filter
from ..bloom.sizing import check_error_rate
from ..delta.importing import is_deltafetchs
from ..errors import BloomError
from ..fingerprints import FingerprinterIdentity
from ..fingerprints.recorded import fingerprinter_in
from ..migration.sources import Source, import_into, make_filter
from ..redis.client import RedisClient, public_url
from ..redis.filter import delete_filter, stored_header
from ..redis.layout import in_one_slot
from ..redis.lifecycle import remove_queue
from ..redis.status import places_of
from ..redis.verify import queue_findings
from ..settings import BloomSettings
from ..sqlite.status import JobState, JobView, job_view
from ..texts import waiting_text
from .context import Context, Known, Place, Printed, aligned, fingerprints_of, table
from .crawls import queue_in
from .delta import DeltaPlace
from .sources import source_called, told_skipped, warn_of_pending
from .target import Kind, Target
from .texts import in_percent, in_short

_ON_DISK = (Kind.FILTER, Kind.FILE)
_READABLE = (*_ON_DISK, Kind.LAYER, Kind.DELTA_STORE)


def info(session: Context) -> None:
    """Print what there is to know about a filter: requests, capacity, layers, memory, error rate,
    pages probably lost, fingerprinter, versions, whether it was closed cleanly, and which process
    uses it; of a job or a crawl in Redis also its state, and what is pending and has failed.
    Changes nothing, and works while the job runs."""
    session.print(*_place(session, *_READABLE).described())


def check(session: Context) -> int:
    """Say for each URL whether the filter has seen it, through the job's own fingerprinter. The
    exit status is 1 if any is new. Changes nothing."""
    answers = []
    with _place(session, *_READABLE).knowing() as (name, identity, knows):
        for url, fingerprint in fingerprints_of(session, identity, name):
            seen = knows(fingerprint)
            answers.append({"url": url, "seen": seen})
            session.print_now([f"{'seen' if seen else 'new '} {url}"])
    return session.print(answers, [], found=all(answer["seen"] for answer in answers))


def verify(session: Context) -> None:
    """Read a whole filter, compare headers, sizes, checksums and counts with the bits, and say
    whether it can be trusted (exit status 0) or not (2). Changes nothing."""
    name, findings = _place(session, *_READABLE).findings()
    trusted = all(finding.sound for finding in findings)
    lines = [
        f"{'ok ' if finding.sound else 'BAD'}  {finding.path or name}:"
        f" {finding.text.removeprefix(f'{finding.path} ')}"
        for finding in findings
    ]
    lines += [f"{name} can be trusted"] if trusted else []
    session.print({"trusted": trusted, "findings": [*map(asdict, findings)]}, lines)
    if not trusted:
        raise BloomError(f"{name} cannot be trusted")


def add(session: Context) -> None:
    """Import URLs into a filter, one a line, as the GET requests they would be made into, or
    fingerprints: a requests.seen of Scrapy in either format, which its content tells, or the set of
    a scrapy-redis dupefilter. A PLACE that holds no filter gets one. What is known already stays as
    it is, so an interrupted import can be run again."""
    session.print(*_on_disk(session, *_ON_DISK, Kind.NEW, Kind.DELTA_STORE).add())


def merge(session: Context) -> None:
    """Join filters into one of them, DEST. They must be of one origin: copies of one filter that
    have gone separate ways (same secret, shape and fingerprinter)."""
    session.print(*_on_disk(session, *_ON_DISK, Kind.DELTA_STORE).merge())


def clear(session: Context) -> None:
    """Remove a filter from the disk, sound or not, or from Redis. What else is in the job directory
    stays."""
    place = _place(session, *_ON_DISK, Kind.DELTA_STORE)
    if not session.options.yes:
        raise BloomError(f"{place.name} would be forgotten for good: say so with --yes")
    session.print_lines(place.clear())


def _place(session: Context, *takes: Kind) -> SharedPlace | FilterPlace | DeltaPlace:
    """Return the PLACE, of a kind that is taken, or in Redis. Raises BloomError."""
    target = Target.find(session.options.place)
    if Kind.REDIS in target.kinds:
        return SharedPlace(session, target)
    return _on_disk(session, *takes, Kind.REDIS)


def _on_disk(session: Context, *takes: Kind) -> FilterPlace | DeltaPlace:
    target = Target.find(session.options.place).require(*takes)
    return (DeltaPlace if Kind.DELTA_STORE in target.kinds else FilterPlace)(session, target)


class SharedPlace(Place):
    """A filter in Redis, and the crawl beside it."""

    @cached_property
    def name(self) -> str:
        """URL and key."""
        return f"{public_url(self.target.name)} {self.session.key(self.target.name)}"

    def described(self) -> Printed:
        """Return the description of both."""
        with self.session.shared_filter(self.target.name) as shared:
            description = shared.describe()
            queue, lines = queue_in(shared.client, shared.key)
        return {**description.figures, "queue": queue}, [*_info_lines(description), *lines]

    @contextmanager
    def knowing(self) -> Iterator[Known]:
        """Yield what the filter has seen."""
        with self.session.shared_filter(self.target.name) as shared:
            yield shared.name, shared.filter.header.identity, shared.filter.__contains__

    def findings(self) -> tuple[str, list[Finding]]:
        """Return the findings about both."""
        with self.session.shared_filter(self.target.name) as shared:
            return shared.name, [shared.verify(), *queue_findings(shared.client, shared.key)]

    def clear(self) -> list[str]:
        """Remove both."""
        key = self.session.key(self.target.name)
        with RedisClient(self.target.name) as client:
            removed, places = 0, places_of(client, key)
            for each in places:
                stored_header(client, each)  # of another format nothing is removed
            for each in places:
                if each == in_one_slot(key):
                    removed += remove_queue(client, each)
                removed += delete_filter(client, each)
            if not removed:
                raise BloomError(f"{self.name} is no filter, and nothing is left of one")
        return [f"deleted {self.name}"]


class FilterPlace(Place):
    """A filter on the disk, of a job or alone."""

    def described(self) -> Printed:
        """Return its description."""
        target = self.target
        description = describe(self.name, target.path, fingerprinter_in)
        state, unfinished, waiting = JobView() if target.job is None else job_view(target.job.path)
        figures = {
            **description.figures,
            "job": state and state._asdict(),
            "unfinished_requests": unfinished,
            **dict(zip(("later", "next_due", "held"), waiting, strict=True)),
        }
        rows = [
            ("closed", _closed(description)),
            ("job", _job(state)),
            ("pending", _pending(description, unfinished)),
            ("waiting", waiting_text(*waiting)),
        ]
        return figures, _info_lines(description, f"{description.file_bytes:,} bytes", rows)

    @contextmanager
    def knowing(self) -> Iterator[Known]:
        """Yield what it has seen."""
        with open_filter(self.target.path, read_only=True) as bloom_filter:
            yield self.name, bloom_filter.identity, bloom_filter.__contains__

    def findings(self) -> tuple[str, list[Finding]]:
        """Return the findings about each file."""
        return self.name, [*findings_in(self.target.path)]

    def add(self) -> Printed:
        """Import what the files hold; it is made if it is not there."""
        session, target, options = self.session, self.target, self.session.options
        if Kind.NEW in target.kinds and any(map(is_deltafetchs, map(Path, options.files))):
            return DeltaPlace(session, replace(target, path=Path(self.name))).add()
        figures = []
        with ExitStack() as stack:
            sources = [source_called(session, name, stack) for name in options.files]
            warn_of_pending(options.files)
            bloom_filter = self._open(sources)
            stack.callback(bloom_filter.close)
            session.require_fingerprinter(bloom_filter.identity, target.name)
            for source in sources:
                with progress(source.name, source.size, source.unit) as show:
                    imported = import_into(bloom_filter, source, show)
                figures.append({"file": source.name, **asdict(imported)})
                told = f"{source.name}: {imported.added:,} added, {imported.known:,} were known"
                session.print_now([told, *told_skipped(source)])
            items = len(bloom_filter)
        line = f"{self.name} holds {counted(items, 'item')} now"
        return {"place": self.name, "items": items, "files": figures}, [line]

    def _open(self, sources: list[Source]) -> BloomFilter | GrowingFilter:
        """Return the filter, open; a new one for what the sources hold if there is none."""
        job, options = self.target.job, self.session.options
        if Kind.NEW not in self.target.kinds:
            return open_filter(self.target.path)
        assert job is not None
        settings = BloomSettings.read(self.session.crawler.settings)
        rate = settings.error_rate if options.error_rate is None else options.error_rate
        check_error_rate(rate, "--error-rate")
        capacity = options.capacity or settings.capacity
        settings = settings.but(capacity=capacity, error_rate=rate)
        identity = FingerprinterIdentity.of(self.session.fingerprinter).to_text()
        made = make_filter(job, sources, settings, identity)
        kind = "an exact filter" if made.exact else "a filter"
        self.session.print_now([f"made {kind} for {made.capacity:,} in {self.target.path}"])
        return made

    def merge(self) -> Printed:
        """Join others of one origin into it."""
        options = self.session.options
        sources = [Target.find(name).require(*_ON_DISK).path for name in options.sources]
        path = self.target.path
        before, after = merge_filters(path, sources, over_capacity=options.over_capacity)
        line = f"{self.name} holds {counted(after, 'item')} now (by its bits), {before:,} before"
        return {"place": self.name, "items_before": before, "items": after}, [line]

    def clear(self) -> list[str]:
        """Remove its files."""
        lines = [f"removed {path}" for path in remove_filter(self.target.path)]
        if (job := self.target.job) is not None:
            others = (job.seen_file, job.scrapy_queue, job.requests)
            if left := [path.name for path in others if path.exists()]:
                lines.append(f"{job.path} still holds {', '.join(left)}")
        return lines


def _info_lines(
    filter_: Description, file_size: str = "", more: Sequence[tuple[str, str]] = ()
) -> list[str]:
    about = "" if filter_.items_exact else "about "
    in_files = f"{in_bytes(filter_.table_bytes)} of the files"
    rows = [
        ("requests", f"{about}{filter_.items:,}"),
        ("capacity", f"{filter_.capacity:,} in {counted(len(filter_.layers), 'layer')}"),
        ("memory", _a_request(filter_, in_bytes(filter_.bytes), filter_.bits, "bits")),
        ("exact table", _a_request(filter_, in_files, filter_.table_bytes, "bytes")),
        ("file size", file_size),
        ("fill", f"{in_percent(filter_.fill_ratio)} of the bits are set"),
        ("error rate", f"{in_short(filter_.error_rate)} now, at most {filter_.error_rate_bound:g}"),
        ("pages lost", f"{pages_text(filter_.expected_pages_lost)} so far, probably"),
        ("secret", "present" if filter_.has_secret else "MISSING"),
        ("fingerprinter", filter_.fingerprinter or "not recorded"),
        ("identity", filter_.fingerprinter_identity or ""),
        ("made", filter_.created),
        ("made by", filter_.software),
        *more,
    ]
    lines = [filter_.place, *aligned(rows)]
    if len(filter_.layers) > 1:
        lines += ["", *table(_layer_rows(filter_))]
    return lines


def _a_request(filter_: Description, text: str, amount: float, unit: str) -> str:
    # in a filter that is nearly empty they say nothing
    if amount and filter_.items >= filter_.capacity / 2:
        text += f" ({amount / filter_.items:.1f} {unit} a request)"
    return text if amount else ""


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


def _pending(filter_: Description, unfinished: int | None) -> str:
    if unfinished is None:
        return ""
    return counted(unfinished, "request") + (filter_.held_by is not None) * ", or in flight"


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


@contextmanager
def progress(label: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Yield a function that shows how many of the total are done: in a bar of tqdm's on standard
    error, if that is a terminal and tqdm is installed (the extra `cli`), else nowhere."""
    tqdm: Any = None
    if sys.stderr.isatty():
        with suppress(ImportError):
            tqdm = import_module("tqdm").tqdm
    if tqdm is None:
        yield lambda done: None
        return
    with tqdm(total=total or None, desc=label, unit=unit, unit_scale=True, leave=False) as bar:
        yield lambda done: bar.update(done - bar.n)
