"""`Trainer`: fit a model with JAX, on one device or many, and export it as ONNX."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import numpy.typing as npt
import optax

from cloud._jax import shaped
from cloud.errors import NotFiniteError, TrainError
from cloud.parallel.compressed.method import Compress
from cloud.train.callbacks import Callback, Callbacks
from cloud.train.deciding.cadence import Cadence
from cloud.train.deciding.course import Course, frost_of, keeps_best, refrozen
from cloud.train.deciding.frost import GradualUnfreezing, ProgressiveFreezing
from cloud.train.deciding.judge import EarlyStopping, Judge, Plateau
from cloud.train.deciding.pace import paced
from cloud.train.inputs.augment import Augment
from cloud.train.inputs.batches import Arrays, Dataset, batches, rows_of_batch
from cloud.train.inputs.checking import Checked
from cloud.train.inputs.feed import ArrayFeed, Coming, Feed, feed_of
from cloud.train.inputs.prefix import cut_at_frozen
from cloud.train.keeping.checkpoint import Checkpoints
from cloud.train.keeping.keeper import Keeper
from cloud.train.keeping.rewind import Goal, Place, Rewind
from cloud.train.ledger import Ledger, NotFinite, Packed
from cloud.train.metrics.measuring import Measuring
from cloud.train.metrics.table import Metric
from cloud.train.notebook import Reports, trainer_html
from cloud.train.optim.advice import advice
from cloud.train.placing.placement import Placement
from cloud.train.placing.where import Parallel, prepare_of
from cloud.train.reports import EpochReport, Evaluation
from cloud.train.stepping.averaging import Average
from cloud.train.stepping.finite import culprit
from cloud.train.stepping.freeze import merge, parts, which_frozen
from cloud.train.stepping.groups import Group, grouped
from cloud.train.stepping.heads import Loss, aims_of
from cloud.train.stepping.step import (
    Batch,
    Objective,
    Recipe,
    Step,
    StepOptions,
    Sums,
    TrainState,
    initial_state,
)
from cloud.train.tasks import Task, as_task
from cloud.train.variants import Adversarial, Distill, Lora, Prune, Variants

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["EpochReport", "Evaluation", "Trainer"]


class Trainer(Course):
    """Trains `model`: an `onnx_ir.Model` or the path of an ONNX file (its float initialisers, or those that match the
    glob patterns `trainable`), a JAX function with its parameters, `(function, params)` or `(function, params, state)`,
    a Flax module, or any `cloud.train.tasks.Task`.

    `loss` and the values of `metrics` are names in `LOSSES`, `METRICS` and `SET_METRICS`, or functions of (output,
    labels) that return one float per example (metrics: or a `SetMetric`); output is the model's only output, or the
    dict of all. A dict of losses, names or `Head`s by output, is added up. Metrics over the whole set are measured in
    evaluations only. `augment(key, inputs)` changes a batch's dict of inputs on the device, only in training.
    `optimizer` is any optax transformation, by default Adam with rate 1e-3; `groups` of parameters have rates and
    optimisers of their own, and `layer_decay` multiplies the rate once for every layer that comes behind (`layers`:
    patterns from the front, by default see `cloud.train.stepping.layers`).

    `stopping` ends a run early and `plateau` lowers the rate, by the validation data of `fit`. `evaluate_every`: steps
    between evaluations of them, or a share of an epoch as a float; by default they are evaluated once per epoch.
    `freezing` changes which layers are frozen as a run goes on.

    `precision`: the dtype of the model's computation, "float32", "bfloat16" or "float16" (with loss scaling); weights
    stay float32. `accumulate`: microbatches per batch. `clip`: the largest global norm of gradients. `recompute`: share
    of the forward pass that is recomputed instead of stored. `freeze`: glob patterns of parameters that are not
    trained; the outputs of frozen first layers for arrays are computed once and kept, if that is faster. `average`:
    evaluate, predict and export with a moving average of the weights that keeps this share per step, or with an average
    along the last part of the run (`Swa`). `gradient_norm`:
    report it to callbacks every step (always with clipping). `parallel`: "none", "data" (every device computes part of
    each batch), "auto" (the planner decides), a `Plan` or its file, or a function that makes a `Placement` from a
    recipe (such as `cloud.train.placing.planned.Auto` with its options). `compress`: how gradients cross slow links,
    with `parallel` "data" or "auto": "int8", "int8:BLOCK", "powersgd", "powersgd:RANK" (what is lost is made up for in
    later steps), "auto" (int8 where the planner expects that it saves time) or a `Compress`. `checkpoints`: where to
    save, or just the folder; `resume` continues from there. `lora`, `distill`, `prune`: low-rank adapters instead of
    the weights, a teacher beside the labels, weights or channels that become zero; `adversarial`: examples moved to
    where the loss is high (`cloud.train.variants`).

    Runs with the same seed, data and devices give the same weights (on GPUs, with XLA's deterministic operations
    enabled). The last batch of an epoch is filled (`last="pad"`) with examples from the epoch's start: these take part
    in BatchNormalization's statistics but not in loss, gradient and metrics. `last="drop"` skips an incomplete batch.
    """

    def __init__(
        self, model: ir.Model | Task | Any, *, loss: Loss = "softmax_cross_entropy",
        optimizer: optax.GradientTransformation | None = None, seed: int = 0,
        metrics: Sequence[str] | Mapping[str, Metric] | None = None, augment: Augment | None = None,
        groups: Sequence[Group] = (), layer_decay: float | None = None, layers: Sequence[str] = (),
        stopping: EarlyStopping | None = None, plateau: Plateau | None = None,
        evaluate_every: int | float | None = None,
        freezing: GradualUnfreezing | ProgressiveFreezing | None = None,
        trainable: Sequence[str] | None = None, last: str = "pad", precision: str = "float32", accumulate: int = 1,
        clip: float | None = None, recompute: float = 0.0, freeze: Sequence[str] = (), average: Average | None = None,
        gradient_norm: bool = False, parallel: Parallel = "none", compress: str | Compress | None = None,
        callbacks: Sequence[Callback] = (), checkpoints: Checkpoints | str | os.PathLike[str] | None = None,
        lora: Lora | None = None, distill: Distill | None = None, prune: Prune | None = None,
        adversarial: Adversarial | None = None,
    ) -> None:  # fmt: skip
        if last not in ("pad", "drop"):
            raise TrainError(f'expected last to be "pad" or "drop", got {last!r}')
        self._variants = Variants(lora, distill, prune, adversarial).beside(freezing, plateau)
        self.task = as_task(model, trainable=trainable, frozen=freeze)
        aims = aims_of(loss, metrics)
        self._frost = frost_of(freezing, self.task, freeze, parallel)
        if self._frost is not None:
            freeze = self._frost.patterns()
            self.task = refrozen(self.task, freeze)
        self.task = self._variants.task(self.task, freeze)
        freeze = self._variants.freeze(self.task, freeze)
        measured = {name: self._variants.metric(metric) for name, metric in aims.metrics.items()}
        loss_of, outputs = self._variants.loss(aims.loss), self._variants.outputs
        self.objective = Objective(self.task, loss_of, measured, augment, precision, outputs)
        self.options = StepOptions(seed, accumulate, clip, average, tuple(freeze), recompute, gradient_norm)
        self._check = Checked.of(aims.of_classes, self.task)
        self._last, self._callbacks = last, Callbacks(callbacks)
        self._cadence = Cadence(evaluate_every)
        self._judge = Judge(stopping, plateau, aims.less.__contains__)
        optimizer = optimizer if optimizer is not None else optax.adam(1e-3)
        optimizer = grouped(optimizer, groups, self.task, layer_decay, layers)
        optimizer = self._variants.optimizer(optimizer, self.task)
        self._optimizer = optimizer if plateau is None else paced(optimizer)
        self._state = initial_state(self.objective, self._optimizer, self.options)
        self._recipe = Recipe(self.objective, self._optimizer, self.options)
        self._prepare, self._may_cut = prepare_of(parallel, compress), isinstance(parallel, str)
        self._placement: Placement | None = None
        self._rewind = Rewind()
        self._sums: Sums | Packed = {}
        self._measure = Measuring(self.objective, aims.sets)
        self._forward = jax.jit(self.objective.outputs)
        self._asked = self._stopping = False
        where = Checkpoints(checkpoints) if isinstance(checkpoints, str | os.PathLike) else checkpoints
        self._keeper = Keeper(where, seed, self._judge.is_lower)
        keeps_best(where, self._judge)
        self.epochs_done = self.steps_done = self.steps_of_epoch = 0
        self.input_shapes: Mapping[str, Any] | None = None

    @property
    def params(self) -> Any:
        """The current weights; the next `fit` donates these arrays, so copy them to keep them."""
        return _own(self.whole_state().params)

    @property
    def state(self) -> Any:
        """BatchNormalization's current running statistics; the next `fit` donates them too."""
        return _own(self.whole_state().state)

    def whole_state(self) -> TrainState:
        """Everything that steps change, every array gathered; the next `fit` donates it too."""
        return self._state if self._placement is None else self._placement.gather(self._state)

    def weights(self) -> tuple[Any, Any]:
        """(params, state) that `evaluate`, `predict` and `export` use: the moving average if there is one."""
        now = self.whole_state()
        if now.average is None:
            return now.params, now.state
        kept = parts(now.params, which_frozen(now.params, self.options.freeze))[1]
        average = self._variants.averaged(now.average, self.task, now.slots)
        step, state = self._estimated
        return merge(average, kept), state if step == self.steps_done else now.state

    def _repr_html_(self) -> str:
        return trainer_html(self, self.objective)

    @property
    def recipe(self) -> Recipe:
        """The parts of a step: objective, optimiser, options."""
        return self._recipe

    @property
    def pure_step(self) -> Step:
        """The step as it would run on one device, not jitted; the planner's input."""
        return self._recipe.step()

    @property
    def pace(self) -> float:
        """The factor of the learning rate, below 1 after a plateau."""
        return self._judge.rate

    def is_lower_better(self, metric: str) -> bool:
        """Whether less of "loss" or a metric is better."""
        return self._judge.is_lower(metric)

    def watch(self, *callbacks: Callback) -> None:
        """Add callbacks, which are called from now on."""
        self._callbacks = Callbacks([*self._callbacks.members, *callbacks])

    def fit(
        self, data: tuple[Arrays, npt.ArrayLike] | Any, epochs: int | None = None, batch_size: int = 128,
        *, steps: int | None = None, validation: tuple[Arrays, npt.ArrayLike] | Any = None,
        progress: Callable[[EpochReport], None] | None = None,
    ) -> list[EpochReport]:  # fmt: skip
        """Train for `epochs` or `steps`, or until the first is reached if both are given (one epoch if neither), on
        (inputs, labels) or on a pipeline, which has its own batch size. Further calls continue where this one ended,
        also in the middle of an epoch, whose rest then counts as one epoch.

        Raises `NotFiniteError` at a loss that is not finite, naming the first value that is not; the weights are then
        those before the step that produced it (within one process).
        """
        whole = feed_of(
            data, self.task.inputs, size=batch_size, last=self._last, seed=self.options.seed, check=self._check
        )
        held_out = None if validation is None else self._held_out(validation, batch_size)
        for name, value in (("epochs", epochs), ("steps", steps), ("batch_size", batch_size)):
            if value is not None and value < 1:
                raise TrainError(f"expected {name} of at least 1, got {value}")
        epochs = 1 if epochs is None and steps is None else epochs
        goal = Goal(epochs and self.epochs_done + epochs, steps and self.steps_done + steps)
        self._asked = self._stopping = False
        if held_out is None and (self._judge.active or self._cadence.every is not None):
            raise TrainError("expected validation data for stopping, plateau and evaluate_every: fit(validation=…)")
        self._cadence = self._cadence.over(whole)
        self._keeper.begin(whole, self._here())
        reports = Reports()
        self._rewind.take(self._state, self._here())
        self._callbacks.started(self)
        try:
            self._catch_up(held_out, whole)
            while not self._over(goal):
                self._freeze_anew(whole)
                with self._from_the_cut(whole, goal) as feed:
                    while not self._over(goal) and not self._freezes():
                        reports.append(self._epoch(feed, held_out, whole, goal))
                        if progress is not None:
                            progress(reports[-1])
                        self._callbacks.epoch_done(reports[-1])
                        self._after_epoch(reports[-1])
            self._note_facts()
            self._tell(self._keeper.end(self._state, self._here()))
            self._settle_weights(whole)
        except BaseException as error:
            self._tell(self._keeper.abandon())
            self._callbacks.failed(error)
            raise
        self._callbacks.finished(self)
        return reports

    def stop(self) -> None:
        """End a running `fit` after the current step; with several processes, all of them within about a second. The
        next `fit` does the rest of the epoch."""
        self._asked = True

    def resume(self, *, best: bool = False) -> Path:
        """Continue from the newest (or best) intact checkpoint, bit by bit as if never interrupted; returns its path.

        Damaged ones are skipped with a warning. Raises CheckpointError if there is none, and for one of another model,
        optimiser or seed.
        """
        state, about, path = self._keeper.restore(self._like, best)
        self._state, (self.epochs_done, self.steps_of_epoch, self.steps_done) = state, about.place
        if self._judge.active and "judge" in about.facts:
            self._judge.resumed(about.facts["judge"])
        self._forget()
        return path

    @property
    def stopped(self) -> bool:
        """Whether the last `fit` ended early because a `stop` asked for it, here or in another process."""
        return self._stopping

    @property
    def checkpoints(self) -> Checkpoints | None:
        """Where this trainer saves, or None."""
        return self._keeper.checkpoints

    def evaluate(self, data: tuple[Arrays, npt.ArrayLike] | Any, batch_size: int = 256) -> Evaluation:
        """Loss and metrics in inference form; every example counts once."""
        return self._evaluate(self._held_out(data, batch_size))

    def predict(self, inputs: Arrays, batch_size: int = 256) -> Any:
        """The model's output for all examples in inference form: an array, or a dict of several."""
        dataset, weights, found = Dataset.of(inputs, None, self.task.inputs), self.weights(), []
        for batch in batches(dataset, np.arange(dataset.size), batch_size, "pad"):
            kept = int(batch.mask.sum())
            outputs = self._forward(*weights, batch.inputs)
            found.append(jax.tree.map(lambda a, kept=kept: np.asarray(a[:kept]), outputs))
        return jax.tree.map(lambda *arrays: np.concatenate(arrays), *found)

    def export(self) -> ir.Model:
        """The model in inference form with the current weights; adapters are added to them, and pruned channels are not
        there."""
        return self.task.export(*self.weights())

    def adapters(self) -> dict[str, npt.NDArray[np.float32]]:
        """The adapters (`lora`) by name, as a bundle takes them that was converted with the same ones."""
        return self._variants.adapters(self.task, self.weights()[0])

    @contextmanager
    def _from_the_cut(self, whole: Feed, goal: Goal) -> Iterator[Feed]:
        """If frozen layers come first and arrays are read more than once: train on the outputs of these layers (see
        `cloud.train.inputs.prefix`)."""
        cut = None
        epochs = self._epochs_left(whole, goal) if isinstance(whole, ArrayFeed) else 0
        if epochs > 1 and self._may_cut and isinstance(whole, ArrayFeed):
            rows = rows_of_batch(whole.data.size, whole.size)
            now = self.whole_state()
            cut = cut_at_frozen(
                self.objective, self.options.freeze, whole.data, rows, epochs, (now.params, now.state)
            )  # fmt: skip
        if cut is None or not isinstance(whole, ArrayFeed):
            yield whole
            return
        before = self._recipe, self._placement
        self._recipe, self._placement = replace(self._recipe, objective=cut.objective), None
        try:
            yield replace(whole, data=cut.kept(whole.data))
            self._state = self.whole_state()  # the step is placed anew
        finally:
            self._recipe, self._placement = before

    def _held_out(self, data: Any, batch_size: int) -> Feed:
        ways = 1 if self._placement is None else self._placement.ways
        return feed_of(data, self.task.inputs, size=batch_size, ways=ways, check=self._check)

    def _epoch(self, feed: Feed, held_out: Feed | None, whole: Feed, goal: Goal) -> EpochReport:
        begun, before = time.perf_counter(), self._here()
        training, times = self._steps(feed, held_out, whole, goal)
        if self._here() == before._replace(epochs=before.epochs + 1):
            raise TrainError("an epoch has no batch: expected data for at least one; use smaller batches")
        if held_out is not None and self._newest[0] != self.steps_done:
            regular = self._cadence.due(self._here()) or goal.reached(self._here())
            if regular or self._stopping:
                self._validate(held_out, whole, judged=regular)
        tested = self._newest[1] if self._newest[0] > before.steps else None
        seconds = time.perf_counter() - begun
        times["other"] = seconds - sum(times.values())
        steps = self.steps_done - before.steps
        return EpochReport(before.epochs + 1, goal.epochs or 0, training, tested, seconds, steps, times)

    def _steps(self, feed: Feed, held_out: Feed | None, whole: Feed, goal: Goal) -> tuple[Evaluation, dict[str, float]]:
        """The rest of an epoch, up to the goal; returns means, and seconds spent on data and on steps."""
        between = held_out if self._cadence.every is not None else None
        tell = self._callbacks.stepped if self._callbacks.members else None
        begun, ledger, aside = time.perf_counter(), Ledger(self.steps_done, tell), 0.0
        coming = Coming(feed.epoch(self.epochs_done, self.steps_of_epoch))
        try:
            while self.steps_done != goal.steps and not self._stopping and (batch := coming.take()) is not None:
                self._one_step(batch)
                ledger.add(self._sums, batch)
                if self._rewind.due:
                    ledger.settle()
                    self._rewind.take(self._state, self._here())
                tested = None
                if (
                    between is not None
                    and self._cadence.due(self._here())
                    and not (goal.steps == self.steps_done or coming.over())
                ):
                    ledger.settle()
                    paused = time.perf_counter()
                    tested = self._validate(between, whole)
                    aside += time.perf_counter() - paused
                save, self._stopping = self._keeper.after_step(self.steps_done, self._asked)
                if save or (tested is not None and self._keeper.after_evaluation(tested)):
                    ledger.settle()  # everything saved is known to be finite
                    self._note_facts()
                    self._tell(self._keeper.save(self._state, self._here(ended=coming.over()), tested))
                if self._judge.ended:
                    break
            training = ledger.close()
        except NotFinite as bad:
            raise NotFiniteError(self._what_is_not_finite(feed, bad)) from None
        self.epochs_done, self.steps_of_epoch, _ = self._here(ended=coming.over())
        return training, {"data": coming.waited, "step": time.perf_counter() - begun - coming.waited - aside}

    def _one_step(self, batch: Batch) -> None:
        placement = self._placement or self._place(batch)
        self._state, self._sums = placement.step(self._state, placement.place_batch(batch))
        self.steps_done += 1
        self.steps_of_epoch += 1

    def _after_epoch(self, report: EpochReport) -> None:
        tested = report.validation if self._newest[0] == self.steps_done else None
        save, stop = self._keeper.after_epoch(self._asked, tested)
        if save:
            self._note_facts()
            self._tell(self._keeper.save(self._state, self._here(), tested))
        self._stopping |= stop

    def _tell(self, saved: Sequence[Path]) -> None:
        for path in saved:
            self._callbacks.saved(path)

    def _here(self, *, ended: bool = False) -> Place:
        """`ended`: no batch of the epoch is left."""
        epochs, of_epoch = (self.epochs_done + 1, 0) if ended else (self.epochs_done, self.steps_of_epoch)
        return Place(epochs, of_epoch, self.steps_done)

    def _place(self, batch: Batch) -> Placement:
        """Before the first step: decide where it runs."""
        processes = jax.process_count()
        rows = jax.tree.map(lambda a: shaped((len(a) * processes, *np.shape(a)[1:]), a.dtype), batch)
        self.input_shapes = rows["inputs"]
        shapes = jax.eval_shape(lambda: replace(self._state, memory=None))
        said = advice(self._recipe, shapes, rows)
        if said is not None:
            warnings.warn(said, RuntimeWarning, stacklevel=5)  # where `fit` is called
        self._placement = self._prepare(self._recipe, shapes, rows)
        kept = self._state if "compress" in self._placement.facts else replace(self._state, memory=None)
        self._state = self._placement.place(kept)
        if self.checkpoints is not None and "compress" in self.checkpoints.facts.get("plan", {}):
            del self.checkpoints.facts["plan"]  # it says what memory the state has
        if self._placement.facts:
            self._callbacks.placed(self._placement.facts)
            if self.checkpoints is not None:
                self.checkpoints.facts["plan"] = dict(self._placement.facts)
        return self._placement

    def _evaluate(self, held_out: Feed) -> Evaluation:
        if isinstance(held_out, ArrayFeed) and self._placement is not None:  # which may be newer than the feed
            held_out = replace(held_out, ways=self._placement.ways)
        return self._measure(self.weights(), held_out.epoch(0), self._placing)

    def _what_is_not_finite(self, feed: Feed, bad: NotFinite) -> str:
        """An error text; restores the weights before the step that produced the first non-finite value."""
        for step in (bad.step, bad.step - 1):
            batch = self._again(feed, step)
            found = culprit(self._recipe.objective, self.options.seed, self.whole_state(), batch)
            if not found.startswith("parameter"):
                break
        return (
            f"the loss is {bad.loss} at step {bad.step} (counted from 1): {found}. Lower the learning rate, warm it "
            "up or clip gradients (clip=1.0), and look for NaN or infinity in the data"
        )

    def _again(self, feed: Feed, step: int) -> Batch:
        """Go back, then forward again until `step` is the next one; returns its batch."""
        kept = self._rewind.back(self._state)
        if kept is not None:
            self._state, (self.epochs_done, self.steps_of_epoch, self.steps_done) = kept
        coming = feed.epoch(self.epochs_done, self.steps_of_epoch)
        while True:
            batch = next(coming, None)
            if batch is None:
                self.epochs_done, self.steps_of_epoch = self.epochs_done + 1, 0
                coming = feed.epoch(self.epochs_done)
            elif self.steps_done >= step - 1:
                return batch
            else:
                self._one_step(batch)


def _own(tree: Any) -> Any:
    return dict(tree) if isinstance(tree, dict) else tree
