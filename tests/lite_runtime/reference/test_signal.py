"""Fourier transforms and windows against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from lite_runtime.errors import ShapeError
from tests.lite_runtime.reference.oracle import agree, floats, ours


@pytest.mark.parametrize("attrs", [{}, {"onesided": 1}, {"inverse": 1}])
def test_dft(attrs: dict[str, int]) -> None:
    x = floats(2, 8, 3, 1 if attrs.get("onesided") else 2)
    agree("DFT", [x, None, np.array(1)], attrs, rtol=1e-4, atol=1e-4, opset=20)
    agree("DFT", [x, np.array(6), np.array(1)], attrs, rtol=1e-4, atol=1e-4, opset=20)


def test_inverse_undoes() -> None:
    x, axis = floats(2, 7, 2), np.array(1)
    back = ours("DFT", [ours("DFT", [x, None, axis])[0], None, axis], {"inverse": 1})[0]
    np.testing.assert_allclose(back, x, atol=1e-6)
    real = floats(2, 8, 1)
    half = ours("DFT", [real, None, axis], {"onesided": 1})[0]
    whole = ours("DFT", [half, np.array(8), axis], {"inverse": 1, "onesided": 1})[0]
    np.testing.assert_allclose(whole, real, atol=1e-6)


@pytest.mark.parametrize("onesided", [0, 1])
def test_stft(onesided: int) -> None:
    inputs = [floats(2, 20, 1), np.array(4), floats(8), np.array(8)]
    agree("STFT", inputs, {"onesided": onesided}, rtol=1e-4, atol=1e-4)
    flat = ours("STFT", [inputs[0][..., 0], *inputs[1:]], {"onesided": onesided})
    np.testing.assert_array_equal(flat[0], ours("STFT", inputs, {"onesided": onesided})[0])


@pytest.mark.parametrize("op", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("periodic", [0, 1])
def test_windows(op: str, periodic: int) -> None:
    agree(op, [np.array(9)], {"periodic": periodic}, rtol=1e-4, atol=1e-5)


def test_mel_weights() -> None:
    hertz = [np.array(v, np.float32) for v in (100.0, 3000.0)]
    agree("MelWeightMatrix", [np.array(8), np.array(64), np.array(8000), *hertz], rtol=1e-4)


def test_misfits_are_refused() -> None:
    with pytest.raises(ShapeError, match="before the last"):
        ours("DFT", [floats(2, 4, 2), None, np.array(-1)])
    with pytest.raises(ShapeError, match="window or frame_length"):
        ours("STFT", [floats(1, 9, 1), np.array(2)])
