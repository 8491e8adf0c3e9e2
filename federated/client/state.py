"""A device's state between rounds: personal parameters, learned rates, residuals of its codec; its ledgers of secure
sums and of messages with noise, and the keys of devices that it met in sums.

One SQLite file. A state is stored with the run and the round that produced it, and a round starts from the newest state
of an *earlier* round: a round that is requested again (the server was killed and resumed) gives the same answer. With
SQLite's journal a commit is complete or absent whenever the process dies.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from federated.errors import FederatedError
from federated.messages.packed import pack, unpack
from federated.tree import Tree

__all__ = ["StateStore"]

VERSION = 1
_TABLE = """
create table if not exists state (
    device text not null, run text not null, round integer not null, data blob not null,
    primary key (device, run, round)
) without rowid
"""


_LEDGER = """
create table if not exists sums (
    device text not null, run text not null, round integer not null, task text not null,
    stage integer not null, input blob, primary key (device, run, round, task), unique (device, input)
) without rowid
"""
"""A row per sum, for ever: the stage answered last, and a digest of the input."""
_PEERS = """
create table if not exists peers (
    device text not null, peer blob not null, key blob not null, primary key (device, peer)
) without rowid
"""


_SPENT = """
create table if not exists spent (
    device text not null, run text not null, noise real not null, count integer not null,
    primary key (device, run, noise)
) without rowid
"""
"""How many messages with noise a device has sent in a run, by the noise's multiplier; never deleted."""


class StateStore:
    """States by device, run and round; a device is identified by the name of its node key.

    `path` None keeps them in memory. `durable` waits for the disk at each commit, so that a power failure loses
    nothing; without it a killed process still loses nothing. The newest `keep` states of a device and run are kept.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, durable: bool = True, keep: int = 2) -> None:
        self._keep = keep
        self._shown = ":memory:" if path is None else os.fspath(path)
        with self._guarded():
            self._base = sqlite3.connect(self._shown, isolation_level=None, check_same_thread=False, timeout=30)
            self._base.execute("pragma journal_mode = wal")
            self._base.execute(f"pragma synchronous = {'full' if durable else 'normal'}")
            for table in (_TABLE, _LEDGER, _PEERS, _SPENT):
                self._base.execute(table)
            found = int(self._base.execute("pragma user_version").fetchone()[0])
            if found not in (0, VERSION):
                raise FederatedError(
                    f"{self._shown}: expected states of version {VERSION}, got version {found}; a newer msedge wrote "
                    "them: install that version, or choose another file"
                )
            self._base.execute(f"pragma user_version = {VERSION}")

    def load(self, device: str, run: str, before: int) -> dict[str, Any] | None:
        """The newest state of a round earlier than `before`; None if there is none."""
        query = "select data from state where device = ? and run = ? and round < ? order by round desc limit 1"
        with self._guarded():
            row = self._base.execute(query, (device, run, before)).fetchone()
        return None if row is None else unpack(row[0], f"{self._shown}: state of {device}")[1]

    def save(self, device: str, run: str, number: int, tree: Tree) -> None:
        """Keep the state of round `number`; delete states of earlier rounds except the newest."""
        data = pack({}, tree)
        newest = "select round from state where device = ? and run = ? order by round desc limit ?"
        with self._guarded(), self._transaction():
            self._base.execute("insert or replace into state values (?, ?, ?, ?)", (device, run, number, data))
            self._base.execute(
                f"delete from state where device = ? and run = ? and round not in ({newest})",
                (device, run, device, run, self._keep),
            )

    def secret(self, device: str) -> bytes:
        """32 random bytes that identify a device as long as this file exists."""
        # No message names this device: names are printable.
        with self._guarded():
            fresh = pack({}, {"secret": np.frombuffer(os.urandom(32), np.uint8)})
            self._base.execute("insert or ignore into state values (?, '', 0, ?)", (f"{device}\0secret", fresh))
        kept = self.load(f"{device}\0secret", "", 1)
        if kept is None:
            raise FederatedError(f"{self._shown}: expected the secret of {device!r}, got none; choose another file")
        return bytes(kept["secret"].tobytes())

    def forget(self, device: str, runs: str = "*") -> None:
        """Delete a device's state: all of it, or that of runs whose names match a pattern with `*`."""
        with self._guarded():
            self._base.execute("delete from state where device = ? and run glob ?", (device, runs))

    def forget_others(self, device: str, runs: Collection[str]) -> None:
        """Delete a device's state except that of these runs."""
        kept = ", ".join("?" * len(runs))
        with self._guarded():
            self._base.execute(f"delete from state where device = ? and run not in ({kept})", (device, *runs))

    def begin_sum(self, device: str, run: str, number: int, stage: int, task: str = "train") -> None:
        """Enter a secure sum in the ledger, which is never deleted. Raises FederatedError if the device has answered in
        a sum of this run, round and task."""
        with self._guarded():
            added = self._base.execute(
                "insert or ignore into sums values (?, ?, ?, ?, ?, null)", (device, run, number, task, stage)
            )
        if not added.rowcount:
            raise FederatedError(
                f"secure sum: expected a round that this device has no part in yet, got round {number} again; a second "
                "sum with other devices could reveal an update: ask for another round"
            )

    def advance_sum(
        self,
        device: str,
        run: str,
        number: int,
        before: int,
        stage: int,
        put: bytes | None = None,
        task: str = "train",
    ) -> None:
        """Enter the next answer in the ledger, before it leaves. `put`: a digest of what is masked.

        Raises FederatedError if the stage before is not the last answered (another process has answered this request),
        or if the same input was in another sum.
        """
        where = "device = ? and run = ? and round = ? and task = ? and stage = ?"
        with self._guarded():
            try:
                changed = self._base.execute(
                    f"update sums set stage = ?, input = coalesce(?, input) where {where}",
                    (stage, put, device, run, number, task, before),
                )
            except sqlite3.IntegrityError as problem:
                raise FederatedError(
                    "secure sum: expected an update that was in no other sum, got the same again; repeat the work with "
                    "another rounds.seed, or from another model"
                ) from problem
        if not changed.rowcount:
            raise FederatedError(f"secure sum: round {number} of this run was already answered at this stage")

    def spend(self, device: str, run: str, noise: float) -> None:
        """Enter a message with noise of this multiplier, before it leaves."""
        with self._guarded():
            self._base.execute(
                "insert into spent values (?, ?, ?, 1) on conflict do update set count = count + 1",
                (device, run, noise),
            )

    def spent(self, device: str, run: str) -> dict[float, int]:
        """How many messages with noise the device has sent in a run, by multiplier."""
        with self._guarded():
            rows = self._base.execute("select noise, count from spent where device = ? and run = ?", (device, run))
            return {float(noise): int(count) for noise, count in rows}

    def meet(self, device: str, peers: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """Keep the keys of peers that have none yet; returns the kept ones of these peers."""
        with self._guarded(), self._transaction():
            self._base.executemany(
                "insert or ignore into peers values (?, ?, ?)", [(device, *each) for each in peers.items()]
            )
            rows = self._base.execute("select peer, key from peers where device = ?", (device,)).fetchall()
        return {peer: key for peer, key in rows if peer in peers}

    def close(self) -> None:
        """Close the file; the store must not be used afterwards."""
        self._base.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._base.execute("begin immediate")
        try:
            yield
        except BaseException:
            self._base.execute("rollback")
            raise
        self._base.execute("commit")

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as problem:
            raise FederatedError(
                f"{self._shown}: cannot keep device states there: {problem}; choose another file"
            ) from problem
