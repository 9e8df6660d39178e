"""Functions that break the package, to see that crawls that die notice: `--mutant NAME`."""

import os
import time

from scrapy_bloom import files
from scrapy_bloom.crawl import overlay
from scrapy_bloom.crawl.ledger import Ledger
from scrapy_bloom.delta.crawl import DeltaCrawl
from scrapy_bloom.feeds.durable_feeds import DurableFeeds
from tests.world.points import Proxy


def mark_before_commit():
    """The filter learns of a request as soon as it is seen."""
    overlay.Overlay.add = lambda self, fingerprint: self.filter.add(fingerprint)


def header_not_synced():
    """A new file, such as one of the filter, is not synced before it has its name."""

    def fsync(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            os.fsync(descriptor)

    files.os = Proxy(os, fsync=fsync)


def acknowledged_before_the_items_are_final():
    """The items of a request become final a commit after its end."""
    before_commit = DurableFeeds.before_commit

    def late(self, acknowledged):
        due = getattr(self, "due", [])
        self.due = acknowledged
        before_commit(self, due)

    DurableFeeds.before_commit = late


def told_after_the_commit():
    """Pipelines hear of a commit when it is over."""
    send, commit = Ledger._send_before_commit, Ledger.commit

    def commit_and_send(self):
        commit(self)
        if self.has_begun and not self.stopped:
            send(self)

    Ledger._send_before_commit = lambda self: None
    Ledger.commit = commit_and_send


def marked_before_the_commit():
    """Marks come into the delta store before the commit that acknowledges."""
    before_commit = DeltaCrawl.before_commit

    def add(self, acknowledged):
        before_commit(self, acknowledged)
        self.store.add(self._fresh)
        time.sleep(0.3 if self._fresh else 0)

    DeltaCrawl.before_commit = add


_MUTANTS = (
    *(mark_before_commit, header_not_synced, acknowledged_before_the_items_are_final),
    *(told_after_the_commit, marked_before_the_commit),
)
MUTANTS = {each.__name__: each for each in _MUTANTS}
"""One for each kind of crawl: random kills, power cuts, feeds, rounds and delta stores."""
