"""Every call that our code makes on the database, on files and on bits, as a named
point: the process dies there, or the call fails.

The points are laid over the modules of a forked process (`lay`); the package itself
knows nothing of them.
"""

import json
import os
import signal
import sqlite3
from collections import Counter
from pathlib import Path

from scrapy_bloom import files, sqlite_file
from scrapy_bloom.bloom import file as storage
from scrapy_bloom.bloom import layers
from scrapy_bloom.crawl import overlay
from scrapy_bloom.feeds import durable_feeds, outbox, waiting
from scrapy_bloom.feeds import file as feedfile
from scrapy_bloom.sqlite import job_file as requestfile
from scrapy_bloom.sqlite import records, scheduler

OUTSIDE = ("sql", "os.", "mmap", "msync", "Path.", "feed ")
"""How calls on the database and on files are named; the others cannot fail."""
FILE_CALLS = (
    *("open", "fdopen", "pwrite", "pread", "fsync", "fstat"),
    *("link", "unlink", "rename", "posix_fallocate"),
)
FEED_CALLS = ("write", "fsync", "ftruncate")


class Proxy:
    """A module, but for what is replaced in it."""

    def __init__(self, module, **replaced):
        self.__dict__.update(replaced, _module=module)

    def __getattr__(self, name):
        return getattr(self._module, name)


class Points:
    """Counts calls by name, and does something at the planned one.

    It is call `number`, from 1, of that name; None stands for all on database and files.
    `action` is "before" or "after" (die there), or an exception to raise, which
    `always` raises from then on.
    """

    def __init__(self, name=None, number=0, action="count", *, always=False):
        self.name = name
        self.number = number
        self.action = action
        self.always = always
        self.counts = Counter()
        self.order = []

    def call(self, name, function, *arguments, **options):
        """Call `function`, or what the plan has instead."""
        self.order.append(name)
        self.counts[name] += 1
        if name.startswith(OUTSIDE):
            self.counts[None] += 1
        elif self.name is None:
            return function(*arguments, **options)
        count = self.counts[self.name]
        planned = self.name in (name, None) and (
            count >= self.number if self.always else count == self.number
        )
        if not planned or self.action == "count":
            return function(*arguments, **options)
        if self.action == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.action == "after":
            function(*arguments, **options)
            os.kill(os.getpid(), signal.SIGKILL)
        raise self.action(name) if callable(self.action) else self.action

    def wrap(self, name, function):
        """Return `function` as a point."""

        def point(*arguments, **options):
            return self.call(name, function, *arguments, **options)

        return point

    def lay(self):
        """Lay the points over the modules of this process."""
        points = self

        class Connection(sqlite3.Connection):
            def execute(self, sql, *arguments):
                name = f"sql {sql.split()[0]}"
                return points.call(name, super().execute, sql, *arguments)

            def executemany(self, sql, *arguments):
                name = f"sql {sql.split()[0]} many"
                return points.call(name, super().executemany, sql, *arguments)

            def close(self):
                return points.call("sql close", super().close)

        def connect(*arguments, **options):
            return sqlite3.connect(*arguments, factory=Connection, **options)

        class Memory(storage.mmap.mmap):
            def __setitem__(self, where, what):
                points.call("state", super().__setitem__, where, what)

            def flush(self, *arguments):
                points.call("msync", super().flush, *arguments)

        calls = {n: self.wrap(f"os.{n}", getattr(os, n)) for n in FILE_CALLS if hasattr(os, n)}
        memory = self.wrap("mmap", Memory)
        sqlite_file.sqlite3 = Proxy(sqlite3, connect=self.wrap("sql connect", connect))
        requestfile.os = storage.os = files.os = Proxy(os, **calls)
        storage.mmap = Proxy(storage.mmap, mmap=memory)
        feed_calls = {n: self.wrap(f"feed {n}", getattr(os, n)) for n in FEED_CALLS}
        feedfile.os = Proxy(os, **feed_calls)
        feedfile.FeedFile.prepare = self.wrap("feed open", feedfile.FeedFile.prepare)
        Path.replace = self.wrap("Path.replace", Path.replace)
        Path.rename = self.wrap("Path.rename", Path.rename)
        layers.Layered.add = self.wrap("bit", layers.Layered.add)
        for owner, names in (
            (overlay.Keeper, ["release"]),
            (requestfile.RequestFile, ["commit"]),
            (records.SqliteRecords, ["push", "done"]),
            (durable_feeds.DurableFeeds, ["before_commit", "after_commit", "recover"]),
            (outbox.Outbox, ["save", "remove"]),
            (feedfile.FeedFile, ["append"]),
            (waiting.WaitingFeed, ["make_room", "_write", "_replace"]),
            (scheduler.DurableScheduler, ["open", "close"]),
        ):
            for name in names:
                setattr(owner, name, self.wrap(name, getattr(owner, name)))


def calls_of(world, crawl, prepare):
    """Return the names of the points of a small crawl; `prepare` is called in it first."""
    path = world.folder / "calls.json"

    def before():
        prepare()
        points = Points()
        points.lay()
        return lambda: path.write_text(json.dumps(points.order))

    run = world.start(crawl, before).wait()
    assert run.reason == "finished", run.log
    return json.loads(path.read_text())
