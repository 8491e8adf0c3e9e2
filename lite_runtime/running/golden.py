"""Golden samples: what a bundle says that a correct runtime gives for some inputs, beside what this one gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from lite_runtime.graph import Array

if TYPE_CHECKING:
    from lite_runtime.bundle import Bundle
    from lite_runtime.running.session import Model

__all__ = ["difference", "sampled", "tolerance_of"]

_TOLERANCES = {"none": 1e-3, "fp16": 1e-2, "w8": 5e-2, "int16x8": 5e-2}
"""Allowed difference of floats by quantisation mode, relative to the largest value of the output. The sample's outputs
are from the NumPy reference of the same graph: the differences are the order of sums, and the direction in which values
between two quantisation steps are rounded."""
_COARSE = 0.25
_BYTES = 0.1
"""Of language models whose products read 8-bit activations: one that is rounded the other way moves everything behind
it. SmolLM2's logits, after 30 layers, differ by 0.02 of the largest."""
_STEPS, _MAY_STEP = 1, 1e-2
"""Quantised integers may differ by one step, and this share of them by more."""


def sampled(model: Model, signatures: Iterable[str]) -> Iterator[tuple[str, Mapping[str, Array], Mapping[str, Array]]]:
    """Runs the golden samples of these signatures: (signature, what the model gives, what the bundle expects)."""
    held = model.bundle
    for name, (inputs, expected) in ((name, held.golden[name]) for name in signatures if name in held.golden):
        reads = set(held.uses[name].reads) if name in held.uses else set()
        if name in held.uses and held.uses[name].writes:
            model.reset_state()
        # Copies, because caches of language models are changed in place.
        yield name, model.run({key: array.copy() for key, array in inputs.items() if key not in reads}, name), expected


def tolerance_of(held: Bundle) -> float:
    """The allowed rounding error of a bundle, relative to the largest magnitude of an output."""
    options, language = held.provenance.get("options"), held.metadata.get("language")
    mode = options.get("mode", options.get("quantize", "none")) if isinstance(options, Mapping) else "none"
    least = _BYTES if isinstance(language, Mapping) and language.get("activations") == "int8" else 0.0
    return max(_TOLERANCES.get(str(mode), _COARSE), least)


def difference(got: Array, expected: Array, tolerance: float) -> str:
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
