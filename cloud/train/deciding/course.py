"""`Course`: the part of a trainer that decides between steps, by evaluations and by gradients' norms."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cloud.errors import TrainError
from cloud.parallel.plan import Plan
from cloud.train.callbacks import Callbacks
from cloud.train.deciding.cadence import Cadence
from cloud.train.deciding.frost import Frost, GradualUnfreezing, ProgressiveFreezing, layer_norms
from cloud.train.deciding.judge import Judge
from cloud.train.deciding.pace import at_pace
from cloud.train.inputs.feed import ArrayFeed, Feed
from cloud.train.keeping.checkpoint import Checkpoints
from cloud.train.keeping.rewind import Goal, Place, Rewind
from cloud.train.placing.placement import Placement, remembering
from cloud.train.reports import Evaluation
from cloud.train.stepping.averaging import Swa
from cloud.train.stepping.freeze import parts, which_frozen
from cloud.train.stepping.layers import layers_of
from cloud.train.stepping.statistics import Statistics
from cloud.train.stepping.step import Batch, Objective, Recipe, StepOptions, TrainState
from cloud.train.tasks import Task

__all__ = ["Course", "frost_of", "keeps_best", "refrozen"]


class Course:
    """What `Trainer` inherits; all that it decides on is saved with checkpoints, as facts beside the state."""

    task: Task
    objective: Objective
    options: StepOptions
    epochs_done: int
    steps_done: int
    steps_of_epoch: int
    _state: Any
    _recipe: Recipe
    _optimizer: optax.GradientTransformation
    _placement: Placement | None
    _rewind: Rewind
    _callbacks: Callbacks
    _cadence: Cadence
    _judge: Judge
    _frost: Frost | None
    _stopping: bool

    _statistics: Statistics | None = None
    _estimated: tuple[int, Any] = (-1, None)
    """The step and the statistics for averaged weights after it."""
    _best: tuple[Any, Any] | None = None
    """The best weights, on the host."""
    _newest: tuple[int, Evaluation | None] = (-1, None)
    """The step of the newest evaluation, and the evaluation."""

    def whole_state(self) -> TrainState:
        """See `Trainer`."""
        raise NotImplementedError

    def weights(self) -> tuple[Any, Any]:
        """See `Trainer`."""
        raise NotImplementedError

    @property
    def checkpoints(self) -> Checkpoints | None:
        """See `Trainer`."""
        raise NotImplementedError

    def _evaluate(self, held_out: Feed) -> Evaluation:
        raise NotImplementedError

    def _here(self, *, ended: bool = False) -> Place:
        raise NotImplementedError

    def _placing(self, batch: Batch) -> Batch:
        return batch if self._placement is None else self._placement.place_batch(batch)

    def _validate(self, held_out: Feed, whole: Feed, *, judged: bool = True) -> Evaluation:
        """Evaluate between two steps, and do what follows. `judged`: the evaluation counts; one that takes place only
        because a run was interrupted does not, so that the run goes on as if it had not been."""
        self._estimate(whole)
        found = self._evaluate(held_out)
        self._newest = self.steps_done, found
        self._callbacks.evaluated(self.steps_done, found)
        if not (judged and self._judge.active):
            return found
        verdict = self._judge.hear(self.steps_done, found)
        if verdict.best and self._judge.restores:
            self._best = jax.device_get(self.weights())
        if verdict.rate is not None:
            pace = verdict.rate
            self._change(lambda state: at_pace(state, pace))
            self._callbacks.noted(self.steps_done, f"learning rate multiplied by {pace:g} in all from here on")
        if verdict.stop:
            self._callbacks.noted(self.steps_done, f"stopped early: {verdict.stop}")
        return found

    def _catch_up(self, held_out: Feed | None, whole: Feed) -> None:
        """A checkpoint may be from between the last step before an evaluation and what followed from it."""
        behind = self._judge.active and self._judge.at != self.steps_done and self._cadence.due(self._here())
        if behind and held_out is not None:
            self._validate(held_out, whole)

    def _over(self, goal: Goal) -> bool:
        return self._stopping or goal.reached(self._here()) or bool(self._judge.ended)

    def _change(self, change: Callable[[TrainState], TrainState]) -> None:
        """Change the state between two steps."""
        if isinstance(self._state, TrainState):
            self._state = change(self._state)
        elif self._placement is not None:  # held in stages
            self._state = self._placement.place(change(self.whole_state()))
        self._rewind.take(self._state, self._here())

    def _estimate(self, whole: Feed) -> None:
        """Statistics for averaged weights, which were never trained with."""
        average, done = self.options.average, self._estimated[0] == self.steps_done
        if not isinstance(average, Swa) or done or self.steps_done < average.start:
            return
        now = self.whole_state()
        if not jax.tree.leaves(now.state):
            return
        if self._statistics is None:
            self._statistics = Statistics(self.objective, self.options.seed)
        batches = map(self._placing, whole.epoch(0))
        params, _ = self.weights()
        self._estimated = self.steps_done, self._statistics.of(params, now.state, batches, average.batches)

    def _settle_weights(self, whole: Feed) -> None:
        """At the end of a run: the best weights if they are wanted, and statistics of an average."""
        at = self._judge.top_at
        if self._judge.restores and not self._stopping and at not in (0, self.steps_done):
            best = self._best if self._best is not None else self._best_saved(whole)
            if best is not None:
                self._change(lambda state: _with_weights(state, best, self.options.freeze))
                self._estimated = -1, None
                self._callbacks.noted(self.steps_done, f"the weights are those of step {at}, the best")
        else:
            self._estimate(whole)
        self._judge.again()

    def _best_saved(self, whole: Feed) -> tuple[Any, Any] | None:
        """The evaluated weights of the best checkpoint, for a run that was resumed after it."""
        if self.checkpoints is None:
            return None
        now, place, placement = self.whole_state(), self._here(), self._placement
        facts, frost = self.checkpoints.restored, None if self._frost is None else self._frost.said()
        self._state, self._placement = now, None
        self._state, about, _ = self.checkpoints.restore(self._like, best=True)
        self.epochs_done, self.steps_of_epoch, self.steps_done = about.place
        self._estimate(whole)
        best: tuple[Any, Any] = jax.device_get(self.weights())
        if frost is not None:
            self._like({"frost": frost})
        self._state, self._placement = now if placement is None else placement.place(now), placement
        self.epochs_done, self.steps_of_epoch, self.steps_done = place
        self.checkpoints.restored = facts
        return best

    def _note_facts(self) -> None:
        """What checkpoints hold beside the state."""
        if self.checkpoints is not None:
            self.checkpoints.facts |= {"judge": self._judge.said()} if self._judge.active else {}
            self.checkpoints.facts |= {} if self._frost is None else {"frost": self._frost.said()}

    def _like(self, facts: Mapping[str, Any]) -> TrainState:
        """A state with the arrays that a checkpoint with these facts has."""
        if self._frost is not None and "frost" in facts:
            self._frost.resumed(facts["frost"])
            self._refreeze()
        return remembering(self._state, facts)

    def _forget(self) -> None:
        """After another state was read: nothing that was measured holds for it."""
        self._best, self._newest, self._estimated = None, (-1, None), (-1, None)

    def _freezes(self) -> bool:
        return self._frost is not None and not self.steps_of_epoch and self._frost.due(self.epochs_done)

    def _epochs_left(self, whole: ArrayFeed, goal: Goal) -> int:
        """Epochs with the layers frozen that are frozen now, as far as it is known."""
        left = goal.epochs_left(self._here(), whole.steps)
        until = None if self._frost is None else self._frost.until(self.epochs_done)
        return left if until is None else min(left, until - self.epochs_done)

    def _freeze_anew(self, whole: Feed) -> None:
        """At the end of some epochs: freeze other layers."""
        frost = self._frost
        if frost is None or not self._freezes():
            return

        def norms(layers: Any) -> list[float]:
            state, most = self.whole_state(), getattr(frost.way, "batches", 1)
            some = [self._placing(batch) for batch in islice(whole.epoch(self.epochs_done), most)]
            return layer_norms(self.objective, self.options.seed, state.params, state.state, some, layers)

        if frost.decide(self.epochs_done, norms):
            self._refreeze()
            self._callbacks.noted(self.steps_done, f"{frost.count} of {len(frost.layers)} layers are frozen now")

    def _refreeze(self) -> None:
        """Train what is not frozen now: another step, and slots for what it trains."""
        assert self._frost is not None
        patterns = self._frost.patterns()
        if patterns == tuple(self.options.freeze):
            return
        before = self.whole_state()
        if (task := refrozen(self.task, patterns)) is not self.task:
            self.task, self.objective = task, replace(self.objective, task=task)
            self._statistics = None
        self.options = replace(self.options, freeze=patterns)
        self._state = _refrozen_state(before, self._optimizer, self.options)
        self._recipe, self._placement = Recipe(self.objective, self._optimizer, self.options), None
        self._rewind.take(self._state, self._here())


def frost_of(
    way: GradualUnfreezing | ProgressiveFreezing | None, task: Task, always: Sequence[str], parallel: Any
) -> Frost | None:
    """How layers of a task freeze or thaw, beside the patterns that are `always` frozen. Raises TrainError with one
    plan for a step that will change."""
    if way is None:
        return None
    if isinstance(parallel, Path | Plan) or str(parallel).endswith(".json") or getattr(parallel, "plan", None):
        raise TrainError('freezing changes the step as the run goes on: expected parallel="auto", got one plan')
    layers = layers_of(task, way.layers)
    free = [layer for layer in layers if not all(any(fnmatch.fnmatchcase(n, p) for p in always) for n in layer)]
    return Frost(way, free, tuple(always))


def keeps_best(checkpoints: Checkpoints | None, judge: Judge) -> None:
    """Have the checkpoint kept whose weights early stopping restores, also after a run was resumed. Raises TrainError
    if the best is kept by another metric."""
    if checkpoints is None or judge.stopping is None or not judge.restores:
        return
    metric = judge.stopping.metric
    if checkpoints.best not in ("", metric):
        raise TrainError(
            f"early stopping restores the best weights by {metric!r}, checkpoints keep the best by "
            f"{checkpoints.best!r}: use the same metric, or EarlyStopping(restore=False)"
        )
    checkpoints.best = metric


def refrozen(task: Task, patterns: Sequence[str]) -> Task:
    """The task with other parameters frozen, if that makes a difference to it (BatchNormalization of ONNX models)."""
    again: Task = task.refrozen(patterns) if hasattr(task, "refrozen") else task
    return again


def _refrozen_state(before: TrainState, optimizer: optax.GradientTransformation, options: StepOptions) -> TrainState:
    """The state for other trained parameters: slots and averages of those that stay trained are kept, others begin
    anew."""
    trained, _ = parts(before.params, which_frozen(before.params, options.freeze))
    held = {str(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(before.slots)}

    def kept(path: Any, fresh: Any) -> Any:
        old = held.get(str(path))
        return fresh if old is None or (old.shape, old.dtype) != (fresh.shape, fresh.dtype) else old

    slots = jax.tree_util.tree_map_with_path(kept, jax.jit(optimizer.init)(trained))
    average = before.average
    if average is not None:
        average = jax.tree.map(
            lambda now, mean: None if now is None else jnp.copy(now) if mean is None else mean,
            trained, average, is_leaf=lambda leaf: leaf is None,
        )  # fmt: skip
    return replace(before, slots=slots, average=average)


def _with_weights(state: TrainState, weights: tuple[Any, Any], freeze: Sequence[str]) -> TrainState:
    """`state` with these weights (params, state of the task), on the same devices; averages begin with them."""

    def put(new: Any, old: Any) -> Any:
        return jax.device_put(new, old.sharding) if getattr(old, "committed", False) else jnp.asarray(np.asarray(new))

    params, moved = (jax.tree.map(put, new, old) for new, old in zip(weights, (state.params, state.state), strict=True))
    average = state.average
    if average is not None:
        average = jax.tree.map(jnp.copy, parts(params, which_frozen(params, freeze))[0])
    return replace(state, params=params, state=moved, average=average)
