"""The pending requests of a job or a crawl, as `scrapy bloom queue` counts and lists them."""

import os
from collections import Counter
from dataclasses import dataclass, field
from datetime import date

import pytest
from scrapy import Request

from scrapy_bloom.crawl.choice import Filter
from scrapy_bloom.redis.desk import RedisDesk
from tests.crawl.engine import Job, query
from tests.redis.workers import StoreWorker, let_pass, lobby_from, seeded
from tests.seeded import seed_of

pytest_plugins = ["tests.redis.fixtures"]
pytestmark = pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS")

SLOTS = ["a.example", "b.example", "odd[1].example", "shop"]
MANY = 48


def requests():
    """Yield requests of four slots, three priorities and two callbacks."""
    for number in range(MANY):
        meta = {"download_slot": SLOTS[number % 4 if number % 3 else 0]}
        kind = "page" if number % 5 else "calendar"
        yield Request(f"http://x.example/{kind}/{number}", meta=meta, priority=number % 3 - 1)


def properties(found):
    """Return what of a request a command may ask for."""
    return {
        "url": found.url,
        "slot": found.meta["download_slot"],
        "priority": found.priority,
        "callback": found.callback.__name__ if found.callback else "parse",
        "later": False,
    }


@dataclass
class Place:
    """A job or a crawl: the arguments that name it, its `pending` and its dispatched requests."""

    arguments: list
    pending: list = field(default_factory=list)
    in_flight: list = field(default_factory=list)


def fill_job(folder, dispatched=0, **settings):
    """Open a job with the requests, so many of them dispatched; return it and the place."""
    job = Job(folder, SCHEDULER_DISK_QUEUE="scrapy.squeues.PickleFifoDiskQueue", **settings).open()
    place = Place([str(folder)])
    for number, request in enumerate(requests()):
        request = request.replace(callback=None if number % 2 else job.spider.parse_other)
        is_later = number % 11 == 0
        place.pending.append({**properties(request), "later": is_later})
        if is_later:
            request.meta["bloom_not_before"] = 1000
        assert job.scheduler.enqueue_request(request)
    job.commit()
    for _ in range(dispatched):
        found = properties(job.pop())
        place.pending.remove(found)
        place.in_flight.append(found)
    return job, place


@pytest.fixture(params=["stopped", "killed", "running", "busy", "redis", "lobby", "oldest"])
def place(request, tmp_path):
    """A job in each state, and crawls in Redis of few slots and many, newest or oldest next."""
    if request.param in {"redis", "lobby", "oldest"}:
        yield from _crawl(request)
        return
    dispatched = {"stopped": 0, "killed": 30, "running": 7, "busy": MANY - 8}[request.param]
    job, place = fill_job(tmp_path / "job", dispatched)
    if request.param == "busy":
        job.scheduler.ledger.store._file.commit()
    if request.param in {"stopped", "killed"}:
        place.pending += place.in_flight
        place.in_flight = []
        job.close() if request.param == "stopped" else job.drop()
    else:
        # so that the figures are noted
        job.scheduler.ledger.ends = True
        job.commit()
    yield place
    job.drop()


def _crawl(request):
    server, key = request.getfixturevalue("redis_server"), request.getfixturevalue("key")
    if request.param != "redis":
        lobby_from(request.getfixturevalue("monkeypatch"), 2)
    fifo = {"SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue"}
    worker = StoreWorker(server.url, key, **fifo if request.param == "oldest" else {})
    place = Place([server.url, "--key", key])
    worker.store.hold("shop", 1000, 1)
    for number, found in enumerate(requests()):
        is_later = number % 11 == 0
        worker.store.push(found, (), 1000 if is_later else None)
        place.pending.append({**properties(found), "later": is_later})
        worker.exchange()
    for _ in range(2):
        worker.next()
    worker.exchange()
    for claim in worker.store.claims.all.values():
        found = properties(worker.codec.load(claim))
        place.pending.remove(found)
        place.in_flight.append(found)
    # one that was lost with two workers
    lost = place.in_flight[0]
    packed = worker.codec.dump(
        Request(lost["url"], meta={"download_slot": lost["slot"]}, priority=lost["priority"])
    )
    slot, priority = packed.slot.encode(), packed.priority.encode()
    record = "cmsgpack.pack({ARGV[1], ARGV[2], '2' .. ARGV[3], 0})"
    script = f"redis.call('RPUSH', KEYS[1], {record})"
    server.command("EVAL", script, 1, f"{worker.key}:quarantined", priority, slot, packed.payload)
    place.pending.append(lost)
    yield place
    worker.close()


def test_what_is_selected_is_counted_and_listed(run, tmp_path, place):
    """By slot, callback and priority, by globs and names; what is in flight is counted apart."""
    for options, is_selected in (
        (["--by", "slot"], lambda _: True),
        (["--by", "priority", "--slot", "?.example"], lambda each: each["slot"][1:] == ".example"),
        (["--by", "slot", "--slot", "odd*", "shop"], lambda each: each["slot"][0] in "os"),
        (["--by", "callback", "--url", "*/calendar/*"], lambda each: "calendar" in each["url"]),
        (["--by", "slot", "--callback", "parse"], lambda each: each["callback"] == "parse"),
        (
            ["--by", "priority", "--slot", "a.example", "--url", "*[0-4]"],
            lambda each: each["slot"] == "a.example" and each["url"][-1] in "01234",
        ),
    ):
        by = options[1]
        found = run(tmp_path, "queue", "count", *place.arguments, *options, "--json").json
        expected = Counter(each[by] for each in place.pending if is_selected(each))
        assert {each[by]: each["pending"] for each in found["by"]} == expected, options
        assert found["pending"] == expected.total()
        assert found["in_flight"] == sum(map(is_selected, place.in_flight)), options
        later = sum(is_selected(each) and each["later"] for each in place.pending)
        assert (found["later"], found["unknown"]) == (later, 0), options
    command = ["queue", "count", *place.arguments, "--by", "path", "--limit", "2"]
    rows = run(tmp_path, *command, "--json").json["by"]
    kinds = Counter(each["url"][7:].rpartition("/")[0] + "/" for each in place.pending)
    assert {each["path"]: each["pending"] for each in rows} == {
        kind if count > 1 else "": count for kind, count in kinds.items()
    }
    assert all(each["example"].startswith("http://" + each["path"]) for each in rows)
    command = ["queue", "list", *place.arguments]
    found = run(tmp_path, *command, "--limit", MANY, "--json").json
    key = sorted({"url", "slot", "priority", "callback"})
    assert Counter(tuple(each[name] for name in key) for each in found) == Counter(
        tuple(each[name] for name in key) for each in place.pending
    )
    assert sum(each["due"] is not None for each in found) == sum(
        each["later"] for each in place.pending
    )
    text = run(tmp_path, *command)
    assert len(text.lines) == 2 * min(20, len(place.pending))
    assert text.lines[0] == found[0]["url"]
    assert f"slot {found[0]['slot']}" in text.lines[1]
    for action in ("count", "list"):
        assert run(tmp_path, "queue", action, *place.arguments).status == 0
        assert run(tmp_path, "queue", action, *place.arguments, "--slot", "nowhere").status == 1


def test_a_trap_is_seen_by_path_and_by_parameter(run, tmp_path):
    """With an example of each, the largest first; a path ends in a slash, or is one page."""
    job = Job(tmp_path / "job").open()
    for number in range(60):
        path = f"calendar/{number}?day={number}" if number < 50 else f"?p=1&day=2&n={number}"
        job.push(path)
    job.commit()
    job.scheduler._file.commit()
    command = ["queue", "count", "job", "--by"]
    assert [*map(str.split, run(tmp_path, *command, "path").lines[1:])] == [
        ["example.com/calendar/", "50", "http://example.com/calendar/10?day=10"],
        ["example.com/", "10", "http://example.com/?p=1&day=2&n=50"],
    ]
    found = run(tmp_path, *command, "path", "--limit", "1").lines[1:]
    assert [*map(str.split, found)][1] == [
        "(elsewhere)",
        "10",
        "http://example.com/?p=1&day=2&n=50",
    ]
    found = run(tmp_path, *command, "parameter", "--limit", "2")
    assert [*map(str.split, found.lines[1:])] == [
        ["day", "60", "http://example.com/calendar/0?day=0"],
        ["p", "10", "http://example.com/?p=1&day=2&n=50"],
        ["and", "1", "more", "(--limit", "N,", "or", "all", "with", "--json)"],
    ]
    rows = run(tmp_path, *command, "parameter", "--json").json["by"]
    assert [(each["parameter"], each["pending"]) for each in rows] == [
        ("day", 60),
        ("p", 10),
        ("n", 10),
    ]


def test_what_cannot_be_read_is_told(run, tmp_path):
    """A damaged row; of one with objects the URL is read without making them."""
    job, _ = fill_job(tmp_path / "job")
    for name in ("odd", "torn"):
        url = f"http://x.example/{name}"
        job.scheduler.enqueue_request(Request(url, cb_kwargs={"day": date.today()}))
    job.close()
    torn = "(SELECT MAX(id) FROM request)"
    query(
        tmp_path / "job" / "requests.sqlite",
        f"UPDATE request SET payload = substr(payload, 1, 20) WHERE id = {torn}",
    )
    found = run(tmp_path, "queue", "count", "job", "--url", "*/torn")
    assert found.status == 1
    assert "1 request cannot be read" in found.out
    assert run(tmp_path, "queue", "count", "job", "--url", "*/odd").status == 0
    assert run(tmp_path, "queue", "count", "job", "--json").json["pending"] == MANY + 2
    listed = run(tmp_path, "queue", "list", "job", "--limit", 100).out
    assert "(a URL that cannot be read)" in listed
    by = run(tmp_path, "queue", "count", "job", "--by", "callback").out
    assert "(cannot be read)" in by


def test_options_that_do_not_belong_are_refused(run, tmp_path):
    """One line each."""
    for given, said in (
        (["hold", "."], "say what to hold: a SLOT, or globs with --slot"),
        (["release", "."], "say what to release"),
        (
            ["hold", ".", "a", "--url", "*"],
            "--url goes with count and list and drop, not with hold",
        ),
        (["hold", ".", "a", "--for", "soon"], "--for is 'soon'"),
        (["hold", ".", "a\udcff"], "is no download slot"),
        (["release", ".", "a", "--for", "5m"], "--for goes with hold"),
        (["drop", ".", "a", "--yes"], "SLOT goes with hold and release"),
        (["hold", "nowhere", "a"], "nowhere"),
    ):
        assert said in run(tmp_path, "queue", *given).refusal
    assert "--by goes with count" in run(tmp_path, "queue", "list", ".", "--by", "slot").refusal


def of_slot(worker, slot, count):
    for number in range(count):
        worker.enqueue(f"{slot}-{number}", meta={"download_slot": slot})
    worker.exchange()


def next_slots(worker):
    """Return how many requests `worker` gets of each slot, which it leaves unfinished."""
    requests = [*iter(worker.next, None)]
    return Counter(each.meta["download_slot"] for each in requests)


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
    one.store.hold("a", 1000, 3)
    one.exchange()
    assert [*held()] == ["a"]
    assert queue("hold", "a", "c").json == {"stands": False, "held": ["a", "c"], "seconds": None}
    # as if the answer to a probe of its own had come
    one.store.release("a")
    one.exchange()
    assert held() == {"a": None, "c": None}
    assert next_slots(one) == {"b": 2}
    assert next_slots(other) == {}
    assert "2 hosts held" in there("info").out
    assert queue("release", "--slot", "d").status == 1
    assert queue("release", "--slot", "[abc]").json["released"] == ["a", "c"]
    assert next_slots(other) == {"a": 4}
    of_slot(one, "e", 20)
    found = queue("hold", "f", "--slot", "?", "--for", "1h").json
    assert (found["held"], found["seconds"]) == (["f", "e"], 3600)
    assert all(3000 < left <= 3600 for left in held().values())
    one.exchange()
    assert next_slots(one) == {}
    let_pass(one, 3601)
    assert next_slots(one)["e"] > 1
    assert held() == {}


def test_no_call_holds_more_slots_than_a_hundred(there, join, redis_server):
    """A glob over many is several calls, between which workers have theirs."""
    join()
    slots = [f"slot{number}" for number in range(250)]
    for action, words, did in (("hold", slots, "held"), ("release", ["--slot", "*"], "released")):
        before = redis_server.calls()["time"]
        done = there(f"queue {action}", *words, "--json")
        assert len(done.json[did]) == 250
        assert redis_server.calls()["time"] - before >= 3


def test_drop_in_a_crawl_in_redis(there, join, key):
    """As in a job: with --yes only; what workers have claimed stays."""
    worker = join()
    of_slot(worker, "a", 9)
    of_slot(worker, "b", 1)
    assert "say what to drop" in there("queue drop", "--yes").refusal
    refusal = there("queue drop", "--slot", "a", "--keep").refusal
    assert "would fail, for the reason dropped: say so with --yes" in refusal
    found = there("queue drop", "--slot", "a", "--url", "*-[38]", "--keep", "--yes", "--json")
    in_flight = sum(
        each.payload.endswith((b"3", b"8")) for each in worker.store.claims.all.values()
    )
    expected = {"stands": False, "dropped": 2 - in_flight, "later": 0, "unknown": 0}
    assert found.json == {**expected, "in_flight": in_flight}
    found = there("queue drop", "--slot", "*", "--yes")
    assert in_flight == 1
    count = 8 - len(worker.store.claims.all) + in_flight
    assert f"{key}: dropped {count} pending requests; 4 more are in flight, and stay" in found.out
    assert there("queue drop", "--slot", "*", "--yes").status == 1
    assert there("retry", "--reason", "dropped").status == 0
    worker.exchange()
    assert worker.store.waiting == 2 - in_flight


def test_it_finds_a_list_behind_an_older_one(there, join, redis_server):
    """Which is in no ring before the older one has been claimed up to the mark at its end."""
    worker = join()
    of_slot(worker, "a", 12)
    newer, ring = f"{worker.key}:pending:0:a", f"{worker.key}:slots:0"
    entry = redis_server.command("LINDEX", newer, 0)
    redis_server.command("RENAME", newer, f"{newer}\0")
    redis_server.command("RPUSH", f"{newer}\0", "")
    redis_server.command("RPUSH", newer, entry)
    redis_server.command("LSET", ring, 0, "a\0")
    for options in ([], ["--url", "*"]):
        found = there("queue count", "--json", *options).json
        assert (found["pending"], found["in_flight"]) == (9, 4)


def test_a_slot_that_is_no_text(there, join, redis_server):
    """Its requests are counted, verified and dropped: a name in Redis may have any bytes."""
    worker = join()
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


@pytest.mark.parametrize("order", ["Lifo", "Fifo"])
def test_it_finds_each_request_of_many_slots(there, join, monkeypatch, order):
    """Whatever workers have made of their lists: each is pending or claimed, once."""
    lobby_from(monkeypatch, 3)
    chance = seeded(seed_of("QUEUE_SEED"))
    disk_queue = f"scrapy.squeues.Pickle{order}DiskQueue"
    worker = join(SCHEDULER_DISK_QUEUE=disk_queue)
    count = 0
    for number in range(200):
        if chance.random() < 0.7:
            slot = f"slot{min(chance.randrange(9), chance.randrange(9))}"
            worker.enqueue(f"{number}", meta={"download_slot": slot}, priority=chance.randrange(2))
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
            worker = join(SCHEDULER_DISK_QUEUE=disk_queue)
        if number % 10 == 9:
            worker.exchange()
            worker.exchange()
            found = RedisDesk(worker.client, worker.key).count(Filter(urls=("*",)))
            assert found.by.total() + found.in_flight == count
    worker.exchange()
    worker.exchange()
    for options in ([], ["--url", "*"]):
        found = there("queue count", "--json", *options).json
        assert found["pending"] + found["in_flight"] == count
        assert found["in_flight"] == len(worker.store.claims.all)
