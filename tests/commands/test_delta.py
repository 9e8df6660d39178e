"""The subcommands for a delta store."""

import dbm.dumb
import itertools
import json
import os
import pickle
import shutil
import sqlite3
import time
from contextlib import closing
from datetime import datetime
from pathlib import Path

import pytest
from scrapy import Request
from scrapy.utils.request import fingerprint

from scrapy_bloom.delta import slice_store
from scrapy_bloom.delta.file_store import FileDeltaStore
from scrapy_bloom.delta.settings import key_of_text
from scrapy_bloom.delta.slice_store import SliceStore
from scrapy_bloom.delta.slices import Shape, read
from scrapy_bloom.delta.table import Row
from scrapy_bloom.quantities import DAY

pytestmark = pytest.mark.skipif(os.name != "posix", reason="filter files need Linux or macOS")

URL = "http://example.com/a"
DAYS = ("-s", "BLOOM_DELTA_DAYS=30")


def make(folder, *ages, url=URL, identity=""):
    """Return a delta store with slices in which `url` was marked so many days ago."""
    memory = SliceStore(folder, Shape(1000, period=30 * DAY, identity=identity))
    memory.add((fingerprint(Request(url)), time.time() - age * DAY) for age in ages)
    return folder


def files_in(folder):
    """Return the files below a folder, with their bytes."""
    paths = sorted(folder.rglob("*"))
    return {str(path): path.read_bytes() if path.is_file() else None for path in paths}


def test_what_a_delta_store_knows_can_be_looked_at(run, tmp_path):
    """Its slices, with their times, and which URLs it knows."""
    make(tmp_path / "memory", 0, 20)
    info = run(tmp_path, "info", "memory", "--json").json
    assert [each["pages"] for each in info["slices"]] == [1, 1]
    assert info["days"] == 30
    shown = run(tmp_path, "info", "memory").lines[0]
    assert shown == "memory, a delta store: 2 slices, kept for 30 days"
    checked = run(tmp_path, "check", "memory", URL, f"{URL}b", *DAYS)
    assert checked.lines == [f"seen {URL}", f"new  {URL}b"]
    assert checked.status == 1
    verified = run(tmp_path, "verify", "memory")
    assert "can be trusted" in verified.out
    assert "ok   memory/1: the series of layers is complete (1)" in verified.lines


def in_table(folder, *ages, url=URL, identity=""):
    """Return a delta store with a table in which `url` was marked so many days ago."""
    memory = FileDeltaStore(folder, Shape(period=30 * DAY, identity=identity))
    memory.add((fingerprint(Request(url)), time.time() - age * DAY) for age in ages)
    memory.close()
    return folder


def test_a_table_can_be_looked_at(run, tmp_path):
    """Alone, and beside the slices of 0.2.0."""
    in_table(tmp_path / "memory", 3)
    info = run(tmp_path, "info", "memory", "--json").json
    assert (info["days"], info["table"]["pages"], info["slices"]) == (30, 1, [])
    assert info["table"]["oldest"] == info["table"]["newest"]
    lines = run(tmp_path, "info", "memory").lines
    assert lines[0] == "memory, a delta store: 1 page, kept for 30 days"
    assert lines[-1].split()[0] == "table"
    make(tmp_path / "memory", 0, url=f"{URL}b")
    lines = run(tmp_path, "info", "memory").lines
    assert lines[0] == "memory, a delta store: 1 page and 1 slice, kept for 30 days"
    assert run(tmp_path, "check", "memory", URL, f"{URL}b", *DAYS).status == 0
    assert run(tmp_path, "check", "memory", URL, "-s", "BLOOM_DELTA_DAYS=2").status == 1
    verified = run(tmp_path, "verify", "memory")
    assert "ok   memory/delta.sqlite: 1 page, each readable" in verified.lines
    digest = b"d" * 16
    with closing(FileDeltaStore(tmp_path / "memory", Shape())) as memory:
        memory.add([Row(b"k" * 20, None, digest)])
    assert "1 page and 1 digest and 1 slice" in run(tmp_path, "info", "memory").lines[0]
    assert run(tmp_path, "info", "memory", "--json").json["table"]["digests"] == 1
    assert f"{(b'k' * 20).hex()}  -  {digest.hex()}" in run(tmp_path, "delta", "list", "memory").out
    count = run(tmp_path, "delta", "count", "memory").lines
    assert count == ["memory: 1 page and 1 mark in 1 slice and 1 digest"]
    forget = ("forget", "memory", "--key", (b"k" * 20).hex())
    assert run(tmp_path, "delta", *forget).lines == ["forgot 1 page"]
    assert run(tmp_path, "delta", *forget).lines == ["forgot 0 pages"]
    # options may stand anywhere among the words
    forgotten = run(tmp_path, "delta", "forget", "memory", "--json", URL, f"{URL}1")
    assert forgotten.json == {"pages": 1, "dropped": []}


def test_a_damaged_table_cannot_be_trusted(run, tmp_path):
    """The file is named; so is a row that a crawl would not have written."""
    path = in_table(tmp_path / "memory", 3) / "delta.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("INSERT INTO pages VALUES ('key', 1, NULL)")
    assert "BAD  memory/delta.sqlite: 1 rows are" in run(tmp_path, "verify", "memory").out
    path.write_bytes(path.read_bytes()[:4096] + bytes(8192))
    before = files_in(tmp_path)
    result = run(tmp_path, "verify", "memory")
    assert "BAD  memory/delta.sqlite: " in result.out
    assert result.refusal == "memory cannot be trusted"
    for command in ["info"], ["check", URL], ["delta", "--older", "1d"]:
        refusal = run(tmp_path, command[0], "memory", *command[1:]).refusal
        assert "memory/delta.sqlite cannot be read" in refusal
    assert files_in(tmp_path) == before
    assert run(tmp_path, "clear", "memory", "--yes").status == 0
    assert not path.exists()


def test_marks_are_counted_and_listed(run, tmp_path):
    """With their times; what a slice has cannot be listed, and is said to be there."""
    in_table(in_table(tmp_path / "memory", 3), 9, url=f"{URL}b")
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
    make(tmp_path / "memory", 0, url=f"{URL}c")
    lines = run(tmp_path, "delta", "count", "memory").lines
    assert lines == ["memory: 2 pages and 1 mark in 1 slice"]
    count = run(tmp_path, "delta", "count", "memory", "--json").json
    assert count == {"pages": 2, "digests": 0, "slices": {"0": 1}}
    listed = run(tmp_path, "delta", "list", "memory", "--json")
    found = [json.loads(line) for line in listed.out.splitlines()]
    assert {each["key"] for each in found} == {
        fingerprint(Request(url)).hex() for url in (URL, f"{URL}b")
    }
    assert listed.error == "1 slice of memory cannot be listed\n"


def test_pages_are_forgotten(run, tmp_path, monkeypatch):
    """By URL, by key and by age; a slice that has one stays as it is."""
    for number in range(5):
        in_table(tmp_path / "memory", 1, url=f"{URL}{number}")
    make(tmp_path / "memory", 0, url=f"{URL}s")
    slices = files_in(tmp_path / "memory" / "0")
    (tmp_path / "urls.txt").write_text(f"{URL}1\n")
    with (tmp_path / "urls.txt").open() as urls:
        monkeypatch.setattr("sys.stdin", urls)
        words = ("forget", "memory", f"{URL}0", f"{URL}0", "-", f"{URL}s", f"{URL}unknown")
        assert run(tmp_path, "delta", *words).lines == ["forgot 3 pages"]
    key = fingerprint(Request(f"{URL}2")).hex()
    forgotten = run(tmp_path, "delta", "forget", "memory", "--key", key, "--json")
    assert forgotten.json == {"pages": 1, "dropped": []}
    checked = run(tmp_path, "check", "memory", *(f"{URL}{n}" for n in "01234s"))
    assert [line.split()[0] for line in checked.lines] == ["new"] * 3 + ["seen"] * 2 + ["new"]
    assert files_in(tmp_path / "memory" / "0") == slices
    assert run(tmp_path, "info", "memory", "--json").json["days"] == 30
    assert run(tmp_path, "delta", "memory", "--older", "12h").lines == ["forgot 2 pages"]
    assert run(tmp_path, "delta", "count", "memory", "--json").json["pages"] == 0


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["memory"], "say what to do: count MEMORY, list MEMORY, or forget MEMORY with"),
        (["memory", URL], "say what to do: "),
        (["forget", "memory"], "say what to forget: URLs, - for standard input, --key HEX"),
        (["forget", "memory", "--key", "ab"], "--key is 'ab': it must be 40 hexadecimal digits"),
        (["forget", "memory", "--key", "x" * 40], "it must be 40 hexadecimal digits, as 'delta"),
        (["forget", "memory", "nothing"], "'nothing' has no fingerprint"),
        (["list", "memory", URL], "list takes no URLs and no --key: 'scrapy bloom check' knows"),
        (["count", "."], "holds no delta store (there is no delta.sqlite and no delta.json)"),
        (["list", "redis://127.0.0.1:1/0"], "give --spider NAME in its project, or -s BLOOM_DELTA"),
    ],
)
def test_what_delta_cannot_do_is_refused(run, tmp_path, words, refusal):
    """In one line, and nothing is changed."""
    in_table(tmp_path / "memory", 1)
    before = files_in(tmp_path)
    assert refusal in run(tmp_path, "delta", *words).refusal
    assert files_in(tmp_path) == before


def test_tables_are_merged(run, tmp_path):
    """Each page is in one of them."""
    in_table(tmp_path / "one", 1)
    make(in_table(tmp_path / "two", 2, url=f"{URL}b"), 2, url=f"{URL}c")
    before = files_in(tmp_path / "two")
    assert run(tmp_path, "merge", "one", "two").lines == ["one has 1 slice and 2 pages now"]
    assert run(tmp_path, "check", "one", URL, f"{URL}b", f"{URL}c", *DAYS).status == 0
    assert files_in(tmp_path / "two") == before
    assert run(tmp_path, "delta", "one", "--older", "36h").lines[0].startswith("forgot 1 page")


def test_a_damaged_slice_cannot_be_trusted(run, tmp_path):
    """The file is named."""
    layer = make(tmp_path / "memory", 0) / "0" / "0.bloom"
    layer.write_bytes(layer.read_bytes()[:-100])
    result = run(tmp_path, "verify", "memory")
    assert "BAD  memory/0/0.bloom" in result.out
    assert result.refusal == "memory cannot be trusted"


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("name", "../two"),
        ("name", "x"),
        ("name", 0),
        ("start", "soon"),
        ("longest", 10**400),
        ("slices", [[]]),
        ("version", "\x1b[2J"),
    ],
)
def test_a_list_of_slices_that_cannot_be_read_is_refused(run, tmp_path, where, value):
    """By each command, which names it and removes nothing; `clear` removes all."""
    make(tmp_path / "memory", 0)
    make(tmp_path / "two", 0)
    path = tmp_path / "memory" / "delta.json"
    found = json.loads(path.read_bytes())
    (found if where in found else found["slices"][0])[where] = value
    path.write_text(json.dumps(found))
    before = files_in(tmp_path)
    for command in (
        ["info"],
        ["check", URL],
        ["verify"],
        ["delta", "--older", "1d"],
        ["merge", "two"],
    ):
        refusal = run(tmp_path, command[0], "memory", *command[1:]).refusal
        assert "memory/delta.json cannot be read" in refusal
        assert refusal.isprintable()
        assert files_in(tmp_path) == before
    assert run(tmp_path, "clear", "memory", "--yes").status == 0


def test_a_missing_slice_is_named(run, tmp_path):
    """With the remedy, by what has to read it; a time that no calendar has is shown as it is."""
    make(tmp_path / "memory", 0)
    path = tmp_path / "memory" / "delta.json"
    path.write_text(path.read_text().replace('"met": null', '"met": null, "start": -1e300'))
    assert "-1e+300 s" in run(tmp_path, "info", "memory").out
    shutil.rmtree(tmp_path / "memory" / "0")
    for command in ["info"], ["check", URL]:
        refusal = run(tmp_path, command[0], "memory", *command[1:]).refusal
        assert "memory/0 is missing: restore it from a backup" in refusal
    assert "BAD  memory/0: the slice is missing" in run(tmp_path, "verify", "memory").lines


def test_forgetting(run, tmp_path):
    """By age, or everything."""
    make(tmp_path / "memory", 1, 20)
    assert "--older is 'soon'" in run(tmp_path, "delta", "memory", "--older", "soon").refusal
    assert "forgot 1 slice" in run(tmp_path, "delta", "memory", "--older", "10d").out
    assert run(tmp_path, "check", "memory", URL, *DAYS).status == 0
    assert "say so with --yes" in run(tmp_path, "clear", "memory").refusal
    assert run(tmp_path, "clear", "memory", "--yes").status == 0
    assert run(tmp_path, "check", "memory", URL, *DAYS).status == 1
    assert "holds no delta store" in run(tmp_path, "delta", ".", "--older", "1d").refusal


def test_merging_delta_stores(run, tmp_path):
    """One gets the slices of the others, which stay as they are; a directory that is no slice
    stays, too."""
    make(tmp_path / "one", 1)
    make(tmp_path / "two", 2, url=f"{URL}b")
    notes = tmp_path / "one" / "1" / "notes.txt"
    notes.parent.mkdir()
    notes.write_text("mine")
    before = files_in(tmp_path / "two")
    assert run(tmp_path, "merge", "one", "two").lines == ["one has 2 slices now"]
    assert run(tmp_path, "check", "one", URL, f"{URL}b", *DAYS).status == 0
    assert run(tmp_path, "verify", "one").status == 0
    assert "no other delta store" in run(tmp_path, "merge", "one", "one").refusal
    assert notes.read_text() == "mine"
    assert files_in(tmp_path / "two") == before


def test_a_memory_of_another_fingerprinter_is_not_merged(run, tmp_path):
    """Its marks are of no use; into an empty memory they go."""
    make(tmp_path / "one", 1)
    make(tmp_path / "two", 2, identity="another")
    before = files_in(tmp_path / "one")
    refusal = run(tmp_path, "merge", "one", "two").refusal
    assert "two has marks of another fingerprinter than one" in refusal
    assert files_in(tmp_path / "one") == before
    assert run(tmp_path, "clear", "one", "--yes").status == 0
    assert run(tmp_path, "merge", "one", "two").lines == ["one has 1 slice now"]
    assert read(tmp_path / "one").identity == "another"


def test_a_memory_is_not_merged_while_it_is_written_to(run, tmp_path, monkeypatch):
    """A copy of it might be of two moments."""
    make(tmp_path / "one", 1)
    make(tmp_path / "two", 1)
    before = files_in(tmp_path / "one")
    monkeypatch.setattr(slice_store, "_PATIENCE", 0.0)
    with SliceStore(tmp_path / "two", Shape()).locked():
        assert "two is in use by process" in run(tmp_path, "merge", "one", "two").refusal
    assert files_in(tmp_path / "one") == before


def test_a_merge_that_fails_changes_nothing(run, tmp_path):
    """A damaged slice is named, whatever was copied before it is gone."""
    make(tmp_path / "one", 1)
    make(tmp_path / "two", 1, 20)
    before = files_in(tmp_path / "one")
    (tmp_path / "two" / "1" / "0.bloom").write_bytes(b"torn")
    assert "two/1/0.bloom" in run(tmp_path, "merge", "one", "two").refusal
    assert files_in(tmp_path / "one") == before


@pytest.mark.parametrize(
    ("module", "name", "number"),
    [
        (shutil, "copyfile", 3),
        (shutil, "copyfile", 4),
        (os, "fsync", 3),
        (Path, "rename", 2),
        (slice_store, "write", 1),
    ],
)
def test_a_merge_that_is_killed_can_be_run_again(run, tmp_path, module, name, number):
    """The store is as it was, and nothing of the first merge is left after the second."""
    make(tmp_path / "one", 1)
    make(tmp_path / "two", 1, 20, url=f"{URL}b")
    assert die_in_a_merge(tmp_path, module, name, number) == 9
    assert run(tmp_path, "check", "one", URL, f"{URL}b", *DAYS).lines[1] == f"new  {URL}b"
    assert run(tmp_path, "merge", "one", "two").lines == ["one has 3 slices now"]
    assert run(tmp_path, "check", "one", URL, f"{URL}b", *DAYS).status == 0
    names = {each.name for each in read(tmp_path / "one").slices} | {"delta.json", "lock"}
    assert {path.name for path in (tmp_path / "one").iterdir()} == names


def die_in_a_merge(folder, module, name, number):
    """Merge two into one in a process that dies when it calls a function for the n-th time,
    of a copy when the file has only got its name; return its status."""
    function, calls = getattr(module, name), itertools.count(1)

    def dying(*arguments, **options):
        if next(calls) == number:
            if name == "copyfile":
                Path(arguments[1]).touch()
            os._exit(9)
        return function(*arguments, **options)

    if (child := os.fork()) == 0:
        setattr(module, name, dying)
        try:
            FileDeltaStore(folder / "one", Shape()).merge([folder / "two"])
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_importing_what_deltafetch_has_remembered(run, tmp_path):
    """Fingerprints of either kind, and keys of the spider's own, with their times."""
    old = time.time() - 40 * DAY
    with closing(dbm.dumb.open(str(tmp_path / "spider.db"), "c")) as database:
        database[fingerprint(Request(URL))] = str(time.time())
        database[fingerprint(Request(f"{URL}2")).hex()] = str(time.time())
        database[b"article 7"] = str(time.time())
        database[fingerprint(Request(f"{URL}3"))] = str(old)
    assert run(tmp_path, "add", "memory", "spider.db", *DAYS).status == 0
    checked = run(tmp_path, "check", "memory", URL, f"{URL}2", f"{URL}3", *DAYS)
    assert [line.split()[0] for line in checked.lines] == ["seen", "seen", "new"]
    memory = FileDeltaStore(tmp_path / "memory", Shape(1000, period=30 * DAY))
    memory.open()
    assert memory.knows(key_of_text("article 7"))


@pytest.mark.parametrize("time_of", ["nan", "-inf", "inf", "-1e300", "1e300", "soon", ""])
def test_what_can_be_no_time_is_now(run, tmp_path, time_of):
    """Such a page is known as others are, and the slices can be shown."""
    with closing(dbm.dumb.open(str(tmp_path / "spider.db"), "c")) as database:
        database[fingerprint(Request(URL))] = time_of
        database[fingerprint(Request(f"{URL}2"))] = str(time.time() - DAY)
    for days in (DAYS, ()):
        assert run(tmp_path, "add", f"memory{days}", "spider.db", *days).status == 0
        assert run(tmp_path, "check", f"memory{days}", URL, f"{URL}2", *DAYS).status == 0
        info = run(tmp_path, "info", f"memory{days}", "--json").json
        assert all(0 < each["start"] <= each["end"] for each in info["slices"])
        assert run(tmp_path, "info", f"memory{days}").status == 0


def test_a_time_that_is_no_number_in_a_memory_of_020(run, tmp_path):
    """It was taken from an import: the slice has expired, and all else is as it was."""
    make(tmp_path / "memory", 1)
    make(tmp_path / "memory", 12, url=f"{URL}b")
    path = tmp_path / "memory" / "delta.json"
    found = json.loads(path.read_text())
    found["slices"][0] |= {"start": float("nan"), "end": float("nan")}
    path.write_text(json.dumps(found))
    assert "2 slices" in run(tmp_path, "info", "memory").out
    checked = run(tmp_path, "check", "memory", URL, f"{URL}b", *DAYS)
    assert [line.split()[0] for line in checked.lines] == ["new", "seen"]


def test_urls_on_standard_input_are_checked(run, tmp_path, monkeypatch):
    """As with a filter: a list, without its empty lines; what is no URL is refused."""
    make(tmp_path / "memory", 1)
    (tmp_path / "urls.txt").write_text(f"{URL}\n\n{URL}b\n")
    with (tmp_path / "urls.txt").open() as urls:
        monkeypatch.setattr("sys.stdin", urls)
        checked = run(tmp_path, "check", "memory", "-", *DAYS)
    assert checked.lines == [f"seen {URL}", f"new  {URL}b"]
    assert "'nothing' has no fingerprint" in run(tmp_path, "check", "memory", "nothing").refusal


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
        ["delta", "memory", "--older", "1d"],
    ):
        refusal = run(tmp_path, *command, "-s", f"BLOOM_DELTA_DAYS={days}").refusal
        assert refusal.startswith(f"BLOOM_DELTA_DAYS is {days!r}: it must be a number of days")
    assert files_in(tmp_path) == before


def test_importing_urls_into_a_memory(run, tmp_path):
    """As into a filter."""
    make(tmp_path / "memory", 1)
    (tmp_path / "urls.txt").write_text(f"{URL}x\n{URL}y\n")
    assert run(tmp_path, "add", "memory", "urls.txt", *DAYS).status == 0
    assert run(tmp_path, "check", "memory", f"{URL}x", f"{URL}y", *DAYS).status == 0


def test_what_crawl_once_has_remembered_is_refused(run, tmp_path):
    """Its keys are of no use any more."""
    with closing(sqlite3.connect(tmp_path / "spider.sqlite")) as database:
        database.execute("CREATE TABLE requests (key TEXT PRIMARY KEY, value BLOB)")
        database.execute("INSERT INTO requests VALUES ('00' , ?)", (pickle.dumps(1.0),))
        database.commit()
    refusal = run(tmp_path, "add", "memory", "spider.sqlite").refusal
    assert "scrapy-crawl-once, whose keys are the fingerprints of Scrapy before 2.7" in refusal
