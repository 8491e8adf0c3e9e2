"""Options of a conversion that concern language models: what they mean, and those that do not apply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from converter import frontends
from converter.errors import ConvertError, TrainingError
from converter.frontends.decoders import Rounding, Settings
from converter.quantize import Mode, Options
from converter.training.options import Training

__all__ = ["check", "settings"]

_WEIGHTS: Mapping[Mode, Rounding] = {"none": "none", "w8": "w8", "w4": "w4"}
"""Mode -> what dense matrices become. Matrices that a file has in blocks stay as they are."""


def settings(options: Options, own: Mapping[str, Any], training: Training | None) -> Settings:
    """How a language model's front end builds the graph; `own`: the options of language models by name, None where not
    given; `training`: whose adapters it has. Raises ConvertError for values that are not allowed."""
    lora = None if training is None else training.adapters
    given = {name: value for name, value in own.items() if value is not None}
    return Settings(_WEIGHTS.get(options.mode, "none"), lora=lora, **given)


def check(
    loaded: frontends.Loaded,
    options: Options,
    own: Mapping[str, Any],
    given: Mapping[str, Any],
    training: Training | None,
) -> None:
    """Raise ConvertError for options without effect: those of language models (`own`, by name) on another model, or on
    a language model those that never apply to one (`given`). Raises TrainingError if more than adapters is to be
    trained."""
    if not loaded.language:
        also = {"context"} if loaded.embedding is not None else set()
        wrong = [name for name, value in own.items() if value is not None and name not in also]
        if wrong:
            raise ConvertError(f"{', '.join(wrong)}: only language models have this, got {loaded.format}; omit it")
        return
    if options.mode not in _WEIGHTS:
        raise ConvertError(
            f"quantize: expected one of {', '.join(_WEIGHTS)} for a language model, got {options.mode!r}"
        )
    used = [name for name, value in given.items() if value]
    if options != Options(mode=options.mode):
        used.append("settings of the quantiser")
    if used:
        raise ConvertError(f"{', '.join(used)}: expected none for a language model, whose graph is fixed; omit them")
    if training is not None:
        _check_training(training)


def _check_training(training: Training) -> None:
    """Raise TrainingError unless adapters, and nothing else, are trained with the loss of the next token."""
    if training.adapters is None or training.trainable:
        raise TrainingError(
            "trainable: of a language model only adapters can be trained; give adapters=Lora(rank=8), or --lora 8"
        )
    for name in ("loss", "output", "slopes", "batch_norm"):
        if getattr(training, name) != getattr(Training(adapters=training.adapters), name):
            raise TrainingError(f"{name}: a language model learns to predict the next token; omit it")
    if "curvature" in training.signatures:
        raise TrainingError("signatures: curvature is not made for language models; omit it")
