"""Second order with Kronecker factors, whose bases are renewed for layers whose curvature has changed.

Sources: THOR (Chen et al., AAAI 2021: layer by layer, blocks, refresh decided by the trace of the factors, less and
less often), Shampoo (Gupta et al., 2018: factors of the gradient itself, so that any function can be trained), SOAP
(Vyas et al., 2024: Adam in the factors' eigenbasis, which stays valid between refreshes).

For a block G of a weight's gradient (see `blocks`), with left and right factors L = E[G Gᵀ], R = E[Gᵀ G] and their
eigenvectors U, V:

    G' = Uᵀ G V                     the gradient in the basis where the curvature is close to diagonal
    s  = E[G'²]                     its second moment there, every step
    D  = U (Uᵀ E[G] V / (√s + ε)) Vᵀ

Between refreshes only s is updated, which costs four products of a block's size. A layer's basis is renewed when its
interval is over *and* its factors have rotated away from it; otherwise the layer's interval doubles.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from cloud.train.optim.blocks import Blocks
from cloud.train.stepping.optimizers import decay_mask

__all__ = ["ThorLayer", "ThorState", "scale_by_thor", "thor"]

Tree = Any


class ThorLayer(NamedTuple):
    """The state of one weight in [n] blocks of h x w: momentum and second moment [n, h, w] (the latter in the bases),
    factors and bases [n, h, h] and [n, w, w], the step of the next check, steps between checks, refreshes so far."""

    momentum: Any
    second: Any
    left: Any
    right: Any
    left_basis: Any
    right_basis: Any
    due: Any
    interval: Any
    refreshes: Any


class _Plain(NamedTuple):
    """The state of a bias or a normalisation's scale: Adam's moments."""

    momentum: Any
    second: Any


class ThorState(NamedTuple):
    """Steps done, and a `ThorLayer` or Adam's moments for every parameter, in the order of its tree's leaves."""

    count: Any
    layers: tuple[Any, ...]


def scale_by_thor(
    *, b1: float = 0.95, b2: float = 0.95, factor_decay: float = 0.95, eps: float = 1e-8, block: int = 128,
    threshold: float = 0.1, first: int = 5, longest: int = 100,
) -> optax.GradientTransformation:  # fmt: skip
    """Update directions as described at the top of the module, for `optax.chain`. `b1`, `b2`: decay of momentum and
    second moment; `factor_decay`: of the factors. `block`: largest side of a block. A basis is checked after `first`
    steps, then every `interval`; it is renewed if the share of a factor's off-diagonal weight in it is above
    `threshold`, else the interval doubles, up to `longest`."""

    def init(params: Tree) -> ThorState:
        return ThorState(jnp.zeros((), jnp.int32), tuple(_fresh(p, block, first) for p in jax.tree.leaves(params)))

    def update(gradient: Tree, state: ThorState, params: Tree = None) -> tuple[Tree, ThorState]:
        leaves, tree = jax.tree.flatten(gradient)
        count = state.count + 1
        done = [
            _plain(g, layer, count, b1, b2, eps) if isinstance(layer, _Plain)
            else _step(g, layer, count, Blocks.of(g.shape, block), b1, b2, factor_decay, eps, threshold, longest)
            for g, layer in zip(leaves, state.layers, strict=True)
        ]  # fmt: skip
        return jax.tree.unflatten(tree, [d for d, _ in done]), ThorState(count, tuple(layer for _, layer in done))

    return optax.GradientTransformation(init, update)


def thor(
    rate: float | optax.Schedule, *, weight_decay: float = 0.0, **options: Any
) -> optax.GradientTransformation:
    """`scale_by_thor(**options)` with decoupled weight decay of the arrays that `decay_mask` selects, times -`rate`."""
    return optax.chain(
        scale_by_thor(**options),
        optax.add_decayed_weights(weight_decay, mask=decay_mask),
        optax.scale_by_learning_rate(rate),
    )


def _fresh(p: Any, block: int, first: int) -> ThorLayer | _Plain:
    cut = Blocks.of(p.shape, block)
    if cut is None:
        return _Plain(jnp.zeros_like(p), jnp.zeros_like(p))
    moments = [jnp.zeros((cut.count, cut.height, cut.width), jnp.float32) for _ in range(2)]
    factors = [jnp.zeros((cut.count, n, n), jnp.float32) for n in (cut.height, cut.width)]
    bases = [jnp.tile(jnp.eye(n, dtype=jnp.float32), (cut.count, 1, 1)) for n in (cut.height, cut.width)]
    return ThorLayer(*moments, *factors, *bases, *(jnp.array(number, jnp.int32) for number in (1, first, 0)))


def _plain(g: Any, layer: _Plain, count: Any, b1: float, b2: float, eps: float) -> tuple[Any, _Plain]:
    m, v = b1 * layer.momentum + (1 - b1) * g, b2 * layer.second + (1 - b2) * g * g
    return (m / (1 - b1**count)) / (jnp.sqrt(v / (1 - b2**count)) + eps), _Plain(m, v)


def _step(
    g: Any, layer: ThorLayer, count: Any, cut: Any, b1: float, b2: float, b3: float, eps: float, threshold: float,
    longest: int,
) -> tuple[Any, ThorLayer]:  # fmt: skip
    blocks = cut.cut(g.astype(jnp.float32))
    left = b3 * layer.left + (1 - b3) * jnp.einsum("nij,nkj->nik", blocks, blocks)
    right = b3 * layer.right + (1 - b3) * jnp.einsum("nij,nik->njk", blocks, blocks)
    momentum = b1 * layer.momentum + (1 - b1) * blocks
    layer = layer._replace(left=left, right=right, momentum=momentum)
    layer = jax.lax.cond(count >= layer.due, lambda s: _look(s, count, threshold, longest), lambda s: s, layer)
    turned = _into(layer, blocks)
    second = b2 * layer.second + (1 - b2) * turned * turned
    scaled = (_into(layer, momentum) / (1 - b1**count)) / (jnp.sqrt(second / (1 - b2**count)) + eps)
    direction = jnp.einsum("nij,njk,nlk->nil", layer.left_basis, scaled, layer.right_basis)
    return cut.join(direction).astype(g.dtype), layer._replace(second=second)


def _into(layer: ThorLayer, x: Any) -> Any:
    return jnp.einsum("nji,njk,nkl->nil", layer.left_basis, x, layer.right_basis)


def _look(layer: ThorLayer, count: Any, threshold: float, longest: int) -> ThorLayer:
    """Renew the bases that no longer fit; for others, double the interval."""
    stale = jnp.maximum(_stray(layer.left, layer.left_basis), _stray(layer.right, layer.right_basis)) > threshold
    layer = jax.lax.cond(stale, _renew, lambda s: s, layer)
    interval = jnp.where(stale, layer.interval, jnp.minimum(2 * layer.interval, longest))
    return layer._replace(due=count + interval, interval=interval, refreshes=layer.refreshes + stale)


def _stray(factor: Any, basis: Any) -> Any:
    """The share of the factor's weight that is off the diagonal in the basis: the maximum over the blocks."""
    inside = jnp.einsum("nji,njk,nkl->nil", basis, factor, basis)
    diagonal = jnp.sum(jnp.square(jnp.diagonal(inside, axis1=1, axis2=2)), -1)
    whole = jnp.sum(inside * inside, (1, 2))
    return jnp.max(1 - diagonal / jnp.maximum(whole, 1e-30), initial=0.0, where=whole > 1e-30)


def _renew(layer: ThorLayer) -> ThorLayer:
    """Eigenvectors of the factors; the second moment is transformed to the new basis as if its entries were variances
    of independent draws: E[(Aᵀ X B)²] = (A²)ᵀ E[X²] B²."""
    left, right = jnp.linalg.eigh(layer.left)[1], jnp.linalg.eigh(layer.right)[1]
    a = jnp.einsum("nji,njk->nik", layer.left_basis, left)
    b = jnp.einsum("nji,njk->nik", layer.right_basis, right)
    second = jnp.einsum("nji,njk,nkl->nil", a * a, layer.second, b * b)
    return layer._replace(left_basis=left, right_basis=right, second=second)
