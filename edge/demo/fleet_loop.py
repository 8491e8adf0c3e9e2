"""The second half of the demo: devices with different data train together, without sending their data.

Ten devices get the cloud's model, but their cameras are rotated by different angles. Eight of them train for a few
rounds; two are held out. At the end each device adapts to a few of its own examples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lite_runtime.graph import Array

if TYPE_CHECKING:
    from federated.learner import Batch

__all__ = ["DEVICES", "ROUNDS", "DeviceRow", "FleetOutcome", "askew", "run_fleet"]

DEVICES, ROUNDS, SUPPORT, ASIDE = 10, 3, 5, 0.2
GAINED = 0.3
"""The smallest accepted gain in mean accuracy by federated learning, on devices that train and on those held out."""
TRAINING: Mapping[str, Any] = {
    "algorithm": {"name": "meta_head", "own": ["head*"]},
    "local": {"steps": 20, "batch": 20},
    "rounds": {"count": ROUNDS},
    "codec": {"up": ["int8"]},
    "sync": {"store": "personal.sqlite", "only": ["head*"]},
    "report": {"json": "fleet.json", "bundle": "global.mslite"},
    "evaluation": {"every": 1, "held_out": 0.2, "support": SUPPORT, "steps": 20},
}


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A device's accuracy with the cloud's model and with its own after the rounds. `trained`: false if held out."""

    name: str
    trained: bool
    cloud: float
    own: float


@dataclass(frozen=True, slots=True)
class FleetOutcome:
    """The accuracies of all devices, the bytes that devices sent in total, and the run's report."""

    devices: tuple[DeviceRow, ...]
    bytes_up: int
    model_bytes: int
    seconds: float
    report: Mapping[str, Any]

    def mean(self, which: str, trained: bool) -> float:
        """Mean accuracy over the devices that train, or over the held-out ones; `which`: "cloud" or "own"."""
        return float(np.mean([getattr(row, which) for row in self.devices if row.trained is trained]))

    @property
    def ok(self) -> bool:
        """Whether both groups of devices gained enough."""
        return all(self.mean("own", group) - self.mean("cloud", group) >= GAINED for group in (True, False))


def run_fleet(source: Path, shards: Mapping[str, Batch], folder: Path, say: Callable[[str], None]) -> FleetOutcome:
    """Run federated rounds, starting from the ONNX model `source`, on each device's examples. Writes to `folder`:
    fleet.mslite, fleet.json, fleet.html, global.mslite (the trained common model) and personal.sqlite (the devices'
    own heads)."""
    from converter import convert
    from edge.pages.fleet_page import fleet_page
    from federated.config import parse
    from federated.run import Fleet, report, simulate, start_of

    say("fleet: converting the same model so that devices can train it")
    bundle = folder / "fleet.mslite"
    convert(source, output=bundle, trainable="*")
    learner, start = start_of(bundle)
    cloud = {name: _accuracy(learner.evaluate(learner.params, data)) for name, data in shards.items()}
    say(f"fleet: {DEVICES} devices, {ROUNDS} federated rounds; data stays on the devices")
    (folder / "personal.sqlite").unlink(missing_ok=True)
    settings = {**TRAINING, "model": {"bundle": bundle.name}}
    found = report(simulate(parse(settings, folder), Fleet(learner, start, shards, consent="serve")))
    (folder / "fleet.html").write_text(fleet_page(found), encoding="utf-8")
    last = found["rows"][-1]["evaluation"]
    rows = (
        DeviceRow(name, group == "training", cloud[name], after)
        for group in ("training", "held_out")
        for name, (_, after) in last[group]["by_device"].items()
    )
    size = sum(np.asarray(leaf).nbytes for leaf in learner.params.values())
    return FleetOutcome(tuple(rows), found["bytes_up"], size, found["seconds"], found)


def askew(x: Array, y: Array, name: str) -> tuple[dict[str, Batch], dict[str, Batch]]:
    """The images [N, 1, size, size] divided among the devices and rotated by 90, 180 or 270 degrees per device:
    training data, and a held-out fifth. `name`: the model's input."""
    from federated.data import split
    from federated.learner import Batch

    order = np.random.default_rng(0).permutation(len(x))
    shares = enumerate(np.array_split(order, DEVICES))
    turned = {i: (np.ascontiguousarray(np.rot90(x[rows], 1 + i % 3, (2, 3))), y[rows]) for i, rows in shares}
    whole = {f"device-{i}": Batch({name: images}, labels.astype(np.int64)) for i, (images, labels) in turned.items()}
    parts = {device: split(batch, 1 - ASIDE, np.random.default_rng(1)) for device, batch in whole.items()}
    return {device: learns for device, (learns, _) in parts.items()}, {d: aside for d, (_, aside) in parts.items()}


def _accuracy(found: Any) -> float:
    return float(found.correct) / int(found.examples)
