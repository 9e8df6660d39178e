"""The contract of what waits: requests that are not due, and slots that are held, in a job under
either priority queue, in memory, and in a crawl in Redis with two workers."""

from dataclasses import replace
from math import inf

import pytest
from scrapy import pqueues

from scrapy_bloom.crawl.delays import NOT_BEFORE, SILENT
from tests.crawl.engine import name_of
from tests.crawl.test_holds import Clock, Crawl
from tests.redis.workers import FIFO, LIFO, let_pass, lobby_from

PROBE = 50
KINDS = {"slots": pqueues.DownloaderAwarePriorityQueue, "line": pqueues.ScrapyPriorityQueue}


class JobPlace:
    """A job, whose clock stands."""

    def __init__(self, job, clock):
        self.clock, self.job = clock, job
        self.hold, self.release = job.scheduler.hold, job.scheduler.release
        self.is_line = job.crawler.settings["SCHEDULER_PRIORITY_QUEUE"] is KINDS["line"]

    def push(self, names, delay=None, slot="a", **options):
        for name in names:
            meta = {"download_slot": slot} | ({NOT_BEFORE: delay} if delay else {})
            self.job.push(name, meta=meta, **options)

    def let_pass(self, seconds):
        self.clock.now += seconds

    def taken(self):
        """Return the names of what is handed out now, and goes on."""
        return [name_of(request) for request in iter(self.job.pop, None)]

    def times(self, slot):
        return self.job.scheduler.holds[slot].times


class CrawlPlace:
    """A crawl in Redis, of which one worker holds and another one fetches, or both do."""

    is_line = False

    def __init__(self, workers):
        self.workers = workers
        for each in workers:
            each.store._policy = replace(each.policy, longest_probe=1000 * PROBE)

    def _exchange(self):
        for each in self.workers:
            each.exchange()

    def push(self, names, delay=None, slot="a", **options):
        self.workers[0].enqueue_all(names, delay=delay, slot=slot, **options)
        self.workers[0].exchange()

    def hold(self, *arguments):
        self.workers.reverse()
        self.workers[0].store.hold(*arguments)
        self._exchange()

    def release(self, slot):
        self.workers[0].store.release(slot)
        self._exchange()

    def let_pass(self, seconds):
        let_pass(self.workers[0], seconds)

    def taken(self):
        return [name_of(request) for each in self.workers for request in iter(each.next, None)]

    def times(self, slot):
        return self.workers[0].store.holds[slot].times


@pytest.fixture(params=[*KINDS, "memory", "redis"])
def make(request, tmp_path, monkeypatch, opened):
    """Return a function that makes a place of each kind, which has such settings."""

    def make(settings=FIFO, lobby=256):
        if request.param == "redis":
            lobby_from(monkeypatch, lobby)
            join = request.getfixturevalue("join")
            return CrawlPlace([join(**settings) for _ in range(2)])
        folder = None if request.param == "memory" else tmp_path / "job"
        queue = KINDS.get(request.param, KINDS["slots"])
        order = settings["SCHEDULER_DISK_QUEUE"].replace("Pickle", "").replace("Disk", "Memory")
        settings = {**settings, "SCHEDULER_PRIORITY_QUEUE": queue, "SCHEDULER_MEMORY_QUEUE": order}
        clock = Clock(monkeypatch)
        return JobPlace(opened(Crawl(folder, DOWNLOAD_TIMEOUT=PROBE, **settings)), clock)

    return make


def test_a_request_is_asked_when_it_is_due(make):
    """Not before, and each once."""
    place = make()
    place.push(["late"], 2000)
    place.push(["later"], 1000, priority=-1)
    place.push(["now"])
    assert place.taken() == ["now"]
    for names in ([], ["later"], [], ["late"]):
        place.let_pass(500)
        assert place.taken() == names


def test_the_end_of_a_hold_is_a_maximum(make):
    """A shorter hold ends no longer one; to release does. One by hand stays one, and lasts until
    its release, or frees its slot when it is over."""
    place = make()
    place.push("abcdefgh")
    place.push("z", slot="other")
    place.hold("a", 1000, 3)
    place.hold("a", 10, 1)
    assert place.taken() == ["z"]
    place.let_pass(900)
    assert place.taken() == []
    place.let_pass(100)
    assert len(place.taken()) == 1
    assert place.times("a") == 3
    place.let_pass(11)
    assert place.taken() == []
    place.hold("a", 500, 0)
    place.hold("a", 500, 5)
    assert place.times("a") == 0
    place.let_pass(499)
    assert place.taken() == []
    place.let_pass(2)
    assert len(place.taken()) == 7
    place.push("ijk")
    place.hold("a", inf, 0)
    place.let_pass(10**6)
    assert place.taken() == []
    place.release("a")
    assert len(place.taken()) == 3
    place.push("lm")
    for seconds, times in (1000, 1), (5, SILENT):  # a host that does not answer is asked sooner
        place.hold("a", seconds, times)
    place.let_pass(5)
    assert len(place.taken()) == 1


@pytest.mark.parametrize(("seconds", "lobby"), [(1000, 256), (20, 0)])
def test_one_request_goes_first(make, seconds, lobby):
    """At the end of a hold, of all priorities. Without an answer the next one goes after the same
    pause, at most after the time that a download may take."""
    place = make(lobby=lobby)
    place.push("abc")
    place.push("xyz", priority=1)
    place.hold("empty", 10, 1)
    place.let_pass(10)
    place.push(["1", "2"], slot="empty")
    place.hold("a", seconds, 1)
    assert len(place.taken()) == 1
    for wait in (seconds, min(seconds, PROBE)):
        place.let_pass(wait - 1)
        assert not [name for name in place.taken() if name.isalpha()]
        place.let_pass(2)
        assert len([name for name in place.taken() if name.isalpha()]) == 1
    place.release("a")
    assert len([name for name in place.taken() if name.isalpha()]) == 4


@pytest.mark.parametrize("settings", [LIFO, FIFO], ids=["newest first", "oldest first"])
def test_the_last_in_line_takes_turns_with_the_first(make, settings):
    """When one request asks whether a hold may end, since those beside the refused ones may be as
    broken; not where slots share a line, or where none is to be asked alone any more."""
    place, asked = make(settings), []
    place.push("abcd")
    for times in range(1, 5):
        place.hold("a", 1000, times)
        place.let_pass(1000)
        asked += place.taken()
    orders = ("dcba", "abcd") if place.is_line else ("adbc", "dacb")
    assert asked == [*orders[settings is FIFO]]
    place.release("a")
    place.hold("a", 0.0, 5)
    place.push("wxyz")
    assert place.taken() == [*("wxyz" if settings is FIFO else "zyxw")]


def test_a_silent_host_has_time_for_each_probe_and_the_hold_that_was_set_last(make):
    """One request at a time, as long as it takes; then the next hold may be shorter than that."""
    place = make()
    place.push("abcd")
    place.hold("a", 5, SILENT + 1)
    for times in (2, 3):
        place.let_pass(11)
        assert len(place.taken()) == 1
        place.let_pass(2 * PROBE - 1)
        assert place.taken() == []
        place.hold("a", 10, SILENT + times)
    for wait in (11, 2 * PROBE + 1):
        place.let_pass(wait)
        assert len(place.taken()) == 1
