"""`Store`: the SQLite file that records runs. Several processes may use it at once."""

from __future__ import annotations

import json
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from cloud.errors import TrackError
from cloud.track.facts import host
from cloud.track.names import fresh_name
from cloud.track.rows import artifact_of, document_of, event_of, histogram_of, name_of, newest_of, point_of, run_of
from cloud.track.runs import Artifact, Event, Histogram, Run, Series
from cloud.track.schema import DOCUMENTS, opened

__all__ = ["Store", "default_path"]

Made = TypeVar("Made")
Row = tuple[str, int, float, float]
"""(name, step, time, value) of one value of a scalar."""


_FIRST = -(1 << 63)
"""Below every step."""


def default_path() -> Path:
    """The path in MSEDGE_RUNS, or runs.sqlite in the working folder."""
    return Path(os.environ.get("MSEDGE_RUNS") or "runs.sqlite")


class Store:
    """Runs in the file `path`; `create` creates it if it does not exist, otherwise a missing file is a TrackError.

    Methods may be called from several threads of one process, one at a time; every call is a transaction.
    """

    def __init__(self, path: str | os.PathLike[str], *, create: bool = False) -> None:
        self.path = os.fspath(path)
        self._database = opened(self.path, create=create)
        self._series: dict[tuple[str, str], int] = {}

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- writing

    def start(
        self, *, name: str = "", config: Mapping[str, Any] | None = None, environment: Mapping[str, Any] | None = None,
        git: Mapping[str, Any] | None = None, seed: int | None = None, data: str = "", model: str = "",
        plan_digest: str = "", plan: Mapping[str, Any] | None = None, parent: str = "",
    ) -> str:  # fmt: skip
        """Add a run of this process, in state "running"; returns its id."""
        now = time.time()
        facts = [_json(config or {}), _json(environment or {}), _json(git or {}), seed, data, model, plan_digest]
        while True:
            made = fresh_name()
            row = [made, name, "running", now, None, now, host(), os.getpid(), parent, *facts, _json(plan), ""]
            marks = ", ".join("?" * len(row))
            with self._transaction() as database:
                # An id that is taken inserts nothing.
                if database.execute(f"INSERT OR IGNORE INTO runs VALUES ({marks})", row).rowcount:
                    return made

    def describe(self, run: str, **facts: Any) -> None:
        """Set fields that became known later: data, model, plan_digest, plan, environment, seed."""
        columns = ("data", "model", "plan_digest", "plan", "environment", "seed")
        if unknown := [name for name in facts if name not in columns]:
            raise TrackError(f"expected fields of a run among {', '.join(columns)}; got {', '.join(unknown)}")
        values = [_json(v) if name in ("plan", "environment") else v for name, v in facts.items()]
        with self._transaction() as database:
            database.execute(f"UPDATE runs SET {', '.join(f'{c} = ?' for c in facts)} WHERE id = ?", [*values, run])

    def reopen(self, run: str) -> None:
        """Continue a run in this process."""
        with self._transaction() as database:
            words = "UPDATE runs SET state = 'running', ended = NULL, heartbeat = ?, host = ?, process = ? WHERE id = ?"
            database.execute(words, (time.time(), host(), os.getpid(), run))

    def end(self, run: str, state: str, error: str = "") -> None:
        """Close a run as "finished", "failed" or "stopped"."""
        now = time.time()
        with self._transaction() as database:
            words = "UPDATE runs SET state = ?, ended = ?, heartbeat = ?, error = ? WHERE id = ?"
            database.execute(words, (state, now, now, error, run))

    def beat(self, run: str) -> None:
        """Write a heartbeat."""
        with self._transaction() as database:
            database.execute("UPDATE runs SET heartbeat = ? WHERE id = ?", (time.time(), run))

    def add_scalars(self, run: str, rows: Iterable[Row]) -> None:
        """A step that is added again replaces its old values. Values that are not finite are stored as gaps."""
        with self._transaction() as database:
            database.executemany(
                "INSERT OR REPLACE INTO scalars VALUES (?, ?, ?, ?)",
                [
                    (self._series_of(database, run, name), step, when, value if math.isfinite(value) else None)
                    for name, step, when, value in rows
                ],
            )

    def add_histogram(self, run: str, name: str, made: Histogram) -> None:
        """Record a distribution of values."""
        spread = {"edges": made.edges, "counts": made.counts, "mean": made.mean, "norm": made.norm}
        with self._transaction() as database:
            row = (run, name, made.step, _json(spread))
            database.execute("INSERT OR REPLACE INTO histograms VALUES (?, ?, ?, ?)", row)

    def add_artifact(self, run: str, made: Artifact) -> None:
        """Record a file: its path, its digest and what it was made from."""
        with self._transaction() as database:
            row = (run, made.kind, made.path, made.digest, made.bytes, made.time, made.source)
            database.execute("INSERT OR REPLACE INTO artifacts VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def add_event(self, run: str, kind: str, text: str) -> None:
        """Record an event with the present time."""
        with self._transaction() as database:
            database.execute("INSERT INTO events VALUES (?, ?, ?, ?)", (run, time.time(), kind, text))

    def add_document(self, run: str, name: str, body: Mapping[str, Any]) -> None:
        """Record JSON data of the run under a name, instead of what has that name: "graph", "profile" …"""
        with self._transaction() as database:
            database.execute(DOCUMENTS)
            database.execute("INSERT OR REPLACE INTO documents VALUES (?, ?, ?)", (run, name, _json(body)))

    # --- reading

    def runs(self) -> list[Run]:
        """All runs, the newest first."""
        return self._read(run_of, "SELECT * FROM runs ORDER BY created DESC, rowid DESC")

    def run(self, which: str) -> Run:
        """The run with that id, a unique beginning of one, or a name (its newest run); "latest" is the newest of all.

        Raises TrackError.
        """
        exact = self._read(run_of, "SELECT * FROM runs WHERE id = ?", which)
        if exact:
            return exact[0]
        known = self.runs()
        if which == "latest" and known:
            return known[0]
        begins = [run for run in known if run.id.startswith(which)]
        named = [run for run in known if run.name == which]
        if len(begins) > 1 and not named:
            raise TrackError(f"{which!r} begins several runs: {', '.join(run.id for run in begins)}; give more letters")
        if found := named or begins:
            return found[0]
        shown = ", ".join(run.id for run in known[:5]) or "none yet"
        raise TrackError(f"{self.path!r} has no run {which!r}; the newest are {shown} (msedge runs list shows all)")

    def names(self, run: str) -> list[str]:
        """The names of the run's scalars."""
        return self._read(name_of, "SELECT name FROM series WHERE run = ? ORDER BY name", run)

    def scalars(self, run: str, name: str, most: int | None = None, after: int | None = None) -> Series:
        """A scalar over steps, of steps above `after`; with more than `most` points, every n-th and the last."""
        points = self._read(
            point_of, "SELECT step, value, time FROM scalars JOIN series ON scalars.series = series.id "
            "WHERE run = ? AND name = ? AND step > ? ORDER BY step", run, name, _FIRST if after is None else after,
        )  # fmt: skip
        if most is not None and len(points) > most:
            stride = -(-len(points) // most)
            points = points[::stride] + (points[-1:] if (len(points) - 1) % stride else [])
        steps, values, times = zip(*points, strict=True) if points else ((), (), ())
        return Series(tuple(steps), tuple(values), tuple(times))

    def last(self, run: str) -> dict[str, float]:
        """The newest value of every scalar."""
        pairs = self._read(
            newest_of, "SELECT name, value, max(step) FROM scalars JOIN series ON scalars.series = series.id "
            "WHERE run = ? GROUP BY name ORDER BY name", run,
        )  # fmt: skip
        return dict(pairs)

    def histograms(self, run: str) -> dict[str, list[Histogram]]:
        """Distributions by name, in the order of steps."""
        found: dict[str, list[Histogram]] = {}
        words = "SELECT name, step, spread FROM histograms WHERE run = ? ORDER BY name, step"
        for name, made in self._read(histogram_of, words, run):
            found.setdefault(name, []).append(made)
        return found

    def artifacts(self, run: str) -> list[Artifact]:
        """Files that the run wrote, the oldest first."""
        words = "SELECT kind, path, digest, bytes, time, source FROM artifacts WHERE run = ? ORDER BY time"
        return self._read(artifact_of, words, run)

    def makers(self, digest: str) -> list[tuple[str, Artifact]]:
        """(run, artifact) of every file with these contents."""
        words = "SELECT run, kind, path, digest, bytes, time, source FROM artifacts WHERE digest = ? ORDER BY time"
        return self._read(lambda row: (name_of(row[:1]), artifact_of(row[1:])), words, digest)

    def document(self, run: str, name: str) -> dict[str, Any]:
        """JSON data that the run recorded under a name; {} if it did not."""
        known = "SELECT count(*) FROM sqlite_master WHERE name = 'documents'"
        if not self._read(lambda row: row[0], known)[0]:
            return {}
        found = self._read(document_of, "SELECT body FROM documents WHERE run = ? AND name = ?", run, name)
        return found[0] if found else {}

    def events(self, run: str) -> list[Event]:
        """The run's events, in order."""
        return self._read(event_of, "SELECT time, kind, text FROM events WHERE run = ? ORDER BY time, rowid", run)

    # --- inside

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                self._series.clear()  # they may contain ids of the transaction that is rolled back
                self._database.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise TrackError(f"cannot write to {self.path!r}: {error}; check space and permissions") from error

    def _read(self, made: Callable[[Sequence[Any]], Made], words: str, *values: Any) -> list[Made]:
        """`made(row)` for each row found."""
        try:
            return [made(row) for row in self._database.execute(words, values)]
        except (sqlite3.Error, ValueError, TypeError, KeyError) as error:
            raise TrackError(
                f"cannot read {self.path!r}: {error}; it is damaged: restore a copy, or start another store (--runs)"
            ) from error

    def _series_of(self, database: sqlite3.Connection, run: str, name: str) -> int:
        if (run, name) not in self._series:
            database.execute("INSERT OR IGNORE INTO series (run, name) VALUES (?, ?)", (run, name))
            row = database.execute("SELECT id FROM series WHERE run = ? AND name = ?", (run, name)).fetchone()
            self._series[run, name] = int(row[0])
        return self._series[run, name]


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise TrackError(f"expected fields of a run that JSON can hold, got {type(value).__name__}: {error}") from error
