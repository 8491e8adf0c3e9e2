"""The Square attack: random search with patches, by scores alone.

Andriushchenko, Croce, Flammarion and Hein, "Square Attack: a query-efficient black-box adversarial attack via random
search", ECCV 2020, arXiv 1912.00049. Inputs (channels, height, width) have squares; others count as one row of values,
where a patch is an interval.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cloud.audit.attacks.balls import along, keys_of, length
from cloud.audit.attacks.losses import Loss, LossName, loss_of
from cloud.audit.attacks.results import Array, Attacked, Found, Norm, Task
from cloud.audit.victim import Forward, Victim, WhiteBox
from cloud.errors import AuditError

__all__ = ["square"]

_HALVINGS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""Of 10,000 steps: where the patch's share of the input is halved (the paper's section 5.1)."""


def square(
    victim: Victim, x: Array, labels: Array, *, epsilon: float, norm: Norm = "Linf", steps: int = 1000,
    share: float = 0.0, targeted: bool = False, clip: tuple[float, float] = (0.0, 1.0), loss: LossName = "margin",
    restarts: int = 1, seed: int = 0, batch: int = 256,
) -> Attacked:  # fmt: skip
    """Random patches, kept where the loss grows; works on every victim, with equal proposals on all.

    x: (rows, ...) float32 within `clip`. labels: (rows,) true classes or, if targeted, those wanted. share: of the
    input that the first patch covers, 0 for the paper's (0.05 in Linf, 0.1 in L2). A victim with a JAX function is
    searched inside one compiled loop. Raises AuditError for settings that do not fit.
    """
    task = Task.of(victim, x, labels, targeted=targeted, clip=clip, norm=norm, epsilon=epsilon)
    if steps < 1 or not 0 <= share <= 1:
        raise AuditError(f"expected at least 1 step and a share from 0 to 1, got {steps} and {share}")
    rates = _rates(steps, share or (0.05 if norm == "Linf" else 0.1))
    fixed: dict[str, Any] = {"norm": norm, "targeted": targeted, "loss": loss_of(loss, targeted, victim.classes)}

    def attack(x: Array, rows: Array, restart: int) -> Found:
        given = (_image(x), task.labels[rows], rows, seed, restart, rates, task.epsilon, task.low, task.high)
        if isinstance(victim, WhiteBox):
            run = victim.compiled(_inside, shape=victim.shape, **fixed)
            found, cost = task.counted(*run(*given))
        else:
            found, cost = map(np.asarray, _outside(victim, *given, **fixed))
        return found.reshape(x.shape), cost.astype(np.int64)

    return task.search(attack, restarts, batch)


def _rates(steps: int, first: float) -> Array:
    """(steps,) float32: the share of the input that the patch of each step covers."""
    at = np.arange(steps) / steps * 10_000
    halvings = (at[:, None] > np.array(_HALVINGS)).sum(1)
    return np.asarray(first * 0.5**halvings, np.float32)


def _image(x: Array) -> Array:
    return x if x.ndim == 4 else x.reshape(len(x), 1, 1, -1)


def _inside(
    forward: Forward, x: Any, labels: Any, rows: Any, seed: Any, restart: Any, rates: Any, epsilon: Any, low: Any,
    high: Any, *, shape: tuple[int, ...], norm: str, targeted: bool, loss: Loss,
) -> tuple[Any, Any]:  # fmt: skip
    """The whole search as one program."""
    keys = keys_of(seed, restart, rows)
    judge = partial(_judged, labels=labels, targeted=targeted, loss=loss)

    def body(s: tuple[Any, Any]) -> tuple[Any, Any]:
        i, state = s
        tried = _PROPOSALS[norm](keys, i, x, state[0], rates[i], epsilon, low, high)
        return i + 1, judge(state, tried, forward(tried.reshape(-1, *shape)))

    start = _STARTS[norm](keys, x, epsilon, low, high)
    state = judge(_nothing(start), start, forward(start.reshape(-1, *shape)))
    _, end = jax.lax.while_loop(lambda s: (s[0] < rates.shape[0]) & ~s[1][2].all(), body, (0, state))
    return end[0], end[3]


def _outside(
    victim: Victim, x: Any, labels: Any, rows: Any, seed: Any, restart: Any, rates: Any, epsilon: Any, low: Any,
    high: Any, *, norm: str, targeted: bool, loss: Loss,
) -> tuple[Any, Any]:  # fmt: skip
    """The same search around a model that JAX does not run."""
    keys = keys_of(seed, restart, rows)
    judge = partial(_compiled_judge(targeted, loss), labels=labels)

    def ask(tried: Any) -> Array:
        return victim.logits(np.asarray(tried).reshape(-1, *victim.shape))

    start = _STARTS[norm](keys, x, epsilon, low, high)
    state = judge(_nothing(start), start, ask(start))
    propose = _compiled_proposal(norm)
    for i, rate in enumerate(rates):
        if np.asarray(state[2]).all():
            break
        tried = propose(keys, i, x, state[0], rate, epsilon, low, high)
        state = judge(state, tried, ask(tried))
    return state[0], state[3]


def _nothing(start: Any) -> tuple[Any, Any, Any, Any]:
    """Best inputs, their losses, which have succeeded, rows asked for: before the first question."""
    none = jnp.zeros(start.shape[0], jnp.int32)
    return start, jnp.full(start.shape[0], -jnp.inf, start.dtype), none > 0, none


def _judged(state: Any, tried: Any, scores: Any, *, labels: Any, targeted: bool, loss: Loss) -> Any:
    best, value, done, cost = state
    new, won = loss(scores, labels), (scores.argmax(1) == labels) == targeted
    better = ~done & ((new > value) | won)
    return (
        jnp.where(along(better, best), tried, best), jnp.where(better, new, value), done | won, cost + ~done,
    )  # fmt: skip


def _compiled_judge(targeted: bool, loss: Loss) -> Callable[..., Any]:
    return _once((targeted, loss), partial(_judged, targeted=targeted, loss=loss))


def _compiled_proposal(norm: str) -> Callable[..., Any]:
    return _once(norm, _PROPOSALS[norm])


_KEPT: dict[Any, Callable[..., Any]] = {}


def _once(key: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled function, one for each key in the process: at most one a norm and one a loss."""
    if key not in _KEPT:
        _KEPT[key] = jax.jit(function)
    return _KEPT[key]


def _stripes(keys: Any, x: Any, epsilon: Any, low: Any, high: Any) -> Any:
    """Linf's start: vertical stripes one value wide."""
    signs = jax.vmap(lambda key: jax.random.rademacher(key, (x.shape[1], 1, x.shape[3]), x.dtype))(keys)
    return jnp.clip(x + epsilon * signs, low, high)


def _patch(keys: Any, i: Any, x: Any, best: Any, rate: Any, epsilon: Any, low: Any, high: Any) -> Any:
    """Linf's step: a square where each channel moves by epsilon up or down."""
    high_, wide = _sides(x, rate, 1, False)

    def one(key: Any) -> tuple[Any, Any]:
        where, sign = jax.random.split(jax.random.fold_in(key, i))
        return _window(where, x.shape[2:], high_, wide)[0], jax.random.rademacher(sign, (x.shape[1], 1, 1), x.dtype)

    inside, signs = jax.vmap(one)(keys)
    moved = jnp.clip(x + epsilon * signs, low, high)
    return jnp.where(inside[:, None], moved, best)


def _sides(x: Any, rate: Any, least: int, odd: bool) -> tuple[Any, Any]:
    """Height and width of a patch that covers the share `rate`."""
    height, width = x.shape[2:]
    whole = rate * width if height == 1 else jnp.sqrt(rate * height * width)
    side = jnp.maximum(jnp.round(whole).astype(jnp.int32), least)
    side = side + (1 - side % 2 if odd else 0)
    return jnp.minimum(side, height), jnp.minimum(side, width)


def _window(key: Any, sizes: Any, tall: Any, wide: Any) -> tuple[Any, Any, Any]:
    """Which places a patch drawn anywhere covers (height, width), and its first row and column."""
    one, two = jax.random.split(key)
    top = jax.random.randint(one, (), 0, sizes[0] - tall + 1)
    left = jax.random.randint(two, (), 0, sizes[1] - wide + 1)
    r, c = jnp.arange(sizes[0])[:, None], jnp.arange(sizes[1])[None]
    return (r >= top) & (r < top + tall) & (c >= left) & (c < left + wide), top, left


def _bump(shape: Any, top: Any, left: Any, tall: Any, wide: Any) -> Any:
    """A pyramid of rectangles around the patch's middle (the paper's eta): (height, width), 0 outside the patch."""
    height, width = shape
    r, c = jnp.arange(height)[:, None] - top, jnp.arange(width)[None] - left
    ring = jnp.maximum(jnp.abs(r - tall // 2), jnp.abs(c - wide // 2))
    terms = 1.0 / jnp.arange(1, max(height, width) + 2) ** 2
    rings = jnp.maximum(tall // 2, wide // 2) + 1
    sums = jnp.cumsum(jnp.where(jnp.arange(terms.size) < rings, terms, 0.0))
    value = sums[-1] - jnp.where(ring > 0, sums[jnp.clip(ring - 1, 0, terms.size - 1)], 0.0)
    return jnp.where((r >= 0) & (r < tall) & (c >= 0) & (c < wide), value, 0.0)


def _two_bumps(key: Any, shape: Any, top: Any, left: Any, tall: Any, wide: Any) -> Any:
    """Two halves of opposite sign, side by side or one above the other."""
    half_w, half_h = wide // 2, tall // 2
    beside = _bump(shape, top, left, tall, half_w) - _bump(shape, top, left + half_w, tall, wide - half_w)
    if shape[0] == 1:
        return beside
    above = _bump(shape, top, left, half_h, wide) - _bump(shape, top + half_h, left, tall - half_h, wide)
    return jnp.where(jax.random.bernoulli(key), beside, above)


def _norm(x: Any) -> Any:
    """Of each channel: (channels, 1, 1)."""
    return jnp.sqrt((x**2).sum((-2, -1), keepdims=True))


def _tiles(keys: Any, x: Any, epsilon: Any, low: Any, high: Any) -> Any:
    """L2's start: a grid of bumps with random signs, five a side."""
    height, width = x.shape[2:]
    tall, wide = max(1, height // 5), max(1, width // 5)

    tops, lefts = (jnp.array(part).ravel() for part in np.mgrid[0:height:tall, 0:width:wide])

    def one(key: Any) -> Any:
        def add(n: Any, total: Any) -> Any:
            own, sign = jax.random.split(jax.random.fold_in(key, n))
            signs = jax.random.rademacher(sign, (x.shape[1], 1, 1), x.dtype)
            return total + signs * _two_bumps(own, (height, width), tops[n], lefts[n], tall, wide)

        return jax.lax.fori_loop(0, tops.size, add, jnp.zeros(x.shape[1:], x.dtype))

    delta = jax.vmap(one)(keys)
    return jnp.clip(x + epsilon * delta / length(delta), low, high)


def _moved_mass(keys: Any, i: Any, x: Any, best: Any, rate: Any, epsilon: Any, low: Any, high: Any) -> Any:
    """L2's step: the change inside one patch is taken away and its length given to new bumps in another."""
    sizes = x.shape[2:]
    tall, wide = _sides(x, rate, 3, True)

    def one(key: Any, x: Any, best: Any) -> Any:
        here, there, own, sign = jax.random.split(jax.random.fold_in(key, i), 4)
        delta = best - x
        first, top, left = _window(here, sizes, tall, wide)
        second, _, _ = _window(there, sizes, tall, wide)
        spare = jnp.maximum(epsilon**2 - (delta**2).sum(), 0.0) / x.shape[0]
        budget = jnp.sqrt(spare + _norm(delta * (first | second)) ** 2)
        bumps = _two_bumps(own, sizes, top, left, tall, wide)
        bumps = bumps / jnp.maximum(_norm(bumps), 1e-10)
        old = delta * first
        fresh = jax.random.rademacher(sign, (x.shape[0], 1, 1), x.dtype) * bumps + old / (1e-10 + _norm(old))
        fresh = fresh / jnp.maximum(_norm(fresh), 1e-10) * budget
        return jnp.where(first, fresh, jnp.where(second, 0.0, delta))

    delta = jax.vmap(one)(keys, x, best)
    return jnp.clip(x + epsilon * delta / length(delta), low, high)


_STARTS: dict[str, Callable[..., Any]] = {"Linf": _stripes, "L2": _tiles}
_PROPOSALS: dict[str, Callable[..., Any]] = {"Linf": _patch, "L2": _moved_mass}
