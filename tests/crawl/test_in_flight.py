"""What may be acknowledged while requests live in memory only, against a naive model."""

import gc
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.crawl.in_flight import InFlight
from tests.crawl.engine import request

# The model: the whole graph of what waits for what, as version 0.1.0 kept it


@dataclass(eq=False)
class Node:
    """A request, and what it waits for."""

    request: object
    fingerprints: tuple = ()
    queued: int = 0
    waits_for: set = field(default_factory=set)
    awaited_by: set = field(default_factory=set)


class NaiveInFlight:
    """The same as InFlight, with an edge for each pair, and each pair's cost."""

    def __init__(self):
        self.nodes = {}
        self.running = {}

    def keep(self, request, fingerprints):
        node = self.nodes.setdefault(id(request), Node(request))
        node.queued += 1
        node.fingerprints += tuple(fingerprints)
        for parent in self.running.values():
            if parent is not node:
                wait(parent, node)

    def start(self, request):
        node = self.nodes.setdefault(id(request), Node(request))
        node.queued = max(node.queued - 1, 0)
        self.running[id(request)] = node

    def finish(self, request):
        node = self.running.get(id(request))
        if node is None or node.queued:
            return []
        del self.running[id(request)], self.nodes[id(request)]
        ready = [] if node.waits_for else [node]
        for parent in node.awaited_by:
            parent.waits_for.discard(node)
            for child in node.waits_for - {parent}:
                wait(parent, child)
            if not parent.waits_for and self.nodes.get(id(parent.request)) is not parent:
                ready.append(parent)
        node.awaited_by.clear()
        return ready


def wait(parent, child):
    parent.waits_for.add(child)
    child.awaited_by.add(parent)


# What a crawl does


@dataclass(eq=False)
class Page:
    """A request of a crawl, with what nobody but the test knows."""

    stored: bool = False
    """It has a row."""
    origin: object = None
    """The page whose callback yielded it."""
    comes_again: bool = False
    """The filter lets it pass whenever that page is repeated."""


class Crawl:
    """Drives books through what a scheduler does, and knows where each page came from."""

    def __init__(self, *books):
        self.books = books
        self.acknowledged = [[] for _ in books]
        self.pages = []
        self.queue = []
        self.running = []

    def start_stored(self, _):
        """The engine gets a request that has a row."""
        page = self.new(stored=True)
        self.running.append(page)
        for book in self.books:
            book.start(page)

    def keep(self, number, **options):
        """A callback yields a request that cannot be stored, or nobody knows who does."""
        self.queue.append(self.new(origin=self.one_of([None, *self.running], number), **options))
        for book in self.books:
            book.keep(self.queue[-1], [b"child"], **options)

    def keep_unfiltered(self, number):
        """The same for one that the filter does not hold back when it comes again."""
        self.keep(number, comes_again=True)

    def keep_again(self, number):
        """A callback yields its own request once more, now unserializable."""
        if self.running:
            page = self.one_of(self.running, number)
            self.queue.append(page)
            for book in self.books:
                book.keep(page, [])

    def start_kept(self, number):
        """The engine gets a request from the memory queue."""
        if self.queue:
            page = self.queue.pop(number % len(self.queue))
            if page not in self.running:
                self.running.append(page)
            for book in self.books:
                book.start(page)

    def finish(self, number):
        """The engine is done with a request, and the scheduler hears of it."""
        if not self.running:
            return
        page = self.one_of(self.running, number)
        if page not in self.queue:
            self.running.remove(page)
        for book, acknowledged in zip(self.books, self.acknowledged, strict=True):
            for finished in book.finish(page):
                assert finished.request not in acknowledged
                assert finished.fingerprints == (() if finished.request.stored else (b"child",))
                acknowledged.append(finished.request)

    def end(self):
        """Everything in memory and in progress comes to its end."""
        while self.queue or self.running:
            self.finish(0)
            self.start_kept(0)

    def new(self, **options):
        self.pages.append(Page(**options))
        return self.pages[-1]

    def lost(self):
        """Return the pages in memory that a crash would lose now."""
        (acknowledged,) = self.acknowledged
        return [
            page for page in {*self.queue, *self.running} if not self.repeated(page, acknowledged)
        ]

    def twice(self):
        """Return the pages that are acknowledged, and come again if the process dies now."""
        (acknowledged,) = self.acknowledged
        return [
            page
            for page in acknowledged
            if page.comes_again and page.origin is not None and page.origin not in acknowledged
        ]

    def repeated(self, page, acknowledged):
        while page not in acknowledged:
            if page.stored or page.origin is None:
                return True
            page = page.origin
        return False

    @staticmethod
    def one_of(things, number):
        return things[number % len(things)]


# few are in progress or in memory at a time, so that the steps have to do with each other
STEPS = ("start_stored", "keep", "keep", "start_kept", "start_kept", "finish", "finish")


def play(crawl, steps):
    """Do the steps one by one; yield after each."""
    for name, number in steps:
        getattr(crawl, name)(number)
        yield


def steps(*names):
    return st.lists(st.tuples(st.sampled_from(names), st.integers(0, 50)), min_size=60)


@given(steps(*STEPS))
def test_it_acknowledges_what_the_whole_graph_does_and_when(steps):
    """Neither earlier, which would lose pages, nor later, which would repeat them."""
    crawl = Crawl(InFlight(), NaiveInFlight())
    for _ in play(crawl, steps):
        ours, naive = crawl.acknowledged
        assert {*ours} == {*naive}
        assert list(crawl.books[0]) == crawl.running
        assert len(crawl.books[0]) == len(crawl.running)
    crawl.end()
    assert {*crawl.acknowledged[0]} == {*crawl.pages}


@given(steps(*STEPS, "keep_unfiltered", "keep_again"))
def test_what_comes_again_is_not_acknowledged_before_what_yields_it(steps):
    """And in the end all is acknowledged."""
    crawl = Crawl(InFlight())
    for _ in play(crawl, steps):
        assert crawl.lost() == []
        assert crawl.twice() == []
    crawl.end()
    assert {*crawl.acknowledged[0]} == {*crawl.pages}


@pytest.fixture
def books():
    return InFlight()


def finished(books, *requests):
    """Return the requests that may be acknowledged when the engine is done with these."""
    return [each.request for request in requests for each in books.finish(request)]


def test_some_request_in_memory_at_any_time_holds_nothing_for_ever(books):
    """Where none yields another, each waits for those of its own time."""
    parents, acknowledged = [], []
    previous = request("0")
    books.keep(previous, [])
    for number in range(1, 200):
        parents.append(request(f"parent {number}"))
        child = request(str(number))
        books.start(parents[-1])
        books.keep(child, [])
        acknowledged += finished(books, parents[-1])
        books.start(previous)
        acknowledged += finished(books, previous)
        previous = child
    assert [page for page in acknowledged if page in parents] == parents[:-1]


def references(thing):
    """Return how many references are within `thing`."""
    found, waiting, total = {id(thing)}, [thing], 0
    while waiting:
        for other in gc.get_referents(waiting.pop()):
            total += 1
            if id(other) not in found and not isinstance(other, (type, str, bytes, int)):
                found.add(id(other))
                waiting.append(other)
    return total


@pytest.mark.parametrize(("comes_again", "newest_first"), [(True, False), (False, True)])
def test_memory_grows_with_the_requests_and_not_with_their_pairs(newest_first, comes_again):
    """Some references for each of thousands, and at the end none."""

    def grown(pending):
        books, running, queue, parts = InFlight(), [], [], []

        def start(page):
            books.start(page)
            running.append(page)
            if len(running) > 16:
                books.finish(running.pop(0))

        for from_memory in (False, True):
            for _ in range(pending):
                start(queue.pop(-1 if newest_first else 0) if from_memory else Page())
                queue.append(Page())
                books.keep(queue[-1], [], comes_again=comes_again)
            parts.append(references(books))
        while queue:
            start(queue.pop(-1 if newest_first else 0))
        while running:
            books.finish(running.pop())
        return parts, references(books)

    empty = references(InFlight())
    few, after_few = grown(500)
    many, after_many = grown(4000)
    assert (after_few, after_many) == (empty, empty)
    for small, large in zip(few, many, strict=True):
        assert large < 8.5 * small
    assert max(many) < 4000 * (120 if comes_again else 60)
