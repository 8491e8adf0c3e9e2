"""Runs in MLflow: a tracking server, a database ("sqlite:///mlflow.db", which needs no server) or a folder.

Interface: MLflow 3's `MlflowClient`, https://mlflow.org/docs/latest/api_reference/python_api/mlflow.client.html
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

from cloud.errors import TrackError
from cloud.track.copies.copy import flat
from cloud.track.runs import Artifact, Run, Series

__all__ = ["MlflowCopy"]

_BATCH, _PARAMS, _LETTERS = 1000, 100, 6000
"""The most metrics and parameters that a request may have, and letters of a parameter."""
_TAG = "msedge.run"
_STATES = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED", "lost": "FAILED", "running": "RUNNING"}
_PLAIN = str.maketrans({c: "_" for c in "\\:*?\"'<>|#%&()[]{}=,;!@$^~`+"})
"""Letters that MLflow takes in no name of a metric or parameter."""


class MlflowCopy:
    """Runs in the `experiment` of the server or store at `uri` ("": MLFLOW_TRACKING_URI). A run of the store that is
    there already, by its tag "msedge.run", is continued, so nothing is there twice."""

    what = "MLflow"

    def __init__(self, uri: str = "", experiment: str = "msedge") -> None:
        self._uri, self._experiment, self._id = uri, experiment or "msedge", ""
        self._client: Any = None

    def begin(self, run: Run) -> None:
        """See `Copy`."""
        from mlflow.tracking import MlflowClient

        with self._reaching():
            self._client = self._client or MlflowClient(tracking_uri=self._uri or None)
            known = self._client.get_experiment_by_name(self._experiment)
            where = self._client.create_experiment(self._experiment) if known is None else known.experiment_id
            there = self._client.search_runs([where], f"tags.`{_TAG}` = '{run.id}'", max_results=1)
            if there:
                self._id = there[0].info.run_id
                self._client.update_run(self._id, status="RUNNING")
                return
            named = {"run_name": run.name or run.id, "start_time": _milliseconds(run.created)}
            self._id = self._client.create_run(where, tags=_tags(run), **named).info.run_id
            self._log_params(run)

    def scalars(self, run: Run, series: Mapping[str, Series]) -> None:
        """See `Copy`."""
        from mlflow.entities import Metric

        points = (
            Metric(_name(name), value, _milliseconds(at), step)
            for name, found in series.items()
            for step, value, at in zip(found.steps, found.values, found.times, strict=True)
            if math.isfinite(value)
        )
        with self._reaching():
            while batch := list(islice(points, _BATCH)):
                self._client.log_batch(self._id, metrics=batch)

    def file(self, made: Artifact) -> None:
        """See `Copy`."""
        with self._reaching():
            self._client.log_artifact(self._id, made.path, made.kind)
            self._client.set_tag(self._id, f"msedge.digest.{made.kind}", made.digest)

    def end(self, run: Run) -> None:
        """See `Copy`."""
        ended = None if run.ended is None else _milliseconds(run.ended)
        with self._reaching():
            if run.error:
                self._client.set_tag(self._id, "msedge.error", run.error[:_LETTERS])
            self._client.set_terminated(self._id, _STATES[run.state], ended)

    def close(self) -> None:
        """See `Copy`: MLflow holds nothing open."""

    def _log_params(self, run: Run) -> None:
        from mlflow.entities import Param

        params = iter([Param(_name(key), value[:_LETTERS]) for key, value in flat(run.config).items()])
        while batch := list(islice(params, _PARAMS)):
            self._client.log_batch(self._id, params=batch)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # library: MLflow passes on what its stores and requests raise
            where = self._uri or "MLFLOW_TRACKING_URI"
            raise TrackError(f"cannot write to MLflow at {where}: {_first(error)}; check the address") from error


def _first(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:400]


def _name(text: str) -> str:
    return text.translate(_PLAIN)


def _milliseconds(seconds: float) -> int:
    return round(1000 * seconds)


def _tags(run: Run) -> dict[str, str]:
    facts = {
        _TAG: run.id, "msedge.data": run.data, "msedge.model": run.model, "msedge.parent": run.parent,
        "mlflow.source.git.commit": str(run.git.get("commit", "")), "msedge.seed": str(run.seed),
    }  # fmt: skip
    return {name: text for name, text in facts.items() if text}
