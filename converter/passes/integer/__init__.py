"""From a QDQ graph to operators on integers: the last passes, after all that work on real numbers.

`INTEGER_PASSES` in order. `left_float(model)` reports afterwards which operators stayed float, and why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import onnx_ir as ir

from converter.passes import cleanup, fold_quantized
from converter.passes.integer import (
    dequantize_later,
    fuse_integer,
    lookup_tables,
    merge_requantize,
    quantize_earlier,
    recurrent_weights,
)
from converter.passes.integer.left_float import Left, left_float

__all__ = ["INTEGER_PASSES", "IntegerPass", "Left", "left_float"]


class IntegerPass(NamedTuple):
    """A step: `run` edits the model in place and returns how many rewrites it made."""

    name: str
    run: Callable[[ir.Model], int]


INTEGER_PASSES: tuple[IntegerPass, ...] = (
    IntegerPass("move integers", dequantize_later.run),
    IntegerPass("quantize earlier", quantize_earlier.run),
    IntegerPass("fold quantized constants", fold_quantized.run),
    IntegerPass("merge requantize", merge_requantize.run),
    IntegerPass("fuse integer operators", fuse_integer.run),
    IntegerPass("recurrent weights", recurrent_weights.run),
    IntegerPass("drop float leftovers", cleanup.unused),
    IntegerPass("lookup tables", lookup_tables.run),
    IntegerPass("drop what tables replace", cleanup.unused),
)
