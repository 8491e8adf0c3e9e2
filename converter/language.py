"""Options of a conversion that concern language models: what they mean, and those that do not apply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from converter import frontends
from converter.errors import ConvertError, QuantizeError, TrainingError
from converter.frontends import decoders
from converter.frontends.decoders import Dense, Matrix, Rounding, Settings
from converter.quantize import Mode, Options, Progress
from converter.quantize.accuracy.budget import Budget
from converter.quantize.accuracy.evaluation import Accuracy
from converter.quantize.language.gptq import calibrated as gptq
from converter.quantize.language.mixes import mixed
from converter.quantize.language.parts import Parts
from converter.quantize.language.texts import windows
from converter.training.options import Training

__all__ = ["METRIC", "calibrated", "check", "settings"]

METRIC = "perplexity"
_WEIGHTS: Mapping[Mode, Rounding] = {"none": "none", "w8": "w8", "w4": "w4"}
"""Mode -> what dense matrices become. Matrices that a file has in blocks stay as they are."""


def settings(options: Options, own: Mapping[str, Any], training: Training | None) -> Settings:
    """How a language model's front end builds the graph; `own`: the options of language models by name, None where not
    given; `training`: whose adapters it has. Raises ConvertError for values that are not allowed."""
    lora = None if training is None else training.adapters
    given = {name: value for name, value in own.items() if value is not None}
    return Settings(_WEIGHTS.get(options.mode, "none"), keep_float=options.keep_float, lora=lora, **given)


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
    if options != Options(mode=options.mode, keep_float=options.keep_float):
        used.append("settings of the quantiser")
    if used:
        raise ConvertError(f"{', '.join(used)}: expected none for a language model, whose graph is fixed; omit them")
    if options.mode == "none" and options.keep_float:
        raise ConvertError("keep_float: expected none with quantize 'none', which rounds nothing; omit it")
    if options.mode != "w4" and own["keep_w8"]:
        raise ConvertError(f"keep_w8: expected quantize 'w4', got {options.mode!r}; omit it")
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


def calibrated(
    loaded: frontends.Loaded,
    settings: Settings,
    calibration: Any,
    accuracy: Accuracy | None,
    progress: Progress | None = None,
) -> frontends.Loaded:
    """A language model, its dense matrices rounded by GPTQ on the text `calibration`, in a mix of precisions that meets
    `accuracy` if that is given; its facts say what it cost. As it is if neither is given, and any other model. Raises
    ConvertError, QuantizeError."""
    if not loaded.language or (calibration is None and accuracy is None):
        return loaded
    if accuracy is not None and (accuracy.metric not in (None, METRIC) or accuracy.labels is not None):
        raise QuantizeError(f"metric: expected {METRIC} of a language model, without labels, got {accuracy.metric!r}")
    if calibration is None:
        raise QuantizeError("accuracy: expected a text to calibrate on and to measure with, got none; give calibration")
    if settings.weights == "none":
        raise QuantizeError("calibration: expected quantize 'w8' or 'w4', got 'none', which rounds nothing; omit it")
    if not loaded.language["products"]:
        raise QuantizeError(
            f"calibration: expected matrices of floats, got {', '.join(loaded.language['stored'])}, which stay as they "
            "are; convert the original, or omit it"
        )
    text = windows(loaded.decoder, calibration, None if accuracy is None else accuracy.data)
    found = gptq(loaded.decoder, settings, text, progress)
    made, facts = (
        found.made,
        {**found.facts(), "tokens": {"calibration": text.calibration.size, "held": text.held.size}},
    )
    if accuracy is not None:
        mix = mixed(
            Parts(loaded.decoder, settings, text.length), text, found, Budget.parse(accuracy.budget, False), progress
        )
        made, facts = mix.made, {**facts, **mix.facts(found)}

    def rounded(product: str, matrix: Dense) -> Matrix:
        return made.get(product, matrix)

    again = decoders.loaded(loaded.decoder, loaded.format, settings, rounded)
    return replace(again, language={**again.language, "rounding": facts})
