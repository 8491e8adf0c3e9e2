"""Areas under curves, and retrieval: metrics of an order. As scikit-learn defines them; equal scores share a rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cloud.train.metrics.whole import SetMetric

__all__ = ["average_precision", "ranked", "roc_auc"]

_CHUNK = 256
"""Queries whose similarities to all examples are held at once."""


def roc_auc(scores: Any, yes: Any) -> float:
    """The area under the receiver operating characteristic, [n] and [n] bool; NaN if all are yes or all are no."""
    good, bad = int(yes.sum()), int((~yes).sum())
    if not good or not bad:
        return float("nan")
    from scipy.stats import rankdata  # a second of every start if it were imported at once

    ranks = rankdata(scores, method="average")
    return float((ranks[yes].sum() - good * (good + 1) / 2) / (good * bad))


def average_precision(scores: Any, yes: Any) -> float:
    """The area under precision over recall: the sum over thresholds of precision times the recall gained; NaN if none
    is yes."""
    if not yes.any():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    ordered, right = scores[order], np.cumsum(yes[order])
    ends = np.append(np.flatnonzero(np.diff(ordered)), len(ordered) - 1)
    precision, gained = right[ends] / (ends + 1), np.diff(right[ends], prepend=0)
    return float((precision * gained).sum() / right[-1])


def ranked(name: str, separate: bool) -> SetMetric | None:
    """roc_auc and pr_auc: of one decision or two classes, else the mean over decisions or over each class against the
    rest, of those that are defined; retrieval_map and retrieval_recall_K: every example looks for those with its label
    among all others, by the cosine of the outputs [batch, n]. None for another name."""
    areas = {"roc_auc": roc_auc, "pr_auc": average_precision}
    if name in areas:
        return SetMetric(_decisions if separate else _classes, lambda kept: _mean_area(areas[name], kept))
    if name == "retrieval_map":
        return SetMetric(_places, lambda kept: _retrieved(kept, average_precision))
    if name.startswith("retrieval_recall_") and name.rpartition("_")[2].isdecimal():
        first = max(int(name.rpartition("_")[2]), 1)
        return SetMetric(_places, lambda kept: _retrieved(kept, lambda scores, yes: _among(scores, yes, first)))
    return None


def _decisions(output: Any, labels: Any) -> Any:
    """Scores and labels, [batch, decisions] each."""
    return output.reshape(len(output), -1), (labels > 0.5).reshape(len(output), -1)


def _classes(output: Any, labels: Any) -> Any:
    """The same of classes; of two classes the odds of the second. Rows of sequences are joined: [batch, n, classes]."""
    hot = labels > 0.5 if labels.ndim == output.ndim else labels[..., None] == jnp.arange(output.shape[-1])
    chance = jax.nn.log_softmax(output, axis=-1)
    if output.shape[-1] == 2:
        chance, hot = (output[..., 1] - output[..., 0])[..., None], hot[..., 1:]
    return chance.reshape(len(output), -1, chance.shape[-1]), hot.reshape(len(output), -1, hot.shape[-1])


def _mean_area(area: Callable[[Any, Any], float], kept: Any) -> float:
    scores, yes = (part.reshape(-1, part.shape[-1]) for part in kept)
    found = np.array([area(scores[:, i].astype(np.float64), yes[:, i]) for i in range(scores.shape[1])])
    known = found[np.isfinite(found)]
    return float(known.mean()) if len(known) else float("nan")


def _places(output: Any, labels: Any) -> Any:
    size = jnp.linalg.norm(output, axis=-1, keepdims=True)
    return output / jnp.maximum(size, 1e-12), labels


def _among(scores: Any, yes: Any, first: int) -> float:
    """Whether one of the `first` most similar has the label."""
    if not yes.any():
        return float("nan")
    return float(yes[np.argsort(-scores, kind="stable")[:first]].any())


def _retrieved(kept: Any, value: Callable[[Any, Any], float]) -> float:
    """The mean over queries that have something to find; NaN without any."""
    places, labels = kept[0].astype(np.float64), kept[1]
    found: list[float] = []
    for begin in range(0, len(places), _CHUNK):
        similar = places[begin : begin + _CHUNK] @ places.T
        for row, scores in enumerate(similar, begin):
            others = np.arange(len(places)) != row
            found.append(value(scores[others], labels[others] == labels[row]))
    known = [one for one in found if np.isfinite(one)]
    return float(np.mean(known)) if known else float("nan")
