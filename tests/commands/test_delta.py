"""The subcommands for a memory between crawls."""

import dbm.dumb
import os
import pickle
import sqlite3
import time
from contextlib import closing

import pytest
from scrapy import Request
from scrapy.utils.request import fingerprint

from scrapy_bloom.delta.memory import Memory
from scrapy_bloom.delta.settings import DAY, key_of_text
from scrapy_bloom.delta.slices import Shape

pytestmark = pytest.mark.skipif(os.name != "posix", reason="filter files need Linux or macOS")

URL = "http://example.com/a"
DAYS = ("-s", "BLOOM_DELTA_DAYS=30")


def make(folder, *ages, url=URL):
    """Return a memory in which `url` was marked so many days ago."""
    memory = Memory(folder, Shape(1000, period=30 * DAY))
    memory.add((fingerprint(Request(url)), time.time() - age * DAY) for age in ages)
    return folder


def test_what_a_memory_knows_can_be_looked_at(run, tmp_path):
    """Its slices, with their times, and which URLs it knows."""
    make(tmp_path / "memory", 0, 20)
    info = run(tmp_path, "info", "memory", "--json").json
    assert [each["pages"] for each in info["slices"]] == [1, 1]
    assert "a memory between crawls: 2 slices" in run(tmp_path, "info", "memory").out
    checked = run(tmp_path, "check", "memory", URL, f"{URL}b", *DAYS)
    assert checked.lines == [f"seen {URL}", f"new  {URL}b"]
    assert checked.status == 1
    assert "can be trusted" in run(tmp_path, "verify", "memory").out


def test_a_damaged_slice_cannot_be_trusted(run, tmp_path):
    """The file is named."""
    layer = make(tmp_path / "memory", 0) / "0" / "0.bloom"
    layer.write_bytes(layer.read_bytes()[:-100])
    assert "BAD  memory/0/0.bloom" in run(tmp_path, "verify", "memory").out


def test_forgetting(run, tmp_path):
    """By age, or everything."""
    make(tmp_path / "memory", 1, 20)
    assert "--older is 'soon'" in run(tmp_path, "delta", "memory", "--older", "soon").refusal
    assert "forgot 1 slice" in run(tmp_path, "delta", "memory", "--older", "10d").out
    assert run(tmp_path, "check", "memory", URL, *DAYS).status == 0
    assert "say so with --yes" in run(tmp_path, "clear", "memory").refusal
    assert run(tmp_path, "clear", "memory", "--yes").status == 0
    assert run(tmp_path, "check", "memory", URL, *DAYS).status == 1
    assert "holds no memory" in run(tmp_path, "delta", ".", "--older", "1d").refusal


def test_merging_memories(run, tmp_path):
    """One gets the slices of the others."""
    make(tmp_path / "one", 1)
    make(tmp_path / "two", 2, url=f"{URL}b")
    assert run(tmp_path, "merge", "one", "two").lines == ["one has 2 slices now"]
    assert run(tmp_path, "check", "one", URL, f"{URL}b", *DAYS).status == 0
    assert "no other memory" in run(tmp_path, "merge", "one", "one").refusal


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
    memory = Memory(tmp_path / "memory", Shape(1000, period=30 * DAY))
    memory.open()
    assert memory.knows(key_of_text("article 7"))


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
