"""Batches with rows of different devices: the backbone is computed once for all rows, the head per row."""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable, Mapping, Sequence, Set
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from edge.gateway.batching.cost import Cost
from edge.gateway.job import Job
from edge.gateway.personal.heads import Head, Heads
from edge.gateway.personal.slots import Key
from edge.gateway.personal.together import Asked, Together, fail
from edge.gateway.ports import Ports
from lite_runtime.learning.personal import PersonalModel, SeparateModel

if TYPE_CHECKING:
    from lite_runtime import Model

__all__ = ["PersonalRunner"]

ATTEMPTS = 8
"""After so many sets of tensors that could not be computed in one batch, no further set is tried."""
WARM = 5.0
"""Seconds that compiling and timing batch sizes of a rewritten graph may take."""

Shapes = Mapping[str, tuple[int, ...]]
Tell = Callable[[str, Mapping[str, Any]], None]


class PersonalRunner:
    """`batching.runner.Runner` for jobs that name devices.

    The personal tensors are those changed by the versions seen so far. When a version changes further tensors, the
    graph is rewritten for all of them, which takes as long as loading a model. Versions whose tensors cannot be
    computed in one batch (`lite_runtime.learning.grouping` gives the reason, which is also passed to `tell`) are
    computed device by device: correct, but no faster than separate requests.
    """

    def __init__(
        self,
        model: Model,
        signature: str,
        ports: Ports,
        row_shapes: Shapes,
        heads: Heads,
        *,
        name: str = "",
        version: str = "",
        limit: int = 64,
        slots: int = 1024,
        memory: int = 256 << 20,
        tell: Tell = lambda event, facts: None,
    ) -> None:
        """As `ModelRunner`. heads: of this model. slots: the largest number of devices whose tensors are in the tables
        at the same time; fewer if the tables would exceed `memory` bytes."""
        self.model, self._heads, self._tell = name, heads, tell
        self._source, self._signature, self._ports, self._shapes = model, signature, ports, dict(row_shapes)
        self._words: dict[str, Any] = {"name": name, "version": version, "limit": limit if ports.batched else 1}
        self._most, self._memory = slots, memory
        use = model.bundle.uses.get(signature)
        self._reads = frozenset(use.reads.values() if use is not None else ())
        self._apart: dict[frozenset[str], str] = {}
        """Sets of tensor names that cannot be computed in one batch, with the reason."""
        self._fits: dict[frozenset[str], bool] = {}
        """By the set of tensor names that a version changes: whether it can be computed in one batch with others."""
        if not ports.batched:
            self._apart[frozenset()] = "its inputs and outputs do not share an open axis 0"
        self._separate: SeparateModel | None = None
        self._alone = Cost()
        """The cost of a row when devices are computed one by one."""
        self.cost, self.limit = self._alone, int(self._words["limit"])
        self._building = allocate_lock()
        self._batch: Together | None = None
        self.key = f"{name}/{version}/{signature}/personal/{self._shapes}"

    @property
    def nbytes(self) -> int:
        """Bytes of the tables."""
        return self._batch.nbytes if self._batch is not None else 0

    @property
    def together(self) -> frozenset[str]:
        """Names of the state that may differ between the rows of a batch."""
        return self._batch.table.names if self._batch is not None else frozenset()

    @property
    def apart(self) -> Mapping[frozenset[str], str]:
        """Sets of tensor names for which devices are computed one by one, with the reason."""
        return self._apart

    def warm(self, seconds: float = 5.0) -> None:
        """As `ModelRunner.warm`, for the tensors that are personal in cached versions, or else in a sample of the
        store. Does nothing if there are none. Raises GatewayError (503) for a store that cannot be read."""
        names: frozenset[str] = frozenset().union(*self._heads.names())
        if not names:
            return
        with self._building:
            self._holds(names)
        if self._batch is not None:
            self._batch.inner.warm(seconds)
            self.cost, self.limit = self._batch.inner.cost, self._batch.inner.limit

    def knows(self, head: Head) -> bool:
        """Whether everything needed for the tensors of this head is already compiled."""
        return head.names in self._fits

    def meet(self, head: Head) -> None:
        """Compile what this head needs before a job uses it, on any thread but the event loop's; otherwise `run` would
        compile it on the thread that calls it."""
        self._learn({head.names})

    def run(self, jobs: Sequence[Job]) -> None:
        """See `Runner`."""
        found: list[Asked] = []
        heads, own = self._heads, 0
        for job in jobs:
            try:
                head = heads.now(job.device)
            except Exception as error:  # request: the job gets it as its answer
                fail(job, error)
                continue
            job.notes["personal"] = head.note
            own += head.device != ""
            found.append((job, head))
        heads.count(own, len(found) - own)
        joined, separate = self._sorted(found)
        batch = self._batch
        if joined and batch is not None:
            batch.run(joined)
            self.cost, self.limit = batch.inner.cost, batch.inner.limit
        for head, group in separate.values():
            self._run_separately(group, head)

    # -- one batch -----------------------------------------------------------------------------------------------------

    def _sorted(self, found: list[Asked]) -> tuple[list[Asked], dict[Key, tuple[Head, list[Job]]]]:
        """The jobs that can be computed in one batch, and the others by version."""
        fits = self._fits
        kinds = {head.names for _, head in found}
        if not kinds <= fits.keys():
            self._learn(kinds)
        separate: dict[Key, tuple[Head, list[Job]]] = {}
        if all([fits[names] for names in kinds]):
            return found, separate
        for job, head in found:
            if not fits[head.names]:
                separate.setdefault(head.key, (head, []))[1].append(job)
        return [asked for asked in found if fits[asked[1].names]], separate

    def _learn(self, kinds: Set[frozenset[str]]) -> None:
        with self._building:
            self._holds(frozenset().union(*kinds))
            self._fits.update((names, self._holds(names)) for names in kinds)

    def _holds(self, names: frozenset[str]) -> bool:
        """Whether each row can have its own state of these names; if so, the graph is rewritten for it."""
        names &= self._reads
        if self._batch is not None and names <= self.together:
            return True
        wanted = names | self.together
        if len(self._apart) >= ATTEMPTS or any(refused <= wanted for refused in self._apart):
            return False
        try:
            self._build(wanted)
        except Exception as error:  # request: rows are computed one by one instead
            self._apart[wanted] = str(error)
            self._tell("personal_one_by_one", {"model": self.model, "state": sorted(wanted), "why": str(error)})
            return False
        return True

    def _build(self, names: frozenset[str]) -> None:
        shapes = {name: (2, *shape) for name, shape in self._shapes.items()}
        table = PersonalModel(
            self._source, names, shapes, slots=self._most, memory=self._memory, signature=self._signature
        )
        made = Together(self._source, table, self._signature, self._ports, self._shapes, self._words)
        made.inner.warm(WARM)
        self._batch = made  # only now: jobs that arrived in the meantime used the previous one

    # -- device by device ----------------------------------------------------------------------------------------------

    def _run_separately(self, jobs: list[Job], head: Head) -> None:
        """Compute the jobs of one device: as one batch if their rows are independent, or one by one if that fails."""
        together = len(jobs) > 1 and self._ports.batched
        if not (together and self._as_one(jobs, head)):
            for job in jobs:
                self._as_one([job], head)

    def _as_one(self, jobs: list[Job], head: Head) -> bool:
        """Compute the jobs in one run; False if that failed."""
        begun, rows = perf_counter(), sum(job.rows for job in jobs)
        inputs = jobs[0].inputs
        if len(jobs) > 1:
            inputs = {name: np.concatenate([job.inputs[name] for job in jobs]) for name in inputs}
        ready = perf_counter()
        try:
            outputs = self._model_for(head).run(inputs, {**self._source.bundle.state, **head.state})
        except Exception as error:  # request: the jobs get it as their answer
            for job in jobs:
                fail(job, error)
            return False
        computed, at = perf_counter(), 0
        for job in jobs:
            end = at + job.rows
            job.outputs = outputs if len(jobs) == 1 else {n: array[at:end].copy() for n, array in outputs.items()}
            job.error, at = None, end
            job.begun, job.input_seconds, job.computed = begun, ready - begun, computed
            job.batch, job.done = rows, perf_counter()
        self._alone.observe(1, (computed - begun) / rows)
        self.cost = self._alone
        return True

    def _model_for(self, head: Head) -> SeparateModel:
        names = head.names & self._reads
        if self._separate is None or not names <= self._separate.names:
            before = self._separate.names if self._separate is not None else frozenset()
            self._separate = SeparateModel(self._source, names | before, self._signature)
        return self._separate
