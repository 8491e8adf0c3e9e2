"""ONNX's inference in a process of its own, for models over which it may end the process.

onnx 1.23 ends the process when it infers the result of a Slice or EyeLike of an operand with a negative size. Constant
sizes are checked before (`spec`). Computed ones become known inside the engine only: such a model is first tried where
nothing else is lost. That process loads onnx's engine alone, in 0.03 s of a processor: the whole package takes 0.2.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

import onnx
import onnx_ir as ir
from onnx import onnx_cpp2py_export as engine

from converter.errors import ConvertError
from converter.ir import build

__all__ = ["try_inference"]

_SIZES: Mapping[str, tuple[int, ...]] = {
    "ConstantOfShape": (0,), "Expand": (1,), "Pad": (1,), "Resize": (2, 3), "Tile": (1,), "Upsample": (1,),
}  # fmt: skip
"""Operators whose result's sizes are computed from operands that may be negative, and which these are."""
_FRAGILE = ("EyeLike", "Slice")
_PROGRAM = """
import resource, sys
from importlib import util
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
spec = util.spec_from_file_location("onnx.onnx_cpp2py_export", sys.argv[1])
engine = util.module_from_spec(spec)
spec.loader.exec_module(engine)
engine.shape_inference.infer_shapes(sys.stdin.buffer.read(), check_type=False, strict_mode=False, data_prop=True)
"""


def try_inference(model: ir.Model, proto: onnx.ModelProto) -> None:
    """Raise ConvertError if inference of `proto`, the model without its weights, ends the process."""
    nodes = list(build.nodes(model))
    if not any(build.is_op(node, *_FRAGILE) for node in nodes) or not any(map(_computes_sizes, nodes)):
        return
    # The program imports nothing but the standard library's modules and the engine; errors are for the caller to find.
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, engine.__file__]
    run = subprocess.run(command, input=proto.SerializeToString(), capture_output=True, check=False)
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
