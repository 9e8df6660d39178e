"""Functions that break the package, to see that the torture notices: `--mutant NAME`."""

import os

from scrapy.core import scraper

from scrapy_bloom.bloom import file as storage
from scrapy_bloom.crawl import overlay
from scrapy_bloom.crawl.ledger import Ledger
from scrapy_bloom.feeds import file as feedfile
from scrapy_bloom.feeds.durable_feeds import DurableFeeds
from scrapy_bloom.feeds.file import FeedFile
from scrapy_bloom.feeds.outbox import Outbox
from scrapy_bloom.sqlite import repeated_children
from scrapy_bloom.sqlite.records import SqliteRecords
from scrapy_bloom.sqlite.request_store import SqliteStore
from scrapy_bloom.sqlite.taken_starts import LocalStartRequests
from tests.crawl.points import Proxy

MUTANTS = {}


def mutant(function):
    """Make a function that breaks something a mutant of its name."""
    MUTANTS[function.__name__] = function
    return function


def after(owner, method, change):
    """Have `change` called with an object of this class after a method of it."""
    run = getattr(owner, method)

    def run_and_change(self, *arguments, **options):
        result = run(self, *arguments, **options)
        change(self, *arguments)
        return result

    setattr(owner, method, run_and_change)


@mutant
def mark_before_commit():
    """The filter learns of a request as soon as it is seen."""
    overlay.Uncommitted._add = lambda self, fingerprint: self.filter.add(fingerprint)


@mutant
def delete_on_pop():
    """A row goes when its request is handed out."""
    next_request = SqliteStore.next

    def next_and_delete(self):
        request = next_request(self)
        if request is not None:
            self.done(request)
        return request

    SqliteStore.next = next_and_delete


@mutant
def acknowledge_at_the_end_of_the_callback():
    """A request is done when its callback's generator ends."""
    call_spider = scraper.Scraper.call_spider_async

    def end(self, request):
        books = self.crawler.engine._slot.scheduler._ledger
        for finished in books._in_flight.finish(request):
            books.store.done(finished.request)
        books.commit()

    def watch(self, output, request):
        yield from output
        end(self, request)

    async def watch_later(self, output, request):
        async for thing in output:
            yield thing
        end(self, request)

    async def call(self, result, request):
        output = await call_spider(self, result, request)
        watched = watch_later if hasattr(output, "__aiter__") else watch
        return watched(self, output, request)

    scraper.Scraper.call_spider_async = call


@mutant
def header_not_synced():
    """A new file of the filter is not synced before its bits are set."""

    def fsync(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            os.fsync(descriptor)

    storage.os = Proxy(os, fsync=fsync)


@mutant
def noted_before_the_commit():
    """The filter knows of a commit that may never be."""
    commit = SqliteStore.commit

    def note_and_commit(self, fingerprints):
        self._file.commits += 1
        self._note_commit(self._file.id, self._file.commits)
        self._file.commits -= 1
        return commit(self, fingerprints)

    SqliteStore.commit = note_and_commit


@mutant
def due_too_early():
    """Delayed requests are due a second before their time."""
    take_due = SqliteRecords.take_due
    SqliteRecords.take_due = lambda self, now: take_due(self, now + 1)


@mutant
def length_recorded_before_the_sync():
    """What was appended is recorded, and never synced."""
    feedfile.os = Proxy(os, fsync=lambda descriptor: None)


@mutant
def rows_dropped_before_the_length_is_recorded():
    """Items leave the outbox a commit before the length is recorded."""
    record = Outbox.record

    def drop(self):
        late, self.changed = self.changed, set(getattr(self, "late", ()))
        record(self)
        self.late, self.changed = late, self.changed | late

    Outbox.record = drop


@mutant
def acknowledged_before_the_items_are_final():
    """The items of a request become final a commit after its end."""
    before_commit = DurableFeeds.before_commit

    def late(self, acknowledged):
        due = getattr(self, "due", [])
        self.due = acknowledged
        before_commit(self, due)

    DurableFeeds.before_commit = late


@mutant
def no_cut_at_recovery():
    """What a file has beyond its recorded length stays."""

    def open_whole(self):
        if self._file == -1:
            self._hash, self.length = FeedFile(self.path)._hash, 0
            self.keep()
            open_(self)

    open_ = FeedFile.open
    FeedFile.open = open_whole


@mutant
def children_given_twice():
    """What a page yields with dont_filter is not remembered while it is in progress."""
    repeated_children.TAKE = "SELECT ?, ?"


@mutant
def items_final_at_once():
    """Items that wait in the outbox are nobody's at once."""
    add_item = Outbox.add_item

    def add_final(self, feed, request, item, **options):
        add_item(self, feed, request, item, **options)
        self._file.execute("UPDATE items SET request = NULL")

    Outbox.add_item = add_final


@mutant
def taken_before_the_row():
    """A start request is taken when it is yielded, in a commit of its own."""
    is_skipped = LocalStartRequests._is_skipped

    def is_skipped_or_taken(self, thing):
        skipped = is_skipped(self, thing)
        if not skipped and self.offered is not None:
            self._take(self._mark)
            self._round.file.commit()
        return skipped

    LocalStartRequests._is_skipped = is_skipped_or_taken


@mutant
def told_after_the_commit():
    """Pipelines hear of a commit when it is over."""
    send, commit = Ledger._send_before_commit, Ledger.commit

    def commit_and_send(self):
        commit(self)
        if self._has_begun and not self.stopped:
            send(self)

    Ledger._send_before_commit = lambda self: None
    Ledger.commit = commit_and_send
