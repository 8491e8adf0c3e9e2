"""A federation's messages over Flower's grid, and the ServerApp that carries them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from federated.errors import FederatedError
from federated.server.replies import Failure
from federated.transport.grid import LocalGrid
from federated.transport.messages import content, read

__all__ = ["GridExchange", "server_app"]


class GridExchange:
    """Messages over a Flower grid (`federated.server.gathering.Exchange`)."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._clock = grid if isinstance(grid, LocalGrid) else None

    def nodes(self) -> Collection[int]:
        """Nodes that Flower counts as online."""
        return set(self._grid.get_node_ids())

    def send(self, kind: str, messages: Mapping[int, bytes]) -> dict[str, int]:
        """Send messages to nodes; equal contents are stored once. Those that Flower did not accept are left out."""
        carried = {message: content(message) for message in set(messages.values())}
        sent = self._grid.push_messages([Message(carried[message], node, kind) for node, message in messages.items()])
        return {name: node for name, node in zip(sent, messages, strict=False) if name}

    def poll(self, tickets: Collection[str]) -> Iterator[tuple[str, bytes | Failure]]:
        """The replies that have arrived."""
        for reply in self._grid.pull_messages(list(tickets)):
            yield reply.metadata.reply_to_message_id, _reply(reply)

    def now(self) -> float:
        """Seconds by the grid's clock, or the machine's monotonic one."""
        return self._clock.now() if self._clock else time.monotonic()

    def wait(self, seconds: float) -> None:
        """Sleep, or advance the grid's clock."""
        if self._clock:
            self._clock.wait(seconds)
        else:
            time.sleep(seconds)


def _reply(message: Message) -> bytes | Failure:
    if message.has_error():
        return Failure(message.error.reason or f"error {message.error.code}")
    try:
        return read(message)
    except FederatedError as error:
        return Failure(str(error))


def server_app(main: Callable[[GridExchange, Mapping[str, object]], None]) -> ServerApp:
    """A ServerApp that calls `main` with an exchange and the run's configuration."""
    made = ServerApp()

    @made.main()
    def run(grid: Grid, context: Context) -> None:
        main(GridExchange(grid), context.run_config)

    return made
