"""Ways to break the scheduler, each of which the kill tests must notice."""

import os

from scrapy.core import scraper

from scrapy_bloom.bloom import file as storage
from scrapy_bloom.dupefilter import local as job_dupefilter
from scrapy_bloom.job import codec
from scrapy_bloom.sqlite_backend import request_file
from scrapy_bloom.sqlite_backend import request_store as sqlite_store
from tests.job.points import Proxy

MUTANTS = {}


def mutant(function):
    """Make a function that breaks something a mutant of its name."""
    MUTANTS[function.__name__] = function
    return function


@mutant
def mark_before_commit():
    """The filter learns of a request as soon as it is seen."""
    job_dupefilter.BloomDupeFilter.use_overlay = lambda self, *, requests_survive: None


@mutant
def delete_on_pop():
    """A row goes when its request is handed out."""
    next_request = sqlite_store.SqliteStore.next

    def next_and_delete(self):
        request = next_request(self)
        if request is not None:
            self.done(request)
        return request

    sqlite_store.SqliteStore.next = next_and_delete


@mutant
def acknowledge_at_the_end_of_the_callback():
    """A request counts as done when its callback's generator ends, as a spider
    middleware would see it."""
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
    commit = sqlite_store.SqliteStore.commit

    def note_and_commit(self, fingerprints):
        self._file.commits += 1
        self._note_commit()
        self._file.commits -= 1
        return commit(self, fingerprints)

    sqlite_store.SqliteStore.commit = note_and_commit


@mutant
def noted_after_the_bits():
    """The filter has bits of a commit that it does not know of."""
    dupefilter = job_dupefilter.BloomDupeFilter
    note, release = dupefilter.note_commit, dupefilter.release

    def note_later(self, *commit):
        self._noted = commit

    def release_and_note(self, fingerprints):
        release(self, fingerprints)
        note(self, *self._noted)

    dupefilter.note_commit, dupefilter.release = note_later, release_and_note


@mutant
def dictionary_after_its_rows():
    """A dictionary is stored after the commit of rows that need it, in a commit of its own."""
    file = request_file.RequestFile
    keep, commit = file.keep_dictionary, file.commit
    kept = []

    def commit_and_keep(self, *arguments, **options):
        commit(self, *arguments, **options)
        if kept:
            keep(self, kept.pop())
            commit(self)

    file.keep_dictionary, file.commit = (lambda _, each: kept.append(each)), commit_and_keep


@mutant
def dictionary_in_memory():
    """A dictionary is used, and not stored."""
    request_file.RequestFile.keep_dictionary = lambda self, dictionary: None


@mutant
def slots_given_up_alone():
    """Requests without a slot keep the bytes of the slot that they had."""
    codec.Codec.moved = lambda self, stored, slot: stored


@mutant
def deleted_before_their_rows():
    """Delayed requests that are due are deleted in a commit before that of their rows."""
    take = request_file.RequestFile.take_due

    def take_and_commit(self, now, most):
        found = take(self, now, most)
        self.commit()
        return found

    request_file.RequestFile.take_due = take_and_commit


@mutant
def due_too_early():
    """Delayed requests are due a second before their time."""
    delay = request_file.RequestFile.delay
    request_file.RequestFile.delay = lambda self, due, *others: delay(self, due - 1, *others)
