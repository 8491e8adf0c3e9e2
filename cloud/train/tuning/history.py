"""A study's trials in an SQLite file, and what to try next: the only module that knows optuna.

The values of trial number n depend on the seed, n and the trials before it alone: every trial has a sampler of its own,
so that nothing of a sampler has to be kept.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cloud.errors import TrainError
from cloud.train.tuning.space import Dimension, Range

__all__ = ["History", "Trial"]

_STARTUP = 8
"""Trials at random before the first that depends on results."""


@dataclass(frozen=True)
class Trial:
    """One trial: values by key; `state` is "running", "finished", "pruned" or "failed"; `curve`: the metric after each
    evaluation; `value`: the result of a finished one; `facts`: JSON data: "run", "why", "seconds", "files"."""

    number: int
    values: Mapping[str, Any]
    state: str
    value: float | None = None
    curve: tuple[float, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_data(self) -> dict[str, Any]:
        """JSON data for people, without its files."""
        facts = {key: self.facts[key] for key in ("run", "seconds", "why") if key in self.facts}
        return {
            "number": self.number, "state": self.state, "values": dict(self.values), "value": self.value,
            "curve": list(self.curve), **facts,
        }  # fmt: skip


class History:
    """The trials in the file `path`, which is made if it does not exist; every call is written before it returns.

    `lower`: less of the metric is better; `method`: "bayes" or "random".
    """

    def __init__(
        self, path: str | os.PathLike[str], space: Mapping[str, Dimension], *, lower: bool, method: str, seed: int
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        self._space, self._method, self._seed = dict(space), method, seed
        file = os.path.abspath(path)
        try:
            self._storage: Any = optuna.storages.RDBStorage("sqlite://", {"creator": lambda: _connected(file)})
            self._study: Any = optuna.create_study(
                storage=self._storage, study_name="msedge", direction="minimize" if lower else "maximize",
                load_if_exists=True,
            )  # fmt: skip
            found = self._study.get_trials(deepcopy=False)
        except Exception as error:  # library: SQLAlchemy's and optuna's, for a file that is none of theirs
            raise TrainError(f"{file!r}: expected the trials of a study: {error}; use another [tune] folder") from error
        self.lower = lower
        self._ids = [trial._trial_id for trial in found]
        self._trials = [self._trial(trial) for trial in found]

    def close(self) -> None:
        """Close the file."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    @property
    def about(self) -> dict[str, Any]:
        """JSON data about the study; {} in a new one."""
        return dict(json.loads(self._study.user_attrs.get("about", "{}")))

    def describe(self, **facts: Any) -> None:
        """Add to `about`."""
        self._study.set_user_attr("about", json.dumps({**self.about, **facts}, sort_keys=True))

    def trials(self) -> list[Trial]:
        """All trials, in order."""
        return list(self._trials)

    def best(self) -> Trial | None:
        """The finished trial with the best value, the first of equals."""
        done = [
            (trial.value if self.lower else -trial.value, trial) for trial in self._trials if trial.value is not None
        ]
        return min(done, key=lambda pair: pair[0])[1] if done else None

    def ask(self) -> Trial:
        """A new trial, in state "running"."""
        self._study.sampler = self._sampler(len(self._trials), 0)
        trial = self._study.ask()
        self._ids.append(trial._trial_id)
        self._trials.append(self._drawn(trial))
        return self._trials[-1]

    def again(self) -> list[Trial]:
        """Trials that are in state "running", with the values that they have or would have had."""
        from optuna.trial import Trial as Drawing

        for each in [trial for trial in self._trials if trial.state == "running"]:
            self._study.sampler = self._sampler(each.number, 0)
            drawn = self._drawn(Drawing(self._study, self._ids[each.number]))
            self._trials[each.number] = replace(each, values=drawn.values)
        return [trial for trial in self._trials if trial.state == "running"]

    def evaluated(self, number: int, at: int, value: float) -> Trial:
        """Keep the metric after evaluation `at` (from 1) of a trial; one that is known already is not changed."""
        trial = self._trials[number]
        if at > len(trial.curve):
            self._storage.set_trial_intermediate_value(self._ids[number], at, value)
            self._trials[number] = replace(trial, curve=(*trial.curve, value))
        return self._trials[number]

    def note(self, number: int, **facts: Any) -> None:
        """Add facts to a trial that is running."""
        made = {**self._trials[number].facts, **facts}
        if made != self._trials[number].facts:
            self._storage.set_trial_user_attr(self._ids[number], "facts", json.dumps(made, sort_keys=True))
            self._trials[number] = replace(self._trials[number], facts=made)

    def end(self, number: int, state: str, value: float | None = None, **facts: Any) -> Trial:
        """End a trial as "finished" (with its value), "pruned" or "failed"."""
        from optuna.trial import TrialState

        self.note(number, **facts)
        states = {"finished": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
        self._storage.set_trial_state_values(self._ids[number], states[state], None if value is None else [value])
        self._trials[number] = replace(self._trials[number], state=state, value=value)
        return self._trials[number]

    def _sampler(self, number: int, part: int) -> Any:
        """The same whenever it is asked for; `part`: 0 for what depends on all keys together, then one for each key."""
        from optuna.samplers import RandomSampler, TPESampler

        seed = int(np.random.SeedSequence([self._seed, number, part]).generate_state(1)[0])
        if self._method == "random":
            return RandomSampler(seed=seed)
        return TPESampler(seed=seed, n_startup_trials=_STARTUP, multivariate=True, constant_liar=True)

    def _drawn(self, trial: Any) -> Trial:
        """A trial with values for all keys; those it has already stay."""
        for part, (key, one) in enumerate(self._space.items(), 1):
            self._study.sampler = self._sampler(trial.number, part)
            if isinstance(one, Range):
                draw = trial.suggest_int if one.integer else trial.suggest_float
                draw(key, *one.ends, log=one.log)
            else:
                trial.suggest_categorical(key, [json.dumps(value, sort_keys=True) for value in one.choices])
        return Trial(trial.number, self._values(trial.params), "running")

    def _values(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        return {k: v if isinstance(self._space.get(k), Range) else json.loads(v) for k, v in drawn.items()}

    def _trial(self, found: Any) -> Trial:
        states = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed"}
        curve = tuple(found.intermediate_values[at] for at in sorted(found.intermediate_values))
        facts = json.loads(found.user_attrs.get("facts", "{}"))
        state = states.get(found.state.name, "running")
        return Trial(
            found.number, self._values(found.params), state, found.value if state == "finished" else None, curve, facts
        )


def _connected(file: str) -> sqlite3.Connection:
    """What is committed survives a kill of this process; only a crash of the machine may lose the newest."""
    made = sqlite3.connect(file, timeout=30, check_same_thread=False)
    made.execute("PRAGMA journal_mode = wal")
    made.execute("PRAGMA synchronous = normal")
    return made
