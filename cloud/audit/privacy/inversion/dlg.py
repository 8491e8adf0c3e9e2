"""Inputs, and labels unless they are known, whose gradient equals the one that was sent, by L-BFGS.

Zhu, Liu and Han, "Deep Leakage from Gradients", NeurIPS 2019; with known labels, Zhao, Mopuri and Bilen's iDLG, 2020.
Works for small smooth networks and untouched gradients; a ReLU has no second derivative to follow.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cloud.audit.privacy.inversion.geiping import checked_labels, gradient_of
from cloud.audit.privacy.inversion.observe import Loss, Observed
from cloud.errors import AuditError

__all__ = ["dlg"]


def dlg(
    observed: Observed, labels: np.ndarray | None = None, *, steps: int = 300, restarts: int = 3, seed: int = 0,
    clip: tuple[float, float] = (0.0, 1.0),
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Reconstructions (examples, ...) float32 within `clip`, and their labels (examples,) int32. labels: None finds
    them along with the inputs, as in DLG. Raises AuditError for labels that do not fit."""
    from scipy.optimize import minimize  # a second of every start if it were imported at once

    known = None if labels is None else checked_labels(observed, labels)
    size, shape = int(np.prod(observed.input[1])), observed.input[1]
    classes, count = observed.classes, observed.examples
    if known is None and isinstance(observed.function, Loss):
        raise AuditError("expected labels with a bundle, whose loss takes classes alone; give those of labels_of")
    scale = sum(float((np.asarray(value, np.float64) ** 2).sum()) for value in observed.gradient.values())

    def apart(flat: Any) -> Any:
        x = flat[: count * size].reshape(count, *shape)
        targets = jax.nn.softmax(flat[count * size :].reshape(count, classes)) if known is None else jnp.asarray(known)
        ours = gradient_of(observed.function, observed.params, observed.state, x, targets)
        return sum(((ours[name] - value) ** 2).sum() for name, value in observed.gradient.items()) / max(scale, 1e-30)

    both = jax.jit(jax.value_and_grad(apart))

    def value(flat: np.ndarray) -> tuple[float, np.ndarray]:
        loss, slope = both(flat.astype(np.float32))
        return float(loss), np.asarray(slope, np.float64)

    best: Any = None
    for restart in range(restarts):
        rng = np.random.default_rng([seed, restart])
        start = np.concatenate(
            [rng.uniform(*clip, count * size), rng.standard_normal(0 if known is not None else count * classes)]
        )
        found = minimize(
            value,
            start,
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": steps, "maxcor": 50, "ftol": 1e-14, "gtol": 1e-10},
        )
        if best is None or found.fun < best.fun:
            best = found
    x = np.clip(best.x[: count * size], *clip).reshape(count, *shape).astype(np.float32)
    if known is not None:
        return x, known
    return x, best.x[count * size :].reshape(count, classes).argmax(1).astype(np.int32)
