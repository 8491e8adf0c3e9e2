"""A signed repository with three versions of an application, and the agent of a device that has them in turn."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

import lite_runtime
from cloud.hub.deltas import make
from cloud.hub.repository import Keys, Repository
from cloud.hub.repository.releases import Releases
from cloud.hub.storage.folder import Folder as Storage
from edge.agent import source
from edge.agent.agent import Agent, installed
from edge.agent.application import Settings
from edge.agent.checking.trying import Limits
from edge.agent.conditions import Conditions
from edge.agent.fetching import Folder
from edge.agent.machine import Facts, Machine
from edge.agent.trust import Trust
from edge.agent.update import MAKING, TRYING, Rules
from lite_runtime import bundle
from lite_runtime.graph import Graph, Node, Value
from lite_runtime.running.golden import self_test

__all__ = ["APP", "FILES", "VERSIONS", "Found", "World", "bundle_of"]

APP, FILES, VERSIONS = "keywords", ("keywords.mslite", "gestures.mslite"), ("1", "2", "3")
SETTINGS = Settings(
    rules=Rules(seconds=0, successes=1, failures=1, starts=1000),
    every=0.0,
    limits=Limits(reference=False),
    conditions=Conditions(free=0),
)
TURNS = 40
"""Turns of the agent's loop within which an update ends."""


class Found(NamedTuple):
    """What a program that looks for the application finds: the version, "" for none, and what is wrong with it."""

    version: str
    wrong: str = ""


class Silent(Machine):
    """This machine, whose free disk is not known: so that the disk is full in the middle of an update."""

    def facts(self, folder: object) -> Facts:
        """See `Machine`."""
        return super().facts(str(folder))._replace(free=None)


def bundle_of(factor: float, numbers: int = 30_000, golden: float | None = None) -> bytes:
    """A bundle that multiplies by a factor, with a golden sample, which may say another; half of its numbers depend on
    the factor."""
    rng = np.random.default_rng(0)
    table = rng.standard_normal(numbers).astype(np.float32)
    table[numbers // 2 :] *= np.float32(factor)
    x, y, t = (Value(name, "float32", shape) for name, shape in (("x", (1, 4)), ("y", (1, 4)), ("t", (numbers,))))
    half = numbers // 2
    nodes = (Node("Mul", ("x", "k"), ("y",)), Node("Concat", ("first", "second"), ("t",), {"axis": 0}))
    constants = {"k": np.array(factor, np.float32), "first": table[:half], "second": table[half:]}
    given = np.arange(4, dtype=np.float32).reshape(1, 4)
    expected = given * np.float32(factor if golden is None else golden)
    graph = Graph((x,), (y, t), nodes, constants)
    return bundle.write(None, {"predict": graph}, golden={"predict": ({"x": given}, {"y": expected})})


class World:
    """The repository in a folder; `offer` lets a version be the newest of the channel."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bundles").mkdir(parents=True)
        self.repository = Repository(Storage(folder / "repository"), Keys([folder / "keys"]))
        self.repository.init(applications=[APP])
        self.releases = Releases(self.repository)
        self.bytes = 0
        shared = folder / "bundles" / "shared"
        shared.write_bytes(bundle_of(9.0))
        for version in VERSIONS:
            path = folder / "bundles" / version
            path.write_bytes(bundle_of(float(version)))
            self.bytes = max(self.bytes, path.stat().st_size + shared.stat().st_size)
            self.releases.add(APP, version, {FILES[0]: path, FILES[1]: shared})
        self._offer_a_delta(*VERSIONS[:2])
        self.root = (folder / "repository" / "metadata" / "1.root.json").read_bytes()
        self._goldens: dict[str, str] = {}

    def _offer_a_delta(self, old: str, new: str) -> None:
        """One of three updates can take a delta, the others pieces."""
        before, after = (self.folder / "bundles" / version for version in (old, new))
        names = tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in (before, after))
        self.releases.put_deltas({(names[0], names[1]): make(before, after)})

    def offer(self, version: str) -> None:
        """Let a version be the newest."""
        self.releases.promote(APP, version, "stable")

    def update(self, device: Path, *, silent: bool = False) -> str:
        """Run an agent until nothing is left to do; what troubled it, "" if nothing did."""
        fetch = Folder(self.folder / "repository")
        trusted = source.Repository(Trust(device / "trust", self.root, fetch), fetch)
        machine = Silent() if silent else Machine()
        with Agent(device, {APP: SETTINGS}, trusted, machine=machine, every=0.0) as agent:
            agent.start()
            one = agent.applications[APP]
            agent.once(trusted)
            for _ in range(TURNS):
                if one.state.phase not in (*MAKING, *TRYING) or one.waiting or one.trouble:
                    break
                agent.advance()
            outcome = one.state.outcome
            failed = f"{outcome.kind}: {outcome.reason}" if outcome is not None and outcome.reason else ""
            return one.trouble or one.waiting or agent.trouble or failed

    def found(self, device: Path) -> Found:
        """What runs, found in the two ways that there are, and tested by its golden sample."""
        folder = installed(device, APP)
        if folder is None:
            return Found("")
        try:
            version = str(json.loads((folder.parent / "release.json").read_bytes())["version"])
            for name in FILES:
                self._test(folder / name)
            link = device / "applications" / APP / "current"
            for name in FILES:
                self._test(link / name)
            linked = (link / ".." / "release.json").resolve()
            versions = {version, str(json.loads(linked.read_bytes())["version"])}
        except Exception as error:  # whatever a damaged file causes
            return Found("", f"{type(error).__name__}: {error}")
        known = {f"{float(one):g}" for one in versions}
        return Found(version, "" if known <= {f"{float(one):g}" for one in VERSIONS} else f"versions {versions}")

    def _test(self, path: Path) -> None:
        data = path.read_bytes()
        model = lite_runtime.load(data)
        if self_test(model, ["predict"]) != 1:
            raise AssertionError(f"{path}: no golden sample")

    @staticmethod
    def leftovers(device: Path) -> list[str]:
        """Files on the device that nothing accounts for when no update is under way."""
        slots = [f"applications/{APP}/{slot}" for slot in "ab"]
        known = {f"{slot}/{name}" for slot in slots for name in ("release.json", *(f"files/{file}" for file in FILES))}
        known |= {f"applications/{APP}/state.json", f"applications/{APP}/current", "events.json", "lock"}
        there = (str(path.relative_to(device)) for path in _files(device))
        unknown = (name for name in there if name not in known and not name.startswith("trust/"))
        return sorted([*unknown, *(str(path) for path in (device / "trust").rglob(".msedge-*"))])

    @staticmethod
    def size(device: Path) -> int:
        """Bytes of all files on the device but the events, which are bounded. Those of the trusted metadata count as
        one: their versions get more digits."""
        kept = [path for path in _files(device) if path.name != "events.json"]
        return sum(path.lstat().st_size if "trust" not in path.parts else 1 for path in kept)


def _files(folder: Path) -> Iterable[Path]:
    return (path for path in folder.rglob("*") if path.is_symlink() or path.is_file())
