"""Rounds of FedSGD in this process, recorded as a server has them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from cloud.audit.privacy.inversion.observe import Tap
from converter import convert
from federated.client.device import Device
from federated.client.state import StateStore
from federated.config import parse
from federated.learner import Batch
from federated.run import start_of
from federated.server.conduct import conduct
from federated.server.federation import Federation

__all__ = ["recorded_rounds"]


def recorded_rounds(
    model: ir.Model, devices: Mapping[str, tuple[Any, Any]], *, batch: int = 1, rounds: int = 1, rate: float = 0.1,
    up: Sequence[str] = (), down: Sequence[str] = (), privacy: Mapping[str, Any] | None = None,
    algorithm: str = "fedavg",
) -> dict[str, Tap]:  # fmt: skip
    """What each device answered when it trained `model` for one step a round, by the code of a real run: the bundle on
    the device runtime, the project's messages, over the grid in this process.

    devices: name -> (inputs (n, ...) float32 of the model's one input, labels (n,)). batch: examples of a step. up,
    down, privacy: as in `[codec]` and `[privacy]` of a configuration. Raises FederatedError for settings that do not
    fit.
    """
    from federated.transport.local import run_here  # Flower

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.mslite"
        convert(model, output=path, trainable="*")
        learner, start = start_of(path)
    words = {
        "model": {"bundle": "model.mslite"},
        "algorithm": {"name": algorithm, "rate": rate},
        "local": {"steps": 1, "batch": batch},
        "rounds": {"count": rounds, "minimum": len(devices), "fraction": 1.0},
        "evaluation": {"every": 0},
        "data": {"test": 0.0},
        "codec": {"up": list(up), "down": list(down)},
        "privacy": dict(privacy or {}),
    }
    name, store = next(value.name for value in model.graph.inputs if value.name), StateStore()
    taps = {
        each: Tap(Device(each, learner, Batch({name: np.asarray(x)}, np.asarray(y)), store, start.bundle))
        for each, (x, y) in devices.items()
    }
    federation = Federation.begin(parse(words), start)
    run_here(lambda exchange: conduct(federation, exchange), taps)
    return taps
