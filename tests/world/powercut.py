"""What a power cut leaves of a job directory: what was synced, and of the rest anything.

`Cut` notes, in the process of a crawl, what has been synced: contents by fsync, msync
and SQLite's commits, names by the sync of their directory. Its method `power` makes of that,
and of what the files hold, what a disk may have.
"""

import json
import os
import shutil
import signal
from functools import partial
from pathlib import Path

from scrapy_bloom import files
from scrapy_bloom.bloom import file as storage
from scrapy_bloom.feeds import file as feedfile
from scrapy_bloom.feeds import waiting
from scrapy_bloom.sqlite import job_file as requestfile
from tests.stored import found_in, size_of
from tests.world.points import Proxy

PAGE = 4096


class Cut:
    """A power cut at sync `number` of a crawl in `folder`, over all of its runs: what is synced
    there is on the disk, or not yet. Notes below it, beside the job directory, what was synced."""

    def __init__(self, folder, number, *, is_synced):
        self.folder, self.number, self.is_synced = folder, number, is_synced
        self.job, self.notes = folder / "job", folder / "synced"
        self.held = None
        """Descriptors of what was noted in a process: its inode becomes no other file's."""

    def lay(self):
        """Lay the notes over the modules of a process before the cut."""
        if size_of(self.folder / "syncs") >= self.number:
            return
        self.notes.mkdir(exist_ok=True)
        self.held = {}
        self.forget_what_is_gone()
        notes = self

        def fsync(descriptor):
            os.fsync(descriptor)
            notes.note(Path(os.readlink(f"/proc/self/fd/{descriptor}")))

        class Memory(storage.mmap.mmap):
            def __new__(cls, descriptor, *arguments, **options):
                self = super().__new__(cls, descriptor, *arguments, **options)
                if descriptor != -1:
                    self.path = f"/proc/self/fd/{descriptor}"
                return self

            def flush(self, offset=0, size=None):
                super().flush(*([] if size is None else [offset, size]))
                if size is None and hasattr(self, "path"):
                    notes.note(Path(os.readlink(self.path)))

        storage.mmap = Proxy(storage.mmap, mmap=Memory)

        def fsync_directory(descriptor):
            if Path(os.readlink(f"/proc/self/fd/{descriptor}")).is_dir():
                fsync(descriptor)

        # where a mutant has laid hands on it, only directories are synced
        files.os = Proxy(os, fsync=fsync if files.os is os else fsync_directory)
        requestfile.os = waiting.os = feedfile.os = Proxy(os, fsync=fsync)
        for name in ("commit", "close"):
            method = getattr(requestfile.RequestFile, name)
            setattr(requestfile.RequestFile, name, self.after(method))

    def forget_what_is_gone(self):
        """Drop the notes of inodes of an earlier process that are other files' now."""
        paths = [self.job, *self.job.rglob("*")] if self.job.exists() else []
        there = {path.stat().st_ino: path for path in paths}
        for note in self.notes.glob("*-*"):
            path = there.get(int(note.stem.split("-")[1]))
            if path is None or path.is_dir() is not note.name.startswith("names"):
                note.unlink()
            elif path.is_dir():
                now = {each.name: each.stat().st_ino for each in path.iterdir()}
                names = json.loads(note.read_bytes()).items()
                self.write(note.name, json.dumps(dict(names & now.items())).encode())

    def note(self, path):
        """Note a file or a directory that was synced."""
        self.point(partial(self.keep, path))

    def point(self, do_note):
        """Count a sync, and note it unless the power is cut."""
        with (self.folder / "syncs").open("a") as file:
            file.write(".")
        is_here = size_of(self.folder / "syncs") == self.number
        if not is_here or self.is_synced:
            do_note()
        if is_here:
            os.kill(os.getpid(), signal.SIGKILL)

    def after(self, function):
        """Return a method of RequestFile that counts as one sync, of what SQLite has synced."""

        def note_commit(file):
            for path in self.job.glob("requests.sqlite*"):
                if not path.name.endswith("-shm"):
                    self.keep(path)
            (self.folder / "synced commits").write_text(f"{file.commits}")

        def method(file, *arguments, **options):
            result = function(file, *arguments, **options)
            if function.__name__ == "close":
                note_commit(file)  # SQLite has synced the file before it removes the log
            self.point(partial(note_commit, file))
            return result

        return method

    def keep(self, path):
        """Keep the contents of a file, or the names in a directory."""
        if self.held is not None and path.exists() and path.stat().st_ino not in self.held:
            self.held[path.stat().st_ino] = os.open(path, os.O_RDONLY)
        if path.is_dir():
            names = {p.name: p.stat().st_ino for p in path.iterdir()}
            self.write(f"names-{path.stat().st_ino}", json.dumps(names).encode())
        elif path.is_file():
            self.write(f"contents-{path.stat().st_ino}", path.read_bytes())

    def write(self, name, contents):
        """Write a note, whole or not at all: the process may be killed."""
        part = self.notes / f"{name}.part"
        part.write_bytes(contents)
        part.rename(self.notes / name)

    def power(self, chance):
        """Replace the job by what a power cut may have left; yield which commit is not there."""
        if not self.job.exists():
            return
        before = self.folder / f"job-before-{len(list(self.folder.glob('job-before*')))}"
        self.job.rename(before)
        restore(before, self.job, self.notes, chance)
        shutil.rmtree(self.notes, ignore_errors=True)
        # what is there now is what the disk has
        self.notes.mkdir()
        for path in [self.job, *self.job.rglob("*")]:
            self.keep(path)
        if (noted := self.folder / "synced commits").exists():
            found, commits = found_in(self.job)[1], int(noted.read_text())
            if found < commits:
                yield f"commit {found}, and {commits} were synced"


def restore(old, new, notes, chance):
    """Make `new` of what is known of the directory `old`."""
    new.mkdir()
    now = {path.name: path for path in old.iterdir()}
    note = notes / f"names-{old.stat().st_ino}"
    synced = json.loads(note.read_bytes()) if note.exists() else {}
    inodes = {path.stat().st_ino: path for path in now.values()}
    for name in sorted({*now, *synced}):
        path = now.get(name)
        if name.endswith("-shm"):
            continue
        wal = name.endswith("-wal")  # SQLite syncs its name
        if name in synced and synced[name] in inodes:
            path = inodes[synced[name]]
        elif not wal and chance.random() < 0.5:
            continue
        if path is None:
            continue
        if path.is_dir():
            restore(path, new / name, notes, chance)
        else:
            note = notes / f"contents-{path.stat().st_ino}"
            known = note.read_bytes() if note.exists() else None
            contents = path.read_bytes()
            mixed = log(contents, known, chance) if wal else pages(contents, known, chance)
            if name == "requests.sqlite" and known is not None:
                mixed = known  # SQLite syncs in the order that it needs
            (new / name).write_bytes(mixed)


def pages(contents, known, chance):
    """Each page as it was synced, or as it is; of a file never synced perhaps none."""
    if known is None and chance.random() < 0.7:
        return bytes(len(contents))
    known = (known or b"").ljust(len(contents), b"\0")
    return b"".join(
        chance.choice((known, contents))[start : start + PAGE]
        for start in range(0, len(contents), PAGE)
    )


def log(contents, known, chance):
    """A write-ahead log as it was synced, and some of what was appended since."""
    known = known or b""
    if not contents.startswith(known):
        return known
    return contents[: chance.randint(len(known), len(contents))]
