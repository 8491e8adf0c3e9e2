"""SOAP as its paper has it, to compare with: whole factors, all bases renewed in the same step.

Vyas et al., 2024 (arXiv:2409.11321), algorithm 3: momentum in the weight's own axes and turned every step, factors
gathered every step, one QR step for every basis each `every` steps, the first step only initialises (by `eigh`). The
second moment is reordered with the bases. Axes longer than `longest` are not turned. `cloud.train.optim.thor` with
blocks as long as the axes and `gather=1` differs in three things: momentum is kept in the basis, bases are renewed in
turn, and the second moment is turned along with the basis.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from cloud.train.optim.blocks import as_matrix

__all__ = ["scale_by_soap"]


class _Weight(NamedTuple):
    momentum: Any
    second: Any
    factors: tuple[Any, Any]
    bases: tuple[Any, Any]


def scale_by_soap(
    *, b1: float = 0.95, b2: float = 0.95, eps: float = 1e-8, every: int = 10, longest: int = 2048
) -> optax.GradientTransformation:
    """Update directions, for `optax.chain`."""

    def init(params: Any) -> Any:
        return jnp.zeros((), jnp.int32), tuple(_fresh(p, longest) for p in jax.tree.leaves(params))

    def update(gradient: Any, state: Any, params: Any = None) -> Any:
        leaves, tree = jax.tree.flatten(gradient)
        count = state[0] + 1
        done = [_step(g, w, count, b1, b2, eps, every) for g, w in zip(leaves, state[1], strict=True)]
        return jax.tree.unflatten(tree, [d for d, _ in done]), (count, tuple(w for _, w in done))

    return optax.GradientTransformation(init, update)


def _fresh(p: Any, longest: int) -> _Weight:
    shape = as_matrix(p.shape) or (1, p.size)
    sizes = [n if as_matrix(p.shape) is not None and n <= longest else 0 for n in shape]
    factors = tuple(jnp.zeros((n, n)) if n else None for n in sizes)
    bases = tuple(jnp.eye(n) if n else None for n in sizes)
    return _Weight(jnp.zeros(shape), jnp.zeros(shape), (factors[0], factors[1]), (bases[0], bases[1]))


def _step(g: Any, w: _Weight, count: Any, b1: float, b2: float, eps: float, every: int) -> tuple[Any, _Weight]:
    x = g.reshape(w.momentum.shape)
    momentum = b1 * w.momentum + (1 - b1) * x
    turned = _into(w.bases, x)
    second = b2 * w.second + (1 - b2) * turned * turned
    step = _into(w.bases, momentum) / (1 - b1**count) / (jnp.sqrt(second / (1 - b2**count)) + eps)
    direction = _into(tuple(None if q is None else q.T for q in w.bases), step)
    grams = x @ x.T, x.T @ x
    factors = tuple(None if f is None else b2 * f + (1 - b2) * gram for f, gram in zip(w.factors, grams, strict=True))
    w = _Weight(momentum, second, (factors[0], factors[1]), w.bases)
    if any(f is not None for f in factors):
        w = jax.lax.cond(count == 1, _first, lambda w: jax.lax.cond(count % every == 0, _renewed, lambda w: w, w), w)
    return jnp.where(count == 1, 0.0, direction.reshape(g.shape)), w


def _into(bases: Any, x: Any) -> Any:
    x = x if bases[0] is None else bases[0].T @ x
    return x if bases[1] is None else x @ bases[1]


def _first(w: _Weight) -> _Weight:
    bases = tuple(None if f is None else jnp.linalg.eigh(f)[1][:, ::-1] for f in w.factors)
    return w._replace(bases=(bases[0], bases[1]), second=jnp.zeros_like(w.second))


def _renewed(w: _Weight) -> _Weight:
    bases, second = list(w.bases), w.second
    for axis, (factor, basis) in enumerate(zip(w.factors, w.bases, strict=True)):
        if factor is not None:
            order = jnp.argsort(-jnp.diagonal(basis.T @ factor @ basis))
            bases[axis] = jnp.linalg.qr(factor @ basis[:, order])[0]
            second = jnp.take(second, order, axis)
    return w._replace(bases=(bases[0], bases[1]), second=second)
