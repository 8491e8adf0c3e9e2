"""The same search for every optimiser: equal numbers of trials and steps, the same random draws; then new seeds.

A trial draws a learning rate (log-uniform over two decades chosen for the optimiser), weight decay, the part of steps
for warm-up, momentum and second-moment decay. The settings with the lowest final validation losses get two more seeds;
the best of them are run again with seeds that no trial has used. The target is the final loss of the best first-order
optimiser, the mean over those seeds.
An optimiser's steps to target are the point where its own mean curve reaches it. With a schedule made for more steps
that point is late, so each optimiser also gets complete runs with fewer steps, and the shortest one that ends at the
target is reported as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import numpy as np
import optax

from benchmarks.optimizers.soap import scale_by_soap
from benchmarks.optimizers.tasks import Task
from cloud.train.optim.budget import work_of
from cloud.train.optim.thor import thor
from cloud.train.stepping.optimizers import cosine_schedule, decay_mask, momentum_sgd

__all__ = ["OPTIMIZERS", "SHARES", "Curve", "Settings", "curve", "in_turns", "settings_of", "steps_to"]

Settings = Mapping[str, float]

_waits: Any = jax.block_until_ready

SHARES = 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3
"""Parts of the steps for shorter complete runs, which are tried until one misses the target."""


@dataclass(frozen=True)
class Optimizer:
    """Rates between `low` and `high`; `make(rate, settings, FLOPs of the passes of a step)`."""

    low: float
    high: float
    make: Callable[[Any, Settings, float], optax.GradientTransformation]
    first_order: bool = True


def _soap(rate: Any, s: Settings, work: float) -> optax.GradientTransformation:
    return optax.chain(
        scale_by_soap(b1=s["b1"], b2=s["b2"]), optax.add_decayed_weights(s["decay"], mask=decay_mask),
        optax.scale_by_learning_rate(rate),
    )  # fmt: skip


OPTIMIZERS: dict[str, Optimizer] = {
    "momentum": Optimizer(
        1e-2, 3.0, lambda rate, s, _: momentum_sgd(rate, momentum=s["b1"], weight_decay=s["decay"] / 100)
    ),
    "adamw": Optimizer(
        1e-3, 1e-1, lambda rate, s, _: optax.adamw(rate, b1=s["b1"], b2=s["b2"], weight_decay=s["decay"])
    ),
    "thor": Optimizer(
        1e-3, 1e-1, lambda rate, s, work: thor(rate, b1=s["b1"], b2=s["b2"], weight_decay=s["decay"], work=work),
        first_order=False,
    ),
    "soap": Optimizer(1e-3, 1e-1, _soap, first_order=False),
    "muon": Optimizer(
        1e-3, 1e-1,
        lambda rate, s, _: optax.contrib.muon(
            rate, beta=s["b1"], adam_b1=s["b1"], adam_b2=s["b2"], weight_decay=s["decay"],
            weight_decay_mask=decay_mask, consistent_rms=0.2,
        ),
        first_order=False,
    ),
}  # fmt: skip
"""Muon with `consistent_rms=0.2` takes steps as large as Adam's, so that the same rates are searched."""


@dataclass(frozen=True)
class Curve:
    """Validation losses after every `every` steps."""

    every: int
    losses: tuple[float, ...]

    @property
    def end(self) -> float:
        """The last loss; infinite if training diverged."""
        return self.losses[-1] if np.isfinite(self.losses[-1]) else float("inf")


def drawn(name: str, random: np.random.Generator) -> Settings:
    """One trial's settings."""
    row = OPTIMIZERS[name]
    return {
        "rate": float(np.exp(random.uniform(np.log(row.low), np.log(row.high)))),
        "decay": float(np.exp(random.uniform(np.log(1e-3), np.log(0.3)))),
        "warmup": float(random.uniform(0.02, 0.2)),
        "b1": float(1 - np.exp(random.uniform(np.log(0.03), np.log(0.2)))),
        "b2": float(1 - np.exp(random.uniform(np.log(0.005), np.log(0.1)))),
    }


class _Run:
    """Training that goes one step at a time. The seed determines batches and initial weights, which are the same for
    every optimiser."""

    def __init__(self, task: Task, name: str, settings: Settings, steps: int, seed: int) -> None:
        rate = settings["rate"]
        warmup = max(int(settings["warmup"] * steps), 1)
        self._rate = cosine_schedule(rate, steps, warmup=warmup, end=0.02 * rate)
        self._task, self._settings, self._done = task, settings, 0
        self._random, self._step = np.random.default_rng((seed, 1)), _step(task, name)
        self.params, self.state = jax.tree.map(jax.numpy.copy, task.fresh(seed))
        self._slots = OPTIMIZERS[name].make(0.0, settings, _work(task)).init(self.params)

    def step(self) -> float:
        """One step; its processor seconds."""
        batch, rate = self._task.batch(self._random), float(self._rate(self._done))
        begun = time.process_time()
        found = self._step(self.params, self.state, self._slots, batch, rate, self._settings)
        self.params, self.state, self._slots = _waits(found)
        self._done += 1
        return time.process_time() - begun


def curve(task: Task, name: str, settings: Settings, steps: int, seed: int, every: int) -> Curve:
    """Train once."""
    run, measure, losses = _Run(task, name, settings, steps, seed), _measure(task), list[float]()
    for number in range(1, steps + 1):
        run.step()
        if number % every == 0:
            losses.append(float(measure(run.params, run.state)))
            if not np.isfinite(losses[-1]):
                break
    return Curve(every, tuple(losses))


def in_turns(task: Task, best: Mapping[str, Settings], steps: int) -> dict[str, list[float]]:
    """Processor seconds of every step after the first (which compiles) of some optimisers, by their names and settings.
    They take turns, so that all see the same machine load."""
    runs = {name: _Run(task, name, settings, steps, 0) for name, settings in best.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(steps):
        for name, run in runs.items():
            times[name].append(run.step())
    return {name: found[1:] for name, found in times.items()}


@lru_cache(maxsize=8)
def _step(task: Task, name: str) -> Callable[..., Any]:
    """Settings are arguments, so that a step is compiled once for all trials."""
    make, work = OPTIMIZERS[name].make, _work(task)

    def step(params: Any, state: Any, slots: Any, batch: Any, rate: Any, settings: Settings) -> Any:
        (_, state), gradient = jax.value_and_grad(task.loss, has_aux=True)(params, state, batch)
        updates, slots = make(rate, settings, work).update(gradient, slots, params)
        return optax.apply_updates(params, updates), state, slots

    return jax.jit(step, donate_argnums=(0, 1, 2))


@lru_cache(maxsize=2)
def _measure(task: Task) -> Callable[..., Any]:
    return jax.jit(task.measure)


@lru_cache(maxsize=2)
def _work(task: Task) -> float:
    """FLOPs of the forward and backward pass of a batch."""
    params, state = task.fresh(0)
    gradient = jax.grad(task.loss, has_aux=True)
    return work_of(gradient, params, state, task.batch(np.random.default_rng(0)))


def settings_of(name: str, trials: int) -> list[Settings]:
    """The settings of an optimiser's trials; the same random draws for all of them."""
    random = np.random.default_rng(11)
    return [drawn(name, random) for _ in range(trials)]


def steps_to(target: float, curves: Sequence[Curve]) -> float | None:
    """The step at which the mean of the curves first reaches `target`, by linear interpolation; None: never."""
    mean = np.mean([c.losses for c in curves], axis=0)
    every = curves[0].every
    for k, loss in enumerate(mean):
        if loss <= target:
            if k == 0:
                return float(every)
            return float(every * (k + (mean[k - 1] - target) / (mean[k - 1] - loss)))
    return None
