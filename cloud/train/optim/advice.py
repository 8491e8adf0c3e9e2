"""Whether second order pays: what the rest of a training step costs, and what to tell who asked for it in vain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax

from cloud.train.optim.blocks import Blocks, as_matrix
from cloud.train.optim.budget import EVERY, LEAST, SHARE, adams, cost, work_of
from cloud.train.optim.thor import ThorLayer, ThorState, states_of
from cloud.train.stepping.freeze import merge, parts, which_frozen
from cloud.train.stepping.step import Objective, Recipe, TrainState

__all__ = ["advice", "work_of_gradient"]

Tree = Any


def work_of_gradient(objective: Objective, freeze: Sequence[str], params: Tree, state: Tree, batch: Tree) -> float:
    """FLOPs of the forward and backward pass of a batch, on one device; arguments are shapes or arrays."""
    frozen = which_frozen(params, freeze)

    def gradient(params: Tree, state: Tree, batch: Tree) -> Tree:
        trained, kept = parts(params, frozen)

        def loss(trained: Tree) -> Any:
            return objective.loss_sums(merge(trained, kept), state, batch, jax.random.key(0))[0]["loss"]

        return jax.grad(loss)(trained)

    return work_of(gradient, params, state, batch)


def advice(recipe: Recipe, state: TrainState, batch: Tree) -> str | None:
    """What to change if `thor` is among a recipe's optimisers and does not pay; else None. `state` and `batch`: shapes
    or arrays."""
    found = states_of(state.slots)
    if not found:
        return None
    options = recipe.options
    work = work_of_gradient(recipe.objective, options.freeze, state.params, state.state, batch)
    trained, _ = parts(state.params, which_frozen(state.params, options.freeze))
    return _advice(found, jax.tree.leaves(trained), work, batch["mask"].shape[0])


def _advice(found: Sequence[ThorState], params: Sequence[Any], work: float, rows: int) -> str | None:
    shapes = [p.shape for p in params]
    layers = [layer for state in found for layer in state.layers]
    if len(layers) != len(shapes):  # for parts of the weights only, as with optax.masked
        return None
    rest = work + sum(adams(shape) for shape in shapes)
    spent = sum(_cost(layer) for layer in layers if isinstance(layer, ThorLayer))
    share = spent / (rest + spent)
    if share > 1.1 * SHARE:
        return (
            f"thor: second order takes about {share:.0%} of a step with a batch of {rows}: AdamW is likely to be "
            f"faster. Use thor(rate, work={work:.3g}), which keeps it within {SHARE:.0%}, or batches of about "
            f"{_needed(rows, spent, work)} rows"
        )
    whole = sum(math.prod(shape) for shape in shapes if as_matrix(shape) is not None)
    turned = sum(math.prod(s) for s, layer in zip(shapes, layers, strict=True) if isinstance(layer, ThorLayer))
    if turned >= whole / 2:
        return None
    least = sum(cost(b, (LEAST, LEAST), EVERY) for s in shapes if (b := Blocks.of(s, LEAST, LEAST)) is not None)
    return (
        f"thor: within the share it may take of a step with a batch of {rows}, second order is used for only "
        f"{turned / max(whole, 1):.0%} of the weights' numbers; the rest are trained by Adam, so expect AdamW's "
        f"progress. Batches of about {_needed(rows, least, work)} rows have room for all"
    )


def _needed(rows: int, spent: float, work: float) -> int:
    """The rows of a batch of which `spent` FLOPs are `SHARE`, if `rows` cost `work`: two significant digits."""
    return int(float(f"{rows * spent * (1 - SHARE) / SHARE / max(work, 1.0):.2g}"))


def _cost(layer: ThorLayer) -> float:
    down, height, across, width = layer.momentum.shape
    blocks = Blocks(down * height, across * width, down, height, across, width)
    sides = (height if layer.left is not None else 0, width if layer.right is not None else 0)
    return cost(blocks, sides, EVERY)
