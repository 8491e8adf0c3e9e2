"""[train.lora], [train.distill], [train.prune], [train.adversarial] of a run file, and what a trainer makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from cloud.errors import TrainError
from cloud.train.jobs.graphs import graph_of
from cloud.train.jobs.named import called, named_function
from cloud.train.jobs.sections import Section, need
from cloud.train.variants import Adversarial, Distill, Lora, Prune
from federated.tables import Count, Fraction, NotNegative, Positive, Whole

__all__ = ["AdversarialKeys", "DistillKeys", "LoraKeys", "PruneKeys", "save_adapters", "variants_of"]


class LoraKeys(Section, frozen=True):
    """Low-rank adapters: see `cloud.train.variants.Lora`."""

    rank: Count
    alpha: NotNegative = 0.0
    """0: the rank, a factor of 1."""
    targets: tuple[str, ...] = ("*",)
    also: tuple[str, ...] = ()


class DistillKeys(Section, frozen=True):
    """A teacher, one of `onnx` (a file) and `function` ("module:function"): see `cloud.train.variants.Distill`."""

    onnx: str = ""
    function: str = ""
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    temperature: Positive = 2.0
    weight: Fraction = 0.5
    hints: Mapping[str, str] = msgspec.field(default_factory=dict)
    hint_weight: Positive = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        given = [key for key in ("onnx", "function") if getattr(self, key)]
        need(len(given) == 1, "[train.distill]", "one of the keys onnx, function", ", ".join(given) or "none of them")
        named = not self.options or bool(self.function)
        need(named, "train.distill.options", "none without train.distill.function", dict(self.options))


class PruneKeys(Section, frozen=True):
    """Pruning: see `cloud.train.variants.Prune`."""

    sparsity: Fraction
    begin: Whole = 0
    end: Whole = 0
    """0: three quarters of the run's steps."""
    every: Count = 50
    targets: tuple[str, ...] = ("*",)
    structured: bool = False


class AdversarialKeys(Section, frozen=True):
    """Examples moved to where the loss is high: see `cloud.train.variants.Adversarial`."""

    epsilon: Positive
    steps: Count = 7
    step: NotNegative = 0.0
    """0: 2.5 * epsilon / steps."""
    norm: Literal["Linf", "L2"] = "Linf"
    low: float = 0.0
    high: float = 1.0
    trades: NotNegative = 0.0
    input: str = ""
    """"": the only input of floats."""


def variants_of(
    lora: LoraKeys | None, distill: DistillKeys | None, prune: PruneKeys | None, adversarial: AdversarialKeys | None,
    folder: Path, seed: int, batch: int, steps: int,
) -> dict[str, Any]:  # fmt: skip
    """The arguments of a trainer; `steps`: of the whole run, 0 if they are not known. Raises TrainError."""
    made: dict[str, Any] = {}
    if lora is not None:
        made["lora"] = Lora(lora.rank, lora.alpha or None, lora.targets, lora.also, seed)
    if distill is not None:
        made["distill"] = Distill(
            _teacher(distill, folder, batch), distill.temperature, distill.weight, distill.hints, distill.hint_weight
        )
    if prune is not None:
        need(bool(prune.end or steps), "train.prune.end", "a step, as the data does not say how many there are", 0)
        end = prune.end or max(1, 3 * steps // 4)
        made["prune"] = Prune(prune.sparsity, end, prune.begin, prune.every, prune.targets, prune.structured)
    if adversarial is not None:
        made["adversarial"] = Adversarial(**msgspec.structs.asdict(adversarial))
    return made


def _teacher(said: DistillKeys, folder: Path, batch: int) -> Any:
    if said.onnx:
        return graph_of(folder / said.onnx, batch)
    return called(named_function(said.function, folder, "train.distill.function"), said.options, "train.distill")


def save_adapters(path: Path, arrays: Mapping[str, Any], model: str) -> None:
    """A state file for bundles with the same adapters. Raises TrainError for adapters that are not finite."""
    from lite_runtime.learning import checkpoint

    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise TrainError(f"export.adapter: {name!r} is not finite; nothing was written")
    checkpoint.write(path, arrays, model)
