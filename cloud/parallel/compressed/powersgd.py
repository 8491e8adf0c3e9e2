"""Sums over groups of matrices as products of low rank, with error feedback (Vogels et al., "PowerSGD: practical
low-rank gradient compression for distributed optimization", NeurIPS 2019).

For the sum M of the groups' matrices: P = M Q with the Q of the step before, P orthogonal, Q = Mᵀ P, and P Qᵀ stands
for M. P and Q are linear in M, so that they are summed over the groups as they are. Each group keeps what P and its own
Q lose of its own matrix, and adds it to its next gradient: the sum of that is what is lost of M. (In the paper each
keeps what it gave less an equal share of the result. The sum is the same, but the groups' differences pile up in it.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from cloud.parallel.compressed.layout import Part

__all__ = ["exchanged", "first"]

DEPENDENT = 1e-4
"""The share of a column's norm, outside of the columns before it, below which rounding would decide its direction."""


def first(part: Part, rank: int, number: int) -> Any:
    """The first Q of a matrix, [columns, rank] float32, normally distributed; `number`: its place among the arrays."""
    return jax.random.normal(jax.random.fold_in(jax.random.key(0), number), (part.sides[1], rank))


def exchanged(
    parts: Sequence[Part], values: Mapping[str, Any], starts: Mapping[str, Any], slow: str, fast: str
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """(sums over the groups, what this group keeps, next Q) by name. `values`: a gradient plus what was kept, as the
    device has it; `starts`: Q. Called inside `shard_map`, where the axes `slow` and `fast` are manual."""
    if not parts:
        return {}, {}, {}
    matrices = [values[part.name].reshape(part.rows, -1) for part in parts]
    tall = _together([m @ starts[part.name] for m, part in zip(matrices, parts, strict=True)], (slow,))
    whole = _gathered(parts, tall, fast)
    tall = _orthogonal(whole)
    own = [_own(part, p, fast) for part, p in zip(parts, tall, strict=True)]
    wide = [m.T @ p for m, p in zip(matrices, own, strict=True)]
    split, rest = ([n for n, part in enumerate(parts) if (part.dim is not None) is side] for side in (True, False))
    mine, every = list(wide), list(wide)
    for members, axes, into in ((split, (fast,), mine), (split, (slow, fast), every), (rest, (slow,), every)):
        for n, q in zip(members, _together([wide[n] for n in members], axes), strict=True):
            into[n] = q
    sums, kept, after = {}, {}, {}
    for part, m, p, here, q in zip(parts, matrices, own, mine, every, strict=True):
        sums[part.name] = (p @ q.T).reshape(part.local)
        kept[part.name] = (m - p @ here.T).reshape(part.local)
        after[part.name] = jnp.where(jnp.any(q != 0, 0), q, starts[part.name])  # a Q of zeros would stay so for ever
    return sums, kept, after


def _together(arrays: Sequence[Any], axes: Sequence[str]) -> list[Any]:
    """The sums over axes, in one collective."""
    if not arrays:
        return []
    psum: Any = jax.lax.psum
    return _apart(psum(jnp.concatenate([a.ravel() for a in arrays]), tuple(axes)), [a.shape for a in arrays])


def _apart(flat: Any, shapes: Sequence[Any]) -> list[Any]:
    found, at = [], 0
    for rows, columns in shapes:
        found.append(flat[at : at + rows * columns].reshape(rows, columns))
        at += rows * columns
    return found


def _gathered(parts: Sequence[Part], tall: Sequence[Any], fast: str) -> list[Any]:
    """P with the rows of all devices of the group, each device's after those of the one before."""
    split = [n for n, part in enumerate(parts) if part.dim is not None]
    found = list(tall)
    if split:
        every: Any = jax.lax.all_gather(jnp.concatenate([tall[n].ravel() for n in split]), fast)
        apart = [_apart(row, [tall[n].shape for n in split]) for row in every]
        for place, n in enumerate(split):
            found[n] = jnp.concatenate([one[place] for one in apart])
    return found


def _own(part: Part, whole: Any, fast: str) -> Any:
    if part.dim is None:
        return whole
    return jax.lax.dynamic_slice_in_dim(whole, jax.lax.axis_index(fast) * part.rows, part.rows)


def _orthogonal(matrices: Sequence[Any]) -> list[Any]:
    """Orthonormal columns by Gram-Schmidt; equal shapes are done together. A column that depends on those before it
    (`DEPENDENT`) becomes 0."""
    found: dict[int, Any] = {}
    alike: dict[Any, list[int]] = {}
    for n, matrix in enumerate(matrices):
        alike.setdefault(matrix.shape, []).append(n)
    for members in alike.values():
        stack, columns = jnp.stack([matrices[n] for n in members]), list[Any]()
        for c in range(stack.shape[2]):
            column = stack[:, :, c]
            least = DEPENDENT * _norm(column)
            for before in columns:
                column = column - jnp.sum(before * column, 1, keepdims=True) * before
            norm = _norm(column)
            columns.append(jnp.where(norm > least, column / jnp.where(norm > 0, norm, 1.0), 0.0 * column))
        made = jnp.stack(columns, 2)
        found.update({n: made[place] for place, n in enumerate(members)})
    return [found[n] for n in range(len(matrices))]


def _norm(column: Any) -> Any:
    return jnp.sqrt(jnp.sum(column * column, 1, keepdims=True))
