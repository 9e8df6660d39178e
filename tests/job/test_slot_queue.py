"""The queue by slots: Scrapy's order, slots on hold, and costs that do not grow with the slots."""

import logging
import os
import sys
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scrapy import Request, pqueues
from scrapy.settings import BaseSettings
from scrapy.squeues import FifoMemoryQueue, LifoMemoryQueue

from scrapy_bloom import scrapy_private
from scrapy_bloom.job import queue_settings
from scrapy_bloom.job.queue_settings import QueueSettings, SlotQueue, memory_queue
from tests.fakes import HAS_SCOPES
from tests.job.engine import Job


class FailingQueue(LifoMemoryQueue):
    """Refuses some requests, and cannot read others back, as one on the disk."""

    def push(self, request):
        if request.cb_kwargs.get("fails") == "push":
            raise ValueError("it cannot be serialized")
        super().push(request)

    def pop(self):
        request = super().pop()
        if request is not None and request.cb_kwargs.get("fails") == "pop":
            raise KeyError("it cannot be read back")
        return request


class Pair:
    """Scrapy's queue and ours, beside one downloader."""

    def __init__(self):
        self.slots = {}
        downloader = SimpleNamespace(
            slots=self.slots, get_slot_key=lambda request: request.meta["download_slot"]
        )
        crawler = SimpleNamespace(
            settings=BaseSettings(),
            engine=SimpleNamespace(downloader=downloader),
            throttler=(HAS_SCOPES and scopes_of(downloader)) or None,
        )
        self.scrapys, self.ours = (
            queue_class(crawler, FailingQueue, "", start_queue_cls=FifoMemoryQueue)
            for queue_class in (pqueues.DownloaderAwarePriorityQueue, SlotQueue)
        )

    def push(self, slot, priority=0, is_start=False, fails=""):
        meta = {"download_slot": slot, "is_start_request": is_start}
        request = Request("data:,", priority=priority, meta=meta, cb_kwargs={"fails": fails})
        for queue in (self.scrapys, self.ours):
            if fails == "push" and not is_start:
                with pytest.raises(ValueError, match="serialized"):
                    queue.push(request)
            else:
                queue.push(request)

    def download(self, slot, count):
        """Let a slot have so many active downloads; with 0 it stays with the downloader, idle."""
        self.slots[slot] = SimpleNamespace(active=set(range(count)))

    def pop(self):
        """Pop from both; return the two results."""
        return next_of(self.scrapys), next_of(self.ours)

    def check(self):
        """What can be seen of both is the same."""
        assert len(self.ours) == len(self.scrapys)
        assert [*self.ours.pqueues] == [*self.scrapys.pqueues]
        assert all(name in self.ours for name in self.scrapys.pqueues)


def scopes_of(downloader):
    """Return the throttler of such a Scrapy, with the downloader's slots as scopes."""
    return SimpleNamespace(
        get_scopes_key=downloader.get_slot_key,
        get_applied_scopes=lambda request: [downloader.get_slot_key(request)],
        get_scope_load=lambda slot: len(getattr(downloader.slots.get(slot), "active", ())),
    )


def next_of(queue):
    """Return the next request, or the exception, past the Nones of Scrapy's emptied slots."""
    while True:
        try:
            request = queue.pop()
        except KeyError as error:
            return str(error)
        if request is not None or isinstance(queue, SlotQueue) or not len(queue):
            return request


# with scopes "" is none of them, and a queue that has failed at its last request fails for ever
slots = st.sampled_from(["c" if HAS_SCOPES else "", "a", "b", "b.example", "z"])
failures = st.sampled_from(["", "", "", "push", *["pop"][HAS_SCOPES:]])
operations = st.lists(
    st.one_of(
        st.tuples(st.just("push"), slots, st.integers(-1, 1), st.booleans(), failures),
        st.tuples(st.just("download"), slots, st.integers(0, 2)),
        st.just(("pop",)),
    ),
    max_size=80,
)


@example(
    [
        *(("push", slot, 0, False, "") for slot in "aabbcczz"),
        *(("download", slot, 3 - number) for number, slot in enumerate(("a", "b", "c", "z"))),
        *[("pop",)] * 3,
        *(("download", slot, 1 + number % 2) for number, slot in enumerate(("b", "a", "c"))),
        *[("pop",)] * 4,
    ]
)
@example([*(("push", slot, 0, False, "") for slot in "aabccz"), *[("pop",)] * 6])
@given(operations)
def test_its_order_is_scrapys(operations):
    """Each pop and each length are those of the installed Scrapy's class."""
    pair = Pair()
    for name, *arguments in operations:
        if name == "pop":
            scrapys, ours = pair.pop()
            assert ours == scrapys
        else:
            getattr(pair, name)(*arguments)
        pair.check()
    while len(pair.scrapys):
        scrapys, ours = pair.pop()
        assert ours == scrapys
    while pair.ours.pqueues:
        assert pair.pop() == (None, None)
        pair.check()


@given(operations)
def test_peek_shows_the_next_pop(operations):
    """And it changes nothing, not even the slot whose turn it is."""
    pair = Pair()
    for name, *arguments in operations:
        if name == "pop":
            first = pair.ours.peek()
            assert pair.ours.peek() is first
            assert next_of(pair.ours) is first
        else:
            # Scrapy's queue of one slot peeks at its start requests first, and pops them last
            getattr(pair, name)(*(arguments[:2] if name == "push" else arguments))


@given(operations, st.lists(st.tuples(st.sampled_from(["hold", "release"]), slots)))
def test_a_slot_on_hold_is_not_popped(operations, changes):
    """Its requests are pending; the order of the others is as if it had none."""
    pair, held = Pair(), set()
    for number, (name, *arguments) in enumerate(operations):
        if name != "pop":
            getattr(pair, name)(*(arguments[:3] if name == "push" else arguments))
            continue
        if number < 2 * len(changes):
            change, slot = changes[number // 2]
            getattr(pair.ours, change)(slot)
            (held.add if change == "hold" else held.discard)(slot)
        # a slot as loaded as no other comes last in Scrapy's
        before = {slot: pair.slots.get(slot) for slot in held}
        for slot in held:
            pair.download(slot, 9)
        if held.issuperset(pair.scrapys.pqueues):
            assert (pair.ours.pop(), pair.ours.peek()) == (None, None)
        else:
            scrapys, ours = pair.pop()
            assert ours is scrapys
            assert ours.meta["download_slot"] not in held
        assert len(pair.ours) == len(pair.scrapys)
        for slot, was in before.items():
            pair.slots[slot] = was or SimpleNamespace(active=set())
    for slot in held:
        pair.ours.release(slot)
    left = len(pair.ours)
    assert sum(1 for _ in iter(pair.ours.pop, None)) == left


posix = pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS")


@posix
def test_a_job_whose_slots_are_on_hold_has_pending_requests_and_none_to_give(make):
    """Its scheduler waits for the release, instead of looking for one for ever."""
    job = make()
    job.scheduler.dqs.hold("example.com")
    job.push("a")
    assert job.pop() is None
    assert job.scheduler.has_pending_requests()
    job.scheduler.dqs.release("example.com")
    assert job.names() == ["a"]


@posix
def test_only_scrapys_own_class_is_replaced(make):
    """On the disk and in memory; a subclass may have an order of its own."""
    scheduler = make().scheduler
    assert type(scheduler.dqs) is type(scheduler.mqs) is SlotQueue
    for queue_class in (OwnQueue, pqueues.ScrapyPriorityQueue):
        crawler = Job(None, SCHEDULER_PRIORITY_QUEUE=queue_class).crawler
        assert QueueSettings.read(crawler.settings).priority_queue is queue_class
        assert type(memory_queue(crawler)) is queue_class


class OwnQueue(pqueues.DownloaderAwarePriorityQueue):
    """A project's."""


@pytest.fixture
def forgetting():
    """Have the order of Scrapy's class be found anew, before and after."""
    caches = scrapy_private.slots_take_turns, queue_settings._stand_in
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


@pytest.mark.usefixtures("forgetting")
@pytest.mark.parametrize("what", ["another order", "no such class any more"])
def test_an_order_that_is_not_known_is_left_to_scrapy(monkeypatch, caplog, what):
    """A later Scrapy's class is used itself, and the log says so once."""
    own = pqueues.DownloaderAwarePriorityQueue

    def pop(self):
        if what == "no such class any more":
            raise AttributeError(what)
        return self.pqueues[max(self.pqueues)].pop()

    monkeypatch.setattr(own, "pop", pop)
    crawler = Job(None).crawler
    with caplog.at_level(logging.INFO, "scrapy_bloom"):
        assert QueueSettings.read(crawler.settings).priority_queue is own
        assert type(memory_queue(crawler)) is own
    (record,) = caplog.records
    assert "order" in record.getMessage()


@posix
def test_no_cost_grows_with_the_number_of_slots(make, tmp_path):
    """Neither of requests, nor of commits and the stats, with 30 times as many slots."""
    few, many = (calls_of_a_request(make(tmp_path / f"{slots}"), slots) for slots in (10, 300))
    assert many <= few * 1.02


def calls_of_a_request(job, slots):
    """Return the number of calls that 100 requests take with so many slots."""
    job.engine.downloader.get_slot_key = lambda request: request.meta["download_slot"]
    job.crawler.throttler = (HAS_SCOPES and scopes_of(job.engine.downloader)) or None

    def push(first, count):
        for number in range(first, first + count):
            meta = {"download_slot": f"slot{number % slots:04}"}
            # one URL, since w3lib has a cache of them
            job.push("page", meta=meta, priority=number % 2, dont_filter=True)

    push(0, 400 + 2 * slots)
    job.commit()
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        for number in range(100):
            push(10_000 + number, 1)
            job.done(job.pop())
            assert job.scheduler.has_pending_requests()
            if number % 20 == 0:
                job.scheduler.ledger.commit()
    finally:
        sys.setprofile(None)
    return calls
