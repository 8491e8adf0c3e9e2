"""What a tracker of another library has to offer, and how a run of the store gets there.

A run is copied from the store, not from the trainer: a step costs nothing more, a tracker that does not answer keeps no
step waiting, and what could not be sent is sent later, at the latest by `msedge runs export`.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from cloud.errors import TrackError
from cloud.track.runs import Artifact, Run, Series
from cloud.track.store import Store

__all__ = ["Copy", "Follower", "export", "flat"]

_EVERY = 2.0
"""Seconds between two passes."""


class Copy(Protocol):
    """A place in another tracker. Every method raises TrackError if it is not reached."""

    what: str
    """Its name in messages."""

    def begin(self, run: Run) -> None:
        """Start a run there, or go on with the one that was started for this run."""

    def scalars(self, run: Run, series: Mapping[str, Series]) -> None:
        """Add points by name, after all that came before."""

    def file(self, made: Artifact) -> None:
        """Add a file that the run wrote."""

    def end(self, run: Run) -> None:
        """Say how the run ended. Files, or a `begin` that continues it, may follow."""

    def close(self) -> None:
        """Nothing follows."""


def export(store: Store, run: Run, copy: Copy) -> None:
    """Copy a run, with its files that are still there. Raises TrackError."""
    copy.begin(run)
    try:
        _pass(store, run, copy, {})
        for made in store.artifacts(run.id):
            if os.path.isfile(made.path):
                copy.file(made)
        copy.end(run)
    finally:
        copy.close()


def _pass(store: Store, run: Run, copy: Copy, sent: dict[str, int]) -> None:
    """Send what is new; `sent`: the last step of every scalar."""
    found = {name: store.scalars(run.id, name, after=sent.get(name)) for name in store.names(run.id)}
    found = {name: series for name, series in found.items() if len(series)}
    if found:
        copy.scalars(run, found)
    sent |= {name: series.steps[-1] for name, series in found.items()}


class Follower:
    """Copies a run of the store at `path` while it trains. What cannot be sent is a warning at the end; training
    continues."""

    def __init__(self, path: str | os.PathLike[str], run: str, copy: Copy) -> None:
        self._path, self._run, self._copy = path, run, copy
        self._sent: dict[str, int] = {}
        self._failed: TrackError | None = None
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, or continue. Raises TrackError if the other tracker is not there."""
        with Store(self._path) as store:
            self._copy.begin(store.run(self._run))
        self._done.clear()
        self._thread = threading.Thread(target=self._work, name=f"copy to {self._copy.what}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Send the rest and how the run ended, which the store says by now."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._attempt(lambda store, run: _pass(store, run, self._copy, self._sent))
        unsent = self._failed
        self._attempt(lambda _, run: self._copy.end(run))
        self._failed = self._failed or unsent
        self._tell()

    def file(self, made: Artifact) -> None:
        """Add a file."""
        self._attempt(lambda store, run: self._copy.file(made))
        self._tell()

    def close(self) -> None:
        """Nothing follows."""
        self._attempt(lambda store, run: self._copy.close())
        self._tell()

    def _work(self) -> None:
        while not self._done.wait(_EVERY):
            self._attempt(lambda store, run: _pass(store, run, self._copy, self._sent))

    def _attempt(self, act: Callable[[Store, Run], None]) -> None:
        try:
            with Store(self._path) as store:
                act(store, store.run(self._run))
        except TrackError as error:
            self._failed = error
            return
        self._failed = None

    def _tell(self) -> None:
        """Warn of what could not be sent."""
        if self._failed is None:
            return
        problem, self._failed = self._failed, None
        how = f"send it later with msedge runs export {self._run}"
        warnings.warn(f"the copy of run {self._run} is incomplete: {problem}; {how}", RuntimeWarning, stacklevel=4)


def flat(value: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Nested settings as texts: {"train.rate": "0.1"}."""
    made: dict[str, str] = {}
    for key, inner in value.items():
        made |= flat(inner, f"{before}{key}.") if isinstance(inner, Mapping) else {f"{before}{key}": str(inner)}
    return made
