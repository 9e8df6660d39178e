"""What one kind of delta store has: a table, against a dict with an odd clock, slices in Redis."""

import json
import multiprocessing
import os
import sqlite3
import tempfile
import time
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scrapy import Request
from scrapy.utils.request import RequestFingerprinter, fingerprint

from scrapy_bloom.delta import file_store
from scrapy_bloom.delta.file_store import FACTS, FileDeltaStore, Row, UnfinishedWriteError
from scrapy_bloom.delta.redis_store import RedisDeltaStore
from scrapy_bloom.delta.settings import Lifetime
from scrapy_bloom.errors import FilterFileError, IncompatibleFilterError
from scrapy_bloom.fingerprints import FingerprinterIdentity
from tests.commands.command_line import files_in
from tests.delta import started

HOUR = 3600.0
PERIOD = 8 * HOUR
NOON = 1_800_000_000.0
KEY = b"k" * 20
OTHER = FingerprinterIdentity("other", "other", []).to_text()


def key(number):
    return number.to_bytes(1, "big") * 20


def store(folder, now=NOON, period=PERIOD, identity=""):
    """Return a store whose clock stands at `now`."""
    return FileDeltaStore(Path(folder) / "memory", Lifetime(period, identity), lambda: now)


def opened(folder, now=NOON, period=PERIOD):
    """Return it open, as a crawl has it."""
    found = store(folder, now, period)
    found.open()
    return found


def rows_in(folder, fact="digest"):
    """Return time and fact of each row of the table, expired ones included."""
    with closing(sqlite3.connect(Path(folder) / "memory" / "delta.sqlite")) as database:
        rows = database.execute(f"SELECT key, time, {fact} FROM pages")
        return {key: (when, found) for key, when, found in rows}


def row(number, when, **facts):
    """Return the row of a page."""
    return Row(key(number), when, **facts)


def crawled(folder, **settings):
    """Return what a crawl with that store begins with."""
    return started(BLOOM_DELTA="item", BLOOM_DELTA_DIR=str(folder / "memory"), **settings)


def _added(known, when, new, now):
    """Return what the table has of a page, time and fact, after a row was added."""
    had, fact = known or (None, None)
    if None not in (had, when) and when < had <= now:
        return had, fact or new
    return (had if when is None else when), new or fact


PAGES = st.tuples(
    st.integers(0, 4),
    st.one_of(st.none(), st.floats(0, 30)),  # hours that its mark has waited for delivery
    st.one_of(st.none(), st.sampled_from((b"a" * 16, b"b" * 16))),
)
STEPS = st.tuples(
    st.floats(-30, 30),  # hours that pass
    st.booleans(),  # whether it is a crawl of a longer period
    st.lists(PAGES, max_size=4),
    st.lists(st.integers(0, 4), max_size=1),  # pages forgotten then
)
AN_OLDER_MARK = [
    *((0, False, [(1, *row)], []) for row in ((0, b"a"), (1, b"b"), (1, None), (0, b"c"))),
    (0, False, [(1, 0, None)], []),
    (-1, False, [(1, 0, b"d")], []),
]


@settings(max_examples=25)
@example("digest", AN_OLDER_MARK)
@given(st.sampled_from(FACTS), st.lists(STEPS, max_size=12))
def test_a_mark_counts_for_the_period_and_a_fact_until_there_is_a_newer_one(fact, steps):
    """To the second, as a dict has it, whatever the clock does; a page that has only a fact is not
    done, and only what has expired goes."""
    with tempfile.TemporaryDirectory() as folder:
        now, known = NOON, {}
        for hours, is_long, pages, forgotten in steps:
            now += hours * HOUR
            period = 4 * PERIOD if is_long else PERIOD
            with closing(opened(folder, now, period)) as found:
                there = rows_in(folder, fact) if found.is_open else {}
                for number in [n for n in known if key(n) not in there]:
                    when, digest = known.pop(number)
                    assert digest is None
                    assert abs(now - when) > period
                for number in range(5):
                    when, digest = known.get(number, (None, None))
                    assert found.fact(key(number), fact) == digest
                    for days, longest in ((None, period), (2 * HOUR, 2 * HOUR)):
                        is_done = when is not None and abs(now - when) <= longest
                        assert (found.known_until(key(number), days) > 0) is is_done
                for number, waited, digest in pages:
                    when = None if waited is None else now - waited * HOUR
                    if (when, digest) != (None, None):
                        found.add([row(number, when, **{fact: digest})])
                        known[number] = _added(known.get(number), when, digest, now)
                gone = [known.pop(number) for number in forgotten if number in known]
                is_known = [bool(digest) or abs(now - when) <= period for when, digest in gone]
                assert found.forget([key(number) for number in forgotten]) == sum(is_known)


def die_in_a_write(folder):
    """Kill a writer in the middle of a transaction, of which a part is in the file."""
    if (child := os.fork()) == 0:
        database = sqlite3.connect(folder / "memory" / "delta.sqlite", isolation_level=None)
        database.execute("PRAGMA cache_size = 1")
        database.execute("BEGIN IMMEDIATE")
        database.execute("UPDATE pages SET time = 0")
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_what_a_killed_writer_has_begun_is_rolled_back_by_the_next(run, tmp_path, caplog):
    """Crawl or command. Whoever only looks says so, and leaves it as it is. A crawl of another
    fingerprinter, which is refused, goes on then without the store, which it had to roll back."""
    store(tmp_path, identity=OTHER).add((n.to_bytes(20, "big"), NOON) for n in range(5000))
    before = files_in(tmp_path)
    refused = r"now it is scrapy.* use a new BLOOM_DELTA_DIR"
    with pytest.raises(IncompatibleFilterError, match=refused):
        crawled(tmp_path)
    assert files_in(tmp_path) == before
    die_in_a_write(tmp_path)
    before = files_in(tmp_path)
    assert tmp_path / "memory" / "delta.sqlite-journal" in before
    with pytest.raises(UnfinishedWriteError, match="has the journal of a writer that was killed"):
        store(tmp_path).look()
    assert files_in(tmp_path) == before
    crawled(tmp_path)._open()
    assert "BLOOM_DELTA is off in this crawl: the fingerprinter of this job was" in caplog.text
    for command in ("delta forget memory --older 9999d", "add memory urls.txt"):
        die_in_a_write(tmp_path)
        assert "journal" not in run(tmp_path, *command.split()).error
    assert [(when, fact) for when, fact in rows_in(tmp_path).values()] == [(NOON, None)] * 5000
    assert [each.name for each in files_in(tmp_path)] == ["memory", "delta.sqlite"]


def test_many_rows_are_read_and_removed_a_part_at_a_time(tmp_path, monkeypatch):
    """So that other writers wait for none of it. A list has each row that stays, once, and goes
    into a pager that nobody pages."""
    monkeypatch.setattr(file_store, "_LOOKED_AT", 100)
    keys = [os.urandom(20) for _ in range(2500)]
    store(tmp_path).add((each, NOON - n % 2 * (PERIOD + 1)) for n, each in enumerate(keys))
    looking = store(tmp_path)
    looking.look()
    rows = looking.marks(None)
    first = next(rows)
    store(tmp_path).add([(b"\xff" * 20, NOON)])
    assert {first.key, *(row.key for row in rows)} == {*keys, b"\xff" * 20}
    opened(tmp_path).close()
    found = opened(tmp_path, NOON + 2 * HOUR)
    assert {time for time, _ in rows_in(tmp_path).values()} == {NOON}
    assert found.count == len(rows_in(tmp_path)) == 1251


@pytest.mark.parametrize(
    ("what", "is_ours"),
    [
        ("torn", True),
        ("zeros", True),
        ("DROP TABLE pages", True),
        ("text", False),
        ("DROP TABLE pages; DROP TABLE meta; PRAGMA application_id=0; CREATE TABLE t (x)", False),
        ("UPDATE meta SET version = 2", False),
    ],
)
def test_a_table_that_cannot_be_read_is_refused_and_can_be_cleared(run, tmp_path, what, is_ours):
    """And left as it is until then; for good if another program or version has made it."""
    store(tmp_path).add((number.to_bytes(20, "big"), NOON) for number in range(500))
    path = tmp_path / "memory" / "delta.sqlite"
    pieces = {"torn": path.read_bytes()[:4096], "zeros": b"", "text": b"no database" * 99}
    if what in pieces:
        path.write_bytes(pieces[what] + bytes(12000))
    else:
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.executescript(what)
    before = files_in(tmp_path)
    remedy = "with BLOOM_DELTA_RESET" if is_ours else "move it away, or choose another BLOOM_DELTA"
    with pytest.raises(FilterFileError, match=rf"delta\.sqlite cannot be read \(.*{remedy}"):
        store(tmp_path).look()
    if is_ours:
        crawled(tmp_path, BLOOM_DELTA_RESET=True)
    else:
        with pytest.raises(FilterFileError, match=remedy):
            crawled(tmp_path, BLOOM_DELTA_RESET=True)
        assert remedy in run(tmp_path, "clear", "memory", "--yes").refusal
    assert files_in(tmp_path) == before
    if is_ours:
        store(tmp_path).clear()
        assert not opened(tmp_path).known_until(key(1))
        store(tmp_path).add([(key(1), NOON)])
        assert opened(tmp_path).known_until(key(1))


def test_a_file_that_is_still_empty_is_none(tmp_path):
    """A process was killed when it had only got its name."""
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "delta.sqlite").touch()
    store(tmp_path).clear()
    looking = opened(tmp_path)
    assert (looking.findings(), looking.counts(NOON)[0], [*looking.marks()]) == ("", 0, [])
    store(tmp_path).add([(key(1), NOON)])
    assert opened(tmp_path).known_until(key(1))


def test_a_store_is_for_its_owner_alone(tmp_path, umask):
    """Whatever the umask; a link in the place of the table is not followed."""
    with closing(FileDeltaStore(tmp_path / "made", Lifetime())) as found:
        found.add([(bytes(20), time.time())])
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "delta.sqlite").symlink_to(tmp_path / "new")
    with pytest.raises(FilterFileError, match="unable to open"):
        FileDeltaStore(tmp_path / "linked", Lifetime()).add([(bytes(20), time.time())])
    made = tmp_path / "made"
    assert [each for each in (made, *made.iterdir()) if each.stat().st_mode & 0o077] == []
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("period", "looks"),
    [
        (2 * PERIOD, ((0, True), (9, True), (15, True), (16.5, True), (18, True), (20, False))),
        # after a clock that was ahead once
        (PERIOD, ((0, True), (1e6, True), (9, True), (10.1, False))),
    ],
)
def test_an_expired_row_stays_for_an_eighth_of_the_period(tmp_path, period, looks):
    """Of the longest that a crawl has asked for; rows that are not done, or have a fact, stay."""
    facts = [row(number, NOON, **{fact: b"fact"}) for number, fact in enumerate(FACTS, 3)]
    store(tmp_path).add([row(1, NOON, validators=b""), row(2, None, digest=b"d" * 16), *facts])
    opened(tmp_path, NOON, period).close()
    for hours, is_there in looks:
        opened(tmp_path, NOON + hours * HOUR).close()
        assert (key(1) in rows_in(tmp_path)) is is_there, hours
    assert {*rows_in(tmp_path)} == {*map(key, range(2, 6))}


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_for_ever_outlives_crawls_with_a_period(tmp_path, order):
    """Whichever marks first: in a store of both, which was cleared, and where two were merged; for
    a crawl with a period they are over then."""
    for places in (("both", "both"), ("lasting", "short")):
        for name in places:
            store(tmp_path / name).add([(key(9), NOON)])
            store(tmp_path / name).clear()
        periods = zip(places, (None, PERIOD), strict=True)
        crawls = [opened(tmp_path / name, period=period) for name, period in periods]
        for number in order:
            crawls[number - 1].add([(key(number), NOON)])
    (tmp_path / "merged" / "memory").mkdir(parents=True)
    store(tmp_path / "merged").merge([tmp_path / name / "memory" for name in places])
    for place in (tmp_path / "both", tmp_path / "merged"):
        for hours in (20, 40, 60):
            opened(place, NOON + hours * HOUR).close()
        assert opened(place, NOON + 1000 * PERIOD, None).known_until(key(1))
        assert not opened(place, NOON + PERIOD + 1).known_until(key(1))


def test_a_look_and_a_start_that_may_be_refused_change_nothing(tmp_path):
    """Whatever has expired, and where nothing can be written."""
    store(tmp_path).add([(key(1), NOON)])
    before = files_in(tmp_path)
    for hours in (0, 9, 30):
        looking = store(tmp_path, NOON + hours * HOUR, 2 * PERIOD)
        looking.look()
        assert (looking.known_until(key(1)) > 0) is (hours < 16)
        looking.close()
    crawled(tmp_path, BLOOM_DELTA_DAYS=365)
    assert files_in(tmp_path) == before


def _add_many(folder, first):
    for number in range(first, first + 40):
        with closing(opened(folder, NOON + number % 3 * HOUR)) as found:
            found.add([(key(number), NOON), (key(number + 120), NOON)])


def test_processes_write_to_one_table_at_the_same_time(tmp_path):
    """From the first mark on; each mark of each is there, and a reader is never in the way."""
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_add_many, args=(tmp_path, first)) for first in (0, 40, 80)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        looking = store(tmp_path)
        looking.look()
        looking.close()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert len(rows_in(tmp_path)) == 240


def test_a_change_that_fails_half_way_changes_nothing(tmp_path, monkeypatch):
    """A reader that keeps the table open lets no commit through; when it ends, all may write."""
    monkeypatch.setattr(file_store, "_PATIENCE", 10)
    store(tmp_path).add([(key(1), NOON), (key(2), NOON)])
    before, found = rows_in(tmp_path), opened(tmp_path)
    changes = (
        lambda: found.forget([key(1), key(2)]),
        lambda: found.add([(key(3), NOON), (key(4), NOON)]),
    )
    with closing(sqlite3.connect(found.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM sqlite_master").fetchall()
        for change in changes:
            with pytest.raises(FilterFileError, match="locked"):
                change()
    assert rows_in(tmp_path) == before
    store(tmp_path).add([(key(5), NOON)])
    assert rows_in(tmp_path) == {**before, key(5): (NOON, None)}
    for change in changes:
        change()
    assert {*rows_in(tmp_path)} == {*map(key, (3, 4, 5))}


def test_merging(tmp_path):
    """Mark and facts of the later row stay, or the store's own; what one has forgotten, the other
    may know; no source is changed."""

    def made(name, *rows):
        with closing(store(tmp_path / name)) as found:
            found.add(rows)
            return found.directory

    facts = {name: {"digest": name.encode() * 8} for name in ("on", "tw")}
    two = made("two", *(row(n, NOON - HOUR * (n == 1), **facts["tw"]) for n in (1, 3, 4, 5)))
    made("two", row(2, None, **facts["tw"]))
    opened(tmp_path / "two").forget([key(5)])
    made("one", row(1, NOON, **facts["on"]), row(2, None, **facts["on"]), (key(4), NOON - HOUR))
    made("one", (key(5), NOON))
    before = files_in(tmp_path / "two")
    store(tmp_path / "one").merge([two])
    rows = rows_in(tmp_path / "one").items()
    found = {key[0]: (when, (fact or b"-")[:1]) for key, (when, fact) in rows}
    later = {1: (NOON, b"o"), 3: (NOON, b"t"), 4: (NOON, b"t")}
    assert found == {**later, 2: (None, b"o"), 5: (NOON, b"-")}
    assert files_in(tmp_path / "two") == before


# In Redis


def memory(redis, key, now, period=PERIOD, identity="ours"):
    """Return a memory whose clock stands at `now`."""
    lifetime = Lifetime(period=period, identity=identity)
    opened = RedisDeltaStore(redis.url, key, lifetime, 5.0, clock=lambda: now)
    opened.open()
    return opened


def slices_in(client, key):
    """Return the names of the slices of a store."""
    return [n for n in client.keys(f"*{key}*") if n.rpartition(b":")[2].isdigit()]


@pytest.mark.parametrize("age", [0, 3.5, 8])
def test_redis_lets_slices_expire(redis_server, key, age):
    """A slice stays for the period after its end, whenever it was written to, and no longer; that
    without a period, in which a crawl with one does not look, for ever."""
    now = NOON + 0.5 * HOUR
    memory(redis_server, key, now).add([(KEY, now - age * HOUR)])
    end = (now - age * HOUR) // HOUR * HOUR + HOUR
    with redis_server.client() as client:
        (name,) = slices_in(client, key)
        left = end + PERIOD - now
        # the clock of Redis goes on meanwhile
        assert left - HOUR / 2 < client.ttl(name) <= left + 1
        for late in (HOUR, 1):  # what would have expired
            old = NOON - 20 * HOUR
            memory(redis_server, key, old + HOUR + PERIOD + late).add([(KEY, old)])
        assert len(slices_in(client, key)) == 1
        memory(redis_server, key, NOON, period=None).add([(bytes(20), NOON)])
        assert not memory(redis_server, key, NOON).known_until(bytes(20))
        assert {client.ttl(each) for each in slices_in(client, key) if each != name} == {-1}


@pytest.mark.parametrize("done", range(5))
def test_an_interrupted_clearing_is_refused_to_others_and_can_be_finished(redis, key, watch, done):
    """What is left after each of its commands is found again, and still that fingerprinter's."""
    assert (memory(redis, key, NOON).holds, memory(redis, key, NOON).oldest) == ("0 slices", None)
    store = memory(redis, key, NOON)
    store.add([(KEY, NOON), (b"o" * 20, NOON - HOUR), Row(b"d" * 20, None, b"2" * 16)])
    assert (store.holds, store.oldest) == ("2 slices, 1 digest", NOON // HOUR * HOUR - HOUR)
    assert store.nbytes > 0
    left = ["unlink"] * done
    watch(store.client, "call", lambda command, *_: command == "unlink" and left.pop())
    with closing(store), pytest.raises(IndexError):
        store.clear()
    with pytest.raises(IncompatibleFilterError, match="BLOOM_DELTA_RESET"):
        memory(redis, key, NOON, identity="another")
    memory(redis, key, NOON).clear()
    assert memory(redis, key, NOON, identity="another").holds == "0 slices"


def test_a_fingerprinter_with_the_same_fingerprints_goes_on(run, tmp_path, redis_server, key):
    """In Redis, too; and what two such have marked can be merged."""
    shared = {"DUPEFILTER_CLASS": "scrapy_bloom.RedisBloomDupeFilter", "BLOOM_DELTA": "item"}
    shared |= {"BLOOM_REDIS_URL": redis_server.url, "BLOOM_DELTA_DIR": key}
    for number, name in enumerate(("scrapy.utils.request.", "scrapy_bloom.Fast")):
        settings = {"REQUEST_FINGERPRINTER_CLASS": f"{name}RequestFingerprinter"}
        with closing(started(**shared, **settings)._store) as found:
            found.open()
        with closing(crawled(tmp_path / str(number), **settings)._store) as found:
            found.add([(bytes([number]) * 20, NOON)])
    assert run(tmp_path, "merge", "0/memory", "1/memory").lines == ["0/memory has 2 pages now"]


def test_keys_of_others_stay(redis_server, key):
    """Whatever stands among the names of the slices."""
    marked = memory(redis_server, key, NOON)
    marked.add([(KEY, NOON)])
    foreign = [f"{{{key}}}:other:5:1", f"{{{key}}}:delta:5:x", "junk", b"\xff"]
    for name in foreign:
        redis_server.command("SET", name, "theirs")
        redis_server.command("SADD", f"{{{key}}}:delta:slices", name)
    assert [row.key for row in marked.marks(None)] == [KEY]
    assert marked.forget([KEY]) == 1
    marked.drop_older(0)
    marked.clear()
    assert [redis_server.command("GET", name) for name in foreign] == [b"theirs"] * 4
    redis_server.command("DEL", *foreign)


def test_marks_in_redis_are_counted_listed_and_forgotten(run, tmp_path, redis_server, key):
    """With the starts of their slices; another key is no delta store."""
    now, page = time.time(), fingerprint(Request("http://example.com/a"))
    identity = FingerprinterIdentity.of(RequestFingerprinter()).to_text()
    marked = memory(redis_server, key, now, identity=identity)
    marked.add([(page, now), (page, now - 5 * HOUR), (KEY, now - 5 * HOUR)])

    def delta(action, *words, status=0):
        words = redis_server.url, *words, "-s", f"BLOOM_DELTA_DIR={key}"
        found = run(tmp_path, "delta", action, *words)
        assert found.status == status
        return found

    assert delta("count").lines == [f"{marked.name}: 3 marks in 2 slices"]
    listed = delta("list", "--older", "2h", "--json").lines
    start = (now - 5 * HOUR) // HOUR * HOUR
    found = {(each["key"], each["time"]) for each in map(json.loads, listed)}
    time_ = datetime.fromtimestamp(start, timezone.utc).isoformat()
    assert found == {(KEY.hex(), time_), (page.hex(), time_)}
    assert delta("forget", "http://example.com/a").lines == ["forgot 1 page"]
    assert not marked.known_until(page)
    assert marked.known_until(KEY)
    assert delta("forget", "--older", "2h").lines[0] == "forgot 1 slice"
    assert not marked.known_until(KEY)
    marked.clear()
    refused = delta("count", status=2).refusal
    assert "is no delta store: give the BLOOM_DELTA_DIR of its crawl" in refused
