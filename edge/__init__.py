"""The command line, the gateway and its client, and comparisons with other runtimes.

Importing this package loads nothing heavy; each public name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lite_runtime._lazy import lazy

if TYPE_CHECKING:
    from edge.client import Client
    from edge.gateway.errors import GatewayError
    from edge.gateway.processing.prepared import prepared

__all__ = [
    "Client",
    "GatewayError",
    "prepared",
]

_HOMES = {
    "Client": "edge.client",
    "GatewayError": "edge.gateway.errors",
    "prepared": "edge.gateway.processing.prepared",
}
"""Every public name and the module that defines it."""

__getattr__ = lazy("edge", _HOMES, "serve", "the gateway uses it to serve HTTP")


def __dir__() -> list[str]:
    return sorted(__all__)
