"""A fixed choice (pin) as the user writes it: `GLOB=DIM:AXIS,...`.

    params.*.w=1:m0          dimension 1 over mesh axis m0, the others whole
    params.*.w=0:m0+m1       dimension 0 over both
    params.words=whole       on every device
    batch.x=0:m0,1:any       dimension 0 over m0, dimension 1 left to the search
    gpt.py:61*=2:m1          results of the operators of that source line

Names are those of `msedge plan --explain`; they are case-sensitive.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from cloud.errors import PlanError
from cloud.parallel.graph import Graph
from cloud.parallel.plan import Mesh
from cloud.parallel.searching.demands import Partial, Pin
from cloud.parallel.searching.options import degree

__all__ = ["divides", "meshes_for", "read_pin"]

Said = dict[int, tuple[int, ...] | None]
_SYNTAX = "GLOB=DIM:AXIS,... as in params.*.w=1:m0, several axes as m0+m1, a free dimension as DIM:any; or GLOB=whole"


def read_pin(text: str, graph: Graph) -> list[Pin]:
    """The pins that `text` describes: one for each rank among the values it names. Raises `PlanError`."""
    glob, equals, words = text.rpartition("=")
    if not equals or not glob or not words:
        raise PlanError(f"pin {text!r}: expected {_SYNTAX}")
    said: Said = {} if words == "whole" else dict(_dimension(text, part) for part in words.split(","))
    named = [axis for axes in said.values() for axis in axes or ()]
    if len({*named}) != len(named):
        raise PlanError(f"pin {text!r}: expected each mesh axis at most once; one axis splits only one dimension")
    shapes = _shapes(graph, glob)
    most = max(said, default=-1)
    ranks = sorted({len(shape) for shape in shapes.values() if len(shape) > most and (shape or said)})
    if shapes and not ranks:
        name, shape = next(iter(shapes.items()))
        raise PlanError(f"pin {text!r}: {name} has no dimension {most}; its shape is {list(shape)}, counted from 0")
    # The search rejects a glob that matches nothing and lists the existing names.
    return [Pin(glob, _partial(said, rank)) for rank in ranks or [most + 1]]


def meshes_for(meshes: Iterable[Mesh], pins: Sequence[Pin], graph: Graph) -> list[Mesh]:
    """The meshes that have the pinned axes, in sizes that divide the pinned dimensions; `PlanError` if none does."""
    tried = list(meshes)
    kept = [mesh for mesh in tried if all(_possible(pin, mesh, graph) for pin in pins)]
    if not kept:
        shown = ", ".join("x".join(map(str, mesh.sizes)) for mesh in tried)
        globs = ", ".join(repr(pin.glob) for pin in pins)
        raise PlanError(
            f"pins {globs}: no mesh of these devices ({shown}) has the named axes in sizes that divide the pinned "
            "dimensions: pin another dimension, or fewer axes"
        )
    return kept


def divides(axes: Sequence[int], size: int, mesh: Mesh) -> bool:
    """Whether the mesh has these axes, and together they split `size` evenly."""
    return all(axis < len(mesh.sizes) for axis in axes) and size % degree(axes, mesh) == 0


def _dimension(text: str, part: str) -> tuple[int, tuple[int, ...] | None]:
    found = re.fullmatch(r"\s*(\d{1,2})\s*:\s*(any|whole|m\d+(?:\+m\d+)*)\s*", part)
    if not found:
        raise PlanError(f"pin {text!r}: expected {_SYNTAX}; got {part!r}")
    dim, axes = int(found[1]), found[2]
    if axes in ("any", "whole"):
        return dim, None if axes == "any" else ()
    return dim, tuple(sorted(int(axis[1:]) for axis in axes.split("+")))


def _partial(said: Said, rank: int) -> Partial:
    return tuple(said.get(dim, ()) for dim in range(rank))


def _shapes(graph: Graph, glob: str) -> dict[str, tuple[int, ...]]:
    """Shapes of the values that a glob matches, by name."""
    values = {graph.values[v].name: graph.values[v].shape for v in graph.entering}
    made = {op.where: graph.values[op.outputs[0]].shape for op in graph.ops if op.outputs}
    return {name: shape for name, shape in (made | values).items() if fnmatchcase(name, glob)}


def _possible(pin: Pin, mesh: Mesh, graph: Graph) -> bool:
    shapes = [shape for shape in _shapes(graph, pin.glob).values() if len(shape) == len(pin.split)]
    return all(
        divides(axes or (), size, mesh)
        for shape in shapes or [(0,) * len(pin.split)]
        for axes, size in zip(pin.split, shape, strict=True)
    )
