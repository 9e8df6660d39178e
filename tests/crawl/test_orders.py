"""Pending requests that an operator drops: on a stopped job, and by orders to a running one."""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from math import inf

import pytest
from scrapy.pqueues import ScrapyPriorityQueue

from scrapy_bloom.crawl.choice import Filter
from scrapy_bloom.crawl.failed_request import FailedRequest
from scrapy_bloom.crawl.records import KEPT, State
from scrapy_bloom.jobdir import JobDirectory
from scrapy_bloom.sqlite import desk as orders
from scrapy_bloom.sqlite.desk import HoldOrder, Order, SqliteDesk, give
from tests.commands.command_line import environment
from tests.crawl.engine import name_of, query
from tests.crawl.test_rounds import phases
from tests.failures import Failed
from tests.patience import PATIENCE, wait_until
from tests.seeded import seed_of

pytestmark = pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS")


def push(job, name, **options):
    """Push a request for a page of that name, in the slot that it begins with."""
    options.setdefault("meta", {})["download_slot"] = name.partition("-")[0]
    return job.push(name, **options)


def order(job, action="drop", **chosen):
    """Order something done with requests; return where the answer will be."""
    job.commit()
    end = job.scheduler.ledger.store._file.last
    what = Order(Filter(**chosen), action, end, time.time())
    return give(JobDirectory(job.scheduler._job.path), what)


def dropped(answer):
    """Return how many an order has dropped, and how many of them were delayed."""
    states = json.loads(answer.read_bytes())["states"]
    return sum(states.values()), states.get(str(int(State.DELAYED)), 0)


def carry_out(job):
    """Let the scheduler look, until nothing is left to do."""
    folder = job.scheduler._job.orders
    for _ in range(1000):
        job.scheduler._look_for_orders()
        if not [*folder.glob("*.json")]:
            return
    raise AssertionError("this order has no end")


@pytest.mark.parametrize("lost", ["answer", "file", "part"])
def test_a_kill_has_nothing_done_twice_or_not_at_all(make, monkeypatch, lost):
    """Before the answer, before the end of the file, and in the middle of an order."""
    monkeypatch.setattr(orders, "AT_ONCE", 4)
    job = make()
    for number in range(10):
        push(job, f"a-{number}")
    answer = order(job, slots=("a",))
    if lost == "part":
        for _ in range(2):
            job.scheduler._look_for_orders()
    else:
        real = orders.answer

        def die(path, state):
            if lost == "file":
                content = path.read_bytes()
                real(path, state)
                path.write_bytes(content)
            raise RuntimeError("killed")

        monkeypatch.setattr(orders, "answer", die)
        with pytest.raises(RuntimeError, match="killed"):
            carry_out(job)
        monkeypatch.setattr(orders, "answer", real)
    job.drop()
    job = make()
    assert len(job.scheduler) == (2 if lost == "part" else 0)
    push(job, "a-new")
    job.commit()
    carry_out(job)
    # those before the kill are done, and not counted again
    assert dropped(answer) == (2 if lost == "part" else 0, 0)
    assert job.names() == ["a-new"]


def test_what_cannot_be_read_is_kept_and_said_once(make, caplog):
    """And keeps no other order from being carried out."""
    job = make()
    push(job, "a-1")
    folder = job.scheduler._job.orders
    folder.mkdir()
    bad = ["{", "[]", "[" * 100_000, '{"drop": {}, "keep": false}', "\udcff"]
    whole = json.loads(Order(Filter(), "drop").encode())
    changes = {"action": "burn", "chosen": {}, "end": inf, "time": None}
    bad += [json.dumps({**whole, name: value}) for name, value in changes.items()]
    bad += [json.dumps({**whole, "end": value}) for value in (2**63, -1)]
    lists = {"urls": [1]}, {"states": []}, {"states": [State.QUARANTINED]}
    bad += [json.dumps({**whole, "chosen": {**whole["chosen"], **each}}) for each in lists]
    bad += ['{"hold": ["a"], "until": "soon"}', '{"hold": "a", "until": 1}']
    bad.append('{"hold": [1], "until": null}')
    for number, text in enumerate(bad):
        (folder / f"{number}.json").write_bytes(text.encode(errors="surrogateescape"))
    answer = order(job, slots=("a",))
    for _ in range(3):
        job.scheduler._look_for_orders()
    assert dropped(answer) == (1, 0)
    assert len([*folder.glob("*.json")]) == len(bad)
    lines = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert len(lines) == len(bad)
    assert not job.scheduler.ledger.stopped
    assert all("cannot be carried out" in line and "remove it" in line for line in lines)


def test_an_answer_that_cannot_be_written_stops_no_crawl(make, monkeypatch, caplog):
    """As where another user has made the directory."""
    job = make()
    push(job, "a-1")
    order(job, slots=("a",))

    def refuse(path, content):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(orders, "replace", refuse)
    for _ in range(3):
        job.scheduler._look_for_orders()
    assert len([each for each in caplog.records if "cannot be carried out" in each.message]) == 1
    assert len(job.scheduler) == 0
    assert not job.scheduler.ledger.stopped
    assert push(job, "a-2")


def hold(job, slots, until=None):
    """Order slots held until then, or released; return the answer."""
    answer = give(JobDirectory(job.scheduler._job.path), HoldOrder(slots, until))
    carry_out(job)
    return json.loads(answer.read_bytes())


@pytest.mark.parametrize("queue", [None, ScrapyPriorityQueue])
def test_a_running_job_holds_what_is_ordered(make, queue):
    """Over kills, until the release or the time, which may be over when the order is read."""
    settings = {} if queue is None else {"SCHEDULER_PRIORITY_QUEUE": queue}
    job = make(**settings)
    for number in range(3):
        push(job, f"a-{number}")
        push(job, f"b-{number}")
    assert hold(job, ["a", "c"], inf) == {"slots": 2}
    assert hold(job, ["b"], time.time() - 1) == {"slots": 0}
    assert {job.pop_any().url[-3] for _ in range(3)} == {"b"}
    assert job.pop() is None
    job.drop()
    job = make(**settings)
    assert hold(job, ["b"], time.time() + 1000) == {"slots": 1}
    assert job.pop() is None
    assert hold(job, ["a", "d"]) == {"slots": 1}
    assert sorted(job.names()) == ["a-0", "a-1", "a-2"]
    job.scheduler.hold("b", 10, 1)
    assert job.scheduler.holds["b"].until - time.monotonic() > 500
    assert hold(job, ["b"]) == {"slots": 1}
    assert sorted(job.names()) == ["b-0", "b-1", "b-2"]


@pytest.mark.parametrize("queue", [None, ScrapyPriorityQueue])
def test_hold_and_release_on_a_stopped_job(make, run, tmp_path, queue):
    """By name or glob; a longer hold of another kind stays as long, and is one by hand."""
    settings = {} if queue is None else {"SCHEDULER_PRIORITY_QUEUE": queue}
    job = make(**settings)
    for number in range(4):
        push(job, f"{'ab'[number % 2]}-{number}")
    job.scheduler.hold("a", 3000, 2)
    assert sorted(job.names()) == ["b-1", "b-3"]
    push(job, "b-5")
    job.close("shutdown")

    def held():
        return run(tmp_path, "queue", "count", "job", "--json").json["held_slots"]

    assert [*held()] == ["a"]
    found = run(tmp_path, "queue", "hold", "job", "[b]", "--for", "30m", "--slot", "?")
    assert found.out == "job: 3 download slots held for 1,800 s: [b], a, b\n"
    left = held()
    assert 2900 < left["a"] <= 3000
    assert 1700 < left["[b]"] <= 1800
    assert run(tmp_path, "queue", "hold", "job", "[b]", "--json").json["seconds"] is None
    assert held()["[b]"] is None
    assert "held: [b] until its release, a for" in run(tmp_path, "queue", "count", "job").out
    job = make(**settings)
    assert job.scheduler.holds["a"].times == 0
    assert job.names() == []
    job.close("shutdown")
    assert run(tmp_path, "queue", "release", "job", "c", "--slot", "d*").status == 1
    found = run(tmp_path, "queue", "release", "job", "--slot", "?", "--json").json
    assert found["released"] == ["a", "b"]
    assert [*held()] == ["[b]"]
    assert sorted(make(**settings).names()) == ["a-0", "a-2", "b-5"]


@pytest.mark.parametrize("queue", [None, ScrapyPriorityQueue])
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_change_of_a_stopped_job_leaves_the_rest(make, tmp_path, is_killed, queue):
    """How it was stopped, what the filter lacks, its order and the counts of its budget."""
    settings = {"SCHEDULER_PRIORITY_QUEUE": queue} if queue else {}
    job = make(BLOOM_BUDGET={"*": 3}, **settings).pushed(*"abcd")
    fail(job, "c")
    job.drop() if is_killed else job.close("shutdown")
    folder = tmp_path / "job"
    query(folder, "UPDATE job SET unreleased = '[\"00\"]'")
    rest = (
        "SELECT clean, unreleased, taken_over, newest, newest_start FROM job",
        "SELECT counted FROM slot WHERE counted",
        "SELECT sql FROM sqlite_master",
    )
    before = [query(folder, each) for each in rest]
    assert before[0][0][:2] == (not is_killed, '["00"]')
    desk = SqliteDesk(folder)
    assert desk.hold(["x"], inf) == 1
    assert desk.change(Filter(KEPT), "retry").states.total() == 2
    assert [query(folder, each) for each in rest] == before


def test_drop_on_a_stopped_job(make, run, tmp_path):
    """Needs a filter and --yes; what is dropped stays seen. Orders that stand come first."""
    job = make()
    for number in range(6):
        push(job, f"{'ab'[number % 2]}-{number}")
    job.close("shutdown")
    standing = give(JobDirectory(tmp_path / "job"), Order(Filter(slots=("b",)), "drop"))
    command = ["queue", "drop", "job"]
    assert "say what to drop" in run(tmp_path, *command, "--yes").refusal
    refusal = run(tmp_path, *command, "--slot", "a").refusal
    assert "3 pending requests of job would be dropped for good: say so with --yes" in refusal
    found = run(tmp_path, *command, "--slot", "a", "--url", "*/a-[02]", "--yes")
    assert (found.status, found.out) == (0, "job: dropped 2 pending requests\n")
    assert dropped(standing) == (3, 0)
    assert run(tmp_path, *command, "--slot", "a", "--url", "*/a-[02]", "--yes").status == 1
    job = make()
    assert not push(job, "a-0")
    assert job.names() == ["a-4"]


def fail(job, *names):
    """Let the next requests fail, which are of these names."""
    for name in names:
        popped = job.pop()
        assert name_of(popped) == name
        job.scheduler.ledger.fail(popped, FailedRequest.of(popped, "down"))
        job.done(popped)
    job.commit()


FIFO = {"SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue"}


def test_a_running_job_retries_and_forgets_what_has_failed(make):
    """At once, and what is in flight by then is not forgotten."""
    job = make(**FIFO).pushed(*"abcd")
    fail(job, "a", "b", "c")
    retried = order(job, "retry", states=KEPT, urls=["*/[ab]"])
    carry_out(job)
    fail(job, "d")
    flying = job.pop()
    forgotten = order(job, states=KEPT)
    carry_out(job)
    assert (dropped(retried), dropped(forgotten)) == ((2, 0), (2, 0))
    assert job.scheduler.ledger.store.failed == 0
    job.done(flying)
    assert (name_of(flying), job.names()) == ("a", ["b"])


def test_what_is_retried_at_the_end_keeps_the_round_open(make_round, tmp_path):
    """Its feeds go on with the next start, which asks it."""
    job = make_round().started().pushed("a")
    fail(job, "a")
    answer = order(job, "retry", states=KEPT)
    job.close()
    assert dropped(answer) == (1, 0)
    assert phases(tmp_path / "job") == [(1, "running")]
    assert make_round().started("start").finish() == ["start", "a"]
    assert phases(tmp_path / "job") == [(1, "over")]


def test_a_running_job_asks_as_many_as_its_budget_has_room_for(make):
    """The others stay as they are."""
    job = make(BLOOM_BUDGET={"*": 2}, **FIFO).pushed(*"abcd")
    fail(job, "a")
    assert job.names() == ["b"]
    budget, asked = job.scheduler.ledger.store.records.budget, []
    for limit in (2, 3):
        budget._limits = {"*": limit}
        answer = order(job, "retry", states=KEPT)
        carry_out(job)
        asked.append((*dropped(answer), *job.names()))
    assert asked == [(1, 0, "a"), (1, 0, "c")]
    assert Failed(job.scheduler._job.path).by_reason() == {"capped": 1}


@pytest.mark.parametrize("action", ["retry", "drop"])
def test_an_order_is_not_about_what_fails_after_it(make, monkeypatch, action):
    """Also where a kill behind its first part has the next start carry it out."""
    monkeypatch.setattr(orders, "AT_ONCE", 1)
    job = make(**FIFO).pushed(*"abc")
    fail(job, "a", "b")
    answer = order(job, action, states=KEPT)
    job.scheduler._look_for_orders()
    fail(job, "c", *("a" if action == "retry" else ""))
    job.drop()
    job = make(**FIFO)
    carry_out(job)
    assert dropped(answer) == (1, 0)
    assert job.names() == (["b"] if action == "retry" else [])
    assert job.scheduler.ledger.store.failed == (2 if action == "retry" else 1)


SPIDER = '''
import asyncio
import json
from pathlib import Path

import scrapy


class Gate:
    """Lets no request of the slot "slow" through before there is a file."""

    async def process_request(self, request, spider=None):
        while request.meta.get("download_slot") == "slow" and not Path("go").exists():
            await asyncio.sleep(0.02)


class Slow(scrapy.Spider):
    name = "slow"
    custom_settings = {
        "ADDONS": {"scrapy_bloom.Addon": 300},
        "CONCURRENT_REQUESTS": 4,
        "DOWNLOADER_MIDDLEWARES": {Gate: 100},
        "TELNETCONSOLE_ENABLED": False,
        "TWISTED_REACTOR": "twisted.internet.asyncioreactor.AsyncioSelectorReactor",
    }

    async def start(self):
        yield scrapy.Request("data:,first")

    def parse(self, response):
        if response.url.endswith(getattr(self, "failing", "-")):
            raise RuntimeError("this page always fails")
        with open("fetched", "a") as file:
            file.write(f"{response.url}\\n")
        if response.url == "data:,first":
            for number in range(int(getattr(self, "pages", 200))):
                yield scrapy.Request(f"data:,{number}", meta={"download_slot": "slow"})
'''


def of_pages(pages):
    """Return the arguments of a crawl where some pages fail, and 500 are over the budget."""
    budget = json.dumps({"slow": pages - 500})
    return ["-a", f"pages={pages}", "-a", "failing=77", "-s", f"BLOOM_BUDGET={budget}"]


def random_order(chance, place):
    """Return the arguments of an order: a drop, a retry of what was dropped, a hold or its end."""
    if chance.random() < 0.3:
        verb, *rest = chance.choice([["hold"], ["hold", "--for", "1"], ["release"]])
        return ["queue", verb, *place, "slow", *rest]
    glob = f"data:,*{chance.randrange(10)}{chance.randrange(10)}"
    if chance.random() < 0.3:
        return ["retry", *place, "--reason", "dropped", "--url", glob]
    return ["queue", "drop", *place, "--url", glob, "--keep", "--yes"]


def require_whole(run, folder, place, pages):
    """Assert that each page was fetched, or was dropped, is capped or has failed."""
    fetched = {*(folder / "fetched").read_text().split()}
    failed = run(folder, "failed", *place, "--json").json
    reasons = Counter(each["reason"] for each in failed)
    assert {*reasons} == {"dropped", "callback", "capped"}
    assert reasons["capped"] == 500
    kept = {each["url"] for each in failed}
    assert len(kept) == len(failed)
    assert fetched | kept == {"data:,first", *(f"data:,{number}" for number in range(pages))}
    assert not fetched & {each["url"] for each in failed if each["reason"] == "capped"}
    print(len(fetched), "fetched,", dict(reasons))
    assert run(folder, "queue", "count", *place).status == 1


COUNT = ["queue", "count", "job", "--json"]


@contextmanager
def slow_crawl(run, folder, *options):
    """Crawl until four requests are in flight; what follows lets them go, and waits for the end."""
    (folder / "slow.py").write_text(SPIDER)
    command = [sys.executable, "-m", "scrapy", "runspider", "slow.py", "-s", "JOBDIR=job", *options]
    with (folder / "log").open("wb") as log:
        crawl = subprocess.Popen(command, cwd=folder, env=environment(), stderr=log)
    try:
        wait_until((folder / "job" / "requests.sqlite").exists)
        wait_until(lambda: run(folder, *COUNT).json["in_flight"] == 4)
        yield
        assert crawl.wait(PATIENCE) == 0
    finally:
        crawl.kill()
        crawl.wait()


@pytest.mark.slow
def test_a_running_crawl_holds_and_drops_what_is_ordered(run, tmp_path):
    """It fetches what it has in flight, and nothing else; an empty hold keeps none open."""
    with slow_crawl(run, tmp_path, "-s", "BLOOM_HOLD=False"):
        assert run(tmp_path, "queue", "hold", "job", "slow", "--json").json == {
            "stands": False,
            "held": ["slow"],
            "seconds": None,
        }
        (tmp_path / "go").touch()
        wait_until(lambda: run(tmp_path, *COUNT).json["in_flight"] == 0)
        found = run(tmp_path, *COUNT).json
        assert (found["pending"], found["held_slots"]) == (196, {"slow": None})
        assert "1 host held" in run(tmp_path, "info", "job").out
        drop = ["queue", "drop", "job", "--url", "data:,*", "--yes", "--json"]
        answer = {"stands": False, "dropped": 196, "later": 0, "in_flight": 0, "unknown": 0}
        assert run(tmp_path, *drop).json == answer
    fetched = (tmp_path / "fetched").read_text().split()
    assert len(fetched) == len({*fetched}) == 5
    assert "(finished)" in (tmp_path / "log").read_text()


@pytest.mark.torture
def test_forty_kills_of_crawls_and_commands(run, tmp_path):
    """At random moments of both: each page is fetched, dropped, capped or failed."""
    seed, pages, kills = seed_of("ORDERS_SEED"), 6000, 40
    print("ORDERS_SEED =", seed)
    chance = random.Random(seed)
    (tmp_path / "slow.py").write_text(SPIDER)
    (tmp_path / "go").touch()
    python = [sys.executable, "-m", "scrapy"]
    crawl = [*python, "runspider", "slow.py", "-s", "JOBDIR=job", *of_pages(pages)]
    slowly = [*crawl, "-s", 'DOWNLOAD_SLOTS={"slow": {"concurrency": 4, "delay": 0.05}}']

    def start(command):
        with (tmp_path / "log").open("ab") as log:
            return subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=log)

    def order_some():
        killed = 0
        for _ in range(chance.randrange(3)):
            tool = start([*python, "bloom", *random_order(chance, ["job"])])
            if chance.random() < 0.5:
                time.sleep(chance.uniform(0, 3))
                killed += tool.poll() is None
                tool.kill()
            tool.wait()
        return killed

    while kills > 0:
        running = start(slowly)
        kills -= order_some()
        time.sleep(chance.uniform(0, 4))
        running.kill()
        running.wait()
        kills -= 1 + order_some()
    run(tmp_path, "queue", "release", "job", "slow")
    assert start(crawl).wait() == 0
    require_whole(run, tmp_path, ["job"], pages)


def test_orders_are_for_their_owner_alone(tmp_path):
    """The directory and the orders in it, whatever the umask."""
    before = os.umask(0)
    try:
        give(JobDirectory(tmp_path), HoldOrder(["slot"]))
    finally:
        os.umask(before)
    orders = JobDirectory(tmp_path).orders
    made = [orders, *orders.iterdir()]
    assert [path.stat().st_mode & 0o777 for path in made] == [0o700, 0o600]
