"""Tables looked up by row."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.op import Op, translate
from converter.frontends.tflite.ops.operands import rank

__all__: list[str] = []


@translate("EMBEDDING_LOOKUP")
def embedding_lookup(op: Op) -> ir.Value:
    """Rows of a table. Of a table of int8 rows, the rows found are dequantised, not the whole table. Numbers of 4 bits
    take 8: Gather has no narrower ones."""
    table = op.tensor(1)
    quant = table.quant
    symmetric = quant is not None and not quant.block and quant.axis == 0 and not np.any(quant.zero_point)
    if quant is None or not symmetric or op.output().quantized:
        return op.emit("Gather", [op.real(1), op.raw(0)], {"axis": 0})
    narrow = op.const(1) if table.type_name == "INT4" else None
    stored = op.raw(1) if narrow is None else op.constant(narrow, hint=table.name)
    rows = op.emit("Cast", [op.emit("Gather", [stored, op.raw(0)], {"axis": 0})], {"to": int(ir.DataType.FLOAT)})
    scale = op.constant(quant.scale.astype(np.float32))
    if not quant.per_tensor:
        scale = op.emit("Gather", [scale, op.raw(0)], {"axis": 0})
        scale = op.emit("Unsqueeze", [scale, op.constant(list(range(1, rank(op, 1))), np.int64)])
    return op.emit("Mul", [rows, scale])
