"""RNN, GRU and LSTM against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from lite_runtime.errors import ShapeError, UnsupportedOpError
from lite_runtime.graph import Array
from tests.lite_runtime.reference.oracle import agree, floats, ours

T, B, I, H = 5, 3, 4, 6  # noqa: E741
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STATES = {"RNN": 1, "GRU": 1, "LSTM": 2}


def weights(op: str, directions: int) -> list[Array]:
    g = GATES[op] * H
    return [floats(directions, g, I), floats(directions, g, H, low=-0.5, high=0.5), floats(directions, 2 * g)]


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_directions(op: str, direction: str) -> None:
    d = 2 if direction == "bidirectional" else 1
    lengths = np.array([5, 2, 4], np.int32)
    states = [floats(d, B, H) for _ in range(STATES[op])]
    attrs = {"hidden_size": H, "direction": direction}
    agree(op, [floats(T, B, I), *weights(op, d), lengths, *states], attrs, 1 + STATES[op], 1e-4, 1e-5, 21)


def test_options_of_each() -> None:
    agree("GRU", [floats(T, B, I), *weights("GRU", 1)], {"hidden_size": H, "linear_before_reset": 1}, 2, 1e-4, 1e-5, 21)
    peephole = [floats(T, B, I), *weights("LSTM", 1), None, None, None, floats(1, 3 * H)]
    agree("LSTM", peephole, {"hidden_size": H}, 3, 1e-4, 1e-5, 21)
    agree("GRU", [floats(T, B, I), *weights("GRU", 1)], {"hidden_size": H, "clip": 0.5}, 2, 1e-4, 1e-5, 21)
    wide = [4 * floats(3 * T, B, I), *weights("LSTM", 1)]  # cells grow beyond the bound
    agree("LSTM", wide, {"hidden_size": H, "clip": 0.5}, 3, 1e-4, 1e-5, 21)
    named = {"hidden_size": H, "activations": ("LeakyRelu",), "activation_alpha": (0.3,)}
    agree("RNN", [floats(T, B, I), *weights("RNN", 1)], named, 2, 1e-4, 1e-5, 21)


@pytest.mark.parametrize("op", GATES)
def test_batch_first(op: str) -> None:
    x, w, state = floats(T, B, I), weights(op, 1), floats(1, B, H)
    y, last = ours(op, [x, *w, None, state], {"hidden_size": H}, 2)
    turned = ours(op, [x.swapaxes(0, 1), *w, None, state.swapaxes(0, 1)], {"hidden_size": H, "layout": 1}, 2)
    np.testing.assert_array_equal(turned[0], y.transpose(2, 0, 1, 3))
    np.testing.assert_array_equal(turned[1], last.swapaxes(0, 1))


@pytest.mark.parametrize("op", GATES)
def test_two_halves_equal_the_whole(op: str) -> None:
    x, w = floats(T, B, I), weights(op, 1)
    n = 1 + STATES[op]
    whole = ours(op, [x, *w], {"hidden_size": H}, n)
    first = ours(op, [x[:2], *w], {"hidden_size": H}, n)
    second = ours(op, [x[2:], *w, None, *first[1:]], {"hidden_size": H}, n)
    np.testing.assert_allclose(np.concatenate([first[0], second[0]]), whole[0], rtol=1e-6)


def test_misfits_are_refused() -> None:
    with pytest.raises(UnsupportedOpError, match="Sin"):
        ours("RNN", [floats(T, B, I), *weights("RNN", 1)], {"activations": ("Sin",)})
    with pytest.raises(ShapeError, match="2 directions"):
        ours("LSTM", [floats(T, B, I), *weights("LSTM", 1)], {"direction": "bidirectional"})
