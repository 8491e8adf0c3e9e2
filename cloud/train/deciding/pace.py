"""A factor of every update that the host sets between steps. It is part of the optimiser's state, and so of
checkpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cloud.train.stepping.step import TrainState

__all__ = ["Paced", "at_pace", "paced"]


class Paced(NamedTuple):
    """The optimiser's own state, and the factor, () float32."""

    inner: Any
    pace: Any


def paced(optimizer: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """`optimizer`, whose updates are multiplied by the factor; 1 at first."""
    whole = optax.with_extra_args_support(optimizer)

    def init(params: Any) -> Paced:
        return Paced(whole.init(params), jnp.ones((), jnp.float32))

    def update(updates: Any, state: Any, params: Any = None, **more: Any) -> tuple[Any, Paced]:
        updates, inner = whole.update(updates, state.inner, params, **more)
        return jax.tree.map(lambda u: (u * state.pace).astype(u.dtype), updates), Paced(inner, state.pace)

    return optax.GradientTransformationExtraArgs(init, update)


def at_pace(state: TrainState, pace: float) -> TrainState:
    """`state`, of a `paced` optimiser, with another factor; it stays on the same devices."""
    before = state.slots.pace
    value = np.asarray(pace, np.float32)
    now = jax.device_put(value, before.sharding) if getattr(before, "committed", False) else jnp.asarray(value)
    return replace(state, slots=state.slots._replace(pace=now))
