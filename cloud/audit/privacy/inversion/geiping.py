"""Inputs whose gradient points the way that was sent, for networks of any form.

Geiping, Bauermeister, Dröge and Moeller, "Inverting Gradients - How Easy Is It to Break Privacy in Federated
Learning?", NeurIPS 2020: the cosine of both gradients and the total variation of the images, by Adam on the signs of
the slopes, its rate divided by ten at 3/8, 5/8 and 7/8 of the steps, the best of several starts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cloud.audit.privacy.inversion.observe import Loss, Observed
from cloud.engine import EngineFunction
from cloud.errors import AuditError

__all__ = ["geiping", "gradient_of"]


def geiping(
    observed: Observed, labels: np.ndarray, *, steps: int = 1200, restarts: int = 2, variation: float = 1e-2,
    rate: float = 0.1, clip: tuple[float, float] = (0.0, 1.0), seed: int = 0,
) -> np.ndarray:  # fmt: skip
    """Reconstructions (examples, ...) float32 within `clip`, in the order of the labels (examples,), which the paper
    takes as known: see `labels_of`. variation: the weight of the total variation (inputs with rows and columns only).
    rate: of the range of `clip`. Raises AuditError for labels that do not fit."""
    labels = checked_labels(observed, labels)
    shape = (restarts, observed.examples, *observed.input[1])
    starts = np.random.default_rng(seed).uniform(*clip, shape).astype(np.float32)
    wanted = {name: jnp.asarray(value) for name, value in observed.gradient.items()}
    run = _search(observed.function, variation, rate * (clip[1] - clip[0]), clip)
    found, losses = run(dict(observed.params), dict(observed.state), wanted, starts, labels, steps)
    losses = np.nan_to_num(np.asarray(losses), nan=np.inf)
    return np.asarray(found[int(losses.argmin())])


def checked_labels(observed: Observed, labels: np.ndarray) -> np.ndarray:
    """The labels as int32. Raises AuditError for another number of them, or for other dtypes."""
    labels = np.asarray(labels)
    if labels.shape != (observed.examples,) or labels.dtype.kind not in "iu":
        raise AuditError(f"expected {observed.examples} labels, integers, got {labels.dtype}{list(labels.shape)}")
    return labels.astype(np.int32)


def gradient_of(function: EngineFunction, params: Any, state: Any, x: Any, targets: Any) -> Any:
    """The gradient of the mean cross-entropy of examples x for targets, classes or chances of classes; of a bundle's
    function (`trained_function`), that of its own loss for classes."""
    name = function.inputs[0].name

    def loss(params: Any) -> Any:
        if isinstance(function, Loss):
            given = {name: x, function.inputs[1].name: targets}
            return function.apply(params, state, given, train=True)[0][function.outputs[0].name]
        outputs, _ = function.apply(params, state, {name: x}, train=True, rng=jax.random.key(0))
        scores = next(iter(outputs.values()))
        if targets.ndim == 1:
            return optax.softmax_cross_entropy_with_integer_labels(scores, targets).mean()
        return optax.softmax_cross_entropy(scores, targets).mean()

    return jax.grad(loss)(dict(params))


def _variation(x: Any) -> Any:
    if x.ndim != 4:
        return 0.0
    return jnp.abs(x[..., 1:, :] - x[..., :-1, :]).mean() + jnp.abs(x[..., 1:] - x[..., :-1]).mean()


@lru_cache(maxsize=4)
def _search(function: EngineFunction, variation: float, rate: float, clip: tuple[float, float]) -> Any:
    """The search as one compiled program, for all messages of a function whatever was observed."""

    def run(params: Any, state: Any, wanted: Any, starts: Any, labels: Any, steps: Any) -> Any:
        def gradient(x: Any) -> Any:
            return gradient_of(function, params, state, x, labels)

        descend = partial(_descend, gradient, wanted, steps=steps, variation=variation, rate=rate, clip=clip)
        return jax.lax.map(descend, starts)

    return jax.jit(run)


def _descend(
    gradient: Callable[[Any], Any], wanted: Any, start: Any, *, steps: Any, variation: float, rate: float,
    clip: tuple[float, float],
) -> tuple[Any, Any]:  # fmt: skip
    length = jnp.sqrt(sum(jnp.vdot(value, value) for value in wanted.values()))

    def apart(x: Any) -> Any:
        ours = gradient(x)
        inner = sum(jnp.vdot(ours[name], value) for name, value in wanted.items())
        own = jnp.sqrt(sum(jnp.vdot(value, value) for value in ours.values()) + 1e-20)
        return 1 - inner / (own * length + 1e-20)

    adam = optax.scale_by_adam()

    def step(at: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        x, slots = carry
        slope = jax.grad(lambda x: apart(x) + variation * _variation(x))(x)
        updates, slots = adam.update(jnp.sign(slope), slots)
        passed = sum(at >= jnp.floor(steps * share) for share in (3 / 8, 5 / 8, 7 / 8))
        return jnp.clip(x - rate * 0.1**passed * updates, *clip), slots

    x, _ = jax.lax.fori_loop(0, steps, step, (start, adam.init(start)))
    return x, apart(x)
