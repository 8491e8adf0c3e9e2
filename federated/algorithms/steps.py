"""Operations that several algorithms use on a device: descent, adapting, look-ahead, and the payload of the result."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from federated import tree
from federated.learner import Batch, Gradient, Learner, sgd
from federated.tree import Array, Tree

__all__ = ["Descent", "accumulate", "change", "descend", "groups", "joined", "look_ahead", "part", "repeat", "tune"]


class Descent(NamedTuple):
    """The result of descent: the parameters, the mean loss on the way, the names of the statistics among the
    parameters, and the sum of the plain gradients if it was requested (zero for statistics)."""

    params: Tree
    loss: Any
    statistics: tuple[str, ...]
    gradients: Tree


def descend(
    learner: Learner,
    params: Tree,
    batches: Batch,
    rate: Any,
    pull: Callable[[Tree], Tree] | None = None,
    summed: bool = False,
    momentum: Any = 0.0,
) -> Descent:
    """SGD over batches [steps, n, ...]; `rate`: a number, or a tree with a rate for every element. `pull(params)`: a
    tree added to each gradient, the gradient of a penalty. `summed`: sum the gradients without it. `momentum`: v <-
    momentum * v + g, and v in place of g (Polyak 1964), from v = 0."""
    plain = pull is None and not summed and not tree.is_on(momentum)
    whole = getattr(learner, "descend", None) if plain else None
    if whole is not None and (found := whole(params, batches, rate)) is not None:
        return Descent(found[0], found[1], (), {})

    def step(carry: tuple[Tree, Tree, Tree], batch: Batch) -> tuple[tuple[Tree, Tree, Tree], Any]:
        params, gradients, velocity = carry
        gradient = learner.gradient(params, batch)
        gradients = accumulate(gradients, gradient.grads) if summed else gradients
        if pull is not None:
            gradient = gradient._replace(grads=tree.add(gradient.grads, pull(params)))
        gradient, velocity = _heavy(gradient, velocity, momentum)
        carry = sgd(params, gradient, rate), gradients, velocity
        return carry, {"loss": gradient.loss, "statistics": gradient.statistics}

    nothing = tree.zeros(params) if summed or tree.is_on(momentum) else {}
    start: tuple[Tree, Tree, Tree] = params, nothing if summed else {}, nothing if tree.is_on(momentum) else {}
    (params, gradients, _), seen = learner.scan(step, start, batches)
    return Descent(params, seen["loss"].mean(), tuple(seen["statistics"]), gradients)


def tune(
    learner: Learner, params: Tree, batches: Batch, rate: float, moving: Collection[str], statistics: bool = True,
    momentum: Any = 0.0,
) -> tuple[Tree, Any]:  # fmt: skip
    """SGD over batches [steps, n, ...] of the parameters of these names: returns all parameters and the mean loss.
    Statistics are updated unless `statistics` is False. `momentum`: as for `descend`."""

    def step(carry: tuple[Tree, Tree], batch: Batch) -> tuple[tuple[Tree, Tree], Any]:
        params, velocity = carry
        gradient = learner.gradient(params, batch)
        kept = gradient.statistics if statistics else {}
        moved = gradient._replace(grads=tree.take(gradient.grads, moving), statistics=kept)
        moved, velocity = _heavy(moved, velocity, momentum)
        return (sgd(params, moved, rate), velocity), gradient.loss

    start: tuple[Tree, Tree] = params, tree.zeros(tree.take(params, moving)) if tree.is_on(momentum) else {}
    (params, _), losses = learner.scan(step, start, batches)
    return params, losses.mean()


def _heavy(gradient: Gradient, velocity: Tree, momentum: Any) -> tuple[Gradient, Tree]:
    """The gradient with the velocity in its place, and the next velocity; without momentum both as they are."""
    if not tree.is_on(momentum):
        return gradient, velocity
    grads = tree.add(gradient.grads, tree.take(velocity, gradient.grads), momentum)
    return gradient._replace(grads=grads), tree.merge(velocity, grads)


def look_ahead(learner: Learner, params: Tree, rates: Tree, support: Batch, query: Batch) -> tuple[Gradient, Tree]:
    """`Learner.meta_gradient` to first order: second derivatives are assumed to be zero (Finn et al. 2017, section
    5.2).

    What remains is the query's gradient at the point reached on the support, and for the rates minus its product with
    the sum of the gradients on the way, which is exact for one step.
    """
    there = descend(learner, params, support, rates, summed=True)
    gradient = learner.gradient(there.params, query)
    return gradient, tree.map_leaves(lambda g, s: -(g * s), gradient.grads, there.gradients)


def accumulate(whole: Tree, some: Tree) -> dict[str, Any]:
    """`whole` plus those entries of `some` that exist in it."""
    fitting = tree.take(some, whole)
    return tree.merge(whole, tree.add(tree.take(whole, fitting), fitting))


def change(before: Tree, after: Tree, statistics: tuple[str, ...] = ()) -> dict[str, Any]:
    """A payload: the change of parameters, and separately the change of statistics, if any."""
    moved = tree.sub(after, before)
    kept = tree.take(moved, statistics)
    trained = {name: leaf for name, leaf in moved.items() if name not in kept}
    return {"params": trained, **({"statistics": kept} if kept else {})}


def groups(batches: Batch, count: int) -> Batch:
    """Batches [steps * count, n, ...] as [steps, count, n, ...]: `count` is what one step of a meta-learner takes."""
    return _each(batches, lambda array: array.reshape(array.shape[0] // count, count, *array.shape[1:]))


def joined(batches: Batch) -> Batch:
    """Batches [steps, n, ...] as one [steps * n, ...]."""
    return _each(batches, lambda array: array.reshape(-1, *array.shape[2:]))


def part(batches: Batch, which: int | slice) -> Batch:
    """One batch of a sequence, or some of them."""
    return _each(batches, lambda array: array[which])


def repeat(batch: Batch, times: int) -> Batch:
    """A batch [n, ...] as a sequence [times, n, ...] of itself."""
    return _each(batch, lambda array: array[None].repeat(times, axis=0))


def _each(batch: Batch, function: Callable[[Array], Array]) -> Batch:
    return Batch({name: function(array) for name, array in batch.inputs.items()}, function(batch.labels))
