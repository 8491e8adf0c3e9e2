"""Second order with Kronecker factors, at a bounded share of a step.

Sources: THOR (Chen et al., AAAI 2021: layer by layer, blocks, what a refresh may cost), Shampoo (Gupta et al.,
2018: factors of the gradient itself, so that any function can be trained), SOAP (Vyas et al., 2024: Adam in the
factors' eigenbasis, which stays valid between refreshes).

For a weight's gradient G as a matrix, with left and right factors L = E[G Gᵀ], R = E[Gᵀ G], both block-diagonal (see
`blocks`), and their eigenvectors U, V:

    G' = Uᵀ G V                     the gradient in the basis where the curvature is close to diagonal
    m  = E[G'], s = E[G'²]          Adam's moments there, every step
    D  = U (m / (√s + ε)) Vᵀ

Factors are gathered every few steps, bases renewed a few pieces at a time (see `bases`). Which weights are turned, on
which sides and in which blocks follows from what a step may cost (see `budget`); the state's shapes hold that choice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from cloud.train.optim.bases import LEFT, RIGHT, Side, Turn, fresh_side, gathered, renewed, turned
from cloud.train.optim.blocks import Blocks
from cloud.train.optim.budget import EVERY, GATHER, SHARE, sides_within
from cloud.train.stepping.optimizers import decay_mask

__all__ = ["ThorLayer", "ThorState", "scale_by_thor", "states_of", "thor"]

Tree = Any


class ThorLayer(NamedTuple):
    """The state of one weight: momentum and second moment [down, height, across, width] in the bases of its sides; the
    side of the rows, that of the columns, None if it is not turned."""

    momentum: Any
    second: Any
    left: Side | None
    right: Side | None


class _Plain(NamedTuple):
    """Adam's moments, for a weight that is not turned."""

    momentum: Any
    second: Any


class ThorState(NamedTuple):
    """Steps done, and a `ThorLayer` or Adam's moments for every parameter, in the order of its tree's leaves."""

    count: Any
    layers: tuple[Any, ...]


class _Options(NamedTuple):
    b1: float
    b2: float
    factor_decay: float
    eps: float
    every: int
    gather: int


def scale_by_thor(
    *, work: float | None = None, share: float = SHARE, block: int = 64, b1: float = 0.95, b2: float = 0.95,
    factor_decay: float = 0.95, eps: float = 1e-8, every: int = EVERY, gather: int = GATHER,
) -> optax.GradientTransformation:  # fmt: skip
    """Update directions as described at the top of the module, for `optax.chain`.

    `work`: FLOPs of the rest of a step, such as `work_of` counts them; second order then takes at most `share` of a
    step, for which weights are left to Adam or turned in smaller blocks or on one side. None: everything is turned.
    `block`: the largest piece of an axis. `b1`, `b2`: decay of momentum and second moment; `factor_decay`: of the
    factors, which are gathered every `gather` steps. Every basis is renewed about once in `every` steps.
    """
    options = _Options(b1, b2, factor_decay, eps, every, gather)

    def init(params: Tree) -> ThorState:
        leaves = jax.tree.leaves(params)
        sides = sides_within(work, share, [p.shape for p in leaves], block, every)
        layers = (_fresh(p, *each) for p, each in zip(leaves, sides, strict=True))
        return ThorState(jnp.zeros((), jnp.int32), tuple(layers))

    def update(gradient: Tree, state: ThorState, params: Tree = None) -> tuple[Tree, ThorState]:
        leaves, tree = jax.tree.flatten(gradient)
        count = state.count + 1
        done = [
            _plain(g, layer, count, options) if isinstance(layer, _Plain) else _step(g, layer, count, place, options)
            for place, (g, layer) in enumerate(zip(leaves, state.layers, strict=True))
        ]
        return jax.tree.unflatten(tree, [d for d, _ in done]), ThorState(count, tuple(layer for _, layer in done))

    return optax.GradientTransformation(init, update)


def thor(rate: float | optax.Schedule, *, weight_decay: float = 0.0, **options: Any) -> optax.GradientTransformation:
    """`scale_by_thor(**options)` with decoupled weight decay of the arrays that `decay_mask` selects, times -`rate`."""
    return optax.chain(
        scale_by_thor(**options),
        optax.add_decayed_weights(weight_decay, mask=decay_mask),
        optax.scale_by_learning_rate(rate),
    )


def states_of(slots: Tree) -> list[ThorState]:
    """The states of `scale_by_thor` in an optimiser's state."""
    leaves = jax.tree.leaves(slots, is_leaf=lambda value: isinstance(value, ThorState))
    return [each for each in leaves if isinstance(each, ThorState)]


def _fresh(p: Any, left: int, right: int) -> ThorLayer | _Plain:
    blocks = Blocks.of(p.shape, left, right)
    if blocks is None or not (left or right):
        return _Plain(jnp.zeros_like(p), jnp.zeros_like(p))
    momentum, second = (jnp.zeros(blocks.tiles, jnp.float32) for _ in range(2))
    sides = (fresh_side(blocks.down, blocks.height), fresh_side(blocks.across, blocks.width))
    return ThorLayer(momentum, second, sides[0] if left else None, sides[1] if right else None)


def _plain(g: Any, layer: _Plain, count: Any, by: _Options) -> tuple[Any, _Plain]:
    m, v = by.b1 * layer.momentum + (1 - by.b1) * g, by.b2 * layer.second + (1 - by.b2) * g * g
    return _scaled(m, v, count, by), _Plain(m, v)


def _scaled(momentum: Any, second: Any, count: Any, by: _Options) -> Any:
    return (momentum / (1 - by.b1**count)) / (jnp.sqrt(second / (1 - by.b2**count)) + by.eps)


def _step(g: Any, layer: ThorLayer, count: Any, place: int, by: _Options) -> tuple[Any, ThorLayer]:
    """`place`: among the weights, so that those whose turns come seldom have them in different steps."""
    blocks = Blocks.like(g.shape, layer.momentum.shape)
    x = blocks.cut(g.astype(jnp.float32))
    early = count <= by.every
    sides = {axis: side for axis, side in ((LEFT, layer.left), (RIGHT, layer.right)) if side is not None}
    sides = _gathered(sides, x, early | ((count + place) % by.gather == 0), by)
    moments = layer.momentum, layer.second
    for axis in sides:
        turn = Turn(count + 2 * place + (axis == RIGHT), early, by.every)
        sides[axis], moments = renewed(axis, sides[axis], moments, turn)
        x = turned(axis, sides[axis].basis, x)
    momentum, second = by.b1 * moments[0] + (1 - by.b1) * x, by.b2 * moments[1] + (1 - by.b2) * x * x
    direction = _scaled(momentum, second, count, by)
    for axis, side in sides.items():
        direction = turned(axis, side.basis, direction, back=True)
    after = ThorLayer(momentum, second, sides.get(LEFT), sides.get(RIGHT))
    return blocks.join(direction, g.shape).astype(g.dtype), after


def _gathered(sides: dict[int, Side], x: Any, due: Any, by: _Options) -> dict[int, Side]:
    def gather(sides: dict[int, Side]) -> dict[int, Side]:
        return {axis: gathered(axis, side, x, by.factor_decay) for axis, side in sides.items()}

    return gather(sides) if by.gather == 1 else jax.lax.cond(due, gather, lambda kept: kept, sides)
