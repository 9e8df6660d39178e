"""The subcommands of filters, for a delta store in a directory; and `delta`, for its marks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from math import inf
from pathlib import Path

from ..amounts import DAY, counted, in_bytes, seconds
from ..bloom.inspection import Finding
from ..delta.file_store import FileDeltaStore
from ..delta.importing import DeltafetchFile, is_deltafetchs
from ..delta.redis_store import RedisDeltaStore, Slice
from ..delta.settings import DELTA_DAYS, DELTA_DIR, KEY_BYTES, Lifetime, key_of_fingerprint
from ..errors import BloomError, FilterFileError
from ..fingerprints import FingerprinterIdentity
from .context import Context, Known, Place, Printed, fingerprints_of, table
from .sources import source_called, told_skipped, warn_of_pending
from .target import Kind, Target
from .texts import in_utc

Store = FileDeltaStore | RedisDeltaStore
PATIENCE = 5.0
"""Seconds to wait for Redis."""
ACTIONS = ("count", "list", "forget")


class DeltaPlace(Place):
    """A delta store in a directory."""

    def described(self) -> Printed:
        """Return what is in it."""
        with closing(FileDeltaStore(self.target.path, Lifetime())) as store:
            store.look()
            figures = {
                "pages": store.count,
                "digests": store.digests,
                "oldest": store.oldest,
                "newest": store.newest,
                "bytes": store.nbytes,
            }
        days = None if store.longest == inf else store.longest / DAY
        kept = "for ever" if days is None else f"for {days:g} days" if days else "as crawls ask"
        parts = [counted(store.count, "page")]
        parts += [counted(store.digests, "digest")] if store.digests else []
        lines = [f"{self.target.path}, a delta store: {' and '.join(parts)}, kept {kept}"]
        if store.oldest is not None and store.newest is not None:
            times = f"{written(store.oldest)} to {written(store.newest)}"
            lines += ["", *table([["marked", times], ["memory", in_bytes(store.nbytes)]])]
        return {"place": str(self.target.path), "days": days, "table": figures}, lines

    @contextmanager
    def knowing(self) -> Iterator[Known]:
        """Yield which fingerprints have a mark."""
        with closing(store_at(self.session, self.target.path)) as store:
            store.look()
            known = store.known_until
            yield self.name, store.identity, lambda each: known(key_of_fingerprint(each)) > 0

    def findings(self) -> tuple[str, list[Finding]]:
        """Return the finding about its table."""
        with closing(FileDeltaStore(self.target.path, Lifetime())) as store:
            try:
                store.look()
                wrong = store.findings()
            except FilterFileError as error:
                wrong = str(error)
            text = wrong or f"{counted(store.count, 'page')}, each readable"
        return self.name, [Finding(str(store.path), sound=not wrong, text=text)]

    def add(self) -> Printed:
        """Import what the files hold; it is made if it is missing."""
        session, names = self.session, self.session.options.files
        identity = FingerprinterIdentity.of(session.fingerprinter).to_text()
        now, figures, lines = time.time(), [], []
        with ExitStack() as stack:
            store = stack.enter_context(closing(store_at(session, self.target.path, identity)))
            store.roll_back()
            store.look()
            session.require_fingerprinter(store.identity, self.name)
            sources = [
                DeltafetchFile(path, now)
                if is_deltafetchs(path := Path(name))
                else source_called(session, name, stack)
                for name in names
            ]
            warn_of_pending(names)
            for source in sources:
                if isinstance(source, DeltafetchFile):
                    marks, of = source.marks, f" of {counted(source.size, source.unit)}"
                else:
                    keys = (key for keys, _ in source.batches() for key in keys)
                    marks, of = {key_of_fingerprint(key): now for key in keys}, ""
                store.add(marks.items())
                skipped = {"skipped": source.skipped, "first_skipped": source.first_skipped or None}
                figures.append({"file": source.name, "keys": len(marks), **skipped})
                lines += [f"{source.name}: {len(marks):,} keys{of}, which may be known already"]
                lines += told_skipped(source)
        return {"place": self.name, "files": figures}, lines

    def merge(self) -> Printed:
        """Copy the marks of others into it."""
        names = self.session.options.sources
        sources = [Target.find(name).require(Kind.DELTA_STORE).path for name in names]
        for source in sources:
            if source.samefile(self.target.path):
                raise BloomError(f"{source} is no other delta store: give their directories")
        with closing(store_at(self.session, self.target.path)) as store:
            store.merge(sources)
            store.look()
        return {"pages": store.count}, [f"{store.name} has {counted(store.count, 'page')} now"]

    def clear(self) -> list[str]:
        """Remove all of its marks."""
        store_at(self.session, self.target.path).clear()
        return [f"forgot what {self.target.path} knew"]


def store_at(session: Context, directory: Path, identity: str = "") -> FileDeltaStore:
    """Return the delta store in `directory`, with the settings of the project."""
    period = DELTA_DAYS.read(session.crawler.settings)
    # of what is added without a period the crawls say how long it is kept
    return FileDeltaStore(directory, Lifetime(period or (0.0 if identity else None), identity))


def written(when: float) -> str:
    """Return a time as text."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(when))
    except (OSError, OverflowError):  # as a clock or an import has left it
        return f"{when:g} s"


def delta(session: Context) -> None:
    """Count or list the pages that a delta store has as done, with their times, or forget some:
    those are fetched again. MEMORY is the directory of a delta store (BLOOM_DELTA_DIR), or
    redis://HOST/DB with --spider or -s BLOOM_DELTA_DIR=NAME."""
    options = session.options
    action, urls = options.action, options.urls
    older = None
    if options.older is not None and not (older := seconds(options.older)):
        raise BloomError(
            f"--older is {options.older!r}: it must be days, or text such as 12h or 30d"
        )
    given = bool(urls or options.hex_keys)
    if action == "forget" and not given and older is None:
        raise BloomError("say what to forget: URLs, - for standard input, --key HEX, or --older")
    if action != "forget" and given:
        raise BloomError(f"{action} takes no URLs and no --key: 'scrapy bloom check' knows URLs")
    keys = [_key(text) for text in options.hex_keys]
    with closing(_store(session, options.place, action)) as store:
        before = None if older is None else time.time() - older
        if action == "count":
            _count(session, store, before)
        elif action == "list":
            _list(session, store, before)
        else:
            _forget(session, store, keys, older)


def _key(text: str) -> bytes:
    with suppress(ValueError):
        if len(key := bytes.fromhex(text)) == KEY_BYTES:
            return key
    raise BloomError(
        f"--key is {text!r}: it must be {2 * KEY_BYTES} hexadecimal digits, as 'delta list' prints"
        " them"
    )


def _store(session: Context, place: str, action: str) -> Store:
    """Return the delta store at `place`, open, with all slices that are there."""
    target = Target.find(place).require(Kind.DELTA_STORE, Kind.DELTA_REDIS)
    if Kind.DELTA_STORE in target.kinds:
        store = store_at(session, target.path)
        store.lifetime = Lifetime()
        if action == "forget":
            store.roll_back()
        store.look()
        return store
    name = DELTA_DIR.read(session.crawler.settings)
    if session.options.spider:
        name = name.replace("%(spider)s", session.options.spider.replace("/", "_"))
    if "%(spider)s" in name:
        raise BloomError(
            "which delta store is meant says BLOOM_DELTA_DIR: give --spider NAME in its project, or"
            " -s BLOOM_DELTA_DIR=NAME"
        )
    found = RedisDeltaStore(place, name, Lifetime(), PATIENCE)
    if not found.identity:
        found.close()
        raise BloomError(f"{found.name} is no delta store: give the BLOOM_DELTA_DIR of its crawl")
    return found


def _count(session: Context, store: Store, before: float | None) -> None:
    pages, slices = store.counts(before)
    parts = [counted(pages, "page")] if pages or not slices else []
    if slices:
        parts.append(f"{counted(sum(slices.values()), 'mark')} in {counted(len(slices), 'slice')}")
    digests = store.digests if before is None else 0
    parts += [counted(digests, "digest")] if digests else []
    lines = [f"{store.name}: {' and '.join(parts)}"]
    session.print({"pages": pages, "digests": digests, "slices": slices}, lines)


def _list(session: Context, store: Store, before: float | None) -> None:
    for key, when, digest, *_ in store.marks(before):
        time_ = None if when is None else in_utc(when)
        figures = {"key": key.hex(), "time": time_, "digest": digest and digest.hex()}
        session.print(figures, ["  ".join(text or "-" for text in figures.values())], indent=None)


def _forget(session: Context, store: Store, keys: list[bytes], older: float | None) -> None:
    if session.options.urls:
        found = fingerprints_of(session, store.identity, store.name)
        keys += [key_of_fingerprint(fingerprint) for _, fingerprint in found]
    dropped: Sequence[Slice] = ()
    pages = store.forget([*dict.fromkeys(keys)])
    if older is not None:
        aged, dropped = store.drop_older(older)
        pages += aged
    forgot = [counted(pages, "page")] if pages or not dropped else []
    forgot += [counted(len(dropped), "slice")] if dropped else []
    times = [f"  {written(each.start)} to {written(each.end)}" for each in dropped]
    figures = {"pages": pages, "dropped": [each._asdict() for each in dropped]}
    session.print(figures, [f"forgot {' and '.join(forgot)}", *times])
