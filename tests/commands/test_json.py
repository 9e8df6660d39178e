"""What each command about requests answers with --json, and in text, to a job and to a crawl."""

import pytest

from tests.contracts.test_desk import CrawlPlace, JobPlace, failed

pytest_plugins = ["tests.redis.fixtures"]

PAGE = "http://example.com/w0"
NONE = {"later": 0, "in_flight": 0, "unknown": 0}
STORY = [
    ("queue count", ["{}: 4 pending requests, 1 of them later"]),
    (
        "queue count --by slot --json",
        {
            **NONE,
            "pending": 4,
            "later": 1,
            "held_slots": {},
            "by": [{"slot": "a", "pending": 3}, {"slot": "b", "pending": 1}],
        },
    ),
    ("queue list --url */w1", ["http://example.com/w1", "  slot a, priority 1"]),
    ("queue hold a c --for 1h", ["{}: 2 download slots held for 3,600 s: a, c"]),
    ("queue count --by slot", ["{}: 4 pen", "held: a for 3,600 s, c for 3,600 s", "a  3", "b  1"]),
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
    ("retry --reason nothing", ["0 requests pending again, "]),
    ("retry --reason callback --json", {"retried": 1}),
    (f"check {PAGE} --json", [{"url": PAGE, "seen": True}]),
    (f"check {PAGE}", [f"seen {PAGE}"]),
]
FIGURES = {"pending": 3, "later": 1, "held": 1, "failed": 1, "held_slots": {"b": None}}


@pytest.fixture(params=["job", "redis"])
def place(request, run, tmp_path):
    """A job and a crawl in Redis, and a function that runs a command there."""
    if request.param == "job":
        made, words = JobPlace(tmp_path, is_running=False), ["job"]
    else:
        server, key = map(request.getfixturevalue, ("redis_server", "key"))
        made, words = CrawlPlace(server.url, key), [server.url, "--key", key]
    for name in ("z1", "z2"):
        made.fail(failed(name, "callback" if name == "z1" else "http"))
    for number in range(3):
        made.push(f"w{number}", priority=number % 2)
    made.push("later", "b", 1000)
    made.desk()

    def there(command):
        name, *more = command.split()
        action = [more.pop(0)] if name == "queue" else []
        return run(tmp_path, name, *action, words[0], *more, *words[1:])

    there.name = words[0] if words == ["job"] else f"{words[0]} {words[2]}"
    yield there
    made.close()


def test_a_story(place):
    """Lines of text, figures as JSON, or a refusal."""
    for command, expected in STORY:
        found = place(command)
        if isinstance(expected, str):
            assert found.refusal.startswith(expected.format(place.name))
        elif "--json" in command:
            assert (found.status, found.json) == (0, expected), command
        else:
            starts = [line.format(place.name) for line in expected]
            assert found.status == 0
            for line, start in zip(found.lines, starts, strict=True):
                assert line.startswith(start)
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
    (record,) = place("failed --json").json
    assert record.keys() == {*failed("x", "http")._fields}
