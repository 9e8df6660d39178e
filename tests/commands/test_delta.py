"""The subcommands for a delta store."""

import dbm.dumb
import itertools
import json
import os
import time
from contextlib import closing
from datetime import datetime

import pytest
from scrapy import Request
from scrapy.utils.request import fingerprint

from scrapy_bloom.amounts import DAY
from scrapy_bloom.delta import file_store
from scrapy_bloom.delta.file_store import FileDeltaStore, Row
from scrapy_bloom.delta.settings import Lifetime, key_of_text
from tests.commands.command_line import files_in
from tests.crawl.engine import query

URL = "http://example.com/a"
DAYS = ("-s", "BLOOM_DELTA_DAYS=30")


def key_of(end=""):
    """Return the fingerprint of the page at `URL` with that end."""
    return fingerprint(Request(URL + end))


def make(folder, age, *ends, identity=""):
    """Return a delta store in which pages were marked so many days ago."""
    memory = FileDeltaStore(folder, Lifetime(30 * DAY, identity))
    memory.add([(key_of(end), time.time() - age * DAY) for end in ends or [""]])
    memory.close()
    return folder


@pytest.fixture
def delta(run, tmp_path):
    """A function that runs `delta` with these words, and returns its lines."""
    return lambda *words, **options: run(tmp_path, "delta", *words, **options).lines


def test_what_a_delta_store_knows_can_be_looked_at(run, tmp_path, delta):
    """Its pages with their times, its digests, and which URLs it knows."""
    make(make(tmp_path / "memory", 3), 20, "b")
    info = run(tmp_path, "info", "memory", "--json").json
    assert (info["days"], info["table"]["pages"]) == (30, 2)
    assert 16 * DAY < info["table"]["newest"] - info["table"]["oldest"] < 18 * DAY
    lines = run(tmp_path, "info", "memory").lines
    assert lines[0] == "memory, a delta store: 2 pages, kept for 30 days"
    assert [line.split()[0] for line in lines[2:]] == ["marked", "memory"]
    checked = run(tmp_path, "check", "memory", "-", *DAYS, stdin=f"{URL}\n\n{URL}c\n")
    assert (checked.lines, checked.status) == ([f"seen {URL}", f"new  {URL}c"], 1)
    assert run(tmp_path, "check", "memory", URL, "-s", "BLOOM_DELTA_DAYS=2").status == 1
    verified = run(tmp_path, "verify", "memory")
    assert "can be trusted" in verified.out
    assert "ok   memory/delta.sqlite: 2 pages, each readable" in verified.lines
    key, digest = b"k" * 20, b"d" * 16
    with closing(FileDeltaStore(tmp_path / "memory", Lifetime())) as memory:
        memory.add([Row(key, None, digest)])
    assert "2 pages and 1 digest" in run(tmp_path, "info", "memory").lines[0]
    assert run(tmp_path, "info", "memory", "--json").json["table"]["digests"] == 1
    assert f"{key.hex()}  -  {digest.hex()}" in delta("list", "memory")
    assert delta("count", "memory") == ["memory: 2 pages and 1 digest"]
    # options may stand anywhere among the words
    forgotten = run(tmp_path, "delta", "forget", "memory", "--json", URL, f"{URL}1")
    assert forgotten.json == {"pages": 1, "dropped": []}


@pytest.mark.parametrize("damage", ["time = 'soon'", "time = x'00'", "digest = 'x'", ""])
def test_a_damaged_table_cannot_be_trusted(run, tmp_path, damage):
    """The file is named; so is a row that a crawl would not have written."""
    path = make(tmp_path / "memory", 3) / "delta.sqlite"
    query(path, "INSERT INTO pages VALUES ('key', 1, NULL, NULL, NULL)")
    assert "BAD  memory/delta.sqlite: 1 rows are" in run(tmp_path, "verify", "memory").out
    if damage:
        query(path, f"UPDATE pages SET {damage}")
    else:
        path.write_bytes(path.read_bytes()[:4096] + bytes(8192))
    before = files_in(tmp_path)
    result = run(tmp_path, "verify", "memory")
    assert "BAD  memory/delta.sqlite: " in result.out
    assert result.refusal == "memory cannot be trusted"
    for command in ["info", "memory"], ["check", "memory", URL], ["delta", "list", "memory"]:
        assert "memory/delta.sqlite cannot be read" in run(tmp_path, *command).refusal
    assert files_in(tmp_path) == before


def test_marks_are_counted_listed_and_forgotten(run, tmp_path, delta):
    """With their times, those that no calendar has in seconds; by URL, by key and by age."""
    make(make(tmp_path / "memory", 3), 9, "b")
    assert delta("count", "memory") == ["memory: 2 pages"]
    assert delta("count", "memory", "--older", "5d") == ["memory: 1 page"]
    (line,) = delta("list", "memory", "--older", "5d")
    key, when, digest = line.split()
    assert (bytes.fromhex(key), digest) == (key_of("b"), "-")
    assert 9 * DAY <= time.time() - datetime.fromisoformat(when).timestamp() < 9 * DAY + 900
    count = run(tmp_path, "delta", "count", "memory", "--json").json
    assert count == {"pages": 2, "digests": 0, "slices": {}}
    found = {json.loads(line)["key"] for line in delta("list", "memory", "--json")}
    assert found == {key_of().hex(), key_of("b").hex()}
    query(tmp_path / "memory" / "delta.sqlite", "UPDATE pages SET time = 1e300")
    assert delta("list", "memory")[0].split("  ")[1] == "1e+300 s"
    make(make(tmp_path / "other", 1, *"01234"), 0, "s")
    words = (f"{URL}0", f"{URL}0", "-", f"{URL}s", f"{URL}unknown", "--key", key_of("2").hex())
    assert delta("forget", "other", *words, stdin=f"{URL}1\n") == ["forgot 4 pages"]
    checked = run(tmp_path, "check", "other", *(f"{URL}{n}" for n in "01234s"))
    assert [line.split()[0] for line in checked.lines] == ["new"] * 3 + ["seen"] * 2 + ["new"]
    assert run(tmp_path, "info", "other", "--json").json["days"] == 30
    assert delta("forget", "other", "--older", "12h") == ["forgot 2 pages"]
    assert delta("count", "other") == ["other: 0 pages"]


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ("delta forget memory", "say what to forget: URLs, - for standard input, --key HEX"),
        ("delta forget memory --key ab", "--key is 'ab': it must be 40 hexadecimal digits"),
        (f"delta forget memory --key {'x' * 40}", "it must be 40 hexadecimal digits, as 'delta"),
        # nor is anything forgotten of what stands beside it
        (f"delta forget memory {URL} nothing", "'nothing' has no fingerprint"),
        (f"delta forget memory --older=1s --key {key_of().hex()} -s A=1 nothing", "has no finge"),
        ("delta forget memory --older soon", "--older is 'soon'"),
        ("delta forget . --older 1d", "holds no delta store"),
        (f"delta list memory {URL}", "list takes no URLs and no --key: 'scrapy bloom check' knows"),
        ("delta count .", "holds no delta store (there is no delta.sqlite)"),
        ("delta list redis://127.0.0.1:1/0", "give --spider NAME in its project, or -s BLOOM_D"),
        # with the words of a crawl, by each command that uses them
        *(
            (f"{words} -s BLOOM_DELTA_DAYS={days}", f"BLOOM_DELTA_DAYS is {days!r}: it must be a")
            for words in (f"check memory {URL}", "merge memory other", "clear memory --yes")
            for days in ("soon", "0", "-1")
        ),
        ("add memory urls.txt -s BLOOM_DELTA_DAYS=0", "must be a number of days"),
        ("delta forget memory --older 1d -s BLOOM_DELTA_DAYS=0", "must be a number of days"),
    ],
)
def test_what_cannot_be_done_is_refused(run, tmp_path, words, refusal):
    """In one line, and nothing is changed."""
    make(tmp_path / "memory", 1)
    make(tmp_path / "other", 1)
    (tmp_path / "urls.txt").write_text(URL)
    before = files_in(tmp_path)
    assert refusal in run(tmp_path, *words.split()).refusal
    assert files_in(tmp_path) == before


def test_tables_are_merged(run, tmp_path):
    """Each page is in one of them. Where one cannot be read, or has marks of another fingerprinter,
    which are of no use, nothing is changed; into an empty memory such marks go."""
    make(tmp_path / "one", 1)
    make(tmp_path / "two", 2, "b", "c")
    make(tmp_path / "other", 2, identity="another")
    make(tmp_path / "torn", 1).joinpath("delta.sqlite").write_bytes(b"torn" * 999)
    before = files_in(tmp_path)
    for words, refusal in (
        (["merge", "one", "one"], "no other delta store"),
        (["merge", "one", "two", "torn"], "torn/delta.sqlite cannot be read"),
        (["merge", "one", "other"], "other has marks of another fingerprinter than one"),
        (["clear", "one"], "say so with --yes"),
    ):
        assert refusal in run(tmp_path, *words).refusal
        assert files_in(tmp_path) == before
    assert run(tmp_path, "merge", "one", "two").lines == ["one has 3 pages now"]
    assert run(tmp_path, "check", "one", URL, f"{URL}b", f"{URL}c", *DAYS).status == 0
    assert run(tmp_path, "clear", "one", "--yes").status == 0
    assert run(tmp_path, "check", "one", URL, *DAYS).status == 1
    assert run(tmp_path, "merge", "one", "other").lines == ["one has 1 page now"]
    with closing(FileDeltaStore(tmp_path / "one", Lifetime())) as one:
        one.look()
        assert one.identity == "another"


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_merge_that_is_killed_can_be_run_again(run, tmp_path, monkeypatch, number):
    """The second one adds what the first has not."""
    make(tmp_path / "one", 1)
    make(tmp_path / "two", 1, *"bcd")
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


@pytest.mark.parametrize("odd", ["nan", "-inf", "inf", "1e300", "soon", ""])
def test_importing_what_deltafetch_has_remembered(run, tmp_path, odd):
    """Fingerprints of either kind, and keys of the spider's own, with their times; and URLs. What
    can be no time is now, so such a page is known as others are, and its time can be shown."""
    now = time.time()
    with closing(dbm.dumb.open(str(tmp_path / "spider.db"), "c")) as database:
        database[key_of()] = str(now - DAY)
        database[key_of("2").hex()] = odd
        database[b"article 7"] = str(now)
        database[key_of("3")] = str(now - 40 * DAY)
    (tmp_path / "urls.txt").write_text(f"{URL}x\n{URL}y\n")
    for days in (DAYS, ()):
        name = f"memory{days}"
        for source in ("spider.db", "urls.txt"):
            (added,) = run(tmp_path, "add", name, source, *days, "--json").json["files"]
            assert added["file"] == source
        again = run(tmp_path, "add", name, "spider.db", *days).lines
        assert again == ["spider.db: 7 keys of 4 records, which may be known already"]
        checked = run(tmp_path, "check", name, *(f"{URL}{end}" for end in ("", *"2xy3")), *DAYS)
        assert [line.split()[0] for line in checked.lines] == ["seen"] * 4 + ["new"]
        with closing(FileDeltaStore(tmp_path / name, Lifetime(30 * DAY))) as memory:
            memory.open()
            assert memory.known_until(key_of_text("article 7"))
        info = run(tmp_path, "info", name, "--json").json
        assert 0 < info["table"]["oldest"] <= info["table"]["newest"] <= time.time()
        assert run(tmp_path, "info", name).lines[0].endswith(", kept for 30 days")  # by the crawl


def test_an_import_tells_what_it_skips_and_is_made_whole_or_not_at_all(run, tmp_path):
    """As one into a filter: if a source cannot be read none is imported; no password is shown."""
    make(tmp_path / "memory", 1)
    (tmp_path / "urls.txt").write_text(f"{URL}x\nnonsense\n")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "torn.dir").write_text("'key', (0, 5")
    (tmp_path / "torn.dat").touch()
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "requests.seen").write_text(key_of("y").hex())
    before = files_in(tmp_path)
    for source, told in (
        ("empty.txt", "empty.txt holds no URL (it is empty)"),
        ("torn", "torn cannot be read here"),
        ("redis://user:secretpw@127.0.0.1:1/0", "redis://127.0.0.1:1/0"),
    ):
        refusal = run(tmp_path, "add", "memory", "urls.txt", source, "--key", "x").refusal
        assert told in refusal
        assert "secretpw" not in refusal
        assert files_in(tmp_path) == before
    added = run(tmp_path, "add", "memory", "urls.txt", "job/requests.seen")
    assert "  1 line skipped, the first is line 2, b'nonsense'" in added.lines[1]
    assert "job was not stopped cleanly" in added.error
    (found,) = run(tmp_path, "add", "memory", "urls.txt", "--json").json["files"]
    assert (found["keys"], found["skipped"], found["first_skipped"][:6]) == (1, 1, "line 2")
