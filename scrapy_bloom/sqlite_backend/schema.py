"""The tables of `requests.sqlite`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Query = Callable[[str], Iterable[Sequence[Any]]]
APPLICATION_ID = 0x53426C6D

PAGES_OF_A_ROUND = (
    "CREATE TABLE delta_pages (key BLOB PRIMARY KEY, time REAL, digest BLOB, verdict TEXT)"
    " WITHOUT ROWID"
)
"""For later rounds: delta/marks.py."""

VERSION = 1
_TABLES = (
    "CREATE TABLE requests (id INTEGER PRIMARY KEY, slot TEXT NOT NULL,"
    " priority INTEGER NOT NULL, start INTEGER NOT NULL, popped INTEGER NOT NULL,"
    " format TEXT NOT NULL, request BLOB NOT NULL)",
    "CREATE INDEX pending ON requests (slot, priority, start) WHERE popped = 0",
    "CREATE INDEX popped ON requests (popped) WHERE popped = 1",
    "CREATE TABLE job (clean INTEGER NOT NULL, unreleased TEXT NOT NULL, taken_over TEXT NOT NULL)",
    "INSERT INTO job VALUES (1, '[]', '')",
    # the request as it is retried, and its record of job/failed_request.py
    "CREATE TABLE failed (id INTEGER PRIMARY KEY, slot TEXT NOT NULL,"
    " priority INTEGER NOT NULL, start INTEGER NOT NULL, format TEXT NOT NULL,"
    " request BLOB NOT NULL, url TEXT NOT NULL, method TEXT NOT NULL, reason TEXT NOT NULL,"
    " status INTEGER, exception TEXT, attempts INTEGER NOT NULL, time REAL NOT NULL,"
    " referer TEXT)",
    # the figures of the job, once a second of the last minute: status.py
    "CREATE TABLE progress (time REAL PRIMARY KEY, figures TEXT NOT NULL) WITHOUT ROWID",
    # the one row, if any, is that of the last round; `crawl` is empty but for feeds of a worker
    "CREATE TABLE rounds (number INTEGER NOT NULL, phase TEXT NOT NULL, crawl TEXT NOT NULL)",
    "CREATE TABLE taken_start_requests (fingerprint BLOB NOT NULL,"
    " occurrence INTEGER NOT NULL, PRIMARY KEY (fingerprint, occurrence)) WITHOUT ROWID",
    # goes with the row of its parent: repeated_children.py
    "CREATE TABLE taken_children (parent INTEGER NOT NULL, digest BLOB NOT NULL,"
    " taken INTEGER NOT NULL, met INTEGER NOT NULL, PRIMARY KEY (parent, digest))"
    " WITHOUT ROWID",
    # one row, if any; `replaces` is a hash of the file spider.state
    "CREATE TABLE spider_state (state BLOB NOT NULL, replaces BLOB)",
    # how far each feed has come: feeds/outbox.py
    "CREATE TABLE feeds (id INTEGER PRIMARY KEY, round INTEGER NOT NULL,"
    " template TEXT NOT NULL, options TEXT NOT NULL, head BLOB, columns TEXT NOT NULL)",
    "CREATE TABLE batches (id INTEGER PRIMARY KEY, feed INTEGER NOT NULL,"
    " number INTEGER NOT NULL, uri TEXT NOT NULL, path TEXT NOT NULL, state TEXT NOT NULL,"
    " items INTEGER NOT NULL, length INTEGER NOT NULL, digest BLOB NOT NULL,"
    " stored TEXT NOT NULL)",
    # `request` is NULL when the item is final
    "CREATE TABLE items (id INTEGER PRIMARY KEY, feed INTEGER NOT NULL, request INTEGER,"
    " item BLOB NOT NULL)",
    "CREATE INDEX items_of_requests ON items (request) WHERE request IS NOT NULL",
    "CREATE INDEX final_items ON items (feed) WHERE request IS NULL",
    "CREATE TABLE start_items (feed INTEGER NOT NULL, digest BLOB NOT NULL,"
    " taken INTEGER NOT NULL, again INTEGER NOT NULL, PRIMARY KEY (feed, digest))"
    " WITHOUT ROWID",
    PAGES_OF_A_ROUND,
    # one row: the random id of the job, as in the filter, and its spider
    "CREATE TABLE identity (id BLOB NOT NULL, spider TEXT NOT NULL, commits INTEGER NOT NULL)",
    "INSERT INTO identity VALUES (randomblob(16), '', 0)",
    # the failed requests that could not be read back, by the row of each in `requests`:
    # the next opening makes them pending again
    "CREATE TABLE unreadable (id INTEGER PRIMARY KEY, record INTEGER NOT NULL UNIQUE)",
    # requests that are not due: `id` becomes that of a row in `requests`, `due` and `until` are
    # seconds since 1970, and a hold without `until` lasts until its release; `pause` is the
    # length of the hold in seconds
    "CREATE TABLE later (id INTEGER PRIMARY KEY, due REAL NOT NULL, slot TEXT NOT NULL,"
    " priority INTEGER NOT NULL, start INTEGER NOT NULL, request BLOB NOT NULL)",
    "CREATE INDEX due ON later (due)",
    "CREATE TABLE holds (slot TEXT PRIMARY KEY, until REAL, times INTEGER NOT NULL,"
    " pause REAL) WITHOUT ROWID",
    # BLOOM_BUDGET: requests of the round by slot, and those over it (`budget` is its id there);
    # the next start asks the `retried` ones, as far as its budget allows
    "CREATE TABLE budget (id INTEGER PRIMARY KEY, slot TEXT NOT NULL UNIQUE,"
    " pushed INTEGER NOT NULL)",
    "CREATE TABLE capped (id INTEGER PRIMARY KEY, budget INTEGER NOT NULL,"
    " priority INTEGER NOT NULL, start INTEGER NOT NULL, retried INTEGER NOT NULL,"
    " request BLOB NOT NULL)",
    # the failed requests of earlier rounds, which count in this one when they are retried
    "CREATE TABLE carried (id INTEGER PRIMARY KEY)",
    # requests of the round that were dispatched and counted, and whose rows a kill has cost
    "CREATE TABLE asked (id INTEGER PRIMARY KEY, fingerprint BLOB NOT NULL)",
    # what all starts of the round have counted
    "CREATE TABLE round_counts (pages INTEGER, items INTEGER, duplicates INTEGER, retries INTEGER)",
    "INSERT INTO round_counts VALUES (0, 0, 0, 0)",
    # how far each order of an operator is, as JSON: orders.py
    "CREATE TABLE orders (name TEXT PRIMARY KEY, state TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TRIGGER children_of_done AFTER DELETE ON requests"
    " WHEN NOT EXISTS (SELECT 1 FROM unreadable WHERE id = OLD.id) BEGIN"
    " DELETE FROM taken_children WHERE parent = OLD.id; END",
    "CREATE TRIGGER children_of_dropped AFTER DELETE ON failed BEGIN"
    " DELETE FROM taken_children WHERE parent IN (SELECT id FROM unreadable"
    " WHERE record = OLD.id AND NOT EXISTS (SELECT 1 FROM requests AS r"
    " WHERE r.id = unreadable.id)); DELETE FROM unreadable WHERE record = OLD.id;"
    " DELETE FROM carried WHERE id = OLD.id; END",
)


def check(connection: sqlite3.Connection) -> None:
    """Raise sqlite3.DatabaseError unless the tables are those of this version, before any of them
    is read: a view in the place of one may run for ever."""
    if statements(connection) != {each for each in _TABLES if each.startswith("CREATE")}:
        raise sqlite3.DatabaseError(f"its tables are not those of version {VERSION}")


def statements(connection: sqlite3.Connection) -> set[str]:
    """Return the statements that have made the tables, views and triggers of a database, but those
    of SQLite's own tables."""
    of_others = "SELECT sql FROM sqlite_master WHERE sql NOT GLOB 'CREATE TABLE sqlite_*'"
    return {text for (text,) in connection.execute(of_others)}


def in_memory() -> sqlite3.Connection:
    """Return a connection to the tables of a job without requests."""
    connection = sqlite3.connect(":memory:")
    create(connection)
    return connection


def create(connection: sqlite3.Connection) -> None:
    """Make the tables in an empty database, in the transaction of the caller."""
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    for statement in _TABLES:
        connection.execute(statement)
