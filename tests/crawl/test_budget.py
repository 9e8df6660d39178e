"""BLOOM_BUDGET: no more pages of a download slot in a round than it allows, over kills.

Set BUDGET_SEED to repeat a run of what is random.
"""

import os
import random
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import pytest
from scrapy import Request
from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue
from scrapy.settings import Settings

from scrapy_bloom.crawl.budget import Budget
from scrapy_bloom.crawl.choice import Filter
from scrapy_bloom.crawl.failed_request import FailedRequest
from scrapy_bloom.crawl.settings import BUDGET
from scrapy_bloom.sqlite import listing
from scrapy_bloom.sqlite.listing import Listing
from scrapy_bloom.sqlite.request_store import coming_back
from scrapy_bloom.sqlite.status import job_view
from tests.crawl.engine import STOCK, name_of, query, request, unserializable
from tests.crawl.test_children import again, child, give, page_in_progress
from tests.crawl.test_rounds import start
from tests.failures import Failed
from tests.seeded import seed_of

pytestmark = pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS")

SEED = seed_of("BUDGET_SEED")
CAPPED = {"reasons": ["capped"]}
STORIES = int(os.environ.get("BUDGET_STORIES", "10"))


def capped(folder):
    """Return the names of the requests over the budget."""
    return [name_of(each) for each in Failed(folder).requests(**CAPPED)]


def push(job, *names, slot="example.com", **options):
    for name in names:
        job.push(name, meta={"download_slot": slot}, **options)


def fail(job):
    """Let all that is pending fail; return the names."""
    names = []
    while (popped := job.pop()) is not None:
        names.append(name_of(popped))
        job.scheduler.ledger.fail(popped, FailedRequest.of(popped, "down"))
        job.done(popped)
    return sorted(names)


@dataclass
class Run:
    """A process of a crawl whose pages have one letter, capital ones in memory only."""

    budget: int | dict | None
    """Without it the crawl has none; a number is that of all slots."""
    starts: str | None = "s"
    """What start() yields; None if it does not run."""
    pushed: str = ""
    asked: str = ""
    """The pages that are asked, in no order; none of them if it does not say."""
    end: str = "finished"
    """The reason of the close, or `kill`, or `commit` for a kill behind one."""
    retried: dict | None = None
    """What an operator retries before it."""
    first: str = ""
    """What is pushed before start() runs."""
    left: str = ""
    """What is pushed at the end."""
    fails: bool = False
    """Each page that is asked fails."""
    retries: bool = False
    capped: str | None = None
    """All that is over the budget, at the end."""

    def take_place(self, make_round, folder, **settings):
        """Crawl."""
        if self.retried is not None:
            assert Failed(folder).retry(**self.retried)
        limits = {"*": self.budget} if isinstance(self.budget, int) else self.budget
        budget = {} if limits is None else {"BLOOM_BUDGET": limits}
        job = make_round(BLOOM_RETRY_FAILED=self.retries, **budget, **settings)
        push(job, *self.first)
        if self.starts is not None:
            job.started(*self.starts)
        for name in self.pushed:
            job.scheduler.enqueue_request((unserializable if name.isupper() else request)(name))
        assert [*self.asked] == sorted(self.ask(job))
        push(job, *self.left)
        if self.end == "commit":
            job.commit()
        job.drop() if self.end in ("kill", "commit") else job.close(self.end)
        if self.capped is not None:
            assert [*self.capped] == sorted(capped(folder))

    def ask(self, job):
        if self.fails:
            return fail(job)
        if self.end == "kill":
            return [name_of(job.pop()) for _ in self.asked]
        return job.names() if self.asked else []


def of_earlier_rounds(limit=4, **how):
    """Return runs in which pages fail that are retried in a later round, and again."""
    again = {"retried": {"reasons": ["down"]}} if "retried" in how else how
    return [
        Run(limit, "abcd", asked="abcd", fails=True),
        Run(limit, "ef", asked="ef", fails=True),
        Run(limit, "efg", asked="abef", fails=True, **how),
        Run(limit, "efg", asked="abef", capped="cdg", **again),
        Run(None, "h", asked="cdgh", retries=True),
    ]


RUNS = {
    "start requests count, and are not offered again": [
        Run(1, "ab", end="commit"),
        Run(1, "ab", asked="a", capped="b"),
    ],
    "a retry brings back what a higher budget leaves room for": [
        Run(2, pushed="abcde", asked="as"),
        Run(4, pushed="fg", asked="bc", capped="defg", retried=CAPPED),  # the round goes on
        # without room for any of them a new one begins
        Run(4, pushed="hijk", asked="hijs", capped="defgk", retried=CAPPED),
        Run(None, "", asked="e", retried={"urls": ["*/e"]}),
        Run(None, "", asked="dfgk", retries=True),
    ],
    "what is pending counts where the budget is new": [
        Run(None, pushed="ab", end="shutdown"),
        Run(4, pushed="cd", asked="abcs"),
    ],
    "what a start without one has pushed": [
        Run(5, end="shutdown"),
        Run(None, pushed="bcd", end="shutdown"),
        Run(5, pushed="efg", asked="bcdes", end="shutdown"),
    ],
    "counts do not outlive a round without one": [
        Run(3, pushed="ab", asked="abs"),
        Run(None, end="shutdown"),
        Run(3, "", pushed="efg", asked="efs"),
    ],
    "what failed in an earlier round, retried by command": of_earlier_rounds(retried={}),
    "what failed in an earlier round, retried by setting": of_earlier_rounds(retries=True),
    "what failed in an earlier round counts by pattern": of_earlier_rounds({"*/?": 4}, retried={}),
    "a retry by setting counts by pattern": of_earlier_rounds({"*/?": 4}, retries=True),
    "a request counts in slot and pattern, or in none": [
        Run({"example.com": 3, "*/[a-m]": 1}, pushed="abxyz", asked="asx", capped="byz"),
        # the round goes on as far as both have room, or a new one begins
        Run({"example.com": 4, "*/[a-m]": 1}, pushed="c", asked="y", capped="bcz", retried=CAPPED),
        Run({"example.com": 4, "*/[a-z]": 9}, asked="s", capped="bcz", retried=CAPPED),
        Run({"example.com": 9, "*/[a-z]": 2}, "", asked="b", capped="cz", retried=CAPPED),
        Run({"example.com": 9}, "", asked="cz", retried=CAPPED),
    ],
    "a pattern's count outlives a kill": [
        Run({"*/[a-m]": 2}, pushed="abc", asked="abs", end="kill", capped="c"),
        Run({"*/[a-m]": 2}, pushed="de", asked="abs", capped="cde"),
        Run({"*/[a-m]": 2}, pushed="fghx", asked="fgsx", capped="cdeh"),
    ],
    "a pattern that is new, or comes back, counts from now on": [
        Run({"*/[a-m]": 2}, pushed="abc", asked="abs", left="w", end="shutdown", capped="c"),
        Run({"*/[a-n]": 2}, pushed="def", asked="dew", left="x", end="shutdown", capped="cf"),
        Run({"*/[a-m]": 2}, pushed="ghi", asked="ghx", left="y", end="shutdown", capped="cfi"),
        Run({"*/[a-m]": 3}, pushed="jk", asked="jy", capped="cfik"),
    ],
    "what is pending counts in a pattern where the budget is new": [
        Run(None, pushed="abx", end="shutdown"),
        Run({"*/[a-m]": 3}, pushed="cde", asked="abcsx", capped="de"),
    ],
    "what is retried without one is asked": [
        Run(2, "ab", asked="ab", fails=True),
        Run(2, "cd", asked="cd", fails=True),
        Run(None, "", asked="abcd", retried={}),
    ],
    "what is retried without one is no count of the round": [
        Run(1, pushed="a", asked="s", end="shutdown"),
        Run(None, pushed="bcd", end="shutdown", retried=CAPPED),
        Run(5, pushed="ef", asked="abcde"),
    ],
    "a stopped start that comes to nothing leaves the counts": [
        Run(2, pushed="ab", asked="as"),
        Run(2, None, end="shutdown"),
        Run(2, asked="s", retried=CAPPED),
    ],
    "a killed start that comes to nothing leaves the counts": [
        Run(2, pushed="ab", asked="as"),
        Run(2, None, end="commit"),
        Run(2, asked="s", retried=CAPPED),
    ],
    "what comes before start() counts in the new round": [
        Run(2, pushed="ab", asked="as"),
        Run(2, first="c", pushed="d", asked="cs"),
    ],
    "what a start that was killed has brought back counts once": [
        Run(2, pushed="abcd", asked="as"),
        Run(4, None, retries=True, end="commit"),
        Run(5, pushed="ef", asked="bce"),
    ],
    "a slot that gets one has been counted": [
        Run({"other.example": 5}, pushed="ab", asked="abs", left="c", end="shutdown"),
        Run(5, pushed="de", asked="cd"),
    ],
    "what is asked was counted in a commit before": [
        Run(1, pushed="bc", end="shutdown"),
        Run(4, pushed="aM", asked="Mas", end="kill"),
        Run(4, pushed="da", asked="abs", capped="cd", retried=CAPPED),
    ],
    "a kill after a retry leaves no choice to the next": [
        Run(1, "", pushed="abcd", end="shutdown"),
        Run(2, "", asked="ad", end="kill", retried={"urls": ["*/d"]}),
        Run(2, "", asked="ad", capped="bc", retried=CAPPED),
    ],
    "what a setting retries is counted before it is asked": [
        Run(2, "a", asked="a", fails=True),
        Run(2, end="shutdown"),
        Run(2, asked="as", retries=True, end="kill"),
        Run(2, pushed="b", asked="as", capped="b"),
    ],
}


@pytest.mark.parametrize("queue", [DownloaderAwarePriorityQueue, ScrapyPriorityQueue])
@pytest.mark.parametrize("runs", RUNS.values(), ids=RUNS)
def test_over_several_starts(make_round, tmp_path, runs, queue):
    """Each page counts once in the round that asks it, whatever becomes of the process."""
    fifo = "scrapy.squeues.PickleFifoDiskQueue"
    for run in runs:
        run.take_place(
            make_round,
            tmp_path / "job",
            SCHEDULER_PRIORITY_QUEUE=queue,
            SCHEDULER_DISK_QUEUE=fifo,
        )


@pytest.mark.parametrize(("limit", "found"), [(3, 1), (1, 0)])
def test_a_look_at_a_job_finds_what_its_start_will_ask(make_round, tmp_path, limit, found):
    """What failed in an earlier round, as far as the budget has room; and what another start had
    made pending when it was killed."""
    job = make_round(BLOOM_BUDGET={"*": 3}).started("start")
    job.done(job.pop())
    push(job, "a")
    assert fail(job) == ["a"]
    job.close()
    query(tmp_path / "job", "UPDATE request SET round = 0")

    def look(**options):
        file = SimpleNamespace(iterate=partial(query_of, tmp_path / "job"))
        return len([*coming_back(file, Budget({"*": limit}), **options)])

    def query_of(path, statement, values):
        return query(path, statement, *values)

    assert look(retry=True) == found
    assert look(retry=False) == 0
    query(tmp_path / "job", "UPDATE request SET state = 0")
    assert look(retry=False) == 1


def test_more_pages_of_a_slot_than_its_budget_are_kept_and_not_asked(make_round, tmp_path):
    """They stay seen, and do not keep the round open."""
    folder = tmp_path / "job"
    job = make_round(BLOOM_BUDGET={"*": 2, "big.example": 3}).started("start")
    push(job, "a", "b", "c", "b")
    push(job, *"defgh", slot="big.example")
    assert sorted(job.names()) == ["a", "d", "e", "f", "start"]
    assert job.stat("scheduler/capped") == 4
    job.close()
    assert job.stat("scheduler/failed") == 0
    assert Failed(folder).by_reason() == {"capped": 4}
    assert capped(folder) == ["b", "c", "g", "h"]
    state = job_view(folder).state
    assert (state.state, state.failed) == ("finished", 4)

    job = make_round(BLOOM_BUDGET={"*": 9})
    assert job.round.number == 2
    job.start(start("start"))
    push(job, "b")
    assert job.names() == ["start"]


@pytest.mark.parametrize("how", ["start", "order", "running"])
def test_what_is_capped_before_its_time_is_not_sent_before_it(make_round, tmp_path, how):
    """Whichever retry asks it; what has become due meanwhile is sent at once."""
    job = make_round(BLOOM_BUDGET={"*": 1}).started("start")
    for name, delay in ("later", 10_000), ("due", 10_000), ("now", 0):
        job.push(name, meta={"bloom_not_before": delay})
    assert job.names() == ["start"]
    job.commit()
    assert capped(tmp_path / "job") == ["now", "later", "due"]
    job.close()
    query(tmp_path / "job", "UPDATE request SET due = 1 WHERE id = 3")
    if how == "order":
        assert Failed(tmp_path / "job").retry() == 3
    job = make_round(BLOOM_BUDGET={"*": 9}, BLOOM_RETRY_FAILED=how == "start")
    store = job.scheduler.ledger.store
    if how == "running":
        assert store.records.wake([1, 2, 3, 4]) == 3
    assert (len(store.pending), store.later) == (2, 1)
    assert 9_000 < store.next_due <= 10_000
    assert sorted(job.names()) == ["due", "now"]


def test_the_one_that_is_full_has_a_name(make_round, tmp_path, caplog):
    """In the list of what has failed, in the stats, and once in the log."""
    caplog.set_level("INFO")
    job = make_round(BLOOM_BUDGET='{"*": 3, "b.example": 1, "*/[a-m]": 1, "*.example/": 9}')
    job.started("start").pushed("a", "b", "c", "x", "y")
    push(job, "v", "z", slot="b.example")
    assert sorted(job.names()) == ["a", "start", "v", "x"]
    stats = {"*": 1, "*/[a-m]": 2, "b.example": 1}
    assert {key: job.stat(f"scheduler/capped/{key}") for key in stats} == stats
    assert job.stat("scheduler/capped") == 4
    for key in stats:
        assert caplog.text.count(f"BLOOM_BUDGET has no room left for {key!r}: ") == 1
    job.close()
    found = {name_of(each): each.exception for each in Failed(tmp_path / "job").requests(**CAPPED)}
    slot, pattern = "slot 'example.com'", "pattern '*/[a-m]'"
    full = {"b": pattern, "c": pattern, "y": slot, "z": "slot 'b.example'"}
    assert found == {name: f"BLOOM_BUDGET has no room for {each}" for name, each in full.items()}


def test_a_pattern_has_one_count_for_all_hosts_and_is_no_slot(make_round, tmp_path):
    """Also where a download slot has its name: that is held, counted and listed alone."""
    limits = {"*/trap/*": 2, "*": 3}
    job = make_round(BLOOM_BUDGET=limits).started()
    for host in "abc":
        url, slot = f"http://{host}.example/trap/{host}", "*/trap/*"
        job.scheduler.enqueue_request(Request(url, meta={"download_slot": slot}))
    push(job, *"xyz", slot="*/trap/*")
    job.scheduler.hold("*/trap/*", 100, 0)
    job.commit()
    assert {**job.scheduler.holds}.keys() == {"*/trap/*"}
    with listing.reading(tmp_path / "job" / "requests.sqlite") as found:
        counts = Listing(found.execute, is_running=True).count(Filter())
    assert counts.by == {"*/trap/*": 3}
    assert capped(tmp_path / "job") == ["c", "y", "z"]
    rows = query(tmp_path / "job", "SELECT name, counted, times FROM slot ORDER BY counted")
    assert rows == [(b"*/trap/*", 2, None), ("*/trap/*", 3, 0)]


def test_a_redirect_counts_where_it_lands(make_round, crash_round):
    """In the pattern that is not that of its page, in no slot twice; over it, it is capped."""
    budget = {"BLOOM_BUDGET": {"example.com": 3, "*/[a-m]": 1, "*m/[n-z]": 1}}
    job = make_round(**budget).started("a")
    a = job.pop()
    for name, key in (("a", "retry_times"), *((name, "redirect_times") for name in "bxy")):
        meta = {**a.meta, key: 1, "redirect_urls": [a.url]}
        job.scheduler.enqueue_request(request(name, dont_filter=True, meta=meta))
    job.done(a)
    job.commit()
    job = crash_round(**budget).started("a")
    push(job, *"cz01")
    assert sorted(job.names()) == ["0", "1", "a", "b", "x"]
    assert capped(job.scheduler._job.path) == ["y", "c", "z"]


def test_a_running_job_asks_what_a_pattern_has_room_for(make_round, tmp_path):
    """An operator's retry passes over what has none."""
    job = make_round(BLOOM_BUDGET={"*/[a-m]": 1, "*m/[n-z]": 1}).started().pushed(*"abxy")
    assert sorted(job.names()) == ["a", "x"]
    job.close("shutdown")
    job = make_round(BLOOM_BUDGET={"*/[a-m]": 1, "*m/[n-z]": 2})
    assert job.scheduler.ledger.store.records.wake([1, 2, 3, 4]) == 1
    job.commit()
    assert (job.names(), capped(tmp_path / "job")) == (["y"], ["b"])


def test_a_tie_between_patterns_is_refused_at_the_start(make_round, tmp_path):
    """In one line, and nothing is made."""
    with pytest.raises(
        ValueError, match=r"^BLOOM_BUDGET has '\*/a\*' and '\*/b\*', .* remove one$"
    ):
        make_round(BLOOM_BUDGET={"*/a*": 1, "*/b*": 1, "*/b*a": 2})
    assert not (tmp_path / "job" / "requests.sqlite").exists()


def test_only_named_slots_have_a_budget_without_a_star(make_round):
    job = make_round(BLOOM_BUDGET={"none.example": 0}).started().pushed(*"abc")
    push(job, "d", slot="none.example")
    assert sorted(job.names()) == ["a", "b", "c"]


def test_retries_and_redirects_of_a_slot_are_not_counted_and_those_of_others_are(make_round):
    job = make_round(BLOOM_BUDGET={"*": 1}).started("a")
    a = job.pop()
    for key in ("retry_times", "redirect_times"):
        options = {"dont_filter": True, "meta": {**a.meta, key: 1, "redirect_urls": [a.url]}}
        assert job.scheduler.enqueue_request(a.replace(**options))
        assert job.scheduler.next_request() is not None
    assert job.stat("scheduler/capped") is None
    push(job, "other", slot="other.example")
    meta = {"redirect_times": 1, "redirect_urls": [a.url], "download_slot": "other.example"}
    job.scheduler.enqueue_request(a.replace(dont_filter=True, meta=meta))
    assert job.stat("scheduler/capped") == 1
    job.done(a)
    job.commit()
    assert a not in job.scheduler.ledger.in_flight


def test_a_page_whose_redirect_is_capped_is_acknowledged_with_it(make_round, crash_round):
    """In one commit: after a kill it is not asked, and capped, again."""
    budget = {"BLOOM_BUDGET": {"other.example": 0}}
    job = make_round(**budget).started("a")
    a = job.pop()
    meta = {"redirect_times": 1, "redirect_urls": [a.url], "download_slot": "other.example"}
    job.scheduler.enqueue_request(a.replace(dont_filter=True, meta=meta))
    job.commit()
    job = crash_round(**budget).started("a")
    assert job.finish() == []
    assert Failed(job.scheduler._job.path).by_reason() == {"capped": 1}


def test_a_repeated_page_has_its_unfiltered_children_capped_once(make_round, crash_round):
    budget = {"BLOOM_BUDGET": {"*": 1}}
    job = make_round(**budget)
    give(job, page_in_progress(job), child("a"))
    job.commit()
    job = crash_round(**budget)
    assert give(job, again(job), child("a"), child("b")) == ["b"]
    job.close("shutdown")
    assert capped(job.scheduler._job.path) == ["a", "b"]


def test_of_what_cannot_be_serialized_a_record_is_kept(make_round, crash_round, tmp_path, caplog):
    """It counts, and is lost at the next start, which says so; only its record is durable."""
    store, budget = Failed(tmp_path / "job"), {"BLOOM_BUDGET": {"*": 1}}
    job = make_round(**budget).started()
    for name in "abb":
        job.scheduler.enqueue_request(
            Request(f"http://example.com/{name}", meta={"function": lambda: None})
        )
    job.commit()
    crashed = crash_round(**budget)
    assert crashed.scheduler._store.failed == 1
    crashed.drop()
    assert job.names() == ["a"]
    assert job.stat("scheduler/capped") == 1
    caplog.clear()
    job.close()
    assert "1 request failed and stays in the job: 1 unserializable." in caplog.text
    assert "ask them once more, but no unserializable one" in caplog.text
    (found,) = store.requests()
    assert (name_of(found), found.attempts) == ("b", 0)
    assert found.exception == "callback parse, slot 'example.com'"
    assert store.retry() == 0
    for _ in range(2):
        job = make_round(**budget, BLOOM_RETRY_FAILED=True)
        assert job.start(start("start")) == ["start"]
        assert "such as http://example.com/b (callback parse, slot 'example.com')" in caplog.text
        assert job.finish() == ["start"]
        caplog.clear()
    assert store.drop() == 1
    make_round(**budget).close()
    assert "serialized" not in caplog.text


def test_a_start_request_that_cannot_be_serialized_is_recorded_once(make_round, crash_round):
    """However often the round is resumed: it is taken, as one that is kept over the budget."""
    budget = {"BLOOM_BUDGET": {"*": 1}}
    requests = [
        Request(f"http://example.com/{name}", dont_filter=True, callback=lambda _: None)
        for name in "ab"
    ]
    job = make_round(**budget)
    job.start(start("start"), *requests)
    job.commit()
    for _ in range(2):
        job = crash_round(**budget)
        job.start(start("start"), *requests)
        job.commit()
        assert job.scheduler._store.failed == 2
    assert job.finish() == ["start"]


def test_without_a_job_requests_over_the_budget_are_counted(make_round):
    job = make_round(None, BLOOM_BUDGET={"*": 2, "*/[m-z]": 1}).pushed(*"xyabc")
    assert sorted(job.names()) == ["a", "x"]
    assert job.stat("scheduler/capped") == 3


FIVES = "*/*-*[05]"
"""The pattern of every fifth page."""


class Story:
    """A crawl of an endless site that dies, stops, fails and is retried, with a growing budget."""

    def __init__(self, chance, make, folder):
        self.chance = chance
        self.make = partial(make, folder)
        self.folder = folder
        self.store = Failed(folder)
        self.budget = {key: chance.randrange(6) for key in ("even", "*", FIVES)}
        self.asked = set()
        """Rounds and pages."""
        self.answered = set()
        self.reached = set()
        self.number = 1
        self.kills = 0
        self.capped_before = set()
        """What other rounds have left no room for."""
        self.start()

    def start(self):
        """Start the process, perhaps after a retry."""
        retries = self.chance.random() < 0.2
        if self.chance.random() < 0.4 and self.folder.exists():
            chosen = [{}, {"reasons": ["capped"]}, {"reasons": ["down"]}, {"urls": ["*[0-4]"]}]
            self.store.retry(**self.chance.choice(chosen))
        if self.chance.random() < 0.2:
            self.budget[self.chance.choice([*self.budget])] += self.chance.randrange(3)
        self.job = self.make(BLOOM_BUDGET=self.budget, BLOOM_RETRY_FAILED=retries)
        if self.job.round.number < self.number:
            # a kill came before a page of the round was asked, and a retry made the last one go on
            assert not self.pages("even") + self.pages("odd")
            self.reached.remove(f"{self.number}-0")
        self.number = self.job.round.number
        if not self.job.round.is_resumed:
            listing = Listing(self.job.scheduler._file.query, is_running=True)
            left = Failed(listing).requests(**CAPPED)
            self.capped_before.update(map(name_of, left))
        self.job.start(self.request(f"{self.number}-0", dont_filter=True))

    def crawl(self):
        """Go on until nothing is left."""
        self.capped_before.update(capped(self.folder))
        while len(self.job.scheduler) or self.in_progress:
            action = self.chance.random()
            if action < 0.1:
                self.job.drop() if action < 0.07 else self.job.close("shutdown")
                self.kills += action < 0.07
                self.start()
            elif action < 0.2:
                self.job.commit()
            elif self.in_progress and action < 0.6:
                self.answer(self.chance.choice(self.in_progress))
            elif (popped := self.job.pop()) is not None:
                self.asked.add((self.number, name_of(popped)))
                slot = slot_of(name_of(popped))
                assert self.pages(slot) <= self.limit(slot)
                assert self.pages(FIVES) <= self.budget[FIVES]
        self.job.close()

    @property
    def in_progress(self):
        return sorted(self.job.engine._slot.inprogress, key=name_of)

    def pages(self, slot):
        """Return how many of a slot or the pattern were asked in this round."""
        names = [name for of, name in self.asked if of == self.number]
        return sum(slot in (slot_of(name), FIVES if name[-1] in "05" else "") for name in names)

    def limit(self, slot):
        return self.budget.get(slot, self.budget["*"])

    def request(self, name, **options):
        self.reached.add(name)
        return request(name, meta={"download_slot": slot_of(name)}, **options)

    def answer(self, popped):
        """Be done with a page, which is down or links to others."""
        day, number = map(int, name_of(popped).split("-"))
        if (number + self.number) % 5 == 4:
            self.job.scheduler.ledger.fail(popped, FailedRequest.of(popped, "down"))
        else:
            self.answered.add(name_of(popped))
            for each in (2 * number + 1, 2 * number + 2):
                self.job.scheduler.enqueue_request(self.request(f"{day}-{each}"))
        self.job.done(popped)


def slot_of(name):
    return "odd" if int(name[-1]) % 2 else "even"


@pytest.mark.slow
def test_random_stories(make_round, tmp_path):
    """Over kills, stops and retries each slot gets what its budget allows, and nothing is lost."""
    print("BUDGET_SEED", SEED)
    for number in range(STORIES):
        story = Story(random.Random(f"{SEED} {number}"), make_round, tmp_path / str(number))
        rounds = 0
        while rounds < 3 or (story.kills < 4 and any(story.budget.values())):
            rounds += 1
            least = {**story.budget}
            story.crawl()
            kept = story.store.requests()
            assert len(kept) == len({each.url for each in kept})
            assert story.reached - story.answered == {*map(name_of, kept)}
            for each in kept:
                name = name_of(each)
                if each.reason == "capped" and name not in story.capped_before:
                    slot = slot_of(name)
                    is_full = story.pages(slot) >= least.get(slot, least["*"])
                    fives = name[-1] in "05" and story.pages(FIVES) >= least[FIVES]
                    assert is_full or fives
            story.start()
        story.job.close()


@pytest.mark.parametrize(
    "value",
    [5, {"a": -1}, {"a": 1.5}, {"a": True}, {"*.com": "3"}, {"": 1}, {"\udc80/": 1}, "{", {1: 1}],
)
def test_a_bad_budget_is_refused_with_one_line(value):
    with pytest.raises(ValueError, match=r"^BLOOM_BUDGET is .*: it must be a dictionary of"):
        BUDGET.read(Settings({"BLOOM_BUDGET": value}))


def test_a_budget_of_the_command_line_is_json():
    assert BUDGET.read(Settings({"BLOOM_BUDGET": '{"*": 7}'})) == {"*": 7}


def test_what_was_taken_over_from_scrapys_scheduler_counts(make):
    budget = {"BLOOM_BUDGET": {"*": 3}}
    make(scheduler=STOCK, **budget).pushed("a", "b").close("shutdown")
    assert sorted(make(**budget).pushed("c", "d").names()) == [*"abc"]


def test_what_is_in_memory_is_counted_before_it_is_asked(make_round, tmp_path):
    """Also if nothing else has changed since the last commit."""
    job = make_round(BLOOM_BUDGET={"*": 2}).started("start")
    job.pop()
    job.commit()
    job.scheduler.enqueue_request(unserializable("memory"))
    assert name_of(job.pop()) == "memory"
    assert query(tmp_path / "job", "SELECT counted FROM slot") == [(2,)]


def test_a_round_that_begins_without_the_feeds_of_the_last_one_counts_from_0(make_round):
    """They were to be stored."""
    job = make_round(BLOOM_BUDGET={"*": 2}).started("a").pushed("b")
    job.names()
    job.round.awaits_feeds = True
    job.close()
    assert job.round.is_to_be_stored
    job = make_round(BLOOM_BUDGET={"*": 2}).started("a").pushed("c", "d")
    assert sorted(job.names()) == ["a", "c"]


def test_a_capped_request_takes_ninety_bytes(make_round, tmp_path):
    """At most, of the days of a calendar, as Scrapy makes them of links."""
    file, count = tmp_path / "job" / "requests.sqlite", 5_000
    job = make_round(BLOOM_BUDGET={"*": 0})
    empty = file.stat().st_size
    for number in range(count):
        month = f"https://town.example/events/{2000 + number // 336}-{number // 28 % 12 + 1:02}"
        headers = {"Referer": month}
        url = f"{month}-{number % 28 + 1:02}"
        job.scheduler.enqueue_request(Request(url, headers=headers, meta={"depth": 3}))
        if number % 200 == 0:
            job.commit()
    job.close("shutdown")
    assert Failed(tmp_path / "job").by_reason() == {"capped": count}
    assert file.stat().st_size - empty < 90 * count


def test_retried_requests_of_many_slots_have_the_room_of_their_slots(make_round, tmp_path):
    """The first of each slot come first."""
    job = make_round(BLOOM_BUDGET={"*": 1}).started()
    for number in range(4):
        for slot in "pqr":
            push(job, f"{slot}{number}", slot=slot)
    assert sorted(job.finish("shutdown")) == ["p0", "q0", "r0"]
    assert Failed(tmp_path / "job").retry(urls=["*/p*", "*/q*"]) == 6
    job = make_round(BLOOM_BUDGET={"*": 0, "p": 3, "q": 9, "r": 9}).started()
    assert sorted(job.names()) == ["p1", "p2", "q1", "q2", "q3"]
    push(job, "p8", "p9", slot="p")
    push(job, *"xyz", slot="q")
    assert sorted(job.finish()) == [*"xyz"]
    assert capped(tmp_path / "job") == ["r1", "r2", "p3", "r3", "p8", "p9"]


def test_what_is_retried_and_then_dropped_and_kept_needs_room_as_before(make_round, tmp_path):
    """The budget has not counted it, whatever reason it has failed for since."""
    make_round(BLOOM_BUDGET={"*": 2}).started("start").pushed(*"abc").finish()
    store = Failed(tmp_path / "job")
    assert store.retry(**CAPPED) == 2
    assert store.desk.change(Filter(), "fail").states.total() == 2
    assert store.retry(reasons=["dropped"]) == 2
    job = make_round(BLOOM_BUDGET={"*": 3}).started("start")
    assert len(job.names()) == 1
    assert len(capped(tmp_path / "job")) == 1


def test_to_retry_all_that_is_capped_no_request_is_read(make_round, tmp_path, monkeypatch):
    """There may be millions."""
    store = Failed(tmp_path / "job")
    make_round(BLOOM_BUDGET={"*": 1}).started("start").pushed(*"abc").finish()
    with monkeypatch.context() as patch:
        patch.setattr(listing, "plain_fields", lambda *_, **__: pytest.fail("it was read"))
        assert store.retry(reasons=["callback"]) == 0
        assert store.drop(reasons=["callback"]) == 0
    assert store.drop(urls=["*/b"]) == 1
    monkeypatch.setattr(listing, "plain_fields", lambda *_, **__: pytest.fail("it was read"))
    assert store.retry(reasons=["feed", "cap*"]) == 2
