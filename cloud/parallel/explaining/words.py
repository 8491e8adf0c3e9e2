"""Text for a plan's splits, axes and seconds; names of repeated blocks as one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cloud.parallel.graph import Split
from cloud.parallel.plan import Mesh
from cloud.parallel.topology import Topology

__all__ = ["alike", "axes_text", "duration", "link_text", "mesh_text", "place", "rows_text", "split_text"]

_NUMBERS = re.compile(r"\d+")


def alike(name: str) -> str:
    """A path without its numbers, the same for all blocks of one kind."""
    return _NUMBERS.sub("*", name)


def place(where: str) -> str:
    """Where an operator was written, without the numbers of repeated blocks in the names around it; the line stays."""
    line, space, names = where.partition(" ")
    return line + space + alike(names)


def axes_text(axes: Sequence[int]) -> str:
    """`m0+m1`."""
    return "+".join(f"m{axis}" for axis in axes)


def split_text(shape: Sequence[int], split: Split) -> str:
    """`[4096/m0, 1024]`: the first dimension is split over axis m0, the second is whole."""
    parts = (f"{size}/{axes_text(axes)}" if axes else str(size) for size, axes in zip(shape, split, strict=True))
    return f"[{', '.join(parts)}]"


def mesh_text(mesh: Mesh, topology: Topology) -> str:
    """`m0 = 2 at 3 GB/s, m1 = 4 at 360 GB/s`."""
    pairs = enumerate(zip(mesh.sizes, mesh.levels, strict=True))
    return ", ".join(f"m{n} = {size} at {link_text(level, topology)}" for n, (size, level) in pairs)


def link_text(level: int, topology: Topology) -> str:
    """`360 GB/s`."""
    return f"{topology.levels[level].bandwidth / 1e9:g} GB/s"


def duration(seconds: float) -> str:
    """Seconds with three digits in a suitable unit."""
    for limit, unit, factor in ((1e-3, "µs", 1e6), (1.0, "ms", 1e3)):
        if abs(seconds) < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"


def rows_text(rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))] if rows else []
    return "\n".join(
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
