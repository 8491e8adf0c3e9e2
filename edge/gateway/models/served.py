"""A version of a model that serves a bundle: its inputs and outputs, and its runners."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edge.gateway.errors import GatewayError
from edge.gateway.models.config import ModelConfig
from edge.gateway.models.serving import Serving
from edge.gateway.ports import Ports, ports_of
from edge.gateway.sequences.stream import Stream, streams_of
from lite_runtime.errors import BundleError

if TYPE_CHECKING:
    from edge.gateway.batching.runner import Runner
    from edge.gateway.job import Job
    from edge.gateway.language.embedder import Embedder
    from edge.gateway.language.host import Host
    from lite_runtime import Model
    from lite_runtime.calibration import Calibration

__all__ = ["RUNNERS", "Factory", "Served", "Shapes", "signatures_of"]

RUNNERS = 32
"""Kinds of requests (signature, shapes of rows) for which a version keeps runners: as many as a model keeps plans."""

Shapes = Mapping[str, tuple[int, ...]]
"""By input: the shape of a row if the signature is batched, else the whole shape."""
Factory = Callable[["Served", str, Shapes, bool], "Runner"]
"""(served, signature, shapes, whether its jobs name devices) -> the runner for such requests."""


class Served(Serving):
    """One loaded version of a bundle."""

    __slots__ = (
        "_factory", "_fixed", "_inputs", "_runners", "calibration", "embedder", "first", "labels", "language", "model",
        "outer", "ports", "processing", "streams",
    )  # fmt: skip

    def __init__(
        self, name: str, version: int, model: Model, config: ModelConfig, factory: Factory,
        forget: Callable[[Serving], None] = lambda served: None,
    ) -> None:  # fmt: skip
        """Raises GatewayError (501) for a model without a signature that can be served."""
        super().__init__(name, version, config, model.bundle.digest, forget)
        self.streams = streams_of(model)
        """The signatures that keep state between requests; the state is among their ports."""
        self.model = model.explicit(self.streams) if self.streams else model
        names = (*signatures_of(model), *self.streams)
        self.ports: Mapping[str, Ports] = {name: ports_of(self.model, name) for name in names}
        """The ports of each signature that does not change the model."""
        if not self.ports:
            got = ", ".join(model.signatures)
            raise GatewayError(501, f"{name!r}: expected a signature that does not change the model, got {got}")
        self.first = "predict" if "predict" in self.ports else next(iter(self.ports))
        """The default signature, which the metadata describe."""
        self.outer = self.ports if not self.streams else {**self.ports, **_without_state(self.ports, self.streams)}
        """The ports that clients see: without state, and those of the processing if the bundle declares some."""
        self.processing: Any = None
        """Pre- and post-processing, if the bundle declares it."""
        self.language: Host | None = None
        """What runs it, if it is a language model."""
        self.embedder: Embedder | None = None
        """What runs it for texts, if it is an embedding model: one that also takes tensors as others do."""
        self.calibration = _calibration(model)
        """How confidence follows from its outputs, or why the bundle does not say so."""
        self.labels = _labels(model.bundle.metadata.get("labels"))
        """Class labels by output; under "", those of all outputs."""
        self.resident = 2 * len(model.bundle.data)
        """Bytes: the file, and the weights once more in the layout of the kernels."""
        self._factory = factory
        self._runners: OrderedDict[tuple[Any, ...], Runner] = OrderedDict()
        self._fixed: dict[str, Runner] = {}
        self._inputs = {s: (tuple(p.inputs), int(p.batched)) for s, p in self.ports.items()}

    def exchange(self, other: Served) -> None:
        """Run as `other`, which was made of the same bundle, from the next request on."""
        self.model, self.processing, self.resident, self.awaits = other.model, other.processing, other.resident, ()
        self._runners, self._fixed = other._runners, other._fixed
        if self.language is not None:
            self.language.close()
        self.language, other.language = other.language, None
        self.embedder = other.embedder
        self.renumber()

    def check(self, config: ModelConfig) -> None:
        """See `Serving`."""
        if config.response_cache and self.streams:
            raise GatewayError(400, "response_cache: this model keeps state between requests; leave it out")
        if config.response_cache and self.language is not None:
            raise GatewayError(400, "response_cache: answers of language models are not kept; leave it out")

    @property
    def serials(self) -> tuple[int, ...]:
        """The serial numbers of all versions that take part in its answers."""
        return (self.serial,)

    @property
    def nbytes(self) -> int:
        """Approximate bytes that it holds: `resident` and the `nbytes` of its runners."""
        return self.resident + sum(getattr(runner, "nbytes", 0) for runner in self._runners.values())

    def ports_for(self, signature: str) -> Ports:
        """The ports of a signature that clients see; `predict`, the default name, means `first` if no signature has
        that name. Raises GatewayError (400) for an unknown one."""
        if self.language is not None:
            raise GatewayError(
                400, f"model {self.name!r} is a language model; ask it at /v1/chat/completions or /v1/completions"
            )  # fmt: skip
        found = self.outer.get(signature) or (self.outer[self.first] if signature == "predict" else None)
        if found is None:
            raise GatewayError(
                400, f"model {self.name!r}: expected a signature of {', '.join(self.outer)}, got {signature[:80]!r}"
            )  # fmt: skip
        return found

    def fixed_shapes(self, signature: str) -> Shapes | None:
        """The shapes of rows, if they are the same for all requests; else None."""
        names, skip = self._inputs[signature]
        shapes = {name: (self.ports[signature].inputs[name].shape or (None,))[skip:] for name in names}
        known = all(port.shape is not None for port in self.ports[signature].inputs.values())
        if not known or any(not isinstance(d, int) for shape in shapes.values() for d in shape):
            return None
        return {name: tuple(d for d in shape if isinstance(d, int)) for name, shape in shapes.items()}

    def runner(self, signature: str, shapes: Shapes, personal: bool = False) -> Runner:
        """The runner for a kind of requests; a new one replaces the least recently used one."""
        key = (signature, personal, *shapes.values())
        found = self._runners.get(key)
        if found is not None:
            self._runners.move_to_end(key)
            return found
        made = self._runners[key] = self._factory(self, signature, shapes, personal)
        if not personal and self.fixed_shapes(signature) is not None:
            self._fixed[signature] = made
        while len(self._runners) > RUNNERS:
            _, gone = self._runners.popitem(last=False)
            self._fixed = {s: runner for s, runner in self._fixed.items() if runner is not gone}
        return made

    def runner_for(self, job: Job) -> Runner:
        """The runner for this job, whose inputs were checked against `ports`."""
        if not job.device:
            fixed = self._fixed.get(job.signature)
            if fixed is not None:
                return fixed
        names, skip = self._inputs[job.signature]
        return self.runner(job.signature, {n: job.inputs[n].shape[skip:] for n in names}, bool(job.device))

    def usual_runner(self, signature: str) -> Runner | None:
        """The runner for requests of the only shape, or of the shape that was asked for last; None if there is none."""
        return self._fixed.get(signature) or next(
            (runner for key, runner in reversed(self._runners.items()) if key[:2] == (signature, False)), None
        )

    @property
    def runners(self) -> Sequence[Runner]:
        """The present runners."""
        return tuple(self._runners.values())

    def _close(self) -> None:
        super()._close()
        if self.language is not None:
            self.language.close()
            self.language = None
        self.embedder = None
        self._runners.clear()
        self._fixed.clear()
        self.processing = None


def _without_state(ports: Mapping[str, Ports], streams: Mapping[str, Stream]) -> dict[str, Ports]:
    """The ports of signatures with state, without it."""
    found = {}
    for name, stream in streams.items():
        inputs, outputs, batched = ports[name]
        own = {n: port for n, port in inputs.items() if n not in stream.use.reads}
        found[name] = Ports(own, {n: port for n, port in outputs.items() if n not in stream.use.writes}, batched)
    return found


def signatures_of(model: Model) -> tuple[str, ...]:
    """The signatures that do not change the model's state, which a server may run for any client."""
    uses = model.bundle.uses
    return tuple(name for name in model.signatures if name not in uses or not uses[name].writes)


def _calibration(model: Model) -> Calibration | str:
    """The bundle's calibration, or why it cannot be used: that is no reason not to serve it."""
    try:
        return model.calibration or "the bundle has no calibration; add one with lite_runtime.calibration"
    except BundleError as error:
        return str(error)


def _labels(declared: Any) -> Mapping[str, tuple[str, ...]]:
    """A bundle's class labels: one list for all outputs, or lists by output."""
    if isinstance(declared, list | tuple):
        declared = {"": declared}
    if not isinstance(declared, Mapping):
        return {}
    return {
        str(output): tuple(words)
        for output, words in declared.items()
        if isinstance(words, list | tuple) and all(isinstance(word, str) for word in words)
    }
