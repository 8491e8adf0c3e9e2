"""A run in this process: the same ServerApp and ClientApp as in a real one, over a grid without sockets."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flwr.app import Context, RecordDict

from federated.client.device import Device
from federated.server.conduct import Exchange
from federated.transport.app_client import client_app
from federated.transport.exchange import server_app
from federated.transport.grid import LocalGrid

__all__ = ["run_here"]


def run_here(
    main: Callable[[Exchange], None],
    devices: Mapping[str, Device],
    delay: Callable[[str, int], float] | None = None,
) -> None:
    """Run `main` as the server of `devices`. `delay`: see `LocalGrid`."""
    app = client_app(lambda context: devices[str(context.node_config["device"])])
    grid = LocalGrid(app, devices, delay)
    server_app(lambda exchange, words: main(exchange))(grid, Context(0, 0, {}, RecordDict(), {}))
