"""The pending requests of a job or a crawl, as `scrapy bloom queue` counts and lists them."""

from collections import Counter
from datetime import date

import pytest
from scrapy import Request

from scrapy_bloom.crawl.choice import Filter
from scrapy_bloom.redis.desk import RedisDesk
from tests.crawl.engine import Job, query
from tests.redis.workers import FIFO, LIFO, let_pass, lobby_from, seeded
from tests.seeded import seed_of

MANY = 48


@pytest.fixture
def filled(tmp_path):
    """A running job with requests of four slots, three priorities, two callbacks and two kinds of
    page, some of them later and some dispatched; what of each a command tells."""
    job = Job(tmp_path / "job", **FIFO).open()
    told, slots = {}, ["a.example", "b.example", "odd[1].example", "shop"]
    for number in range(MANY):
        slot, priority = slots[number % 4 if number % 3 else 0], number % 3 - 1
        url = f"http://x.example/{'page' if number % 5 else 'calendar'}/{number}"
        meta = {"download_slot": slot, "bloom_not_before": 1000 if number % 11 == 0 else None}
        callback = job.spider.parse_other if priority else None
        request = Request(url, callback, meta=meta, priority=priority)
        assert job.scheduler.enqueue_request(request)
        name = "parse_other" if priority else "parse"
        told[url] = (url, slot, priority, name, number % 11 == 0)
    job.commit()
    in_flight = [told.pop(job.pop().url) for _ in range(7)]
    job.commit()
    yield told.values(), in_flight
    job.drop()


def test_what_is_selected_is_counted_and_listed(run, tmp_path, filled):
    """By slot, callback and priority, by globs and names; what is in flight is counted apart."""
    pending, in_flight = filled
    names = ["url", "slot", "priority", "callback"]
    for by, options, is_selected in (
        ("slot", [], lambda _: True),
        ("priority", ["--slot", "?.example", "odd*"], lambda each: each[1] != "shop"),
        ("callback", ["--url", "*/calendar/*"], lambda each: "calendar" in each[0]),
        ("slot", ["--callback", "parse"], lambda each: each[3] == "parse"),
    ):
        found = run(tmp_path, "queue", "count", "job", "--by", by, *options, "--json").json
        chosen = [*filter(is_selected, pending)]
        expected = Counter(each[names.index(by)] for each in chosen)
        assert {each[by]: each["pending"] for each in found["by"]} == expected, options
        assert found["in_flight"] == sum(map(is_selected, in_flight)), options
        later = sum(each[4] for each in chosen)
        assert (found["pending"], found["later"], found["unknown"]) == (len(chosen), later, 0)
    found = run(tmp_path, "queue", "list", "job", "--limit", MANY, "--json").json
    listed = [(*(each[name] for name in names), each["due"] is not None) for each in found]
    assert sorted(listed) == sorted(pending)
    text = run(tmp_path, "queue", "list", "job")
    assert (len(text.lines), text.lines[0]) == (2 * 20, found[0]["url"])
    assert f"slot {found[0]['slot']}" in text.lines[1]
    for action in ("count", "list"):
        assert run(tmp_path, "queue", action, "job", "--slot", "nowhere").status == 1
    assert run(tmp_path, "info", "job").fields["pending"] == "48 requests, or in flight"


def test_a_trap_is_seen_by_path_and_by_parameter(run, tmp_path):
    """With an example of each, the largest first; a path ends in a slash, or is one page."""
    job = Job(tmp_path / "job").open()
    for number in range(60):
        job.push(f"calendar/{number}?day={number}" if number < 50 else f"?p=1&day=2&n={number}")
    job.commit()
    job.scheduler._file.commit()
    other, first = "http://example.com/?p=1&day=2&n=50", "http://example.com/calendar/{0}?day={0}"

    def rows(*options):
        command = ["queue", "count", "job", "--by", *options]
        return [line.split() for line in run(tmp_path, *command).lines[1:]]

    pages = ["example.com/calendar/", "50", first.format(10)]
    for options in ([], ["--limit", "99"]):
        assert rows("path", *options) == [pages, ["example.com/", "10", other]]
    assert rows("path", "--limit", "1") == [pages, ["(elsewhere)", "10", other]]
    *shown, more = rows("parameter", "--limit", "2")
    assert shown == [["day", "60", first.format(0)], ["p", "10", other]]
    assert " ".join(more) == "and 1 more (--limit N, or all with --json)"
    found = run(tmp_path, "queue", "count", "job", "--by", "parameter", "--json").json["by"]
    assert {each["parameter"]: each["pending"] for each in found} == {"day": 60, "p": 10, "n": 10}
    assert found[0]["example"] == first.format(0)


def test_what_cannot_be_read_is_told(run, tmp_path):
    """A damaged row; of one with objects the URL is read without making them."""
    job = Job(tmp_path / "job").open().pushed("odd", "torn", cb_kwargs={"day": date.today()})
    job.close()
    torn = "(SELECT MAX(id) FROM request)"
    change = f"UPDATE request SET payload = substr(payload, 1, 20) WHERE id = {torn}"
    query(tmp_path / "job", change)
    found = run(tmp_path, "queue", "count", "job", "--url", "*/torn")
    assert (found.status, "1 request cannot be read" in found.out) == (1, True)
    assert run(tmp_path, "queue", "count", "job", "--url", "*/odd").status == 0
    assert run(tmp_path, "queue", "count", "job", "--json").json["pending"] == 2
    assert "(a URL that cannot be read)" in run(tmp_path, "queue", "list", "job").out
    assert "(cannot be read)" in run(tmp_path, "queue", "count", "job", "--by", "callback").out


def test_options_that_do_not_belong_are_refused(run, tmp_path):
    """One line each."""
    for given, said in (
        ("hold .", "say what to hold: a SLOT, or globs with --slot"),
        ("release .", "say what to release"),
        ("hold . a --url *", "--url goes with count and list and drop, not with hold"),
        ("hold . a --for soon", "--for is 'soon'"),
        ("hold . a\udcff", "is no download slot"),
        ("release . a --for 5m", "--for goes with hold"),
        ("drop . a --yes", "SLOT goes with hold and release"),
        ("hold nowhere a", "nowhere"),
        ("list . --by slot", "--by goes with count"),
    ):
        assert said in run(tmp_path, "queue", *given.split(" ")).refusal


def of_slot(worker, slot, count):
    """Let so many requests of a slot wait."""
    worker.send((f"{slot}-{number}" for number in range(count)), slot=slot)


def next_slots(worker):
    """Return how many requests `worker` gets of each slot, which it leaves unfinished."""
    return Counter(each.meta["download_slot"] for each in iter(worker.next, None))


@pytest.mark.parametrize("lobby", [0, 256])
def test_slots_of_a_crawl_in_redis_are_held(there, join, monkeypatch, lobby):
    """For all workers, whose claims go back; no answer to one that has not heard of it ends it."""
    lobby_from(monkeypatch, lobby)

    def queue(action, *slots):
        return there(f"queue {action}", *slots, "--json")

    def held():
        return queue("count").json["held_slots"]

    one, other = (join(capacity=8) for _ in range(2))
    of_slot(one, "a", 4)
    of_slot(one, "b", 2)
    one.exchange()
    assert len(one.store.claims.all) == 6
    assert queue("hold", "a", "c").json["held"] == ["a", "c"]
    # as if the answer to a probe of its own had come
    one.store.release("a")
    one.exchange()
    assert (held(), {*one.held}) == ({"a": None, "c": None}, {"a"})
    assert (next_slots(one), next_slots(other)) == ({"b": 2}, {})
    assert "2 hosts held" in there("info").fields["waiting"]
    assert queue("release", "--slot", "d").status == 1
    assert queue("release", "--slot", "[abc]").json["released"] == ["a", "c"]
    assert next_slots(other) == {"a": 4}
    of_slot(one, "e", 20)
    assert queue("hold", "f", "--slot", "?", "--for", "1h").json["held"] == ["f", "e"]
    one.exchange()
    assert next_slots(one) == {}
    let_pass(one, 3601)
    assert next_slots(one)["e"] > 1


def test_no_call_holds_more_slots_than_a_hundred(there, join, redis_server):
    """A glob over many is several calls, between which workers have theirs."""
    join()
    slots = [f"slot{number}" for number in range(250)]
    for action, words, did in (("hold", slots, "held"), ("release", ["--slot", "*"], "released")):
        before = redis_server.calls()["time"]
        assert len(there(f"queue {action}", *words, "--json").json[did]) == 250
        assert redis_server.calls()["time"] - before >= 3


def test_what_workers_have_claimed_is_not_dropped(there, worker, key):
    """It is told, also where it would be selected; the others may have failed."""
    of_slot(worker, "a", 9)
    assert "say what to drop" in there("queue drop", "--yes").refusal
    found = there("queue drop", "--slot", "a", "--url", "*-[38]", "--keep", "--yes", "--json")
    claims = worker.store.claims.all.values()
    in_flight = sum(each.payload.endswith((b"3", b"8")) for each in claims)
    assert (in_flight, found.json["in_flight"], found.json["dropped"]) == (1, 1, 1)
    dropped = there("queue drop", "--slot", "*", "--yes")
    count = 8 - len(claims)
    assert f"{key}: dropped {count} pending requests; 4 more are in flight, and stay" in dropped.out
    assert there("queue drop", "--slot", "*", "--yes").status == 1
    assert there("retry", "--reason", "dropped", "--json").json == {"retried": 1}


def test_a_slot_that_is_no_text(there, worker, redis_server):
    """Its requests are counted, verified and dropped: a name in Redis may have any bytes."""
    of_slot(worker, "a", 12)
    odd = f"{worker.key}:pending:0:".encode() + b"\xff"
    redis_server.command("RENAME", f"{worker.key}:pending:0:a", odd)
    redis_server.command("LSET", f"{worker.key}:slots:0", 0, b"\xff")
    verified = there("verify")
    assert (verified.status, "is where workers find it" in verified.out) == (0, True)
    for options, name in (([], "pending"), (["--url", "*"], "unknown")):
        found = there("queue count", "--json", *options).json
        assert (found[name], found["in_flight"]) == (8, 4)
    assert there("queue drop", "--slot", "?", "--yes").status == 0
    assert redis_server.command("EXISTS", odd) == 0


@pytest.mark.parametrize("order", [FIFO, LIFO], ids=["oldest", "newest"])
def test_it_finds_each_request_of_many_slots(join, monkeypatch, order):
    """Whatever workers have made of their lists: each is pending or claimed, once."""
    lobby_from(monkeypatch, 3)
    chance, worker, count = seeded(seed_of("QUEUE_SEED")), join(**order), 0
    for number in range(120):
        if chance.random() < 0.7:
            slot = f"slot{min(chance.randrange(9), chance.randrange(9))}"
            worker.enqueue(f"{number}", slot=slot, priority=chance.randrange(2))
            count += 1
        elif (request := worker.next()) is not None and chance.random() < 0.9:
            worker.store.done(request)
            count -= 1
        if chance.random() < 0.5:
            worker.exchange()
        if chance.random() < 0.2:
            # what it has goes back, before all others of its slot
            worker.exchange()
            worker.leave()
            worker = join(**order)
        if number % 8 == 7:
            worker.exchange(2)
            for chosen in (Filter(), Filter(urls=("*",))):
                found = RedisDesk(worker.client, worker.key).count(chosen)
                assert found.by.total() + found.in_flight == count
    assert found.in_flight == len(worker.store.claims.all)
