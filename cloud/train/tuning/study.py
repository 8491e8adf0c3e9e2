"""A study: trials of a run's file, as [tune] says, until its limits; every trial is a run in the store."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloud._folders import holding
from cloud.errors import TrackError, TrainError
from cloud.track.facts import environment, git_state
from cloud.track.lineage import identity
from cloud.track.recorder import Recorder
from cloud.track.runs import Artifact
from cloud.track.store import Store
from cloud.train.jobs.config import Config, parse, read
from cloud.train.jobs.job import job_of
from cloud.train.jobs.recording import store_of
from cloud.train.jobs.sections import overridden
from cloud.train.tuning.halving import stops
from cloud.train.tuning.history import History, Trial
from cloud.train.tuning.pool import Pool, Processes
from cloud.train.tuning.space import Choices, Tune, change_of
from cloud.train.tuning.trial import Message
from lite_runtime._files import write_atomically

__all__ = ["Outcome", "changes_of", "tune"]

_LOOK = 0.2
_LOSSES = 3
"""A trial whose process was lost this often has failed."""
_FAILURES = 3
"""A study ends if this many trials have failed and none has succeeded."""
_LIMITS = ("trials", "evaluations", "seconds", "processes", "folder")
"""Keys of [tune] that may differ when a study is continued."""


@dataclass(frozen=True)
class Outcome:
    """A study: `run` is its id in the store; `files`: those of [export], by kind, of the best trial; `ended`: why no
    further trial began; `complete`: whether none is left in the middle."""

    run: str
    store: str
    folder: str
    metric: str
    lower: bool
    trials: tuple[Trial, ...]
    best: Trial | None
    files: Mapping[str, str]
    ended: str
    complete: bool

    @property
    def evaluations(self) -> int:
        """Evaluations of all trials together."""
        return sum(len(trial.curve) for trial in self.trials)


def changes_of(trial: Trial) -> list[str]:
    """What makes the run's file this trial's: see `msedge train --set`."""
    return [change_of(key, value) for key, value in trial.values.items()]


def tune(
    path: str | os.PathLike[str], changes: Sequence[str] = (), *, resume: bool = False,
    store: str | os.PathLike[str] | None = None, pool: Callable[[int], Pool] = Processes,
    progress: Callable[[Trial], None] = lambda trial: None, stop: Callable[[], str] = lambda: "",
) -> Outcome:  # fmt: skip
    """Search for the best settings of the run's file at `path`, with "section.key=value" `changes`.

    Every trial is a run with changes, recorded in the store (`store`, else that of [track]) with the study as its
    parent. `resume`: continue the study in [tune] folder: trials that were running are run again with the same values.
    `pool(count)`: where trials run; `progress`: called when one begins, is evaluated and ends; `stop()`: why to
    interrupt now, "" to go on. Raises TrainError.
    """
    config = read(path, changes)
    said = config.tune
    if said is None:
        raise TrainError('[tune]: expected this section with space = { "train.rate" = { low = 1e-4, high = 0.1 } }')
    _check_space(config, said)
    job = job_of(config)
    lower = job.trainer.is_lower_better(said.metric) if not said.mode else said.mode == "min"
    folder = config.path(said.folder).absolute()
    with holding(folder, "study", "study.sqlite", resume, "tune.folder", TrainError):
        history = History(
            folder / "study.sqlite", said.dimensions, lower=lower, method=said.method, seed=said.seed
        )  # fmt: skip
        try:
            _check_same(history, config, said, folder)
            where = Path(store) if store is not None else store_of(config)
            study = _Study(config, said, folder, history, where.absolute(), progress, stop)
            return study.run(pool(said.processes), job.examples.digest)
        finally:
            history.close()


def _check_space(config: Config, said: Tune) -> None:
    """The file is valid with each end of each range and with each choice."""
    for key, one in said.dimensions.items():
        for value in one.ends:
            change = change_of(key, value)
            try:
                parse(overridden(config.source, [change]), config.folder)
            except TrainError as error:
                kind = "a choice" if isinstance(one, Choices) else "an end of the range"
                raise TrainError(f"tune.space.{key}: {change} ({kind}) is refused: {error}") from error


def _check_same(history: History, config: Config, said: Tune, folder: Path) -> None:
    """A study is continued with the file that it began with."""
    mine = _flat({**config.source, "tune": {k: v for k, v in dict(config.source["tune"]).items() if k not in _LIMITS}})
    before = history.about.get("file")
    if before is None:
        history.describe(file=mine)
        return
    differ = [key for key in {**before, **mine} if before.get(key) != mine.get(key)]
    if differ:
        key = differ[0]
        raise TrainError(
            f"{str(folder)!r} is a study of another file: {key} was {before.get(key)!r}, is {mine.get(key)!r}; "
            "set it back, or name another tune.folder"
        )


def _flat(value: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, inner in value.items():
        made |= _flat(inner, f"{before}{key}.") if isinstance(inner, Mapping) else {f"{before}{key}": inner}
    return made


@dataclass
class _Study:
    config: Config
    said: Tune
    folder: Path
    history: History
    store: Path
    progress: Callable[[Trial], None]
    stop: Callable[[], str]
    run_id: str = ""
    ended: str = ""
    begun: float = field(default_factory=time.monotonic)
    pending: list[Trial] = field(default_factory=list)
    """Trials that were running when the study ended, or whose process was lost."""
    busy: dict[int, int] = field(default_factory=dict)
    """Workers and the numbers of their trials."""
    losses: dict[int, int] = field(default_factory=dict)
    positions: dict[int, int] = field(default_factory=dict)
    """Evaluations of the trials that run, since they began (again)."""
    shown: float = 0.0

    def run(self, pool: Pool, data: str) -> Outcome:
        """Trials until a limit, then the files of the best."""
        recorder = self._recorded(data)
        state, why = "failed", "the study was interrupted"
        try:
            self.pending = self.history.again()
            try:
                self._work(pool)
            finally:
                pool.close()
            files = self._published()
            complete = not self.history.again()
            state, why = ("finished", "") if complete else ("stopped", self.ended)
        except BaseException as error:
            why = str(error) or type(error).__name__
            raise
        finally:
            self._show()
            if recorder is not None:
                recorder.close()
                with Store(self.store) as store:
                    store.end(self.run_id, state, why)
        best = self.history.best()
        return Outcome(
            self.run_id, os.fspath(self.store), os.fspath(self.folder), self.said.metric, self.history.lower,
            tuple(self.history.trials()), best, files, self.ended, complete,
        )  # fmt: skip

    def _work(self, pool: Pool) -> None:
        while True:
            interrupted = self.stop() or (self._late() and "its time, tune.seconds")
            if interrupted:
                self.ended = str(interrupted)
                return
            for worker in range(pool.size):
                if worker not in self.busy and (trial := self._next()) is not None:
                    self.positions.pop(trial.number, None)
                    self.busy[worker] = trial.number
                    pool.send(worker, self._order(trial))
                    self.progress(trial)
            if not self.busy:
                return
            for worker, message in pool.wait(_LOOK):
                answer = self._heard(worker, message)
                if answer is not None:
                    pool.send(worker, answer)

    def _late(self) -> bool:
        return bool(self.said.seconds) and time.monotonic() - self.begun > self.said.seconds

    def _next(self) -> Trial | None:
        if self.pending:
            return self.pending.pop(0)
        there = self.history.trials()
        if len(there) >= self.said.trials:
            self.ended = f"all of its {self.said.trials} trials, tune.trials"
            return None
        used = sum(len(trial.curve) for trial in there)
        if self.said.evaluations and used >= self.said.evaluations:
            self.ended = f"{used} evaluations, tune.evaluations"
            return None
        return self.history.ask()

    def _order(self, trial: Trial) -> Message:
        words = {name: table for name, table in self.config.source.items() if name not in ("tune", "checkpoint")}
        name = f"{self.config.track.name or 'trial'} {trial.number}"
        return {
            "number": trial.number, "words": overridden(words, changes_of(trial)), "name": name,
            "folder": os.fspath(self.config.folder), "store": os.fspath(self.store), "parent": self.run_id,
            "metric": self.said.metric, "files": os.fspath(self._files(trial.number)),
        }  # fmt: skip

    def _files(self, number: int) -> Path:
        return self.folder / f"trial-{number:04}"

    def _heard(self, worker: int, message: Message) -> Message | None:
        """Keep what a worker told; returns the answer."""
        number = self.busy.get(worker)
        if number is None:
            return None
        if message["kind"] == "evaluated":
            return {"stop": self._evaluated(number, message)}
        if message["kind"] == "value":
            best = self.history.best()
            value = message["value"]
            return {"keep": best is None or best.value is None or self._better(value, best.value)}
        del self.busy[worker]
        if message["kind"] == "lost":
            self.losses[number] = self.losses.get(number, 0) + 1
            if self.losses[number] < _LOSSES:
                self.pending.append(self.history.trials()[number])
                return None
        self._over(number, message)
        return None

    def _better(self, value: float, other: float) -> bool:
        return value < other if self.history.lower else value > other

    def _evaluated(self, number: int, message: Message) -> bool:
        """Whether the trial ends here."""
        done = self.positions.get(number, 0) + 1
        self.positions[number] = done
        self.history.note(number, run=message["run"])
        trial = self.history.evaluated(number, done, float(message["value"]))
        self.progress(trial)
        self._show(soon=True)
        others = [each.curve for each in self.history.trials() if each.number != number]
        ends = stops(
            trial.curve[:done], others, lower=self.history.lower, least=self.said.least, factor=self.said.halving
        )
        return ends and not message["last"]

    def _over(self, number: int, message: Message) -> None:
        state = "failed" if message["kind"] == "lost" else str(message["kind"])
        facts = {key: message[key] for key in ("why", "seconds", "files") if message.get(key)}
        before = self.history.best()
        trial = self.history.end(number, state, message.get("value"), **facts)
        best = self.history.best()
        for gone in {t.number for t in (before, trial) if t} - {best.number if best else -1}:
            shutil.rmtree(self._files(gone), ignore_errors=True)
        self.progress(trial)
        self._show()
        trials = self.history.trials()
        failed = [trial for trial in trials if trial.state == "failed"]
        if len(failed) >= _FAILURES and not any(trial.state in ("finished", "pruned") for trial in trials):
            raise TrainError(f"the first {len(failed)} trials failed; the last one: {failed[-1].facts.get('why')}")

    # --- the record and the files

    def _recorded(self, data: str) -> Recorder | None:
        """Start the study's run in the store, or continue it."""
        if not self.config.track.keep:
            return None
        with Store(self.store, create=True) as store:
            before = self.history.about.get("run", "")
            if before in {run.id for run in store.runs()}:
                self.run_id = before
                store.reopen(before)
                store.add_event(before, "resumed", f"with {len(self.history.trials())} trials")
            else:
                name = self.config.track.name
                self.run_id = store.start(
                    name=f"study of {name}" if name else "study", config=self.config.source, seed=self.said.seed,
                    data=data, environment=environment(), git=git_state(Path.cwd()),
                )  # fmt: skip
                self.history.describe(run=self.run_id)
        return Recorder(self.store, self.run_id)

    def _show(self, soon: bool = False) -> None:
        """Write the trials into the study's run; `soon`: only if that is a while ago."""
        if not self.run_id or (soon and time.monotonic() - self.shown < 2.0):
            return
        self.shown = time.monotonic()
        rows = [trial.as_data() for trial in self.history.trials()]
        body = {"metric": self.said.metric, "lower": self.history.lower, "trials": rows}
        with contextlib.suppress(TrackError), Store(self.store) as store:
            store.add_document(self.run_id, "study", body)

    def _published(self) -> dict[str, str]:
        """Copy the best trial's files to where [export] says."""
        best = self.history.best()
        if best is None:
            return {}
        made = {}
        for kind, source in best.facts.get("files", {}).items():
            target = self.config.path(getattr(self.config.export, kind))
            try:
                write_atomically(target, Path(source).read_bytes(), TrainError)
            except OSError as error:
                raise TrainError(f"{source!r}, the best trial's file, cannot be read: {error.strerror}") from error
            made[kind] = os.fspath(target)
            if self.run_id:
                digest, parent = identity(target)
                size = target.stat().st_size
                with Store(self.store) as store:
                    at = os.path.abspath(target)
                    store.add_artifact(self.run_id, Artifact(kind, at, digest, size, time.time(), parent))
        return made
