"""What breaks the delta store, to see that the tests notice.

`DELTA_MUTANT=<name> pytest tests/delta/test_crawls.py` runs the tests with one of them. By the
test that notices them:

- test_a_job_that_is_thrown_away_takes_no_page_with_it: `marked_before_the_commit`,
  `added_before_the_feeds`
- test_the_second_crawl_fetches_lists_what_is_new_and_what_was_not_done: `lists_are_marked`,
  `raising_does_not_count`, `dropped_items_count`, `failed_items_do_not_count`,
  `refused_items_do_not_count`, `redirects_are_not_marked`, `the_filter_stays`,
  `waiting_marks_are_lost`
- test_a_round_does_not_skip_its_own_repeats: `own_marks_count`
- test_a_page_whose_links_are_known_is_a_list: `added_requests_do_not_count`,
  `known_links_are_no_links`
- test_what_leads_to_a_page_is_not_skipped_before_the_page_is_done: `keys_of_errbacks_count`
- test_a_test_crawl_changes_no_byte_of_the_memory: `test_crawls_mark`
- test_an_unchanged_site_has_no_changed_page: `failed_pages_are_compared`,
  `dropped_items_are_compared`, `only_the_answered_key_is_asked`, `each_fetch_counts`,
  `digests_expire`, `retries_are_compared`, `verdicts_end_with_the_job`
- test_only_what_is_fetched_is_compared: `lists_have_no_digest`
- test_items_of_unchanged_pages_are_in_no_feed: `items_of_unchanged_pages_stay`
- test_a_test_crawl_compares_and_changes_no_byte_of_the_memory: `test_crawls_keep_digests`
- test_kills_change_no_verdict: `verdicts_end_with_the_process`, `digests_do_not_wait`
- test_what_is_done_is_fetched_again_after_the_period: `never_expires`
- test_broken_marks_of_a_fleet_are_noticed in tests/test_torture.py: `unsynced_feeds_count`, and the
  first two for certain
"""

import dataclasses
import time
from functools import partial
from math import inf

from scrapy import signals

from scrapy_bloom.delta import crawl as delta_crawl
from scrapy_bloom.delta import middleware, pages
from scrapy_bloom.delta.crawl import DeltaCrawl
from scrapy_bloom.delta.digests import Digests
from scrapy_bloom.delta.file_store import FileDeltaStore
from scrapy_bloom.delta.marks import Marks
from scrapy_bloom.delta.middleware import DeltaMiddleware
from scrapy_bloom.delta.pages import Pages
from scrapy_bloom.job.failed_request import item_refused

MUTANTS = {}


def mutant(function):
    """Make a function that breaks something a mutant of its name."""
    MUTANTS[function.__name__] = function
    return function


def replacing(owner, name):
    """Make a function a mutant: the method `name` of `owner`, after which it takes the old one."""

    def mutant_of(function):
        def replace():
            old = getattr(owner, name)
            setattr(owner, name, lambda *args, **options: function(old, *args, **options))

        MUTANTS[function.__name__] = replace
        return replace

    return mutant_of


def without(signal, instead=lambda self, response: None):
    """Make the middleware ignore `signal`, or do something else `instead`."""
    from_crawler = DeltaMiddleware.from_crawler

    def connect_others(cls, crawler):
        self = from_crawler(crawler)
        crawler.signals.disconnect(self._page_failed, signal)
        self.instead = lambda response: instead(self, response)
        crawler.signals.connect(self.instead, signal)
        return self

    DeltaMiddleware.from_crawler = classmethod(connect_others)


@mutant
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


@replacing(Pages, "done")
def lists_are_marked(done, self, request, reason=None):
    """What has given an item is done, as deltafetch has it."""
    if (outcome := self._outcomes.get(request)) is not None:
        outcome.is_index_page = False
    return done(self, request, reason)


@mutant
def raising_does_not_count():
    """A callback that has raised is as good as another."""
    without(signals.spider_error)
    done = Pages.done

    def forgive(self, request, reason=None):
        if (outcome := self._outcomes.get(request)) is not None:
            outcome.is_complete = True
        return done(self, request)

    Pages.done = forgive


@replacing(DeltaMiddleware, "_spider_opened")
def dropped_items_count(opened, self):
    """An item counts when it is yielded."""
    opened(self)
    self._crawler.signals.connect(self._item_scraped, signals.item_dropped)


@mutant
def waiting_marks_are_lost():
    """A process that dies when the round is over takes its marks with it."""
    DeltaCrawl._close = lambda self: None
    DeltaCrawl.after_commit = lambda self: self._fresh.clear()
    add = DeltaCrawl._add
    DeltaCrawl._add = lambda self, marks: add(self, [] if isinstance(marks, Marks) else marks)


@replacing(DeltaCrawl, "_begin")
def test_crawls_mark(begin, self):
    """BLOOM_DELTA_READ_ONLY does not keep a page from being marked."""
    self._settings = dataclasses.replace(self._settings, read_only=False)
    self.pages.settings = self._settings
    begin(self)


@replacing(Marks, "add")
def each_fetch_counts(add, self, rows, verdict=None):
    """A page that is fetched twice in a round is two."""
    add(self, rows)
    self.verdicts[verdict] += verdict is not None


@replacing(pages.Outcome, "leads_to")
def retries_are_compared(_, self, request, response):
    """A page without items is compared, though its callback asks for it once more."""
    self.is_index_page = True


@replacing(Pages, "_compare")
def lists_have_no_digest(compare, self, request, reason):
    """Only a page that may be marked is compared."""
    outcome = self._outcomes.get(request)
    if outcome is None or outcome.is_index_page:
        return None, None
    return compare(self, request, reason)


@replacing(Marks, "__init__")
def verdicts_end_with_the_process(init, self, executor):
    """A round that goes on begins to count anew."""
    init(self, executor)
    self.verdicts.clear()


@mutant
def unsynced_feeds_count():
    """Pages are marked whose items are in a feed that a kill costs."""
    from scrapy_bloom.redis_backend.worker_feeds import SyncedFeeds

    SyncedFeeds.are_safe = True


def early(seconds):
    """Let marks come into the store before the commit that acknowledges."""
    before_commit = DeltaCrawl.before_commit

    def add(self, acknowledged):
        before_commit(self, acknowledged)
        self.store.add(self._fresh)
        time.sleep(seconds if self._fresh else 0)

    DeltaCrawl.before_commit = add


verdict, remove, clear = Digests.verdict, FileDeltaStore._remove_older, Marks.clear
REPLACED = {
    # only what was answered is
    "redirects_are_not_marked": (Pages, "_keys_of", lambda self, each: [self.key_of(each)]),
    # a new round has the filter of the last one
    "the_filter_stays": (delta_crawl, "reset_filter", lambda dupefilter: None),
    # what this round has done is skipped
    "own_marks_count": (Marks, "__contains__", lambda self, key: False),
    # only what the callback yields makes a page a list
    "added_requests_do_not_count": (middleware, "put_before_engine", lambda crawler, last: None),
    # a page whose links were all left out is no list
    "known_links_are_no_links": (middleware, "has_left_out", lambda response: False),
    # the key of a page that has failed stands for what its errback asks for, too
    "keys_of_errbacks_count": (Pages, "drop_copied_key", lambda self, request: None),
    # a callback that has raised gives a digest, too
    "failed_pages_are_compared": (pages, "_is_sound", lambda outcome, reason: True),
    # a page is what its redirect has led to
    "only_the_answered_key_is_asked": (
        Digests,
        "verdict",
        lambda self, keys, digest: verdict(self, keys[:1], digest),
    ),
    # a row is removed when its mark has expired
    "digests_expire": (
        FileDeltaStore,
        "_remove_older",
        lambda self, when, keep_digests=False: remove(self, when),
    ),
    # the line at the end counts the marks of a round that is over
    "verdicts_end_with_the_job": (
        Marks,
        "clear",
        lambda self: (clear(self), self.verdicts.clear()),
    ),
    # the feeds ask too late
    "items_of_unchanged_pages_stay": (Pages, "is_unchanged", lambda self, each, reason=None: False),
    # a mark counts for ever
    "never_expires": (
        FileDeltaStore,
        "known_until",
        lambda self, key, period=None: inf if self._find(key)[0] is not None else 0.0,
    ),
}
MUTANTS |= {name: partial(setattr, *replaced) for name, replaced in REPLACED.items()}
MUTANTS |= {
    # an item that a pipeline has failed on, or that a feed has refused, has passed
    "failed_items_do_not_count": partial(
        without, signals.item_error, lambda self, response: self._item_scraped({}, response)
    ),
    "refused_items_do_not_count": partial(without, item_refused),
    # marks, and digests
    "marked_before_the_commit": partial(early, 0.3),
    "digests_do_not_wait": partial(early, 0.1),
    # the same for digests: items count as they are yielded; test crawls are none
    "dropped_items_are_compared": dropped_items_count,
    "test_crawls_keep_digests": test_crawls_mark,
}
