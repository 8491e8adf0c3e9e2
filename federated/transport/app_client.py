"""The ClientApp: passes Flower messages to a device and returns its answers."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from federated.server.gathering import Answering
from federated.transport.messages import content, read

__all__ = ["app", "client_app"]


def client_app(device_of: Callable[[Context], Answering]) -> ClientApp:
    """A ClientApp whose nodes are devices; an error of a device is raised, and Flower reports it to the server."""
    made = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        return Message(content(device_of(context).answer(read(message))), reply_to=message)

    for category in (made.train, made.evaluate, made.query):
        category()(answer)
    return made


def _node(context: Context) -> Answering:
    from federated.client.nodes import node_from

    return node_from(context.node_config)


app = client_app(_node)
"""What a SuperNode runs; its `--node-config` names the device or the aggregator (`federated.client.nodes`)."""
