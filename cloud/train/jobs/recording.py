"""The record of a job in a store of runs, as [track] says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cloud.track.store import default_path
from cloud.track.tracked import Tracked
from cloud.train.jobs.job import Job

if TYPE_CHECKING:
    from cloud.track.copies import Copy
    from cloud.train.jobs.config import Config, Track

__all__ = ["copies_of", "store_of", "tracked_as"]


def store_of(config: Config) -> Path:
    """The file that [track] names."""
    said = config.track.store
    return config.path(said) if said else default_path()


def copies_of(said: Track) -> list[Copy]:
    """The other trackers that [track] names."""
    made: list[Copy] = []
    if said.mlflow:
        from cloud.track.copies.mlflow import MlflowCopy

        made.append(MlflowCopy(said.mlflow, said.experiment))
    if said.wandb:
        from cloud.track.copies.wandb import WandbCopy

        made.append(WandbCopy(said.wandb))
    return made


def tracked_as(
    job: Job, store: Path, *, name: str = "", seed: int | None = None, profile: int = 0, copies: Sequence[Copy] = (),
    parent: str = "",
) -> Tracked:  # fmt: skip
    """What records the job in `store`."""
    return Tracked(
        store, name=name, config=job.config, seed=seed, data=job.examples.digest, model=job.model, rate=job.rate,
        profile=profile, copies=copies, parent=parent,
    )  # fmt: skip
