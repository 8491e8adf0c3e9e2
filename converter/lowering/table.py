"""The lite operator of each IR operator. Nearly all are the same: lite operators have ONNX's names and meaning."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from converter.ir import build
from lite_runtime import custom
from lite_runtime.operators import OPERATORS

__all__ = ["DOMAINS", "HINTS", "RENAMED", "lite_op"]

DOMAINS: frozenset[str] = frozenset({"", "ai.onnx.ml", build.DOMAIN})
"""Domains whose operators lower to lite operators of the same name."""

RENAMED: Mapping[tuple[str, str], str] = {}
"""(domain, IR operator) -> lite operator, where the two differ."""

HINTS: Mapping[str, str] = {
    "com.microsoft.nchwc": "images in blocks of 8 or 16 channels, and the file does not tell which: let onnxruntime "
    "save the optimised model with ORT_ENABLE_EXTENDED, or convert the model as it was before",
    "com.ms.internal.nhwc": "channels last, as onnxruntime lays a graph out for one accelerator: convert the model as "
    "it was before, or let onnxruntime save it with the CPU's execution provider alone",
    "com.microsoft": "an onnxruntime contrib operator: convert the model as it was before onnxruntime optimised it",
    "org.pytorch.aten": "a PyTorch ATen fallback: export with torch.onnx.export(..., dynamo=True)",
    "ai.onnx.preview.training": "a training operator: convert the inference graph",
}
"""What to do about operators of well-known foreign domains."""


def lite_op(node: ir.Node) -> str | None:
    """The lite operator's name, or None for an operator that its domain does not have and nobody registered."""
    if node.domain not in DOMAINS:
        name = custom.key(node.domain, node.op_type)
        return name if custom.record(name) is not None else None
    record = OPERATORS.get(node.op_type)
    if record is not None and node.domain not in (build.DOMAIN, record.domain):
        return None
    return RENAMED.get((node.domain, node.op_type), node.op_type)
