"""Factors of one side of a weight, their bases, and how these are renewed a few at a time.

A side has `n` pieces (see `blocks`), each with its own factor and basis [s, s]. Pieces are renewed in turn, so that
every one has its turn about once in `every` steps and no step renews more than about `n / every` of them. A renewal is
one step of orthogonal iteration (QR of factor x basis), as in SOAP (Vyas et al., 2024): it costs a third of an
eigendecomposition and follows a factor that changes slowly. From bases along the axes it would take many turns to get
there, so the first ones, one a step, take eigenvectors.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

__all__ = ["LEFT", "RIGHT", "Side", "Turn", "fresh_side", "gathered", "members", "renewed", "turned"]

LEFT, RIGHT = 0, 2
"""The axis of [down, height, across, width] along which the pieces of a side lie."""

_INTO = {LEFT: "dji,djaw->diaw", RIGHT: "diaw,awv->diav"}
_OUT = {LEFT: "dij,djaw->diaw", RIGHT: "diaw,avw->diav"}
_GRAM = {LEFT: "diaw,djaw->dij", RIGHT: "diaw,diav->awv"}


class Side(NamedTuple):
    """Factors and orthonormal bases, both [n, s, s] float32."""

    factor: Any
    basis: Any


class Turn(NamedTuple):
    """When pieces are renewed: `clock` is the step's number, shifted so that sides do not all have their turn in the
    same step; `early`: whether it is among the first `every`."""

    clock: Any
    early: Any
    every: int


def fresh_side(n: int, size: int) -> Side:
    """Factors of zero, bases along the axes."""
    basis = jnp.tile(jnp.eye(size, dtype=jnp.float32), (n, 1, 1))
    return Side(jnp.zeros((n, size, size), jnp.float32), basis)


def turned(axis: int, basis: Any, x: Any, *, back: bool = False) -> Any:
    """`x` [down, height, across, width] into the basis of a side, or out of it."""
    form = (_OUT if back else _INTO)[axis]
    return jnp.einsum(form, basis, x) if axis == LEFT else jnp.einsum(form, x, basis)


def gathered(axis: int, side: Side, x: Any, decay: float) -> Side:
    """The factors with the products of another gradient's pieces with themselves."""
    return side._replace(factor=decay * side.factor + (1 - decay) * jnp.einsum(_GRAM[axis], x, x))


def members(n: int, every: int) -> tuple[int, int]:
    """(pieces of one turn, turns until all had theirs) for `n` pieces: a divisor of n as near to `every` as possible,
    at least half of it, so that no step has many pieces."""
    if n <= every:
        return 1, n
    turns = min((g for g in range(1, n + 1) if n % g == 0 and 2 * g >= every), key=lambda g: abs(math.log(g / every)))
    return n // turns, turns


def renewed(axis: int, side: Side, moments: tuple[Any, Any], turn: Turn) -> tuple[Side, tuple[Any, Any]]:
    """The side, and (momentum, second moment) in its basis, after a step's turn. The pieces of a turn are every
    `turns`-th one, so that each of several devices that hold a row of neighbours has some of them."""
    pieces, turns = members(side.factor.shape[0], turn.every)
    pause = max(turn.every // turns, 1)
    at = jnp.where(turn.early, turn.clock, turn.clock // pause) % turns

    def renew(basis: Any, momentum: Any, second: Any) -> tuple[Any, Any, Any]:
        kept = (basis, 0), (momentum, axis), (second, axis)
        factor = _piece(side.factor, 0, pieces, turns, at)
        old, *moments = (_piece(x, a, pieces, turns, at) for x, a in kept)
        new = _renewed(axis, factor, old, moments[0], moments[1], turn.early)
        done = [_piece(x, a, pieces, turns, at, put) for (x, a), put in zip(kept, new, strict=True)]
        return done[0], done[1], done[2]

    if pause == 1:
        basis, momentum, second = renew(side.basis, *moments)
    else:  # a condition on what is computed from weights could differ between devices in its last bit
        due = turn.early | (turn.clock % pause == 0)
        basis, momentum, second = jax.lax.cond(due, renew, lambda *kept: kept, side.basis, *moments)
    return Side(side.factor, basis), (momentum, second)


def _piece(x: Any, axis: int, pieces: int, turns: int, at: Any, put: Any = None) -> Any:
    """The pieces along `axis` whose turn it is; or `x` with these replaced by `put`."""
    split = x.reshape(*x.shape[:axis], pieces, turns, *x.shape[axis + 1 :])
    if put is None:
        return jax.lax.dynamic_index_in_dim(split, at, axis + 1, keepdims=False)
    return jax.lax.dynamic_update_index_in_dim(split, put, at, axis + 1).reshape(x.shape)


def _renewed(axis: int, factor: Any, basis: Any, momentum: Any, second: Any, early: Any) -> tuple[Any, Any, Any]:
    """The second moment changes as if its entries were variances of independent draws: E[(Aᵀ X)²] = (A²)ᵀ E[X²]."""
    new = jax.lax.cond(early, lambda: jnp.linalg.eigh(factor)[1], lambda: jnp.linalg.qr(factor @ basis)[0])
    change = jnp.swapaxes(basis, 1, 2) @ new
    return new, turned(axis, change, momentum), turned(axis, change * change, second)
