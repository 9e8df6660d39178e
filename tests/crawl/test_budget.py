"""BLOOM_BUDGET: no more pages of a download slot in a round than it allows, over kills.

Set BUDGET_SEED to repeat a run of what is random.
"""

import os
import random
from functools import partial
from types import SimpleNamespace

import pytest
from scrapy import Request
from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue
from scrapy.settings import Settings

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
        return len([*coming_back(file, {"*": limit}, **options)])

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


def test_only_named_slots_have_a_budget_without_a_star(make_round):
    job = make_round(BLOOM_BUDGET={"none.example": 0}).started().pushed(*"abc")
    push(job, "d", slot="none.example")
    assert sorted(job.names()) == ["a", "b", "c"]


def test_start_requests_count_and_are_not_offered_again(make_round, crash_round, tmp_path):
    make_round(BLOOM_BUDGET={"*": 1}).started("a", "b").commit()
    job = crash_round(BLOOM_BUDGET={"*": 1}).started("a", "b")
    assert job.names() == ["a"]
    assert capped(tmp_path / "job") == ["b"]
    assert job.stat("scheduler/capped") is None


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
    assert not job.scheduler.ledger.has(a)


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


def test_a_retry_brings_back_what_a_higher_budget_leaves_room_for(make_round, tmp_path):
    folder = tmp_path / "job"
    make_round(BLOOM_BUDGET={"*": 2}).started("start").pushed(*"abcde").finish()
    assert Failed(folder).retry(reasons=["other"]) == 0
    assert Failed(folder).retry(**CAPPED) == 4
    job = make_round(BLOOM_BUDGET={"*": 4})
    # the round goes on, and these count in it
    assert job.start(start("start")) == []
    push(job, "f", "g")
    assert sorted(job.finish()) == ["b", "c"]
    assert capped(folder) == ["d", "e", "f", "g"]

    # without room for any of them, a new round begins
    assert Failed(folder).retry(**CAPPED) == 4
    job = make_round(BLOOM_BUDGET={"*": 4})
    assert job.start(start("start")) == ["start"]
    push(job, "h", "i", "j", "k")
    assert sorted(job.finish()) == ["h", "i", "j", "start"]
    assert capped(folder) == [*"defgk"]

    assert Failed(folder).retry(urls=["*/e"]) == 1
    assert make_round().started().finish() == ["e"]
    assert Failed(folder).drop(urls=["*/d"]) == 1
    assert capped(folder) == [*"fgk"]
    assert sorted(make_round(BLOOM_RETRY_FAILED=True).started().names()) == [*"fgk"]


def test_a_budget_that_is_new_counts_what_is_pending(make_round):
    make_round().started("start").pushed("a", "b").close("shutdown")
    job = make_round(BLOOM_BUDGET={"*": 4}).started().pushed("c", "d")
    assert sorted(job.names()) == ["a", "b", "c", "start"]


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
    job = make_round(None, BLOOM_BUDGET={"*": 2}).pushed(*"abc")
    assert sorted(job.names()) == ["a", "b"]
    assert job.stat("scheduler/capped") == 1


class Story:
    """A crawl of an endless site that dies, stops, fails and is retried, with a growing budget."""

    def __init__(self, chance, make, folder):
        self.chance = chance
        self.make = partial(make, folder)
        self.folder = folder
        self.store = Failed(folder)
        self.budget = {"even": chance.randrange(6), "*": chance.randrange(6)}
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
        self.job.close()

    @property
    def in_progress(self):
        return sorted(self.job.engine._slot.inprogress, key=name_of)

    def pages(self, slot):
        """Return how many of a slot were asked in this round."""
        return sum(of == self.number and slot_of(name) == slot for of, name in self.asked)

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
                    assert story.pages(slot) >= least.get(slot, least["*"])
            story.start()
        story.job.close()


@pytest.mark.parametrize(
    "value", [5, {"a": -1}, {"a": 1.5}, {"a": True}, {"*.com": 3}, "{", {1: 1}]
)
def test_a_bad_budget_is_refused_with_one_line(value):
    with pytest.raises(ValueError, match=r"^BLOOM_BUDGET is .*: it must be a dictionary of"):
        BUDGET.read(Settings({"BLOOM_BUDGET": value}))


def test_a_budget_of_the_command_line_is_json():
    assert BUDGET.read(Settings({"BLOOM_BUDGET": '{"*": 7}'})) == {"*": 7}


def test_what_a_start_without_a_budget_has_pushed_counts(make_round):
    """When there is a budget again, while it is pending."""
    for budget, names in (({"*": 5}, ""), ({}, "bcd"), ({"*": 5}, "efg")):
        job = make_round(BLOOM_BUDGET=budget).started("s").pushed(*names)
        if budget and names:
            assert len(job.names()) == 5
        job.close("shutdown")


def test_counts_of_a_round_do_not_outlive_one_without_a_budget(make_round):
    """The budget of the third start is that of the second round."""
    make_round(BLOOM_BUDGET={"*": 3}).started("s").pushed(*"ab").finish()
    make_round().started("s").close("shutdown")
    job = make_round(BLOOM_BUDGET={"*": 3}).started().pushed(*"efg")
    assert sorted(job.names()) == ["e", "f", "s"]


@pytest.mark.parametrize("queue", [DownloaderAwarePriorityQueue, ScrapyPriorityQueue])
@pytest.mark.parametrize("by_setting", [False, True], ids=["command", "setting"])
def test_what_failed_in_an_earlier_round_counts_when_it_is_retried(
    make_round, tmp_path, queue, by_setting
):
    """What is over the budget then is capped. What failed in the round itself counts once."""
    folder = tmp_path / "job"
    settings = {"BLOOM_BUDGET": {"*": 4}, "SCHEDULER_PRIORITY_QUEUE": queue}
    settings["SCHEDULER_DISK_QUEUE"] = "scrapy.squeues.PickleFifoDiskQueue"
    job = make_round(**settings).started(*"abcd")
    assert fail(job) == [*"abcd"]
    job.close()
    job = make_round(**settings).started(*"ef")
    assert fail(job) == [*"ef"]
    job.close()
    if by_setting:
        settings["BLOOM_RETRY_FAILED"] = True
    else:
        assert Failed(folder).retry() == 6
    job = make_round(**settings).started(*"efg")
    assert fail(job) == [*"abef"]
    job.close()
    if not by_setting:
        assert Failed(folder).retry(reasons=["down"]) == 4
    assert sorted(make_round(**settings).started(*"efg").finish()) == [*"abef"]
    assert capped(folder) == ["c", "d", "g"]
    assert Failed(folder).by_reason() == {"capped": 3}
    job = make_round(SCHEDULER_PRIORITY_QUEUE=queue, BLOOM_RETRY_FAILED=True).started("h")
    assert sorted(job.names()) == ["c", "d", "g", "h"]


def test_what_is_retried_without_a_budget_is_asked(make_round, tmp_path):
    """All of it, whatever rounds with a budget it has failed in."""
    for names in ("ab", "cd"):
        job = make_round(BLOOM_BUDGET={"*": 2}).started(*names)
        fail(job)
        job.close()
    assert Failed(tmp_path / "job").retry() == 4
    assert sorted(make_round().started().names()) == [*"abcd"]


@pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])
def test_a_start_that_comes_to_nothing_leaves_a_round_its_counts(make_round, tmp_path, is_killed):
    """What is retried after it has no more room than before."""
    budget = {"BLOOM_BUDGET": {"*": 2}}
    make_round(**budget).started("start").pushed("a", "b").finish()
    job = make_round(**budget)
    if is_killed:
        job.commit()
        job.drop()
    else:
        job.close("shutdown")
    assert Failed(tmp_path / "job").retry(**CAPPED) == 1
    job = make_round(**budget)
    assert job.start(start("start")) == ["start"]
    assert job.names() == ["start"]


@pytest.mark.parametrize("queue", [DownloaderAwarePriorityQueue, ScrapyPriorityQueue])
def test_what_comes_before_start_runs_counts_in_the_round_that_begins(make_round, queue):
    """Requests of a handler of spider_opened."""
    options = {"BLOOM_BUDGET": {"*": 2}, "SCHEDULER_PRIORITY_QUEUE": queue}
    make_round(**options).started("start").pushed("a", "b").finish()
    job = make_round(**options).pushed("c").started("start").pushed("d")
    assert sorted(job.names()) == ["c", "start"]


def test_what_a_start_has_brought_back_counts_once(make_round, crash_round):
    """Where the process is killed before start() runs."""
    make_round(BLOOM_BUDGET={"*": 2}).started("start").pushed(*"abcd").finish()
    make_round(BLOOM_BUDGET={"*": 4}, BLOOM_RETRY_FAILED=True).commit()
    job = crash_round(BLOOM_BUDGET={"*": 5}).started("start").pushed("e", "f")
    assert sorted(job.names()) == ["b", "c", "e"]


def test_a_slot_that_gets_a_budget_has_been_counted(make_round):
    """Where others had one before."""
    job = make_round(BLOOM_BUDGET={"other.example": 5}).started("start").pushed("a", "b")
    job.names()
    push(job, "c")
    job.close("shutdown")
    job = make_round(BLOOM_BUDGET={"*": 5}).started().pushed("d", "e")
    assert sorted(job.names()) == ["c", "d"]


def test_what_was_taken_over_from_scrapys_scheduler_counts(make):
    budget = {"BLOOM_BUDGET": {"*": 3}}
    make(scheduler=STOCK, **budget).pushed("a", "b").close("shutdown")
    assert sorted(make(**budget).pushed("c", "d").names()) == [*"abc"]


def test_what_is_counted_is_committed_before_it_is_asked(make_round, tmp_path):
    """Each is pending, or has used its room, after a kill; a retry leaves room for it."""
    make_round(BLOOM_BUDGET={"*": 1}).started("start").pushed("b", "c").close("shutdown")
    job = make_round(BLOOM_BUDGET={"*": 4}).started("start").pushed("a")
    job.scheduler.enqueue_request(unserializable("memory"))
    assert {name_of(job.pop()) for _ in range(3)} == {"a", "memory", "start"}
    job.drop()
    assert Failed(tmp_path / "job").retry(**CAPPED) == 2
    job = make_round(BLOOM_BUDGET={"*": 4}).started("start").pushed("d", "a")
    assert sorted(job.finish()) == ["a", "b", "start"]
    assert capped(tmp_path / "job") == ["c", "d"]


def test_what_is_in_memory_is_counted_before_it_is_asked(make_round, tmp_path):
    """Also if nothing else has changed since the last commit."""
    job = make_round(BLOOM_BUDGET={"*": 2}).started("start")
    job.pop()
    job.commit()
    job.scheduler.enqueue_request(unserializable("memory"))
    assert name_of(job.pop()) == "memory"
    assert query(tmp_path / "job", "SELECT counted FROM slot") == [(2,)]


def test_a_kill_after_a_retry_leaves_no_choice_to_the_next(make_round, tmp_path):
    """Even if it comes before the first commit."""
    store = Failed(tmp_path / "job")
    make_round(BLOOM_BUDGET={"*": 1}).started().pushed(*"abcd").close("shutdown")
    assert store.retry(urls=["*/d"]) == 1
    job = make_round(BLOOM_BUDGET={"*": 2}).started()
    assert {name_of(job.pop()), name_of(job.pop())} == {"a", "d"}
    job.drop()
    store.retry(**CAPPED)
    assert sorted(make_round(BLOOM_BUDGET={"*": 2}).started().finish()) == ["a", "d"]
    assert capped(tmp_path / "job") == ["b", "c"]


def test_what_a_setting_retries_is_counted_before_it_is_asked(make_round, tmp_path):
    """Of an earlier round, in one that goes on: a kill leaves its room to no other."""
    job = make_round(BLOOM_BUDGET={"*": 2}).started("a")
    assert fail(job) == ["a"]
    job.close()
    make_round(BLOOM_BUDGET={"*": 2}).started("start").close("shutdown")
    job = make_round(BLOOM_BUDGET={"*": 2}, BLOOM_RETRY_FAILED=True).started("start")
    assert {name_of(job.pop()), name_of(job.pop())} == {"a", "start"}
    job.drop()
    job = make_round(BLOOM_BUDGET={"*": 2}).started("start").pushed("b")
    assert sorted(job.finish()) == ["a", "start"]
    assert capped(tmp_path / "job") == ["b"]


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


def test_what_is_retried_by_a_start_without_a_budget_is_no_count_of_a_round(make_round, tmp_path):
    """With the next budget, all that is pending then counts."""
    make_round(BLOOM_BUDGET={"*": 1}).started("start").pushed("a").finish("shutdown")
    assert Failed(tmp_path / "job").retry(**CAPPED) == 1
    make_round().started("start").pushed(*"bcd").close("shutdown")
    job = make_round(BLOOM_BUDGET={"*": 5}).started("start").pushed("e", "f")
    assert sorted(job.names()) == [*"abcde"]


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
