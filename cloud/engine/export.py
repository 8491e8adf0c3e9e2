"""Export of trained weights into the IR."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from cloud._jax import canonical_dtype
from cloud.engine.prepare import batch_norms, prepared
from cloud.errors import EngineError

__all__ = ["export"]


def export(model: ir.Model, params: Mapping[str, Any], state: Mapping[str, Any]) -> ir.Model:
    """A copy of `model` in inference form with `params` and `state`, under the names of `lower(model)`.

    Unchanged weights keep their original tensors, so a round trip is bit-equal, also for 64-bit types.
    BatchNormalization comes out with `training_mode` 0, Dropout without its `training_mode` operand. Raises EngineError
    for arrays that do not fit the model.
    """
    copy = prepared(model)
    for name, array in {**params, **state}.items():
        value = copy.graph.initializers.get(name)
        if value is None or value.const_value is None:
            raise EngineError(f"the model has no initialiser {name!r}; export with the model that was lowered")
        value.const_value = _tensor(name, value.const_value, np.asarray(array))
    _to_inference(copy)
    return copy


def _tensor(name: str, old: ir.TensorProtocol, new: np.ndarray[Any, Any]) -> ir.TensorProtocol:
    before = old.numpy()
    if before.shape != new.shape:
        raise EngineError(f"{name!r}: expected shape {before.shape}, got {new.shape}")
    if before.astype(canonical_dtype(before.dtype)).tobytes() == new.tobytes():
        return old
    return ir.Tensor(np.array(new, before.dtype, order="C"), name=name)


def _to_inference(model: ir.Model) -> None:
    for node in batch_norms(model.graph):
        mode = node.attributes.pop("training_mode", None)
        if mode is None or not mode.as_int():
            continue
        if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
            raise EngineError(
                f"BatchNormalization {node.name!r}: other nodes of the graph use its running statistics, so it "
                "has no inference form; remove those uses"
            )
        node.resize_outputs(1)
    for node in model.graph.all_nodes():
        if node.op_type == "Dropout" and node.domain in ("", "ai.onnx") and len(node.inputs) > 2:
            node.resize_inputs(2)
