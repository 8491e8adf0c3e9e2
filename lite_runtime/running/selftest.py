"""The self-test of a model: its golden samples are run and compared with the outputs in the bundle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Array

if TYPE_CHECKING:
    from lite_runtime.running.session import Model

__all__ = ["SelfTestError", "self_test", "tolerance_of"]

_TOLERANCES = {"none": 1e-3, "fp16": 1e-2, "w8": 5e-2, "int16x8": 5e-2}
"""Allowed difference of floats by quantisation mode, relative to the largest value of the output. The sample's outputs
are from the NumPy reference of the same graph: the differences are the order of sums, and the direction in which values
between two quantisation steps are rounded."""
_COARSE = 0.25
_STEPS, _MAY_STEP = 1, 1e-2
"""Quantised integers may differ by one step, and this share of them by more."""


class SelfTestError(MsedgeError):
    """A golden sample that gives another result on this machine."""


def self_test(model: Model, signatures: Iterable[str]) -> int:
    """Run the golden samples of these signatures; returns their number. Raises SelfTestError that says what differs, by
    how much, and where."""
    held = model.bundle
    tolerance = tolerance_of(held.provenance)
    tests = [(name, *held.golden[name]) for name in signatures if name in held.golden]
    for name, inputs, expected in tests:
        reads = set(held.uses[name].reads) if name in held.uses else set()
        if name in held.uses and held.uses[name].writes:
            model.reset_state()
        got = model.run({key: array for key, array in inputs.items() if key not in reads}, name)
        for output, array in expected.items():  # a sample may omit outputs
            problem = _difference(got[output], array, tolerance)
            if problem:
                raise SelfTestError(
                    f"self-test: output {output!r} of {name!r} differs from the golden sample: {problem}; the file was"
                    " changed, or this machine computes wrongly: convert the model again"
                )
    return len(tests)


def tolerance_of(provenance: Mapping[str, Any]) -> float:
    """The allowed rounding error of a bundle with this provenance, relative to the largest magnitude of an output."""
    options = provenance.get("options")
    mode = options.get("mode", options.get("quantize", "none")) if isinstance(options, Mapping) else "none"
    return _TOLERANCES.get(str(mode), _COARSE)


def _difference(got: Array, expected: Array, tolerance: float) -> str:
    """A description of the difference; "" if there is none."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"expected {expected.dtype}{list(expected.shape)}, got {got.dtype}{list(got.shape)}"
    if expected.dtype.kind in "biuO":
        off = got != expected
        if expected.dtype.kind in "iu" and expected.dtype.itemsize <= 2:
            far = np.abs(got.astype(np.int64) - expected.astype(np.int64)) > _STEPS
            off = far if np.mean(far) > _MAY_STEP else np.zeros_like(far)
        return f"{int(np.sum(off))} of {off.size} elements differ" if np.any(off) else ""
    a, b = (array.astype(np.complex128 if array.dtype.kind == "c" else np.float64) for array in (got, expected))
    finite = np.isfinite(b)
    odd = ~finite & ~((a == b) | (np.isnan(a) & np.isnan(b)))
    if np.any(odd | (finite & ~np.isfinite(a))):
        return "unexpected or missing NaN or infinities"
    if not np.any(finite):
        return ""
    scale = max(float(np.abs(b[finite]).max()), 1e-6)
    largest = float(np.abs(a[finite] - b[finite]).max())
    return "" if largest <= tolerance * scale else f"{largest:.3g} off where {tolerance * scale:.3g} is allowed"
