"""Quantising the frozen part of a trainable model.

If activations are quantised (dynamic, int8, int16x8), nodes that depend on a parameter stay float, because gradients
pass through them. A static mode converts the backbone before the first parameter to integers, as without training;
weights-only modes (w8, w4) round all weights except the parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from glob import escape
from typing import Any

from converter.pass_lists import STATIC, optimize
from converter.passes.record import PassRecord
from converter.quantize import Options, calibration_data, run_steps
from converter.quantize.calibration.data import Samples
from converter.report import Report
from converter.training.reach import dependents
from converter.training.signatures import Prepared

__all__ = ["quantize_backbone"]


def quantize_backbone(prepared: Prepared, options: Options, calibration: Any, report: Report) -> list[PassRecord]:
    """Quantise the frozen part of `prepared.model`, in place. Raises QuantizeError."""
    model = prepared.model
    samples = None if calibration is None else _with_state(calibration, prepared)
    passes = optimize(model, STATIC) if options.static else []
    if options.mode not in ("w8", "w4"):
        options = replace(options, keep_float=(*options.keep_float, *_float_names(prepared)))
    report.quantization = run_steps(model, options, samples).record
    return passes


def _with_state(calibration: Any, prepared: Prepared) -> Samples:
    """Rows of the model's own inputs together with the state, as the graph takes them."""
    inputs = prepared.model.graph.inputs
    held = [v for v in inputs if v.name in prepared.state]
    for value in held:
        inputs.remove(value)
    try:
        samples = calibration_data(calibration, prepared.model)
    finally:
        inputs.extend(held)
    state = {v.name or "": prepared.state[v.name or ""] for v in held}
    return replace(samples, rows=tuple(row | state for row in samples.rows))


def _float_names(prepared: Prepared) -> Iterator[str]:
    """Globs that match exactly the results that depend on state."""
    state = [v for v in prepared.model.graph.inputs if v.name in prepared.state]
    for node in dependents(prepared.model, state):
        yield from (escape(v.name) for v in node.outputs if v.name)

