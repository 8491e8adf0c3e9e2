"""A small fleet and a learner in a few lines of NumPy, for tests of everything around a learner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from federated.config import Config, parse
from federated.learner import Batch, Evaluation, Gradient
from federated.run import Fleet
from federated.server.federation import Start
from federated.tree import Tree

BUNDLE = "0123456789abcdef"


class Softmax:
    """Softmax regression of input `x` [n, d]."""

    second_order = False

    def __init__(self, inputs: int = 6, classes: int = 3) -> None:
        self.params: Tree = {"w": np.zeros((inputs, classes), np.float32), "b": np.zeros(classes, np.float32)}

    def _forward(self, params: Tree, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        logits = batch.inputs["x"] @ params["w"] + params["b"]
        logits = logits - logits.max(1, keepdims=True)
        powers = np.exp(logits)
        whole = powers.sum(1, keepdims=True)
        rows = np.arange(len(batch.labels))
        return powers / whole, np.log(whole[:, 0]) - logits[rows, batch.labels]

    def gradient(self, params: Tree, batch: Batch) -> Gradient:
        shares, losses = self._forward(params, batch)
        rows = np.arange(len(batch.labels))
        shares[rows, batch.labels] -= 1
        shares /= len(rows)
        return Gradient(losses.mean(), {"w": batch.inputs["x"].T @ shares, "b": shares.sum(0)}, {})

    def meta_gradient(self, params: Tree, rates: Tree, support: Batch, query: Batch) -> tuple[Gradient, Tree]:
        raise NotImplementedError

    def evaluate(self, params: Tree, batch: Batch) -> Evaluation:
        shares, losses = self._forward(params, batch)
        correct = (shares.argmax(1) == batch.labels).sum()
        return Evaluation(losses.sum(), correct, len(batch.labels))

    def scan(self, step: Callable[[Any, Batch], tuple[Any, Any]], carry: Any, batches: Batch) -> tuple[Any, Any]:
        outs = []
        for at in range(len(batches.labels)):
            carry, out = step(carry, Batch({k: v[at] for k, v in batches.inputs.items()}, batches.labels[at]))
            outs.append(out)
        if isinstance(outs[0], dict):
            return carry, {key: _stack([out[key] for out in outs]) for key in outs[0]}
        return carry, np.stack(outs)


def _stack(outs: list[Any]) -> Any:
    if isinstance(outs[0], dict):
        return {key: _stack([out[key] for out in outs]) for key in outs[0]}
    return np.stack(outs)


def fleet(devices: int = 6, examples: int = 40, inputs: int = 6, classes: int = 3, seed: int = 0) -> Fleet:
    """Devices whose examples follow one rule, each from a different region of inputs."""
    rng = np.random.default_rng(seed)
    rule = rng.normal(size=(inputs, classes)).astype(np.float32)
    shards = {}
    for at in range(devices):
        x = (rng.normal(size=(examples, inputs)) + rng.normal(size=inputs)).astype(np.float32)
        shards[f"device-{at:02d}"] = Batch({"x": x}, (x @ rule).argmax(1))
    learner = Softmax(inputs, classes)
    return Fleet(learner, Start(learner.params, (), BUNDLE), shards)


def written(folder: Path, devices: int) -> Mapping[str, Batch]:
    """A bundle that trains (model.mslite), and the examples of a fleet (devices.npz), which are returned too."""
    from cloud.zoo import mlp
    from converter import convert

    convert(mlp(6, 3), output=folder / "model.mslite", trainable="*")
    shards = fleet(devices).shards
    np.savez(
        folder / "devices.npz",
        x=np.concatenate([data.inputs["x"] for data in shards.values()]),
        labels=np.concatenate([data.labels for data in shards.values()]),
        device=np.repeat(list(shards), [len(data.labels) for data in shards.values()]),
    )
    return shards


def config(**sections: Mapping[str, Any]) -> Config:
    """A configuration with a few words changed."""
    words: dict[str, Any] = {
        "model": {"bundle": "none.mslite"},
        "algorithm": {"name": "fedavg", "rate": 0.2},
        "local": {"steps": 4, "batch": 8},
        "rounds": {"count": 4, "minimum": 2},
        "evaluation": {"every": 0},
    }
    for name, section in sections.items():
        name = name.rstrip("_")
        words[name] = {**words.get(name, {}), **section}
    if "algorithm" in sections:
        words["algorithm"] = dict(sections["algorithm"])
    return parse(words)
