"""Ways to break the feeds, each of which the kill tests must notice."""

import os

from scrapy_bloom.feeds import feeds
from scrapy_bloom.feeds import file as feedfile
from scrapy_bloom.feeds.feeds import Feeds
from scrapy_bloom.feeds.file import FeedFile
from scrapy_bloom.sqlite_backend.repeated_children import TakenChildren
from tests.job.points import Proxy

MUTANTS = {}


def mutant(function):
    """Make a function that breaks something a mutant of its name."""
    MUTANTS[function.__name__] = function
    return function


@mutant
def length_recorded_before_the_sync():
    """What was appended is recorded, and never synced."""
    feedfile.os = Proxy(os, fsync=lambda descriptor: None)


@mutant
def rows_dropped_before_the_length_is_recorded():
    """Items leave the outbox when they are in the file, whose length is recorded with
    the commit after the next one."""
    record = Feeds._record

    def drop(self):
        late, self.changed = self.changed, set(getattr(self, "late", ()))
        record(self)
        self.late, self.changed = late, self.changed | late

    Feeds._record = drop


@mutant
def acknowledged_before_the_items_are_final():
    """The items of a request become final with the commit after the one that
    acknowledges it."""
    before_commit = Feeds.before_commit

    def late(self, acknowledged):
        due = getattr(self, "due", [])
        self.due = acknowledged
        before_commit(self, due)

    Feeds.before_commit = late


@mutant
def no_cut_at_recovery():
    """What a file has beyond its recorded length stays."""

    def open_whole(self):
        if self._file == -1:
            self._hash, self.length = feedfile._hash(), 0
            self.keep()
            open_(self)

    open_ = FeedFile.open
    FeedFile.open = open_whole


@mutant
def children_given_twice():
    """What a page yields with dont_filter is not remembered while it is in progress."""
    TakenChildren.add = lambda self, row, child: None


@mutant
def items_spilled_as_final():
    """Items that wait in the outbox are nobody's at once."""
    feeds.BYTES_IN_MEMORY = 0

    def spill(self):
        self._keep_final({number for _, number, _ in self._waiting})

    Feeds._spill = spill
