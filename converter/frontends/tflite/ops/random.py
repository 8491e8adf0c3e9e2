"""Random numbers. Distributions are TFLite's; the numbers themselves depend on the runtime's generator."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.op import Op, translate
from converter.frontends.tflite.ops.operands import cast, extents, single

__all__: list[str] = []

_KINDS = {"RANDOM_UNIFORM": "RandomUniformLike", "RANDOM_STANDARD_NORMAL": "RandomNormalLike"}


def _seed(op: Op) -> dict[str, float]:
    """Both seeds in one number; None if both are 0, which means a different seed in each run."""
    seeds = [int(op.option(name, 0)) for name in ("seed", "seed2")]
    return {"seed": float((seeds[0] * 31 + seeds[1]) % 2**24)} if any(seeds) else {}


@translate(*_KINDS)
def random(op: Op) -> ir.Value:
    """float32 in [0, 1), or of mean 0 and deviation 1, in the shape of operand 0."""
    like = op.emit("Expand", [op.constant(np.zeros((), np.float32)), extents(op, 0)])
    return op.emit(_KINDS[op.name], [like], _seed(op))


@translate("MULTINOMIAL")
def multinomial(op: Op) -> ir.Value:
    """Classes drawn from rows of logarithms of weights."""
    count = single(op, 1, "number of samples")
    attrs = {"sample_size": count, "dtype": int(ir.DataType.INT64), **_seed(op)}
    logits = op.emit("LogSoftmax", [op.real(0)], {"axis": -1})
    return cast(op, op.emit("Multinomial", [logits], attrs), op.output().dtype)
