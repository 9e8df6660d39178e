"""The subcommands of filters, for a delta store in a directory."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from ..bloom.directory import layer_path
from ..bloom.inspection import Finding
from ..bloom.inspection import verify as findings_in
from ..delta.file_store import FileDeltaStore
from ..delta.importing import is_deltafetchs, marks_in
from ..delta.settings import key_of_fingerprint
from ..delta.slice_store import open_slice, shared
from ..delta.slices import Shape, read
from ..delta.table import Table
from ..errors import BloomError, FilterFileError
from ..fingerprints.identity import FingerprinterIdentity
from ..migration.sources import source_in
from ..quantities import DAY
from ..reporting import counted, in_bytes
from ..settings import DELTA_DAYS, DELTA_MEMORY, BloomSettings
from .running import print_seen, require_fingerprinter, table

if TYPE_CHECKING:
    from .running import Session


def info(session: Session, directory: Path) -> int:
    """Print what is in the table and in the slices of a delta store."""
    rows, figures = [["", "from", "until", "pages", "memory", ""]], []
    with shared(directory):
        found = read(directory)
        for each in found.slices:
            with open_slice(directory / each.name, read_only=True) as bloom_filter:
                pages, nbytes = len(bloom_filter), bloom_filter.nbytes + bloom_filter.table_nbytes
            expired = "" if each.expired is None else "expired"
            times = [written(each.start), written(each.end)]
            rows.append([each.name, *times, f"{pages:,}", in_bytes(nbytes), expired])
            figures.append({**vars(each), "pages": pages, "bytes": nbytes})
    longest, parts, described = found.longest, [], None
    with closing(Table(directory)) as table_:
        table_.look()
        if table_.is_open:
            longest = max(longest, table_.longest)
            described = {
                "pages": table_.count,
                "digests": table_.digests,
                "oldest": table_.oldest,
                "newest": table_.newest,
                "bytes": table_.nbytes,
            }
            parts.append(counted(table_.count, "page"))
            parts += [counted(table_.digests, "digest")] if table_.digests else []
            times = ["" if t is None else written(t) for t in (table_.oldest, table_.newest)]
            rows.insert(1, ["table", *times, f"{table_.count:,}", in_bytes(table_.nbytes), ""])
    if figures or described is None:
        parts.append(counted(len(figures), "slice"))
    days = None if longest == inf else longest / DAY
    kept = "for ever" if days is None else f"for {days:g} days"
    lines = [f"{directory}, a delta store: {' and '.join(parts)}, kept {kept}"]
    if rows[1:]:
        lines += ["", *table(rows)]
    session.print(
        {"place": str(directory), "days": days, "table": described, "slices": figures}, lines
    )
    return 0


def check(session: Session, directory: Path) -> int:
    """Print for each URL whether the delta store has it."""
    with closing(store_at(session, directory)) as store:
        store.look()
        return print_seen(
            session,
            lambda fingerprint: store.knows(key_of_fingerprint(fingerprint)),
            store.identity,
            session.options.place,
        )


def add(session: Session, directory: Path) -> int:
    """Import what the files hold into the delta store, which is made if it is missing."""
    options = session.options
    fingerprinter = session.fingerprinter(session.crawler())
    store = store_at(session, directory, FingerprinterIdentity.of(fingerprinter).to_text())
    store.table.roll_back()
    store.look()
    require_fingerprinter(store.identity, fingerprinter, options.place)
    now, figures = time.time(), []
    for path in map(Path, options.files):
        if is_deltafetchs(path):
            marks = dict(marks_in(path, now))
        else:
            batches = source_in(path, fingerprinter).batches()
            marks = {key_of_fingerprint(key): now for keys, _ in batches for key in keys}
        store.add(marks.items())
        figures.append({"file": str(path), "keys": len(marks)})
    store.close()
    session.print(
        {"place": options.place, "files": figures},
        [f"{each['file']}: {each['keys']:,} keys, which may be known already" for each in figures],
    )
    return 0


def merge(session: Session, directory: Path, sources: list[Path]) -> int:
    """Copy the marks of `sources` into a delta store, slices each with its own error rate."""
    for source in sources:
        if source.samefile(directory):
            raise BloomError(f"{source} is no other delta store: give their directories")
    slices = store_at(session, directory).merge(sources)
    with closing(Table(directory)) as merged:
        merged.look()
        figures = {"slices": slices, "pages": merged.count}
        has = [counted(slices, "slice")] if slices or not merged.is_open else []
        has += [counted(merged.count, "page")] if merged.is_open else []
    session.print(figures, [f"{directory} has {' and '.join(has)} now"])
    return 0


def clear(session: Session, directory: Path) -> int:
    """Remove all marks of a delta store."""
    store_at(session, directory).clear()
    session.print_lines([f"forgot what {directory} knew"])
    return 0


def findings(directory: Path) -> list[Finding]:
    """Return what was found out about each file of the delta store."""
    found: list[Finding] = []
    for each in read(directory).slices:
        path = directory / each.name
        if not layer_path(path, 0).exists():
            found.append(Finding(str(path), sound=False, text="the slice is missing"))
            continue
        # the finding about a whole slice has no path
        found += (replace(finding, path=finding.path or str(path)) for finding in findings_in(path))
    with closing(Table(directory)) as table_:
        try:
            table_.look()
            if table_.is_open and (wrong := table_.findings()):
                found.append(Finding(str(table_.path), sound=False, text=wrong))
            elif table_.is_open:
                pages = counted(table_.count, "page")
                found.append(Finding(str(table_.path), sound=True, text=f"{pages}, each readable"))
        except FilterFileError as error:
            found.append(Finding(str(table_.path), sound=False, text=str(error)))
    return found


def store_at(session: Session, directory: Path, identity: str = "") -> FileDeltaStore:
    """Return the delta store in `directory`, with the settings of the project."""
    settings = session.crawler().settings
    general = BloomSettings.read(settings)
    shape = Shape(
        general.capacity, general.error_rate, general.exact, DELTA_DAYS.read(settings), identity
    )
    return FileDeltaStore(directory, shape, memory=DELTA_MEMORY.read(settings))


def written(when: float) -> str:
    """Return a time as text."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(when))
    except (OSError, OverflowError):  # as a clock or an import has left it
        return f"{when:g} s"
