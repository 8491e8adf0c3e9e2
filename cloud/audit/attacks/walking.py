"""The loop of iterative attacks: rows that have ended are set aside, so that later steps compute fewer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cloud.audit.attacks.results import Array, Found, fitting

__all__ = ["State", "walk"]

State = dict[str, Array]
"""Arrays by name, all with rows first: "found" and "cost", which are the result, "done" (bool), and an attack's own."""

_WORTH = 0.8
"""A batch is made smaller if that leaves at most this share of it."""


def walk(state: State, steps: int, step: Callable[[int, State], None], any_size: bool) -> Found:
    """Run `step(i, state)`, which changes `state`, until all rows are done; inputs found and rows asked for.

    any_size: whether the model takes batches of other sizes without cost.
    """
    whole = {key: state[key].copy() for key in ("found", "cost")}
    state["at"] = np.arange(len(state["done"]))
    for i in range(steps):
        if state["done"].all():
            break
        if any_size:
            state = _smaller(state, whole)
        step(i, state)
    _keep(state, whole)
    return whole["found"], whole["cost"]


def _keep(state: State, whole: State) -> None:
    for key, array in whole.items():
        array[state["at"]] = state[key]


def _smaller(state: State, whole: State) -> State:
    """The state of the rows that are not done, filled up with others to one of few sizes."""
    live = np.flatnonzero(~state["done"])
    size = fitting(len(live))
    if size > _WORTH * len(state["done"]):
        return state
    _keep(state, whole)
    rows = np.concatenate([live, np.flatnonzero(state["done"])[: size - len(live)]])
    return {key: array[rows] for key, array in state.items()}
