"""The ClientApp: passes Flower messages to a device and returns its answers."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from federated.client.device import Device
from federated.transport.messages import content, read

__all__ = ["app", "client_app"]


def client_app(device_of: Callable[[Context], Device]) -> ClientApp:
    """A ClientApp whose nodes are devices; an error of a device is raised, and Flower reports it to the server."""
    made = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        return Message(content(device_of(context).answer(read(message))), reply_to=message)

    for category in (made.train, made.evaluate, made.query):
        category()(answer)
    return made


def _device(context: Context) -> Device:
    from federated.client.nodes import device_from

    return device_from(context.node_config)


app = client_app(_device)
"""What a SuperNode runs; its `--node-config` names the device (`federated.client.nodes`)."""
