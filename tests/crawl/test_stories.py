"""Crawls of a made-up site that are killed, stopped and resumed anywhere.

Hypothesis chooses the site and what happens; a set of numbers says what has to come of it.
"""

import json
import time
from itertools import count

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from scrapy import signals

from scrapy_bloom import DurableScheduler
from scrapy_bloom.crawl.choice import Filter
from scrapy_bloom.crawl.failed_request import FailedRequest
from scrapy_bloom.crawl.ledger import CommitHook
from scrapy_bloom.feeds.durable_feeds import DurableFeeds
from scrapy_bloom.signals import before_commit
from scrapy_bloom.sqlite import desk as orders
from scrapy_bloom.sqlite.desk import SqliteDesk
from tests.crawl.engine import name_of, query, request
from tests.crawl.feed_jobs import FeedJob
from tests.crawl.test_children import give
from tests.crawl.test_orders import carry_out, dropped, order
from tests.crawl.test_rounds import phases
from tests.failures import Failed
from tests.fakes import raising
from tests.world.feeds import feeds_in, items_of

START_ITEM = 1000
GROWING = ("all.jl", "all.csv")
STORED = "all.json", "all.xml", "all.json.gz", "over.json", "over.csv.bz2", "own.jl"
OTHERS = "few-%(batch_id)d.csv", "shelf:whole.json"


def numbers_in(folder, name):
    """Return the numbers in a feed but the first, sorted."""
    found = [json.loads(each)["number"] for each in items_of(folder, name).elements()]
    return sorted(int(each) for each in found if int(each) != START_ITEM)


class Committed(CommitHook):
    """Tells a story what is in each commit."""

    def __init__(self, story):
        self.story = story

    def before_commit(self, acknowledged):
        self.acknowledged = [*acknowledged]

    def after_commit(self):
        self.story.note_commit(self.acknowledged)

    def flush(self):
        """Handle before_commit, as a pipeline with a buffer does."""
        self.story.flushed = {*self.story.state}


class Story(RuleBasedStateMachine):
    """A job over many processes. Page `n` is linked from one page or a start page, and may be
    unfiltered, in memory only, or delayed."""

    folders = count()
    skipped_seconds = 0

    def __init__(self, folder):
        super().__init__()
        self.folder = folder / str(next(self.folders))
        self.folder.mkdir()
        self.job, self.is_over = None, False
        self.final, self.kept, self.gone = set(), set(), set()
        """Pages that are acknowledged, those that have failed, and those that were dropped."""
        self.state, self.committed_state = [], []
        """The pages that were parsed, as spider.state has them."""
        self.flushed = set()
        self.held, self.committed_held = set(), set()

    @initialize(
        parents=st.lists(st.integers(0, 99), min_size=3, max_size=9),
        kinds=st.lists(st.integers(0, 7), min_size=9, max_size=9),
        feeds=st.sets(st.sampled_from([GROWING[1], *STORED, *OTHERS]), max_size=2),
        order=st.sampled_from(["Fifo", "Lifo"]),
        by_slot=st.booleans(),
    )
    def begin(self, parents, kinds, feeds, order, by_slot):
        self.feeds = [GROWING[0], *sorted(feeds)]
        queue = "DownloaderAwarePriorityQueue" if by_slot else "ScrapyPriorityQueue"
        self.settings = {
            "SCHEDULER_DISK_QUEUE": f"scrapy.squeues.Pickle{order}DiskQueue",
            "SCHEDULER_PRIORITY_QUEUE": f"scrapy.pqueues.{queue}",
        }
        self.parents = [
            None if not number or parent % 4 == 0 else parent % number
            for number, parent in enumerate(parents)
        ]
        self.kinds = kinds
        self.open()

    def open(self):
        """Start a process."""
        appended = {f"shelf:{self.folder}/more.jl-stored": "jsonlines"}
        feeds = {**feeds_in(self.folder, self.feeds), **appended}
        self.job = FeedJob(self.folder, feeds, **self.settings)
        self.popped, self.in_progress, self.parsed = set(), [], []
        self.sent_again, self.failing = [], []
        self.hook = hook = Committed(self)
        self.job.crawler.signals.connect(
            lambda: self.job.scheduler.ledger.commit_hooks.append(hook),
            signals.spider_opened,
            weak=False,
        )
        self.job.crawler.signals.connect(hook.flush, before_commit)
        self.state, self.held = [*self.committed_state], {*self.committed_held}
        starts = [self.page(n) for n, parent in enumerate(self.parents) if parent is None]
        self.job.open({"number": START_ITEM}, *starts)
        assert self.job.spider.state.setdefault("pages", []) == self.state

    def page(self, number, depth=0):
        """Return the request for a page."""
        is_start, kind = self.parents[number] is None, self.kinds[number]
        meta = {"download_slot": "ab"[number % 2], "depth": depth}
        if kind & 2:
            meta["function"] = lambda: None
        if kind & 4:
            meta["bloom_not_before"] = 10
        priority = number % 3
        return request(
            str(number), dont_filter=is_start or kind & 1 == 1, meta=meta, priority=priority
        )

    def links(self, number, depth):
        """Yield what a page's callback does: its children, and links to pages that are filtered."""
        for child, parent in enumerate(self.parents):
            is_filtered = parent is not None and not self.kinds[child] & 1
            if parent == number or (is_filtered and parent < number):
                yield self.page(child, depth + 1)

    def expected(self):
        """Return the pages that the crawl has in the end."""
        found, last = set(), None
        while found != last:
            last = {*found}
            found |= {n for n, parent in enumerate(self.parents) if parent is None}
            found |= {number_of(each) for n in last for each in self.links(n, 0)}
            found -= self.gone
        return found

    def note_commit(self, acknowledged):
        """Take what a commit has made durable into the model."""
        for each in acknowledged:
            if each in self.failing:
                self.kept.add(number_of(each))
            elif each not in self.sent_again and each.url != "data:,":
                self.final.add(number_of(each))
        assert self.final <= self.flushed
        self.committed_state, self.committed_held = [*self.state], {*self.held}

    # what a crawl does

    is_going_on = precondition(lambda self: not self.is_over)
    has_unparsed = precondition(lambda self: not self.is_over and self.in_progress)

    @is_going_on
    @rule(steps=st.lists(st.sampled_from(["pop", "parse", "done"]), min_size=2, max_size=6))
    def crawl(self, steps):
        for step in steps:
            getattr(self, step)()

    def pop(self):
        """The engine takes a request."""
        if (popped := self.job.pop()) is not None:
            number = number_of(popped)
            assert number not in self.popped | self.final | self.kept | self.gone
            assert "ab"[number % 2] not in self.held
            self.popped.add(number)
            self.in_progress.append(popped)

    def parse(self):
        """The callback of the newest request in progress is called."""
        if self.in_progress:
            popped = self.in_progress.pop()
            number, depth = number_of(popped), popped.meta["depth"]
            give(self.job, popped, *self.links(number, depth))
            self.job.items(popped, {"number": number})
            self.state.append(number)
            self.job.spider.state["pages"].append(number)
            self.parsed.append(popped)

    def done(self):
        """The engine is done with the newest request that was parsed."""
        if self.parsed:
            self.job.done(self.parsed.pop())

    @has_unparsed
    @rule(in_memory=st.booleans())
    def retry(self, in_memory):
        """A downloader middleware sends a request again."""
        popped = self.in_progress.pop()
        times = popped.meta.get("retry_times", 0)
        self.sent_again.append(popped)
        self.popped.discard(number_of(popped))
        meta = {**popped.meta, "retry_times": times + 1}
        if in_memory:
            meta["function"] = lambda: None
        again = popped.replace(dont_filter=True, meta=meta)
        assert self.job.scheduler.enqueue_request(again)
        self.job.done(popped)

    @has_unparsed
    @rule()
    def fail(self):
        """A page fails that gave nothing before, which would come again, and can be kept."""
        newest = self.in_progress[-1]
        if "function" not in newest.meta and number_of(newest) not in self.state:
            popped = self.in_progress.pop()
            self.failing.append(popped)
            self.job.scheduler.ledger.fail(popped, FailedRequest.of(popped, "down"))
            self.job.done(popped)

    @is_going_on
    @rule(slot=st.sampled_from("ab"))
    def hold_or_release(self, slot):
        if slot in self.held:
            self.job.scheduler.release(slot)
        else:
            self.job.scheduler.hold(slot, 1000, 0)
        self.held ^= {slot}

    @is_going_on
    @rule()
    def commit(self):
        """Also, delayed requests become due."""
        Story.skipped_seconds += 11
        self.job.commit()
        assert not self.job.scheduler.ledger.stopped
        for name in {*GROWING}.intersection(self.feeds):
            assert numbers_in(self.folder, name) == sorted(self.final)

    @is_going_on
    @rule(slots=st.sampled_from(["a", "b", "ab"]), action=st.sampled_from(["drop", "fail"]))
    def drop(self, slots, action):
        """An operator drops what is stored of these slots, for good or to be retried."""
        desk, chosen = SqliteDesk(self.folder / "job"), Filter(slots=[*slots])
        self.commit()
        pages = {number_of(each) for each in desk.scan(chosen)}
        if pages.isdisjoint(self.state):  # which have given something
            answer = order(self.job, action, slots=(*slots,))
            carry_out(self.job)
            assert dropped(answer)[0] == len(pages)
            assert desk.count(chosen).states.total() == 0
            (self.gone if action == "drop" else self.kept).update(pages)

    # what becomes of a process

    @is_going_on
    @rule(where=st.sampled_from(["", "commit", "filter", "feeds"]))
    def kill(self, where):
        """The process dies anywhere, behind a commit, or between that and the filter or feeds."""
        dupefilter = self.job.scheduler.ledger._dupefilter
        with pytest.MonkeyPatch.context() as patch:
            if where in ("filter", "feeds"):
                patch.setattr(DurableFeeds, "after_commit", lambda _: None)
            if where == "filter":
                patch.setattr(dupefilter, "release", lambda fingerprints: None)
            if where:
                self.job.commit()
        self.job.drop()
        self.open()

    @is_going_on
    @rule(what=st.sampled_from(["hook", "filter"]))
    def end_with_an_error(self, what):
        """Something fails before a commit, which is undone then, or behind it."""
        ledger, fails = self.job.scheduler.ledger, raising(OSError("no space left"))
        with pytest.MonkeyPatch.context() as patch:
            if what == "hook":
                patch.setattr(self.hook, "before_commit", fails)
            else:
                patch.setattr(ledger._dupefilter, "release", fails)
            self.job.commit()
        assert ledger.stopped
        if what == "filter":
            self.note_commit(self.hook.acknowledged)
        self.job.close("bloom_error")
        self.job.drop()
        self.open()

    @is_going_on
    @rule(reason=st.sampled_from(["shutdown", "closespider_timeout"]))
    def stop(self, reason):
        """What is in progress ends; and if nothing is left, the round does, but not by Ctrl-C."""
        self.end_of_all()
        is_last = not len(self.job.scheduler) and reason != "shutdown"
        self.job.close(reason)
        for name in (*self.feeds, "shelf:more.jl"):
            assert numbers_in(self.folder, name) == sorted(self.final)
        assert Failed(self.folder / "job").retry() == len(self.kept)
        self.is_over = is_last and not self.kept
        self.kept.clear()
        if not self.is_over:
            self.open()

    @precondition(lambda self: self.is_over)
    @rule()
    def rest(self):
        """Nothing is left to be done."""

    def end_of_all(self):
        while self.in_progress:
            self.parse()
        while self.parsed:
            self.done()

    def teardown(self):
        """The crawl ends, and has each page and each item once."""
        if self.job is None:
            return
        for slot in [*self.held] if not self.is_over else ():
            self.hold_or_release(slot)
        for _ in range(100):
            if self.is_over:
                break
            Story.skipped_seconds += 11
            self.pop()
            self.end_of_all()
            if not len(self.job.scheduler):
                self.stop("finished")
        pages = sorted(self.expected())
        assert (self.is_over, sorted(self.final)) == (True, pages)
        for name in (*self.feeds, "shelf:more.jl"):
            assert numbers_in(self.folder, name) == pages
            assert items_of(self.folder, name).total() == len(pages) + 1
        job = self.folder / "job"
        assert (phases(job), (job / "feeds").exists()) == ([(1, "over")], False)
        assert query(job, "SELECT * FROM taken WHERE source != 0") == []
        assert {*self.state} == {*pages}


def number_of(request):
    """Return the number of the page of a request, or of its record."""
    return int(name_of(request))


def test_each_page_and_each_item_comes_once(tmp_path, monkeypatch):
    """In many stories, some seconds: whatever becomes of the process, what is acknowledged is not
    asked again, nothing is lost, and state, holds and failed requests are those of one commit."""
    now = time.time
    monkeypatch.setattr(DurableScheduler, "commit_seconds", 1000)
    monkeypatch.setattr(orders, "AT_ONCE", 1)
    monkeypatch.setattr(time, "time", lambda: now() + Story.skipped_seconds)
    # to shrink what has failed takes minutes; it is told as it was found
    phases = [each for each in Phase if each not in (Phase.shrink, Phase.explain)]
    examples = settings.default.max_examples // 2
    chosen = settings(max_examples=examples, stateful_step_count=25, phases=phases)
    run_machine(lambda: Story(tmp_path), settings=chosen)
