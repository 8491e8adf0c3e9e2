"""The overhead of `Trainer` over the same loop written by hand in plain `jax.jit`, in alternating epochs.

`python -m benchmarks.trainer` prints a table. Both shuffle, index arrays, dispatch steps without waiting and read
losses back; the loop by hand reads them at the end of an epoch. The time of a step is CPU time in the fastest twentieth
of epochs, because other work on the machine can only increase it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cloud.train import JaxTask, Trainer
from cloud.train.tasks import Task, as_task
from cloud.zoo import resnet8

__all__ = ["CASES", "main", "measured"]

RANDOM = np.random.default_rng(0)
STEPS = 200
"""Steps per epoch."""


def mlp(width: int) -> JaxTask:
    """An MLP from 64 numbers to 10 classes."""
    params = {
        "w1": RANDOM.normal(size=(64, width)).astype(np.float32) / 8, "b1": np.zeros(width, np.float32),
        "w2": RANDOM.normal(size=(width, 10)).astype(np.float32) / 8, "b2": np.zeros(10, np.float32),
    }  # fmt: skip
    return JaxTask(lambda p, x: jnp.maximum(x @ p["w1"] + p["b1"], 0) @ p["w2"] + p["b2"], params)


CASES: dict[str, tuple[Callable[[], Task], tuple[int, ...], int, int]] = {
    "MLP 64-32-10": (partial(mlp, 32), (64,), 16, STEPS),
    "MLP 64-64-10": (partial(mlp, 64), (64,), 32, STEPS),
    "MLP 64-256-10": (partial(mlp, 256), (64,), 64, STEPS),
    "ResNet-8 (8, 16, 32), 8 × 8": (lambda: as_task(resnet8((1, 8, 8), filters=(8, 16, 32))), (1, 8, 8), 64, 10),
}
"""A task, an example's shape, rows per batch, steps per epoch."""


def by_hand(task: Task, x: Any, y: Any, rows: int) -> Callable[[int], object]:
    """An epoch of Adam, as a user would write it."""
    optimizer = optax.adam(1e-3)
    name = task.inputs[0]

    @partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(params: Any, state: Any, slots: Any, key: Any, x: Any, y: Any) -> Any:
        def loss(params: Any) -> Any:
            logits, after = task.apply(params, state, {name: x}, key, True)
            return optax.losses.softmax_cross_entropy_with_integer_labels(logits, y).mean(), after

        (value, after), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        updates, moved = optimizer.update(gradient, slots, params)
        return optax.apply_updates(params, updates), after, moved, value

    params, state = jax.tree.map(jnp.array, task.init())
    now = [params, state, jax.jit(optimizer.init)(params)]
    key = jax.random.key(0)

    def epoch(number: int) -> object:
        order, losses = np.random.default_rng(number).permutation(len(x)), []
        for start in range(0, len(x), rows):
            chosen = order[start : start + rows]
            *now[:], value = step(*now, key, x[chosen], y[chosen])
            losses.append(value)
        return np.mean(jax.device_get(losses))

    return epoch


def measured(name: str, rounds: int) -> tuple[float, float, float]:
    """CPU seconds per step: by hand, by `Trainer`, by `Trainer` with the gradient's norm."""
    make, shape, rows, steps = CASES[name]
    x = RANDOM.normal(size=(rows * steps, *shape)).astype(np.float32)
    y = RANDOM.integers(0, 10, rows * steps).astype(np.int32)

    def ours(**options: Any) -> Callable[[int], object]:
        trainer = Trainer(make(), optimizer=optax.adam(1e-3), metrics=(), **options)
        return lambda number: trainer.fit((x, y), 1, rows)

    ways = [by_hand(make(), x, y, rows), ours(), ours(gradient_norm=True)]
    taken: list[list[float]] = [[] for _ in ways]
    for number in range(rounds + 1):
        for way, times in zip(ways, taken, strict=True):
            begun = time.process_time()
            way(number)
            times.append((time.process_time() - begun) / steps)
    hand, plain, normed = (sorted(times[1:])[rounds // 20] for times in taken)
    return hand, plain, normed


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60, help="epochs of each loop")
    rounds = parser.parse_args().rounds
    print("| Adam, one core | by hand | `Trainer` | ratio | with the gradient's norm |\n|---|---|---|---|---|")
    for name in CASES:
        hand, plain, normed = measured(name, rounds)
        print(f"| {name} | {hand * 1e3:.3f} ms | {plain * 1e3:.3f} ms | {plain / hand:.3f} | {normed / plain:.3f} |")


if __name__ == "__main__":
    main()
