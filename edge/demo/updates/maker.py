"""The first version: a small network, trained on what the cloud has; and the signed repository that offers it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir

import lite_runtime
from cloud.hub.loop.learning import with_parameters
from cloud.hub.repository import Keys, Repository
from cloud.hub.repository.origin import origin
from cloud.hub.repository.releases import Releases
from cloud.hub.storage import storage_at
from cloud.zoo import mlp
from converter import convert
from edge.demo.updates.scene import APP, FILE, SOURCE, Examples, Scene
from lite_runtime import bundle

__all__ = ["TRAINABLE", "first_version"]

TRAINABLE = "*"
VERSION = "1.0"
HIDDEN = (64, 32)
EPOCHS, BATCH = 30, 32


def first_version(scene: Scene, folder: Path) -> float:
    """Train, convert, sign and offer version 1.0. Leaves in the folder the repository, its keys, and the ONNX model;
    returns the accuracy on the cloud's own examples."""
    source, plain = folder / SOURCE, folder / "untrained.mslite"
    model = mlp(scene.features, scene.classes, HIDDEN)
    ir.save(model, source)
    convert(model, output=plain, trainable=TRAINABLE)
    state, accuracy = _trained(plain, scene.cloud)
    trained = folder / "trained.mslite"
    trained.write_bytes(bundle.with_state(str(plain), state))
    ir.save(with_parameters(source, trained), source)
    made = folder / FILE
    convert(source, output=made, trainable=TRAINABLE)
    repository = Repository(storage_at(str(folder / "repository")), Keys([folder / "keys"]))
    repository.init(applications=[APP])
    releases = Releases(repository)
    releases.add(APP, VERSION, {FILE: made}, lineage=origin({FILE: made}))
    releases.promote(APP, VERSION, "stable")
    return accuracy


def _trained(path: Path, data: Examples) -> tuple[dict[str, np.ndarray], float]:
    """The state after some epochs of the bundle's own steps, as a device trains."""
    from federated.client.lite import LiteLearner
    from federated.learner import Batch

    learner = LiteLearner(path)
    params, rng, right = dict(learner.params), np.random.default_rng(0), 0
    for epoch in range(EPOCHS):
        order = rng.permutation(len(data.y))
        for at in range(0, len(order) - BATCH + 1, BATCH):
            rows = order[at : at + BATCH]
            found = learner.gradient(params, Batch({"x": data.x[rows]}, data.y[rows]))
            rate = 0.1 * (1 - epoch / EPOCHS)
            params = {name: value - np.float32(rate) * found.grads[name] for name, value in params.items()}
    right = int(learner.evaluate(params, Batch({"x": data.x}, data.y)).correct)
    held = lite_runtime.load(path)
    return {name: params.get(name, value) for name, value in held.state_dict().items()}, right / len(data.y)
