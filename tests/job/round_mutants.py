"""Schedulers that know less of a round than they should, to see that the tests notice.

`DURABLE_MUTANT=<name> pytest tests/job/<module>` runs tests with one of them, or of
`mutants`.
"""

from scrapy_bloom.job.in_flight import InFlight
from scrapy_bloom.job.ledger import Ledger
from scrapy_bloom.job.ledger_scheduler import LedgerScheduler
from scrapy_bloom.scrapy_compat import IdleChecks
from scrapy_bloom.sqlite_backend import start_marks
from scrapy_bloom.sqlite_backend.repeated_children import RepeatedChildren, TakenChildren
from scrapy_bloom.sqlite_backend.request_file import RequestFile
from scrapy_bloom.sqlite_backend.spider_state import KeptSpiderState
from scrapy_bloom.sqlite_backend.start_marks import LocalStartRequests

MUTANTS = {}


def mutant(function):
    """Make a function that breaks something a mutant of its name."""
    MUTANTS[function.__name__] = function
    return function


@mutant
def start_requests_in_the_filter():
    """The filter learns of start requests, so a link back to one is known."""
    mark_stored = LocalStartRequests.mark_stored

    def stored_and_seen(self):
        mark_stored(self)
        self._ledger._dupefilter.request_seen(self.offered)

    LocalStartRequests.mark_stored = stored_and_seen


@mutant
def marked_by_meta():
    """Whatever has the meta of a start request is one."""

    push = LedgerScheduler._push_to_store

    def push_and_mark(self, request, *others):
        pushed = push(self, request, *others)
        if pushed and request.meta.get("is_start_request"):
            starts = self._start_requests
            starts._take(starts._meet(start_marks.key_of(request, starts._fingerprint(request))))
        return pushed

    LedgerScheduler._push_to_store = push_and_mark


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


@mutant
def told_apart_by_order():
    """Start requests with one fingerprint are the same."""
    start_marks.key_of = lambda request, fingerprint: start_marks.KEY_PREFIX + fingerprint


@mutant
def told_apart_by_all_meta():
    """Whatever stands in the meta of a start request tells it apart."""
    key_of = start_marks.key_of
    start_marks.key_of = lambda request, fingerprint: key_of(
        request, fingerprint + repr(request.meta).encode()
    )


@mutant
def taken_in_memory():
    """One that lives in memory only is taken at once."""
    LocalStartRequests.mark_in_memory = LocalStartRequests.mark_stored


@mutant
def unfiltered_in_memory_done_at_once():
    """What lives in memory without the filter is done before the pages that give it again."""
    keep = InFlight.keep
    InFlight.keep = lambda self, request, fingerprints, **_: keep(self, request, fingerprints)


@mutant
def children_of_the_page_that_came_first():
    """What a page in memory gives is known by the stored page that has given that first."""

    def in_memory(self, request):
        page = next(iter(self._ledger._in_flight), None)
        if page is not None and (row := self._store.row_of(page)) is not None:
            self._in_memory[request] = row

    RepeatedChildren.in_memory = in_memory


@mutant
def children_kept_for_ever():
    """What came of a page in memory is not forgotten with it."""
    TakenChildren.forget = TakenChildren.forget_all = lambda *_: None


@mutant
def exhausted_by_an_error():
    """start() that breaks off counts as exhausted."""
    LocalStartRequests.exhausted = True


@mutant
def over_with_requests_left():
    """A round is over when start() is exhausted and the spider closes."""
    RequestFile.is_empty = True


@mutant
def over_without_a_question():
    """A round is over whatever a handler of spider_idle could give."""
    IdleChecks.may_give_more = False


@mutant
def over_when_finished_only():
    """A handler of spider_idle that gives a reason of its own does not end a round."""
    IdleChecks._note = lambda self, answers: None


@mutant
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


@mutant
def state_after_the_commit():
    """The requests are durable before the state is."""
    before_commit = KeptSpiderState.before_commit

    def after_commit(self):
        before_commit(self, [])
        self._file.commit()

    KeptSpiderState.before_commit = lambda self, acknowledged: None
    KeptSpiderState.after_commit = after_commit


@mutant
def state_of_a_spider_that_did_not_open():
    """The extension saves whatever it has at a close."""
    KeptSpiderState.end = lambda self, *, failed: None


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
