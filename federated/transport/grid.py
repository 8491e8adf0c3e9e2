"""A grid in this process: the same ServerApp and ClientApp, no Ray, no sockets, no serialisation.

Devices work one after another, each when its answer is taken: the server has read an answer before the next one is
computed, so the answers of a round are never in memory together. With `delay`, devices work when their messages are
sent, because the answer of a straggler may never be taken, and an answer is available only once the grid's own clock
has reached its time. The clock jumps ahead whenever the server waits: stragglers, deadlines and asynchronous rounds of
hours are simulated in the time of the computation alone, reproducibly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from time import perf_counter

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

__all__ = ["LocalGrid"]

RUN = 1
SERVER = 1
FAILED = 100
"""Our error code for an app that raised on the device."""


class LocalGrid(Grid):
    """`names`: the devices; node ids count from 2, node configurations hold `device`.

    `delay(name, nth)`: seconds until a device's nth answer (from 0) arrives, infinity for one that never comes.
    """

    def __init__(
        self, app: ClientApp, names: Iterable[str], delay: Callable[[str, int], float] | None = None
    ) -> None:
        # Messages read the sender's identity from it; Flower's own processes set it.
        TaskIdentity.task_id = TaskIdentity.run_id = RUN
        TaskIdentity.node_id = SERVER
        self._app, self._delay = app, delay
        self._clock = 0.0
        self._sent: dict[int, int] = {}
        self._count = 0
        self._open: dict[str, Message] = {}
        """Messages to devices that have not worked on them."""
        self._ready: dict[str, tuple[float, Message]] = {}
        """Answers, and when they are available."""
        self.contexts = {
            node: Context(RUN, node, {"device": name}, RecordDict(), {}) for node, name in enumerate(names, SERVER + 1)
        }

    def now(self) -> float:
        """Seconds by the grid's clock: real time if devices have no delay."""
        return self._clock if self._delay else self._clock + perf_counter()

    def wait(self, seconds: float) -> None:
        """Advance the clock."""
        self._clock += seconds

    def set_run(self, run: Run) -> None:
        """Does nothing: there is only one run."""

    @property
    def run(self) -> Run:
        """Not implemented: the grid has no run."""
        raise NotImplementedError("a grid in this process has no run")

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """A message, as from its constructor."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """All nodes."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Returns ids for pulling the answers."""
        ids = []
        for message in messages:
            self._count += 1
            name = str(self._count)
            message.metadata.__dict__["_message_id"] = name
            if self._delay is None:
                self._open[name] = message
            else:
                self._work_now(name, message, self._delay)
            ids.append(name)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """The answers that are available. Without `delay` the next device works when the next answer is taken."""
        for name in list(message_ids):
            if name in self._open:
                yield self._answer(self._open.pop(name))
            elif name in self._ready and self._ready[name][0] <= self._clock:
                yield self._ready.pop(name)[1]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Both in one call: only answers that are available at once."""
        return list(self.pull_messages(self.push_messages(messages)))

    def _work_now(self, name: str, message: Message, delay: Callable[[str, int], float]) -> None:
        node = message.metadata.dst_node_id
        nth = self._sent[node] = self._sent.get(node, -1) + 1
        later = delay(str(self.contexts[node].node_config["device"]), nth)
        if later < float("inf"):
            self._ready[name] = self._clock + later, self._answer(message)

    def _answer(self, message: Message) -> Message:
        context = self.contexts[message.metadata.dst_node_id]
        try:
            return self._app(message, context)
        except Exception as error:  # user code: an app; the server gets its error as from a SuperNode
            return Message(Error(FAILED, f"{type(error).__name__}: {error}"), reply_to=message)
