"""What may be acknowledged while requests live in memory only, against a naive model."""

import tracemalloc
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from scrapy_bloom.crawl.in_flight import InFlight


@dataclass(eq=False)
class Page:
    """A request of a crawl, with what nobody but the test knows."""

    stored: bool = False  # it has a row
    origin: object = None  # the page whose callback yielded it
    comes_again: bool = False  # the filter lets it pass whenever that page is repeated
    # the pages that came into memory while it was in progress: any may be its own
    arrived: set = field(default_factory=set)

    def tree(self):
        """Return it, and all that may have come of it."""
        found, left = {self}, [self]
        while left:
            new = left.pop().arrived - found
            found |= new
            left += new
        return found


class Crawl:
    """Drives InFlight through what a scheduler does, and knows where each page came from."""

    def __init__(self):
        self.books = InFlight()
        self.acknowledged, self.pages, self.queue, self.running = [], [], [], []

    def start_stored(self, _):
        """The engine gets a request that has a row."""
        self.start(self.new(stored=True))

    def keep(self, number, *, comes_again=False):
        """A callback yields a request that cannot be stored, or nobody knows who does."""
        page = self.new(origin=one_of([None, *self.running], number), comes_again=comes_again)
        for running in self.running:
            running.arrived.add(page)
        self.queue.append(page)
        self.books.keep(page, [b"child"], comes_again=comes_again)

    def keep_unfiltered(self, number):
        """The same for one that the filter does not hold back when it comes again."""
        self.keep(number, comes_again=True)

    def keep_again(self, number):
        """A callback yields its own request once more, now unserializable."""
        if self.running:
            self.queue.append(one_of(self.running, number))
            self.books.keep(self.queue[-1], [], comes_again=True)

    def start_kept(self, number):
        """The engine gets a request from the memory queue."""
        if self.queue:
            self.start(self.queue.pop(number % len(self.queue)))

    def start(self, page):
        if page not in self.running:
            self.running.append(page)
        self.books.start(page)

    def finish(self, number):
        """The engine is done with a request, and the scheduler hears of it."""
        if not self.running:
            return
        page = one_of(self.running, number)
        if page not in self.queue:
            self.running.remove(page)
        for finished in self.books.finish(page):
            assert finished.request not in self.acknowledged
            assert finished.fingerprints == (() if finished.request.stored else (b"child",))
            self.acknowledged.append(finished.request)

    def new(self, **options):
        self.pages.append(Page(**options))
        return self.pages[-1]

    def in_memory(self):
        return {*self.queue, *self.running}

    def is_repeated(self, page):
        """Return True for a page that comes again if the process dies now."""
        while page not in self.acknowledged:
            if page.stored or page.origin is None:
                return True
            page = page.origin
        return False

    def comes_twice(self, page):
        """Return True for one that is acknowledged and may do so."""
        left = {*self.pages}.difference(self.acknowledged)
        return page.comes_again and any(page in each.arrived for each in left)


def one_of(things, number):
    return things[number % len(things)]


# few are in progress or in memory at a time, so that the steps have to do with each other
STEPS = ("start_stored", "keep", "keep", "start_kept", "start_kept", "finish", "finish")


# each example is long: to make it shorter would take minutes
at_once = settings(phases=[Phase.explicit, Phase.generate])


def steps(*names):
    return st.lists(st.tuples(st.sampled_from(names), st.integers(0, 50)), min_size=60)


def play(steps):
    """Yield a crawl after each step, and when everything has come to its end."""
    crawl = Crawl()
    for name, number in steps:
        getattr(crawl, name)(number)
        yield crawl
    while crawl.in_memory():
        crawl.finish(0)
        crawl.start_kept(0)
    yield crawl
    assert {*crawl.acknowledged} == {*crawl.pages}


@at_once
@given(steps(*STEPS))
def test_a_page_is_acknowledged_with_the_last_that_may_have_come_of_it(steps):
    """Neither earlier, which would lose pages, nor later, which would repeat them."""
    for crawl in play(steps):
        left = crawl.in_memory()
        assert {*crawl.acknowledged} == {p for p in crawl.pages if left.isdisjoint(p.tree())}
        assert [*crawl.books.running] == crawl.running


@at_once
@given(steps(*STEPS, "start_stored", "keep_unfiltered", "keep_unfiltered", "keep_again"))
def test_what_comes_again_is_not_acknowledged_before_what_yields_it(steps):
    """And in the end all is acknowledged."""
    for crawl in play(steps):
        assert all(map(crawl.is_repeated, crawl.in_memory()))
        assert not any(map(crawl.comes_twice, crawl.acknowledged))


@pytest.mark.parametrize(("comes_again", "newest_first"), [(True, False), (False, True)])
def test_memory_grows_with_the_requests_and_not_with_their_pairs(newest_first, comes_again):
    """Some hundred bytes for each of thousands, and at the end nothing is known of them."""

    def grown(pending):
        books, running, queue = InFlight(), deque(), deque()

        def start(page):
            books.start(page)
            running.append(page)
            if len(running) > 16:
                books.finish(running.popleft())

        tracemalloc.start()
        for from_memory in (False, True):
            for _ in range(pending):
                start((queue.pop() if newest_first else queue.popleft()) if from_memory else Page())
                queue.append(Page())
                books.keep(queue[-1], [], comes_again=comes_again)
        most, _ = tracemalloc.get_traced_memory()
        while queue:
            start(queue.pop())
        while running:
            books.finish(running.pop())
        tracemalloc.stop()
        same = {"_arrived": 0, "page_of": not books.page_of}
        assert repr(vars(books) | same) == repr({**vars(InFlight()), **same, "page_of": True})
        return most

    assert grown(2000) < 5 * grown(500)
