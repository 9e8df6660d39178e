"""BLOOM_BUDGET: no more pages of a download slot or a pattern in a round than it allows."""

import json
import os
import random
import re
import time
from collections import defaultdict
from dataclasses import dataclass

import pytest
from scrapy import Request
from scrapy.settings import Settings

from scrapy_bloom import SharedFilterError
from scrapy_bloom.crawl.choice import Filter
from scrapy_bloom.crawl.failed_request import FailedRequest
from scrapy_bloom.crawl.records import KEPT
from scrapy_bloom.crawl.settings import budget_of
from scrapy_bloom.redis.verify import queue_findings
from scrapy_bloom.sqlite import listing
from scrapy_bloom.sqlite.budget import JobBudget
from scrapy_bloom.sqlite.job_file import file_at
from scrapy_bloom.sqlite.kept import COMING_BACK, wake
from tests.contracts.places import send_again
from tests.crawl.engine import STOCK, name_of, query, request, unserializable
from tests.crawl.engine import unfiltered as child
from tests.crawl.test_children import again, give, page_in_progress
from tests.failures import Failed
from tests.redis.workers import capped
from tests.seeded import seed_of

pytestmark = pytest.mark.usefixtures("few_shards")

SEED = seed_of("BUDGET_SEED")
STORIES = int(os.environ.get("BUDGET_STORIES", "4"))
CAPPED = {"reasons": ["capped"]}
EARLY, LATE = "*/[a-m]", "*m/[n-z]"
DUMMY = "scrapy.statscollectors.DummyStatsCollector"


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
    return names


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

    def take_place(self, place):
        """Crawl."""
        if self.retried is not None:
            assert place.failed.retry(**self.retried)
        limits = {"*": self.budget} if isinstance(self.budget, int) else self.budget
        budget = {} if limits is None else {"BLOOM_BUDGET": limits}
        job = place.open(unopened=self.starts is None, BLOOM_RETRY_FAILED=self.retries, **budget)
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
            assert [*self.capped] == place.capped()

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
        Run(limit, "ef", pushed="g", asked="abef", fails=True, **how),
        Run(limit, "ef", pushed="g", asked="abef", capped="cdg", **again),
        Run(None, "", pushed="h", asked="cdgh", retries=True),
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
        Run({"example.com": 3, EARLY: 1}, pushed="abxy", asked="asx", capped="by"),
        # the round goes on as far as both have room, or a new one begins
        Run({"example.com": 4, EARLY: 1}, asked="y", capped="b", retried=CAPPED),
        Run({"example.com": 4, "*/[a-z]": 9}, asked="s", capped="b", retried=CAPPED),
        Run({"*": 9, "*/[a-z]": 2}, "", pushed="p", asked="b", capped="p", retried=CAPPED),
        Run({"example.com": 9}, "", asked="p", retried=CAPPED),
    ],
    "a pattern's count outlives a kill": [
        Run({EARLY: 2}, pushed="abc", asked="abs", end="kill", capped="c"),
        Run({EARLY: 2}, pushed="de", asked="abs", capped="cde"),
        Run({EARLY: 2}, pushed="fghx", asked="fgsx", capped="cdeh"),
    ],
    "a pattern that is new, or comes back, counts from now on": [
        Run({EARLY: 2}, pushed="abc", asked="abs", left="w", end="shutdown", capped="c"),
        Run({"*/[a-n]": 2}, pushed="def", asked="dew", left="x", end="shutdown", capped="cf"),
        Run({EARLY: 2}, pushed="ghi", asked="ghx", left="y", end="shutdown", capped="cfi"),
        Run({EARLY: 3}, pushed="jk", asked="jy", capped="cfik"),
    ],
    "what is pending counts where the budget is new": [
        Run(None, pushed="abx", end="shutdown"),
        Run({"*": 6, EARLY: 3}, pushed="cdeyz", asked="abcsxy", capped="dez"),
    ],
    "what has failed counts where the budget is new": [
        Run(None, "ab", asked="ab", fails=True, end="shutdown"),
        Run(1, "", pushed="c", asked="a", capped="c", retried={"urls": ["*/a"]}),
    ],
    "what is retried without one is no count of the round": [
        Run(1, pushed="a", asked="s", end="shutdown"),
        Run(None, pushed="bcd", end="shutdown", retried=CAPPED),
        Run(5, pushed="ef", asked="abcde"),
    ],
    "starts that come to nothing leave the counts": [
        Run(2, pushed="ab", asked="as"),
        Run(2, None, end="shutdown"),
        Run(2, None, end="commit"),
        Run(2, asked="s", retried=CAPPED),
    ],
    "what comes before start() counts in the new round": [
        Run(2, pushed="ab", asked="as"),
        Run(2, first="c", pushed="d", asked="cs"),
        Run(2, pushed="ef", asked="es"),
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


@pytest.mark.parametrize("runs", RUNS.values(), ids=RUNS)
def test_over_several_starts(place, runs):
    """Each page counts once in the round that asks it, whatever becomes of the process."""
    for run in runs:
        run.take_place(place)


@pytest.mark.parametrize(
    "value",
    [5, {"a": -1}, {"a": 1.5}, {"a": True}, {"*.com": "3"}, {"": 1}, {"\udc80/": 1}, "{", {1: 1},
     0, False, "0", "False"],
)  # fmt: skip
def test_a_bad_budget_is_refused_with_one_line(value):
    with pytest.raises(ValueError, match=r"^BLOOM_BUDGET is .*: it must be a dictionary of"):
        budget_of(Settings({"BLOOM_BUDGET": value}))
    assert budget_of(Settings({"BLOOM_BUDGET": "None"})) is None


def test_what_is_over_the_budget_is_capped(place, caplog):
    """It stays seen, and keeps no round open; list, stats and, once, the log name what is full."""
    caplog.set_level("INFO")
    limits = {"*": 3, "b.example": 1, EARLY: 1, "*.example/": 9}
    job = place.open(BLOOM_BUDGET=json.dumps(limits)).started("start")
    push(job, *"abcxyb")
    push(job, *"vz", slot="b.example")
    assert sorted(job.names()) == ["a", "start", "v", "x"]
    stats = {"*": 1, EARLY: 2, "b.example": 1}
    assert {key: job.stat(f"scheduler/capped/{key}") for key in stats} == stats
    assert (job.stat("scheduler/capped"), job.stat("scheduler/enqueued")) == (4, 4)
    for key in stats:
        assert caplog.text.count(f"BLOOM_BUDGET has no room left for {key!r}: ") == 1
    job.close()
    assert (job.stat("scheduler/failed"), "failed and" in caplog.text) == (0, False)
    found = {name_of(each): each.exception for each in place.failed.requests(**CAPPED)}
    slot, pattern = "slot 'example.com'", f"pattern '{EARLY}'"
    full = {"b": pattern, "c": pattern, "y": slot, "z": "slot 'b.example'"}
    assert found == {name: f"BLOOM_BUDGET has no room for {each}" for name, each in full.items()}
    job = place.open(BLOOM_BUDGET={"*": 9}).started("start")
    push(job, "b")
    assert job.names() == ["start"]


def test_a_pattern_has_one_count_for_all_hosts_and_is_no_slot(place):
    """Also where a download slot has its name: that is counted and listed alone."""
    trap = "*/trap/*"
    job = place.open(BLOOM_BUDGET={trap: 2, "*": 3}).started()
    for host in "abc":
        page = Request(f"http://{host}.example/trap/{host}", meta={"download_slot": trap})
        job.scheduler.enqueue_request(page)
    push(job, *"xyz", slot=trap)
    job.commit()
    assert place.capped() == ["c", "y", "z"]
    assert place.failed.desk.count(Filter(KEPT), "slot").by == {trap: 3}
    assert sorted(job.names()) == ["a", "b", "x"]


def test_a_redirect_counts_where_it_lands(place):
    """In the pattern that is not that of its page, in no slot twice; over it, it is capped."""
    budget = {"BLOOM_BUDGET": {"example.com": 3, EARLY: 1, LATE: 1}}
    job = place.open(**budget).started("a")
    a = job.pop()
    send_again(job, a)
    for name in "bxy":
        send_again(job, a, "redirect_times", name)
    job.done(a)
    job.commit()
    job.drop()
    job = place.open(**budget).started("a")
    push(job, *"cz01")
    assert sorted(job.names()) == ["0", "1", "a", "b", "x"]
    assert place.capped() == ["c", "y", "z"]


def test_a_page_whose_redirect_is_capped_is_acknowledged_with_it(place):
    """In one commit: after a kill it is not asked, and capped, again. Retries are not counted."""
    budget = {"BLOOM_BUDGET": {"*": 1, "other.example": 0}}
    job = place.open(**budget).started("a")
    for _ in range(3):
        a = job.pop()
        send_again(job, a)
        job.done(a)
        job.commit()
    a = job.pop()
    assert job.stat("scheduler/capped") is None
    send_again(job, a, "redirect_times", "b", download_slot="other.example")
    job.commit()
    assert job.stat("scheduler/capped") == 1
    assert a not in job.scheduler.ledger.in_flight.running
    job.drop()
    job = place.open(**budget).started("a")
    assert job.finish() == []
    assert place.failed.by_reason() == {"capped": 1}


@pytest.mark.parametrize("more", [{}, {"function": lambda: None}])
def test_a_login_that_is_repeated_counts_nowhere(place, more):
    """Nor do its retries and redirects, also in memory, whatever is full. A child that has copied
    its meta does, and that one's redirect."""
    budget = {"BLOOM_BUDGET": {"*": 1, "sso.example": 0}}
    login = child("login", meta={"bloom_repeat_start": True, **more})
    (job := place.open(**budget)).start(child("a"), login)
    page = max(iter(job.pop_any, None), key=name_of)
    for how in ["retry_times"], ["redirect_times", "sso"]:
        send_again(job, page, *how, download_slot="sso.example")
        job.done(page)
        page = job.pop_any()
    job.scheduler.enqueue_request(child("child", meta={**page.meta, "download_slot": "another"}))
    job.done(page)
    page = job.pop_any()
    send_again(job, page, "redirect_times", "over", download_slot="sso.example")
    job.done(page)
    job.commit()
    assert place.failed.names() == ["over"]
    job.drop()
    (job := place.open(**budget)).start(child("a"), login.copy())
    assert ("login" in job.names()) == (job.scheduler.medium == "disk")
    assert place.failed.names() == ["over"]


def test_of_what_cannot_be_serialized_a_record_is_kept(place, caplog):
    """It counts, and is asked in memory; over the budget it is done, and no retry helps."""
    budget = {"BLOOM_BUDGET": {"*": 2}}
    job = place.open(**budget).started()
    for name in "abbc":
        job.scheduler.enqueue_request(unserializable(name))
    assert len(job.scheduler) == {"disk": 2, "redis": 3}[job.scheduler.medium]  # not yet counted
    assert sorted(job.names()) == ["a", "b"]
    assert job.stat("scheduler/capped") == 1
    job.commit()
    assert len(job.scheduler) == 0
    caplog.clear()
    job.close()
    assert re.search(r"1 request failed and stays in the \w+: 1 unserializable\.", caplog.text)
    (found,) = place.failed.requests()
    assert (name_of(found), found.reason, found.attempts) == ("c", "unserializable", 0)
    assert found.exception == "callback parse, slot 'example.com'"
    assert place.failed.retry() == 0
    assert (place.failed.retry(reasons=["unser*"]), place.failed.retry()) == (0, 0)
    assert place.failed.drop() == 1


def retry_at_work(place, job):
    """Retry all that is kept while a process is at work; return how many are pending then."""
    records = getattr(job.scheduler.ledger.store, "records", None)
    return place.failed.retry() if records is None else wake(records, [*range(1, 9)])


def test_a_process_at_work_asks_what_has_room(place):
    """An operator's retry passes over what has none."""
    job = place.open(BLOOM_BUDGET={EARLY: 1, LATE: 1}).started().pushed(*"abxy")
    assert sorted(job.names()) == ["a", "x"]
    assert retry_at_work(place, job) == 0
    job.close("shutdown")
    job = place.open(unopened=True, BLOOM_BUDGET={EARLY: 1, LATE: 2})
    job.commit()
    assert retry_at_work(place, job) == 1
    job.commit()
    assert (job.names(), place.capped()) == (["y"], ["b"])


def test_a_start_tells_how_many_it_retries(place, caplog):
    """Without those for which there is no room any more: they are capped."""
    caplog.set_level("INFO")
    Run(2, "ab", asked="ab", fails=True).take_place(place)
    Run(2, "c", asked="c").take_place(place)
    Run(2, "", asked="a", retries=True, capped="b").take_place(place)
    assert "Retrying 1 request that had failed" in caplog.text


def test_retried_requests_of_many_slots_have_the_room_of_their_slots(place):
    job = place.open(BLOOM_BUDGET={"*": 1}).started()
    for number in range(4):
        for slot in "pqr":
            push(job, f"{slot}{number}", slot=slot)
    assert sorted(job.finish("shutdown")) == ["p0", "q0", "r0"]
    assert place.failed.retry(urls=["*/p*", "*/q*"]) == 6
    job = place.open(BLOOM_BUDGET={"*": 0, "p": 3, "q": 9, "r": 9}).started()
    assert [each[0] for each in sorted(job.names())] == [*"ppqqq"]
    push(job, "p8", "p9", slot="p")
    push(job, *"xyz", slot="q")
    assert sorted(job.finish()) == [*"xyz"]
    assert len(place.capped()) == 6


FIVES = "*/*-*[05]"  # the pattern of every fifth page


@pytest.mark.parametrize("number", range(STORIES))
def test_random_stories(place, number):
    """Over kills and retries slots and pattern get what a growing budget allows; none is lost."""
    print("BUDGET_SEED", SEED)
    chance = random.Random(f"{SEED} {number}")
    budget = {key: chance.randrange(6) for key in ("even", "*", FIVES)}
    asked, done, pushed = defaultdict(set), set(), set()

    def keys_of(name):
        return ["*" if int(name[-1]) % 2 else "even", *[FIVES] * (name[-1] in "05")]

    for process in range(12):
        if process and chance.random() < 0.4:
            chosen = [{}, CAPPED, {"reasons": ["down"]}, {"urls": ["*[0-4]"]}]
            place.failed.retry(**chance.choice(chosen))
        budget[chance.choice([*budget])] += chance.randrange(2)
        retries = chance.random() < 0.2
        job = place.open(BLOOM_BUDGET=budget, BLOOM_RETRY_FAILED=retries).started(f"s-{process}1")
        new = [f"p-{len(pushed) + each}" for each in range(5)]
        for name in new:
            push(job, name, slot="even" if "even" in keys_of(name) else "example.com")
        pushed.update(new)
        for _ in range(chance.randrange(12)):
            if (popped := job.pop()) is None:
                job.commit()
                room = {key: budget[key] - len(asked[job.round.number, key]) for key in budget}
                capped = {*new}.intersection(place.capped())
                assert all(any(room[key] <= 0 for key in keys_of(name)) for name in capped)
                break
            name = name_of(popped)
            for key in keys_of(name):
                asked[job.round.number, key].add(name)
                assert len(asked[job.round.number, key]) <= budget[key]
            if chance.random() < 0.3:
                job.scheduler.ledger.fail(popped, FailedRequest.of(popped, "down"))
            else:
                done.add(name)
            job.done(popped)
        job.commit()
        job.drop() if chance.random() < 0.5 else job.close("shutdown")
    left = place.open(BLOOM_RETRY_FAILED=True).names()
    assert len(left) == len({*left} - done)
    assert pushed <= done | {*left}


# of a job


def test_a_repeated_page_has_its_unfiltered_children_capped_once(make_round, crash_round):
    budget = {"BLOOM_BUDGET": {"*": 1}}
    job = make_round(**budget)
    give(job, page_in_progress(job), child("a"))
    job.commit()
    job = crash_round(**budget)
    assert give(job, again(job), child("a"), child("b")) == ["b"]
    job.close("shutdown")
    assert Failed(job.scheduler._job.path).by_reason() == {"capped": 2}


def test_a_start_request_that_cannot_be_serialized_is_recorded_once(make_round, crash_round):
    """However often the round is resumed: it is taken, as one that is kept over the budget."""
    budget = {"BLOOM_BUDGET": {"*": 1}}
    lost = [request(name, dont_filter=True, callback=lambda _: None) for name in "ab"]
    job = make_round(**budget)
    for _ in range(3):
        job.start(request("start", dont_filter=True), *lost)
        job.commit()
        assert job.scheduler._store.failed == 2
        job = crash_round(**budget)
    assert job.finish() == ["start"]


def test_a_login_s_key_that_a_child_has_copied_goes(place):
    """Also without a budget, since a later start may have one."""
    job = place.open().started()
    job.scheduler.enqueue_request(child("a", meta={"bloom_repeat_start": True}))
    assert "bloom_repeat_start" not in job.pop_any().meta


def test_without_a_job_requests_over_the_budget_are_counted(make_round, caplog):
    """And told, also where no stats are kept. There no start repeats a login."""
    caplog.set_level("INFO")
    job = make_round(None, BLOOM_BUDGET={"*": 2, "*/[m-z]": 1}).pushed(*"xyab")
    job.push("c", meta={"bloom_repeat_start": True})
    assert sorted(job.names()) == ["a", "x"]
    assert job.stat("scheduler/capped") == 3
    caplog.clear()
    make_round(None, BLOOM_BUDGET={"*": 0}, STATS_CLASS=DUMMY).pushed(*"abc")
    assert caplog.text.count("BLOOM_BUDGET has no room left for '*'") == 1


def test_what_was_taken_over_from_scrapys_scheduler_counts(make_round):
    budget = {"BLOOM_BUDGET": {"*": 3}}
    make_round(scheduler=STOCK, **budget).pushed("a", "b").close("shutdown")
    assert sorted(make_round(**budget).pushed("c", "d").names()) == [*"abc"]


def test_a_round_that_begins_without_the_feeds_of_the_last_one_counts_from_0(make_round):
    """They were to be stored."""
    job = make_round(BLOOM_BUDGET={"*": 2}).started("a").pushed("b")
    job.names()
    job.round.awaits_feeds = True
    job.close()
    job = make_round(BLOOM_BUDGET={"*": 2}).started("a").pushed("c", "d")
    assert sorted(job.names()) == ["a", "c"]


@pytest.mark.parametrize("how", ["start", "order", "at work"])
def test_what_is_capped_before_its_time_is_not_sent_before_it(place, how):
    """Whichever retry asks it; what has become due meanwhile is sent at once."""
    job = place.open(BLOOM_BUDGET={"*": 1}).started("start")
    for name, delay in ("later", 10_000), ("due", 0.01), ("now", 0):
        job.push(name, meta={"bloom_not_before": delay})
    assert job.finish() == ["start"]
    time.sleep(0.02)
    if how == "order":
        assert place.failed.retry() == 3
    job = place.open(BLOOM_BUDGET={"*": 9}, BLOOM_RETRY_FAILED=how == "start")
    job.commit()
    if how == "at work":
        assert retry_at_work(place, job) == 3
    assert sorted(job.names()) == ["due", "now"]
    store = job.scheduler.ledger.store
    assert store.later == 1
    assert 9_000 < store.next_due <= 10_000


def test_what_is_retried_and_then_dropped_and_kept_needs_room_as_before(make_round, tmp_path):
    """The budget has not counted it, whatever reason it has failed for since."""
    make_round(BLOOM_BUDGET={"*": 2}).started("start").pushed(*"abc").finish()
    store = Failed(tmp_path / "job")
    assert store.retry(**CAPPED) == 2
    assert store.desk.change(Filter(), "fail").states.total() == 2
    assert store.retry(reasons=["dropped"]) == 2
    job = make_round(BLOOM_BUDGET={"*": 3}).started("start")
    assert len(job.names()) == 1
    assert len(store.requests(**CAPPED)) == 1


def test_what_was_counted_is_safe_before_it_goes(make_round, tmp_path):
    """And nothing is written before a request that an earlier commit has counted."""
    job = make_round(BLOOM_BUDGET={"*": 9}).started("start")
    job.pop()
    assert query(tmp_path / "job", "SELECT counted FROM budget") == [(1,)]
    job.pushed("a").commit()
    job.push("b", priority=-1)
    commits = job.scheduler.ledger.commits
    for name, more in ("a", 0), ("b", 1):
        assert (name_of(job.pop()), job.scheduler.ledger.commits) == (name, commits + more)


def test_a_start_tells_what_it_asks_and_what_it_caps(make_round, tmp_path, caplog):
    """Both are safe at once; a pattern that has become full is named."""
    caplog.set_level("INFO")
    store = Failed(tmp_path / "job")
    make_round(BLOOM_BUDGET={"*": 1}).started("start").pushed(*"ax").finish()
    assert store.retry(**CAPPED) == 2
    make_round(BLOOM_BUDGET={"*": 9, EARLY: 0}).drop()
    assert "Asking 1 request that BLOOM_BUDGET had kept" in caplog.text
    assert query(tmp_path / "job", "SELECT state FROM request ORDER BY state") == [(0,), (4,)]
    (found,) = store.requests(**CAPPED)
    assert found.exception == f"BLOOM_BUDGET has no room for pattern '{EARLY}'"


@pytest.mark.parametrize(("limit", "found"), [(3, 1), (1, 0)])
def test_a_look_at_a_job_finds_what_its_start_will_ask(make_round, tmp_path, limit, found):
    """Of what failed in an earlier round as much as the budget has room for."""
    job = make_round(BLOOM_BUDGET={"*": 3}).started("start")
    job.done(job.pop())
    job.push("a")
    assert fail(job) == ["a"]
    job.close()
    query(tmp_path / "job", "UPDATE request SET round = 0")
    with file_at(tmp_path / "job" / "requests.sqlite") as file:
        budget = JobBudget({"*": limit}, file)
        for retry, expected in (True, found), (False, 0):
            assert len([*budget.with_room(file.execute(COMING_BACK, (retry,)))]) == expected


def test_to_retry_all_that_is_capped_no_request_is_read(make_round, tmp_path, monkeypatch):
    """There may be millions."""
    store = Failed(tmp_path / "job")
    make_round(BLOOM_BUDGET={"*": 1}).started("start").pushed(*"abc").finish()
    monkeypatch.setattr(listing, "plain_fields", lambda *_, **__: pytest.fail("it was read"))
    assert store.retry(reasons=["callback"]) == store.drop(reasons=["callback"]) == 0
    assert store.retry(reasons=["feed", "cap*"]) == 3


# of workers


def join_with(join, budget, *names, **options):
    """Return a worker with a budget that has pushed pages of these names."""
    worker = join(BLOOM_BUDGET=budget)
    worker.enqueue_all(names, **options)
    return worker


def asked(worker):
    """Fetch all there is; return the names of the pages."""
    return "".join(sorted(worker.drain()))


def test_workers_count_together(join):
    """In one call slot and pattern, or none; also URLs that are pushed with other settings."""
    limits = {"example.com": 3, EARLY: 2, "*": 1}
    worker, other = join_with(join, limits, *"abc"), join_with(join, limits, "d", slot=EARLY)
    other.enqueue_all("xy", slot=EARLY)
    worker.exchange()
    other.exchange()
    other.send("ez0", slot="example.com")
    full = {EARLY.encode(): 2, EARLY: 1, "example.com": 1}
    assert (worker.full, other.full) == ({EARLY.encode(): 1}, full)
    assert worker.push_from_outside(*(request(each).url for each in "zaf1")) == (0, 2, 2)
    others = ["http://other.example/1", "http://other.example/2", "http://third.example/f"]
    assert worker.push_from_outside(*others) == (1, 0, 2)
    assert sorted(asked(worker) + asked(other)) == [*"1abxz"]
    assert all(each.sound for each in queue_findings(worker.client, worker.key))


def test_all_workers_need_the_same_budget(join, redis_server):
    """Another one is refused and changes nothing; when none is left, the new value holds."""
    worker = join_with(join, {"*": 2}, *"abc")
    for _ in range(2):  # two of them run start()
        worker.start("over", b"mark")
    worker.exchange()
    assert (capped(worker), worker.capped) == (["c", "over"], 2)
    before = redis_server.command("HGETALL", f"{worker.key}:crawl")
    for other in ({}, {"*": 3}, {"*": 2, "a": 1}):
        with pytest.raises(SharedFilterError, match=r'BLOOM_BUDGET = {"\*": 2}, and this one has'):
            join(BLOOM_BUDGET=other, BLOOM_REDIS_ROUND="new")
    assert redis_server.command("HGETALL", f"{worker.key}:crawl") == before
    worker.leave()
    assert asked(join_with(join, {"*": 4}, *"def")) == "abde"


def test_a_budget_that_is_new_counts_what_is_pending_claimed_and_later(join, redis_server):
    """Not what was counted before the last budget was taken away."""
    first = join_with(join, {"*": 2, EARLY: 9}, *"xyz")
    assert asked(first) == "xy"
    first.leave()
    dead = join()
    for each in range(300):
        dead.enqueue(f"host{each}", slot=f"host{each}")
        if each % 50 == 49:
            dead.exchange()
    dead.enqueue_all("abc", priority=9)
    dead.next()
    dead.exchange()
    dead.send(["later"], delay=1000, slot="host299")
    dead.die()
    worker = join_with(join, {"*": 5, "host7": 1, "host299": 2, "*/*r": 1}, *"def")
    for each in (7, 8, 299):
        worker.enqueue(f"{each}", slot=f"host{each}")
    worker.send(["far"])
    assert sorted(capped(worker)) == ["299", "7", "f", "far", "z"]
    worker.leave()
    join()
    assert redis_server.names(f"{worker.key}:counted") == []


def test_a_retry_keeps_the_time_of_what_was_capped_after_the_clock_went_back(join):
    """And a note counts nothing: the counts of the last round still leave no room in a new one."""
    worker = join_with(join, {"*": 1}, "a")
    worker.exchange()
    worker.client.call("hincrby", f"{worker.key}:crawl", "heard", 3_600_000)
    worker.send(["late"], delay=100)
    assert asked(worker) == "a"
    worker.leave(over=True)
    worker = join(BLOOM_BUDGET={"*": 1}, BLOOM_REDIS_ROUND="2")
    worker.store.note(mark=b"mark")
    worker.exchange()
    assert worker.failed.retry(**CAPPED) == 0
    worker.leave()
    worker = join(BLOOM_BUDGET={"*": 2})
    worker.exchange()
    assert worker.failed.retry(**CAPPED) == 1
    worker.exchange()
    assert 90 < worker.store.next_due <= 101


@pytest.mark.parametrize("element", [b"junk", b"x\0" + b"0payload", b"9" * 400 + b"\0payload"])
def test_a_damaged_one_stops_no_other_from_being_asked(join, redis_server, element):
    """It fails as unreadable instead."""
    worker = join_with(join, {"*": 0}, *"ab")
    worker.leave()
    redis_server.command("LPUSH", f"{worker.key}:capped:example.com", element)
    worker = join(BLOOM_BUDGET={"*": 9})
    worker.exchange()
    assert worker.failed.retry(**CAPPED) == 2
    assert worker.failed.by_reason() == {"unreadable": 1}
    assert asked(worker) == "ab"


@pytest.mark.parametrize("budget", ["?", ""])
def test_an_unknown_budget_stops_no_command(join, redis_server, budget):
    """As a start leaves it that was aborted: the next one sets its own."""
    worker = join_with(join, {"*": 9, EARLY: 1}, *"ab")
    assert asked(worker) == "a"
    redis_server.command("HSET", f"{worker.key}:crawl", "budget", budget)
    assert worker.failed.drop() == 1
    worker.leave()
    assert asked(join_with(join, {"*": 9, EARLY: 2}, *"cd")) == "c"


@pytest.mark.parametrize("place", ["redis"], indirect=True)
def test_a_round_goes_on_with_what_is_retried_whatever_the_next_is_called(place, caplog):
    """And says so, also what it asks."""
    caplog.set_level("INFO")
    place.open(BLOOM_BUDGET={"*": 2}).started().pushed(*"abc").finish()
    assert place.failed.retry(**CAPPED) == 1
    job = place.open(BLOOM_BUDGET={"*": 3})
    assert "Asking 1 request that BLOOM_BUDGET had kept" in caplog.text
    assert "is in round '1', which is not over" in caplog.text
    assert job.names() == ["c"]


@pytest.mark.parametrize("place", ["redis"], indirect=True)
def test_a_page_does_not_wait_for_what_is_over_the_budget(place, caplog):
    """And lives in memory only; what has room wakes the engine, which has nothing else to do; what
    is full is told once, also where no stats are kept."""
    caplog.set_level("INFO")
    job = place.open(BLOOM_BUDGET={"*": 2}, STATS_CLASS=DUMMY).pushed("a")
    page, engine = job.pop(), job.crawler.engine
    engine._slot.inprogress.add(page)
    job.scheduler.enqueue_request(unserializable("room"))
    engine.woken = 0
    job.commit()
    assert engine.woken == 1
    job.done(job.pop())
    job.scheduler.enqueue_request(unserializable("b"))
    job.push("c")
    job.done(page)
    job.commit()
    assert page not in job.scheduler.ledger.in_flight.running
    assert not job.scheduler.worker.store.claims.all
    assert caplog.text.count("BLOOM_BUDGET has no room left for '*'") == 1
