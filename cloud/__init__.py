"""The cloud: train models with JAX on one device or many, and export them as ONNX.

    trainer = cloud.Trainer(model, parallel="auto")
    trainer.fit((x, y), epochs=10, batch_size=256)

`cloud.data` holds data pipelines, `cloud.zoo` ready-made models, `cloud.engine` turns ONNX graphs into JAX functions.
Importing this package loads neither JAX nor ONNX; each public name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lite_runtime._lazy import lazy

if TYPE_CHECKING:
    from cloud import data, engine, train, zoo
    from cloud.errors import CheckpointError, DataError, EngineError, PlanError, TrackError, TrainError
    from cloud.federated import JaxLearner, Simulator
    from cloud.parallel.topology import Topology
    from cloud.train.callbacks import Callback, Fitting
    from cloud.train.keeping.checkpoint import Checkpoints
    from cloud.train.many.preempt import PREEMPTED, stopping_on_signals
    from cloud.train.many.ray import predict as ray_predict
    from cloud.train.many.ray import ray_trainer
    from cloud.train.placing.planned import Auto
    from cloud.train.trainer import Trainer

__all__ = [
    "PREEMPTED",
    "Auto",
    "Callback",
    "CheckpointError",
    "Checkpoints",
    "DataError",
    "EngineError",
    "Fitting",
    "JaxLearner",
    "PlanError",
    "Simulator",
    "Topology",
    "TrackError",
    "TrainError",
    "Trainer",
    "data",
    "engine",
    "ray_predict",
    "ray_trainer",
    "stopping_on_signals",
    "train",
    "zoo",
]

_HOMES = {
    "ray_predict": "cloud.train.many.ray:predict",
    "ray_trainer": "cloud.train.many.ray",
    "stopping_on_signals": "cloud.train.many.preempt",
    "PREEMPTED": "cloud.train.many.preempt",
    "TrainError": "cloud.errors",
    "TrackError": "cloud.errors",
    "PlanError": "cloud.errors",
    "EngineError": "cloud.errors",
    "DataError": "cloud.errors",
    "CheckpointError": "cloud.errors",
    "Auto": "cloud.train.placing.planned",
    "Callback": "cloud.train.callbacks",
    "Checkpoints": "cloud.train.keeping.checkpoint",
    "Fitting": "cloud.train.callbacks",
    "JaxLearner": "cloud.federated",
    "Simulator": "cloud.federated",
    "Topology": "cloud.parallel.topology",
    "Trainer": "cloud.train.trainer",
    "data": "cloud.data",
    "engine": "cloud.engine",
    "train": "cloud.train",
    "zoo": "cloud.zoo",
}
"""Every public name and the module that defines it."""

__getattr__ = lazy("cloud", _HOMES, "cloud", "the cloud engine trains with it")


def __dir__() -> list[str]:
    return sorted(__all__)
