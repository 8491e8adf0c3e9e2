"""A fleet's computation as pure functions of arrays, which the simulator compiles.

Devices come as arrays [groups, group, ...]: a `lax.scan` over groups, `vmap` over the devices of one group, groups
split over JAX's devices. Payloads are summed one group at a time, so memory depends on the group, not on the fleet.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from cloud._jax import shared_out, sums_of_all
from cloud.federated.learner import JaxLearner
from federated import tree
from federated.algorithms.base import Algorithm
from federated.learner import Batch, Evaluation
from federated.tree import Tree

__all__ = ["Adapting", "Training", "adapt", "apart", "train", "with_hyperparameters"]


class Training(NamedTuple):
    """What devices do in a round, leaves [groups, group, ...]: their numbers in the fleet, whether they took part
    before, rows of the pool [..., steps, n], weights (0: a placeholder that fills a group)."""

    numbers: Any
    known: Any
    rows: Any
    weights: Any


class Adapting(NamedTuple):
    """Devices to evaluate, leaves [groups, group, ...]: numbers, known, rows to adapt on [..., steps, n], rows to test
    on [..., queries] and which of those count."""

    numbers: Any
    known: Any
    rows: Any
    queries: Any
    mask: Any


def apart(algorithm: Algorithm) -> tuple[Algorithm, dict[str, float]]:
    """The kind of algorithm, with its float fields zero, and those fields: arguments of the compiled function, so that
    trying another learning rate needs no compilation. Switches that are off stay in the kind."""
    values = {field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)}
    numbers = {
        name: value
        for name, value in values.items()
        if isinstance(value, float) and (value or name not in algorithm.switches)
    }
    return with_hyperparameters(algorithm, dict.fromkeys(numbers, 0.0)), numbers


def with_hyperparameters(algorithm: Algorithm, values: Mapping[str, Any]) -> Algorithm:
    """The algorithm with these fields, which may be traced and are not checked again."""
    changed = copy.copy(algorithm)
    for name, value in values.items():
        object.__setattr__(changed, name, value)
    return changed


def train(
    algorithm: Algorithm, learner: JaxLearner, mesh: Mesh, pool: Batch, state: Tree, personal: Tree, asked: Training,
    fraction: Any,
) -> tuple[Tree, Tree, Any]:  # fmt: skip
    """A round: the next state, the personal state of all devices [fleet, ...], mean training losses [groups, group]."""
    broadcast = algorithm.broadcast(state)

    def device(common: Any, one: Training) -> tuple[Any, Any]:
        pool, broadcast, personal = common
        own = _personal(algorithm, broadcast, personal, one.numbers, one.known)
        update, own = algorithm.local(algorithm.shaped(learner.over(pool)), broadcast, own, _numbers(pool, one.rows))
        weight = one.weights * update.weight
        return (tree.scale(update.payload, weight), weight), (own, update.loss)

    (payload, weight), (own, losses) = _over_fleet(mesh, device, (pool, broadcast, personal), asked)
    state = algorithm.apply(state, tree.scale(payload, 1 / weight), fraction)
    numbers = asked.numbers.reshape(-1)
    personal = jax.tree.map(
        lambda all, new: all.at[numbers].set(new.reshape(-1, *all.shape[1:]), mode="drop"), personal, own
    )
    return state, personal, losses


def adapt(
    algorithm: Algorithm, learner: JaxLearner, mesh: Mesh, pool: Batch, state: Tree, personal: Tree, asked: Adapting
) -> tuple[Evaluation, Evaluation]:
    """The evaluation of every device before and after adapting; leaves [groups, group]."""
    broadcast = algorithm.broadcast(state)

    def device(common: Any, one: Adapting) -> tuple[Any, Any]:
        pool, broadcast, personal = common
        own = _personal(algorithm, broadcast, personal, one.numbers, one.known)
        reader, queries = learner.over(pool), _numbers(pool, one.queries)
        adapted = algorithm.personalise(algorithm.shaped(reader), broadcast, own, _numbers(pool, one.rows))
        before = reader.measure(algorithm.start(broadcast, own), queries, one.mask)
        return (), (before, reader.measure(adapted, queries, one.mask))

    found: tuple[Evaluation, Evaluation] = _over_fleet(mesh, device, (pool, broadcast, personal), asked)[1]
    return found


def _over_fleet(mesh: Mesh, device: Callable[[Any, Any], tuple[Any, Any]], common: Any, asked: Any) -> tuple[Any, Any]:
    """The sum of the first results of `device(common, one)` over all devices, the second ones stacked like `asked`."""

    def share(common: Any, asked: Any) -> tuple[Any, Any]:
        def group(sums: Any, asked: Any) -> tuple[Any, Any]:
            terms, results = jax.vmap(device, (None, 0))(common, asked)
            return jax.tree.map(lambda sum, term: sum + term.sum(0), sums, terms), results

        first = jax.tree.map(lambda leaf: leaf[0, 0], asked)
        terms = jax.eval_shape(device, common, first)[0]
        sums, results = jax.lax.scan(group, jax.tree.map(lambda term: jnp.zeros(term.shape, term.dtype), terms), asked)
        return sums_of_all(sums, mesh), results

    result: tuple[Any, Any] = shared_out(share, mesh)(common, asked)
    return result


def _personal(algorithm: Algorithm, broadcast: Tree, personal: Tree, number: Any, known: Any) -> Tree:
    """A device's personal state: as it was kept, or the initial one for a new device."""
    fresh = algorithm.enrol(broadcast)
    own: Tree = jax.tree.map(
        lambda all, new: jnp.where(known, all.at[number].get(mode="clip"), new), personal, fresh
    )
    return own


def _numbers(pool: Batch, rows: Any) -> Batch:
    """A batch of example numbers, for `JaxLearner.over`."""
    batch: Batch = jax.tree.map(lambda _: rows, pool)
    return batch
