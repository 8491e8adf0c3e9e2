"""One batch for many devices: their tensors are put into slots, and their rows run through the rewritten graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from edge.gateway.batching.runner import ModelRunner
from edge.gateway.errors import GatewayError
from edge.gateway.job import Job
from edge.gateway.personal.heads import Head
from edge.gateway.personal.slots import Key, Slots
from edge.gateway.ports import Port, Ports
from lite_runtime import InputError
from lite_runtime.graph import Array
from lite_runtime.learning.personal import SLOTS, PersonalBinding, PersonalModel

if TYPE_CHECKING:
    from lite_runtime import Model

__all__ = ["Asked", "Together", "fail"]

_SLOTS = Port(SLOTS, "INT64", np.dtype(np.int64), 8, ("rows",))
Asked = tuple[Job, Head]


class Together:
    """A ModelRunner of a PersonalModel. Its jobs get one additional input: the slot of their device."""

    def __init__(
        self,
        model: Model,
        table: PersonalModel,
        signature: str,
        ports: Ports,
        row_shapes: Mapping[str, tuple[int, ...]],
        words: Mapping[str, Any],
    ) -> None:
        """words: further keyword arguments of ModelRunner."""
        ports = Ports({**ports.inputs, SLOTS: _SLOTS}, ports.outputs, True)
        self.inner = ModelRunner(_Table(table), signature, ports, {**row_shapes, SLOTS: ()}, **words)
        self.table = table
        self._slots, self._every = Slots(table.slots), np.arange(table.slots)
        self._base = {name: model.bundle.state[name] for name in table.names}

    @property
    def nbytes(self) -> int:
        """Bytes of the slots in use."""
        return (1 + len(self._slots)) * self.table.slot_bytes

    def run(self, asked: Sequence[Asked]) -> None:
        """Compute jobs with their heads. See `Runner.run`."""
        for batch in self._slots.batches(asked, _key):
            ready: list[Job] = []
            for job, head in batch:
                try:
                    slot = self._slot(head)
                except Exception as error:  # request: the job gets it as its answer
                    fail(job, error)
                    continue
                slots = self._every[slot : slot + 1]
                job.inputs = {**job.inputs, SLOTS: slots if job.rows == 1 else np.repeat(slots, job.rows)}
                ready.append(job)
            if ready:
                self.inner.run(ready)

    def _slot(self, head: Head) -> int:
        """The slot of the head, which is written there if necessary."""
        if not head.state:
            return 0
        slot, fresh = self._slots.take(head.key)
        if fresh:
            try:
                self.table.write(slot, self.table.prepare({**self._base, **head.state}))
            except Exception:
                self._slots.drop(head.key)
                raise
        return slot


def _key(asked: Asked) -> Key:
    return asked[1].key


class _Table:
    """A PersonalModel with the methods of a Model; SLOTS is one of its inputs."""

    def __init__(self, table: PersonalModel) -> None:
        self._table = table

    def bind(self, shapes: Mapping[str, tuple[int, ...]], signature: str) -> PersonalBinding:
        """See `PersonalModel.bind`."""
        return self._table.bind(shapes)

    def run(self, inputs: Mapping[str, Array], signature: str) -> dict[str, Array]:
        """See `PersonalModel.run`."""
        return self._table.run(inputs)

    def cost(self, inputs: Mapping[str, Array], signature: str) -> SimpleNamespace:
        """Only `arena_bytes`."""
        bound = self._table.bind({name: array.shape for name, array in inputs.items()})
        return SimpleNamespace(arena_bytes=bound.arena_bytes)


def fail(job: Job, error: Exception) -> None:
    """Set the job's error: InputError, caused by the client, becomes 400; others stay unchanged."""
    job.outputs = None
    job.error = GatewayError(400, str(error)) if isinstance(error, InputError) else error
    job.computed = job.done = perf_counter()
    job.begun = job.begun or job.done
