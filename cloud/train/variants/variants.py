"""Adapters, a teacher, pruning and adversarial examples, applied to the parts of a trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import optax

from cloud.errors import TrainError
from cloud.train.stepping.losses import PerExample
from cloud.train.tasks.task import Task
from cloud.train.variants.adversarial import Adversarial, defended, of_clean
from cloud.train.variants.distill import Distill, DistillTask, distilled, of_student
from cloud.train.variants.lora import Lora, LoraTask
from cloud.train.variants.prune import Prune, PrunedTask, masked, pruned

__all__ = ["Variants"]


@dataclass(frozen=True)
class Variants:
    """What a trainer was asked for, of `cloud.train.variants`; with none of them every method returns its argument."""

    lora: Lora | None = None
    distill: Distill | None = None
    prune: Prune | None = None
    adversarial: Adversarial | None = None

    def __post_init__(self) -> None:
        if self.adversarial is not None and self.distill is not None:
            raise TrainError("expected adversarial or distill, got both: a teacher's outputs of moved examples mislead")
        if self.lora is not None and self.prune is not None:
            raise TrainError("expected lora or prune, got both: adapters would fill the zeros; prune after merging")

    def beside(self, freezing: Any, plateau: Any) -> Variants:
        """Itself. Raises TrainError for options of a trainer that do not go with it."""
        if freezing is not None and self != Variants(adversarial=self.adversarial):
            raise TrainError("expected no freezing beside lora, distill and prune, which change what could be frozen")
        if plateau is not None and self.prune is not None:
            raise TrainError("expected no plateau beside prune, whose zeros a lower rate would undo; use a schedule")
        return self

    def task(self, task: Task, frozen: Sequence[str]) -> Task:
        """The task with adapters, and with a teacher beside it."""
        if self.prune is not None and self.prune.structured:
            task = PrunedTask(task)
        if self.lora is not None:
            task = LoraTask(task, self.lora)
        return task if self.distill is None else DistillTask(task, self.distill, frozen)

    def freeze(self, task: Task, patterns: Sequence[str]) -> tuple[str, ...]:
        """Patterns of the parameters that are not trained; `task`: the result of `task`."""
        adapted = _model_of(task)
        return (*patterns, *adapted.frozen) if isinstance(adapted, LoraTask) else tuple(patterns)

    def loss(self, loss: PerExample) -> PerExample:
        """The loss, with the part of a teacher or of moved examples."""
        if self.adversarial is not None and self.adversarial.trades:
            return defended(loss, self.adversarial)
        return loss if self.distill is None else distilled(loss, self.distill)

    @property
    def outputs(self) -> Callable[..., Any] | None:
        """What is computed in training instead of the output of the inputs: see `Objective`."""
        return None if self.adversarial is None else self.adversarial.outputs

    def metric(self, metric: PerExample) -> PerExample:
        """A metric of the model's output, whatever else a step computes."""
        if self.adversarial is not None and self.adversarial.trades:
            return of_clean(metric)
        return metric if self.distill is None else of_student(metric)

    def optimizer(self, optimizer: optax.GradientTransformation, task: Task) -> optax.GradientTransformation:
        """The optimiser, whose updates keep zeros."""
        return optimizer if self.prune is None else pruned(optimizer, self.prune, _model_of(task))

    def averaged(self, average: Any, task: Task, slots: Any) -> Any:
        """A moving average of weights with the zeros of the weights."""
        return average if self.prune is None else masked(average, self.prune, _model_of(task), slots)

    def adapters(self, task: Task, params: Any) -> dict[str, Any]:
        """The adapters' arrays by name. Raises TrainError without adapters."""
        adapted = _model_of(task)
        if not isinstance(adapted, LoraTask):
            raise TrainError("expected a trainer with adapters: Trainer(…, lora=Lora(rank=8))")
        return adapted.adapters(params)


def _model_of(task: Task) -> Task:
    """The task that learns, without a teacher beside it."""
    return task.student if isinstance(task, DistillTask) else task
