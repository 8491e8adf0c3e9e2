"""What a model's answer to an example says about whether it was trained on it: one number, higher for members.

Yeom, Giacomelli, Fredrikson and Jha, "Privacy Risk in Machine Learning: Analyzing the Connection to Overfitting", CSF
2018 (correctness, loss); Song and Mittal, "Systematic Evaluation of Privacy Risks of Machine Learning Models", USENIX
Security 2021 (confidence, entropy, modified entropy); Carlini, Chien, Nasr, Song, Terzis and Tramèr, "Membership
Inference Attacks From First Principles", S&P 2022 (the logit of the confidence, which is nearly normal over models).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cloud.audit.victim import Victim
from cloud.errors import AuditError
from lite_runtime.calibration.scores import are_probabilities, from_probabilities, log_softmax

__all__ = ["SIGNALS", "Array", "checked", "logit_confidence", "logits_of"]

Array: TypeAlias = npt.NDArray[Any]

_SUM = 0.02
"""How far from 1 the sum of probabilities of an integer softmax may be."""


def logits_of(victim: Victim, x: Array) -> Array:
    """Scores (rows, classes) float64 of a model, probabilities turned to logits: a victim that ends with a softmax
    returns those. Quantised probabilities hide differences between values near 1."""
    scores = np.asarray(victim.logits(x), np.float64)
    return from_probabilities(scores) if are_probabilities(scores, _SUM) else scores


def checked(logits: Array, labels: Array, what: str = "examples") -> tuple[Array, Array]:
    """Logits (n, classes) as float64 and labels (n,) as int64. Raises AuditError for those that do not fit."""
    logits, labels = np.asarray(logits, np.float64), np.asarray(labels)
    if logits.ndim != 2 or not len(logits) or logits.shape[1] < 2:
        raise AuditError(f"{what}: expected scores (n, classes) of at least 2 classes, got {list(logits.shape)}")
    if labels.shape != logits.shape[:1] or labels.dtype.kind not in "iu":
        raise AuditError(f"{what}: expected {len(logits)} labels, integers, got {labels.dtype}{list(labels.shape)}")
    if labels.min() < 0 or labels.max() >= logits.shape[1]:
        raise AuditError(
            f"{what}: expected labels from 0 to {logits.shape[1] - 1}, got {labels.min()} to {labels.max()}: the "
            f"model has {logits.shape[1]} classes"
        )
    if not np.isfinite(logits).all():
        raise AuditError(f"{what}: expected finite scores, got NaN or infinity; check the model's inputs")
    return logits, labels.astype(np.int64)


def _own(values: Array, labels: Array) -> Array:
    return np.asarray(np.take_along_axis(values, labels[:, None], 1)[:, 0])


def _rest(logs: Array) -> Array:
    """log(1 - p) of log p (n, classes): for the likeliest class from the others', since 1 - p would round to 0."""
    top = logs.argmax(1)[:, None]
    others = logs.copy()
    np.put_along_axis(others, top, -np.inf, 1)
    most = others.max(1, keepdims=True)
    of_top = most + np.log(np.exp(others - most).sum(1, keepdims=True))
    rest = np.log1p(-np.minimum(np.exp(logs), 0.5))  # all but the likeliest are at most a half
    np.put_along_axis(rest, top, np.minimum(of_top, 0.0), 1)
    return np.asarray(rest)


def _correct(logits: Array, labels: Array) -> Array:
    return np.asarray(logits.argmax(1) == labels, np.float64)


def _loss(logits: Array, labels: Array) -> Array:
    logs: Array = log_softmax(logits)
    return _own(logs, labels)


def _confidence(logits: Array, labels: Array) -> Array:
    return np.asarray(np.exp(_loss(logits, labels)))


def _entropy(logits: Array, labels: Array) -> Array:
    logs = log_softmax(logits)
    return np.asarray((np.exp(logs) * logs).sum(1))


def _modified_entropy(logits: Array, labels: Array) -> Array:
    """Song and Mittal, equation 8: (1 - p_y) log p_y + the sum over other classes of p_i log(1 - p_i), which is the
    negative of theirs. Unlike the entropy it tells a sure right answer from a sure wrong one."""
    logs = log_softmax(logits)
    rest = _rest(logs)
    each = np.exp(logs) * rest
    return np.asarray(each.sum(1) - _own(each, labels) + np.exp(_own(rest, labels)) * _own(logs, labels))


def logit_confidence(logits: Array, labels: Array) -> Array:
    """log p_y - log(1 - p_y), (n,): exact also where p_y rounds to 1."""
    logs = log_softmax(logits)
    return _own(logs, labels) - _own(_rest(logs), labels)


SIGNALS: Mapping[str, Callable[[Array, Array], Array]] = {
    "correct": _correct,
    "loss": _loss,
    "confidence": _confidence,
    "entropy": _entropy,
    "modified entropy": _modified_entropy,
    "logit confidence": logit_confidence,
}
"""Name -> (logits (n, classes), labels (n,)) to signals (n,), higher for members."""
