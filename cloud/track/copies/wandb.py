"""Runs in Weights & Biases, online or offline (WANDB_MODE=offline; `wandb sync` sends what lies in the folder `wandb`).

Interface: https://docs.wandb.ai/ref/python/ (`init`, `Run.log`, `Run.save`, `Run.finish`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cloud.errors import TrackError
from cloud.track.copies.copy import flat
from cloud.track.runs import Artifact, Run, Series

__all__ = ["WandbCopy"]


class WandbCopy:
    """Runs in `project`, under the id that they have in the store: a run that is there already is continued. `folder`:
    where W&B keeps its files, by default WANDB_DIR or the working folder. Steps must rise there: points of a step that
    is past, as in an export into a run that has them, are left out by W&B."""

    what = "Weights & Biases"

    def __init__(self, project: str = "msedge", folder: str | os.PathLike[str] | None = None) -> None:
        self._project, self._folder = project or "msedge", folder
        self._run: Any = None

    def begin(self, run: Run) -> None:
        """See `Copy`."""
        import wandb

        if self._run is not None:
            return
        settings = wandb.Settings(console="off", silent=True, disable_git=True, disable_code=True, x_disable_stats=True)
        folder = None if self._folder is None else os.fspath(self._folder)
        with self._reaching():
            self._run = wandb.init(
                project=self._project, id=run.id, name=run.name or run.id, resume="allow", settings=settings,
                config={**flat(run.config), **_facts(run)}, dir=folder,
            )  # fmt: skip

    def scalars(self, run: Run, series: Mapping[str, Series]) -> None:
        """See `Copy`."""
        by_step: dict[int, dict[str, float]] = {}
        for name, found in series.items():
            for step, value in zip(found.steps, found.values, strict=True):
                if math.isfinite(value):
                    by_step.setdefault(step, {})[name] = value
        with self._reaching():
            for step in sorted(by_step):
                self._run.log(by_step[step], step=step)

    def file(self, made: Artifact) -> None:
        """See `Copy`."""
        with self._reaching():
            self._run.summary[f"files/{made.kind}"] = {"digest": made.digest, "bytes": made.bytes, "path": made.path}
            self._run.save(made.path, base_path=os.path.dirname(made.path), policy="now")

    def end(self, run: Run) -> None:
        """See `Copy`."""
        with self._reaching():
            self._run.summary["state"] = run.state
            if run.error:
                self._run.summary["error"] = run.error

    def close(self) -> None:
        """See `Copy`."""
        run, self._run = self._run, None
        if run is not None:
            with self._reaching():
                run.finish()

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # library: W&B passes on what its requests and its service raise
            said = f"{type(error).__name__}: {error}".partition("\n")[0][:400]
            raise TrackError(f"cannot write to Weights & Biases: {said}; WANDB_MODE=offline needs no server") from error


def _facts(run: Run) -> dict[str, Any]:
    facts = {"seed": run.seed, "data": run.data, "model": run.model, "parent": run.parent, "git": dict(run.git)}
    return {f"msedge.{name}": value for name, value in facts.items() if value not in (None, "", {})}
