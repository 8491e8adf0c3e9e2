"""Databases for the hub's tests: a file, and PostgreSQL where it is installed."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.cloud.hub import postgres


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The address of a server."""
    if postgres.binaries() is None or importlib.util.find_spec("psycopg") is None:
        pytest.skip("PostgreSQL, or psycopg, is not installed")
    with tempfile.TemporaryDirectory(prefix="msedge-pg-", dir="/tmp") as folder, postgres.server(Path(folder)) as found:
        yield found


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new, empty database of each kind."""
    if request.param == "sqlite":
        return str(tmp_path / "hub.sqlite")
    server: str = request.getfixturevalue("postgres_server")
    import psycopg

    name = f"t{abs(hash(request.node.nodeid)) % 10**12}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'.encode())
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
    return server.replace("/postgres?", f"/{quote(name)}?")
