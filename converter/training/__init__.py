"""Trainable bundles: parameters, losses, optimisers and adapters as graphs, with one model per signature.

    convert("model.onnx", output="model.mslite", trainable="head.*")
    convert("model.onnx", output="model.mslite", trainable=Training("*", optimizer="adam", clip_norm=1.0))
"""

from __future__ import annotations

from converter.training.options import LOSSES, OPTIMIZERS, SIGNATURES, Lora, Training
from converter.training.signatures import Prepared, Signed, describe, of_adapters, prepare, sign, step_settings

__all__ = [
    "LOSSES",
    "OPTIMIZERS",
    "SIGNATURES",
    "Lora",
    "Prepared",
    "Signed",
    "Training",
    "describe",
    "of_adapters",
    "prepare",
    "sign",
    "step_settings",
]
