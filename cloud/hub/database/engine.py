"""What the hub needs of a database, and SQLite as the one that is always there."""

from __future__ import annotations

import os
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from cloud.hub.errors import DatabaseError, HubError
from lite_runtime._files import locked

__all__ = ["Cursor", "Database", "Row", "Sqlite"]

Row = tuple[Any, ...]
_PATIENCE = 15.0
"""Seconds to wait for another process's transaction."""


class Cursor(ABC):
    """Statements of one transaction. Parameters are written as ?, in the dialect that SQLite and PostgreSQL share."""

    @abstractmethod
    def rows(self, words: str, *values: Any) -> list[Row]:
        """What a query finds."""

    @abstractmethod
    def run(self, words: str, *values: Any) -> int:
        """Run a statement; returns how many rows it changed."""

    @abstractmethod
    def many(self, words: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement once for each row of values."""

    @abstractmethod
    def alone(self, table: str) -> None:
        """Let no other transaction change this table until the end of this one."""

    @abstractmethod
    def attempt(self) -> AbstractContextManager[None]:
        """A part of the transaction that is undone alone if the block raises. Raises HubError for what a constraint
        forbids, and DatabaseError where the database failed: the whole transaction may be gone then."""

    def one(self, words: str, *values: Any) -> Row | None:
        """The first row that a query finds."""
        found = self.rows(words, *values)
        return found[0] if found else None


class Database(ABC):
    """One connection, for one thread at a time. Errors of the library become HubErrors that name the database."""

    shown: str
    """What messages call it: never a password."""
    kinds: dict[str, str]
    """The names of column types: text, whole, real."""

    @property
    def lost(self) -> bool:
        """Whether the connection has broken: the next transaction is on another one."""
        return False

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Cursor]:
        """A transaction that is durable when the block has ended, and undone if it raises."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[Cursor]:
        """A transaction that only reads, at one moment: it keeps no writer waiting, however long it takes."""

    @abstractmethod
    def another(self) -> Database:
        """A second connection, for another thread."""

    @abstractmethod
    def serve(self) -> None:
        """Let no other hub serve from this database until this connection is closed. Raises HubError if one does."""

    @abstractmethod
    def size(self) -> int:
        """Bytes on disk."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""


class _SqliteCursor(Cursor):
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, words: str, *values: Any) -> list[Row]:
        return self._connection.execute(words, values).fetchall()

    def run(self, words: str, *values: Any) -> int:
        return self._connection.execute(words, values).rowcount

    def many(self, words: str, rows: Iterable[Sequence[Any]]) -> None:
        self._connection.executemany(words, rows)

    def alone(self, table: str) -> None:
        """Nothing to do: a transaction that begins immediately is the only one that writes."""

    @contextmanager
    def attempt(self) -> Iterator[None]:
        self._connection.execute("SAVEPOINT attempt")
        try:
            yield
        except BaseException as problem:
            if isinstance(problem, sqlite3.Error) and not isinstance(problem, sqlite3.IntegrityError):
                raise DatabaseError(f"the database failed: {problem}; check space and permissions") from problem
            self._connection.execute("ROLLBACK TO attempt")
            self._connection.execute("RELEASE attempt")
            if isinstance(problem, sqlite3.IntegrityError):
                raise HubError(str(problem)) from problem
            raise
        self._connection.execute("RELEASE attempt")


class Sqlite(Database):
    """A file: write-ahead log, every commit on disk (synchronous = full), transactions that lock when they begin."""

    kinds = {"text": "TEXT", "whole": "INTEGER", "real": "REAL"}  # noqa: RUF012 - as the base class has it

    def __init__(self, path: str) -> None:
        self.shown, self._path = repr(path), path
        self._lock: int | None = None
        try:
            # Made before SQLite makes it, and the files beside it, as anybody could read: they hold the sessions' key.
            # One that is there is not opened: to close it would take the locks of this process's other connections.
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            self._connection = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False)
            self._log_ahead()
            self._connection.execute("PRAGMA synchronous = full")
        except (sqlite3.Error, OSError) as problem:
            raise DatabaseError(
                f"cannot open {path!r} as a hub's database: {problem}; check the folder and its permissions"
            ) from problem
        if os.stat(path).st_mode & 0o077:
            os.chmod(path, 0o600)

    def _log_ahead(self) -> None:
        """Turn the write-ahead log on. SQLite does not wait for others that do the same to a new file."""
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = wal")
                return
            except sqlite3.OperationalError as problem:
                if "locked" not in str(problem) or time.monotonic() > end:
                    raise
                time.sleep(0.02)

    def transaction(self) -> AbstractContextManager[Cursor]:
        """See Database."""
        return self._began("BEGIN IMMEDIATE")

    def reading(self) -> AbstractContextManager[Cursor]:
        """See Database."""
        return self._began("BEGIN")

    @contextmanager
    def _began(self, words: str) -> Iterator[Cursor]:
        try:
            self._connection.execute(words)
            try:
                yield _SqliteCursor(self._connection)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as problem:
            raise DatabaseError(f"cannot use {self.shown}: {problem}; check space and permissions") from problem

    def another(self) -> Sqlite:
        """See Database."""
        return Sqlite(self._path)

    def serve(self) -> None:
        """See Database. The lock is on a file beside the database, and ends with the process."""
        lock = locked(f"{self._path}-serving")
        if lock is None:
            raise HubError(f"{self.shown}: another hub serves from this database; stop it first")
        self._lock = lock

    def size(self) -> int:
        """See Database; with the log."""
        return sum(os.path.getsize(f"{self._path}{end}") for end in ("", "-wal") if os.path.exists(self._path + end))

    def close(self) -> None:
        """See Database."""
        self._connection.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
