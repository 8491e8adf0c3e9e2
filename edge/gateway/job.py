"""One inference request inside the gateway."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any, NamedTuple

from lite_runtime.graph import Array

__all__ = ["Answered", "Job", "Times", "nobody"]


def nobody(job: Job) -> None:
    """Does nothing. Replaces the `finish` of an ended job. A job and its `finish` refer to each other and to the
    request's body: with the cycle cut, bodies are freed at once; left to the garbage collector, they took 150 MiB under
    overload (ResNet-8, 98 kB each)."""


Times = tuple[float, float, float, float]
"""Seconds of an answered request, as Triton divides them: waiting, copying inputs, computing, copying outputs and
writing the reply."""


class Answered(NamedTuple):
    """A step of an ensemble that was answered; begun, ended: by `time.perf_counter`."""

    model: str
    begun: float
    ended: float
    times: Times


class Job:
    """An inference request and, once `finish` was called, its result: `outputs` or `error`.

    `finish(job)` is called exactly once, on the event loop's thread, unless the job was cancelled before. Times are
    seconds of `time.perf_counter`.
    """

    __slots__ = (
        "accepted",
        "arrived",
        "batch",
        "begun",
        "cache_seconds",
        "cancelled",
        "computed",
        "deadline",
        "device",
        "done",
        "error",
        "finish",
        "hit",
        "input_seconds",
        "inputs",
        "notes",
        "outputs",
        "priority",
        "rows",
        "signature",
        "steps",
    )  # fmt: skip

    def __init__(
        self,
        inputs: Mapping[str, Array],
        rows: int,
        finish: Callable[[Job], None] = nobody,
        *,
        arrived: float,
        signature: str = "predict",
        priority: int = 0,
        deadline: float = inf,
        device: str = "",
    ) -> None:
        self.inputs = inputs
        """Arrays by name, checked against the signature's ports; read-only; may be views of the request's body."""
        self.rows = rows
        """Size of axis 0 if the signature is batched, else 1."""
        self.finish = finish
        self.signature = signature
        self.priority = priority
        """1 goes first; 0: the middle (`batching.queue.MIDDLE`)."""
        self.deadline = deadline
        """The time after which the client no longer needs an answer."""
        self.device = device
        """The device whose personal version is requested; "": the common model."""
        self.accepted = False
        """Whether it is a step of a request that was accepted as a whole: it is not refused for lack of room."""
        self.arrived = arrived
        """When the request was received completely."""
        self.begun = 0.0
        """When the computation of its batch began: the time before that is time in the queue."""
        self.input_seconds = 0.0
        """The part of the time since `begun` spent on copying inputs."""
        self.computed = 0.0
        """When the model had finished; from then until `done`, outputs are copied."""
        self.done = 0.0
        self.batch = 0
        """Rows of its batch."""
        self.outputs: dict[str, Array] | None = None
        """This job's rows of all outputs of the signature; arrays that no other job shares."""
        self.error: BaseException | None = None
        self.notes: dict[str, Any] = {}
        """The reply's `parameters`, which describe how it was answered."""
        self.cancelled = False
        self.hit: bool | None = None
        """Whether its answer was found in the cache; None: it was not looked for."""
        self.cache_seconds = 0.0
        """Time spent on that: looking it up, and keeping it."""
        self.steps: list[Answered] | None = None
        """For an ensemble, its answered steps."""

    def times(self, now: float) -> Times:
        """Its seconds; now: when its reply was ready. Those of an ensemble are the sums over its steps, which may
        overlap."""
        if self.steps is not None:
            queue, given, infer, output = (sum([step.times[i] for step in self.steps]) for i in range(4))
            return queue, given, infer, output
        begun, given = self.begun, self.input_seconds
        return begun - self.arrived, given, self.computed - begun - given, now - self.computed

    def spans(self) -> list[tuple[str, float, float]]:
        """The parts of its time that were reached, for traces: their names, begin and end. Those of an ensemble are its
        steps."""
        if self.steps is not None:
            return [(step.model, step.begun, step.ended) for step in self.steps]
        if not self.begun:
            return [("queue", self.arrived, self.done)] if self.done else []
        ran = self.begun + self.input_seconds
        parts = [("queue", self.arrived, self.begun), ("compute_input", self.begun, ran)]
        if self.computed:
            parts += [("compute_infer", ran, self.computed), ("compute_output", self.computed, self.done)]
        return parts
