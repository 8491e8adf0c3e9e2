"""The errors of the cloud. Their text says what was expected, what was given, where, and the fix."""

from __future__ import annotations

from lite_runtime.errors import MsedgeError

__all__ = [
    "AuditError", "CheckpointError", "ClusterError", "DataError", "EngineError", "NotFiniteError", "PlanError",
    "SearchError", "TrackError", "TrainError", "take_multiple",
]  # fmt: skip


class AuditError(MsedgeError):
    """A model cannot be attacked as asked: inputs or labels that do not fit, no gradient, a setting out of range."""


class EngineError(MsedgeError):
    """A model cannot become a JAX function, or was called with inputs it does not take."""


class TrainError(MsedgeError):
    """Training cannot start or continue: empty data or wrong shapes, a loss that is not finite, a bad option."""


class NotFiniteError(TrainError):
    """The loss became NaN or infinite."""


class DataError(MsedgeError):
    """A data pipeline cannot be built, read or resumed."""


class PlanError(MsedgeError):
    """A step cannot be split: too little memory, sizes that do not divide, a plan made for something else."""


class CheckpointError(MsedgeError):
    """A checkpoint cannot be written, or none of those there can be read."""


class ClusterError(MsedgeError):
    """A cluster or its jobs cannot be read or run: a file that contradicts itself, a job that fits nowhere."""


class SearchError(MsedgeError):
    """A search cannot start or go on: a task that does not fit its data, a budget that no network meets."""


class TrackError(MsedgeError):
    """The store of runs cannot be read or written, or has no such run."""


def take_multiple(rows: int, ways: int) -> str:
    """The fix for a batch of `rows` that `ways` does not divide: "use 8 or 16"."""
    below = rows // ways * ways
    return f"use {f'{below} or ' if below else ''}{below + ways}"
