"""Runs that need no bundle: which section of a configuration asks for which, simulated or with real devices."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from federated.client.demands import Demands
from federated.client.device import Device
from federated.client.state import StateStore
from federated.data import shards
from federated.errors import FederatedError
from federated.learner import NO_MODEL, Batch
from federated.server.gathering import Exchange
from federated.tables import Reader

__all__ = ["SECTIONS", "Run", "of_file", "simulate"]

SECTIONS: Mapping[str, str] = {"analytics": "federated.analytics", "trees": "federated.trees"}
"""The section that makes a file such a run, and the package with its `config.parse` and `run.run`."""

Watch = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Run:
    """A run that was read: its kind (a key of SECTIONS), its configuration, and what conducts it."""

    kind: str
    config: Any

    def conduct(
        self, exchange: Exchange, watch: Watch = lambda row: None, *, resume: bool = False
    ) -> dict[str, Any]:
        """The whole run, or with `resume` the rest of it; returns its report. Raises FederatedError."""
        if resume and self.kind == "analytics":
            raise FederatedError("--resume: a run of [analytics] has no checkpoint; begin it again")
        more = {"resume": True} if resume else {}
        report: dict[str, Any] = import_module(f"{SECTIONS[self.kind]}.run").run(self.config, exchange, watch, **more)
        return report

    @property
    def checkpoint(self) -> Path | None:
        """Where the run keeps its state."""
        state = getattr(self.config, "state", None)
        return self.config.path(state.checkpoint) if state is not None and state.checkpoint else None

    def shards(self, devices: int = 0) -> dict[str, Batch]:
        """The examples of the first `devices` simulated devices by name, or of all (0)."""
        data = self.config.data
        if not data.shards:
            raise FederatedError("data.shards: expected the examples of the simulated devices, got none")
        found = shards(self.config.path(data.shards), data.labels, data.device, alone=True)
        if devices > len(found):
            raise FederatedError(f"--simulate: expected at most the {len(found)} devices of the shards, got {devices}")
        return {name: found[name] for name in sorted(found)[: devices or len(found)]}


def of_file(path: str | os.PathLike[str]) -> Run | None:
    """The run that a TOML file describes; None if the file is about training a bundle. Raises FederatedError."""
    words = Reader(FederatedError, "check the path").file(path)
    run = parse(words, Path(path).resolve().parent)
    if run is not None and run.kind == "trees" and not run.config.report.model:
        raise FederatedError("report.model: expected the file that the trees are written to, got none")
    return run


def parse(words: Mapping[str, Any], folder: Path = Path()) -> Run | None:
    """The same for a parsed file."""
    kinds = [kind for kind in SECTIONS if kind in words]
    if len(kinds) > 1:
        raise FederatedError(f"expected one of [{'], ['.join(kinds)}] in a file, got both; make two runs of them")
    return Run(kinds[0], import_module(f"{SECTIONS[kinds[0]]}.config").parse(words, folder)) if kinds else None


def simulate(
    run: Run,
    data: Mapping[str, Batch],
    watch: Watch = lambda row: None,
    *,
    demands: Mapping[str, Demands] | None = None,
    delay: Callable[[str, int], float] | None = None,
    resume: bool = False,
) -> dict[str, Any]:
    """The whole run in this process with devices that have these examples, over the same apps as real ones. `demands`:
    of devices' owners, by name; `delay`: see `LocalGrid`; `resume`: continue from the checkpoint. Returns the report.
    """
    from federated.transport.local import run_here

    store = StateStore(durable=False)
    wanted = demands or {}
    devices = {
        name: Device(name, NO_MODEL, examples, store, "", demands=wanted.get(name, Demands()))
        for name, examples in data.items()
    }
    made: list[dict[str, Any]] = []
    try:
        run_here(lambda exchange: made.append(run.conduct(exchange, watch, resume=resume)), devices, delay)
    finally:
        store.close()
    return made[0]
