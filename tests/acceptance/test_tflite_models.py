"""Real TensorFlow Lite models from file to result: converted, run by one and two workers, compared with LiteRT."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lite_runtime
from converter import convert
from edge.peers.litert import LiteRT
from lite_runtime.graph import Array, Value
from tests.conftest import SHARED

MODELS = sorted((SHARED / "models").glob("*.tflite"))
TOLERANCE = 1e-4
"""Largest difference of real outputs, as a share of their range."""
WITHIN_A_STEP = 0.999
"""Share of integer outputs that must be."""
RUNS = 40

pytestmark = pytest.mark.skipif(not MODELS, reason=f"no .tflite in {SHARED / 'models'}")


def drawn(values: tuple[Value, ...], rng: np.random.Generator) -> dict[str, Array]:
    """Bytes over their whole range; whole numbers where a text model looks words up; else a standard normal."""

    def one(value: Value) -> Array:
        shape = tuple(d if isinstance(d, int) else 1 for d in value.shape or ())
        dtype = np.dtype(value.dtype)
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)
        if value.name.startswith("embedding"):
            return rng.integers(0, 1000, shape).astype(dtype)
        return rng.standard_normal(shape).astype(dtype)

    return {v.name: one(v) for v in values}


@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.stem)
def test_results_are_those_of_litert(path: Path) -> None:
    made = convert(path)
    assert not set(made.report.reference_ops) - {"Shape"}
    one, two = (lite_runtime.load(made.bundle, threads=n) for n in (1, 2))
    peer, rng = LiteRT(path), np.random.default_rng(len(path.stem))
    near, total, same = 0, 0, 0
    runs = RUNS if path.stat().st_size < 1 << 20 else 8
    for _ in range(runs):
        inputs = drawn(one.inputs("predict"), rng)
        got, again, wanted = one.run(inputs), two.run(inputs), peer.run(inputs)
        for name, want in wanted.items():
            assert got[name].tobytes() == again[name].tobytes(), "two workers give other bits than one"
            if want.dtype.kind == "f":
                span = float(np.ptp(want)) or 1.0
                assert np.abs(got[name] - want).max() <= TOLERANCE * span, name
            else:
                near += int((np.abs(got[name].astype(int) - want.astype(int)) <= 1).sum())
                total += want.size
        same += all(got[name].argmax() == want.argmax() for name, want in wanted.items() if want.dtype.kind != "f")
    assert near >= WITHIN_A_STEP * total
    assert same == runs


@pytest.mark.parametrize("path", [p for p in MODELS if "int8" in p.stem or "uint8" in p.stem], ids=lambda p: p.stem)
def test_integer_models_are_no_larger_than_their_source(path: Path) -> None:
    assert len(convert(path).bundle) <= 1.03 * path.stat().st_size
