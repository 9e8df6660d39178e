"""What breaks the delta store, to see that its torture notices."""

import time

from scrapy_bloom.delta.crawl import DeltaCrawl


def added_before_the_feeds():
    """Marks are added right after their commit, before the feeds have the items."""
    after_commit, begin = DeltaCrawl.after_commit, DeltaCrawl._begin

    def begin_first(self):
        begin(self)
        if self._ledger is not None:
            self._ledger.commit_hooks.remove(self)
            self._ledger.commit_hooks.insert(0, self)

    DeltaCrawl._begin = begin_first

    def early(self):
        self._ready, self._fresh = [*self._ready, *self._fresh], []
        has_marks, self._not_before = bool(self._ready), 0.0
        after_commit(self)
        time.sleep(0.1 if has_marks else 0)

    DeltaCrawl.after_commit = early


def unsynced_feeds_count():
    """Pages are marked whose items are in a feed that a kill costs."""
    from scrapy_bloom.redis.worker_feeds import SyncedFeeds

    SyncedFeeds.are_safe = True


def marked_before_the_commit():
    """Marks come into the store before the commit that acknowledges."""
    before_commit = DeltaCrawl.before_commit

    def add(self, acknowledged):
        before_commit(self, acknowledged)
        self.store.add(self._fresh)
        time.sleep(0.3 if self._fresh else 0)

    DeltaCrawl.before_commit = add


MUTANTS = {
    each.__name__: each
    for each in (added_before_the_feeds, unsynced_feeds_count, marked_before_the_commit)
}
