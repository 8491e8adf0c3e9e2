"""Training of ONNX models, JAX functions and Flax modules.

Each public name is imported when it is first used: what reads ONNX takes a second to load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lite_runtime._lazy import lazy

if TYPE_CHECKING:
    from cloud.parallel.compressed.method import Compress
    from cloud.train.callbacks import Callback
    from cloud.train.deciding.frost import GradualUnfreezing, ProgressiveFreezing
    from cloud.train.deciding.judge import EarlyStopping, Plateau
    from cloud.train.inputs.augment import random_affine
    from cloud.train.inputs.digits import BACKGROUND, DigitsSplit, load_digits_split
    from cloud.train.keeping.checkpoint import Checkpoints
    from cloud.train.metrics.table import SET_METRICS
    from cloud.train.metrics.whole import SetMetric
    from cloud.train.notebook import NotebookView
    from cloud.train.quantized import QuantizedRun, quantize_aware, with_scales
    from cloud.train.recipe import DigitsRun, train_digits
    from cloud.train.reports import EpochReport, Evaluation
    from cloud.train.stepping.averaging import Swa
    from cloud.train.stepping.groups import Group
    from cloud.train.stepping.heads import Head
    from cloud.train.stepping.losses import LOSSES, METRICS, classified_loss, decided_loss, smoothed_cross_entropy
    from cloud.train.stepping.optimizers import cosine_schedule, decay_mask, momentum_sgd
    from cloud.train.stepping.schedules import SCHEDULES, WARMUPS, Shape, schedule
    from cloud.train.tasks import JaxTask, LinenTask, NnxTask, OnnxTask, Task
    from cloud.train.trainer import Trainer
    from cloud.train.variants import Adversarial, Distill, Lora, Prune

__all__ = [
    "BACKGROUND",
    "LOSSES",
    "METRICS",
    "SCHEDULES",
    "SET_METRICS",
    "WARMUPS",
    "Adversarial",
    "Callback",
    "Checkpoints",
    "Compress",
    "DigitsRun",
    "DigitsSplit",
    "Distill",
    "EarlyStopping",
    "EpochReport",
    "Evaluation",
    "GradualUnfreezing",
    "Group",
    "Head",
    "JaxTask",
    "LinenTask",
    "Lora",
    "NnxTask",
    "NotebookView",
    "OnnxTask",
    "Plateau",
    "ProgressiveFreezing",
    "Prune",
    "QuantizedRun",
    "SetMetric",
    "Shape",
    "Swa",
    "Task",
    "Trainer",
    "classified_loss",
    "cosine_schedule",
    "decay_mask",
    "decided_loss",
    "load_digits_split",
    "momentum_sgd",
    "quantize_aware",
    "random_affine",
    "schedule",
    "smoothed_cross_entropy",
    "train_digits",
    "with_scales",
]

_HOMES = {
    "Callback": "cloud.train.callbacks",
    "GradualUnfreezing": "cloud.train.deciding.frost",
    "ProgressiveFreezing": "cloud.train.deciding.frost",
    "EarlyStopping": "cloud.train.deciding.judge",
    "Plateau": "cloud.train.deciding.judge",
    "random_affine": "cloud.train.inputs.augment",
    "BACKGROUND": "cloud.train.inputs.digits",
    "DigitsSplit": "cloud.train.inputs.digits",
    "load_digits_split": "cloud.train.inputs.digits",
    "Checkpoints": "cloud.train.keeping.checkpoint",
    "Compress": "cloud.parallel.compressed.method",
    "SET_METRICS": "cloud.train.metrics.table",
    "SetMetric": "cloud.train.metrics.whole",
    "QuantizedRun": "cloud.train.quantized",
    "quantize_aware": "cloud.train.quantized",
    "with_scales": "cloud.train.quantized",
    "DigitsRun": "cloud.train.recipe",
    "train_digits": "cloud.train.recipe",
    "EpochReport": "cloud.train.reports",
    "Evaluation": "cloud.train.reports",
    "Swa": "cloud.train.stepping.averaging",
    "Group": "cloud.train.stepping.groups",
    "Head": "cloud.train.stepping.heads",
    "NotebookView": "cloud.train.notebook",
    "LOSSES": "cloud.train.stepping.losses",
    "METRICS": "cloud.train.stepping.losses",
    "classified_loss": "cloud.train.stepping.losses",
    "decided_loss": "cloud.train.stepping.losses",
    "smoothed_cross_entropy": "cloud.train.stepping.losses",
    "cosine_schedule": "cloud.train.stepping.optimizers",
    "decay_mask": "cloud.train.stepping.optimizers",
    "momentum_sgd": "cloud.train.stepping.optimizers",
    "SCHEDULES": "cloud.train.stepping.schedules",
    "WARMUPS": "cloud.train.stepping.schedules",
    "Shape": "cloud.train.stepping.schedules",
    "schedule": "cloud.train.stepping.schedules",
    "JaxTask": "cloud.train.tasks",
    "LinenTask": "cloud.train.tasks",
    "NnxTask": "cloud.train.tasks",
    "OnnxTask": "cloud.train.tasks",
    "Task": "cloud.train.tasks",
    "Trainer": "cloud.train.trainer",
    "Adversarial": "cloud.train.variants",
    "Distill": "cloud.train.variants",
    "Lora": "cloud.train.variants",
    "Prune": "cloud.train.variants",
}
"""Every public name and the module that defines it."""

__getattr__ = lazy("cloud.train", _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
