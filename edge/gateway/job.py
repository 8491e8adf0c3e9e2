"""One request for an inference on its way through the gateway."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from lite_runtime.graph import Array

__all__ = ["Job"]


class Job:
    """What is asked, and, once `finish` was called, what came of it: `outputs`, or `error`.

    `finish(job)` is called exactly once, on the event loop's thread, unless the job was cancelled before. Times are
    seconds of `time.perf_counter`.
    """

    __slots__ = (
        "arrived",
        "batch",
        "begun",
        "cancelled",
        "computed",
        "deadline",
        "device",
        "done",
        "error",
        "finish",
        "input_seconds",
        "inputs",
        "notes",
        "outputs",
        "priority",
        "rows",
        "signature",
    )  # fmt: skip

    def __init__(
        self,
        inputs: Mapping[str, Array],
        rows: int,
        finish: Callable[[Job], None],
        *,
        arrived: float,
        signature: str = "predict",
        priority: int = 0,
        deadline: float = inf,
        device: str = "",
    ) -> None:
        self.inputs = inputs
        """By name, checked against the signature's ports; may be views of the request's body, never written to."""
        self.rows = rows
        """Size of axis 0 where the signature is batched, else 1."""
        self.finish = finish
        self.signature = signature
        self.priority = priority
        """1 goes first; 0: the middle (`batching.queue.MIDDLE`)."""
        self.deadline = deadline
        """When an answer is of no use any more."""
        self.device = device
        """Whose personal version is asked for; "": nobody's."""
        self.arrived = arrived
        """When the whole request was there."""
        self.begun = 0.0
        """When the batch it went with began to be computed: the time before is time in the queue."""
        self.input_seconds = 0.0
        """Of the time since `begun`, what copying inputs took."""
        self.computed = 0.0
        """When the model was done; what follows until `done` is copying outputs."""
        self.done = 0.0
        self.batch = 0
        """Rows of the batch it went with."""
        self.outputs: dict[str, Array] | None = None
        """All of the signature's outputs, this job's rows of them; arrays of its own."""
        self.error: BaseException | None = None
        self.notes: dict[str, Any] = {}
        """What the reply's `parameters` say of how it was answered."""
        self.cancelled = False
