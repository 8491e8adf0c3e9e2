"""Narrow convolutions of one tensor become one wide convolution and a Split.

1. Conv(x, w1), Conv(x, w2), … with the same window -> Split(Conv(x, [w1; w2; …]))
2. Conv(Split(x)[i], wi) for every i, depthwise -> Split(Conv(x, [w1; w2; …])); 1. creates these
The heads of detectors look like this: boxes, scores and landmarks of a few channels each. A kernel always computes
LANES channels at a time, so this is done if the result has fewer vectors of channels: for 1, 4, 1 and 10 channels one
instead of four. Convolutions with quantised operands are left unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, attr, dims
from converter.passes.fuse_activation import ACTIVATIONS

__all__ = ["run"]

VECTOR = 16
"""Channels computed at a time; what the widest targets have."""
_TAKEN_IN = (*ACTIVATIONS, "Mul", "Add")
"""Activations, what Silu is made of, and residuals."""
_WINDOW = ("strides", "pads", "dilations", "auto_pad")


def run(model: ir.Model) -> int:
    """The number of convolutions removed."""
    count = 0
    for graph in build.graphs(model):
        for value in [v for node in graph for v in node.outputs] + list(graph.inputs):
            count += sum(_merge(value, family) for family in _families(value))
        for node in list(graph):
            if node.graph is not None and build.is_op(node, "Split"):
                count += _merge_behind(node)
    return count


def _channels(node: ir.Node) -> int:
    weights = build.array(node.inputs[1])
    assert weights is not None
    return int(weights.shape[0])


def _plain(node: ir.Node | None) -> bool:
    """A 2-D Conv with constant float weights and bias and a result of known shape."""
    if not build.is_op(node, "Conv"):
        return False
    assert node is not None
    weights = build.array(node.inputs[1])
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    return (
        weights is not None
        and weights.ndim == 4
        and weights.dtype == np.float32
        and (bias is None or build.array(bias) is not None)
        and dims(node.outputs[0]) is not None
    )


def _takes_more(node: ir.Node) -> bool:
    """Whether an activation or residual follows that it could absorb; after a Split that is not possible."""
    return build.is_op(build.sole_use(node.outputs[0]), *_TAKEN_IN)


def _key(node: ir.Node) -> tuple[object, ...]:
    weights = build.array(node.inputs[1])
    assert weights is not None
    return (weights.shape[1:], *(str(attr(node, name, None)) for name in _WINDOW))


def _families(value: ir.Value) -> list[list[ir.Node]]:
    """Convolutions of `value` that differ only in their weights, if joining them is faster."""
    found: dict[tuple[object, ...], list[ir.Node]] = {}
    for node, place in value.uses():
        inside = place == 0 and node.graph is value.graph
        if inside and _plain(node) and attr(node, "group", 1) == 1 and not _takes_more(node):
            found.setdefault(_key(node), []).append(node)
    return [nodes for nodes in found.values() if _pays([_channels(n) for n in nodes])]


def _pays(channels: Sequence[int]) -> bool:
    return len(channels) > 1 and sum(-(-c // VECTOR) for c in channels) > -(-sum(channels) // VECTOR)


def _merge(value: ir.Value, nodes: list[ir.Node]) -> int:
    graph = nodes[0].graph
    assert graph is not None
    order = {node: i for i, node in enumerate(graph)}
    nodes = sorted(nodes, key=lambda node: order[node])
    _join(value, nodes, nodes[0], group=1)
    return len(nodes) - 1


def _merge_behind(split: ir.Node) -> int:
    """The second case; the Split is removed if nothing else reads its parts."""
    source = split.inputs[0]
    readers = [build.sole_use(piece) for piece in split.outputs]
    if source is None or attr(split, "axis", 0) != 1 or len(readers) < 2:
        return 0
    nodes = [node for node in readers if node is not None and _plain(node) and _apart(node)]
    if len(nodes) != len(readers) or len({_key(node) for node in nodes}) != 1:
        return 0
    channels = [_channels(node) for node in nodes]
    if not _pays(channels):
        return 0
    _join(source, nodes, split, group=sum(channels))
    return len(nodes) - 1


def _apart(node: ir.Node) -> bool:
    """Whether the convolution is depthwise."""
    weights = build.array(node.inputs[1])
    return weights is not None and weights.shape[1] == 1 and attr(node, "group", 1) == weights.shape[0]


def _join(source: ir.Value, nodes: Sequence[ir.Node], place: ir.Node, *, group: int) -> None:
    """One convolution, inserted before `place`, instead of `nodes`."""
    first = nodes[0]
    channels = [_channels(node) for node in nodes]
    weights = np.concatenate([_array(node.inputs[1]) for node in nodes])
    edit = Edit(place)
    biases = [
        _array(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else np.zeros(c, np.float32)
        for node, c in zip(nodes, channels, strict=True)
    ]
    attributes = {name: first.attributes[name] for name in _WINDOW if name in first.attributes}
    shape = list(dims(first.outputs[0]) or ())
    shape[1] = sum(channels)
    whole = edit.op(
        "Conv",
        [source, edit.const(weights), edit.const(np.concatenate(biases))],
        {**attributes, "kernel_shape": list(weights.shape[2:]), "group": group},
        like=first.outputs[0],
        shape=shape,
    )
    pieces = edit.ops("Split", [whole, edit.ints(channels)], {"axis": 1}, outputs=len(nodes))
    for node, piece in zip(nodes, pieces, strict=True):
        Edit(node).replace(piece)


def _array(value: ir.Value | None) -> np.ndarray:
    found = build.array(value)
    assert found is not None
    return found
