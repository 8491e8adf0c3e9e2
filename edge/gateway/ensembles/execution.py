"""A request on its way through an ensemble: each step begins when the tensors that it reads are there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from edge.gateway.batching.forecast import Stage
from edge.gateway.ensembles.ensemble import Assembly, Target
from edge.gateway.ensembles.fitting import check, inward, outward
from edge.gateway.errors import GatewayError, told
from edge.gateway.exchange import Ask
from edge.gateway.job import Answered, Job
from edge.gateway.models.served import Served
from edge.gateway.personal.heads import GLOBAL
from edge.gateway.ports import nbytes_of
from edge.gateway.running import Computation, Run
from edge.gateway.running import Host as RunHost
from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Array

if TYPE_CHECKING:
    from edge.gateway.operate.room import Held, Room
    from edge.gateway.operate.statistics import Statistics

__all__ = ["Execution", "Host", "run_of"]


class Host(RunHost, Protocol):
    """The methods that an execution needs from the gateway."""

    room: Room
    statistics: Statistics


class Execution(Computation):
    """A job on its way through the steps of an ensemble.

    All steps use the versions of one `Assembly`, and the deadline, the priority and the device of the request. Steps
    that do not need one another are submitted at the same time. A tensor is dropped when the last step that reads it
    has ended; until then it counts in the memory budget.
    """

    __slots__ = (
        "_active", "_advancing", "_assembly", "_graph", "_held", "_left", "_ready", "_release", "_steps", "_tensors",
        "_unread", "_waiting",
    )  # fmt: skip

    _host: Host
    repeatable = False
    """Ensembles have no shadows."""

    def __init__(self, host: Host, assembly: Assembly, job: Job, ask: Ask, finish: Callable[[Any], None]) -> None:
        """Arguments as of a `Computation`."""
        super().__init__(host, assembly, job, ask, finish)
        graph = self._graph = assembly.ensemble.scheduling
        self._assembly = assembly
        self._steps = job.steps = list[Answered]()
        self._tensors: dict[str, Array] = {}
        self._unread = dict(graph.uses)
        """How many steps have yet to read a tensor."""
        self._waiting = [len(step.after) for step in graph.steps]
        """For how many others each step still waits."""
        self._left = len(graph.steps)
        self._ready = deque(i for i, count in enumerate(self._waiting) if not count)
        self._active: dict[int, Run | Execution] = {}
        self._advancing = False
        self._held: Held | None = None
        self._release: Callable[[], None] | None = None

    def _go(self) -> None:
        """Accept the request as a whole, and start the steps that read its inputs alone."""
        host, job, assembly = self._host, self.job, self._assembly
        job.begun = perf_counter()
        if not job.accepted:
            stages, names = list[Stage](), dict[str, None]()
            _plan(assembly, job.rows, (), stages, names)
            self._release = host.scheduler.accept(tuple(names), job, stages)
        self._held = host.room.inner(self._ask.peer)
        self._tensors = inward(self._graph, job.inputs, assembly.ports.batched)
        self._advance()

    def _advance(self) -> None:
        """Start the steps that are ready. A step that is computed at once makes others ready: the outermost call starts
        them, so that the depth of calls does not grow with the number of steps."""
        if self._advancing:
            return
        self._advancing = True
        while self._ready and self._finish is not None:
            self._start(self._ready.popleft())
        self._advancing = False
        if not self._left and self._finish is not None:
            self.outputs = outward(self._graph, self._assembly.ports, self._tensors)
            self.job.batch, self.job.computed = self.job.rows, perf_counter()
            self._end(None)

    def _start(self, index: int) -> None:
        step, part, parent = self._graph.steps[index], self._assembly.parts[index], self.job
        inputs = {name: self._tensors[tensor] for name, tensor in step.inputs.items()}
        job = Job(
            inputs,
            check(step, part.ports_for(part.first), inputs),
            arrived=perf_counter(),
            signature=part.first,
            priority=parent.priority,
            deadline=parent.deadline,
            device=parent.device,
        )
        job.accepted = True
        run = self._active[index] = run_of(self._host, part, job, self._ask, {}, partial(self._done, index))
        run.begin()

    def _done(self, index: int, run: Run | Execution) -> None:
        """A step was computed, or has failed."""
        part, job, now = self._assembly.parts[index], run.job, perf_counter()
        del self._active[index]
        statistics = self._host.statistics.of(part.name, part.version)
        if job.error is not None:
            statistics.fail(job, told(job.error)[0], now)
            self._end(_of_step(job.error, str(self._graph.steps[index])))
            return
        statistics.record(job, now)
        if part.shadow is not None and run.repeatable:
            part.shadow.after(job, self._host.scheduler.submit)
        self._steps.append(Answered(part.name, job.arrived, now, job.times(now)))
        self._note(part.name, job.notes.get("personal"))
        try:
            self._take(index, run.outputs or {})
            self._advance()
        except Exception as error:  # request: the error becomes the job's answer
            self._end(error)

    def _take(self, index: int, outputs: Mapping[str, Array]) -> None:
        """Keep a step's outputs as long as they are read, drop what it read last, and see which steps are ready."""
        graph, tensors = self._graph, self._tensors
        step = graph.steps[index]
        tensors.update((tensor, outputs[name]) for name, tensor in step.outputs.items())
        for tensor in {*step.inputs.values()}:
            self._unread[tensor] -= 1
            if not self._unread[tensor] and tensor not in graph.outputs:
                del tensors[tensor]
        self._left -= 1
        try:
            self._reserve()
        except GatewayError as error:
            raise _of_step(error, str(step)) from None
        for later in step.before:
            self._waiting[later] -= 1
            if not self._waiting[later]:
                self._ready.append(later)

    def _reserve(self) -> None:
        """Reserve memory for the tensors that steps have made. Raises GatewayError: 413 beyond the ensemble's own
        limit, else as `Held.reach`."""
        most = self._assembly.config.memory
        size = sum([nbytes_of(array) for name, array in self._tensors.items() if name not in self._graph.inputs])
        if most is not None and size > most:
            raise GatewayError(413, f"the tensors between steps take {size} bytes, more than the ensemble's memory ="
                                    f" {most}; send fewer rows")  # fmt: skip
        if self._held is not None:
            self._held.reach(size)

    def _note(self, model: str, note: str | None) -> None:
        """Say in the reply which models answered with a version of the device: mostly one, as a version belongs to one
        model."""
        if note is None:
            return
        before = self.job.notes.get("personal", GLOBAL.note)
        own = [] if note.startswith(GLOBAL.note) else [f"{model}: {note}"]
        self.job.notes["personal"] = ", ".join([*([] if before == GLOBAL.note else [before]), *own]) or GLOBAL.note

    def _close(self) -> None:
        self.job.done = perf_counter()
        self._drop()

    def _drop(self) -> None:
        """Cancel the steps that are under way, and give everything back."""
        active, self._active = self._active, {}
        for index, run in active.items():
            part = self._assembly.parts[index]
            run.cancel()
            self._host.statistics.of(part.name, part.version).fail(run.job, 499, perf_counter())
        self._tensors = {}
        if self._held is not None:
            self._held.release()
        if self._release is not None:
            self._release()


def run_of(
    host: Host, target: Target, job: Job, ask: Ask, parameters: Mapping[str, Any], finish: Callable[[Any], None]
) -> Run | Execution:
    """What computes a job; arguments as of a `Run`. Raises GatewayError (400) for what the target cannot do."""
    if isinstance(target, Served):
        if not target.streams and parameters.get("sequence_id"):
            raise GatewayError(400, f"sequence_id: model {target.name!r} keeps no state between requests; omit it")
        return Run(host, target, job, ask, parameters, finish)
    most = target.ensemble.most_rows
    if most and job.rows > most:
        text = f"expected at most {most} rows in one request (max_batch_size), got {job.rows}; split the request"
        raise GatewayError(400, text)
    if parameters.get("sequence_id"):
        raise GatewayError(400, f"sequence_id: ensemble {target.name!r} keeps no state between requests; omit it")
    if parameters.get("confidence"):
        raise GatewayError(400, f"confidence: ensemble {target.name!r} has no calibration; ask the model of a step")
    return Execution(host, target, job, ask, finish)


def _plan(
    assembly: Assembly, rows: int, after: tuple[int, ...], stages: list[Stage], names: dict[str, None]
) -> tuple[int, ...]:
    """Append the jobs that an ensemble needs after others; returns their indices. names: of the ensembles."""
    names[assembly.name] = None
    first = len(stages)
    ends: list[tuple[int, ...]] = []
    for step, part in zip(assembly.ensemble.scheduling.steps, assembly.parts, strict=True):
        before = tuple(i for n in step.after for i in ends[n]) or after
        if isinstance(part, Assembly):
            ends.append(_plan(part, rows, before, stages, names))
        else:
            ends.append((len(stages),))
            count = rows if part.ports[part.first].batched else 1
            stages.append(Stage(part.name, part.usual_runner(part.first), count, before))
    return tuple(range(first, len(stages)))


def _of_step(error: BaseException, step: str) -> BaseException:
    """The error of a step as that of the request. An internal error stays as it is, for the log."""
    if not isinstance(error, MsedgeError):
        return error
    status, text, retry_after = told(error)
    return GatewayError(status, f"{step}: {text}", retry_after=retry_after)
