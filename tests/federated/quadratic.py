"""A learner whose every derivative is known by hand, for NumPy as for JAX: linear regression, and a running mean.

The loss of w (`body.w`), b (`head.b`) over x, y is mean((x w + b - y)^2) / 2; `norm.mean` follows the inputs' mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from federated import tree
from federated.client.lite import stacked
from federated.learner import Batch, Evaluation, Gradient
from federated.tree import Tree

WIDTH = 3
KEEP = 0.75


class Quadratic:
    """`xp`: numpy, or jax.numpy with `scan` jax.lax.scan."""

    second_order = True

    def __init__(self, xp: Any = np, scan: Callable[..., Any] | None = None) -> None:
        self.xp, self._scan = xp, scan

    @property
    def params(self) -> dict[str, Any]:
        f = np.float32
        return {"body.w": f([0.5, -1.0, 2.0]), "head.b": f([0.25]), "norm.mean": f([0.0, 0.0, 0.0])}

    def gradient(self, params: Tree, batch: Batch) -> Gradient:
        x, y = batch.inputs["x"], batch.labels
        off = x @ params["body.w"] + params["head.b"] - y
        grads = {"body.w": x.T @ off / len(y), "head.b": off.sum(keepdims=True) / len(y)}
        mean = KEEP * params["norm.mean"] + (1 - KEEP) * x.mean(0)
        return Gradient((off * off).mean() / 2, grads, {"norm.mean": mean})

    def meta_gradient(self, params: Tree, rates: Tree, support: Batch, query: Batch) -> tuple[Gradient, Tree]:
        """Backwards through theta <- theta - rates * gradient, whose Jacobian is I - diag(rates) H."""
        path = [params]
        for i in range(len(support.labels)):
            gradient = self.gradient(path[-1], at(support, i))
            path.append({**tree.sub(path[-1], tree.mul(gradient.grads, rates) | STILL), **gradient.statistics})
        there = self.gradient(path[-1], query)
        back, slopes = there.grads, tree.zeros(there.grads)
        for i in reversed(range(len(support.labels))):
            batch = at(support, i)
            slopes = tree.sub(slopes, tree.mul(back, self.gradient(path[i], batch).grads))
            back = tree.sub(back, self.curvature(tree.mul(back, rates), batch))
        return there._replace(grads=back), slopes

    def curvature(self, along: Tree, batch: Batch) -> dict[str, Any]:
        """The Hessian's product."""
        x = batch.inputs["x"]
        off = x @ along["body.w"] + along["head.b"]
        return {"body.w": x.T @ off / len(x), "head.b": off.sum(keepdims=True) / len(x)}

    def evaluate(self, params: Tree, batch: Batch) -> Evaluation:
        off = batch.inputs["x"] @ params["body.w"] + params["head.b"] - batch.labels
        return Evaluation((off * off).sum() / 2, (abs(off) < 0.5).sum(), len(batch.labels))

    def scan(self, step: Callable[..., Any], carry: Any, batches: Batch) -> tuple[Any, Any]:
        if self._scan is not None:
            return self._scan(step, carry, batches)
        outs = []
        for i in range(len(batches.labels)):
            carry, out = step(carry, at(batches, i))
            outs.append(out)
        return carry, stacked(outs)


STILL = {"norm.mean": np.float32([0.0, 0.0, 0.0])}


def at(batches: Batch, i: int) -> Batch:
    return Batch({name: values[i] for name, values in batches.inputs.items()}, batches.labels[i])


def batches(steps: int, n: int = 4, seed: int = 0) -> Batch:
    """Batches [steps, n, ...] of a device; another seed is another device."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((steps, n, WIDTH)).astype(np.float32)
    y = x @ rng.standard_normal(WIDTH).astype(np.float32) + rng.standard_normal(1).astype(np.float32)
    return Batch({"x": x}, y)
