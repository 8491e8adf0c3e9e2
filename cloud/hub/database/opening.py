"""A database by its address, with its tables up to date."""

from __future__ import annotations

from cloud.hub.database.engine import Database, Sqlite
from cloud.hub.database.schema import migrate

__all__ = ["opened"]


def opened(address: str) -> Database:
    """PostgreSQL for postgresql://…, else SQLite in the file of that path. Raises HubError if it cannot be used, and
    MissingExtraError without psycopg."""
    if address.startswith(("postgresql://", "postgres://")):
        from cloud.hub.database.postgres import Postgres

        database: Database = Postgres(address)
    else:
        database = Sqlite(address)
    try:
        migrate(database)
    except BaseException:
        database.close()
        raise
    return database
