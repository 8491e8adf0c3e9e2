"""Translation of an `onnx_ir.Model` to a differentiable JAX function by one table of lowerings, and export of trained
weights back into the IR."""

from __future__ import annotations

from cloud.engine.export import export
from cloud.engine.function import EngineFunction, TensorSpec, lower
from cloud.engine.lowering import supported_ops

__all__ = ["EngineFunction", "TensorSpec", "export", "lower", "supported_ops"]
