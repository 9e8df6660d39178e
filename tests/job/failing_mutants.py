"""What breaks the keeping of failed requests, to see that the tests notice.

`FAILING_MUTANT=<name> pytest tests/job/test_failing_crawls.py tests/job/test_failed.py`
runs tests with one of them. Which test notices it:

- `acknowledged_before_it_failed`: test_a_failed_row_replaces_the_requests_row_in_one_commit
- `failed_before_it_is_acknowledged`: the same
- `retries_used_up`: test_a_retried_request_is_asked_and_not_seen_against_itself, and
  test_what_fails_again_has_more_attempts
- `the_last_reason_stands`: test_the_first_reason_stands
- `a_round_ends_all_the_same`: test_a_round_goes_on_when_its_failed_requests_are_retried, and
  test_a_retry_adds_to_the_feeds
- `a_round_never_ends`: test_without_a_retry_the_next_start_is_a_new_round
- `feeds_begin_anew`: test_a_retry_adds_to_the_feeds
- `answered_by_the_cache`: test_items_and_ignored_requests_count_if_they_are_named
- `robots_txt_is_a_failure`: the same
- `before_other_middlewares`: test_what_the_spider_has_not_handled_fails
- `every_status`: the same
- `unreadable_after_its_row`: test_what_could_not_be_read_back_is_tried_again_at_the_next_start
  (in test_scheduler.py)
- `unreadable_with_its_children`: test_a_page_that_could_not_be_read_back (in
  test_children.py)
- `a_refused_item_is_nothing`: test_what_the_spider_has_not_handled_fails
- `offered_to_the_filter`: test_exactly_those_pages_are_asked_again
"""

from scrapy_bloom.feeds.exporter import DurableFeedExporter
from scrapy_bloom.feeds.outbox import Outbox
from scrapy_bloom.job import failures as failing
from scrapy_bloom.job.codec import Codec
from scrapy_bloom.job.ledger import Ledger
from scrapy_bloom.sqlite_backend.failed_store import OpenFailedStore
from scrapy_bloom.sqlite_backend.request_store import SqliteStore
from scrapy_bloom.sqlite_backend.rounds import Round

MUTANTS = {}


def mutant(function):
    """Make a function that breaks something a mutant of its name."""
    MUTANTS[function.__name__] = function
    return function


@mutant
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


@mutant
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


@mutant
def retries_used_up():
    """What is asked once more has no retries left."""
    Codec.again = lambda self, stored, failed: stored


@mutant
def the_last_reason_stands():
    """A later reason replaces an earlier one."""

    def fail(self, request, failed):
        if self.has(request):
            self._marked[request] = failed

    Ledger.fail = fail


@mutant
def a_round_ends_all_the_same():
    """A round is over although requests have failed in it."""

    def end(self):
        self._leave()
        self._enter("over")
        self.number += 1

    Round._end = end


@mutant
def a_round_never_ends():
    """A round goes on as long as requests are kept as failed, retried or not."""
    init = Round.__init__

    def init_resumed(self, file, commit):
        init(self, file, commit)
        if self.follows_kept:
            self.follows_kept, self.is_resumed, self.number = False, True, self.number - 1

    Round.__init__ = init_resumed


@mutant
def feeds_begin_anew():
    """What the feeds hold is not known to a retry."""
    Outbox.feeds = lambda self: []


@mutant
def answered_by_the_cache():
    """A cache may answer what is asked once more."""
    again = Codec.again

    def past_no_cache(self, stored, failed):
        self._has_cache = False
        return again(self, stored, failed)

    Codec.again = past_no_cache


@mutant
def robots_txt_is_a_failure():
    """Whatever is ignored has failed."""
    failing._NOT_THE_PAGES_FAULT = ()


@mutant
def before_other_middlewares():
    """A status has failed although a spider middleware handles it."""

    def on_unhandled_status(crawler, process_spider_exception):
        methods = crawler.engine.scraper.spidermw.methods
        methods["process_spider_exception"].appendleft(process_spider_exception)
        methods["process_spider_output"].appendleft(None)

    failing.on_unhandled_status = on_unhandled_status


@mutant
def every_status():
    """Pages that are not there have failed."""
    init = failing.Failures.__init__

    def init_with_all(self, crawler, settings):
        init(self, crawler, settings)
        self._retried = range(600)

    failing.Failures.__init__ = init_with_all


@mutant
def unreadable_after_its_row():
    """The row of a request that cannot be read back goes in a commit before it has failed."""
    add, commit = OpenFailedStore.add_unreadable, SqliteStore.commit
    late = []

    def commit_and_add(self, fingerprints):
        has_committed = commit(self, fingerprints)
        for rows, row, why, codec in late:
            self._file.execute(
                "INSERT OR IGNORE INTO requests VALUES (?, 'x', 0, 0, 1, 'pickle', '')", (row,)
            )
            add(rows, row, why, codec)
            self._file.delete(row)
        late.clear()
        return has_committed

    OpenFailedStore.add_unreadable = lambda *given: late.append(given)
    SqliteStore.commit = commit_and_add


@mutant
def unreadable_with_its_children():
    """What a page has given is forgotten with the row that cannot be read back."""
    add = OpenFailedStore.add_unreadable

    def add_and_forget(self, row, why, codec):
        add(self, row, why, codec)
        self._file.execute("DELETE FROM taken_children WHERE parent = ?", (row,))

    OpenFailedStore.add_unreadable = add_and_forget


@mutant
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


@mutant
def a_refused_item_is_nothing():
    """The page of an item that a feed refuses is done."""
    DurableFeedExporter._tell_of_refused = lambda self, response, error: None
