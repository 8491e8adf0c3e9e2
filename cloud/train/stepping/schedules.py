"""Learning rates over a run, by name: how they rise (`WARMUPS`) and what follows (`SCHEDULES`).

Sources: cosine with restarts, Loshchilov and Hutter, "SGDR", ICLR 2017; one cycle, Smith and Topin,
"Super-Convergence", 2018; inverse square root, Vaswani et al., "Attention Is All You Need", 2017.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax

from cloud.errors import TrainError
from cloud.train.stepping.optimizers import cosine_schedule

__all__ = ["SCHEDULES", "WARMUPS", "Shape", "schedule"]

Curve = Callable[[Any], Any]


@dataclass(frozen=True)
class Shape:
    """What schedules may be told; each takes the fields that its row in `SCHEDULES` names. `end`: the last rate;
    `start`: the first; `floor`: where the warm-up begins; all as shares of the highest rate. `power`: of the
    polynomial. `at`: shares of the steps after the warm-up at which the rate is multiplied by `factor`. `cycles`: how
    often the cosine falls, each time `stretch` times as long. `rise`: the share of the steps in which the rate of one
    cycle rises."""

    end: float = 0.0
    power: float = 2.0
    factor: float = 0.1
    at: Sequence[float] = (0.5, 0.75)
    cycles: int = 4
    stretch: float = 1.0
    rise: float = 0.3
    start: float = 0.04
    floor: float = 0.0

    def __post_init__(self) -> None:
        for name in ("end", "start", "floor"):
            _need(0 <= getattr(self, name) <= 1, name, "a share from 0 to 1", getattr(self, name))
        _need(0 < self.rise < 1, "rise", "a share between 0 and 1", self.rise)
        _need(0 < self.power <= 100, "power", "a number above 0, at most 100", self.power)
        _need(0 < self.factor <= 1, "factor", "a number above 0, at most 1", self.factor)
        _need(1 <= self.cycles <= 1000, "cycles", "a number from 1 to 1,000", self.cycles)
        _need(1 <= self.stretch <= 100, "stretch", "a number from 1 to 100", self.stretch)
        rising = all(a < b for a, b in zip(self.at, self.at[1:], strict=False))
        _need(all(0 < at < 1 for at in self.at) and rising, "at", "rising shares between 0 and 1", list(self.at))


class _Span(NamedTuple):
    """Steps after the warm-up, at least 1, and those of the warm-up."""

    steps: int
    warmup: int


class _Kind(NamedTuple):
    """A schedule from its highest rate over a span, and the fields of `Shape` that it takes."""

    make: Callable[[float, _Span, Shape], Curve]
    takes: tuple[str, ...] = ()


def _steps(peak: float, span: _Span, shape: Shape) -> Curve:
    borders = jnp.asarray([at * span.steps for at in shape.at], jnp.float32)
    return lambda count: peak * shape.factor ** jnp.sum(jnp.asarray(count, jnp.float32) >= borders)


def _restarts(peak: float, span: _Span, shape: Shape) -> Curve:
    parts = [shape.stretch**i for i in range(shape.cycles)]
    ends = [sum(parts[: i + 1]) / sum(parts) * span.steps for i in range(shape.cycles)]
    begins = jnp.asarray([0.0, *ends[:-1]], jnp.float32)
    lengths = jnp.asarray([part / sum(parts) * span.steps for part in parts], jnp.float32)

    def rate(count: Any) -> Any:
        count = jnp.asarray(count, jnp.float32)
        cycle = jnp.sum(count >= begins) - 1
        done = jnp.clip((count - begins[cycle]) / lengths[cycle], 0, 1)
        return peak * (shape.end + (1 - shape.end) * 0.5 * (1 + jnp.cos(jnp.pi * done)))

    return rate


def _one_cycle(peak: float, span: _Span, shape: Shape) -> Curve:
    steps, top = span.steps, shape.rise * span.steps

    def rate(count: Any) -> Any:
        count = jnp.asarray(count, jnp.float32)
        up, down = jnp.clip(count / top, 0, 1), jnp.clip((count - top) / (steps - top), 0, 1)
        rising = shape.start + (1 - shape.start) * 0.5 * (1 - jnp.cos(jnp.pi * up))
        falling = shape.end + (1 - shape.end) * 0.5 * (1 + jnp.cos(jnp.pi * down))
        return peak * jnp.where(count < top, rising, falling)

    return rate


def _exponential(peak: float, span: _Span, shape: Shape) -> Curve:
    _need(shape.end > 0, "end", "a share above 0 for an exponential", shape.end)
    return lambda count: peak * shape.end ** jnp.clip(jnp.asarray(count, jnp.float32) / span.steps, 0, 1)


def _inverse_sqrt(peak: float, span: _Span, _: Shape) -> Curve:
    return lambda count: peak / jnp.sqrt(1.0 + jnp.asarray(count, jnp.float32) / max(span.warmup, 1))


SCHEDULES: Mapping[str, _Kind] = MappingProxyType(
    {
        "constant": _Kind(lambda peak, span, _: optax.schedules.constant_schedule(peak)),
        "linear": _Kind(lambda peak, n, s: optax.schedules.linear_schedule(peak, peak * s.end, n.steps), ("end",)),
        "cosine": _Kind(lambda peak, n, s: cosine_schedule(peak, n.steps, end=peak * s.end), ("end",)),
        "polynomial": _Kind(
            lambda peak, n, s: optax.schedules.polynomial_schedule(peak, peak * s.end, s.power, n.steps),
            ("end", "power"),
        ),
        "exponential": _Kind(_exponential, ("end",)),
        "step": _Kind(_steps, ("factor", "at")),
        "cosine_restarts": _Kind(_restarts, ("end", "cycles", "stretch")),
        "one_cycle": _Kind(_one_cycle, ("rise", "start", "end")),
        "inverse_sqrt": _Kind(_inverse_sqrt),
    }
)
"""One row per schedule."""

WARMUPS: Mapping[str, Curve] = MappingProxyType(
    {
        "linear": lambda share: share,
        "cosine": lambda share: 0.5 * (1 - jnp.cos(jnp.pi * share)),
        "quadratic": lambda share: share * share,
    }
)
"""How the rate rises: the share of the warm-up that is done -> the share of the highest rate."""


def schedule(
    kind: str, peak: float, steps: int, *, warmup: int = 0, rises: str = "linear", shape: Shape | None = None
) -> Curve:
    """Steps done -> learning rate, for any optax optimiser. It rises to `peak` in `warmup` of the `steps` (as `WARMUPS`
    says) and goes on as the row of `SCHEDULES` says; "inverse_sqrt" falls by the square root of the steps since, in
    units of the warm-up. Raises TrainError for an unknown name, and for a warm-up of "one_cycle", which has its own.
    """
    shape = shape or Shape()
    _need(kind in SCHEDULES, "the schedule", f"one of {', '.join(SCHEDULES)}", kind)
    _need(rises in WARMUPS, "the warm-up", f"one of {', '.join(WARMUPS)}", rises)
    _need(not (warmup and kind == "one_cycle"), "the warm-up", 'none with "one_cycle", which rises itself', warmup)
    _need(math.isfinite(peak) and peak >= 0, "the rate", "a number of at least 0", peak)
    rest = SCHEDULES[kind].make(peak, _Span(max(steps - warmup, 1), warmup), shape)
    if not warmup:
        return rest

    def rise(count: Any) -> Any:
        return peak * (shape.floor + (1 - shape.floor) * WARMUPS[rises](count / warmup))

    joined: Curve = optax.schedules.join_schedules([rise, rest], [warmup])
    return joined


def _need(truth: bool, key: str, what: str, got: object) -> None:
    if not truth:
        raise TrainError(f"expected {what} for {key}, got {got!r}")
