"""Membership by an attack network that learns from shadow models what answers to members look like.

Shokri, Stronati, Song and Shmatikov, "Membership Inference Attacks Against Machine Learning Models", S&P 2017. Theirs
is a network for each class; here one network is told the class, so that few examples of a class suffice.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cloud.audit.privacy.membership.signals import Array, checked
from cloud.errors import AuditError
from lite_runtime.calibration.scores import log_softmax

__all__ = ["shadow_attack"]

HIDDEN = 64
STEPS = 400
BATCH = 512
MOST = 10
"""How many of the highest probabilities the network sees, in order."""


def shadow_attack(
    logits: Array, labels: Array, shadow_logits: Array, keep: Array, *, shadow_labels: Array | None = None,
    seed: int = 0,
) -> Array:  # fmt: skip
    """Scores (n,) float64, higher for members: the attack network's logits.

    logits: the target's, (n, classes). shadow_logits: (models, m, classes) for examples with shadow_labels (m,), by
    default the same ones, and keep (models, m) bool, which model was trained on which. Raises AuditError for arrays
    that do not fit.
    """
    logits, labels = checked(logits, labels)
    known = labels if shadow_labels is None else np.asarray(shadow_labels)
    if shadow_logits.ndim != 3 or keep.shape != shadow_logits.shape[:2] or known.shape != keep.shape[1:]:
        raise AuditError(
            f"expected shadow_logits (models, m, classes), keep (models, m) and m labels, got "
            f"{list(shadow_logits.shape)}, {list(keep.shape)} and {list(known.shape)}"
        )
    if keep.all() or not keep.any():
        raise AuditError("expected shadow models with members and non-members, got only one kind")
    seen = np.concatenate([_features(*checked(one, known)) for one in shadow_logits])
    middle, spread = seen.mean(0), seen.std(0) + 1e-6
    truth = keep.ravel().astype(np.float32)
    params = _fit(((seen - middle) / spread).astype(np.float32), truth, jax.random.key(seed))
    given = ((_features(logits, labels) - middle) / spread).astype(np.float32)
    return np.asarray(_network(params, given), np.float64)


def _features(logits: Array, labels: Array) -> Array:
    """The highest log probabilities in order, that of the label, whether the answer is right, and the class."""
    logs = np.maximum(log_softmax(logits), -30.0)
    ordered = -np.sort(-logs, axis=1)[:, :MOST]
    own = np.take_along_axis(logs, labels[:, None], 1)
    right = (logits.argmax(1) == labels)[:, None]
    return np.concatenate([ordered, own, right, np.eye(logits.shape[1])[labels]], 1)


def _network(params: Any, x: Any) -> Any:
    w, a, v, b = params
    return (jax.nn.relu(x @ w + a) @ v + b)[:, 0]


@jax.jit
def _fit(x: Any, truth: Any, key: Any) -> Any:
    """Adam on random batches."""
    first, second, third = jax.random.split(key, 3)
    params = (
        jax.random.normal(first, (x.shape[1], HIDDEN)) * jnp.sqrt(2 / x.shape[1]), jnp.zeros(HIDDEN),
        jax.random.normal(second, (HIDDEN, 1)) * jnp.sqrt(1 / HIDDEN), jnp.zeros(1),
    )  # fmt: skip
    optimizer = optax.adam(optax.cosine_decay_schedule(5e-3, STEPS))

    def loss(params: Any, rows: Any) -> Any:
        return optax.sigmoid_binary_cross_entropy(_network(params, x[rows]), truth[rows]).mean()

    def step(carry: Any, key: Any) -> tuple[Any, None]:
        params, slots = carry
        rows = jax.random.randint(key, (BATCH,), 0, len(x))
        updates, slots = optimizer.update(jax.grad(loss)(params, rows), slots)
        return (optax.apply_updates(params, updates), slots), None

    return jax.lax.scan(step, (params, optimizer.init(params)), jax.random.split(third, STEPS))[0][0]
