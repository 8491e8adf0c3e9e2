"""A repository in memory for tests of the agent: it is the agent's `Source`, without signatures, with faults."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from edge.agent.errors import FetchError, MissingError
from edge.agent.machine import Facts, Machine
from lite_runtime import bundle
from lite_runtime.graph import Array, Graph, Node, Value
from lite_runtime.updates.pieces import file_of
from lite_runtime.updates.release import Channel, Release, Requirements

__all__ = ["APP", "Here", "Shelf", "model"]

APP = "keywords"
CHUNK = 4096
ANY = Requirements()


def model(factor: float, golden: float | None = None, size: int = 20_000, seed: int = 0) -> bytes:
    """A bundle that multiplies x float32 [1, 4] by a factor, with a table of `size` random numbers that only the seed
    changes, and a golden sample that says so (or something else)."""
    table = np.random.default_rng(seed).standard_normal(size).astype(np.float32)
    x, y = Value("x", "float32", (1, 4)), Value("y", "float32", (1, 4))
    t = Value("t", "float32", (size,))
    nodes = (Node("Mul", ("x", "k"), ("y",)), Node("Add", ("table", "zero"), ("t",)))
    constants = {"k": np.array(factor, np.float32), "table": table, "zero": np.zeros(1, np.float32)}
    given = np.arange(4, dtype=np.float32).reshape(1, 4)
    expected: dict[str, Array] = {"y": given * np.float32(factor if golden is None else golden)}
    return bundle.write(
        None, {"predict": Graph((x,), (y, t), nodes, constants)}, golden={"predict": ({"x": given}, expected)}
    )


class Shelf:
    """Versions of applications. fault: called with what is asked for and how many bytes were given before each part;
    may raise, or return other bytes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.releases: dict[tuple[str, str], Release] = {}
        self.channels: dict[tuple[str, str], list[str]] = {}
        self.pieces: dict[str, bytes] = {}
        self.deltas: dict[tuple[str, str], bytes] = {}
        self.fault: Callable[[str, int, bytes], bytes] = lambda what, at, part: part
        self.down, self.given = False, 0
        """Whether nothing answers; bytes that were given."""

    def add(self, version: str, files: Mapping[str, bytes], needs: Requirements = ANY, name: str = APP) -> Release:
        rows = {}
        for label, data in files.items():
            path = self.folder / f"{version}-{label}"
            path.write_bytes(data)
            rows[label] = file_of(path)
            at = 0
            for piece in rows[label].pieces:
                self.pieces[piece.sha256] = data[at : at + piece.size]
                at += piece.size
        made = Release(name, version, rows, needs)
        self.releases[name, version] = made
        self.channels.setdefault((name, "stable"), []).append(version)
        return made

    def refresh(self) -> None:
        if self.down:
            raise FetchError("the repository does not answer")

    def release(self, application: str, version: str) -> Release:
        if (application, version) not in self.releases:
            raise MissingError(f"no {application} {version}")
        return self.releases[application, version]

    def channel(self, application: str, name: str) -> Channel:
        versions = self.channels.get((application, name), [])
        return Channel(application, name, len(versions), tuple(versions))

    def delta(self, old: str, new: str) -> tuple[int, str] | None:
        data = self.deltas.get((old, new))
        return None if data is None else (len(data), hashlib.sha256(data).hexdigest())

    def piece(self, sha256: str, start: int = 0) -> Iterator[bytes]:
        return self._given(sha256, self.pieces.get(sha256), start)

    def delta_content(self, old: str, new: str, sha256: str, start: int = 0) -> Iterator[bytes]:
        return self._given(f"delta {sha256}", self.deltas.get((old, new)), start)

    def _given(self, what: str, data: bytes | None, start: int) -> Iterator[bytes]:
        if self.down:
            raise FetchError("the repository does not answer")
        if data is None:
            raise MissingError(f"no {what}")
        for at in range(start, len(data), CHUNK):
            part = self.fault(what, at, data[at : at + CHUNK])
            self.given += len(part)
            yield part


class Here(Machine):
    """A machine whose facts a test says; what it does not say is not known."""

    def __init__(self, **facts: object) -> None:
        super().__init__()
        self.said = facts

    def facts(self, folder: str | os.PathLike[str]) -> Facts:
        return Facts(**{"runtime": "1.0.0", **self.said})  # type: ignore[arg-type]
