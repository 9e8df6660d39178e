"""The subcommands for a delta store."""

import dbm.dumb
import itertools
import json
import os
import sqlite3
import time
from contextlib import closing
from datetime import datetime

import pytest
from scrapy import Request
from scrapy.utils.request import fingerprint

from scrapy_bloom.delta import file_store
from scrapy_bloom.delta.file_store import FileDeltaStore, Row
from scrapy_bloom.delta.settings import Lifetime, key_of_text
from scrapy_bloom.periods import DAY
from tests.commands.command_line import files_in

pytestmark = pytest.mark.skipif(os.name != "posix", reason="filter files need Linux or macOS")

URL = "http://example.com/a"
DAYS = ("-s", "BLOOM_DELTA_DAYS=30")


def make(folder, age, url=URL, identity=""):
    """Return a delta store in which `url` was marked so many days ago."""
    memory = FileDeltaStore(folder, Lifetime(30 * DAY, identity))
    memory.add([(fingerprint(Request(url)), time.time() - age * DAY)])
    memory.close()
    return folder


def test_what_a_delta_store_knows_can_be_looked_at(run, tmp_path):
    """Its pages with their times, its digests, and which URLs it knows."""
    make(make(tmp_path / "memory", 3), 20, url=f"{URL}b")
    info = run(tmp_path, "info", "memory", "--json").json
    assert (info["days"], info["table"]["pages"]) == (30, 2)
    assert 16 * DAY < info["table"]["newest"] - info["table"]["oldest"] < 18 * DAY
    lines = run(tmp_path, "info", "memory").lines
    assert lines[0] == "memory, a delta store: 2 pages, kept for 30 days"
    assert [line.split()[0] for line in lines[2:]] == ["marked", "memory"]
    checked = run(tmp_path, "check", "memory", "-", *DAYS, stdin=f"{URL}\n\n{URL}c\n")
    assert checked.lines == [f"seen {URL}", f"new  {URL}c"]
    assert checked.status == 1
    assert run(tmp_path, "check", "memory", URL, "-s", "BLOOM_DELTA_DAYS=2").status == 1
    verified = run(tmp_path, "verify", "memory")
    assert "can be trusted" in verified.out
    assert "ok   memory/delta.sqlite: 2 pages, each readable" in verified.lines
    digest = b"d" * 16
    with closing(FileDeltaStore(tmp_path / "memory", Lifetime())) as memory:
        memory.add([Row(b"k" * 20, None, digest)])
    assert "2 pages and 1 digest" in run(tmp_path, "info", "memory").lines[0]
    assert run(tmp_path, "info", "memory", "--json").json["table"]["digests"] == 1
    assert f"{(b'k' * 20).hex()}  -  {digest.hex()}" in run(tmp_path, "delta", "list", "memory").out
    assert run(tmp_path, "delta", "count", "memory").lines == ["memory: 2 pages and 1 digest"]
    forget = ("forget", "memory", "--key", (b"k" * 20).hex())
    assert run(tmp_path, "delta", *forget).lines == ["forgot 1 page"]
    assert run(tmp_path, "delta", *forget).lines == ["forgot 0 pages"]
    # options may stand anywhere among the words
    forgotten = run(tmp_path, "delta", "forget", "memory", "--json", URL, f"{URL}1")
    assert forgotten.json == {"pages": 1, "dropped": []}


def test_a_damaged_table_cannot_be_trusted(run, tmp_path):
    """The file is named; so is a row that a crawl would not have written."""
    path = make(tmp_path / "memory", 3) / "delta.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("INSERT INTO pages VALUES ('key', 1, NULL, NULL, NULL)")
    assert "BAD  memory/delta.sqlite: 1 rows are" in run(tmp_path, "verify", "memory").out
    path.write_bytes(path.read_bytes()[:4096] + bytes(8192))
    before = files_in(tmp_path)
    result = run(tmp_path, "verify", "memory")
    assert "BAD  memory/delta.sqlite: " in result.out
    assert result.refusal == "memory cannot be trusted"
    for command in ["info", "memory"], ["check", "memory", URL], ["delta", "list", "memory"]:
        refusal = run(tmp_path, *command).refusal
        assert "memory/delta.sqlite cannot be read" in refusal
    assert files_in(tmp_path) == before
    assert run(tmp_path, "clear", "memory", "--yes").status == 0
    assert not path.exists()


def test_marks_are_counted_and_listed(run, tmp_path):
    """With their times, those that no calendar has in seconds."""
    make(make(tmp_path / "memory", 3), 9, url=f"{URL}b")
    assert run(tmp_path, "delta", "count", "memory").lines == ["memory: 2 pages"]
    assert run(tmp_path, "delta", "count", "memory", "--older", "5d").lines == ["memory: 1 page"]
    listed = run(tmp_path, "delta", "list", "memory", "--older", "5d")
    (line,) = listed.lines
    key, time_, digest = line.split()
    assert bytes.fromhex(key) == fingerprint(Request(f"{URL}b"))
    age = time.time() - datetime.fromisoformat(time_).timestamp()
    assert 9 * DAY <= age < 9 * DAY + 900
    assert digest == "-"
    assert listed.error == ""
    count = run(tmp_path, "delta", "count", "memory", "--json").json
    assert count == {"pages": 2, "digests": 0, "slices": {}}
    listed = run(tmp_path, "delta", "list", "memory", "--json")
    found = [json.loads(line) for line in listed.out.splitlines()]
    assert {each["key"] for each in found} == {
        fingerprint(Request(url)).hex() for url in (URL, f"{URL}b")
    }
    with closing(sqlite3.connect(tmp_path / "memory" / "delta.sqlite")) as table, table:
        table.execute("UPDATE pages SET time = 1e300")
    listed = run(tmp_path, "delta", "list", "memory")
    assert (listed.status, listed.lines[0].split("  ")[1]) == (0, "1e+300 s")


def test_pages_are_forgotten(run, tmp_path):
    """By URL, by key and by age."""
    for number in range(5):
        make(tmp_path / "memory", 1, url=f"{URL}{number}")
    make(tmp_path / "memory", 0, url=f"{URL}s")
    words = ("forget", "memory", f"{URL}0", f"{URL}0", "-", f"{URL}s", f"{URL}unknown")
    assert run(tmp_path, "delta", *words, stdin=f"{URL}1\n").lines == ["forgot 3 pages"]
    key = fingerprint(Request(f"{URL}2")).hex()
    forgotten = run(tmp_path, "delta", "forget", "memory", "--key", key, "--json")
    assert forgotten.json == {"pages": 1, "dropped": []}
    checked = run(tmp_path, "check", "memory", *(f"{URL}{n}" for n in "01234s"))
    assert [line.split()[0] for line in checked.lines] == ["new"] * 3 + ["seen"] * 2 + ["new"]
    assert run(tmp_path, "info", "memory", "--json").json["days"] == 30
    assert run(tmp_path, "delta", "forget", "memory", "--older", "12h").lines == ["forgot 2 pages"]
    assert run(tmp_path, "delta", "count", "memory", "--json").json["pages"] == 0


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["forget", "memory"], "say what to forget: URLs, - for standard input, --key HEX"),
        (["forget", "memory", "--key", "ab"], "--key is 'ab': it must be 40 hexadecimal digits"),
        (["forget", "memory", "--key", "x" * 40], "it must be 40 hexadecimal digits, as 'delta"),
        # nor is anything forgotten of what stands beside it
        *(
            (["forget", "memory", *more, "nothing"], "'nothing' has no fingerprint")
            for more in ([], [URL], ["--key", fingerprint(Request(URL)).hex(), "--older=1s"])
        ),
        (["forget", "memory", "--older", "soon"], "--older is 'soon'"),
        (["forget", ".", "--older", "1d"], "holds no delta store"),
        (["list", "memory", URL], "list takes no URLs and no --key: 'scrapy bloom check' knows"),
        (["count", "."], "holds no delta store (there is no delta.sqlite)"),
        (["list", "redis://127.0.0.1:1/0"], "give --spider NAME in its project, or -s BLOOM_DELTA"),
    ],
)
def test_what_delta_cannot_do_is_refused(run, tmp_path, words, refusal):
    """In one line, and nothing is changed."""
    make(tmp_path / "memory", 1)
    before = files_in(tmp_path)
    assert refusal in run(tmp_path, "delta", *words).refusal
    assert files_in(tmp_path) == before


def test_tables_are_merged(run, tmp_path):
    """Each page is in one of them; where one cannot be read, nothing is changed."""
    make(tmp_path / "one", 1)
    make(make(tmp_path / "two", 2, url=f"{URL}b"), 2, url=f"{URL}c")
    before = files_in(tmp_path / "two")
    make(tmp_path / "torn", 1).joinpath("delta.sqlite").write_bytes(b"torn" * 999)
    before_one = files_in(tmp_path / "one")
    assert "no other delta store" in run(tmp_path, "merge", "one", "one").refusal
    refusal = run(tmp_path, "merge", "one", "two", "torn").refusal
    assert "torn/delta.sqlite cannot be read" in refusal
    assert files_in(tmp_path / "one") == before_one
    assert run(tmp_path, "merge", "one", "two").lines == ["one has 3 pages now"]
    assert run(tmp_path, "check", "one", URL, f"{URL}b", f"{URL}c", *DAYS).status == 0
    assert files_in(tmp_path / "two") == before
    forget = ("delta", "forget", "one", "--older", "36h")
    assert run(tmp_path, *forget).lines == ["forgot 2 pages"]


def test_a_memory_of_another_fingerprinter_is_not_merged(run, tmp_path):
    """Its marks are of no use; into an empty memory they go."""
    make(tmp_path / "one", 1)
    make(tmp_path / "two", 2, identity="another")
    before = files_in(tmp_path / "one")
    refusal = run(tmp_path, "merge", "one", "two").refusal
    assert "two has marks of another fingerprinter than one" in refusal
    assert files_in(tmp_path / "one") == before
    assert "say so with --yes" in run(tmp_path, "clear", "one").refusal
    assert files_in(tmp_path / "one") == before
    assert run(tmp_path, "clear", "one", "--yes").status == 0
    assert run(tmp_path, "check", "one", URL, *DAYS).status == 1
    assert run(tmp_path, "merge", "one", "two").lines == ["one has 1 page now"]
    with closing(FileDeltaStore(tmp_path / "one", Lifetime())) as one:
        one.look()
        assert one.identity == "another"


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_merge_that_is_killed_can_be_run_again(run, tmp_path, monkeypatch, number):
    """The second one adds what the first has not."""
    make(tmp_path / "one", 1)
    for url in (f"{URL}b", f"{URL}c", f"{URL}d"):
        make(tmp_path / "two", 1, url=url)
    monkeypatch.setattr(file_store, "_AT_ONCE", 1)
    commits = itertools.count(1)
    if (child := os.fork()) == 0:
        # the pause before each transaction
        monkeypatch.setattr(time, "sleep", lambda _: next(commits) == number and os._exit(9))
        FileDeltaStore(tmp_path / "one", Lifetime()).merge([tmp_path / "two"])
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert run(tmp_path, "check", "one", URL, f"{URL}d", *DAYS).lines[1] == f"new  {URL}d"
    assert run(tmp_path, "merge", "one", "two").lines == ["one has 4 pages now"]
    assert run(tmp_path, "verify", "one").status == 0


def test_importing_what_deltafetch_has_remembered(run, tmp_path):
    """Fingerprints of either kind, and keys of the spider's own, with their times; and URLs."""
    old = time.time() - 40 * DAY
    with closing(dbm.dumb.open(str(tmp_path / "spider.db"), "c")) as database:
        database[fingerprint(Request(URL))] = str(time.time())
        database[fingerprint(Request(f"{URL}2")).hex()] = str(time.time())
        database[b"article 7"] = str(time.time())
        database[fingerprint(Request(f"{URL}3"))] = str(old)
    assert run(tmp_path, "add", "memory", "spider.db", *DAYS).status == 0
    checked = run(tmp_path, "check", "memory", URL, f"{URL}2", f"{URL}3", *DAYS)
    assert [line.split()[0] for line in checked.lines] == ["seen", "seen", "new"]
    memory = FileDeltaStore(tmp_path / "memory", Lifetime(30 * DAY))
    memory.open()
    assert memory.known_until(key_of_text("article 7"))
    memory.close()
    (tmp_path / "urls.txt").write_text(f"{URL}x\n{URL}y\n")
    assert run(tmp_path, "add", "memory", "urls.txt", *DAYS).status == 0
    assert run(tmp_path, "check", "memory", f"{URL}x", f"{URL}y", *DAYS).status == 0


@pytest.mark.parametrize("time_of", ["nan", "-inf", "inf", "-1e300", "1e300", "soon", ""])
def test_what_can_be_no_time_is_now(run, tmp_path, time_of):
    """Such a page is known as others are, and its time can be shown."""
    with closing(dbm.dumb.open(str(tmp_path / "spider.db"), "c")) as database:
        database[fingerprint(Request(URL))] = time_of
        database[fingerprint(Request(f"{URL}2"))] = str(time.time() - DAY)
    for days in (DAYS, ()):
        assert run(tmp_path, "add", f"memory{days}", "spider.db", *days).status == 0
        assert run(tmp_path, "check", f"memory{days}", URL, f"{URL}2", *DAYS).status == 0
        info = run(tmp_path, "info", f"memory{days}", "--json").json
        assert 0 < info["table"]["oldest"] <= info["table"]["newest"] <= time.time()
        assert run(tmp_path, "info", f"memory{days}").status == 0


@pytest.mark.parametrize("days", ["soon", "0", "-1"])
def test_days_that_a_crawl_refuses_are_refused(run, tmp_path, days):
    """With the same words, by each command that uses them, and nothing is changed."""
    make(tmp_path / "memory", 1)
    make(tmp_path / "other", 1)
    (tmp_path / "urls.txt").write_text(URL)
    before = files_in(tmp_path)
    for command in (
        ["check", "memory", URL],
        ["add", "memory", "urls.txt"],
        ["merge", "memory", "other"],
        ["clear", "memory", "--yes"],
        ["delta", "forget", "memory", "--older", "1d"],
    ):
        refusal = run(tmp_path, *command, "-s", f"BLOOM_DELTA_DAYS={days}").refusal
        assert refusal.startswith(f"BLOOM_DELTA_DAYS is {days!r}: it must be a number of days")
    assert files_in(tmp_path) == before
