"""Functions of one 8-bit tensor become a LookupTable: their values at all 256 integers, computed by the reference.

1. Q(f(DQ(x))) with f any composition of elementwise operators whose other operands are constants of one element,
   quantised or not; x may be read several times (x * sigmoid(x)), and quantised in between. Q(DQ(x)) with other
   parameters is one as well.
2. Any other result of such a composition that is not float32: comparisons, casts.
3. A float32 result, if f contains an operator whose value is defined only approximately (Exp, Sigmoid, Erf ...): later
   results are then the same on every machine. Other float compositions run as part of the operators that read them.
Compositions that use only integers are left unchanged.

The table gives the result of the composition's last operator, so tables never follow each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.build import Edit
from converter.passes import quantized
from converter.passes.quantized import BYTES
from lite_runtime.operators import having

__all__ = ["ELEMENTWISE", "run", "table"]

ELEMENTWISE = having("elementwise") | having("scaled")
_EXACT = ELEMENTWISE & having("exact")
"""Elementwise operators that IEEE arithmetic defines to the last bit."""
_APPROXIMATE = ELEMENTWISE - _EXACT
_SCALED = having("scaled", "quantised")
"""Operators on integers that compute rather than move or choose."""
_LONGEST = 64
"""The most operators of a composition."""
_SIZES = (1, 2, 4)
"""Bytes per table entry."""


def run(model: ir.Model) -> int:
    """The number of tables created, each for the last operator of a composition; the others become unused."""
    count = 0
    for node in reversed(list(build.nodes(model))):
        if node.graph is not None and _alive(node) and _is_elementwise(node):
            count += _tabulate(node)
    return count


def _alive(node: ir.Node) -> bool:
    return bool(node.outputs[0].uses()) or node.outputs[0].is_graph_output()


def _is_elementwise(node: ir.Node) -> bool:
    if node.op_type not in ELEMENTWISE or node.domain not in ("", build.DOMAIN) or len(node.outputs) != 1:
        return False
    per_axis = node.op_type in ("QuantizeLinear", "DequantizeLinear") and any(
        build.scalar(v) is None for v in node.inputs[1:] if v is not None
    )
    return not per_axis


def _tabulate(node: ir.Node) -> bool:
    result = node.outputs[0]
    chain: list[ir.Node] = []
    x = _source(result, chain)
    if x is None or x.dtype is None or not chain or not _worth(result, chain):
        return False
    made = table(x, result)
    if made is None or made.dtype.itemsize not in _SIZES:
        return False
    edit = Edit(node)
    entry = edit.op("LookupTable", [x, edit.const(made, hint=f"{result.name}.table")], domain=build.DOMAIN, like=result)
    maker = entry.producer()
    assert maker is not None
    edit.replace(entry)
    _remove_dead(chain)
    return True


def _worth(result: ir.Value, chain: Sequence[ir.Node]) -> bool:
    if result.dtype == ir.DataType.FLOAT:
        return any(n.op_type in _APPROXIMATE for n in chain)
    return any(n.op_type in _SCALED or v.dtype == ir.DataType.FLOAT for n in chain for v in n.outputs)


def _source(value: ir.Value, chain: list[ir.Node]) -> ir.Value | None:
    """The one 8-bit tensor that `value` is an elementwise function of, and the operators between, the last one
    first."""
    node = value.producer()
    if node is not None and _is_elementwise(node) and build.rank(value) is not None:
        mark, found = len(chain), _operands_source(node, chain)
        if found is not None and build.rank(found) == build.rank(value):
            return found
        del chain[mark:]
    return value if value.dtype in BYTES and build.array(value) is None else None


def _operands_source(node: ir.Node, chain: list[ir.Node]) -> ir.Value | None:
    if len(chain) >= _LONGEST:
        return None
    chain.append(node)
    found: ir.Value | None = None
    for operand in node.inputs:
        if operand is None or _is_number(operand):
            continue
        source = _source(operand, chain)
        if source is None or (found is not None and source is not found):
            return None
        found = source
    return found


def _is_number(value: ir.Value) -> bool:
    constant, steps = build.array(value), quantized.stored(value)
    return (constant is not None and constant.size == 1) or (steps is not None and steps.q.size == 1)


def table(x: ir.Value, result: ir.Value) -> np.ndarray | None:
    """The result for every value of x, from the smallest on, by the reference; None if a reference refuses."""
    from lite_runtime import reference
    from lite_runtime.errors import MsedgeError
    from lite_runtime.graph import Node

    assert x.dtype is not None
    kind = x.dtype.numpy()
    values: dict[ir.Value, np.ndarray] = {x: np.arange(256).astype(np.uint8) if kind == np.uint8 else _signed()}

    def value_of(value: ir.Value | None) -> np.ndarray | None:
        if value is None:
            return None
        if value not in values:
            constant = build.array(value)
            node = value.producer()
            if constant is not None:
                values[value] = constant.reshape(())
            else:
                assert node is not None
                values[value] = evaluate(node)
        return values[value]

    def evaluate(node: ir.Node) -> np.ndarray:
        attrs = {name: a.value for name, a in node.attributes.items()}
        lite = Node(node.op_type, tuple("x" if v is not None else "" for v in node.inputs), ("y",), attrs)
        return np.asarray(reference.evaluate(lite, [value_of(v) for v in node.inputs])[0])

    try:
        made = value_of(result)
    except MsedgeError:
        return None
    return None if made is None or made.shape != (256,) else made


def _signed() -> np.ndarray:
    return np.arange(-128, 128).astype(np.int8)


def _remove_dead(chain: Sequence[ir.Node]) -> None:
    for node in chain:
        if node.graph is not None and not _alive(node):
            node.graph.remove(node, safe=True)
