"""Precision, recall, F1 and the confusion matrix, as scikit-learn defines them (what would divide by 0 is 0).

Classes: logits [..., classes], the largest is the prediction. Separate decisions (a sigmoid loss): logits [...], the
prediction is yes above 0.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from cloud.errors import TrainError
from cloud.train.metrics.whole import SetMetric

__all__ = ["classified", "decided", "scored"]

_WORDS = ("precision", "recall", "f1")


def classified(output: Any, labels: Any) -> Any:
    """(prediction, label, number of classes) of every row, [batch, n] int32 each."""
    wanted = jnp.argmax(labels, axis=-1) if labels.ndim == output.ndim else labels
    rows = len(output)
    found = (jnp.argmax(output, axis=-1), wanted, jnp.full(wanted.shape, output.shape[-1]))
    return tuple(each.astype(jnp.int32).reshape(rows, -1) for each in found)


def decided(output: Any, labels: Any) -> Any:
    """(prediction, label) of every row, [batch, decisions] bool each."""
    rows = len(output)
    return (output > 0).reshape(rows, -1), (labels > 0.5).reshape(rows, -1)


def scored(name: str, separate: bool) -> SetMetric | None:
    """precision, recall, f1 (of class 1 of two, or of the only decision), each also with _micro (over all decisions)
    and _macro (the mean over classes), and "confusion", a table [classes, classes] of true by predicted. None for
    another name. `separate`: see `decided`."""
    word, _, way = name.partition("_")
    rows = decided if separate else classified
    if name == "confusion":
        return SetMetric(rows, lambda kept: _confusion(kept, separate))
    if word not in _WORDS or way not in ("", "micro", "macro"):
        return None
    return SetMetric(rows, lambda kept: _score(name, way, kept, separate))


def _confusion(kept: Any, separate: bool) -> Any:
    if separate:
        said, true = (part.astype(np.int64).ravel() for part in kept)
        size = 2
        if kept[0].shape[1:] != (1,):
            raise TrainError('"confusion" is for classes, or for one decision; this model makes several decisions')
    else:
        said, true = (part.ravel().astype(np.int64) for part in kept[:2])
        size = int(kept[2].max(initial=0))
    return np.bincount(true * size + said, minlength=size * size).reshape(size, size)


def _score(name: str, way: str, kept: Any, separate: bool) -> float:
    """Of classes those count that are predicted or true at all; one decision is two classes."""
    several = separate and kept[0].shape[1] > 1
    counts = _of_decisions(*kept) if several else _of_classes(_confusion(kept, separate))
    if way == "micro":
        counts = counts.sum(0, keepdims=True)
    elif way == "macro":
        counts = counts if several else counts[counts[:, 1:].any(1)]
    elif several or len(counts) != 2:
        raise TrainError(f"{name!r} is for two classes or one decision: use {name}_micro or {name}_macro")
    else:
        counts = counts[1:]
    right, said, true = counts.T.astype(np.float64)
    word = name.partition("_")[0]
    above, below = {"precision": (right, said), "recall": (right, true), "f1": (2 * right, said + true)}[word]
    return float(np.mean(np.divide(above, below, out=np.zeros_like(above), where=below > 0)))


def _of_decisions(said: Any, true: Any) -> Any:
    """[decisions, 3] of right, predicted and true."""
    return np.stack([(said & true).sum(0), said.sum(0), true.sum(0)], axis=1)


def _of_classes(confusion: Any) -> Any:
    """[classes, 3] of the same."""
    return np.stack([confusion.diagonal(), confusion.sum(0), confusion.sum(1)], axis=1)
