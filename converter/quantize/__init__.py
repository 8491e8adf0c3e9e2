"""Quantisation of float models: a list of named steps, one file per step.

    record = quantize(model, Options(mode="int8"), samples)

`model` is IR after `converter.pass_lists.PREPARE`; it is edited in place and stays standard ONNX, in QDQ form.
"""

from __future__ import annotations

from dataclasses import asdict

import onnx_ir as ir

from converter.errors import QuantizeError
from converter.ir import build
from converter.quantize.apply import integer_ends
from converter.quantize.calibration.data import Samples, Source
from converter.quantize.calibration.data import load as calibration_data
from converter.quantize.calibration.observe import Runner
from converter.quantize.options import IO, METHODS, MODES, Io, Method, Mode, Options
from converter.quantize.record import Finding, NodeStatus, Record, TensorParams
from converter.quantize.state import Progress, State, Step
from converter.quantize.steps import STEPS

__all__ = [
    "IO",
    "METHODS",
    "MODES",
    "STEPS",
    "Finding",
    "Io",
    "Method",
    "Mode",
    "NodeStatus",
    "Options",
    "Progress",
    "Record",
    "Runner",
    "Samples",
    "State",
    "Step",
    "TensorParams",
    "calibration_data",
    "integer_ends",
    "quantize",
    "run_steps",
]


def quantize(model: ir.Model, options: Options, samples: Samples | Source | None = None) -> Record:
    """Quantise `model` in place, inputs and outputs too if the options say so; returns the record of it."""
    record = run_steps(model, options, samples).record
    if options.io == "int8":
        integer_ends(model)
    return record


def run_steps(
    model: ir.Model, options: Options, samples: Samples | Source | None = None, progress: Progress | None = None
) -> State:
    """Quantise `model` in place; the state of the steps at the end. Modes none and fp16 leave the graph unchanged.
    Inputs and outputs stay float: `apply.integer_ends` changes them.

    `samples`: calibration rows, or data that `calibration_data` accepts; int8 and int16x8 need them, w8 and w4 round
    better with them. `progress` is told before each step. Raises QuantizeError.
    """
    if samples is not None and not isinstance(samples, Samples):
        samples = calibration_data(samples, model)
    if options.static and samples is None:
        raise QuantizeError(
            f"mode {options.mode!r} needs calibration data to measure activations; give some, or use mode 'dynamic' or "
            "'w8'"
        )
    state = State(model, options, samples, Record(options.mode, options=asdict(options)))
    record = state.record
    if samples is not None:
        record.samples, record.digest = len(samples), samples.digest
        record.findings += samples.findings
    if options.mode in ("none", "fp16"):
        return state
    build.adopt(model)
    steps = [step for step in STEPS if step.applies(options)]
    for done, step in enumerate(steps):
        if progress is not None:
            progress(f"quantise: {step.name}", done, len(steps))
        step.run(state)
    return state
