"""The steps of the quantiser, and the list of them in order."""

from __future__ import annotations

import onnx_ir as ir

from converter.ir import build
from converter.passes import cleanup
from converter.quantize import apply, ranges
from converter.quantize.calibration import calibrate
from converter.quantize.calibration.calibrate import Histogram, Params
from converter.quantize.calibration.data import Samples
from converter.quantize.calibration.observe import Runner, Statistics, channel_axis, enough, observe
from converter.quantize.options import Options
from converter.quantize.record import Finding, TensorParams
from converter.quantize.rounding import correct, equalize, gptq, unpack
from converter.quantize.rounding.weights import SMALLEST
from converter.quantize.schemes import plan
from converter.quantize.state import State, Step
from lite_runtime.graph import Array

__all__ = ["STEPS", "equalise"]

_WORTH = 0.02
"""The least gain of equalisation, in powers of ten: less is chance."""
_LOST = 0.5
"""The most that equalisation may add to the noise of the rows with the largest errors, likewise: those with values that
were never seen."""
_ENOUGH = -4.3
"""Noise, likewise, below which there is nothing to gain but clipped values: MLPerf Tiny's autoencoder lost 0.6 points
of its AUC, because anomalies are larger than everything in calibration data."""


def equalise(model: ir.Model, samples: Samples, options: Options) -> int:
    """Equalise in place, unless a trial shows that the outputs do not become closer to the float model's; the number of
    layers scaled.

    The trial calibrates on every other row and evaluates on the rows between: equalised channels all fill their range,
    so unseen larger values are clipped in more places at once. A single such row would decide a sum over rows, so the
    mean of the rows' own ratios does: by the sum, motion's separable network lost 1.4 dB on 64 rows, and gained 0.8 dB
    on 2,584 others.
    """
    if not equalize.links(model):
        return 0
    fitted, held = samples.part(0, 2), samples.part(1, 2)
    before = ranges.noise(model, options, fitted, held)
    copy = model.clone()
    build.adopt(copy)
    if before.total < _ENOUGH or not equalize.run(copy, equalize.measure(model, fitted)):
        return 0
    after = ranges.noise(copy, options, fitted, held, reference=model)
    if after.rows > before.rows - _WORTH or after.total > before.total + _LOST:
        return 0
    return equalize.run(model, equalize.measure(model, samples))


def _unpack(state: State) -> None:
    unpack.run(state.model)


def _equalize(state: State) -> None:
    assert state.samples is not None
    state.record.notes["equalised layers"] = equalise(state.model, state.samples, state.options)


def _plan(state: State) -> None:
    state.plan = plan(state.model, state.options)


def _observe(state: State) -> None:
    assert state.samples is not None
    wanted = list(state.plan.tensors)
    runner = Runner(state.model, [v.name or "" for v in wanted])
    rows = enough(state.model, state.samples, wanted)
    state.statistics = observe(runner, rows, {v.name or "": channel_axis(v) for v in wanted})


def _calibrate(state: State) -> None:
    """A range for every tensor; tensors that share parameters get a range for all of them."""
    for root, members in ranges.groups(state.plan).items():
        state.params.update(dict.fromkeys(members, ranges.parameters(root, members, state)))
    for value in state.plan.tensors:
        _record(value, state)


_SATURATED = 0.01


def _record(value: ir.Value, state: State) -> None:
    name, params = value.name or "", state.params[value]
    seen = state.statistics.get(name)
    share = 0.0
    if seen is not None and not seen.constant:
        histogram = Histogram(seen.counts, seen.low, seen.high)
        share = calibrate.saturated(histogram, params)
        state.record.histograms[name] = {"low": seen.low, "high": seen.high, "counts": _coarse(seen.counts)}
    state.record.tensors[name] = TensorParams(
        name,
        params.dtype,
        [params.scale],
        [params.zero_point],
        minimum=None if seen is None else seen.low,
        maximum=None if seen is None else seen.high,
        saturated=share,
    )
    state.record.findings += _findings(value, params, seen, share)


_SHOWN_BINS = 128


def _coarse(counts: Array) -> list[int]:
    return [int(n) for n in counts.reshape(_SHOWN_BINS, -1).sum(axis=1)]


def _findings(value: ir.Value, params: Params, seen: Statistics | None, share: float) -> list[Finding]:
    name, found = value.name or "", []
    if seen is None:
        return [Finding("constant", name, f"tensor {name!r} had no values in the calibration data")]
    if seen.constant:
        found.append(Finding("constant", name, f"tensor {name!r} is {seen.low:g} on all calibration data"))
    if share > _SATURATED:
        text = f"{share:.1%} of tensor {name!r} are outside [{params.low:.4g}, {params.high:.4g}]"
        found.append(Finding("saturation", name, text))
    dead = int(((seen.channel_low == 0) & (seen.channel_high == 0)).sum())
    if dead and not seen.constant and value.producer() is not None:
        text = f"{dead} of {seen.channel_low.size} channels of tensor {name!r} are zero on all calibration data"
        found.append(Finding("dead channels", name, text))
    return found


def _gptq(state: State) -> None:
    if state.samples is None:
        return
    options = state.options
    bits, block = (4, options.block) if options.mode == "w4" else (8, options.block if options.mode == "w8" else 0)
    smallest = 1 if options.static else SMALLEST
    state.weights |= gptq.round_weights(
        state.model, state.samples, bits=4 if bits == 4 else 8, block_size=block, smallest=smallest
    )


def _keep(state: State) -> None:
    state.reference = state.model.clone()


def _correct(state: State) -> None:
    assert state.samples is not None and state.reference is not None
    state.record.notes["corrected layers"] = correct.run(state.model, state.reference, state.samples)


def _drop_unused(state: State) -> None:
    cleanup.unused(state.model)


def _static(options: Options) -> bool:
    return options.static


STEPS: tuple[Step, ...] = (
    Step("unpack stored weights", _static, _unpack),
    Step("equalise", lambda options: options.static and options.equalize, _equalize),
    Step("plan", _static, _plan),
    Step("observe", _static, _observe),
    Step("round weights by what they meet", lambda options: options.gptq and options.mode != "dynamic", _gptq),
    Step("choose how", lambda options: options.mode == "int8" and options.method == "auto", ranges.choose),
    Step("calibrate", _static, _calibrate),
    Step("round other weights", _static, apply.round_weights),
    Step("keep the float model", _static, _keep),
    Step("write integers", _static, apply.apply_static),
    Step("correct biases", lambda options: options.static and options.bias_correction, _correct),
    Step("write dynamic", lambda options: options.mode == "dynamic", apply.apply_dynamic),
    Step("write weights", lambda options: options.mode in ("w8", "w4"), apply.apply_weights),
    Step("drop unused", lambda options: True, _drop_unused),
)
