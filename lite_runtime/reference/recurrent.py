"""RNN, GRU and LSTM: a loop over time with whole-array operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lite_runtime.errors import UnsupportedOpError
from lite_runtime.graph import Array
from lite_runtime.reference.activation import elu, hard_sigmoid, leaky_relu, sigmoid
from lite_runtime.reference.quantize import whole_rows
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import in_float32, require

__all__: list[str] = []

Unit = Callable[[Array], Array]
Step = Callable[[Array, tuple[Array, ...]], tuple[Array, ...]]
"""(input at one time, state) -> new state; the first element of the state is the output."""

# Name -> (function of x, alpha, beta; default alpha; default beta), as ONNX's RNN family names them.
_UNITS: dict[str, tuple[Callable[[Array, float, float], Array], float, float]] = {
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "elu": (lambda x, a, b: elu(x, a), 1.0, 0.0),
    "hardsigmoid": (lambda x, a, b: hard_sigmoid(x, a, b), 0.2, 0.5),
    "leakyrelu": (lambda x, a, b: leaky_relu(x, a), 0.01, 0.0),
    "relu": (lambda x, a, b: np.maximum(x, 0), 0.0, 0.0),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
    "sigmoid": (lambda x, a, b: sigmoid(x), 0.0, 0.0),
    "softplus": (lambda x, a, b: np.logaddexp(x, x.dtype.type(0)), 0.0, 0.0),
    "softsign": (lambda x, a, b: x / (1 + np.abs(x)), 0.0, 0.0),
    "tanh": (lambda x, a, b: np.tanh(x), 0.0, 0.0),
    "thresholdedrelu": (lambda x, a, b: np.where(x > a, x, 0).astype(x.dtype), 1.0, 0.0),
}
_TAKES_ALPHA = {"affine", "elu", "hardsigmoid", "leakyrelu", "scaledtanh", "thresholdedrelu"}
_TAKES_BETA = {"affine", "hardsigmoid", "scaledtanh"}


def _units(names: Sequence[str], alphas: Sequence[float], betas: Sequence[float], clip: float | None) -> list[Unit]:
    """The activations in order; alphas and betas are assigned in turn to those that take one."""
    rest_a, rest_b = list(alphas), list(betas)
    units = []
    for name in names:
        key = name.lower()
        if key not in _UNITS:
            raise UnsupportedOpError(f"expected activations of {', '.join(_UNITS)}, got {name!r}")
        fn, alpha, beta = _UNITS[key]
        alpha = rest_a.pop(0) if key in _TAKES_ALPHA and rest_a else alpha
        beta = rest_b.pop(0) if key in _TAKES_BETA and rest_b else beta
        units.append(_unit(fn, alpha, beta, clip))
    return units


def _unit(fn: Callable[[Array, float, float], Array], alpha: float, beta: float, clip: float | None) -> Unit:
    def unit(x: Array) -> Array:
        kept = x if clip is None else np.clip(x, -clip, clip)
        return fn(kept, alpha, beta).astype(x.dtype)

    return unit


def _unroll(
    x: Array,
    states: Sequence[Array | None],
    steps: Sequence[Step],
    hidden: int,
    lengths: Array | None,
    direction: str,
    layout: int,
) -> tuple[Array, ...]:
    """Run one step function per direction over time.

    x (time, batch, input), or (batch, time, input) with layout 1; states (directions, batch, hidden), zeros for None.
    Returns Y (time, directions, batch, hidden) and each final state; with layout 1 batch comes first in all.
    Steps after the end of a sample leave its state unchanged and give 0.
    """
    x = x.swapaxes(0, 1) if layout else x
    time, batch = x.shape[:2]
    lengths = np.full(batch, time) if lengths is None else lengths
    starts = [None if s is None else s.swapaxes(0, 1) if layout else s for s in states]
    y = np.zeros((time, len(steps), batch, hidden), x.dtype)
    finals: list[tuple[Array, ...]] = []
    for d, step in enumerate(steps):
        state = tuple(np.zeros((batch, hidden), x.dtype) if s is None else s[d] for s in starts)
        backwards = direction == "reverse" or d == 1
        for t in reversed(range(time)) if backwards else range(time):
            alive = (t < lengths)[:, None]
            new = step(x[t], state)
            state = tuple(np.where(alive, n, s) for n, s in zip(new, state, strict=True))
            y[t, d] = np.where(alive, state[0], 0)
        finals.append(state)
    last = [np.stack(s) for s in zip(*finals, strict=True)]
    if layout:
        return (y.transpose(2, 0, 1, 3), *(s.swapaxes(0, 1) for s in last))
    return (y, *last)


def _directions(direction: str, w: Array) -> int:
    counts = {"forward": 1, "reverse": 1, "bidirectional": 2}
    if direction not in counts:
        raise UnsupportedOpError(f"expected direction forward, reverse or bidirectional, got {direction!r}")
    require(w.shape[0] == counts[direction], f"expected W of {counts[direction]} directions, got shape {w.shape}")
    return counts[direction]


def _biases(b: Array | None, d: int, gates: int, hidden: int, dtype: np.dtype) -> tuple[Array, Array]:
    """The input bias and the recurrent bias of one direction."""
    both = np.zeros(2 * gates * hidden, dtype) if b is None else b[d]
    require(both.size == 2 * gates * hidden, f"expected B of {2 * gates * hidden} numbers a direction, got {both.size}")
    return both[: gates * hidden], both[gates * hidden :]


def _byte_product(h: Array, r: Array, scales: Array, block: int, rounding: str = "") -> Array:
    """h (batch, hidden), rounded to 16 bits or by `rounding`, times int8 r (gates * hidden, hidden): exact sums per
    block, then scaled."""
    whole, unit = whole_rows(h, rounding) if rounding else _sixteen_bits(h)
    whole = whole.astype(np.float64)
    total = np.zeros((len(h), len(r)), h.dtype)
    for i in range(scales.shape[1]):
        part = slice(i * block, (i + 1) * block)
        total += (whole[:, part] @ r[:, part].T.astype(np.float64)).astype(h.dtype) * scales[:, i]
    return np.asarray(total * unit)


def _sixteen_bits(h: Array) -> tuple[Array, Array]:
    unit = np.maximum(np.abs(h).max(1, keepdims=True, initial=0), h.dtype.type(1)) / h.dtype.type(32767)
    return np.clip(np.rint(h / unit), -32767, 32767), unit


@define("RNN")
@in_float32
def _rnn(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    /,
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    activations: Sequence[str] = ("Tanh", "Tanh"),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
) -> tuple[Array, ...]:
    """h = f(x W' + h R' + biases)."""
    hidden = hidden_size or r.shape[-1]
    units = _units(activations, activation_alpha, activation_beta, clip)

    def step_of(d: int) -> Step:
        bias_w, bias_r = _biases(b, d, 1, hidden, x.dtype)

        def step(now: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            return (units[d](now @ w[d].T + state[0] @ r[d].T + bias_w + bias_r),)

        return step

    steps = [step_of(d) for d in range(_directions(direction, w))]
    return _unroll(x, [initial_h], steps, hidden, sequence_lens, direction, layout)


@define("GRU")
@in_float32
def _gru(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    scales: Array | None = None,
    /,
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    activations: Sequence[str] | None = None,
    block_size: int = 0,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
) -> tuple[Array, ...]:
    """Gates in the order update z, reset r, candidate h; h = (1 - z) * candidate + z * h.

    `scales` and `block_size` as for LSTM: R is int8, and its multiplicands (h, r * h) are rounded to 16 bits.
    """
    hidden = hidden_size or r.shape[-1]
    count = _directions(direction, w)
    units = _units(activations or ("Sigmoid", "Tanh") * count, activation_alpha, activation_beta, clip)

    def step_of(d: int) -> Step:
        f, g = units[2 * d : 2 * d + 2]
        bias_w, bias_r = _biases(b, d, 3, hidden, x.dtype)
        gates, candidate = slice(0, 2 * hidden), slice(2 * hidden, None)

        def past(h: Array, part: slice) -> Array:
            if scales is None:
                return np.asarray(h @ r[d][part].T)
            return _byte_product(h, r[d][part], scales[d][part], block_size)

        def step(now: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            (h,) = state
            seen = now @ w[d].T + bias_w
            z, reset = np.split(f(seen[:, gates] + past(h, gates) + bias_r[gates]), 2, axis=1)
            if linear_before_reset:
                new = reset * (past(h, candidate) + bias_r[candidate])
            else:
                new = past(reset * h, candidate) + bias_r[candidate]
            return ((1 - z) * g(seen[:, candidate] + new) + z * h,)

        return step

    return _unroll(x, [initial_h], [step_of(d) for d in range(count)], hidden, sequence_lens, direction, layout)


@define("LSTM")
@in_float32
def _lstm(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    p: Array | None = None,
    scales: Array | None = None,
    /,
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    activations: Sequence[str] | None = None,
    block_size: int = 0,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
    rounding: str = "",
) -> tuple[Array, ...]:
    """Gates in the order input, output, forget, cell; peepholes P in the order input, output, forget. `clip` bounds
    what enters the gates' functions; the cell enters its function as it is, as in ONNX Runtime and OpenVINO.

    With `scales` (directions, 4 * hidden, blocks) R is int8 with one scale per `block_size` weights, and h is rounded
    to 16 bits before the product: to multiples of max(1, the largest |h| of the sample) / 32767; or, as by LiteRT, to
    8 bits by a scheme of DynamicQuantizeLinear, `rounding`.
    """
    require(not rounding or scales is not None, "expected scales with a rounding, got none")
    hidden = hidden_size or r.shape[-1]
    count = _directions(direction, w)
    named = activations or ("Sigmoid", "Tanh", "Tanh") * count
    bounded, free = (_units(named, activation_alpha, activation_beta, bound) for bound in (clip, None))

    def step_of(d: int) -> Step:
        (f, g), h_unit = bounded[3 * d : 3 * d + 2], free[3 * d + 2]
        bias = np.sum(_biases(b, d, 4, hidden, x.dtype), axis=0)
        peep_i, peep_o, peep_f = np.split(np.zeros(3 * hidden, x.dtype) if p is None else p[d], 3)

        def step(now: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            h, c = state
            past = h @ r[d].T if scales is None else _byte_product(h, r[d], scales[d], block_size, rounding)
            i, o, forget, cell = np.split(now @ w[d].T + past + bias, 4, axis=1)
            i = f(i + peep_i * c)
            forget = 1 - i if input_forget else f(forget + peep_f * c)
            c = forget * c + i * g(cell)
            return f(o + peep_o * c) * h_unit(c), c

        return step

    steps = [step_of(d) for d in range(count)]
    return _unroll(x, [initial_h, initial_c], steps, hidden, sequence_lens, direction, layout)
