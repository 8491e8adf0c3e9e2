"""Changes of the training data as nodes of its pipeline."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from cloud import data
from cloud.data import Pipeline, ir
from cloud.errors import DataError, TrainError
from cloud.train.inputs.weights import WEIGHT, plain
from cloud.train.jobs.augmenting.keys import AugmentKeys
from cloud.train.jobs.sections import need
from cloud.train.jobs.settings import Loss
from federated.tables import closest

__all__ = ["augmented"]


def augmented(
    train: Any, changes: Sequence[AugmentKeys], size: int, last: str, inputs: Collection[str],
    losses: Mapping[str, Loss],
) -> Any:  # fmt: skip
    """The training data, a pipeline or (inputs, labels), as a pipeline with `changes`; arrays in batches of `size`.
    `losses`: by head, "" without heads. Raises TrainError for changes that do not fit the data; two examples are
    changed to see that."""
    if not changes:
        return train
    if hasattr(train, "batches") and not (isinstance(train, Pipeline) and isinstance(train.node, ir.Batch)):
        raise TrainError(
            "data.augment: expected data.function to return arrays, or a pipeline that ends with .batch(…), got "
            f"{type(train).__name__}: change its elements there, with .augment and .blend"
        )
    if isinstance(train, Pipeline) and isinstance(train.node, ir.Batch):
        below, size, last = Pipeline(train.node.of), train.node.size, train.node.last
    else:
        columns = _columns(*train)
        below = data.arrays(columns).shuffle()
        size = min(size, len(next(iter(columns.values()))))
    for change in changes:
        _check_loss(change, losses)
        below = change.changed(below, _input(change.input, inputs))
    try:
        next(below.take(2).batch(2).batches())
    except DataError as problem:
        raise TrainError(f"data.augment: {problem}") from problem
    return below.batch(size, last)


def _input(name: str, inputs: Collection[str]) -> str:
    if not name:
        need(len(inputs) == 1, "data.augment.input", f"one of {', '.join(inputs)}", name)
        return next(iter(inputs))
    if name not in inputs:
        raise TrainError(f"data.augment.input: the model has no input {name!r}{closest(name, inputs)}")
    return name


def _check_loss(change: AugmentKeys, losses: Mapping[str, Loss]) -> None:
    if not change.blend:
        return
    if change.head not in losses:
        raise TrainError(f"data.augment.head: there is no head {change.head!r}{closest(change.head, losses)}")
    loss = losses[change.head].loss
    soft = loss == "softmax_cross_entropy" or ":" in loss
    need(soft, "data.augment.blend", '"" unless the loss is softmax_cross_entropy, which takes probabilities', loss)


def _columns(inputs: Mapping[str, Any], labels: Any) -> dict[str, Any]:
    """Arrays as a pipeline's values: see `PipelineFeed`."""
    weights = {WEIGHT: labels[WEIGHT]} if isinstance(labels, Mapping) and WEIGHT in labels else {}
    found = plain(labels)
    if not isinstance(found, Mapping):
        return {**inputs, "labels": found, **weights}
    return {**inputs, **{f"labels.{name}": array for name, array in found.items()}, **weights}
