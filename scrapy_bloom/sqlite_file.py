"""Opens files of SQLite; without Scrapy."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

BUSY_SECONDS = 5.0
"""Seconds that a write waits for another program that has locked the file."""


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Return a connection in one of SQLite's modes, which commits each statement outside a
    transaction at once, and overwrites with zeros what it deletes."""
    uri = f"file:{quote(os.fsencode(path.absolute()))}?mode={mode}"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    connection.execute("PRAGMA secure_delete = ON")  # by default it is a build's choice
    return connection


def statements(connection: sqlite3.Connection) -> set[str]:
    """Return the statements that have made the tables, views and triggers of a database, but those
    of SQLite's own tables."""
    of_others = "SELECT sql FROM sqlite_master WHERE sql NOT GLOB 'CREATE TABLE sqlite_*'"
    return {text for (text,) in connection.execute(of_others)}
