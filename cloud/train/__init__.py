"""Training of ONNX models, JAX functions and Flax modules."""

from __future__ import annotations

from cloud.train.callbacks import Callback
from cloud.train.inputs.augment import random_affine
from cloud.train.inputs.digits import BACKGROUND, DigitsSplit, load_digits_split
from cloud.train.keeping.checkpoint import Checkpoints
from cloud.train.quantized import QuantizedRun, quantize_aware, with_scales
from cloud.train.recipe import DigitsRun, train_digits
from cloud.train.reports import EpochReport, Evaluation
from cloud.train.stepping.losses import LOSSES, METRICS, smoothed_cross_entropy
from cloud.train.stepping.optimizers import cosine_schedule, decay_mask, momentum_sgd
from cloud.train.tasks import JaxTask, LinenTask, NnxTask, OnnxTask, Task
from cloud.train.trainer import Trainer

__all__ = [
    "BACKGROUND",
    "LOSSES",
    "METRICS",
    "Callback",
    "Checkpoints",
    "DigitsRun",
    "DigitsSplit",
    "EpochReport",
    "Evaluation",
    "JaxTask",
    "LinenTask",
    "NnxTask",
    "OnnxTask",
    "QuantizedRun",
    "Task",
    "Trainer",
    "cosine_schedule",
    "decay_mask",
    "load_digits_split",
    "momentum_sgd",
    "quantize_aware",
    "random_affine",
    "smoothed_cross_entropy",
    "train_digits",
    "with_scales",
]
