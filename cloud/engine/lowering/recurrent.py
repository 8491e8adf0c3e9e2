"""LSTM, GRU and RNN by `lax.scan`. Weights are [directions, gates * hidden, ...], gates in ONNX's order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax

from cloud.engine.lowering.activation import ACTIVATIONS
from cloud.engine.lowering.indexing import reverse_sequence
from cloud.engine.lowering.registry import Tensor, lowering
from cloud.errors import EngineError

__all__: list[str] = []

Activation = Callable[[Tensor], Tensor]


def _activations(
    names: Sequence[str] | None, defaults: Sequence[str], count: int,
    alphas: Sequence[float] | None, betas: Sequence[float] | None,
) -> list[list[Activation]]:  # fmt: skip
    """One list of functions per direction. Alphas and betas are assigned in order to the functions that take them."""
    names = list(names or [*defaults] * count)
    if len(names) != len(defaults) * count:
        raise EngineError(f"expected {len(defaults) * count} activations, got {names}")
    parameters = {"alpha": list(alphas or ()), "beta": list(betas or ())}
    found: list[Activation] = []
    for name in names:
        if name.lower() not in ACTIVATIONS:
            raise EngineError(f"expected an activation of {', '.join(ACTIVATIONS)}, got {name!r}")
        function, takes = ACTIVATIONS[name.lower()]
        given = {key: parameters[key].pop(0) for key in takes if parameters[key]}
        found.append(lambda x, function=function, given=given: function(x, **given))  # type: ignore[misc]
    width = len(defaults)
    return [found[i * width : (i + 1) * width] for i in range(count)]


@dataclass(frozen=True)
class _Direction:
    """The weights and settings of a cell, for one direction."""

    w: Tensor
    r: Tensor
    wb: Tensor
    rb: Tensor
    functions: list[Activation]
    peephole: Tensor | None
    clip: float | None

    def bound(self, x: Tensor) -> Tensor:
        return x if self.clip is None else jnp.clip(x, -self.clip, self.clip)


Cell = Callable[[_Direction, Any, Tensor], Any]


def _scan(
    cell: Cell, d: _Direction, start: Any, x: Tensor, lengths: Tensor | None, reverse: bool
) -> tuple[Any, Tensor]:
    """Run `cell` over x [steps, batch, n]; returns the last states and every hidden state [steps, batch, hidden]."""

    def turn(t: Tensor) -> Tensor:
        return jnp.flip(t, 0) if lengths is None else reverse_sequence(t, lengths)

    def step(carry: Any, item: Any) -> tuple[Any, Tensor]:
        now, i = item
        after = cell(d, carry, now)
        if lengths is None:
            return after, after[0]
        live = (i < lengths)[:, None]
        held = tuple(jnp.where(live, new, old) for new, old in zip(after, carry, strict=True))
        return held, jnp.where(live, after[0], 0)

    inputs = jnp.matmul(turn(x) if reverse else x, d.w.T) + d.wb
    last, ys = lax.scan(step, start, (inputs, jnp.arange(x.shape[0])))
    return last, (turn(ys) if reverse else ys)


def _recurrent(
    cell: Cell, gates: int, states: int, defaults: Sequence[str], x: Tensor, w: Tensor, r: Tensor, b: Tensor | None,
    lengths: Tensor | None, initial: Sequence[Tensor | None], peephole: Tensor | None, *,
    activation_alpha: Sequence[float] | None, activation_beta: Sequence[float] | None,
    activations: Sequence[str] | None, clip: float | None, direction: str, hidden_size: int | None, layout: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Y [steps, directions, batch, hidden], then the last states [directions, batch, hidden]; layout 1: batch first."""
    count = 2 if direction == "bidirectional" else 1
    if w.shape[0] != count:
        raise EngineError(f"expected weights for {count} direction(s) ({direction}), got {w.shape}")
    hidden = hidden_size or r.shape[-1]
    if layout:
        x = jnp.swapaxes(x, 0, 1)
        initial = [s if s is None else jnp.swapaxes(s, 0, 1) for s in initial]
    functions = _activations(activations, tuple(defaults), count, activation_alpha, activation_beta)
    zeros = jnp.zeros((x.shape[1], hidden), x.dtype)
    biases = jnp.zeros((count, 2 * gates * hidden), x.dtype) if b is None else jnp.asarray(b)
    outputs, finals = [], []
    for i in range(count):
        wb, rb = jnp.split(biases[i], 2)
        d = _Direction(w[i], r[i], wb, rb, functions[i], None if peephole is None else peephole[i], clip)
        start = tuple(zeros if s is None else jnp.asarray(s[i]) for s in initial[:states])
        last, ys = _scan(cell, d, start, x, lengths, direction == "reverse" or i == 1)
        outputs.append(ys)
        finals.append(last)
    y = jnp.stack(outputs, axis=1)
    ends = [jnp.stack([f[s] for f in finals]) for s in range(states)]
    if layout:
        return jnp.transpose(y, (2, 0, 1, 3)), *(jnp.swapaxes(e, 0, 1) for e in ends)
    return y, *ends


def _rnn_cell(d: _Direction, state: Any, x: Tensor) -> Any:
    (h,) = state
    return (d.functions[0](d.bound(x + jnp.matmul(h, d.r.T) + d.rb)),)


def _gru_cell(linear_before_reset: bool) -> Cell:
    def cell(d: _Direction, state: Any, x: Tensor) -> Any:
        (h,) = state
        f, g = d.functions
        n = h.shape[-1]
        gates = f(d.bound(x[:, : 2 * n] + jnp.matmul(h, d.r[: 2 * n].T) + d.rb[: 2 * n]))
        z, reset = gates[:, :n], gates[:, n:]
        if linear_before_reset:
            candidate = x[:, 2 * n :] + reset * (jnp.matmul(h, d.r[2 * n :].T) + d.rb[2 * n :])
        else:
            candidate = x[:, 2 * n :] + jnp.matmul(reset * h, d.r[2 * n :].T) + d.rb[2 * n :]
        return ((1 - z) * g(d.bound(candidate)) + z * h,)

    return cell


def _lstm_cell(input_forget: bool) -> Cell:
    def cell(d: _Direction, state: Any, x: Tensor) -> Any:
        h, c = state
        f, g, out = d.functions
        pi, po, pf = (0.0, 0.0, 0.0) if d.peephole is None else jnp.split(d.peephole, 3)
        i, o, forget, new = jnp.split(x + jnp.matmul(h, d.r.T) + d.rb, 4, axis=-1)
        i = f(d.bound(i + pi * c))
        forget = 1 - i if input_forget else f(d.bound(forget + pf * c))
        after = forget * c + i * g(d.bound(new))
        return f(d.bound(o + po * after)) * out(after), after

    return cell


@lowering("RNN")
def rnn(
    x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None, *, activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None, activations: Sequence[str] | None = None,
    clip: float | None = None, direction: str = "forward", hidden_size: int | None = None, layout: int = 0,
) -> tuple[Tensor, ...]:  # fmt: skip
    return _recurrent(
        _rnn_cell, 1, 1, ("Tanh",), x, w, r, b, sequence_lens, [initial_h], None, activation_alpha=activation_alpha,
        activation_beta=activation_beta, activations=activations, clip=clip, direction=direction,
        hidden_size=hidden_size, layout=layout,
    )  # fmt: skip


@lowering("GRU")
def gru(
    x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None, *, activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None, activations: Sequence[str] | None = None,
    clip: float | None = None, direction: str = "forward", hidden_size: int | None = None, layout: int = 0,
    linear_before_reset: int = 0,
) -> tuple[Tensor, ...]:  # fmt: skip
    return _recurrent(
        _gru_cell(bool(linear_before_reset)), 3, 1, ("Sigmoid", "Tanh"), x, w, r, b, sequence_lens, [initial_h], None,
        activation_alpha=activation_alpha, activation_beta=activation_beta, activations=activations, clip=clip,
        direction=direction, hidden_size=hidden_size, layout=layout,
    )  # fmt: skip


@lowering("LSTM")
def lstm(
    x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None, initial_c: Tensor | None = None, p: Tensor | None = None,
    *, activation_alpha: Sequence[float] | None = None, activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None, clip: float | None = None, direction: str = "forward",
    hidden_size: int | None = None, input_forget: int = 0, layout: int = 0,
) -> tuple[Tensor, ...]:  # fmt: skip
    return _recurrent(
        _lstm_cell(bool(input_forget)), 4, 2, ("Sigmoid", "Tanh", "Tanh"), x, w, r, b, sequence_lens,
        [initial_h, initial_c], p, activation_alpha=activation_alpha, activation_beta=activation_beta,
        activations=activations, clip=clip, direction=direction, hidden_size=hidden_size, layout=layout,
    )  # fmt: skip
