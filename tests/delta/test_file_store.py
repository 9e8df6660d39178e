"""The delta store in a directory: its table against a plain dict, with a clock that goes as it
likes."""

import multiprocessing
import os
import sqlite3
import tempfile
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_bloom.delta import file_store
from scrapy_bloom.delta.file_store import FACTS, FileDeltaStore, Row, UnfinishedWriteError
from scrapy_bloom.delta.settings import Lifetime
from scrapy_bloom.errors import FilterFileError, IncompatibleFilterError
from scrapy_bloom.fingerprints import FingerprinterIdentity
from tests.commands.command_line import files_in
from tests.delta import started

HOUR = 3600.0
PERIOD = 8 * HOUR
NOON = 1_800_000_000.0
OTHER = FingerprinterIdentity("other", "other", [], []).to_text()

pytestmark = pytest.mark.skipif(os.name != "posix", reason="filter files need Linux or macOS")


def key(number):
    return number.to_bytes(1, "big") * 20


def store(folder, now=NOON, period=PERIOD, identity=""):
    """Return a store whose clock stands at `now`."""
    return FileDeltaStore(Path(folder) / "memory", Lifetime(period, identity), lambda: now)


def opened(folder, now=NOON, period=PERIOD, **options):
    """Return it open, as a crawl has it."""
    found = store(folder, now, period, **options)
    found.open()
    return found


def knows(folder, number, now=NOON, period=PERIOD, days=None):
    """Return what a crawl of that time knows."""
    with closing(opened(folder, now, period)) as found:
        return found.known_until(key(number), days) > 0


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


STEPS = st.lists(
    st.tuples(
        st.floats(-30, 30),  # hours that pass
        st.lists(st.integers(0, 9), max_size=3),  # keys marked then
        st.lists(st.integers(0, 9), max_size=1),  # keys forgotten then
        st.booleans(),  # whether it is a crawl of a longer period
    ),
    max_size=12,
)


@settings(max_examples=15)
@given(STEPS)
def test_a_mark_counts_for_the_period_to_the_second(steps):
    """As a dict from keys to the times of their last marks has it, whatever the clock does."""
    with tempfile.TemporaryDirectory() as folder:
        now, marked, removed = NOON, {}, set()
        for hours, keys, forgotten, is_long in steps:
            now += hours * HOUR
            period = 4 * PERIOD if is_long else PERIOD
            with closing(opened(folder, now, period)) as found:
                there = {*rows_in(folder)} if found.is_open else set()
                removed |= {n for n in marked if key(n) not in there}
                for number in range(10):
                    age = abs(now - marked.get(number, -1e12))
                    if number in removed:
                        assert not found.known_until(key(number))
                        continue
                    assert (found.known_until(key(number)) > 0) is (age <= period)
                    assert (found.known_until(key(number), 2 * HOUR) > 0) is (age <= 2 * HOUR)
                found.add((key(number), now) for number in keys)
                known = sum(found.known_until(key(number)) > 0 for number in forgotten)
                assert found.forget([key(number) for number in forgotten]) == known
            for number in keys:
                marked[number] = now
                removed.discard(number)
            for number in forgotten:
                marked.pop(number, None)


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


@settings(max_examples=50)
@given(
    st.sampled_from(FACTS),
    st.lists(
        st.tuples(
            st.floats(-30, 30), st.lists(PAGES, max_size=4), st.lists(st.integers(0, 4), max_size=1)
        ),
        max_size=12,
    ),
)
def test_a_fact_stays_until_there_is_a_newer_one(fact, steps):
    """As a dict has it, and longer than the mark; a page that has only a fact is not done."""
    with tempfile.TemporaryDirectory() as folder:
        now, known = NOON, {}
        for hours, pages, forgotten in steps:
            now += hours * HOUR
            with closing(opened(folder, now)) as found:
                for number in range(5):
                    had, digest = known.get(number, (None, None))
                    assert found.fact(key(number), fact) == digest
                    if digest:  # else it may have been removed
                        assert (found.known_until(key(number)) > 0) is (
                            had is not None and abs(now - had) <= PERIOD
                        )
                for number, waited, digest in pages:
                    when = None if waited is None else now - waited * HOUR
                    if (when, digest) != (None, None):
                        in_table = rows_in(folder, fact) if found.path.exists() else {}
                        found.add([row(number, when, **{fact: digest})])
                        known[number] = _added(in_table.get(key(number)), when, digest, now)
                found.forget([key(number) for number in forgotten])
                for number in forgotten:
                    known.pop(number, None)


@pytest.mark.parametrize("fact", FACTS)
def test_an_older_mark_takes_nothing_from_a_newer_one(tmp_path, fact):
    """One that a job has kept, whether it has a fact or not; one of the future does not count."""
    for age, digest, expected in (
        (0, b"a", b"a"),
        (1, b"b", b"a"),
        (1, None, b"a"),
        (0, b"c", b"c"),
        (0, None, b"c"),
    ):
        store(tmp_path).add([row(1, NOON - age * HOUR, **{fact: digest})])
        assert rows_in(tmp_path, fact) == {key(1): (NOON, expected)}
    store(tmp_path, NOON - HOUR).add([row(1, NOON - HOUR, **{fact: b"d"})])
    assert rows_in(tmp_path, fact) == {key(1): (NOON - HOUR, b"d")}


def test_an_expired_row_stays_for_an_eighth_of_the_period(tmp_path):
    """Of the longest that a crawl has asked for; rows that are not done stay."""
    store(tmp_path).add([(key(1), NOON)])
    opened(tmp_path, NOON, 2 * PERIOD).close()
    store(tmp_path).add([Row(key(2), None, b"d" * 16)])
    for hours, is_there in ((9, True), (15, True), (16.5, True), (18, True), (20, False)):
        opened(tmp_path, NOON + hours * HOUR).close()
        assert (key(1) in rows_in(tmp_path)) is is_there, hours
    assert rows_in(tmp_path) == {key(2): (None, b"d" * 16)}


def test_a_clock_that_was_ahead_once_keeps_no_row_for_ever(tmp_path):
    """The time of the first look counts from when the clock is right again."""
    with closing(opened(tmp_path)) as tested:
        tested.add([(key(1), NOON)])
    for now in (NOON + 1e9, NOON + 9 * HOUR, NOON + 10.1 * HOUR):
        opened(tmp_path, now).close()
    assert rows_in(tmp_path) == {}


@pytest.mark.parametrize("fact", FACTS)
def test_a_fact_serves_after_its_page_has_expired(tmp_path, fact):
    """The row stays, and is not done; whoever wants it away, says so."""
    one, two = row(1, NOON, **{fact: b"d" * 16}), row(2, None, **{fact: b"e" * 16})
    store(tmp_path).add([one, two, (key(3), NOON)])
    for hours in (0, 9, 30, 60):
        opened(tmp_path, NOON + hours * HOUR).close()
    found = opened(tmp_path, NOON + 60 * HOUR)
    facts = [found.fact(key(number), fact) for number in (1, 2, 3)]
    assert facts == [b"d" * 16, b"e" * 16, None]
    assert not any(map(found.known_until, map(key, (1, 2, 3))))
    assert (found.total, found.count, found.digests) == (2, 1, 2 * (fact == "digest"))
    assert found.drop_older(HOUR) == (1, [])
    assert [*rows_in(tmp_path)] == [key(2)]


def test_a_period_that_is_set_later_counts(tmp_path):
    """For marks that were made without one; they stay."""
    store(tmp_path, period=None).add([(key(1), NOON)])
    assert knows(tmp_path, 1, NOON + PERIOD)
    assert not knows(tmp_path, 1, NOON + PERIOD + 1)
    assert rows_in(tmp_path)


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_for_ever_outlives_crawls_with_a_period(tmp_path, order):
    """Whichever marks first: in a store of both, which was cleared, and where two were merged."""
    options = {"identity": "one"}
    for places in (("both", "both"), ("lasting", "short")):
        for name in places:
            store(tmp_path / name).add([(key(9), NOON)])
            store(tmp_path / name).clear()
        crawls = [
            opened(tmp_path / name, period=period, **options)
            for name, period in zip(places, (None, PERIOD), strict=True)
        ]
        for number in order:
            crawls[number - 1].add([(key(number), NOON)])
    sources = [tmp_path / name / "memory" for name in places]
    (tmp_path / "merged" / "memory").mkdir(parents=True)
    store(tmp_path / "merged", **options).merge(sources)
    for place in (tmp_path / "both", tmp_path / "merged"):
        for hours in (20, 40, 60):
            opened(place, NOON + hours * HOUR, **options).close()
        assert knows(place, 1, NOON + 1000 * PERIOD, None)


def test_a_look_changes_nothing(tmp_path):
    """Whatever has expired, and where nothing can be written."""
    store(tmp_path).add([(key(1), NOON)])
    before = files_in(tmp_path)
    for hours in (0, 9, 30):
        looking = store(tmp_path, NOON + hours * HOUR, 2 * PERIOD)
        looking.look()
        assert (looking.known_until(key(1)) > 0) is (hours < 16)
        looking.close()
    assert files_in(tmp_path) == before


def test_a_start_changes_nothing_before_it_is_sure_to_begin(tmp_path):
    """Something else may refuse it."""
    store(tmp_path).add([(key(1), NOON)])
    before = files_in(tmp_path)
    crawled(tmp_path, BLOOM_DELTA_DAYS=365)
    assert files_in(tmp_path) == before


def die_in_a_write(folder):
    """Kill a writer in the middle of a transaction, of which a part is in the file."""
    if (child := os.fork()) == 0:
        database = sqlite3.connect(folder / "memory" / "delta.sqlite", isolation_level=None)
        database.execute("PRAGMA cache_size = 1")
        database.execute("BEGIN IMMEDIATE")
        database.execute("UPDATE pages SET time = 0")
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_what_a_killed_writer_has_begun_is_rolled_back_by_the_next_crawl(tmp_path):
    """Whoever only looks says so, and leaves it as it is."""
    store(tmp_path).add((number.to_bytes(20, "big"), NOON) for number in range(5000))
    die_in_a_write(tmp_path)
    before = files_in(tmp_path)
    assert tmp_path / "memory" / "delta.sqlite-journal" in before
    with pytest.raises(UnfinishedWriteError, match="has the journal of a writer that was killed"):
        store(tmp_path).look()
    assert files_in(tmp_path) == before
    found = opened(tmp_path)
    assert found.count == 5000
    assert {time for time, _ in rows_in(tmp_path).values()} == {NOON}
    assert [*files_in(tmp_path)] == [found.path.parent, found.path]


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


def test_a_table_that_is_made_while_one_looks_is_not_anothers(tmp_path, monkeypatch):
    made = store(tmp_path / "made")
    made.add([(key(1), NOON)])
    made.close()
    found = store(tmp_path)
    file = found.path
    file.parent.mkdir()
    file.touch()

    def fill(statement):
        if "sqlite_master" in statement:
            with (
                suppress(sqlite3.OperationalError),  # it is locked, which is as good
                closing(sqlite3.connect(made.path)) as source,
                closing(sqlite3.connect(file, timeout=0)) as target,
            ):
                target.execute("BEGIN IMMEDIATE")
                for text in source.iterdump():
                    if not text.startswith(("BEGIN", "COMMIT")):
                        target.execute(text)
                target.execute(f"PRAGMA application_id = {file_store.APPLICATION_ID}")
                target.execute("COMMIT")

    def traced(path, mode):
        connection = table_connect(path, mode)
        connection.set_trace_callback(fill)
        return connection

    table_connect = file_store.connect
    monkeypatch.setattr(file_store, "connect", traced)
    found.look()
    assert not found.count


def test_no_writer_waits_for_the_one_who_reads(tmp_path):
    """A list goes into a pager that nobody pages; it has each row that stays, once."""
    keys = {os.urandom(20) for _ in range(2500)}
    store(tmp_path).add((each, NOON) for each in keys)
    looking = store(tmp_path)
    looking.look()
    rows = looking.marks(None)
    first = next(rows)
    store(tmp_path).add([(b"\xff" * 20, NOON)])
    assert {first.key, *(row.key for row in rows)} == {*keys, b"\xff" * 20}


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_a_change_that_fails_half_way_changes_nothing(tmp_path, monkeypatch, is_forgotten):
    """A reader that keeps the table open lets no commit through; when it ends, all may write."""

    def change(found):
        if is_forgotten:
            found.forget([key(1), key(2)])
        else:
            found.add([(key(3), NOON), (key(4), NOON)])

    monkeypatch.setattr(file_store, "_PATIENCE", 10)
    store(tmp_path).add([(key(1), NOON), (key(2), NOON)])
    before, found = rows_in(tmp_path), opened(tmp_path)
    with closing(sqlite3.connect(found.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM sqlite_master").fetchall()
        with pytest.raises(FilterFileError, match="locked"):
            change(found)
    assert rows_in(tmp_path) == before
    store(tmp_path).add([(key(5), NOON)])
    assert rows_in(tmp_path) == {**before, key(5): (NOON, None)}
    change(found)
    expected = (5,) if is_forgotten else (1, 2, 3, 4, 5)
    assert {*rows_in(tmp_path)} == {*map(key, expected)}


def test_expired_rows_are_removed_a_part_at_a_time(tmp_path, monkeypatch):
    """So that other writers wait for none of it; all of them are."""
    monkeypatch.setattr(file_store, "_LOOKED_AT", 100)
    keys = [os.urandom(20) for _ in range(2000)]
    store(tmp_path).add((each, NOON - n % 2 * (PERIOD + 1)) for n, each in enumerate(keys))
    opened(tmp_path).close()
    found = opened(tmp_path, NOON + 2 * HOUR)
    assert {time for time, _ in rows_in(tmp_path).values()} == {NOON}
    assert found.count == len(rows_in(tmp_path)) == 1000


@pytest.mark.parametrize("what", ["text", "another program's", "of a later version", "torn"])
def test_a_table_that_cannot_be_read_is_refused_and_can_be_cleared(tmp_path, what):
    """And left as it is until then."""
    store(tmp_path).add((number.to_bytes(20, "big"), NOON) for number in range(500))
    path = tmp_path / "memory" / "delta.sqlite"
    if what == "text":
        path.write_text("no database, but long enough to be one" * 9)
    elif what == "torn":
        path.write_bytes(path.read_bytes()[:4096] + bytes(12000))
    else:
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            another = what == "another program's"
            database.execute("DROP TABLE pages" if another else "UPDATE meta SET version = 2")
    before = files_in(tmp_path)
    with pytest.raises(FilterFileError, match=r"delta\.sqlite cannot be read .* BLOOM_DELTA_RESET"):
        store(tmp_path).look()
    assert files_in(tmp_path) == before
    store(tmp_path).clear()
    assert not knows(tmp_path, 1)
    store(tmp_path).add([(key(1), NOON)])
    assert knows(tmp_path, 1)


def test_a_file_that_is_still_empty_is_none(tmp_path):
    """A process was killed when it had only got its name."""
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "delta.sqlite").touch()
    assert not knows(tmp_path, 1)
    store(tmp_path).clear()
    looking = store(tmp_path)
    looking.look()
    assert (looking.findings(), looking.counts(NOON)[0], [*looking.marks()]) == ("", 0, [])
    store(tmp_path).add([(key(1), NOON)])
    assert knows(tmp_path, 1)


def test_merging_tables(tmp_path):
    """The later mark stays; what one has forgotten, the other may know."""
    store(tmp_path / "one").add([(key(1), NOON - HOUR), (key(2), NOON)])
    two = store(tmp_path / "two")
    two.add([(key(1), NOON), (key(2), NOON - HOUR), (key(3), NOON)])
    opened(tmp_path / "two").forget([key(3)])
    before = files_in(tmp_path / "two")
    store(tmp_path / "one").merge([tmp_path / "two" / "memory"])
    assert rows_in(tmp_path / "one") == {key(1): (NOON, None), key(2): (NOON, None)}
    assert [knows(tmp_path / "one", n) for n in (1, 2, 3)] == [True, True, False]
    assert files_in(tmp_path / "two") == before


def test_merging_digests(tmp_path):
    """That of the later mark stays, or the store's own; digests without marks are merged, too."""
    one, two = store(tmp_path / "one", identity="one"), store(tmp_path / "two", identity="one")
    one.add([Row(key(1), NOON, b"1" * 16), Row(key(2), None, b"1" * 16), (key(4), NOON)])
    two.add([Row(key(n), NOON - HOUR * (n == 1), b"2" * 16) for n in (1, 3, 4)])
    two.add([Row(key(2), None, b"2" * 16)])
    for each in (one, two):
        each.close()
    store(tmp_path / "one").merge([tmp_path / "two" / "memory"])
    digests = {number: rows_in(tmp_path / "one")[key(number)][1][:1] for number in (1, 2, 3, 4)}
    assert digests == {1: b"1", 2: b"1", 3: b"2", 4: b"2"}
    store(tmp_path / "only", identity="one").add([Row(key(5), None, b"5" * 16)])
    store(tmp_path / "only").merge([tmp_path / "one" / "memory"])
    assert {*rows_in(tmp_path / "only")} == {key(number) for number in (1, 2, 3, 4, 5)}
    store(tmp_path / "other", identity="other").add([Row(key(2), None, b"2" * 16)])
    with pytest.raises(IncompatibleFilterError, match="another fingerprinter than"):
        store(tmp_path / "other").merge([tmp_path / "one" / "memory"])


def test_a_crawl_of_another_fingerprinter_is_refused(tmp_path, caplog):
    """Where a writer was killed it goes on without the store, which it had to roll back first."""
    store(tmp_path, identity=OTHER).add((n.to_bytes(20, "big"), NOON) for n in range(5000))
    before = files_in(tmp_path)
    with pytest.raises(
        IncompatibleFilterError, match=r"now it is scrapy.* use a new BLOOM_DELTA_DIR"
    ):
        crawled(tmp_path)
    assert files_in(tmp_path) == before
    die_in_a_write(tmp_path)
    crawled(tmp_path)._spider_opened()
    assert "BLOOM_DELTA is off in this crawl: the fingerprinter of this job was" in caplog.text
    assert len(rows_in(tmp_path)) == 5000


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_store_is_for_its_owner_alone(tmp_path, umask):
    """Whatever the umask; a link in the place of the table is not followed."""
    before = os.umask(umask)
    try:
        with closing(FileDeltaStore(tmp_path / "made", Lifetime())) as found:
            found.add([(bytes(20), time.time())])
        (tmp_path / "linked").mkdir()
        (tmp_path / "linked" / "delta.sqlite").symlink_to(tmp_path / "new")
        with pytest.raises(FilterFileError, match="unable to open"):
            FileDeltaStore(tmp_path / "linked", Lifetime()).add([(bytes(20), time.time())])
    finally:
        os.umask(before)
    made = tmp_path / "made"
    assert [each for each in (made, *made.iterdir()) if each.stat().st_mode & 0o077] == []
    assert not (tmp_path / "new").exists()
