"""Trainers and their reports in notebooks."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from cloud.train.callbacks import Callback, Fitting
from cloud.train.reports import EpochReport
from cloud.train.showing import reports_html, table_html

if TYPE_CHECKING:
    from cloud.train.stepping.step import Objective

__all__ = ["NotebookView", "Reports", "trainer_html"]


class Reports(list[EpochReport]):
    """The reports of a fit, a list that notebooks show as a table with curves."""

    def _repr_html_(self) -> str:
        return reports_html(self)


def trainer_html(trainer: Fitting, objective: Objective) -> str:
    """What a trainer trains, how far it is, and its last reports."""
    params = jax.tree_util.tree_leaves_with_path(trainer.whole_state().params)
    count = sum(int(np.prod(leaf.shape)) for _, leaf in params)
    facts = {
        "model": type(trainer.task).__name__, "inputs": ", ".join(trainer.task.inputs),
        "parameters": f"{count:,} numbers in {len(params)} arrays", "precision": objective.precision,
        "done": f"{trainer.epochs_done} epochs, {trainer.steps_done} steps",
    }  # fmt: skip
    return table_html(["", ""], [[name, value] for name, value in facts.items()])


class NotebookView(Callback):
    """Shows the reports in a notebook and keeps them up to date while a trainer fits:

        trainer.watch(NotebookView())

    Outside of a notebook, where IPython is not loaded, it shows nothing."""

    def __init__(self) -> None:
        self.reports = Reports()
        self._handle: Any = None

    def started(self, trainer: Fitting) -> None:
        """Begin with nothing."""
        self.reports, self._handle = Reports(), None

    def epoch_done(self, report: EpochReport) -> None:
        """Show it, in place of what was shown."""
        self.reports.append(report)
        shown = sys.modules.get("IPython.display")
        if shown is None:
            return
        if self._handle is None:
            self._handle = shown.display(self.reports, display_id=True)
        else:
            self._handle.update(self.reports)
