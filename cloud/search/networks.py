"""The networks of a search: the space of its file, and the reference that is to be beaten."""

from __future__ import annotations

import onnx_ir as ir

from cloud import zoo
from cloud.errors import SearchError
from cloud.search.data import Data
from cloud.search.goal import Classes
from cloud.search.space import Elastic, Space, graph, space_for
from cloud.search.task import File

__all__ = ["reference_name", "reference_of", "space_of"]

_ZOO = ("ds_cnn", "resnet8", "window_cnn")
"""Networks of the zoo that may be references of classes of images, sound and series."""


def space_of(file: File, data: Data) -> Space:
    """The space of [space], or of the kind of task."""
    said, bits = file.words.space, tuple(sorted(set(file.words.search.bits)))
    if not said.stages:
        return space_for(file.words.task.kind, data.shape, data.outputs, bits, data.goal, data.columns)
    kernels, shrinks = ((1,), (1,)) if file.words.task.kind == "table" else ((3,), (1, 2))
    stages = tuple(Elastic(s.widths, s.depths, s.kernels or kernels, bits) for s in said.stages)
    return Space(
        data.shape, data.outputs, stages, said.shrinks or shrinks, said.lengths, data.goal, data.columns
    )  # fmt: skip


def reference_name(file: File) -> str:
    """What [reference] names, or the kind's own."""
    own = "largest" if file.words.task.kind in ("table", "forecast") else "ds_cnn"
    return file.words.reference.network or own


def reference_of(file: File, data: Data) -> ir.Model:
    """The network to be beaten, newly initialised. Raises SearchError for an unknown name, and for a file whose output
    is of another form."""
    name, seed, space = reference_name(file), file.words.search.seed, space_of(file, data)
    if name == "largest":
        return graph(space, space.largest, seed)
    known = _ZOO if isinstance(data.goal, Classes) and not space.dense else ()
    if name in known:
        return getattr(zoo, name)(data.shape, data.outputs, seed)  # type: ignore[no-any-return]
    if not name.endswith(".onnx"):
        names = ", ".join((*known, "largest"))
        raise SearchError(f"reference.network: expected {names} or an .onnx file, got {name!r}")
    from cloud.train.jobs.graphs import graph_of

    model = graph_of(file.path(name))
    wanted = graph(space, space.smallest).graph
    for what, got, need in (
        ("input", model.graph.inputs, wanted.inputs), ("output", model.graph.outputs, wanted.outputs),
    ):  # fmt: skip
        shapes, shape = [_shape(value) for value in got], _shape(need[0])
        if len(got) != 1 or not _fits(shapes[0], shape):
            raise SearchError(f"reference.network: expected one {what} {shape}, got {shapes} in {name!r}")
    return model


def _shape(value: ir.Value) -> list[int | str]:
    return ["?"] if value.shape is None else [n if isinstance(n, int) else str(n) for n in value.shape]


def _fits(shape: list[int | str], wanted: list[int | str]) -> bool:
    """Whether sizes that are known are the wanted ones."""
    pairs = zip(shape[1:], wanted[1:], strict=False)
    return shape == ["?"] or (len(shape) == len(wanted) and all(isinstance(a, str) or a == b for a, b in pairs))
