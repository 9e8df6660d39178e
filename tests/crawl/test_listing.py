"""How the requests in the table of a job are found: each statement by the index that is for it."""

import re
import sqlite3
from contextlib import closing

import pytest

from scrapy_bloom.crawl.choice import Filter
from scrapy_bloom.crawl.records import KEPT, WAITING, State
from scrapy_bloom.sqlite import desk, job_file, kept, listing, records, status

OTHERS = [state for state in State if state not in {State.PENDING, State.QUARANTINED}]


@pytest.fixture
def connection():
    """The tables of a job with some thousand requests."""
    with closing(listing.in_memory()) as connection:
        connection.execute("INSERT INTO slot (name) VALUES ('a')")
        rows = [(1, 0, number, number % 6, b"x", float(number)) for number in range(3000)]
        columns = "slot, rank, place, state, payload, due"
        insert = f"INSERT INTO request ({columns}) VALUES (?, ?, ?, ?, ?, ?)"
        connection.executemany(insert, rows)
        yield connection


def plan(connection, statement):
    """Return how SQLite carries out a statement."""
    values = [1] * statement.count("?")
    rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)
    return " / ".join(row[3] for row in rows)


def test_a_state_is_found_by_its_index(connection):
    """What is pending, maybe millions, is not looked at; the oldest is first without a sort."""
    listed = [listing.all_of(state) for state in OTHERS]
    others = listing.part_of(KEPT), records.END_HOLD, status.COUNT_KEPT, listing.COUNT_DELAYED
    for statement in (*listed, *map(listing.groups_of, OTHERS), *others):
        found = plan(connection, statement)
        index = "put_off" if statement == records.END_HOLD else "other"
        assert f"USING INDEX {index}" in found or f"USING COVERING INDEX {index}" in found
        expected = "SCAN json_each", "SCAN CONSTANT ROW", "SCAN slot"
        assert "SCAN" not in re.sub("|".join(expected), "", found)
        assert statement not in listed or "TEMP B-TREE" not in found


def test_what_is_pending_is_counted_in_the_index(connection):
    """Without its payloads; to be read it is taken in the order of its numbers."""
    assert "INDEX pending" in plan(connection, listing.groups_of(State.PENDING))
    for statement in (status.COUNT_UNFINISHED, job_file.UNFINISHED, desk.REOPEN):
        found = plan(connection, statement)
        assert "request USING INDEX pending" in found
        assert "SEARCH request USING" in found
        assert "INDEX other (state=?)" in found
    assert plan(connection, listing.all_of(State.PENDING)) == "SCAN request"
    found = plan(connection, listing.part_of(WAITING))
    assert found.startswith("SEARCH request USING INTEGER PRIMARY KEY (rowid>")


def test_a_request_is_changed_by_its_number(connection):
    """Whatever there is beside it."""
    chosen = kept.SELECTED.format(kept._CHOSEN)
    for statement in (f"{desk.ASK} {desk._IN}", records.WAKE, desk.FAIL, chosen):
        assert "SEARCH request USING INTEGER PRIMARY KEY (rowid=?)" in plan(connection, statement)


def test_what_is_damaged_is_an_error_of_the_file(connection):
    """And never one that a crawl does not know; a delayed one may have no time."""
    connection.execute("UPDATE request SET slot = 9 WHERE state = 3")
    connection.execute("UPDATE request SET due = NULL WHERE state = 2 AND id % 2")
    found = listing.Listing(connection.execute, is_running=True)
    with pytest.raises(sqlite3.DatabaseError, match="slot 9 has no name"):
        [*found.scan(Filter(KEPT))]
    times = [each.due for each in found.scan(Filter({State.DELAYED}))]
    assert (len(times), None in times) == (500, True)
    waiting = State.PENDING, State.DELAYED, State.ASKED
    assert found.count(Filter()).states == dict.fromkeys(waiting, 500)
