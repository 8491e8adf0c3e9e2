"""What is refused of data before a step would fail at it or, worse, learn from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from cloud.errors import TrainError
from cloud.train.inputs.weights import plain
from cloud.train.tasks import Task

if TYPE_CHECKING:
    from cloud.engine import TensorSpec

__all__ = ["Checked", "check_numbers"]


def check_numbers(arrays: Mapping[str, Any]) -> None:
    """Raise TrainError for arrays of anything but numbers, by their name."""
    for name, tree in arrays.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            dtype = getattr(leaf, "dtype", None)
            if dtype is not None and dtype.kind in "OUSMm":
                what = "strings" if dtype.kind in "US" else "times" if dtype.kind in "Mm" else "objects"
                raise TrainError(
                    f"{name}{jax.tree_util.keystr(path)}: expected numbers, got {what} ({dtype}{list(leaf.shape)}); "
                    "turn them into numbers first (texts by .tokenize(…) of a pipeline), and leave no value out"
                )


@dataclass(frozen=True)
class Checked:
    """The check of a batch's labels, for one output: classes count from 0, and there are as many as the output has
    values. A label out of range makes the loss NaN, and one below 0 would be counted from the end. `key`: of the
    labels, if they are a dict."""

    classes: int | None
    key: str = ""

    @classmethod
    def of(cls, of_classes: Sequence[tuple[str, str]], task: Task) -> Callable[[Any], None] | None:
        """The check of outputs whose labels are classes, by the keys of output and labels ("" for the only one); None
        without any."""
        checks = [cls(_values(task, output), label) for output, label in of_classes]

        def every(labels: Any) -> None:
            for check in checks:
                check(plain(labels))

        return every if checks else None

    def __call__(self, labels: Any) -> None:
        """Raise TrainError for labels that name no class of the model."""
        where = f"labels[{self.key!r}]" if self.key else "labels"
        if self.key and isinstance(labels, Mapping):
            labels = labels.get(self.key)
        if isinstance(labels, Mapping):
            raise TrainError(
                f"labels: expected one array of classes, got a dict of {sorted(labels)}; give the array, a loss for "
                "each output (loss={...}), or a loss of your own: loss=f(output, labels)"
            )
        if not isinstance(labels, np.ndarray):
            return
        if labels.dtype.kind not in "iu":
            if labels.ndim < 2:
                raise TrainError(
                    f"{where}: expected whole numbers (classes), or probabilities shaped like the model's output, got "
                    f"{labels.dtype}{list(labels.shape)}; convert them with .astype('int32')"
                )
            return
        if labels.size and (labels.min() < 0 or (self.classes is not None and labels.max() >= self.classes)):
            top = "" if self.classes is None else f" to {self.classes - 1}, as the model has {self.classes} outputs"
            wrong = (labels < 0) | (labels >= (np.inf if self.classes is None else self.classes))
            place = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise TrainError(
                f"{where}: expected classes from 0{top}; got {labels[place]} in row {place[0]}, and {wrong.sum()} such "
                "labels in all"
            )


def _values(task: Task, output: str) -> int | None:
    """The last size of a model's output of that name (""; the only one), if it is known before it runs."""
    specs: Sequence[TensorSpec] = getattr(getattr(task, "function", None), "outputs", ())
    chosen = [spec for spec in specs if spec.name == output] if output else specs
    last = list(chosen[0].shape or ())[-1:] if len(chosen) == 1 else []
    return next((size for size in last if isinstance(size, int)), None)
