"""The tables of `requests.sqlite`."""

from __future__ import annotations

import sqlite3

from ..crawl.delays import DEAD
from ..sqlite_file import statements

APPLICATION_ID = 0x53426C6D

PAGES_OF_A_ROUND = (
    "CREATE TABLE delta_pages (key BLOB PRIMARY KEY, time REAL, digest BLOB, version BLOB,"
    " validators BLOB, verdict TEXT) WITHOUT ROWID"
)
"""For later rounds: delta/marks.py."""

VERSION = 1
START = 0
"""The source of start requests."""
BY_SLOT = "CREATE INDEX pending ON request (slot, rank, place) WHERE state = 0"
BY_RANK = "CREATE INDEX pending ON request (rank, place) WHERE state = 0"
"""Scrapy's whole order: within each slot, or over all of them (ScrapyPriorityQueue)."""
_TABLES = (
    # a name is stored once; beside it the hold, if `times` is not NULL: `until` in seconds since
    # 1970, NULL until its release, `pause` its length in seconds
    "CREATE TABLE slot (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, until REAL,"
    " times INTEGER, pause REAL)",
    # what a round has counted by slot, and by pattern, whose name is a BLOB: budget.py
    "CREATE TABLE budget (name PRIMARY KEY, counted INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE VIEW dead AS SELECT id FROM slot"  # noqa: S608 - no input
    f" WHERE times >= {DEAD}",
    # crawl/records.py; of equal ranks the lowest `place` is next. `due` is when a delayed or capped
    # one is due, or a failed one has failed; a delayed one without waits for the end of a hold.
    # `round` is the round in which it was kept, `detail` its failure, which counts as unreadable if
    # that is damaged
    "CREATE TABLE request (id INTEGER PRIMARY KEY, slot INTEGER NOT NULL, rank INTEGER NOT NULL,"
    " place INTEGER NOT NULL, state INTEGER NOT NULL, payload BLOB NOT NULL, due REAL,"
    " round INTEGER, detail TEXT, reason TEXT AS (COALESCE(CASE WHEN json_valid(detail) THEN"
    " CASE json_type(detail, '$.reason') WHEN 'text' THEN json_extract(detail, '$.reason')"
    " END END, 'unreadable')))",
    "CREATE INDEX other ON request (state, due) WHERE state > 0",
    "CREATE INDEX put_off ON request (slot) WHERE state = 2 AND due IS NULL",
    # one row: the random id of the job, as in the filter, and its spider; the last id or place that
    # was given
    "CREATE TABLE job (id BLOB NOT NULL, spider TEXT NOT NULL, commits INTEGER NOT NULL,"
    " clean INTEGER NOT NULL, unreleased TEXT NOT NULL, taken_over TEXT NOT NULL,"
    " last INTEGER NOT NULL)",
    "INSERT INTO job VALUES (randomblob(16), '', 0, 1, '[]', '', 0)",
    # the figures of the job, of each second of the last minute: status.py
    "CREATE TABLE progress (time REAL PRIMARY KEY, figures TEXT NOT NULL) WITHOUT ROWID",
    # the one row, if any, is that of the last round; `crawl` is empty but for feeds of a worker
    "CREATE TABLE rounds (number INTEGER NOT NULL, phase TEXT NOT NULL, crawl TEXT NOT NULL)",
    # taken.py: how many equal things of a source the job has, and how many of them this start has
    # met; the source is START (by mark_of), for items of start() minus the number of a feed, a page
    # in memory, or the row of a page, with which it goes, or when that has failed and can be read
    "CREATE TABLE taken (source INTEGER NOT NULL, digest BLOB NOT NULL, taken INTEGER NOT NULL,"
    " met INTEGER NOT NULL, PRIMARY KEY (source, digest)) WITHOUT ROWID",
    "CREATE TRIGGER children_of_done AFTER DELETE ON request BEGIN"
    " DELETE FROM taken WHERE source = OLD.id; END",
    "CREATE TRIGGER children_of_failed AFTER UPDATE OF detail ON request"
    " WHEN NEW.state = 3 AND NEW.reason != 'unreadable' BEGIN"
    " DELETE FROM taken WHERE source = OLD.id; END",
    # one row, if any; `replaces` is a hash of the file spider.state
    "CREATE TABLE spider_state (state BLOB NOT NULL, replaces BLOB)",
    # how far each feed has come, in JSON: feeds/outbox.py
    "CREATE TABLE feeds (id INTEGER PRIMARY KEY, round INTEGER NOT NULL, facts TEXT NOT NULL)",
    # what is stored of a feed at a time, in JSON: feeds/waiting.py
    "CREATE TABLE batches (id INTEGER PRIMARY KEY, feed INTEGER NOT NULL, facts TEXT NOT NULL)",
    # `request` is NULL when the item is final; `feed` is minus a batch when it waits for its store
    "CREATE TABLE items (id INTEGER PRIMARY KEY, feed INTEGER NOT NULL, request INTEGER,"
    " item BLOB NOT NULL)",
    "CREATE INDEX items_of_requests ON items (request) WHERE request IS NOT NULL",
    "CREATE INDEX final_items ON items (feed) WHERE request IS NULL",
    "CREATE TRIGGER rows_of_feeds AFTER DELETE ON feeds BEGIN"
    " DELETE FROM batches WHERE feed = OLD.id; DELETE FROM taken WHERE source = -OLD.id;"
    " DELETE FROM items WHERE feed = OLD.id AND request IS NULL; END",
    "CREATE TRIGGER items_of_batches AFTER DELETE ON batches BEGIN"
    " DELETE FROM items WHERE feed = -OLD.id AND request IS NULL; END",
    PAGES_OF_A_ROUND,
)

WAITS = (
    "(EXISTS (SELECT 1 FROM request WHERE state > 0 AND state = 1)"
    " OR EXISTS (SELECT 1 FROM request WHERE state = 0 AND slot NOT IN dead)"
    " OR EXISTS (SELECT 1 FROM request WHERE state > 0 AND state = 2 AND slot NOT IN dead))"
)
"""Whether any request is claimed, or waits, due or not, for a host that is not dead."""
OF_DEAD_HOSTS = (
    "((SELECT COUNT(*) FROM request WHERE state = 0 AND slot IN dead)"
    " + (SELECT COUNT(*) FROM request WHERE state > 0 AND state = 2 AND slot IN dead))"
)
"""How many wait for a dead host, and so have failed."""
# the numbers of states are those of State in crawl/records.py: 0 pending, 1 claimed, 2 delayed,
# 3 failed, 4 capped, 5 asked
AT_START = (
    "UPDATE job SET clean = 0",
    "UPDATE taken SET met = 0 WHERE met > 0",
    # what was claimed is next again, and what could not be read is tried again, in their places
    "UPDATE request SET state = 0 WHERE state > 0 AND state = 1",
    "UPDATE request SET state = 0, due = NULL, round = NULL, detail = NULL"
    " WHERE state > 0 AND state = 3 AND reason = 'unreadable'",
)


def check(connection: sqlite3.Connection) -> None:
    """Raise sqlite3.DatabaseError unless the tables are those of this version, before any of them
    is read: a view in the place of one may run for ever."""
    wanted = {each for each in _TABLES if each.startswith("CREATE")}
    if statements(connection) not in (wanted | {BY_SLOT}, wanted | {BY_RANK}):
        raise sqlite3.DatabaseError(f"its tables are not those of version {VERSION}")


def create(connection: sqlite3.Connection) -> None:
    """Make the tables in an empty database, in the transaction of the caller."""
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    for statement in (*_TABLES, BY_SLOT):
        connection.execute(statement)
