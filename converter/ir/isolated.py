"""ONNX's inference in a process of its own, for models over which it may end the process.

onnx 1.23 ends the process when it infers the result of a Slice or EyeLike of an operand with a negative size. Constant
sizes are checked before (`spec`). Computed ones become known inside the engine only: such a model is first tried where
nothing else is lost, which takes a third of a second.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

import onnx
import onnx_ir as ir

from converter.errors import ConvertError
from converter.ir import build

__all__ = ["try_inference"]

_SIZES: Mapping[str, tuple[int, ...]] = {
    "ConstantOfShape": (0,), "Expand": (1,), "Pad": (1,), "Resize": (2, 3), "Tile": (1,), "Upsample": (1,),
}  # fmt: skip
"""Operators whose result's sizes are computed from operands that may be negative, and which these are."""
_FRAGILE = ("EyeLike", "Slice")
_PROGRAM = (
    "import resource, sys, onnx\n"
    "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
    "model = onnx.load_from_string(sys.stdin.buffer.read())\n"
    "onnx.shape_inference.infer_shapes(model, check_type=False, strict_mode=False, data_prop=True)\n"
)


def try_inference(model: ir.Model, proto: onnx.ModelProto) -> None:
    """Raise ConvertError if inference of `proto`, the model without its weights, ends the process."""
    nodes = list(build.nodes(model))
    if not any(build.is_op(node, *_FRAGILE) for node in nodes) or not any(map(_computes_sizes, nodes)):
        return
    # The program reads no file and imports nothing from the current folder (-P); errors are for the caller to find.
    run = subprocess.run(
        [sys.executable, "-P", "-c", _PROGRAM], input=proto.SerializeToString(), capture_output=True, check=False
    )
    if run.returncode < 0:
        names = ", ".join(repr(node.name) for node in nodes if _computes_sizes(node))
        raise ConvertError(
            f"the model contradicts itself: sizes that it computes for {names} are negative; fix or export it again"
        )


def _computes_sizes(node: ir.Node) -> bool:
    operands = [build.operand(node, index) for index in _SIZES.get(node.op_type, ())]
    return any(value is not None and build.array(value) is None for value in operands) or (
        node.op_type == "Pad" and any((found := build.array(v)) is not None and (found < 0).any() for v in operands)
    )
