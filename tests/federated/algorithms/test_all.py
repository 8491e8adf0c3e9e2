"""Properties of every algorithm: inputs are not changed, JAX and NumPy agree, rounds converge."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from federated import tree
from federated.algorithms import ALGORITHMS, Algorithm, algorithm_from
from federated.data import draw
from federated.learner import Batch
from tests.federated.quadratic import Quadratic, batches

FAST = {"server_rate": 0.1}
RATES: dict[str, dict[str, float]] = {
    "fedmomentum": {"server_rate": 0.5},
    "pfedme": {"penalty": 2.0, "outer_rate": 0.2},
    **dict.fromkeys(("fedadam", "fedyogi", "fedadagrad", "fomaml", "maml", "meta_sgd", "meta_sgd_exact"), FAST),
}
EVERY = pytest.mark.parametrize("name", ALGORITHMS)
# Compiling takes a second each; the others are these with other numbers.
OF_A_KIND = (
    *("fedprox", "qfedavg", "scaffold", "fedyogi", "perfedavg_hf", "meta_sgd", "meta_sgd_exact", "pfedme", "ditto"),
    *("fedrep", "apfl", "meta_head"),
)


def made(name: str) -> Algorithm:
    return algorithm_from({"name": name, **RATES.get(name, {})})


def frozen(values: Any) -> Any:
    """The same tree, its arrays read-only."""
    if isinstance(values, Mapping):
        return {key: frozen(value) for key, value in values.items()}
    array = np.array(values)
    array.flags.writeable = False
    return array


def start(algorithm: Algorithm) -> tuple[Any, Any, Any]:
    state = frozen(algorithm.init(frozen(Quadratic().params)))
    broadcast = frozen(algorithm.broadcast(state))
    return state, broadcast, frozen(algorithm.enrol(broadcast))


def frozen_batches(steps: int, seed: int = 0) -> Batch:
    drawn = batches(steps, seed=seed)
    return Batch(frozen(drawn.inputs), frozen(drawn.labels))


def rng(*seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def akin(count: int, seed: int) -> Batch:
    """Examples of a device; one half of their rule is specific to it, the other is common to all."""
    x, y = batches(1, count, seed)
    x = x["x"][0]
    return Batch({"x": x}, (0.5 * y[0] + 0.5 * (x @ np.float32([1.0, 2.0, -1.0]))).astype(np.float32))


def same(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    left, right = dict(tree.leaves(a)), dict(tree.leaves(b))
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_allclose(left[name], right[name], rtol=tolerance, atol=tolerance, err_msg=name)


@EVERY
def test_a_round_changes_nothing_it_is_given_and_keeps_float32(name: str) -> None:
    algorithm, learner = made(name), Quadratic()
    state, broadcast, personal = start(algorithm)
    drawn = frozen_batches(2 * algorithm.batches_a_step)
    update, kept = algorithm.local(learner, broadcast, personal, drawn)
    after = algorithm.apply(state, frozen(update.payload), 0.5)
    adapted = algorithm.personalise(learner, broadcast, frozen(kept), drawn)
    assert {path: leaf.shape for path, leaf in tree.leaves(state)} == {p: leaf.shape for p, leaf in tree.leaves(after)}
    assert list(personal) == list(kept)
    for part in (update.payload, kept, after, adapted, algorithm.start(broadcast, kept), algorithm.model(after)):
        assert {leaf.dtype for _, leaf in tree.leaves(part)} <= {np.dtype(np.float32)}
    assert list(adapted) == list(learner.params) == list(algorithm.start(broadcast, kept))
    assert np.isfinite(update.loss)


@pytest.mark.parametrize("name", OF_A_KIND)
def test_jax_computes_what_numpy_does_whatever_the_hyperparameters(name: str) -> None:
    """Mapped over devices and compiled, numbers of the algorithm being arguments of what is compiled."""
    algorithm = made(name)
    state, broadcast, personal = start(algorithm)
    devices = [batches(2 * algorithm.batches_a_step, seed=seed) for seed in range(3)]

    def work(algorithm: Algorithm, learner: Quadratic, personal: Any, drawn: Batch) -> Any:
        own = algorithm.enrol(broadcast) if personal is None else personal
        update, kept = algorithm.local(learner, broadcast, own, drawn)
        return update, kept, algorithm.personalise(learner, broadcast, kept, drawn)

    def traced(numbers: Any, drawn: Batch) -> Any:
        same = copy(algorithm)
        for field, value in numbers.items():
            object.__setattr__(same, field, value)
        return work(same, Quadratic(jnp, jax.lax.scan), None, drawn)

    numbers = {
        field: value
        for field, value in vars(algorithm).items()
        if isinstance(value, float) and (value or field not in algorithm.switches)
    }
    many = jax.tree.map(lambda *leaves: jnp.stack(leaves), *devices)
    got = jax.jit(jax.vmap(traced, (None, 0)))(numbers, many)
    for i, drawn in enumerate(devices):
        want = work(algorithm, Quadratic(), personal, drawn)
        mine = jax.tree.map(lambda leaf, i=i: leaf[i], got)
        for a, b in zip((want[0].payload, want[1], want[2]), (mine[0].payload, mine[1], mine[2]), strict=True):
            same(a, b)
    after = jax.jit(algorithm.apply)(state, mine[0].payload, 0.5)
    same(algorithm.apply(state, want[0].payload, 0.5), after)


@EVERY
def test_thirty_rounds_make_devices_better(name: str) -> None:
    """Three devices that differ: the loss after adapting falls below half of what it was before any round."""
    algorithm, learner = made(name), Quadratic()
    state = algorithm.init(learner.params)
    kept: dict[int, Any] = {}
    shards = [akin(40, seed=100 + i) for i in range(3)]

    def losses(state: Any) -> list[float]:
        broadcast = algorithm.broadcast(state)
        own = [kept.get(i, algorithm.enrol(broadcast)) for i in range(3)]
        adapted = [algorithm.personalise(learner, broadcast, p, draw(d, rng(i), 1, 40)) for i, (p, d) in each(own)]
        return [float(learner.evaluate(p, d).loss) / 40 for _, (p, d) in each(adapted)]

    def each(values: list[Any]) -> Any:
        return enumerate(zip(values, shards, strict=True))

    before = losses(state)
    for r in range(30):
        broadcast = algorithm.broadcast(state)
        payloads = []
        for i in range(3):
            drawn = draw(shards[i], rng(r, i), 8 - 8 % algorithm.batches_a_step, 4)
            update, kept[i] = algorithm.local(learner, broadcast, kept.get(i, algorithm.enrol(broadcast)), drawn)
            payloads.append(update.payload)
        state = algorithm.apply(state, tree.weighted_mean(payloads, [1.0] * 3), 1.0)
    assert np.mean(losses(state)) < 0.5 * np.mean(before)
