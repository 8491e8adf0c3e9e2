"""The store's tables, and opening its file."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from cloud.errors import TrackError

__all__ = ["DOCUMENTS", "SCHEMA", "VERSION", "opened"]

VERSION = 1
"""The version of the tables, kept in SQLite's user_version."""

SCHEMA = """
CREATE TABLE runs (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, state TEXT NOT NULL, created REAL NOT NULL, ended REAL,
    heartbeat REAL NOT NULL, host TEXT NOT NULL, process INTEGER NOT NULL, parent TEXT NOT NULL, config TEXT NOT NULL,
    environment TEXT NOT NULL, git TEXT NOT NULL, seed INTEGER, data TEXT NOT NULL, model TEXT NOT NULL,
    plan_digest TEXT NOT NULL, plan TEXT NOT NULL, error TEXT NOT NULL
);
CREATE TABLE series (id INTEGER PRIMARY KEY, run TEXT NOT NULL, name TEXT NOT NULL, UNIQUE (run, name));
CREATE TABLE scalars (
    series INTEGER NOT NULL, step INTEGER NOT NULL, time REAL NOT NULL, value REAL, PRIMARY KEY (series, step)
) WITHOUT ROWID;
CREATE TABLE histograms (
    run TEXT NOT NULL, name TEXT NOT NULL, step INTEGER NOT NULL, spread TEXT NOT NULL, PRIMARY KEY (run, name, step)
) WITHOUT ROWID;
CREATE TABLE artifacts (
    run TEXT NOT NULL, kind TEXT NOT NULL, path TEXT NOT NULL, digest TEXT NOT NULL, bytes INTEGER NOT NULL,
    time REAL NOT NULL, source TEXT NOT NULL, PRIMARY KEY (run, kind, digest)
) WITHOUT ROWID;
CREATE INDEX artifacts_by_digest ON artifacts (digest);
CREATE TABLE events (run TEXT NOT NULL, time REAL NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL);
CREATE INDEX events_by_run ON events (run, time);
"""

DOCUMENTS = """
CREATE TABLE IF NOT EXISTS documents (
    run TEXT NOT NULL, name TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (run, name)
) WITHOUT ROWID
"""
"""Made with the first document, so that earlier releases read a store that has none, and this one reads theirs."""

_PATIENCE = 15.0
"""Seconds to wait for another process's transaction."""


def opened(path: str, *, create: bool) -> sqlite3.Connection:
    """A connection in autocommit mode to a store of this version. Raises TrackError."""
    if not create and not Path(path).is_file():
        raise TrackError(f"there is no store of runs at {path!r}; msedge train creates one, --runs selects one")
    try:
        database = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise TrackError(f"cannot open {path!r} as a store of runs: {error}; check folder and permissions") from error
    try:
        _prepare(database)
        found = database.execute("PRAGMA user_version").fetchone()[0]
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the error for a damaged file may contain any bytes
        database.close()
        raise TrackError(f"cannot use {path!r} as a store of runs: {error}; name another file with --runs") from error
    if found != VERSION:
        database.close()
        raise TrackError(f"{path!r}: expected a store of version {VERSION}, got {found}; use the msedge that wrote it")
    return database


def _prepare(database: sqlite3.Connection) -> None:
    """Create tables and the write-ahead log in a new file; a file with other contents is not changed."""
    database.execute("PRAGMA synchronous = normal")
    if not _is_new(database):
        return
    _log_ahead(database)
    database.execute("BEGIN IMMEDIATE")
    try:
        if _is_new(database):  # checked again: another process may have been faster
            for statement in SCHEMA.split(";"):
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {VERSION}")
        database.execute("COMMIT")
    except BaseException:
        database.execute("ROLLBACK")
        raise


def _is_new(database: sqlite3.Connection) -> bool:
    tables, version = "SELECT count(*) FROM sqlite_master", "PRAGMA user_version"
    return not any(database.execute(words).fetchone()[0] for words in (tables, version))


def _log_ahead(database: sqlite3.Connection) -> None:
    """SQLite does not wait for other processes when it switches this mode, so we retry."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            database.execute("PRAGMA journal_mode = wal")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
