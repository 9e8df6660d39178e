"""The tables of `requests.sqlite` by version of the file, and the steps from one to the next."""

from __future__ import annotations

import sqlite3

APPLICATION_ID = 0x53426C6D

PAGES_OF_A_ROUND = (
    "CREATE TABLE delta_pages (key BLOB PRIMARY KEY, time REAL, digest BLOB, verdict TEXT)"
    " WITHOUT ROWID"
)
"""For later rounds: delta/marks.py."""

# of versions 2 and 3
_AS_FAILED = (
    "slot, priority, start, format, request, '', 'GET', 'unreadable', NULL, reason, 1, 0.0, NULL"
)

STEPS: dict[int, tuple[str, ...]] = {
    1: (
        "CREATE TABLE requests (id INTEGER PRIMARY KEY, slot TEXT NOT NULL,"
        " priority INTEGER NOT NULL, start INTEGER NOT NULL, popped INTEGER NOT NULL,"
        " format TEXT NOT NULL, request BLOB NOT NULL)",
        "CREATE INDEX pending ON requests (slot, priority, start) WHERE popped = 0",
        "CREATE INDEX popped ON requests (popped) WHERE popped = 1",
        "CREATE TABLE job (clean INTEGER NOT NULL, unreleased TEXT NOT NULL,"
        " taken_over TEXT NOT NULL)",
        "INSERT INTO job VALUES (1, '[]', '')",
    ),
    2: (
        # `id` is that of the row in `requests`
        "CREATE TABLE set_aside (id INTEGER PRIMARY KEY, slot TEXT NOT NULL,"
        " priority INTEGER NOT NULL, start INTEGER NOT NULL, format TEXT NOT NULL,"
        " request BLOB NOT NULL, reason TEXT NOT NULL)",
        # the request as it is retried, and its record of job/failure.py
        "CREATE TABLE failed (id INTEGER PRIMARY KEY, slot TEXT NOT NULL,"
        " priority INTEGER NOT NULL, start INTEGER NOT NULL, format TEXT NOT NULL,"
        " request BLOB NOT NULL, url TEXT NOT NULL, method TEXT NOT NULL, reason TEXT NOT NULL,"
        " status INTEGER, exception TEXT, attempts INTEGER NOT NULL, time REAL NOT NULL,"
        " referer TEXT)",
        # the figures of the job, once a second of the last minute: status.py
        "CREATE TABLE progress (time REAL PRIMARY KEY, figures TEXT NOT NULL) WITHOUT ROWID",
        # the one row, if any, is that of the last round
        "CREATE TABLE rounds (number INTEGER NOT NULL, phase TEXT NOT NULL)",
        "CREATE TABLE taken_start_requests (fingerprint BLOB NOT NULL,"
        " occurrence INTEGER NOT NULL, PRIMARY KEY (fingerprint, occurrence)) WITHOUT ROWID",
        # goes with the row of its parent: repeated_children.py
        "CREATE TABLE taken_children (parent INTEGER NOT NULL, digest BLOB NOT NULL,"
        " taken INTEGER NOT NULL, met INTEGER NOT NULL, PRIMARY KEY (parent, digest))"
        " WITHOUT ROWID",
        "CREATE TRIGGER children_of_done AFTER DELETE ON requests"
        " WHEN NOT EXISTS (SELECT 1 FROM set_aside WHERE id = OLD.id) BEGIN"
        " DELETE FROM taken_children WHERE parent = OLD.id; END",
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
    ),
    3: (
        "CREATE TABLE delta_marks (key BLOB PRIMARY KEY, time REAL NOT NULL) WITHOUT ROWID",
        "CREATE TABLE delta_lists (key BLOB PRIMARY KEY, keys BLOB NOT NULL, parent BLOB,"
        " time REAL NOT NULL) WITHOUT ROWID",
        "CREATE TABLE delta_shared (list BLOB NOT NULL, child BLOB NOT NULL,"
        " PRIMARY KEY (list, child)) WITHOUT ROWID",
        "CREATE TABLE delta_failed (key BLOB PRIMARY KEY) WITHOUT ROWID",
    ),
    4: (
        # marked index pages in 0.2.0, which each crawl fetches since
        "DROP TABLE delta_lists",
        "DROP TABLE delta_shared",
        "DROP TABLE delta_failed",
        PAGES_OF_A_ROUND,
        "INSERT INTO delta_pages SELECT key, time, NULL, NULL FROM delta_marks",
        "DROP TABLE delta_marks",
        # one row: the random id of the job, as in the filter, and its spider
        "CREATE TABLE identity (id BLOB NOT NULL, spider TEXT NOT NULL, commits INTEGER NOT NULL)",
        "INSERT INTO identity VALUES (randomblob(16), '', 0)",
        # of the bytes of requests, by age: job/dictionaries.py
        "CREATE TABLE dictionaries (number INTEGER PRIMARY KEY, dictionary BLOB NOT NULL)",
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
        # what all starts of the round have counted; NULL where an earlier version began it
        "CREATE TABLE round_counts (pages INTEGER, items INTEGER, duplicates INTEGER,"
        " retries INTEGER)",
        "INSERT INTO round_counts SELECT n, n, n, n FROM (SELECT CASE WHEN NOT EXISTS (SELECT 1"
        " FROM rounds UNION ALL SELECT 1 FROM requests) THEN 0 END AS n)",
        # how far each order of an operator is, as JSON: orders.py
        "CREATE TABLE orders (name TEXT PRIMARY KEY, state TEXT NOT NULL) WITHOUT ROWID",
        # 0.2.0 could give such a row to another request, and then could not open the file
        "UPDATE taken_children SET parent = parent + (SELECT MAX(id) FROM requests)"
        " + (SELECT MAX(id) FROM set_aside)"
        " WHERE parent IN (SELECT id FROM set_aside JOIN requests USING (id))",
        "UPDATE set_aside SET id = id + (SELECT MAX(id) FROM requests)"
        " + (SELECT MAX(id) FROM set_aside) WHERE id IN (SELECT id FROM requests)",
        "INSERT INTO unreadable SELECT id, ROW_NUMBER() OVER (ORDER BY id)"
        " + COALESCE((SELECT MAX(id) FROM failed), 0) FROM set_aside",
        f"INSERT INTO failed SELECT record, {_AS_FAILED}"  # noqa: S608 - no input
        " FROM set_aside JOIN unreadable USING (id)",
        "DROP TRIGGER children_of_done",
        "DROP TABLE set_aside",
        "CREATE TRIGGER children_of_done AFTER DELETE ON requests"
        " WHEN NOT EXISTS (SELECT 1 FROM unreadable WHERE id = OLD.id) BEGIN"
        " DELETE FROM taken_children WHERE parent = OLD.id; END",
        "CREATE TRIGGER children_of_dropped AFTER DELETE ON failed BEGIN"
        " DELETE FROM taken_children WHERE parent IN (SELECT id FROM unreadable"
        " WHERE record = OLD.id AND NOT EXISTS (SELECT 1 FROM requests AS r"
        " WHERE r.id = unreadable.id)); DELETE FROM unreadable WHERE record = OLD.id;"
        " DELETE FROM carried WHERE id = OLD.id; END",
    ),
}
"""The statements that upgrade a file to each version from the one before. Steps of released
versions are never changed."""

_SQLITES = "CREATE TABLE sqlite_*"
VERSION = max(STEPS)
WITH_FAILED = WITH_FEEDS = 2
"""The first version that has the table `failed`, and those of rounds and feeds."""
WITH_UNREADABLE = 4
"""The first version in which a request that could not be read back has failed."""
WITH_IDENTITY = 4
"""The first version that has the table `identity`."""
WITH_LATER = 4
"""The first version that has the tables `later` and `holds`."""
WITH_DICTIONARIES = 4
"""The first version whose requests need the table `dictionaries` to be read."""


def version(connection: sqlite3.Connection) -> int:
    """Return the version in the header of a file."""
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    return int(found)


def dictionaries(connection: sqlite3.Connection) -> list[bytes]:
    """Return the dictionaries of the stored requests, oldest first."""
    if version(connection) < WITH_DICTIONARIES:
        return []
    rows = connection.execute("SELECT dictionary FROM dictionaries ORDER BY number")
    return [found for (found,) in rows if isinstance(found, bytes)]


def look_as_now(connection: sqlite3.Connection) -> None:
    """Let this connection, which changes nothing, see all failed requests in `failed`, and the
    tables of delayed requests, holds and budgets."""
    if version(connection) < WITH_LATER:
        connection.execute(
            "CREATE TEMP VIEW later AS SELECT id, 0.0 AS due, slot, priority, start, request"
            " FROM main.requests WHERE 0"
        )
        connection.execute(
            "CREATE TEMP VIEW holds AS SELECT slot, 0.0 AS until, 0 AS times FROM later"
        )
        connection.execute(
            "CREATE TEMP VIEW round_counts AS SELECT NULL AS pages, NULL AS items,"
            " NULL AS duplicates, NULL AS retries"
        )
        connection.execute("CREATE TEMP VIEW budget AS SELECT id, slot FROM later")
        connection.execute("CREATE TEMP VIEW capped AS SELECT id, id AS budget, request FROM later")
    if WITH_FAILED <= version(connection) < WITH_UNREADABLE:
        connection.execute(
            "CREATE TEMP VIEW failed AS SELECT * FROM main.failed"  # noqa: S608 - no input
            f" UNION ALL SELECT id, {_AS_FAILED} FROM set_aside"
        )


def check(connection: sqlite3.Connection, version: int) -> None:
    """Raise sqlite3.DatabaseError unless the tables are those of `version`, before any of them is
    read: a view in the place of one may run for ever."""
    if statements(connection) != _tables(version):
        raise sqlite3.DatabaseError(f"its tables are not those of version {version}")


def statements(connection: sqlite3.Connection) -> set[str]:
    """Return the statements that have made the tables, views and triggers of a database, but those
    of SQLite's own tables."""
    rows = connection.execute("SELECT sql FROM sqlite_master WHERE sql NOT GLOB ?", (_SQLITES,))
    return {text for (text,) in rows}


def create(connection: sqlite3.Connection) -> None:
    """Make an empty database a request file of the current version."""
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    upgrade(connection, 0)


def upgrade(connection: sqlite3.Connection, version: int) -> None:
    """Upgrade a file of `version` to the current version, in the transaction of the caller."""
    for step in range(version + 1, VERSION + 1):
        for statement in STEPS[step]:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {step}")


def _tables(version: int) -> set[str]:
    found: dict[str, str] = {}
    for step in range(1, version + 1):
        for statement in STEPS[step]:
            verb, _, name, *_ = statement.split()
            if verb == "CREATE":
                found[name] = statement
            elif verb == "DROP":
                del found[name]
    return {*found.values()}
