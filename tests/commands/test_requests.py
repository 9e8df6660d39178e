"""What each command about requests answers, in text and with --json, to a job and to a crawl."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from scrapy_bloom.crawl.codec import Codec
from scrapy_bloom.jobdir import JobDirectory
from scrapy_bloom.sqlite import desk as orders
from tests.contracts.test_desk import STARTS, CrawlPlace, JobPlace, failed
from tests.crawl.engine import query
from tests.fakes import raising
from tests.stored import stored

PAGE = f"{STARTS}w0"
NONE = {"later": 0, "in_flight": 0, "unknown": 0}
FIGURES = {"pending": 3, "later": 1, "held": 1, "failed": 1, "held_slots": {"b": None}}
COUNTED = NONE | {"pending": 4, "later": 1, "held_slots": {}}
BY_SLOT = [{"slot": "a", "pending": 3}, {"slot": "b", "pending": 1}]
HELD = ["held: a for 3,600 s, c for 3,600 s", "a  3", "b  1"]
STORY = [
    ("queue count", ["{}: 4 pending requests, 1 of them later"]),
    ("queue count --by slot --json", {**COUNTED, "by": BY_SLOT}),
    ("queue list --url */w1", [f"{STARTS}w1", "  slot a, priority 1, parse"]),
    ("queue hold a c --for 1h", ["{}: 2 download slots held for 3,600 s: a, c"]),
    ("queue count --by slot", ["{}: 4 pending requests, 1 of them later", *HELD]),
    ("queue hold a --for 1h --json", {"stands": False, "held": ["a"], "seconds": 3600}),
    ("queue release a", ["{}: 1 download slot released: a"]),
    ("queue release --slot * --json", {"stands": False, "released": ["c"]}),
    ("queue hold b --json", {"stands": False, "held": ["b"], "seconds": None}),
    ("queue hold b", ["{}: 1 download slot held until its release: b"]),
    ("queue drop --slot a --url */w2", "1 pending request of {} would be dropped for good: say"),
    ("queue drop --slot b --keep", "1 pending request of {} would fail, for the reason dropped"),
    ("queue drop --url */w2 --yes --json", {"stands": False, "dropped": 1, **NONE}),
    ("queue drop --url */w1 --yes", ["{}: dropped 1 pending request"]),
    ("drop --reason callback", "1 failed request of {} would be forgotten for good: say so"),
    ("retry --reason nothing", ["0 requests pending again, for {asks}"]),
    ("retry --reason callback --json", {"retried": 1}),
    (f"check {PAGE} --json", [{"url": PAGE, "seen": True}]),
    (f"check {PAGE}", [f"seen {PAGE}"]),
]


class Place:
    """A job or a crawl; `asks` is who asks failed requests again."""

    def __init__(self, run, made, *words):
        self.run, self.made, self.words = run, made, words
        self.is_job = words == ("job",)
        self.name = "job" if self.is_job else f"{words[0]} {words[2]}"
        self.asks = "the next start" if self.is_job else "all workers"

    def __call__(self, command):
        """Run a command there, of which the words are split at spaces."""
        name, *more = command.split()
        action = [more.pop(0)] if name == "queue" else []
        return self.run(Path(), name, *action, self.words[0], *more, *self.words[1:])

    def lines(self, *lines):
        return [line.format(self.name, asks=self.asks) for line in lines]


@pytest.fixture(params=["job", "redis"])
def make(request, run, tmp_path, monkeypatch):
    """A function that makes one of which requests have failed, and others wait, by slot."""
    monkeypatch.chdir(tmp_path)
    if request.param == "job":
        place = Place(run, JobPlace(tmp_path, is_running=False), "job")
    else:
        server, key = map(request.getfixturevalue, ("redis_server", "key"))
        place = Place(run, CrawlPlace(server.url, key), server.url, "--key", key)

    def make(*failures, waiting=()):
        for each in failures:
            place.made.fail(each)
        for number, slot in enumerate(waiting):
            place.made.push(f"w{number}", slot, priority=number % 2)
        return place

    yield make
    place.made.close()


def test_a_story(make):
    """Lines of text, figures as JSON, or a refusal."""
    place = make(failed("z1", "callback"), failed("z2", "http"), waiting="aaa")
    place.made.push("later", "b", 1000)
    place.made.desk()
    for command, expected in STORY:
        found = place(command)
        if isinstance(expected, str):
            assert found.refusal.startswith(*place.lines(expected))
        elif "--json" in command:
            assert (found.status, found.json) == (0, expected), command
        else:
            assert (found.status, found.lines) == (0, place.lines(*expected))
    top, info = place("top --json").json, place("info --json").json
    assert {name: top[name] for name in FIGURES} == FIGURES
    assert top["failed_by_reason"] == {"http": 1}
    assert top["pending_by_slot"]["a"] in {1, 2}  # in a job what was retried, too
    info = info.get("queue") or info
    (listed,) = place("queue list --url */later --json").json
    assert listed.keys() == {"url", "method", "slot", "priority", "callback", "due"}
    for due in (top["next_due"], info["next_due"], listed["due"]):
        assert 900 < due <= 1000
    assert (info["later"], info["held"]) == (1, 1)


MANY = 7
FAILURES = [
    failed("0", "callback")._replace(method="POST"),
    *(failed(f"{n}", "download/timeout")._replace(status=None) for n in range(1, MANY + 1)),
]
FAILURES = [each._replace(exception="TimeoutError: " + "x" * 200) for each in FAILURES]


def test_failed_requests_are_listed_retried_and_forgotten(make, monkeypatch):
    """By reason with counts, the most frequent first, a few of them; all with --json, or their URLs
    alone, in a new file; and there is no way back from a drop, so it has to be said."""
    place = make(*FAILURES)
    place.made.desk()
    found = place("failed --json").json
    time = found[0]["time"]  # in Redis by its clock
    assert time == "2026-11-21T18:40:00+00:00" or not place.is_job
    assert found[0] == {**FAILURES[0]._asdict(), "time": time}
    urls = [each["url"] for each in place("failed --json --url */7 */1").json]
    assert urls == [f"{STARTS}1", f"{STARTS}7"]
    lines = place("failed").lines
    assert lines[0] == f"{place.name}: 8 failed requests"
    last = f"    3 attempts, last {found[1]['time']}, TimeoutError: " + "x" * 86 + "…"
    assert lines[2:5] == ["download/timeout  7", f"  {STARTS}1", last]
    assert {"  and 2 more (all with --json, or -o FILE)", f"  POST {STARTS}0"} <= {*lines}
    assert place("failed --reason callback").lines[0] == f"{place.name}: 1 failed request"
    told = place("info").out
    assert "8 failed requests ('scrapy bloom failed')" in told or "failed     8 requests" in told
    assert place("failed --url */[01] -o -").lines == [f"{STARTS}0", f"{STARTS}1"]
    assert place("failed --url */[01] -o - --json").json == [f"{STARTS}0", f"{STARTS}1"]
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", raising(OSError(28, "No space left on device")))
        assert "urls.txt: No space left on device" in place("failed -o urls.txt").refusal
    assert place("failed -o urls.txt").lines == ["wrote 8 URLs to urls.txt"]
    assert place("failed -o two.txt --json").json == {"file": "two.txt", "urls": 8}
    assert len(Path("urls.txt").read_text().splitlines()) == MANY + 1
    assert "is there already" in place("failed -o urls.txt").refusal
    retried = f"7 requests pending again, for {place.asks}"
    assert place("retry --reason download/*").lines == [retried]
    assert place("top --json").json["pending"] == MANY
    assert "for good: say so with --yes" in place("drop --reason callback").refusal
    assert place("drop --yes").lines == ["forgot 1 failed request"]
    assert place("failed --json").json == []
    assert place("queue count --json").json["pending"] == MANY


HOSTILE = failed("\x1b]0;owned\x07\n", "login \x1b[2J\u202e\u200f\ufeffpage")
HOSTILE = HOSTILE._replace(exception="LookupError: \x9b31m\nhttp://example.com/faked")
SHOWN_URL, SHOWN_REASON = r"/\x1b]0;owned\x07\n", r"login \x1b[2J\u202e\u200f\ufeffpage"


def test_pages_do_not_write_to_the_terminal(make, monkeypatch):
    """Whatever they have put into a URL, a reason, an exception or a slot; nor do errors, as where
    the name of a job comes out of a script."""
    monkeypatch.setenv("COLUMNS", "120")
    place = make(HOSTILE, waiting=["\x1b[1mslot"])
    place.made.desk()
    for command, shown in (
        ("failed", [SHOWN_URL, SHOWN_REASON, r"\x9b31m"]),
        ("failed -o -", [SHOWN_URL]),
        ("top --once", [SHOWN_REASON, r"\x1b[1mslot"]),
    ):
        out = place(command).out
        assert [char for char in out.replace("\n", "") if not char.isprintable()] == []
        assert [text for text in shown if text not in out] == []
    place("failed -o urls.txt")
    assert Path("urls.txt").read_bytes() == rf"http://example.com{SHOWN_URL}".encode() + b"\n"
    (found,) = place("failed --json").json
    assert (found["url"], found["reason"]) == (HOSTILE.url, HOSTILE.reason)
    assert r"\x1b[2Jjob holds no requests" in place.run(Path(), "failed", "\x1b[2Jjob").refusal


@pytest.mark.parametrize("detail", ["{", "{}", '{"reason": 1}', "[" * 100_000, 5, b"\0", None])
def test_a_damaged_record_hides_no_other(run, tmp_path, detail):
    """It has failed as unreadable, under its own URL or without one, and can be retried."""
    payload = Codec(None, 10**6).dump({"url": PAGE}, "").payload
    with stored(tmp_path / "requests.sqlite") as job:
        for each in (payload, b"request"):
            job.fail(FAILURES[0]._replace(url="", reason="login page"), each)
    query(tmp_path, "UPDATE request SET detail = ? WHERE id = 1", detail)
    damaged, other = run(tmp_path, "failed", ".", "--json").json
    assert [each["reason"] for each in (damaged, other)] == ["unreadable", "login page"]
    assert damaged["url"] == PAGE
    assert damaged["exception"].startswith("the record of its failure is damaged")
    assert run(tmp_path, "top", ".", "--json").json["failed_by_reason"]["unreadable"] == 1
    assert "  POST (a URL that cannot be read)" in run(tmp_path, "failed", ".").lines
    assert run(tmp_path, "failed", ".", "-o", "-").lines == [PAGE]
    assert run(tmp_path, "retry", ".", "--json").json == {"retried": 2}


@pytest.mark.parametrize("ends", [False, True])
def test_a_running_job_gets_an_order(run, tmp_path, monkeypatch, ends):
    """Which stands until one carries it out, and leaves nothing; none waits for a job that has
    ended. What has failed can be listed, and retried unless it could not be serialized."""
    with stored(tmp_path / "requests.sqlite") as job:
        for each in FAILURES:
            job.fail(each)
    query(tmp_path, "UPDATE request SET payload = x'' WHERE id = 3")
    monkeypatch.setattr(orders, "PATIENCE", 0.1)
    monkeypatch.setattr(orders, "FORGOTTEN", -1)
    (folder := JobDirectory(tmp_path).orders).mkdir()
    for killed in ("1-ab.done", ".ab.bloom.tmp"):
        (folder / killed).touch()
    with ExitStack() as lock:
        lock.enter_context(JobDirectory(tmp_path).locked())
        for command in (["retry", "--reason", "callback"], ["drop", "--url", "*/1", "--yes"]):
            told = run(tmp_path, command[0], ".", *command[1:])
            assert told.status == 0
            assert told.out.startswith("the order stands: the process that has . has not answered")
        assert len(run(tmp_path, "failed", ".", "--json").json) == MANY + 1
        assert [each.suffix for each in folder.iterdir()] == [".json"] * 2
        if ends:
            monkeypatch.setattr(orders, "PATIENCE", 3600)
            real = orders.give
            monkeypatch.setattr(orders, "give", lambda *order: (real(*order), lock.close())[0])
            assert run(tmp_path, "retry", ".").out.startswith("the order stands")
        lock.close()
        retried = f"{(MANY - 2) * (not ends)} requests pending again, for the next start"
        assert run(tmp_path, "retry", ".").lines == [retried]
    assert {each.suffix for each in folder.iterdir()} == {".done"}
    assert run(tmp_path, "queue", "count", ".", "--json").json["pending"] == MANY - 1
