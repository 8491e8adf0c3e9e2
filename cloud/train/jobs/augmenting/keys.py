"""The keys of [[data.augment]]; each table is a change of the training data."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from cloud import data
from cloud.data import Apply, Pipeline, Policy
from cloud.data.augment import Blend
from cloud.errors import DataError, TrainError
from cloud.train.jobs.sections import Section, need
from cloud.train.jobs.settings import only
from federated.tables import Fraction, NotNegative, Number, Positive, Whole

__all__ = ["AugmentKeys"]

_EVERYWHERE = {"kind", "chance", "axes", "input"}


class AugmentKeys(Section, frozen=True):
    """One change: a policy of `kind`; one `operation` of a kind; or, with `blend`, two examples made one."""

    kind: Literal["", "image", "spectrum", "series"] = ""
    operations: tuple[str, ...] = ()
    choose: Whole = 2
    magnitude: NotNegative = 9.0
    uniform: bool = False
    wide: bool = False
    operation: str = ""
    amount: NotNegative = 0.0
    blend: Literal["", "mixup", "cutmix", "either"] = ""
    classes: Whole = 0
    alpha: Positive = 1.0
    head: str = ""
    """Whose labels are blended, of a model with several heads."""
    chance: Fraction = 1.0
    axes: str = ""
    range: tuple[Number, ...] = ()
    fill: Number = 0.0
    input: str = ""
    """Which input of the model; "": the only one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        one = not (self.blend and self.operation)
        need(one, "data.augment.operation", "none together with blend, which is a change of its own", self.operation)
        kind = Blend if self.blend else Apply if self.operation else Policy
        used = {*kind.__dataclass_fields__} | _EVERYWHERE | ({"blend", "head"} if self.blend else set())
        why = f"for {'a blend' if self.blend else 'one operation' if self.operation else 'a policy'}"
        only(self, "data.augment", used, why)
        need(bool(self.blend or self.kind), "data.augment.kind", "image, spectrum or series", self.kind)
        try:
            self.changed(data.arrays({"": np.zeros(1)}), "")
        except DataError as problem:
            raise TrainError(f"data.augment: {problem}") from problem

    def changed(self, pipeline: Pipeline, name: str) -> Pipeline:
        """The pipeline with this change of value `name`. Raises DataError for settings that do not go together."""
        if self.blend:
            labels = f"labels.{self.head}" if self.head else "labels"
            return pipeline.blend(
                name, self.classes, self.blend, labels=labels, alpha=self.alpha, chance=self.chance, kind=self.kind,
                axes=self.axes,
            )  # fmt: skip
        common: dict[str, Any] = {"chance": self.chance, "axes": self.axes, "range": self.range, "fill": self.fill}
        if self.operation:
            return pipeline.augment(name, Apply(self.kind, self.operation, self.amount, **common))
        policy = Policy(self.kind, self.operations, self.choose, self.magnitude, self.uniform, self.wide, **common)
        return pipeline.augment(name, policy)
