"""What a power cut leaves of a job directory: what was synced, and of the rest anything.

`Synced` notes, in the process of a crawl, what has been synced: contents by fsync, msync
and SQLite's commits, names by the sync of their directory. `cut_power` makes of it, and
of what the files hold, what a disk may have.
"""

import json
import os
import shutil
from pathlib import Path

from scrapy_bloom import files
from scrapy_bloom.bloom import file as storage
from scrapy_bloom.feeds import file as feedfile
from scrapy_bloom.feeds import waiting
from scrapy_bloom.sqlite_backend import job_file as requestfile
from tests.job.points import Proxy

PAGE = 4096


class Synced:
    """Notes below `folder`, beside the job directory, what has been synced."""

    def __init__(self, folder):
        self.job = Path(folder) / "job"
        self.notes = Path(folder) / "synced"

    def lay(self):
        """Lay the notes over the modules of this process."""
        self.notes.mkdir(exist_ok=True)
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
        filters_fsync = fsync if storage.os is os else fsync_directory
        files.os = requestfile.os = waiting.os = Proxy(os, fsync=fsync)
        feedfile.os = Proxy(os, fsync=fsync if feedfile.os is os else fsync_directory)
        storage.os = Proxy(os, fsync=filters_fsync)
        for name in ("commit", "close"):
            setattr(
                requestfile.RequestFile, name, self.after(getattr(requestfile.RequestFile, name))
            )

    def after(self, function):
        """Return a method of RequestFile that notes what SQLite has synced."""

        def method(*arguments, **options):
            result = function(*arguments, **options)
            for path in self.job.glob("requests.sqlite*"):
                if not path.name.endswith("-shm"):
                    self.note(path)
            return result

        return method

    def note(self, path):
        """Note the contents of a file, or the names in a directory."""
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


def cut_power(folder, chance):
    """Replace the job directory by one that a power cut may have left."""
    job, notes = folder / "job", folder / "synced"
    before = folder / f"job-before-{len(list(folder.glob('job-before*')))}"
    if not job.exists():
        return
    job.rename(before)
    restore(before, job, notes, chance)
    shutil.rmtree(notes, ignore_errors=True)
    # what is there now is what the disk has
    synced = Synced(folder)
    notes.mkdir()
    for path in [job, *job.rglob("*")] if job.exists() else []:
        synced.note(path)


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
