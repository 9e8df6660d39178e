"""The subcommands for a memory between crawls: those of filters, and `delta`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from ..bloom.inspection import Finding
from ..bloom.inspection import verify as findings_in
from ..bloom.place import REDIS_SCHEMES, Place
from ..delta.importing import is_deltafetchs, marks_in
from ..delta.memory import Memory, open_slice, shared
from ..delta.settings import DAY, key_of_fingerprint, period_in, seconds
from ..delta.slices import MANIFEST, Shape, Slice, read
from ..errors import BloomError
from ..fingerprints.identity import FingerprinterIdentity
from ..migration.sources import source_in
from ..reporting import counted, in_bytes
from .inspection import print_seen
from .job_arguments import add_json
from .running import require_fingerprinter, table

if TYPE_CHECKING:
    from .running import Session

Run = Callable[["Session"], int]


def or_memory(name: str, run: Run) -> Run:
    """Return `run`, a subcommand for filters, or what does the same for a memory where one is
    named."""
    for_memory = _FOR_MEMORIES.get(name)
    if for_memory is None:
        return run

    def either(session: Session) -> int:
        return for_memory(session) if _means_memory(session) else run(session)

    return either


def _means_memory(session: Session) -> bool:
    options = session.options
    if options.place.startswith(REDIS_SCHEMES):
        return False
    if (Path(options.place) / MANIFEST).exists():
        return True
    files = [] if options.subcommand != "add" else map(Path, options.files)
    # a directory that is not there yet: by what is to be imported
    return not Place.find(options.place).exists and any(map(is_deltafetchs, files))


def _directory(session: Session) -> Path:
    path = Path(session.options.place)
    if not (path / MANIFEST).exists():
        raise BloomError(
            f"{path} holds no memory between crawls (there is no {MANIFEST}): give the"
            " BLOOM_DELTA_DIR of a spider"
        )
    return path


def _info(session: Session) -> int:
    directory = _directory(session)
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
    lines = [f"{directory}, a memory between crawls: {slices}, kept {kept}"]
    if figures:
        lines += ["", *table(rows)]
    session.print({"place": str(directory), "days": days, "slices": figures}, lines)
    return 0


def _check(session: Session) -> int:
    directory = _directory(session)
    memory = _memory(session, directory)
    memory.look()
    with closing(memory):
        return print_seen(
            session,
            lambda fingerprint: memory.knows(key_of_fingerprint(fingerprint)),
            read(directory).identity,
            session.options.place,
        )


def _add(session: Session) -> int:
    options = session.options
    directory = Path(options.place)
    fingerprinter = session.fingerprinter(session.crawler())
    require_fingerprinter(read(directory).identity, fingerprinter, options.place)
    memory = _memory(session, directory, FingerprinterIdentity.of(fingerprinter).to_text())
    now, figures = time.time(), []
    for path in map(Path, options.files):
        if is_deltafetchs(path):
            marks = dict(marks_in(path, now))
        else:
            batches = source_in(path, fingerprinter).batches()
            marks = {key_of_fingerprint(key): now for keys, _ in batches for key in keys}
        memory.add(marks.items())
        figures.append({"file": str(path), "keys": len(marks)})
    session.print(
        {"place": options.place, "files": figures},
        [f"{each['file']}: {each['keys']:,} keys, which may be known already" for each in figures],
    )
    return 0


def _merge(session: Session) -> int:
    """Copy the slices of the others: as many more are asked, each with its error rate."""
    directory = _directory(session)
    sources = [Path(name) for name in session.options.sources]
    for source in sources:
        if not (source / MANIFEST).exists() or source.samefile(directory):
            raise BloomError(f"{source} is no other memory between crawls: give their directories")
    count = _memory(session, directory).merge(sources)
    session.print({"slices": count}, [f"{directory} has {counted(count, 'slice')} now"])
    return 0


def _clear(session: Session) -> int:
    directory = _directory(session)
    if not session.options.yes:
        raise BloomError(f"{directory} would be forgotten for good: say so with --yes")
    _memory(session, directory).clear()
    session.print_lines([f"forgot what {directory} knew"])
    return 0


def _verify(session: Session) -> int:
    directory = _directory(session)
    findings: list[Finding] = []
    for each in read(directory).slices:
        place = Place.find(str(directory / each.name))
        missing = Finding("", sound=False, text="the slice is missing")
        found = findings_in(place) if place.exists else [missing]
        # the finding about a whole slice has no path
        findings += (replace(finding, path=finding.path or place.name) for finding in found)
    lines = [f"{'ok ' if each.sound else 'BAD'}  {each.path}: {each.text}" for each in findings]
    trusted = all(finding.sound for finding in findings)
    shown = [{"path": str(f.path), "sound": f.sound, "text": f.text} for f in findings]
    session.print({"trusted": trusted, "findings": shown}, lines)
    if not trusted:
        raise BloomError(f"{directory} cannot be trusted")
    if not session.options.json:
        session.print_lines([f"{directory} can be trusted"])
    return 0


def delta(session: Session) -> int:
    """Forget what was done before some time."""
    older = seconds(session.options.older)
    if older is None:
        raise BloomError(
            f"--older is {session.options.older!r}: it must be days, or text such as 12h or 30d"
        )
    memory = _memory(session, _directory(session))
    dropped = memory.drop_older(older)
    session.print(
        {"dropped": [vars(each) for each in dropped]},
        [f"forgot {counted(len(dropped), 'slice')}", *map(_line, dropped)],
    )
    return 0


def _line(each: Slice) -> str:
    return f"  {_written(each.start)} to {_written(each.end)}"


def _memory(session: Session, directory: Path, identity: str = "") -> Memory:
    settings = session.crawler().settings
    general = session.bloom_settings(session.crawler())
    shape = Shape(
        general.capacity, general.error_rate, general.exact, period_in(settings), identity
    )
    return Memory(directory, shape)


def _written(when: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(when))
    except (OSError, OverflowError):  # as a clock or an import has left it
        return f"{when:g} s"


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("place", metavar="DIR", help="the directory of a memory (BLOOM_DELTA_DIR)")
    parser.add_argument(
        "--older", metavar="AGE", required=True, help="such as 30d or 12h: forget what is older"
    )
    add_json(parser)


_FOR_MEMORIES: dict[str, Run] = {
    "info": _info,
    "check": _check,
    "add": _add,
    "merge": _merge,
    "clear": _clear,
    "verify": _verify,
}

_DELTA = (
    "Forget what a memory between crawls knows of before some time, by whole slices: those pages"
    " are fetched again."
)

SUBCOMMANDS = (("delta", delta, "forget what crawls did long ago", _DELTA, _arguments),)
"""Name, function, help, description, and what adds the arguments."""
