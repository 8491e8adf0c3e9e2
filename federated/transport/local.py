"""Runs in this process: the same ServerApp and ClientApp as in a real one, over grids without sockets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from flwr.app import Context, RecordDict

from federated.config import Config
from federated.errors import FederatedError
from federated.hierarchy.aggregator import Aggregator
from federated.server.federation import Start
from federated.server.gathering import Answering, Exchange
from federated.transport.app_client import client_app
from federated.transport.exchange import GridExchange, server_app
from federated.transport.grid import LocalGrid

__all__ = ["aggregators_here", "exchange_here", "run_here"]

Delay = Callable[[str, int], float]


def run_here(main: Callable[[Exchange], None], nodes: Mapping[str, Answering], delay: Delay | None = None) -> None:
    """Run `main` as the server of these nodes. `delay`: see `LocalGrid`."""
    server_app(lambda exchange, words: main(exchange))(_grid(nodes, delay), Context(0, 0, {}, RecordDict(), {}))


def aggregators_here(
    config: Config, start: Start, devices: Mapping[str, Answering], delay: Delay | None = None
) -> dict[str, Aggregator]:
    """The aggregators that answer to the root, with all that is below them: `hierarchy.aggregators` says how many on
    each level. Devices are dealt to them in the order of names, in equal shares. With `delay`, each aggregator has a
    clock of its own for its devices. Raises FederatedError if there are fewer devices than aggregators that have some.
    """

    def below(names: Sequence[str], counts: Sequence[int]) -> dict[str, Answering]:
        if not counts:
            return {name: devices[name] for name in names}
        made: dict[str, Answering] = {}
        for at in range(counts[0]):
            share = names[len(names) * at // counts[0] : len(names) * (at + 1) // counts[0]]
            name = f"aggregator-{at:03d}"
            made[name] = Aggregator(name, config, start, exchange_here(below(share, counts[1:]), delay))
        return made

    counts = config.hierarchy.aggregators
    least = prod(counts)
    if len(devices) < least:
        raise FederatedError(
            f"hierarchy.aggregators: expected at least {least} devices, one for each, got {len(devices)}"
        )
    found = below(sorted(devices), counts)
    return {name: each for name, each in found.items() if isinstance(each, Aggregator)}


def exchange_here(nodes: Mapping[str, Answering], delay: Delay | None = None) -> Exchange:
    """What a server of these nodes sends its messages over."""
    return GridExchange(_grid(nodes, delay))


def _grid(nodes: Mapping[str, Answering], delay: Delay | None) -> LocalGrid:
    return LocalGrid(client_app(lambda context: nodes[str(context.node_config["device"])]), nodes, delay)
