"""Personal versions of a model, collected from devices for serving: their differences from the global bundle.

One SQLite file. A version is stored only with its device's consent, for the configured retention, and is checked
against its bundle before it is written; all data of a device can be deleted.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from federated import tree
from federated.errors import FederatedError
from federated.messages.packed import pack, unpack
from federated.tree import Tree

__all__ = ["CONSENTS", "PersonalStore", "Retention", "Version"]

CONSENTS = ("none", "backup", "serve")
"""none: nothing leaves the device; backup: stored only for the device; serve: a server may also predict with it."""

DAY = 86_400.0

SCHEMA = """
CREATE TABLE IF NOT EXISTS versions (
    device TEXT NOT NULL, version INTEGER NOT NULL, base TEXT NOT NULL, round INTEGER NOT NULL,
    consent TEXT NOT NULL, created REAL NOT NULL, delta BLOB NOT NULL,
    PRIMARY KEY (device, version)
) WITHOUT ROWID
"""


@dataclass(frozen=True)
class Retention:
    """The retention of personal versions: the newest `versions` of a device, none older than `days`."""

    versions: int = 3
    days: float = 90.0

    def __post_init__(self) -> None:
        if self.versions < 1 or not 0 < self.days < float("inf"):
            raise FederatedError(
                f"retention: expected at least 1 version and some days, got {self.versions} and {self.days}"
            )


@dataclass(frozen=True)
class Version:
    """A personal version: `delta` is added to the state of the bundle with digest `base`; `created` in
    seconds since 1970."""

    device: str
    version: int
    base: str
    round: int
    consent: str
    created: float
    delta: Mapping[str, Any]

    def params(self, base: Tree) -> dict[str, Any]:
        """The device's parameters: the bundle's with the difference added; other parameters are the bundle's."""
        return {
            name: (leaf + self.delta[name]).astype(np.asarray(leaf).dtype) if name in self.delta else leaf
            for name, leaf in base.items()
        }


class PersonalStore:
    """Personal versions in the SQLite file `path`. Several processes may use it; methods are transactions."""

    def __init__(self, path: str | os.PathLike[str], retention: Retention = Retention()) -> None:
        self.path, self.retention = os.fspath(path), retention
        with self._database() as database:
            database.execute(SCHEMA)

    def put(
        self, device: str, base: str, params: Tree, base_params: Tree, *, round: int, consent: str
    ) -> Version | None:
        """Store a device's parameters as the difference from the bundle `base`; returns None without consent, and then
        deletes whatever was stored for the device before.

        Raises FederatedError for parameters that the bundle does not have, with other shapes or dtypes, or not finite.
        """
        if consent not in CONSENTS:
            raise FederatedError(f"consent: expected one of {', '.join(CONSENTS)}, got {consent!r}")
        if consent == "none":
            self.forget(device)
            return None
        delta = _difference(device, params, base_params)
        with self._database() as database:
            found = database.execute("SELECT max(version) FROM versions WHERE device = ?", (device,)).fetchone()[0]
            made = Version(device, (found or 0) + 1, base, round, consent, time.time(), delta)
            row = (device, made.version, base, round, consent, made.created, pack({}, delta))
            database.execute("INSERT INTO versions VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            self._expire(database, device)
        return made

    def get(self, device: str, version: int | None = None, *, serving: bool = False) -> Version | None:
        """A device's version, by default the newest; None if there is none, or, if `serving`, if the device did not
        consent to serving when it sent the version, or does not consent now."""
        query = "SELECT * FROM versions WHERE device = ? AND (? IS NULL OR version = ?) ORDER BY version DESC LIMIT 1"
        consent = "SELECT consent FROM versions WHERE device = ? ORDER BY version DESC LIMIT 1"
        with self._database() as database:
            self._expire(database, device)
            row = database.execute(query, (device, version, version)).fetchone()
            newest = database.execute(consent, (device,)).fetchone()
        if row is None or (serving and not row[4] == newest[0] == "serve"):
            return None
        name, number, base, round, agreed, created, delta = row
        _, found = unpack(delta, f"{self.path!r}, device {device!r}")
        return Version(name, number, base, round, agreed, created, found)

    def devices(self) -> dict[str, int]:
        """Every device with stored versions, and its newest version."""
        with self._database() as database:
            self._expire(database)
            return dict(database.execute("SELECT device, max(version) FROM versions GROUP BY device ORDER BY device"))

    def stamps(self) -> dict[str, tuple[int, float]]:
        """`devices`, with the time of that version: numbering restarts for a device that was deleted."""
        query = "SELECT device, max(version), created FROM versions GROUP BY device"  # created: of that very row
        with self._database() as database:
            self._expire(database)
            return {device: (version, created) for device, version, created in database.execute(query)}

    def forget(self, device: str) -> int:
        """Delete all of a device's versions; returns how many there were."""
        with self._database() as database:
            return database.execute("DELETE FROM versions WHERE device = ?", (device,)).rowcount

    def _expire(self, database: sqlite3.Connection, device: str | None = None) -> None:
        database.execute("DELETE FROM versions WHERE created < ?", (time.time() - DAY * self.retention.days,))
        if device is not None:
            newest = "SELECT version FROM versions WHERE device = ? ORDER BY version DESC LIMIT ?"
            database.execute(
                f"DELETE FROM versions WHERE device = ? AND version NOT IN ({newest})",
                (device, device, self.retention.versions),
            )

    @contextlib.contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """A connection with one transaction; deleted rows are overwritten with zeros."""
        try:
            with contextlib.closing(sqlite3.connect(self.path, timeout=30)) as database:
                database.execute("PRAGMA secure_delete = ON")
                with database:
                    database.execute("BEGIN IMMEDIATE")
                    yield database
        except sqlite3.Error as error:
            raise FederatedError(f"personal versions in {self.path!r}: {error}; check the file and its disk") from error


def _difference(device: str, params: Tree, base: Tree) -> dict[str, Any]:
    """The difference of flat trees, without the entries that are equal."""
    delta: dict[str, Any] = {}
    for name, leaf in tree.leaves(params):
        if name not in base:
            raise FederatedError(f"device {device!r}: {name!r} is not a parameter of the bundle")
        mine, theirs = np.asarray(leaf), np.asarray(base[name])
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            raise FederatedError(
                f"device {device!r}: {name!r}: expected {theirs.dtype}{list(theirs.shape)}, got "
                f"{mine.dtype}{list(mine.shape)}"
            )
        if mine.dtype.kind == "f" and not np.isfinite(mine).all():
            raise FederatedError(f"device {device!r}: {name!r} holds NaN or infinity")
        if not np.array_equal(mine, theirs):
            delta[name] = mine - theirs
    return delta
