"""Personal versions of a model, collected from devices for serving: their differences from the global bundle.

One SQLite file. A version is stored only with its device's consent, for the configured retention, and is checked
against its bundle before it is written; all data of a device can be deleted. The file holds its retention, so that only
whoever collects versions decides about it: `PersonalReader` changes nothing and takes no lock that a writer waits for.
"""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np

from federated import tree
from federated.errors import FederatedError
from federated.messages.packed import pack, unpack
from federated.tree import Tree

__all__ = ["CONSENTS", "PersonalReader", "PersonalStore", "Retention", "Version"]

CONSENTS = ("none", "backup", "serve")
"""none: nothing leaves the device; backup: stored only for the device; serve: a server may also predict with it."""

DAY = 86_400.0
PATIENCE = 1.0
"""Seconds that a reader waits for a writer that is committing."""

SCHEMA = (
    """CREATE TABLE IF NOT EXISTS versions (
    device TEXT NOT NULL, version INTEGER NOT NULL, base TEXT NOT NULL, round INTEGER NOT NULL,
    consent TEXT NOT NULL, created REAL NOT NULL, delta BLOB NOT NULL,
    PRIMARY KEY (device, version)
) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS retention (
    only INTEGER PRIMARY KEY CHECK (only = 1), versions INTEGER NOT NULL, days REAL NOT NULL
)""",
)


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


class PersonalReader:
    """Reads the personal versions in the SQLite file `path`, which must exist; never writes.

    Versions older than the retention in the file are not returned; the file's owner deletes them. Several processes may
    use the file. Methods raise FederatedError if it cannot be read within `patience` seconds.
    """

    _mode = "ro"

    def __init__(self, path: str | os.PathLike[str], *, patience: float = PATIENCE) -> None:
        """Raises FederatedError for a missing file, and for one that is no store."""
        self.path, self._patience = os.fspath(path), patience
        with self._database() as database:
            database.execute("SELECT device FROM versions LIMIT 0")

    @property
    def retention(self) -> Retention:
        """The retention that the file holds."""
        with self._database() as database:
            return _retention(database) or Retention()

    def get(self, device: str, version: int | None = None, *, serving: bool = False) -> Version | None:
        """A device's version, by default the newest; None if there is none, or, if `serving`, if the device did not
        consent to serving when it sent the version, or does not consent now."""
        query = (
            "SELECT * FROM versions WHERE device = ? AND (? IS NULL OR version = ?) AND created >= ?"
            " ORDER BY version DESC LIMIT 1"
        )
        consent = "SELECT consent FROM versions WHERE device = ? ORDER BY version DESC LIMIT 1"
        with self._database() as database:
            row = database.execute(query, (device, version, version, _oldest(database))).fetchone()
            newest = database.execute(consent, (device,)).fetchone()
        if row is None or (serving and not row[4] == newest[0] == "serve"):
            return None
        name, number, base, round, agreed, created, delta = row
        _, found = unpack(delta, f"{self.path!r}, device {device!r}")
        return Version(name, number, base, round, agreed, created, found)

    def devices(self) -> dict[str, int]:
        """Every device with stored versions, and its newest version."""
        return {device: version for device, (version, _) in sorted(self.stamps().items())}

    def stamps(self) -> dict[str, tuple[int, float]]:
        """`devices`, with the time of that version: numbering restarts for a device that was deleted."""
        # SQLite takes `created` from the row with the largest version.
        query = "SELECT device, max(version), created FROM versions WHERE created >= ? GROUP BY device"
        with self._database() as database:
            found = database.execute(query, (_oldest(database),))
            return {device: (version, created) for device, version, created in found}

    @contextlib.contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """A connection with one transaction; never creates the file."""
        try:
            address = f"file:{quote(self.path)}?mode={self._mode}"
            with contextlib.closing(sqlite3.connect(address, uri=True, timeout=self._patience)) as database, database:
                self._begin(database)
                yield database
        except sqlite3.Error as error:
            why = error if os.path.exists(self.path) else "there is no such file"
            raise FederatedError(f"personal versions in {self.path!r}: {why}; check the file and its disk") from error

    def _begin(self, database: sqlite3.Connection) -> None:
        database.execute("BEGIN")


class PersonalStore(PersonalReader):
    """The personal versions in the SQLite file `path`, for whoever collects them; the file is created if necessary.

    retention: written into the file; None: what the file holds, or `Retention()` for a new file. What exceeds it is
    deleted by `put` and `expire` only.
    """

    _mode = "rw"

    def __init__(self, path: str | os.PathLike[str], retention: Retention | None = None) -> None:
        """Raises FederatedError for a file that is no store."""
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        self.path, self._patience = os.fspath(path), 30.0
        with self._database() as database:
            for table in SCHEMA:
                database.execute(table)
            kept = retention or _retention(database) or Retention()
            database.execute("INSERT OR REPLACE INTO retention VALUES (1, ?, ?)", (kept.versions, kept.days))

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
            _expire(database, device)
        return made

    def expire(self) -> int:
        """Delete all versions that exceed the retention; returns how many there were."""
        with self._database() as database:
            return _expire(database)

    def forget(self, device: str) -> int:
        """Delete all of a device's versions; returns how many there were."""
        with self._database() as database:
            return database.execute("DELETE FROM versions WHERE device = ?", (device,)).rowcount

    def _begin(self, database: sqlite3.Connection) -> None:
        """Deleted rows are overwritten with zeros."""
        database.execute("PRAGMA secure_delete = ON")
        database.execute("BEGIN IMMEDIATE")


def _retention(database: sqlite3.Connection) -> Retention | None:
    """The retention in the file; None in a file from before it was stored there."""
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'retention'").fetchone():
        return None
    row = database.execute("SELECT versions, days FROM retention").fetchone()
    return Retention(*row) if row is not None else None


def _oldest(database: sqlite3.Connection) -> float:
    """The time before which versions are no longer used."""
    kept = _retention(database)
    return time.time() - DAY * kept.days if kept is not None else -math.inf


def _expire(database: sqlite3.Connection, device: str | None = None) -> int:
    """Delete what is too old, and the surplus versions of one device or of all; returns how many versions."""
    kept = _retention(database) or Retention()
    old = database.execute("DELETE FROM versions WHERE created < ?", (time.time() - DAY * kept.days,)).rowcount
    surplus = (
        "DELETE FROM versions AS v WHERE (? IS NULL OR device = ?) AND ?"
        " <= (SELECT count(*) FROM versions WHERE device = v.device AND version > v.version)"
    )
    return old + database.execute(surplus, (device, device, kept.versions)).rowcount


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
