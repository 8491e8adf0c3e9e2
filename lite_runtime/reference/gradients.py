"""Gradients of operators whose derivative is not a short composition of ONNX operators: the backward passes of
convolutions, pools, normalisations and recurrent layers.

Each takes the gradient of a scalar loss with respect to the operator's result (`dY`) and returns those with respect to
its operands. They are operators of our own; `converter/ir/grad` emits them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array
from lite_runtime.reference.activation import sigmoid
from lite_runtime.reference.movement import to_channels_first, to_channels_last
from lite_runtime.reference.registry import define
from lite_runtime.reference.support import axis_of, in_float32, require
from lite_runtime.reference.windows import Window, resolve

__all__: list[str] = []


# -- windows ----------------------------------------------------------------------------------------------------------


def _matching(window: Window, x: Array, dy: Array, channels: int) -> None:
    expected = (x.shape[0], channels, *window.out)
    require(dy.shape == expected, f"expected dY of the result's shape {expected}, got {dy.shape}")


@define("ConvWeightGrad")
@in_float32
def _conv_weight_grad(
    x: Array,
    dy: Array,
    /,
    kernel_shape: Sequence[int],
    dilations: Sequence[int] | None = None,
    group: int = 1,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    layout: str = "NCHW",
) -> Array:
    """dW (M, C / group, kernel…) of Conv(X, W) with these attributes; X and dY are channels-last if layout is NHWC,
    dW never is."""
    x, dy = to_channels_first(x, layout), to_channels_first(dy, layout)
    window = resolve(x.shape[2:], kernel_shape, strides=strides, dilations=dilations, pads=pads)
    n, c, m = x.shape[0], x.shape[1], dy.shape[1]
    require(c % group == 0 and m % group == 0, f"expected channels {c} and {m} divisible by group {group}")
    _matching(window, x, dy, m)
    padded, positions = window.pad(x, 0), prod(window.out)
    after = dy.reshape(n, group, m // group, positions)
    dw = np.zeros((m, c // group, *window.kernel), x.dtype)
    for place, cut in window.taps():
        met = padded[cut].reshape(n, group, c // group, positions)
        dw[place] = (after @ met.swapaxes(2, 3)).sum(0).reshape(m, c // group)
    return dw


@define("MaxPoolGrad")
@in_float32
def _max_pool_grad(
    x: Array,
    dy: Array,
    /,
    kernel_shape: Sequence[int],
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    layout: str = "NCHW",
) -> Array:
    """dX of MaxPool(X) with these attributes: the first maximum of each window, in row-major order, receives its dY."""
    x, dy = to_channels_first(x, layout), to_channels_first(dy, layout)
    window = resolve(x.shape[2:], kernel_shape, strides=strides, dilations=dilations, pads=pads, ceil_mode=ceil_mode)
    _matching(window, x, dy, x.shape[1])
    padded, inside = window.pad(x, -np.inf), window.pad(np.ones(x.shape[2:], bool), False)
    best = np.full(dy.shape, -np.inf, x.dtype)
    winner = np.full(dy.shape, -1, np.int64)
    for tap, (_, cut) in enumerate(window.taps()):
        better = inside[cut] & ((padded[cut] > best) | (winner < 0))
        best, winner = np.where(better, padded[cut], best), np.where(better, tap, winner)
    dx = np.zeros_like(padded)
    for tap, (_, cut) in enumerate(window.taps()):
        dx[cut] += np.where(winner == tap, dy, 0)
    return to_channels_last(_inner(dx, window, x), layout)


@define("AveragePoolGrad")
@in_float32
def _average_pool_grad(
    x: Array,
    dy: Array,
    /,
    kernel_shape: Sequence[int],
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    layout: str = "NCHW",
) -> Array:
    """dX of AveragePool(X) with these attributes; only the shape of X is used."""
    x, dy = to_channels_first(x, layout), to_channels_first(dy, layout)
    window = resolve(x.shape[2:], kernel_shape, strides=strides, dilations=dilations, pads=pads, ceil_mode=ceil_mode)
    _matching(window, x, dy, x.shape[1])
    counted = window.pad(np.ones(x.shape[2:], dy.dtype), 0)
    if count_include_pad:  # positions beyond the declared padding, reached through ceil_mode, are still not counted
        sizes = zip(window.begin, x.shape[2:], window.end, strict=True)
        counted[tuple(slice(0, b + n + e) for b, n, e in sizes)] = 1
    count = np.zeros(window.out, dy.dtype)
    for _, cut in window.taps():
        count += counted[cut]
    dx, share = np.zeros((*x.shape[:2], *counted.shape), dy.dtype), dy / count
    for _, cut in window.taps():
        dx[cut] += share
    return to_channels_last(_inner(dx, window, x), layout)


def _inner(padded: Array, window: Window, x: Array) -> Array:
    """The part of `padded` that is not padding."""
    cut: Any = (..., *(slice(b, b + n) for b, n in zip(window.begin, x.shape[2:], strict=True)))
    return np.asarray(padded[cut])


# -- normalisations ---------------------------------------------------------------------------------------------------


def _normalized_grad(dy: Array, normal: Array, rstd: Array, scale: Array, over: tuple[int, ...]) -> Array:
    """dX of `normal * scale` where normal = (X - mean) * rstd, with mean and rstd of X over axes `over`."""
    arriving = dy * scale
    along = (arriving * normal).mean(over, keepdims=True)
    return np.asarray((arriving - arriving.mean(over, keepdims=True) - normal * along) * rstd)


@define("BatchNormalizationGrad")
@in_float32
def _batch_normalization_grad(
    dy: Array, x: Array, scale: Array, saved_mean: Array, saved_rstd: Array, /, layout: str = "NCHW"
) -> tuple[Array, Array, Array]:
    """(dX, dscale, dB) of BatchNormalization in training mode, whose outputs 3 and 4 are `saved_mean`, `saved_rstd`."""
    dy, x = to_channels_first(dy, layout), to_channels_first(x, layout)
    require(dy.shape == x.shape, f"expected dY of the shape of X {x.shape}, got {dy.shape}")
    for name, given in (("scale", scale), ("saved_mean", saved_mean), ("saved_rstd", saved_rstd)):
        require(given.shape == (x.shape[1],), f"expected {name} of shape ({x.shape[1]},), got {given.shape}")
    over, wide = (0, *range(2, x.ndim)), (1, -1, *(1,) * (x.ndim - 2))
    rstd = saved_rstd.reshape(wide)
    normal = (x - saved_mean.reshape(wide)) * rstd
    dx = _normalized_grad(dy, normal, rstd, scale.reshape(wide), over)
    return to_channels_last(dx.astype(x.dtype), layout), (dy * normal).sum(over), dy.sum(over)


@define("LayerNormalizationGrad")
@in_float32
def _layer_normalization_grad(
    dy: Array, x: Array, scale: Array, mean: Array, inv_std: Array, /, axis: int = -1
) -> tuple[Array, Array, Array]:
    """(dX, dscale, dB) of LayerNormalization, whose outputs 1 and 2 are `mean` and `inv_std`. `scale` has the shape of
    the axes from `axis` on."""
    axis = axis_of(axis, x.ndim)
    require(dy.shape == x.shape, f"expected dY of the shape of X {x.shape}, got {dy.shape}")
    require(scale.shape == x.shape[axis:], f"expected scale of shape {x.shape[axis:]}, got {scale.shape}")
    before = tuple(range(axis))
    normal = (x - mean) * inv_std
    dx = _normalized_grad(dy, normal, inv_std, scale, tuple(range(axis, x.ndim)))
    return dx.astype(x.dtype), (dy * normal).sum(before), dy.sum(before)


# -- recurrences: backpropagation through time ------------------------------------------------------------------------


class _Sequence(NamedTuple):
    """The operands that both recurrent layers share, time first: all arrays of one direction d are [:, d] or [d]."""

    x: Array  # (time, batch, input)
    y: Array  # (time, directions, batch, hidden)
    dy: Array  # as y
    alive: Array  # (time, batch, 1), False past a sample's end
    times: tuple[tuple[int, ...], ...]
    """For each direction, the order in which its recurrence processes time."""


def _sequence(
    x: Array, y: Array, dy: Array | None, lengths: Array | None, direction: str, layout: int
) -> tuple[_Sequence, tuple[int, int, int]]:
    """The operands with time first, and (directions, batch, hidden)."""
    if layout:
        x, y = x.swapaxes(0, 1), y.transpose(1, 2, 0, 3)
        dy = None if dy is None else dy.transpose(1, 2, 0, 3)
    time, batch = x.shape[:2]
    require(y.ndim == 4 and y.shape[0] == time and y.shape[2] == batch, f"expected Y to match X, got {y.shape}")
    require(dy is None or dy.shape == y.shape, f"expected dY of Y's shape {y.shape}")
    onward = tuple(range(time))
    orders = {"forward": (onward,), "reverse": (onward[::-1],), "bidirectional": (onward, onward[::-1])}
    require(len(orders.get(direction, ())) == y.shape[1], f"expected Y to have the directions of {direction!r}")
    lengths = np.full(batch, time) if lengths is None else lengths
    alive = (np.arange(time)[:, None] < lengths)[:, :, None]
    whole = _Sequence(x, y, np.zeros_like(y) if dy is None else dy, alive, orders[direction])
    return whole, (y.shape[1], batch, y.shape[3])


def _state(given: Array | None, shape: tuple[int, int, int], dtype: np.dtype, layout: int) -> Array:
    """A state or its gradient as (directions, batch, hidden); zeros if it is left out."""
    if given is None:
        return np.zeros(shape, dtype)
    given = given.swapaxes(0, 1) if layout else given
    require(given.shape == shape, f"expected a state of shape {shape}, got {given.shape}")
    return given


def _before(s: _Sequence, d: int, start: Array) -> Array:
    """(time, batch, hidden): the hidden state before each step of direction `d`."""
    before = np.empty_like(s.y[:, d])
    state = start
    for t in s.times[d]:
        before[t] = state
        state = np.where(s.alive[t], s.y[t, d], state)
    return before


def _products(dgates: Array, x: Array, before: Array) -> tuple[Array, Array, Array]:
    """(dW, dR, sum) from gradients (time, batch, gates * hidden) of the sums to which W's and R's products were
    added."""
    flat = dgates.reshape(-1, dgates.shape[-1])
    return flat.T @ x.reshape(-1, x.shape[-1]), flat.T @ before.reshape(-1, before.shape[-1]), flat.sum(0)


def _batch_first(dx: Array, states: Sequence[Array], layout: int) -> tuple[Array, ...]:
    return (dx.swapaxes(0, 1), *(s.swapaxes(0, 1) for s in states)) if layout else (dx, *states)


@define("LSTMGrad")
@in_float32
def _lstm_grad(
    x: Array,
    w: Array,
    r: Array,
    y: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    dy: Array | None = None,
    dy_h: Array | None = None,
    dy_c: Array | None = None,
    /,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
) -> tuple[Array, ...]:
    """(dX, dW, dR, dB, dinitial_h, dinitial_c) of LSTM with its default activations and without peepholes, whose
    results were Y, Y_h, Y_c. Gates are recomputed from Y, cells by another forward pass through time."""
    s, shape = _sequence(x, y, dy, sequence_lens, direction, layout)
    hidden = shape[2]
    require(hidden_size in (None, hidden), f"expected hidden_size {hidden} as Y has it, got {hidden_size}")
    h0, c0, dh, dc = (_state(v, shape, x.dtype, layout) for v in (initial_h, initial_c, dy_h, dy_c))
    b = np.zeros((shape[0], 8 * hidden), x.dtype) if b is None else b
    dx, dw, dr, db = np.zeros_like(s.x), np.zeros_like(w), np.zeros_like(r), np.zeros_like(b)
    dh0, dc0 = np.zeros_like(h0), np.zeros_like(c0)
    for d in range(shape[0]):
        before = _before(s, d, h0[d])
        gates = s.x @ w[d].T + before @ r[d].T + b[d, : 4 * hidden] + b[d, 4 * hidden :]
        dgates, dh0[d], dc0[d] = _lstm_through_time(s, d, gates, r[d], c0[d], dh[d], dc[d])
        dw[d], dr[d], total = _products(dgates, s.x, before)
        db[d] = np.tile(total, 2)
        dx += dgates @ w[d]
    dx, *states = _batch_first(dx, (dh0, dc0), layout)
    return dx, dw, dr, db, *states


def _lstm_through_time(
    s: _Sequence, d: int, gates: Array, r: Array, c: Array, dh: Array, dc: Array
) -> tuple[Array, Array, Array]:
    """gates (time, batch, 4 * hidden) before their activations, in the order input, output, forget, cell; c: the
    initial cells; dh and dc: the gradients of the last state -> gradients of gates, of the first hidden state and
    cells."""
    squashed = [sigmoid(g) for g in np.split(gates[..., : 3 * c.shape[-1]], 3, axis=-1)]
    i, o, f = squashed
    g = np.tanh(gates[..., 3 * c.shape[-1] :])
    starts, ends = np.empty_like(g), np.empty_like(g)
    for t in s.times[d]:
        starts[t] = c
        ends[t] = f[t] * c + i[t] * g[t]
        c = np.where(s.alive[t], ends[t], c)
    dgates = np.zeros_like(gates)
    for t in reversed(s.times[d]):
        squashed_c = np.tanh(ends[t])
        dh_t = dh + s.dy[t, d]
        dc_t = dc + dh_t * o[t] * (1 - squashed_c**2)
        new = (
            dc_t * g[t] * i[t] * (1 - i[t]),
            dh_t * squashed_c * o[t] * (1 - o[t]),
            dc_t * starts[t] * f[t] * (1 - f[t]),
            dc_t * i[t] * (1 - g[t] ** 2),
        )
        dgates[t] = np.where(s.alive[t], np.concatenate(new, axis=-1), 0)
        dh, dc = np.where(s.alive[t], dgates[t] @ r, dh), np.where(s.alive[t], dc_t * f[t], dc)
    return dgates, dh, dc


@define("GRUGrad")
@in_float32
def _gru_grad(
    x: Array,
    w: Array,
    r: Array,
    y: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    dy: Array | None = None,
    dy_h: Array | None = None,
    /,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
) -> tuple[Array, ...]:
    """(dX, dW, dR, dB, dinitial_h) of GRU with its default activations, whose results were Y, Y_h. Gates are
    recomputed from Y."""
    s, shape = _sequence(x, y, dy, sequence_lens, direction, layout)
    hidden = shape[2]
    require(hidden_size in (None, hidden), f"expected hidden_size {hidden} as Y has it, got {hidden_size}")
    h0, dh = (_state(v, shape, x.dtype, layout) for v in (initial_h, dy_h))
    b = np.zeros((shape[0], 6 * hidden), x.dtype) if b is None else b
    dx, dw, dr, db = np.zeros_like(s.x), np.zeros_like(w), np.zeros_like(r), np.zeros_like(b)
    dh0 = np.zeros_like(h0)
    for d in range(shape[0]):
        before = _before(s, d, h0[d])
        seen = s.x @ w[d].T + b[d, : 3 * hidden]
        late = bool(linear_before_reset)
        dseen, dpast, met, dh0[d] = _gru_through_time(s, d, seen, before, r[d], b[d, 3 * hidden :], dh[d], late)
        dw[d], _, db[d, : 3 * hidden] = _products(dseen, s.x, before)
        _, dr[d, : 2 * hidden], _ = _products(dpast[..., : 2 * hidden], s.x, before)
        _, dr[d, 2 * hidden :], _ = _products(dpast[..., 2 * hidden :], s.x, met)
        db[d, 3 * hidden :] = dpast.sum((0, 1))
        dx += dseen @ w[d]
    dx, dh0 = _batch_first(dx, (dh0,), layout)
    return dx, dw, dr, db, dh0


def _gru_through_time(
    s: _Sequence, d: int, seen: Array, before: Array, r: Array, bias: Array, dh: Array, late: bool
) -> tuple[Array, Array, Array, Array]:
    """seen (time, batch, 3 * hidden): the input's contribution to the gates, in the order update, reset, candidate; dh:
    the gradient of the last state; `late`: linear_before_reset.

    -> gradients of the input's contribution and of R's products (bias included), the values multiplied by R's
    candidate rows, and the gradient of the first state."""
    hidden = before.shape[-1]
    gate, candidate = slice(0, 2 * hidden), slice(2 * hidden, None)
    z, reset = np.split(sigmoid(seen[..., gate] + before @ r[gate].T + bias[gate]), 2, axis=-1)
    met = before if late else reset * before
    past = met @ r[candidate].T + bias[candidate]
    new = np.tanh(seen[..., candidate] + (reset * past if late else past))
    dseen, dpast = np.zeros_like(seen), np.zeros_like(seen)
    for t in reversed(s.times[d]):
        dh_t = dh + s.dy[t, d]
        dnew = dh_t * (1 - z[t]) * (1 - new[t] ** 2)
        dz = dh_t * (before[t] - new[t]) * z[t] * (1 - z[t])
        dmet = (dnew * reset[t] if late else dnew) @ r[candidate]
        dreset = (dnew * past[t] if late else dmet * before[t]) * reset[t] * (1 - reset[t])
        alive = s.alive[t]
        dseen[t] = np.where(alive, np.concatenate((dz, dreset, dnew), axis=-1), 0)
        dpast[t] = dseen[t]
        dpast[t, :, candidate] = np.where(alive, dnew * reset[t] if late else dnew, 0)
        back = dh_t * z[t] + dpast[t, :, gate] @ r[gate] + (dmet if late else dmet * reset[t])
        dh = np.where(alive, back, dh)
    return dseen, dpast, met, dh
