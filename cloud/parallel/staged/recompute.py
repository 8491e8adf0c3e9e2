"""Recomputation, which trades work for memory: forward segments of a loss are computed again for its gradient.

Chen, Xu, Zhang, Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016, with the cuts found in the jaxpr
instead of named by the user: they minimise the bytes kept between segments plus those inside the largest segment.
XLA separates the recomputation by barriers. Its CPU compiler drops these before it orders operators, so it recomputes
early and saves nothing, unless compiled with `CPU_OPTIONS`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from cloud.errors import PlanError
from cloud.parallel.staged.cuts import Line, Segment, best_cuts, line, segments

__all__ = ["CPU_OPTIONS", "SHARES", "recomputed"]

CPU_OPTIONS = {"xla_disable_hlo_passes": "cse_barrier_expander"}
"""For `lowered.compile(CPU_OPTIONS)`: a transformer of eight blocks then falls from 14.5 to 1.9 MB of temporaries."""

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The shares that the planner tries."""

_FINEST = 64
"""The most segments: with more, the bytes kept between them exceed those inside in every model we tried."""


def recomputed(function: Callable[..., Any], share: float) -> Callable[..., Any]:
    """`function` with the same results and gradients, where the first `share` (0 to 1) of the forward segments keep
    only their inputs. Arguments are pytrees of arrays, the parameters first."""
    if not 0 <= share <= 1:
        raise PlanError(f"expected a share of recomputed segments between 0 and 1, got {share}")
    if share == 0:
        return function

    def run(*args: Any) -> Any:
        cut, constants = line(function, *args, rules={"scan": partial(_scan, share)})
        return _run(cut, share, [*constants, *jax.tree.leaves(args)])

    return run


def _run(line: Line, share: float, entering: list[Any]) -> Any:
    parts = segments(line, _cuts(line))
    again = round(share * len(parts))
    env: dict[Any, Any] = {}
    results: dict[int, Any] = {}
    for number, part in enumerate(parts):
        compute = jax.checkpoint(part) if number < again and not _has_scan(part) else part
        made = compute(*(entering[i] for i in part.entering), *(env[v] for v in part.takes))
        env.update(zip(part.gives, made, strict=False))
        results.update(zip(part.results, made[len(part.gives) :], strict=True))
    return jax.tree.unflatten(jax.tree.structure(line.result), [results[j] for j in range(len(results))])


def _has_scan(part: Segment) -> bool:
    return any(eqn.primitive.name == "scan" for eqn in part.jaxpr.eqns)


def _scan(share: float, eqn: Any, values: list[Any]) -> list[Any]:
    """A loop of the user's function, where the first `share` of the trips keep only their inputs."""
    length, backward = eqn.params["length"], eqn.params["reverse"]
    first, last = eqn.params["num_consts"], eqn.params["num_consts"] + eqn.params["num_carry"]
    again = round(share * length)
    carry, xs = values[first:last], values[last:]
    body = partial(_trip, eqn.params["jaxpr"], values[:first])
    made = []
    for compute, trips in ((jax.checkpoint(body), slice(0, again)), (body, slice(again, length))):
        if trips.start < trips.stop:
            place = slice(length - trips.stop, length - trips.start) if backward else trips
            part = [x[place] for x in xs]
            carry, ys = jax.lax.scan(compute, carry, part, trips.stop - trips.start, backward, eqn.params["unroll"])
            made.append(ys)
    made = made[::-1] if backward else made
    return [*carry, *(jnp.concatenate(parts) for parts in zip(*made, strict=True))]


def _trip(body: Any, constants: list[Any], carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
    made = jax.core.eval_jaxpr(body.jaxpr, body.consts, *constants, *carry, *x)
    return made[: len(carry)], made[len(carry) :]


def _cuts(line: Line) -> tuple[int, ...]:
    """The cuts that keep least: all crossing values, plus the inside of the largest segment during its
    recomputation."""
    total = float(line.held.sum())
    sums = np.concatenate([[0.0], np.cumsum(line.held)])

    def kept(cuts: tuple[int, ...]) -> float:
        inside = np.diff(sums[[0, *cuts, len(line.order)]])
        return float(line.crossing[list(cuts)].sum() + inside.max())

    return min((best_cuts(line, line.held, total / n) for n in range(1, _FINEST + 1)), key=kept)
