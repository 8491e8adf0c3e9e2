"""Inputs whose gradient points the way that was sent, for networks of any form.

Geiping, Bauermeister, Dröge and Moeller, "Inverting Gradients - How Easy Is It to Break Privacy in Federated
Learning?", NeurIPS 2020: the cosine of both gradients and the total variation of the images, by Adam on the signs of
the slopes, its rate divided by ten at 3/8, 5/8 and 7/8 of the steps, the best of several starts.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cloud.audit.privacy.inversion.observe import Observed
from cloud.errors import AuditError

__all__ = ["geiping", "gradient_of"]


def geiping(
    observed: Observed, labels: np.ndarray, *, steps: int = 1200, restarts: int = 2, variation: float = 1e-2,
    rate: float = 0.1, clip: tuple[float, float] = (0.0, 1.0), seed: int = 0,
) -> np.ndarray:  # fmt: skip
    """Reconstructions (examples, ...) float32 within `clip`, in the order of the labels (examples,), which the paper
    takes as known: see `labels_of`. variation: the weight of the total variation (inputs with rows and columns only).
    Raises AuditError for labels that do not fit."""
    labels = checked_labels(observed, labels)
    shape = (restarts, observed.examples, *observed.input[1])
    starts = np.random.default_rng(seed).uniform(*clip, shape).astype(np.float32)
    run = jax.jit(partial(_descend, observed, steps=steps, variation=variation, rate=rate, clip=clip))
    found, losses = jax.lax.map(lambda start: run(start, labels), jnp.asarray(starts))
    losses = np.nan_to_num(np.asarray(losses), nan=np.inf)
    return np.asarray(found[int(losses.argmin())])


def checked_labels(observed: Observed, labels: np.ndarray) -> np.ndarray:
    """The labels as int32. Raises AuditError for another number of them, or for other dtypes."""
    labels = np.asarray(labels)
    if labels.shape != (observed.examples,) or labels.dtype.kind not in "iu":
        raise AuditError(f"expected {observed.examples} labels, integers, got {labels.dtype}{list(labels.shape)}")
    return labels.astype(np.int32)


def gradient_of(observed: Observed, x: Any, targets: Any) -> Any:
    """The gradient of the mean cross-entropy of examples x for targets, classes or chances of classes."""
    name = observed.input[0]

    def loss(params: Any) -> Any:
        outputs, _ = observed.function.apply(params, observed.state, {name: x}, train=True, rng=jax.random.key(0))
        scores = next(iter(outputs.values()))
        if targets.ndim == 1:
            return optax.softmax_cross_entropy_with_integer_labels(scores, targets).mean()
        return optax.softmax_cross_entropy(scores, targets).mean()

    return jax.grad(loss)(dict(observed.params))


def _variation(x: Any) -> Any:
    if x.ndim != 4:
        return 0.0
    return jnp.abs(x[..., 1:, :] - x[..., :-1, :]).mean() + jnp.abs(x[..., 1:] - x[..., :-1]).mean()


def _descend(
    observed: Observed, start: Any, labels: Any, *, steps: int, variation: float, rate: float, clip: tuple[float, float]
) -> tuple[Any, Any]:
    wanted = {name: jnp.asarray(value) for name, value in observed.gradient.items()}
    length = jnp.sqrt(sum(jnp.vdot(value, value) for value in wanted.values()))

    def apart(x: Any) -> Any:
        ours = gradient_of(observed, x, labels)
        inner = sum(jnp.vdot(ours[name], value) for name, value in wanted.items())
        own = jnp.sqrt(sum(jnp.vdot(value, value) for value in ours.values()) + 1e-20)
        return 1 - inner / (own * length + 1e-20)

    bounds = {int(steps * share): 0.1 for share in (3 / 8, 5 / 8, 7 / 8)}
    optimizer = optax.adam(optax.piecewise_constant_schedule(rate, bounds))

    def step(_: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        x, slots = carry
        slope = jax.grad(lambda x: apart(x) + variation * _variation(x))(x)
        updates, slots = optimizer.update(jnp.sign(slope), slots)
        return jnp.clip(x + updates, *clip), slots

    x, _ = jax.lax.fori_loop(0, steps, step, (start, optimizer.init(start)))
    return x, apart(x)
