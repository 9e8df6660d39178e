"""Functions that break the package, to see that tests notice.

`DURABLE_MUTANT=<name> pytest tests/job/<module>` runs tests with one of them, `--mutant` crawls.
"""

import os

from scrapy.core import scraper
from scrapy.pqueues import DownloaderAwarePriorityQueue

from scrapy_bloom.bloom import file as storage
from scrapy_bloom.dupefilter.local import BloomDupeFilter
from scrapy_bloom.feeds import file as feedfile
from scrapy_bloom.feeds import writing
from scrapy_bloom.feeds.exporter import DurableFeedExporter
from scrapy_bloom.feeds.file import FeedFile
from scrapy_bloom.feeds.outbox import Outbox
from scrapy_bloom.feeds.writing import FeedWriter
from scrapy_bloom.job import failure_hooks as failing
from scrapy_bloom.job.codec import Codec
from scrapy_bloom.job.in_flight import InFlight
from scrapy_bloom.job.ledger import Ledger
from scrapy_bloom.job.ledger_scheduler import LedgerScheduler
from scrapy_bloom.job.queue_settings import SlotQueue
from scrapy_bloom.job.session import Session
from scrapy_bloom.scrapy_private import IdleChecks
from scrapy_bloom.sqlite_backend import taken_starts
from scrapy_bloom.sqlite_backend.failed_store import OpenFailedStore
from scrapy_bloom.sqlite_backend.job_file import RequestFile
from scrapy_bloom.sqlite_backend.repeated_children import RepeatedChildren, TakenChildren
from scrapy_bloom.sqlite_backend.request_store import SqliteStore
from scrapy_bloom.sqlite_backend.rounds import Round
from scrapy_bloom.sqlite_backend.spider_state import KeptSpiderState
from scrapy_bloom.sqlite_backend.taken_starts import LocalStartRequests
from tests.job.points import Proxy

MUTANTS = {}


def mutant(*noticing):
    """Make a function that breaks something a mutant of its name, which these tests notice; without
    them `test_kills` or the torture says what does."""

    def register(function):
        assert function.__name__ not in MUTANTS
        MUTANTS[function.__name__], function.noticing = function, noticing
        return function

    return register


def after(owner, method, change):
    """Have `change` called with an object of this class after a method of it."""
    run = getattr(owner, method)

    def run_and_change(self, *arguments, **options):
        result = run(self, *arguments, **options)
        change(self, *arguments)
        return result

    setattr(owner, method, run_and_change)


# Of the scheduler


@mutant()
def mark_before_commit():
    """The filter learns of a request as soon as it is seen."""
    BloomDupeFilter.use_overlay = lambda self, *, requests_survive: None


@mutant()
def delete_on_pop():
    """A row goes when its request is handed out."""
    next_request = SqliteStore.next

    def next_and_delete(self):
        request = next_request(self)
        if request is not None:
            self.done(request)
        return request

    SqliteStore.next = next_and_delete


@mutant()
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


@mutant()
def header_not_synced():
    """A new file of the filter is not synced before its bits are set."""

    def fsync(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            os.fsync(descriptor)

    storage.os = Proxy(os, fsync=fsync)


@mutant()
def noted_before_the_commit():
    """The filter knows of a commit that may never be."""
    commit = SqliteStore.commit

    def note_and_commit(self, fingerprints):
        self._file.commits += 1
        self._note_commit()
        self._file.commits -= 1
        return commit(self, fingerprints)

    SqliteStore.commit = note_and_commit


@mutant()
def noted_after_the_bits():
    """The filter has bits of a commit that it does not know of."""
    dupefilter = BloomDupeFilter
    note, release = dupefilter.note_commit, dupefilter.release

    def note_later(self, *commit):
        self._noted = commit

    def release_and_note(self, fingerprints):
        release(self, fingerprints)
        note(self, *self._noted)

    dupefilter.note_commit, dupefilter.release = note_later, release_and_note


@mutant()
def slots_given_up_alone():
    """Requests without a slot keep the bytes of the slot that they had."""
    Codec.moved = lambda self, stored, slot: stored


@mutant()
def deleted_before_their_rows():
    """Delayed requests that are due are deleted in a commit before that of their rows."""
    after(RequestFile, "take_due", lambda self, *_: self.commit())


@mutant()
def due_too_early():
    """Delayed requests are due a second before their time."""
    delay = RequestFile.delay
    RequestFile.delay = lambda self, due, *others: delay(self, due - 1, *others)


# Of the feeds


@mutant()
def length_recorded_before_the_sync():
    """What was appended is recorded, and never synced."""
    feedfile.os = Proxy(os, fsync=lambda descriptor: None)


@mutant()
def rows_dropped_before_the_length_is_recorded():
    """Items leave the outbox a commit before the length is recorded."""
    record = FeedWriter._record

    def drop(self):
        late, self.changed = self.changed, set(getattr(self, "late", ()))
        record(self)
        self.late, self.changed = late, self.changed | late

    FeedWriter._record = drop


@mutant()
def acknowledged_before_the_items_are_final():
    """The items of a request become final a commit after its end."""
    before_commit = FeedWriter.before_commit

    def late(self, acknowledged):
        due = getattr(self, "due", [])
        self.due = acknowledged
        before_commit(self, due)

    FeedWriter.before_commit = late


@mutant()
def no_cut_at_recovery():
    """What a file has beyond its recorded length stays."""

    def open_whole(self):
        if self._file == -1:
            self._hash, self.length = feedfile._hash(), 0
            self.keep()
            open_(self)

    open_ = FeedFile.open
    FeedFile.open = open_whole


@mutant()
def children_given_twice():
    """What a page yields with dont_filter is not remembered while it is in progress."""
    TakenChildren.add = lambda self, row, child: None


@mutant()
def items_spilled_as_final():
    """Items that wait in the outbox are nobody's at once."""
    writing.BYTES_IN_MEMORY = 0

    def spill(self):
        self._keep_final({number for _, number, _ in self._waiting})

    FeedWriter._spill = spill


# Of rounds


@mutant("test_a_link_back_to_a_start_page_is_new")
def start_requests_in_the_filter():
    """The filter learns of start requests, so a link back to one is known."""
    mark_stored = LocalStartRequests.mark_stored

    def stored_and_seen(self):
        mark_stored(self)
        self._ledger._dupefilter.request_seen(self.offered)

    LocalStartRequests.mark_stored = stored_and_seen


@mutant("test_only_what_leaves_start_is_a_start_request")
def marked_by_meta():
    """Whatever has the meta of a start request is one."""

    push = LedgerScheduler._push_to_store

    def push_and_mark(self, request, *others):
        pushed = push(self, request, *others)
        if pushed and request.meta.get("is_start_request"):
            starts = self._start_requests
            starts._take(starts._meet(taken_starts.key_of(request, starts._fingerprint(request))))
        return pushed

    LedgerScheduler._push_to_store = push_and_mark


@mutant("test_a_start_request_is_taken_with_its_row_or_not_at_all")
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


@mutant("test_each_occurrence_counts")
def counted_by_fingerprint():
    """A second start request for a page is the first one."""
    contains = LocalStartRequests._is_skipped

    def is_skipped(self, thing):
        meet = self._meet
        self._meet = lambda key: (meet(key)[0], 1)
        try:
            return contains(self, thing)
        finally:
            self._meet = meet

    LocalStartRequests._is_skipped = is_skipped


@mutant("test_sessions_are_told_apart_in_any_order")
def told_apart_by_order():
    """Start requests with one fingerprint are the same."""
    taken_starts.key_of = lambda request, fingerprint: taken_starts.KEY_PREFIX + fingerprint


@mutant("test_what_differs_in_each_run_does_not_tell_start_requests_apart")
def told_apart_by_all_meta():
    """Whatever stands in the meta of a start request tells it apart."""
    key_of = taken_starts.key_of
    taken_starts.key_of = lambda request, fingerprint: key_of(
        request, fingerprint + repr(request.meta).encode()
    )


@mutant("test_start_requests_in_memory_are_taken_when_they_are_done")
def taken_in_memory():
    """One that lives in memory only is taken at once."""
    LocalStartRequests.mark_in_memory = LocalStartRequests.mark_stored


@mutant("test_items_of_a_page_in_memory_come_once_when_its_page_is_repeated")
def unfiltered_in_memory_done_at_once():
    """What lives in memory without the filter is done before the pages that give it again."""
    keep = InFlight.keep
    InFlight.keep = lambda self, request, fingerprints, **_: keep(self, request, fingerprints)


@mutant("test_items_behind_a_page_in_memory_come_once")
def children_of_the_page_that_came_first():
    """What a page in memory gives is known by the stored page that has given that first."""

    def in_memory(self, request):
        page = next(iter(self._ledger._in_flight), None)
        if page is not None and (row := self._store.row_of(page)) is not None:
            self._in_memory[request] = row

    RepeatedChildren.in_memory = in_memory


@mutant("test_pages_in_memory_that_are_alike")
def children_kept_for_ever():
    """What came of a page in memory is not forgotten with it."""
    TakenChildren.forget = TakenChildren.forget_all = lambda *_: None


@mutant("test_start_that_breaks_off_does_not_end_the_round")
def exhausted_by_an_error():
    """start() that breaks off counts as exhausted."""
    LocalStartRequests.exhausted = True


@mutant("test_the_reason_does_not_matter")
def over_with_requests_left():
    """A round is over when start() is exhausted and the spider closes."""
    RequestFile.is_empty = True


@mutant("test_a_spider_that_its_idle_handler_feeds_goes_on")
def over_without_a_question():
    """A round is over whatever a handler of spider_idle could give."""
    IdleChecks.may_give_more = False


@mutant("test_a_spider_that_its_idle_handler_feeds_goes_on")
def over_when_finished_only():
    """A handler of spider_idle that gives a reason of its own does not end a round."""
    IdleChecks._note = lambda self, answers: None


@mutant("test_state_and_requests_are_committed_together")
def state_before_the_commit():
    """The state is durable before the requests are."""
    before_commit = KeptSpiderState.before_commit

    def before_and_commit(self, acknowledged):
        pushed, self._file._pushed = self._file._pushed, []
        deleted, self._file._deleted = self._file._deleted, []
        before_commit(self, acknowledged)
        self._file.commit()
        self._file._pushed, self._file._deleted = pushed, deleted
        self._file.operations = len(pushed) + len(deleted)

    KeptSpiderState.before_commit = before_and_commit


@mutant("test_state_and_requests_are_committed_together")
def state_after_the_commit():
    """The requests are durable before the state is."""
    before_commit = KeptSpiderState.before_commit

    def after_commit(self):
        before_commit(self, [])
        self._file.commit()

    KeptSpiderState.before_commit = lambda self, acknowledged: None
    KeptSpiderState.after_commit = after_commit


@mutant("test_a_spider_that_did_not_open_keeps_its_state")
def state_of_a_spider_that_did_not_open():
    """The extension saves whatever it has at a close."""
    KeptSpiderState.end = lambda self, *, failed: None


@mutant("test_a_commit_acknowledges_nothing_that_is_not_flushed")
def told_after_the_commit():
    """Pipelines hear of a commit when it is over."""
    send, commit = Ledger._send_before_commit, Ledger.commit

    def commit_and_send(self):
        commit(self)
        if self._has_begun and not self.stopped:
            send(self)

    Ledger._send_before_commit = lambda self: None
    Ledger.commit = commit_and_send


# Of the session


@mutant("test_a_job_closes_in_one_order", "test_a_job_with_feeds_is_free_when_they_are_stored")
def released_before_the_store_is_closed():
    """Another process can open a store that this one is closing."""
    end = Session.end

    def release_and_end(self, part):
        if self._parts == [part]:
            self._lock.close()
        end(self, part)

    Session.end = release_and_end


@mutant(
    "test_a_refused_start_leaves_nothing", "test_a_start_that_is_refused_when_feeds_have_attached"
)
def a_refused_start_closes():
    """What a crawl does at its end is done where none has begun."""
    abandon = Session.abandon

    def close_and_abandon(self):
        for part in [*self._parts]:
            self.end(part)
        abandon(self)

    Session.abandon = close_and_abandon


@mutant("test_a_job_closes_in_one_order")
def the_store_closes_first():
    """It closes before those that write to it."""
    Session.put_last = Session.at_close


@mutant("test_an_exporter_that_overrides_the_close_does_not_keep_the_job")
def the_first_part_closes():
    """The job is free although feeds are not stored."""
    end = Session.end

    def end_all(self, part):
        for each in [*self._parts]:
            end(self, each)

    Session.end = end_all


# Of failed requests


@mutant("test_a_failed_row_replaces_the_requests_row_in_one_commit")
def acknowledged_before_it_failed():
    """The failed row comes in a commit after the one that acknowledges."""
    commit = SqliteStore.commit
    late = []

    def add_later(self, row, request, failed):
        group = self._file.query("SELECT slot, priority, start FROM requests WHERE id = ?", (row,))
        late.append((self, group[0], request, failed))

    def commit_and_add(self, fingerprints):
        has_committed = commit(self, fingerprints)
        for rows, group, request, failed in late:
            rows._file.execute(
                "INSERT INTO failed VALUES (NULL, ?, ?, ?, 'pickle', ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*group, request, *failed),
            )
        late.clear()
        return has_committed

    OpenFailedStore.add = add_later
    SqliteStore.commit = commit_and_add


@mutant("test_a_failed_row_replaces_the_requests_row_in_one_commit")
def failed_before_it_is_acknowledged():
    """The failed row is committed at once."""
    fail = Ledger.fail

    def fail_at_once(self, request, failed):
        fail(self, request, failed)
        row = self.store.row_of(request)
        if row is not None:
            self.store._failed.add(row, b"", failed)
            self.store._file.commit()

    Ledger.fail = fail_at_once


@mutant(
    "test_a_retried_request_is_asked_and_not_seen_against_itself",
    "test_what_fails_again_has_more_attempts",
)
def retries_used_up():
    """What is asked once more has no retries left."""
    Codec.again = lambda self, stored, failed: stored


@mutant("test_the_first_reason_stands")
def the_last_reason_stands():
    """A later reason replaces an earlier one."""

    def fail(self, request, failed):
        if self.has(request):
            self._marked[request] = failed

    Ledger.fail = fail


@mutant(
    "test_a_round_goes_on_when_its_failed_requests_are_retried", "test_a_retry_adds_to_the_feeds"
)
def a_round_ends_all_the_same():
    """A round is over although requests have failed in it."""

    def end(self):
        self._leave()
        self._enter("over")
        self.number += 1

    Round._end = end


@mutant("test_without_a_retry_the_next_start_is_a_new_round")
def a_round_never_ends():
    """A round goes on as long as requests are kept as failed, retried or not."""
    init = Round.__init__

    def init_resumed(self, file, commit):
        init(self, file, commit)
        if self.follows_kept:
            self.follows_kept, self.is_resumed, self.number = False, True, self.number - 1

    Round.__init__ = init_resumed


@mutant("test_a_retry_adds_to_the_feeds")
def feeds_begin_anew():
    """What the feeds hold is not known to a retry."""
    Outbox.feeds = lambda self: []


@mutant("test_items_and_ignored_requests_count_if_they_are_named")
def answered_by_the_cache():
    """A cache may answer what is asked once more."""
    again = Codec.again

    def past_no_cache(self, stored, failed):
        self._has_cache = False
        return again(self, stored, failed)

    Codec.again = past_no_cache


@mutant("test_items_and_ignored_requests_count_if_they_are_named")
def robots_txt_is_a_failure():
    """Whatever is ignored has failed."""
    failing._NOT_THE_PAGES_FAULT = ()


@mutant("test_what_the_spider_has_not_handled_fails")
def before_other_middlewares():
    """A status has failed although a spider middleware handles it."""

    def on_unhandled_status(crawler, process_spider_exception):
        methods = crawler.engine.scraper.spidermw.methods
        methods["process_spider_exception"].appendleft(process_spider_exception)
        methods["process_spider_output"].appendleft(None)

    failing.on_unhandled_status = on_unhandled_status


@mutant("test_what_the_spider_has_not_handled_fails")
def every_status():
    """Pages that are not there have failed."""
    after(failing.Failures, "__init__", lambda self, *_: setattr(self, "_retried", range(600)))


@mutant("test_what_could_not_be_read_back_is_tried_again_at_the_next_start")
def unreadable_after_its_row():
    """The row of a request that cannot be read back goes in a commit before it has failed."""
    add, commit = OpenFailedStore.add_unreadable, SqliteStore.commit
    late = []

    def commit_and_add(self, fingerprints):
        has_committed = commit(self, fingerprints)
        for rows, row, why in late:
            self._file.execute(
                "INSERT OR IGNORE INTO requests VALUES (?, 'x', 0, 0, 1, 'pickle', '')", (row,)
            )
            add(rows, row, why)
            self._file.delete(row)
        late.clear()
        return has_committed

    OpenFailedStore.add_unreadable = lambda *given: late.append(given)
    SqliteStore.commit = commit_and_add


@mutant("test_a_page_that_could_not_be_read_back")
def unreadable_with_its_children():
    """What a page has given is forgotten with the row that cannot be read back."""

    def forget(self, row, *_):
        self._file.execute("DELETE FROM taken_children WHERE parent = ?", (row,))

    after(OpenFailedStore, "add_unreadable", forget)


@mutant("test_exactly_those_pages_are_asked_again")
def offered_to_the_filter():
    """What is asked once more is a request like any other."""
    next_ = SqliteStore.next

    def next_unless_seen(self):
        request = next_(self)
        seen = self._crawler.engine._slot.scheduler.df if request is not None else None
        if seen is not None and "bloom_attempts" in request.meta and seen.request_seen(request):
            self.done(request)
            return self.next()
        return request

    SqliteStore.next = next_unless_seen


@mutant("test_what_the_spider_has_not_handled_fails")
def a_refused_item_is_nothing():
    """The page of an item that a feed refuses is done."""
    DurableFeedExporter._tell_of_refused = lambda self, response, error: None


# Of the queue by slots


@mutant("test_its_order_is_scrapys")
def the_other_scrapys_order():
    """Slots take turns where they should not, or do not where they should."""
    after(
        SlotQueue, "__init__", lambda self, *_: setattr(self, "_takes_turns", not self._takes_turns)
    )


def see(function):
    """Have the load of each slot seen as `function(queue, slot, load)` makes it."""

    def change(self, *_):
        true = self._load
        self._load = lambda slot: function(self, slot, true(slot))

    after(SlotQueue, "__init__", change)


@mutant("test_its_order_is_scrapys")
def the_first_busy_slot_is_next():
    """One active download is as many as two."""
    see(lambda queue, slot, load: min(load, 1))


@mutant("test_its_order_is_scrapys")
def an_idle_slot_counts_as_busy():
    """A slot that the downloader still knows comes after the others."""
    see(lambda queue, slot, load: load + (slot in queue.crawler.engine.downloader.slots))


@mutant("test_its_order_is_scrapys")
def the_turn_ends_with_the_slot():
    """When the last slot has become empty, the first by name is next."""
    after(SlotQueue, "_remove", lambda self, _: setattr(self, "_last", None))


@mutant("test_its_order_is_scrapys")
def a_failed_pop_counts_as_none():
    """A request that cannot be read back counts as pending."""
    pop = SlotQueue.pop

    def pop_and_count(self):
        before = self._length
        try:
            return pop(self)
        except Exception:
            self._length = before
            raise

    SlotQueue.pop = pop_and_count


@mutant("test_its_order_is_scrapys")
def a_failed_push_counts():
    """A request that cannot be stored counts as pending."""

    def count_and_push(self, request):
        before = len(self)
        try:
            push(self, request)
        finally:
            self._length = before + 1

    push, SlotQueue.push = SlotQueue.push, count_and_push


@mutant("test_a_job_whose_slots_are_on_hold_has_pending_requests_and_none_to_give")
def a_new_request_ends_the_hold():
    """A slot on hold is popped when it gets one more."""
    after(SlotQueue, "push", lambda self, request: self.release(self._slot_of(request)))


@mutant("test_peek_shows_the_next_pop")
def a_peek_is_a_turn():
    """To look at a slot passes its turn on."""
    after(SlotQueue, "peek", lambda self: setattr(self, "_last", self._next()))


@mutant("test_no_cost_grows_with_the_number_of_slots")
def the_length_is_a_sum():
    """Each slot is asked how much it has."""
    SlotQueue.__len__ = DownloaderAwarePriorityQueue.__len__


@mutant("test_no_cost_grows_with_the_number_of_slots")
def all_slots_are_asked():
    """Each slot is asked for its active downloads."""

    next_ = SlotQueue._next

    def ask_and_next(self):
        [*map(self._load, self._names)]
        return next_(self)

    SlotQueue._next = ask_and_next
