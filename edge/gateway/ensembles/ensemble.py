"""A version of an ensemble, and the versions of its models that answer a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import NamedTuple

from edge.gateway.ensembles.fitting import fit
from edge.gateway.ensembles.scheduling import Scheduling, Step
from edge.gateway.errors import GatewayError
from edge.gateway.models.config import ModelConfig
from edge.gateway.models.entry import Asleep
from edge.gateway.models.served import Served
from edge.gateway.models.serving import Serving
from edge.gateway.ports import Ports

__all__ = ["Assembly", "Choice", "Ensemble", "Find", "Target", "as_target", "target_of"]

Find = Callable[[str, str, str], Serving]
"""(model, version or label, request id) -> the version that answers; raises as `Repository.route` does."""

DEPTH = 8
"""Ensembles inside one another."""
MOST_RUNS = 256
"""Models that one request may run: an ensemble that is used several times counts as often."""
KEPT = 16
"""Combinations of versions for which it is remembered whether they fit together."""
_REFUSED: Mapping[str, str] = {
    "ladder": "an ensemble computes no batches of its own; set it for its models",
    "shadow": "a shadow is a version of a model; set it for its models",
    "pinned": "an ensemble holds no memory; set it for its models",
}
"""Settings that an ensemble cannot have, and why."""


class _Fitted(NamedTuple):
    """What a combination of versions makes of an ensemble: its ports, class labels by output, and how many models are
    run for one request."""

    ports: Ports
    labels: Mapping[str, Sequence[str]]
    runs: int


class Ensemble(Serving):
    """One loaded version of an ensemble; it refers to its models by name, so that they may come, change and go."""

    __slots__ = ("_find", "_fitted", "scheduling")

    def __init__(
        self, name: str, version: int, scheduling: Scheduling, config: ModelConfig, digest: str, find: Find,
        forget: Callable[[Serving], None] = lambda served: None,
    ) -> None:  # fmt: skip
        super().__init__(name, version, config, digest, forget)
        self.scheduling, self._find = scheduling, find
        self._fitted: dict[tuple[int, ...], _Fitted | GatewayError] = {}

    @property
    def problem(self) -> str:
        """Why it is not ready: a model that is missing, or does not fit; "" if it is ready, perhaps after models that
        were unloaded to save memory are loaded again."""
        try:
            self.assembled(self.choice())
        except Asleep:
            return ""
        except GatewayError as error:
            return str(error)
        return ""

    @property
    def most_rows(self) -> int | None:
        """The most rows of a request, if there is a limit; 0: no axis of rows."""
        limits = [n for n in (self.config.max_batch, self.scheduling.max_batch) if n is not None]
        return min(limits, default=None)

    def choice(self, request_id: str = "") -> Choice:
        """For `assembled`: the versions for one request, none of which is chosen yet."""
        return Choice(self._find, request_id)

    def check(self, config: ModelConfig) -> None:
        """See `Serving`."""
        for key, why in _REFUSED.items():
            if getattr(config, key):
                raise GatewayError(400, f"{key}: {why}")

    def assembled(self, choice: Choice, above: tuple[str, ...] = ()) -> Assembly:
        """The ensemble with one version of each of its models. above: the ensembles that this one is a part of.

        Raises `Asleep` for a model that was unloaded to save memory: then await `Repository.wake` and call this again
        with the same choice; GatewayError (503) if a model is missing or does not fit.
        """
        if self.name in above:
            raise GatewayError(503, f"{' → '.join((*above, self.name))}: an ensemble cannot be a part of itself")
        if len(above) == DEPTH:
            raise GatewayError(503, f"{' → '.join((*above, self.name))}: expected at most {DEPTH} ensembles inside one"
                                    " another")  # fmt: skip
        try:
            parts = [self._part(step, choice, (*above, self.name)) for step in self.scheduling.steps]
        except Asleep:
            raise
        except GatewayError as error:
            if above:
                raise
            raise GatewayError(503, f"ensemble {self.name!r}: {error}", retry_after=error.retry_after) from None
        key = tuple(serial for part in parts for serial in part.serials)
        found = self._fitted.get(key)
        if found is None:
            found = self._fit(parts)
            if len(self._fitted) >= KEPT:
                self._fitted.clear()
            self._fitted[key] = found
        if isinstance(found, GatewayError):
            raise found.with_traceback(None)
        return Assembly(self, tuple(parts), *found)

    def _part(self, step: Step, choice: Choice, above: tuple[str, ...]) -> Target:
        part = choice.part(step, above)
        if isinstance(part, Served) and part.first in part.streams:
            raise GatewayError(503, f"{step} keeps state between requests, which is not possible in an ensemble")
        return part

    def _fit(self, parts: Sequence[Target]) -> _Fitted | GatewayError:
        try:
            ports = fit(self.scheduling, [part.ports_for(part.first) for part in parts])
        except GatewayError as error:
            return GatewayError(503, f"ensemble {self.name!r}: {error}")
        runs = sum(part.runs if isinstance(part, Assembly) else 1 for part in parts)
        if runs > MOST_RUNS:
            text = f"ensemble {self.name!r}: expected at most {MOST_RUNS} runs of models for one request, got {runs}"
            return GatewayError(503, text)
        labels = {
            tensor: part.labels.get(output) or part.labels.get("", ())
            for step, part in zip(self.scheduling.steps, parts, strict=True)
            for output, tensor in step.outputs.items()
            if tensor in self.scheduling.outputs
        }
        return _Fitted(ports, labels, runs)


class Assembly:
    """An ensemble and one version of each of its models: what answers one request."""

    __slots__ = ("_held", "config", "ensemble", "labels", "name", "outer", "parts", "ports", "runs", "version")

    shadow, first = None, "predict"

    def __init__(
        self, ensemble: Ensemble, parts: tuple[Target, ...], ports: Ports, labels: Mapping[str, Sequence[str]],
        runs: int,
    ) -> None:  # fmt: skip
        """parts: by step; labels: of classes, by output; runs: how many models are run for one request."""
        self.ensemble, self.parts, self.ports, self.labels, self.runs = ensemble, parts, ports, labels, runs
        self.name, self.version, self.config = ensemble.name, ensemble.version, ensemble.config
        self.outer: Mapping[str, Ports] = {self.first: ports}
        self._held: tuple[Ensemble | Target, ...] = (ensemble, *dict.fromkeys(parts))

    @property
    def serials(self) -> tuple[int, ...]:
        """The serial numbers of all versions that take part in the answer."""
        return (self.ensemble.serial, *(serial for part in self.parts for serial in part.serials))

    def ports_for(self, signature: str) -> Ports:
        """The ports of a signature. Raises GatewayError (400) for any but the one that an ensemble has."""
        if signature != self.first:
            raise GatewayError(400, f"ensemble {self.name!r}: expected no signature, got {signature[:80]!r}")
        return self.ports

    def acquire(self, now: float) -> None:
        """Count a request for the ensemble and its models, all of which stay loaded until `release`."""
        for one in self._held:
            one.acquire(now)

    def release(self) -> None:
        """The request was answered or cancelled."""
        for one in self._held:
            one.release()


Target = Served | Assembly
"""What answers a request."""


class Choice:
    """The versions that answer one request: a model is chosen once, however often ensembles name it."""

    __slots__ = ("_chosen", "_find", "_request_id")

    def __init__(self, find: Find, request_id: str) -> None:
        self._find, self._request_id = find, request_id
        self._chosen: dict[tuple[str, str], Target] = {}

    def part(self, step: Step, above: tuple[str, ...]) -> Target:
        """What computes a step. Raises as `Ensemble.assembled`."""
        key = step.model, step.version
        found = self._chosen.get(key)
        if found is None:
            try:
                served = self._find(step.model, step.version, self._request_id)
            except Asleep:
                raise
            except GatewayError as error:
                raise GatewayError(503, f"{step}: {error}", retry_after=error.retry_after) from None
            found = self._chosen[key] = target_of(served, self, above)
        return found

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep what is chosen so far loaded, while another model is waited for."""
        chosen = tuple(self._chosen.values())
        for one in chosen:
            one.acquire(perf_counter())
        try:
            yield
        finally:
            for one in chosen:
                one.release()


def target_of(served: Serving, choice: Choice | None, above: tuple[str, ...] = ()) -> Target:
    """What answers a request that was routed to this version; choice: for ensembles. Raises as `Ensemble.assembled`."""
    if isinstance(served, Served):
        return served
    assert isinstance(served, Ensemble) and choice is not None
    return served.assembled(choice, above)


def as_target(served: Serving) -> Target:
    """What would answer a request now. Raises as `Ensemble.assembled`."""
    return target_of(served, served.choice() if isinstance(served, Ensemble) else None)
