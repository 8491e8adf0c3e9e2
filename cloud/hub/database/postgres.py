"""PostgreSQL, for fleets that outgrow one machine. The only module that imports psycopg."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from cloud.hub.database.engine import Cursor, Database, Row
from cloud.hub.errors import HubError
from lite_runtime.errors import MissingExtraError

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
except ModuleNotFoundError as _error:
    raise MissingExtraError("psycopg[binary]", "postgres", "a hub's database in PostgreSQL needs it") from _error

__all__ = ["Postgres"]

_MOMENT = 5.0
_SERVES = 0x6D736564
"""The number of the lock that a hub holds while it serves."""


class _PostgresCursor(Cursor):
    def __init__(self, cursor: psycopg.Cursor[Row]) -> None:
        self._cursor = cursor

    def rows(self, words: str, *values: Any) -> list[Row]:
        return self._cursor.execute(_marked(words), values).fetchall()

    def run(self, words: str, *values: Any) -> int:
        return self._cursor.execute(_marked(words), values).rowcount

    def many(self, words: str, rows: Iterable[Sequence[Any]]) -> None:
        self._cursor.executemany(_marked(words), rows)

    def alone(self, table: str) -> None:
        self._cursor.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE".encode())

    @contextmanager
    def attempt(self) -> Iterator[None]:
        with self._cursor.connection.transaction():  # inside another: a savepoint
            yield


def _marked(words: str) -> bytes:
    """With psycopg's marks for parameters; statements of this package contain no other ? and no %."""
    return words.replace("?", "%s").encode()


class Postgres(Database):
    """A database that a URL or a connection string of libpq names, in its schema `msedge`."""

    kinds = {"text": "TEXT", "whole": "BIGINT", "real": "DOUBLE PRECISION"}  # noqa: RUF012 - as the base class has it

    def __init__(self, address: str) -> None:
        self._address = address
        try:
            parts = conninfo_to_dict(address)
            name = f"{parts.get('host', '')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"
            self.shown = f"PostgreSQL at {name}"
            self._connection: psycopg.Connection[Row] = psycopg.connect(address, autocommit=True, connect_timeout=15)
            with self._connection.cursor() as cursor:
                cursor.execute("CREATE SCHEMA IF NOT EXISTS msedge")
                cursor.execute("SET search_path = msedge")
        except psycopg.Error as problem:
            raise HubError(f"cannot open PostgreSQL: {problem}; check the address and that the server runs") from None

    def transaction(self) -> AbstractContextManager[Cursor]:
        """See Database."""
        return self._began("")

    def reading(self) -> AbstractContextManager[Cursor]:
        """See Database."""
        return self._began("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")

    @contextmanager
    def _began(self, words: str) -> Iterator[Cursor]:
        try:
            with self._connection.transaction(), self._connection.cursor() as cursor:
                if words:
                    cursor.execute(words.encode())
                yield _PostgresCursor(cursor)
        except psycopg.Error as problem:
            self._renew()
            raise HubError(f"cannot use {self.shown}: {problem}; check the server") from problem

    def _renew(self) -> None:
        """After a lost connection: the next transaction uses another one."""
        if self._connection.closed:
            try:
                fresh = Postgres(self._address)
            except HubError:
                return
            self._connection = fresh._connection

    def another(self) -> Postgres:
        """See Database."""
        return Postgres(self._address)

    def serve(self) -> None:
        """See Database. The lock ends with the connection: of a hub that was killed, a moment later."""
        end = time.monotonic() + _MOMENT
        while True:
            with self._connection.cursor() as cursor:
                found = cursor.execute("SELECT pg_try_advisory_lock(%s)", (_SERVES,)).fetchone()
            if found is not None and found[0]:
                return
            if time.monotonic() > end:
                raise HubError(f"{self.shown}: another hub serves from this database; stop it first")
            time.sleep(0.05)

    def size(self) -> int:
        """See Database."""
        with self.transaction() as cursor:
            found = cursor.one("SELECT pg_database_size(current_database())")
        return int(found[0]) if found else 0

    def close(self) -> None:
        """See Database."""
        self._connection.close()
