"""A readable description of a lite graph: one row per node, with shapes as far as they are known before a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Array, Attr, Dim, Graph, Node, dtype_name

if TYPE_CHECKING:
    from lite_runtime.bundle import Bundle

__all__ = ["Row", "State", "constant_bytes", "inferred", "rows", "states"]


@dataclass(frozen=True, slots=True)
class Row:
    """One node. `detail`: fused operators and non-default attributes; `weights`: bytes of its constants."""

    index: int
    op: str
    name: str
    detail: str
    output: str
    dtype: str
    shape: tuple[Dim, ...] | None
    parameters: int
    weights: int


@dataclass(frozen=True, slots=True)
class State:
    """A state array; `read` and `written`: the signatures that read and write it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    read: tuple[str, ...]
    written: tuple[str, ...]


def states(bundle: Bundle) -> Iterator[State]:
    """The states of a bundle, sorted by name."""
    for name, array in bundle.state.items():
        read = tuple(s for s, use in bundle.uses.items() if name in use.reads.values())
        written = tuple(s for s, use in bundle.uses.items() if name in use.writes.values())
        yield State(name, dtype_name(array.dtype), array.shape, array.nbytes, read, written)


def rows(graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[Row]:
    """Every node in order of computation. `shapes`: the inputs' sizes to infer with, by name."""
    known = inferred(graph, shapes)
    counted: set[str] = set()
    for index, node in enumerate(graph.nodes):
        own = [n for n in dict.fromkeys((*node.inputs, *node.captures)) if n in graph.constants and n not in counted]
        counted.update(own)
        output = next((n for n in node.outputs if n), "")
        dtype, shape = known.get(output, ("?", None))
        arrays = [graph.constants[n] for n in own]
        yield Row(
            index,
            node.op,
            node.name,
            _detail(node, graph.constants),
            output,
            dtype,
            shape,
            sum(a.size for a in arrays),
            sum(a.nbytes for a in arrays),
        )


def constant_bytes(graph: Graph) -> int:
    """Bytes of all constants."""
    return sum(a.nbytes for a in graph.constants.values())


_ORDINARY: Mapping[str, object] = {
    "activation": "",
    "auto_pad": "NOTSET",
    "ceil_mode": 0,
    "count_include_pad": 0,
    "dilations": 1,
    "group": 1,
    "layout": "NCHW",
    "noop_with_empty_axes": 0,
    "output_padding": 0,
    "pads": 0,
    "storage_order": 0,
    "strides": 1,
    "transA": 0,
    "transB": 0,
}
"""Default values of attributes, which are not shown; of a tuple, of each element."""
_RESIDUAL = {"Conv": 3, "MatMul": 3}
_MOST = 60


def _detail(node: Node, constants: Mapping[str, Array]) -> str:
    """`32×16×3×3 strides=2,2 + residual + Relu`."""
    weights = [constants[n] for n in node.inputs if n in constants]
    largest = max(weights, key=lambda a: a.size, default=None)
    words = ["×".join(map(str, largest.shape))] if largest is not None and largest.ndim > 1 else []
    words += [f"{k}={_short(v)}" for k, v in node.attrs.items() if not _ordinary(k, v)]
    residual = _RESIDUAL.get(node.op, len(node.inputs))
    if residual < len(node.inputs) and node.inputs[residual]:
        words.append("+ residual")
    if node.attrs.get("activation"):
        words.append(f"+ {node.attrs['activation']}")
    return " ".join(words)


def _ordinary(name: str, value: Attr) -> bool:
    if name == "kernel_shape" or name.startswith("activation"):  # visible in the weights; shown last
        return True
    if name not in _ORDINARY:
        return False
    return all(v == _ORDINARY[name] for v in value) if isinstance(value, tuple) else value == _ORDINARY[name]


def _short(value: Attr) -> str:
    if isinstance(value, Graph):
        return f"<{len(value.nodes)} nodes>"
    if isinstance(value, np.ndarray):
        return f"<{value.dtype} {'×'.join(map(str, value.shape))}>"
    if isinstance(value, float):
        return f"{value:.4g}"
    text = ",".join(map(_short, value)) if isinstance(value, tuple) else str(value)
    return text if len(text) <= _MOST else f"{text[: _MOST - 1]}…"


# -- shapes -----------------------------------------------------------------------------------------------------------

_OPEN = ((64, 96, 128, 160, 192, 224), (96, 128, 160, 192, 224, 256))
"""Two sets of sizes for dynamic dimensions: sizes that differ between the two results are dynamic too."""

_Typed = dict[str, tuple[str, tuple[int, ...]]]


def inferred(graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[str, tuple[Dim, ...] | None]]:
    """Type of every value: dtype and shape, in which symbols stay symbols and shapes that depend on data are None."""
    symbols: list[Dim] = [d for v in graph.inputs if v.name not in shapes for d in v.shape or ()]
    symbols = [d for d in dict.fromkeys(symbols) if not isinstance(d, int)]
    if len(symbols) > len(_OPEN[0]) or any(v.shape is None and v.name not in shapes for v in graph.inputs):
        return {}
    tries = [dict(zip(symbols, sizes, strict=False)) for sizes in _OPEN]
    first, second = (_propagate(graph, shapes, sizes) for sizes in tries)
    return {
        name: (dtype, tuple(_dim(a, b, tries) for a, b in zip(shape, second[name][1], strict=True)))
        for name, (dtype, shape) in first.items()
        if name in second and len(second[name][1]) == len(shape)
    }


def _dim(a: int, b: int, tries: list[dict[Dim, int]]) -> Dim:
    if a == b:
        return a
    return next((s for s in tries[0] if (tries[0][s], tries[1][s]) == (a, b)), None)


_NO_LIMIT = 1 << 62
"""Bytes: describing a model allocates none of its values."""


def _propagate(graph: Graph, shapes: Mapping[str, tuple[int, ...]], sizes: Mapping[Dim, int]) -> _Typed:
    """Types as the runtime plans them, without those known only at run time; none if it cannot plan."""
    from lite_runtime.ops.registry import Spec
    from lite_runtime.planning.stage import fold, next_stage

    given = {
        v.name: Spec(v.dtype, shapes.get(v.name) or tuple(d if isinstance(d, int) else sizes[d] for d in v.shape or ()))
        for v in graph.inputs
        if v.kind == "tensor" and v.dtype != "string"
    }
    try:
        stage = next_stage(fold(graph, _NO_LIMIT), given, _NO_LIMIT)
    except MsedgeError:
        return {}
    return {name: (spec.dtype, spec.shape) for name, spec in stage.specs.items()}
