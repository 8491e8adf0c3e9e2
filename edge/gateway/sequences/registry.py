"""The sequences that clients have begun, and their state. Everything runs on the event loop's thread.

The requests of one sequence are computed one after another, in the order in which they arrive; each takes the state
that the one before left. A request that fails or is cancelled leaves the state unchanged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import NamedTuple

from edge.gateway.errors import GatewayError
from edge.gateway.sequences.stream import Stream
from lite_runtime.graph import Array

__all__ = ["Key", "Limits", "Sequences", "Step"]

WAITING = 64
"""Requests of one sequence that may wait for the one before."""


class Key(NamedTuple):
    """A sequence: clients choose `id`, which may be used with every model, version and signature anew. owner: who began
    it, as tokens and certificates say: another client that uses the same id has a sequence of its own."""

    model: str
    version: str
    signature: str
    id: str | int
    owner: str = ""


class Limits(NamedTuple):
    """most: sequences at once; memory: bytes of their state; idle: seconds after which an unused one is forgotten."""

    most: int
    memory: int
    idle: float


class Step:
    """A request's place in its sequence.

    go: called with the state, by input name, when it is this request's turn. fail: called instead if the sequence has
    ended by then.
    """

    __slots__ = ("cancelled", "end", "fail", "go", "key", "start", "stream")

    def __init__(
        self,
        key: Key,
        stream: Stream,
        go: Callable[[Mapping[str, Array]], None],
        fail: Callable[[GatewayError], None],
        *,
        start: bool = False,
        end: bool = False,
    ) -> None:
        self.key, self.stream, self.go, self.fail = key, stream, go, fail
        self.start, self.end = start, end
        self.cancelled = False


class _Held:
    """A sequence: its state by name, the step being computed, the steps that wait, and the time of the last one."""

    __slots__ = ("nbytes", "now", "state", "used", "waiting")

    def __init__(self, stream: Stream, used: float) -> None:
        self.state: Mapping[str, Array] = stream.initial
        self.nbytes = stream.nbytes
        self.now: Step | None = None
        self.waiting: deque[Step] = deque()
        self.used = used


class Sequences:
    """All sequences of a gateway."""

    def __init__(self, limits: Limits, later: Callable[..., object], clock: Callable[[], float] = perf_counter) -> None:
        """later: calls a function soon, but not inside this call, such as `loop.call_soon`."""
        self._limits, self._later, self._clock = limits, later, clock
        self._held: dict[Key, _Held] = {}
        self._nbytes = 0
        self.expired = 0
        """Sequences forgotten because they were not used."""

    def __len__(self) -> int:
        return len(self._held)

    @property
    def nbytes(self) -> int:
        """Bytes of all state."""
        return self._nbytes

    def count(self, model: str, version: str) -> int:
        """The sequences of a model's version."""
        return sum(key.model == model and key.version == version for key in self._held)

    def enter(self, step: Step) -> None:
        """Calls `step.go` now, or when the requests before it are answered.

        Raises GatewayError: 400 for a sequence that was not begun, 429 if there are too many sequences or requests.
        """
        held = self._held.get(step.key)
        if held is None:
            if not step.start:
                raise _unknown(step.key)
            held = self._new(step.key, step.stream)
        if held.now is None:
            held.now = step
            self._begin(held, step)
        elif len(held.waiting) >= WAITING:
            raise GatewayError(429, f"sequence {step.key.id!r}: {WAITING} requests are waiting", retry_after=1.0)
        else:
            held.waiting.append(step)

    def leave(self, step: Step, outputs: dict[str, Array] | None) -> None:
        """The step was computed, or failed if `outputs` is None. Removes the state from `outputs`."""
        held = self._held.get(step.key)
        if held is None or held.now is not step:
            return
        if outputs is not None:
            written = {state: outputs.pop(name) for name, state in step.stream.use.writes.items()}
            held.state = {**_before(held, step), **written}
        held.now, held.used = None, self._clock()
        if step.end and outputs is not None:
            waiting = self._forget(step.key).waiting
            for other in waiting:
                self._later(self._again, other)
        elif held.waiting:
            held.now = held.waiting.popleft()
            self._later(self._begin, held, held.now)

    def cancel(self, step: Step) -> None:
        """The client has left: the state stays as it is."""
        step.cancelled = True
        held = self._held.get(step.key)
        if held is not None and step in held.waiting:
            held.waiting.remove(step)
        else:
            self.leave(step, None)

    def state(self, key: Key) -> Mapping[str, Array]:
        """The state after the last answered request. Raises GatewayError (404) for an unknown sequence."""
        held = self._held.get(key)
        if held is None:
            raise GatewayError(404, f"model {key.model!r}, version {key.version}: no sequence {key.id!r}")
        held.used = self._clock()
        return dict(held.state)

    def restore(self, key: Key, stream: Stream, state: Mapping[str, Array]) -> None:
        """Begin a sequence with this state, or set that of one. Raises GatewayError: 409 while a request of it is
        computed, 429 if there are too many."""
        held = self._held.get(key)
        if held is None:
            held = self._new(key, stream)
        elif held.now is not None:
            raise GatewayError(409, f"sequence {key.id!r}: a request of it is being computed; ask after its reply")
        held.state, held.used = {name: state[name] for name in stream.initial}, self._clock()

    def sweep(self) -> None:
        """Forget the sequences that were not used for too long."""
        oldest = self._clock() - self._limits.idle
        for key in [key for key, held in self._held.items() if held.now is None and held.used < oldest]:
            self._forget(key)
            self.expired += 1

    def forget(self, model: str, version: str) -> None:
        """The version is no longer served."""
        for key in [key for key in self._held if key.model == model and key.version == version]:
            self._forget(key)

    def _new(self, key: Key, stream: Stream) -> _Held:
        limits = self._limits
        if len(self._held) >= limits.most or self._nbytes + stream.nbytes > limits.memory:
            self.sweep()
        if len(self._held) >= limits.most:
            raise GatewayError(429, f"{limits.most} sequences are in use; end some, or ask later", retry_after=1.0)
        if self._nbytes + stream.nbytes > limits.memory:
            raise GatewayError(429, f"the state of all sequences takes {self._nbytes} bytes, the limit is"
                               f" {limits.memory}; end some, or ask later", retry_after=1.0)  # fmt: skip
        held = self._held[key] = _Held(stream, self._clock())
        self._nbytes += held.nbytes
        return held

    def _forget(self, key: Key) -> _Held:
        held = self._held.pop(key)
        self._nbytes -= held.nbytes
        return held

    def _begin(self, held: _Held, step: Step) -> None:
        """It is this step's turn, unless it was cancelled meanwhile."""
        if held.now is not step:
            return
        held.used, state = self._clock(), _before(held, step)
        step.go({entry: state[name] for entry, name in step.stream.use.reads.items()})

    def _again(self, step: Step) -> None:
        """A step that waited for one that ended the sequence."""
        if step.cancelled:
            return
        try:
            self.enter(step)
        except GatewayError as error:
            step.fail(error)


def _before(held: _Held, step: Step) -> Mapping[str, Array]:
    """The state with which a step begins. The first step of a sequence replaces the state only when it is answered."""
    return step.stream.initial if step.start else held.state


def _unknown(key: Key) -> GatewayError:
    return GatewayError(
        400, f"sequence_id {key.id!r}: model {key.model!r}, version {key.version}, has no such sequence: it was not"
        " begun, has ended, was not used for too long, or began with another version; begin it with sequence_start true"
    )  # fmt: skip
