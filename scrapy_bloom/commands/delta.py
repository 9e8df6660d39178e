"""The subcommands about a delta store: those of filters, and `delta`."""

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
from ..delta.file_store import FileDeltaStore, open_slice, shared
from ..delta.importing import is_deltafetchs, marks_in
from ..delta.settings import key_of_fingerprint
from ..delta.slices import Shape, Slice, read
from ..errors import BloomError
from ..fingerprints.identity import FingerprinterIdentity
from ..migration.sources import source_in
from ..quantities import DAY, seconds
from ..reporting import counted, in_bytes
from ..settings import DELTA_DAYS, BloomSettings
from .running import print_seen, require_fingerprinter, table
from .target import Kind

if TYPE_CHECKING:
    from .running import Session


def info(session: Session, directory: Path) -> int:
    """Print the slices of a delta store."""
    rows, figures = [["slice", "from", "until", "pages", "memory", ""]], []
    with shared(directory):
        found = read(directory)
        for each in found.slices:
            with open_slice(directory / each.name, read_only=True) as bloom_filter:
                pages, nbytes = len(bloom_filter), bloom_filter.nbytes + bloom_filter.table_nbytes
            expired = "" if each.expired is None else "expired"
            written = [_written(each.start), _written(each.end)]
            rows.append([each.name, *written, f"{pages:,}", in_bytes(nbytes), expired])
            figures.append({**vars(each), "pages": pages, "bytes": nbytes})
    days = None if found.longest == inf else found.longest / DAY
    kept = "for ever" if days is None else f"for {days:g} days"
    slices = counted(len(figures), "slice")
    lines = [f"{directory}, a delta store: {slices}, kept {kept}"]
    if figures:
        lines += ["", *table(rows)]
    session.print({"place": str(directory), "days": days, "slices": figures}, lines)
    return 0


def check(session: Session, directory: Path) -> int:
    """Print for each URL whether the delta store has it."""
    store = _store_at(session, directory)
    store.look()
    with closing(store):
        return print_seen(
            session,
            lambda fingerprint: store.knows(key_of_fingerprint(fingerprint)),
            read(directory).identity,
            session.options.place,
        )


def add(session: Session, directory: Path) -> int:
    """Import what the files hold into the delta store, which is made if it is missing."""
    options = session.options
    fingerprinter = session.fingerprinter(session.crawler())
    require_fingerprinter(read(directory).identity, fingerprinter, options.place)
    store = _store_at(session, directory, FingerprinterIdentity.of(fingerprinter).to_text())
    now, figures = time.time(), []
    for path in map(Path, options.files):
        if is_deltafetchs(path):
            marks = dict(marks_in(path, now))
        else:
            batches = source_in(path, fingerprinter).batches()
            marks = {key_of_fingerprint(key): now for keys, _ in batches for key in keys}
        store.add(marks.items())
        figures.append({"file": str(path), "keys": len(marks)})
    session.print(
        {"place": options.place, "files": figures},
        [f"{each['file']}: {each['keys']:,} keys, which may be known already" for each in figures],
    )
    return 0


def merge(session: Session, directory: Path, sources: list[Path]) -> int:
    """Copy the slices of `sources` into a delta store, each with its own error rate."""
    for source in sources:
        if source.samefile(directory):
            raise BloomError(f"{source} is no other delta store: give their directories")
    count = _store_at(session, directory).merge(sources)
    session.print({"slices": count}, [f"{directory} has {counted(count, 'slice')} now"])
    return 0


def clear(session: Session, directory: Path) -> int:
    """Remove all slices of a delta store."""
    _store_at(session, directory).clear()
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
    return found


def delta(session: Session) -> int:
    """Forget what was done before some time."""
    older = seconds(session.options.older)
    if older is None:
        raise BloomError(
            f"--older is {session.options.older!r}: it must be days, or text such as 12h or 30d"
        )
    store = _store_at(session, session.target(session.options.place, Kind.DELTA_STORE).path)
    dropped = store.drop_older(older)
    session.print(
        {"dropped": [vars(each) for each in dropped]},
        [f"forgot {counted(len(dropped), 'slice')}", *map(_line, dropped)],
    )
    return 0


def _line(each: Slice) -> str:
    return f"  {_written(each.start)} to {_written(each.end)}"


def _store_at(session: Session, directory: Path, identity: str = "") -> FileDeltaStore:
    settings = session.crawler().settings
    general = BloomSettings.read(settings)
    shape = Shape(
        general.capacity, general.error_rate, general.exact, DELTA_DAYS.read(settings), identity
    )
    return FileDeltaStore(directory, shape)


def _written(when: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(when))
    except (OSError, OverflowError):  # as a clock or an import has left it
        return f"{when:g} s"
