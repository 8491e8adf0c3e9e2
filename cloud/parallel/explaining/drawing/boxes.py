"""Tensors drawn as boxes, cut as they are sharded over the mesh; part of `picture`."""

from __future__ import annotations

from html import escape
from math import prod

from cloud.parallel.explaining.words import split_text
from cloud.parallel.graph import Split
from cloud.parallel.plan import Mesh

__all__ = ["tensor"]

BOX_WIDE, BOX_HIGH = 76, 48


def tensor(name: str, shape: tuple[int, ...], split: Split, mesh: Mesh, times: int, note: str = "") -> str:
    """A box cut along the dimensions that are split (the first downwards, the last across)."""
    down, across = _cuts(split)
    rows, columns = (prod(mesh.sizes[axis] for axis in axes) for axes in (down, across))
    wide, high = BOX_WIDE / columns, BOX_HIGH / rows
    colour = f"m{(*down, *across)[0] % 4}" if down or across else "whole"
    cells = "".join(
        f'<rect class="cell {colour if i == j == 0 else ""}" x="{j * wide:.2f}" y="{i * high:.2f}" '
        f'width="{wide:.2f}" height="{high:.2f}"/>'
        for i in range(rows) for j in range(columns)
    )  # fmt: skip
    if down and across:  # two axes cut the first device's part: the second half takes the other axis' colour
        cells += f'<rect class="cell m{across[0] % 4}" x="{wide / 2:.2f}" width="{wide / 2:.2f}" height="{high:.2f}"/>'
    many = f" ×{times}" if times > 1 else ""
    words = split_text(shape, split)
    return (
        f'<div class="tensor" title="{escape(name)} {escape(words)}"><svg viewBox="0 0 {BOX_WIDE} {BOX_HIGH}" '
        f'role="img" aria-label="{escape(words)}">{cells}</svg>{escape(name)}{many}<code>{escape(words)}</code>'
        f"{f'<span>{escape(note)}</span>' if note else ''}</div>"
    )


def _cuts(split: Split) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Axes that cut a box downwards and across: of several split dimensions, the first is drawn downwards and the
    others across; of one, the last dimension is drawn across."""
    dims = [d for d, axes in enumerate(split) if axes]
    if not dims:
        return (), ()
    if len(dims) == 1:
        alone = split[dims[0]]
        return ((), alone) if dims[0] == len(split) - 1 else (alone, ())
    return split[dims[0]], tuple(axis for d in dims[1:] for axis in split[d])
