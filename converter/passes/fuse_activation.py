"""An activation that is the only reader of a Conv, ConvTranspose or MatMul becomes that operator's `activation`.

1. act(Conv(x)) -> Conv(x, activation)
2. act(Reshape(Conv(x))) -> Reshape(Conv(x, activation))

`ACTIVATIONS` is the table: operator -> the attributes that express it, or None if this node cannot be expressed.
Operators with quantised operands absorb only Relu and Clip, which are bounds on their integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit, attr
from converter.passes import quantized
from lite_runtime.operators import Fused, attributes, epilogues, having, require

__all__ = ["ACTIVATIONS", "run"]

_INTEGERS = having("accumulates", "quantised")
_PRODUCERS = frozenset(op for op in having("accumulates") if "activation" in attributes(op))
_BOUNDS = ("Relu", "Clip")
_LARGEST = float(np.finfo(np.float32).max)
Attrs = dict[str, Any]


def run(model: ir.Model) -> int:
    """The number of activations fused."""
    return sum(_fuse(node) for node in build.nodes(model) if node.graph is not None and node.op_type in ACTIVATIONS)


def _fuse(node: ir.Node) -> bool:
    if _swap_with_reshape(node):
        return True
    x = node.inputs[0]
    producer = x.producer() if x is not None else None
    if x is None or producer is None or producer.op_type not in _PRODUCERS or producer.domain not in ("", build.DOMAIN):
        return False
    if node.domain not in ("", build.DOMAIN) or build.sole_use(x) is not node or attr(producer, "activation", ""):
        return False
    says = ACTIVATIONS[node.op_type](node) if x.dtype == ir.DataType.FLOAT else None
    if says is None or (says["activation"] not in _BOUNDS and _on_integers(producer)):
        return False
    edit = Edit(node)
    attrs = {**dict(producer.attributes), **says}
    edit.replace(edit.op(producer.op_type, list(producer.inputs), attrs, domain=build.DOMAIN, like=node.outputs[0]))
    assert producer.graph is not None
    producer.graph.remove(producer, safe=True)
    return True


def _on_integers(producer: ir.Node) -> bool:
    return producer.op_type in _INTEGERS or quantized.contracts_integers(producer)


def _swap_with_reshape(node: ir.Node) -> bool:
    """act(Reshape(x)) becomes Reshape(act(x)), and act goes into x, where x is a producer that can take it."""
    flat = node.inputs[0]
    reshape = flat.producer() if flat is not None else None
    if flat is None or not build.is_op(reshape, "Reshape") or build.sole_use(flat) is not node:
        return False
    assert reshape is not None
    image = reshape.inputs[0]
    producer = image.producer() if image is not None else None
    if image is None or producer is None or producer.op_type not in _PRODUCERS or build.sole_use(image) is not reshape:
        return False
    says = ACTIVATIONS[node.op_type](node) if image.dtype == ir.DataType.FLOAT else None
    if attr(producer, "activation", "") or says is None:
        return False
    if says["activation"] not in _BOUNDS and _on_integers(producer):
        return False
    edit = Edit(node)
    shape = reshape.inputs[1]
    node.replace_input_with(0, image)
    assert reshape.graph is not None
    reshape.graph.remove(reshape, safe=True)
    active = edit.op(node.op_type, list(node.inputs), dict(node.attributes), domain=node.domain, like=image)
    edit.replace(edit.op("Reshape", [active, shape], like=node.outputs[0]))
    maker = active.producer()
    assert maker is not None
    return _fuse(maker)


def _clip(node: ir.Node) -> Attrs | None:
    bounds = []
    for index, missing in ((1, -_LARGEST), (2, _LARGEST)):
        given = node.inputs[index] if len(node.inputs) > index else None
        bound = missing if given is None else build.scalar(given)
        if bound is None:
            return None
        bounds.append(float(np.clip(bound, -_LARGEST, _LARGEST)))
    if bounds[0] == 0 and bounds[1] >= _LARGEST:
        return {"activation": "Relu"}
    return {"activation": "Clip", "activation_min": bounds[0], "activation_max": bounds[1]}


def _gelu(node: ir.Node) -> Attrs:
    return {"activation": "GeluTanh" if attr(node, "approximate", "none") == "tanh" else "Gelu"}


def _by_record(name: str, row: Fused) -> Callable[[ir.Node], Attrs]:
    """The activation with the node's own parameters."""
    return lambda node: {
        "activation": name,
        **{attribute: attr(node, own, default) for attribute, own, default in row.parameters},
    }


ACTIVATIONS: Mapping[str, Callable[[ir.Node], Attrs | None]] = {
    **{row.op: _by_record(name, row) for name, row in epilogues().items()},
    "Swish": lambda node: {"activation": "Silu"} if attr(node, "alpha", 1.0) == 1.0 else None,
    "Gelu": _gelu,
    "Clip": _clip,
}
require(ACTIVATIONS, "fused activations")
