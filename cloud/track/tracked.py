"""`Tracked`: a trainer's callback that records its run in a store."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from cloud.errors import TrackError
from cloud.track.copies import Copy, Follower
from cloud.track.facts import environment, git_state
from cloud.track.lineage import identity
from cloud.track.recorder import Recorder
from cloud.track.runs import Artifact, Histogram
from cloud.track.store import Store
from cloud.track.watching.outline import outline
from cloud.track.watching.profile import Profiled
from cloud.train.callbacks import Callback, Fitting
from cloud.train.reports import EpochReport, Evaluation

__all__ = ["Tracked", "spread"]

_BINS = 40
"""The most buckets; for few values, about the square root of their number."""
_TENSORS = 100
"""The most parameters whose distributions are recorded each epoch: the largest ones."""
_CELLS = 400
"""The most cells of a table that is recorded."""
_SAMPLE = 200_000
"""The most values of a parameter that are counted; with more, every n-th."""


class Tracked(Callback):
    """Records a run in the store at `path`, which is created if it does not exist: every step's scalars, every epoch's
    validation, step time and distribution of weights, and how the run ended.

    `config`: the settings as JSON data; `data`, `model`, `plan_digest`: digests of what it starts from; `parent`: the
    run that it continues (by default the one whose checkpoint the trainer resumed); `rate(step)`: the learning rate;
    `stops`: errors that mean that the run was stopped by the user rather than that it failed; `profile`: how many
    steps JAX's profiler watches, soon after the first ones (0: none); `copies`: other trackers that get the run too,
    from the store and in their own time (`cloud.track.copies`). The model's graph and the memory in use are
    recorded too. A step costs one append to a list. In a run with several processes the first one records.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, name: str = "", config: Mapping[str, Any] | None = None,
        seed: int | None = None, data: str = "", model: str = "", plan_digest: str = "",
        plan: Mapping[str, Any] | None = None, parent: str = "", rate: Callable[[int], float] | None = None,
        stops: tuple[type[BaseException], ...] = (KeyboardInterrupt, SystemExit), profile: int = 0,
        copies: Sequence[Copy] = (),
    ) -> None:  # fmt: skip
        self.path, self.run = os.fspath(path), ""
        self._facts: dict[str, Any] = {
            "name": name, "config": config, "seed": seed, "data": data, "model": model, "plan_digest": plan_digest,
            "plan": plan, "parent": parent,
        }  # fmt: skip
        self._rate, self._stops = rate, stops
        self._step, self._why = 0, ""
        self._trainer: Fitting | None = None
        self._recorder: Recorder | None = None
        self._drawn = False
        self._copies, self._followers = tuple(copies), list[Follower]()
        self._profiled = Profiled(lambda found: self.document("profile", found), profile) if profile else Callback()

    def started(self, trainer: Fitting) -> None:
        """Start a run; further calls of `fit` continue it."""
        if jax.process_index():
            return
        with Store(self.path, create=True) as store:
            if self.run:
                store.reopen(self.run)
            else:
                facts = {**self._facts, "parent": self._facts["parent"] or _parent(trainer, store)}
                self.run = store.start(**facts, environment=environment(), git=git_state(Path.cwd()))
        if trainer.checkpoints is not None:
            trainer.checkpoints.facts["run"] = self.run
        self._trainer, self._recorder = trainer, Recorder(self.path, self.run)
        self._followers = self._followers or [Follower(self.path, self.run, copy) for copy in self._copies]
        for follower in self._followers:
            follower.start()
        self._draw(trainer)
        self._profiled.started(trainer)

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the step's values as step/NAME, and the learning rate of the step as rate."""
        self._step = step
        if self._recorder is not None and self._trainer is not None:
            values = {f"step/{name}": value for name, value in metrics.items()}
            if self._rate is not None:
                values["rate"] = self._rate(step - 1) * self._trainer.pace
            self._recorder.scalars(step, values)
            self._profiled.stepped(step, metrics)
            if not self._drawn:
                self._draw(self._trainer)

    def evaluated(self, step: int, found: Evaluation) -> None:
        """Record validation/NAME, also between the steps of an epoch; a table with few cells is an event."""
        if self._recorder is not None:
            values = {"loss": found.loss, **found.metrics}
            self._recorder.scalars(step, {f"validation/{name}": value for name, value in values.items()})
            for name, table in found.tables.items():
                if table.size <= _CELLS:
                    self.event("table", f"{name} after step {step}: {table.tolist()}")

    def noted(self, step: int, text: str) -> None:
        """Record an event."""
        self.event("decision", f"step {step}: {text}")

    def epoch_done(self, report: EpochReport) -> None:
        """Record train/NAME, time/PART (seconds per step; time/epoch: total), weights/NAME."""
        if self._recorder is None or self._trainer is None:
            return
        values = {"epoch": float(report.epoch), "time/epoch": report.seconds}
        values |= {f"time/{part}": seconds / max(report.steps, 1) for part, seconds in report.times.items()}
        found = report.training
        values |= {"train/loss": found.loss, **{f"train/{n}": v for n, v in found.metrics.items()}}
        self._recorder.scalars(self._step, values)
        if jax.process_count() > 1:
            return  # only all processes together could gather sharded weights
        spreads = {name: spread(self._step, a) for name, a in _largest(self._trainer.whole_state().params).items()}

        def write(store: Store) -> None:
            for name, made in spreads.items():
                store.add_histogram(self.run, f"weights/{name}", made)

        self._keep(write)

    def placed(self, plan: Mapping[str, Any]) -> None:
        """Record the plan and its digest."""
        self.describe(plan=dict(plan), plan_digest=str(plan.get("digest", "")))

    def saved(self, path: Path) -> None:
        """Record an event."""
        self.event("checkpoint", str(path))

    def stopping(self, why: str) -> None:
        """Note that `fit` will end early because it was asked to stop."""
        self._why = why

    def finished(self, trainer: Fitting) -> None:
        """Record the end: completed, or stopped on request."""
        self._profiled.finished(trainer)
        self._end("stopped" if self._why else "finished", self._why)

    def failed(self, error: BaseException) -> None:
        """Record the end by an error."""
        self._profiled.failed(error)
        stopped = isinstance(error, self._stops)
        self._end("stopped" if stopped else "failed", str(error) or type(error).__name__)

    def event(self, kind: str, text: str) -> None:
        """Record an event."""
        if self.run:
            self._keep(lambda store: store.add_event(self.run, kind, text))

    def document(self, name: str, body: Mapping[str, Any]) -> None:
        """Record JSON data under a name; nothing is recorded if there is none."""
        if self.run and body:
            self._keep(lambda store: store.add_document(self.run, name, body))

    def _draw(self, trainer: Fitting) -> None:
        """Record the model's graph as soon as it is known: of a JAX function when inputs are."""
        if not self._drawn:
            graph = outline(trainer.task, trainer.input_shapes)
            self._drawn = bool(graph) or trainer.input_shapes is not None
            self.document("graph", graph)

    def describe(self, **facts: Any) -> None:
        """Set fields that became known after the start: see `Store.describe`."""
        if self.run:
            self._keep(lambda store: store.describe(self.run, **facts))
        else:
            self._facts |= facts

    def left(self, kind: str, path: str | os.PathLike[str]) -> None:
        """Record a file that the run wrote: "onnx", "bundle" … A bundle itself contains what it was made from."""
        if self.run:
            digest, source = identity(path)
            size = os.path.getsize(path)
            made = Artifact(kind, os.path.abspath(path), digest, size, time.time(), source)
            with Store(self.path) as store:
                store.add_artifact(self.run, made)
            for follower in self._followers:
                follower.file(made)

    def close(self) -> None:
        """Nothing follows, no file either: end the copies in other trackers."""
        for follower in self._followers:
            follower.close()

    def _end(self, state: str, error: str) -> None:
        if self._recorder is None:
            return
        recorder, self._recorder, self._trainer = self._recorder, None, None

        def end(store: Store) -> None:
            recorder.close()
            store.end(self.run, state, error)

        self._keep(end)
        for follower in self._followers:
            follower.end()

    def _keep(self, write: Callable[[Store], None]) -> None:
        """A record that cannot be written causes a warning; training continues."""
        try:
            with Store(self.path) as store:
                write(store)
        except TrackError as problem:
            warnings.warn(f"the record of run {self.run} is incomplete: {problem}", RuntimeWarning, stacklevel=3)


def _parent(trainer: Fitting, store: Store) -> str:
    """The run whose checkpoint this one continues from, if it is in the store."""
    said = trainer.checkpoints.restored.get("run", "") if trainer.checkpoints is not None else ""
    return next((run.id for run in store.runs() if run.id == said), "")


def spread(step: int, array: Any) -> Histogram:
    """The distribution of a tensor's finite values; of very many values a sample is counted."""
    values = np.asarray(array, np.float64).ravel()
    norm = float(np.sqrt(np.square(values).sum()))
    values = values[:: max(1, values.size // _SAMPLE)]
    values = values[np.isfinite(values)]
    counts, edges = np.histogram(values, bins=min(_BINS, max(4, round(values.size**0.5))))
    mean = float(values.mean()) if values.size else 0.0
    return Histogram(step, tuple(edges.tolist()), tuple(counts.tolist()), mean, norm)


def _largest(params: Any) -> dict[str, Any]:
    """The float parameters by name, on this host."""
    found = {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        if leaf.size > 1 and leaf.is_fully_addressable
    }
    names = sorted(found, key=lambda name: -found[name].size)[:_TENSORS]
    return {name: jax.device_get(found[name]) for name in found if name in names}
