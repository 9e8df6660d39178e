"""Pending requests that an operator drops: on a stopped job, and by orders to a running one."""

import json
import time
from math import inf

import pytest
from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue

from scrapy_bloom.crawl.choice import Filter
from scrapy_bloom.crawl.failed_request import FailedRequest
from scrapy_bloom.crawl.records import KEPT, State
from scrapy_bloom.sqlite import desk as orders
from scrapy_bloom.sqlite.desk import HoldOrder, Order, SqliteDesk, give
from scrapy_bloom.sqlite.scheduler import DurableScheduler
from tests.crawl.engine import name_of, query
from tests.crawl.resting_site import Rest, RestingSite
from tests.crawl.test_hold_crawls import crawl_rests
from tests.crawl.test_rounds import phases
from tests.fakes import raising
from tests.patience import wait_until
from tests.redis.workers import FIFO


def push(job, name):
    """Push a request for a page of that name, in the slot that it begins with."""
    return job.push(name, meta={"download_slot": name.partition("-")[0]})


def order(job, action="drop", **chosen):
    """Order something done with requests; return where the answer will be."""
    job.commit()
    end = job.scheduler.ledger.store._file.last
    return give(job.scheduler._job, Order(Filter(**chosen), action, end, time.time()))


def dropped(answer):
    """Return how many an order has dropped, and how many of them were delayed."""
    states = json.loads(answer.read_bytes())["states"]
    return sum(states.values()), states.get(str(int(State.DELAYED)), 0)


def carry_out(job):
    """Let the scheduler look, until nothing is left to do."""
    assert not all(job.scheduler._carry_out_order() for _ in range(1000))


@pytest.mark.parametrize(("lost", "left"), [("answer", 0), ("file", 0), ("part", 2), ("commit", 2)])
def test_a_kill_has_nothing_done_twice_or_not_at_all(make, monkeypatch, lost, left):
    """Before the answer, before the end of the file, and in the middle of an order; nor has a
    commit that fails at the end of one."""
    monkeypatch.setattr(orders, "AT_ONCE", 4)
    job = make()
    for number in range(10):
        push(job, f"a-{number}")
    answer = order(job, slots=("a",))
    if left:
        for _ in range(2):
            job.scheduler._look_for_orders()
        if lost == "commit":
            monkeypatch.setattr(job.scheduler.ledger.store, "commit", raising(OSError("full")))
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
    # at once; those before the kill are done, and not counted again
    assert (len(job.scheduler), dropped(answer)) == (0, (left, 0))
    push(job, "a-new")
    carry_out(job)
    assert job.names() == ["a-new"]


def test_what_was_in_flight_when_it_was_given_stays(make):
    job = make().pushed("a", "b")
    popped = job.pop()
    order(job, slots=("example.com",))
    job.drop()
    assert make().names() == [name_of(popped)]


def test_what_cannot_be_read_or_answered_is_kept_and_said_once(make, monkeypatch, caplog):
    """It keeps no other order from being carried out and stops no crawl: any user may write one."""
    job = make()
    push(job, "a-1")
    folder = job.scheduler._job.orders
    folder.mkdir()
    bad = ["{", "[]", "[" * 100_000, '{"drop": {}, "keep": false}', "\udcff"]
    bad += ['{"hold": ["a"], "until": "soon"}', '{"hold": [1], "until": null}']
    whole = json.loads(Order(Filter(), "drop").encode())
    values = {"action": "burn", "chosen": {}, "time": None, "end": inf}, {"end": 2**63}, {"end": -1}
    bad += [json.dumps({**whole, name: each[name]}) for each in values for name in each]
    lists = {"urls": [1]}, {"states": []}, {"states": [State.QUARANTINED]}
    bad += [json.dumps({**whole, "chosen": {**whole["chosen"], **each}}) for each in lists]
    for number, text in enumerate(bad):
        (folder / f"{number}.json").write_bytes(text.encode(errors="surrogateescape"))
    answer = order(job, slots=("a",))
    carry_out(job)
    assert dropped(answer) == (1, 0)
    assert len([*folder.glob("*.json")]) == len(bad)
    push(job, "a-2")
    order(job, slots=("a",))
    monkeypatch.setattr(orders, "replace", raising(PermissionError(13, "Permission denied")))
    for _ in range(3):
        job.scheduler._look_for_orders()
    lines = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert len(lines) == len(bad) + 1
    assert all("cannot be carried out" in line for line in lines)
    assert all("remove it" in line for line in lines[:-1])
    assert (len(job.scheduler), job.scheduler.ledger.stopped) == (0, False)
    assert push(job, "a-3")


def hold(job, slots, until=None):
    """Order slots held until then, or released; return the answer."""
    answer = give(job.scheduler._job, HoldOrder(slots, until))
    carry_out(job)
    return json.loads(answer.read_bytes())


@pytest.mark.parametrize("queue", [DownloaderAwarePriorityQueue, ScrapyPriorityQueue])
def test_a_running_job_holds_what_is_ordered(make, queue):
    """Over kills, until the release or the time, which may be over when the order is read. A longer
    hold of another kind stays as long, and is one by hand."""
    job = make(SCHEDULER_PRIORITY_QUEUE=queue)
    for name in ("a-0", "b-0", "a-1", "b-1", "a-2", "b-2"):
        push(job, name)
    assert hold(job, ["a", "c"], inf) == {"slots": 2}
    assert hold(job, ["b"], time.time() - 1) == {"slots": 0}
    assert {job.pop_any().url[-3] for _ in range(3)} == {"b"}
    assert job.pop() is None
    job.drop()
    job = make(SCHEDULER_PRIORITY_QUEUE=queue)
    job.scheduler.hold("b", 3000, 2)
    assert hold(job, ["b"], time.time() + 1000) == {"slots": 1}
    assert job.pop() is None
    assert hold(job, ["a", "d"]) == {"slots": 1}
    assert sorted(job.names()) == ["a-0", "a-1", "a-2"]
    job.scheduler.hold("b", 10, 1)
    assert job.scheduler.holds["b"].until - time.monotonic() > 2500
    assert job.scheduler.holds["b"].times == 0
    assert hold(job, ["b"]) == {"slots": 1}
    assert sorted(job.names()) == ["b-0", "b-1", "b-2"]


@pytest.mark.parametrize("queue", [DownloaderAwarePriorityQueue, ScrapyPriorityQueue])
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_change_of_a_stopped_job_leaves_the_rest(make, tmp_path, is_killed, queue):
    """How it was stopped, what the filter lacks, its order and the counts of its budget."""
    job = make(BLOOM_BUDGET={"*": 3}, SCHEDULER_PRIORITY_QUEUE=queue).pushed(*"abcd")
    fail(job, "c")
    job.drop() if is_killed else job.close("shutdown")
    folder = tmp_path / "job"
    query(folder, "UPDATE job SET unreleased = '[\"00\"]'")
    rest = (
        "SELECT clean, unreleased, taken_over FROM job",
        "SELECT * FROM budget",
        "SELECT sql FROM sqlite_master",
    )
    before = [query(folder, each) for each in rest]
    assert before[0][0][:2] == (not is_killed, '["00"]')
    desk = SqliteDesk(folder)
    assert desk.hold(["x"], inf) == 1
    assert desk.change(Filter(KEPT), "retry").states.total() == 2
    assert [query(folder, each) for each in rest] == before


def fail(job, *names):
    """Let the next requests fail, which are of these names."""
    for name in names:
        popped = job.pop()
        assert name_of(popped) == name
        job.scheduler.ledger.fail(popped, FailedRequest.of(popped, "down"))
        job.done(popped)
    job.commit()


@pytest.mark.parametrize("reason", ["finished", "shutdown"])
def test_what_is_retried_at_the_end_keeps_the_round_open(make_round, tmp_path, reason):
    """Its feeds go on with the next start, which asks it alone. A job that has finished without it
    says so, and leaves it to that start."""
    job = make_round(**FIFO).started("a")
    fail(job, "a")
    answer = order(job, "retry", states=KEPT)
    job.close(reason)
    assert answer.exists() == (reason != "finished")
    assert job.stat("scheduler/failed") == (reason == "finished")
    assert make_round(**FIFO).started("a").finish() == ["a"]
    assert dropped(answer) == (1, 0)
    assert phases(tmp_path / "job") == [(1, "over")]


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
    assert job.stat("scheduler/recovered") == (action == "retry")  # what has failed is not
    assert dropped(answer) == (1, 0)
    assert job.names() == (["b"] if action == "retry" else [])
    assert job.scheduler.ledger.store.failed == (2 if action == "retry" else 1)


class Late(DurableScheduler):
    """Gets an order to retry, or has a full disk, when nothing is left."""

    def has_pending_requests(self):
        if super().has_pending_requests():
            return True
        if self.crawler.settings.getbool("FULL"):
            self._file.commit = raising(OSError("full"))
        elif not self._job.orders.exists():
            give(self._job, Order(Filter(KEPT), "retry"))
        return False


@pytest.mark.parametrize(("full", "reason"), [(0, "finished"), (1, "bloom_error")])
def test_a_crawl_has_finished_when_the_last_is_done(tmp_path, full, reason):
    """Which is an order that comes when nothing is left, and a commit, which may fail."""
    with RestingSite({"a": (rest := Rest(0.0, after=0))}) as site:
        rest.goes_on = lambda: rest.asked == 1
        settings = {"JOBDIR": "job", "BLOOM_HOLD": False, "RETRY_ENABLED": False, "FULL": full}
        settings["SCHEDULER"] = "tests.crawl.test_orders.Late"
        crawl = crawl_rests(tmp_path, site, {"a": 1}, **settings).end()
        assert (crawl.reason, site.pages("a")) == (reason, [] if full else ["0"]), crawl.log
        assert "stays in the job" not in crawl.log


COUNT = ["queue", "count", "job", "--json"]


@pytest.mark.slow
def test_a_running_crawl_holds_and_drops_what_is_ordered(run, tmp_path):
    """Starts a crawl and five commands: it fetches what it has in flight, and nothing else; an
    empty hold keeps none open."""
    with RestingSite({}) as site:
        settings = {"JOBDIR": "job", "BLOOM_HOLD": False, "CONCURRENT_REQUESTS": 4}
        crawl = crawl_rests(tmp_path, site, {"slow": 200}, **settings)
        wait_until((tmp_path / "job" / "requests.sqlite").exists)
        wait_until(lambda: run(tmp_path, *COUNT).json["in_flight"] == 4)
        found = run(tmp_path, "queue", "hold", "job", "slow", "--json").json
        assert found == {"stands": False, "held": ["slow"], "seconds": None}
        site.go.set()
        wait_until(lambda: run(tmp_path, *COUNT).json["in_flight"] == 0)
        found = run(tmp_path, *COUNT).json
        assert (found["pending"], found["held_slots"]) == (196, {"slow": None})
        assert "1 host held" in run(tmp_path, "info", "job").out
        drop = ["queue", "drop", "job", "--url", "*/slow/*", "--yes", "--json"]
        answer = {"stands": False, "dropped": 196, "later": 0, "in_flight": 0, "unknown": 0}
        assert run(tmp_path, *drop).json == answer
        assert crawl.end().reason == "finished"
        assert len(site.pages("slow")) == 4
