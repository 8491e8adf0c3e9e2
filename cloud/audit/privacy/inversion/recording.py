"""Rounds in this process, recorded as a server has them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from cloud.audit.privacy.inversion.observe import Tap
from converter import convert
from federated.client.device import Device
from federated.client.state import StateStore
from federated.config import parse
from federated.hierarchy.partial import Partial
from federated.learner import Batch
from federated.privacy.noise import SecureSource, SeededSource
from federated.robust.aggregators import mean_of
from federated.run import start_of
from federated.server.conduct import conduct
from federated.server.federation import Federation
from federated.tree import Tree
from lite_runtime import bundle

__all__ = ["Recorded", "record", "recorded_rounds"]


@dataclass(frozen=True)
class Recorded:
    """What passed between the devices and their server."""

    taps: Mapping[str, Tap]
    """Each device's messages, by its name."""
    means: tuple[Tree, ...]
    """The mean of the updates by round, as the server has it: before noise that it adds."""
    published: tuple[Tree, ...]
    """The same as the next model shows it: with that noise."""


@dataclass
class _Watched(Federation):
    """A server that writes down what it learns."""

    means: list[Tree] = field(default_factory=list)
    published: list[Tree] = field(default_factory=list)

    def learn(self, part: Partial) -> None:
        """See `Federation`."""
        if part.total is not None and self.payload is not None:
            self.means.append(self.payload.unflatten(mean_of(part.total).astype(np.float32)))
        super().learn(part)

    def step(self, mean: Tree, fraction: float) -> None:
        """See `Federation`."""
        self.published.append(mean)
        super().step(mean, fraction)


def record(
    source: str | os.PathLike[str],
    devices: Mapping[str, tuple[Any, Any]],
    words: Mapping[str, Any],
    *,
    seed: int | None = None,
) -> Recorded:
    """A run over a bundle by the code of a real one: the bundle on the device runtime, the project's messages, over the
    grid in this process.

    devices: name -> (inputs (n, ...) float32 of the model's one input, labels (n,)). words: a run's configuration; all
    devices take part in every round, and nothing is evaluated, kept or written. seed: of noise; None: of the operating
    system, as on real devices. Keys and masks of secure sums are always its own. Raises FederatedError for settings
    that do not fit.
    """
    from federated.transport.local import run_here  # Flower

    learner, start = start_of(source)
    rounds = {"count": 1, **words.get("rounds", {}), "minimum": len(devices), "fraction": 1.0}
    config = parse({
        "model": {"bundle": "model.mslite"}, **words, "rounds": rounds, "evaluation": {"every": 0},
        "data": {"test": 0.0},
    })  # fmt: skip
    name = next(value.name for value in bundle.read(source).at_first("gradients").inputs if value.name != "labels")
    store = StateStore()
    taps = {
        each: Tap(
            Device(each, learner, Batch({name: np.asarray(x)}, np.asarray(y)), store, start.bundle,
                   None if seed is None else SeededSource(seed * 100_003 + at))
        )
        for at, (each, (x, y)) in enumerate(devices.items())
    }  # fmt: skip
    federation = _Watched.begin(config, start)
    federation.source = SecureSource() if seed is None else SeededSource(seed * 100_003 + len(devices))
    run_here(lambda exchange: conduct(federation, exchange), taps)
    return Recorded(taps, tuple(federation.means), tuple(federation.published))


def recorded_rounds(
    model: ir.Model, devices: Mapping[str, tuple[Any, Any]], *, batch: int = 1, rounds: int = 1, rate: float = 0.1,
    up: Sequence[str] = (), down: Sequence[str] = (), privacy: Mapping[str, Any] | None = None,
    algorithm: str = "fedavg",
) -> dict[str, Tap]:  # fmt: skip
    """What each device answered when it trained `model` for one step a round (FedSGD): see `record`.

    batch: examples of a step. up, down, privacy: as in `[codec]` and `[privacy]` of a configuration. Raises
    FederatedError for settings that do not fit.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.mslite"
        convert(model, output=path, trainable="*")
        words = {
            "algorithm": {"name": algorithm, "rate": rate}, "local": {"steps": 1, "batch": batch},
            "rounds": {"count": rounds}, "codec": {"up": list(up), "down": list(down)}, "privacy": dict(privacy or {}),
        }  # fmt: skip
        return dict(record(path, devices, words).taps)
