"""Weights that a source stores as integers become floats again, so that a quantiser can treat all weights the same.

    DequantizeLinear(constant integers) -> a float initialiser

Their values are kept exactly, and an eight-bit scale fitted to them finds their integers again.
"""

from __future__ import annotations

import onnx_ir as ir

from converter.errors import QuantizeError
from converter.ir import build
from converter.ir.build import Edit, attr
from converter.passes import cleanup
from lite_runtime.reference.quantize import dequantize

__all__ = ["run"]


def run(model: ir.Model) -> int:
    """The number of constants converted. Raises QuantizeError for a model whose activations are already integers."""
    done = next((node for node in build.nodes(model) if build.is_op(node, "QuantizeLinear")), None)
    if done is not None:
        raise QuantizeError(
            f"the model quantises activations already (QuantizeLinear {build.title(done)!r}); convert it with mode "
            "'none', or give the float model it was made from"
        )
    count = sum(_unpack(node) for node in build.nodes(model) if build.is_op(node, "DequantizeLinear"))
    if count:
        cleanup.fold_constants(model)
    return count


def _unpack(node: ir.Node) -> bool:
    found = [a for a in map(build.array, node.inputs) if a is not None]
    if node.outputs[0].is_graph_output() or len(found) != len(node.inputs):
        return False
    edit, kind = Edit(node), node.outputs[0].dtype
    zero = found[2] if len(found) > 2 else None
    values = dequantize(found[0], found[1], zero, attr(node, "axis", 1), attr(node, "block_size", 0))
    edit.replace(edit.const(values if kind is None else values.astype(kind.numpy()), hint=node.outputs[0].name or ""))
    return True
