"""The ServerApp of a deployed federation: what a SuperLink runs."""

from __future__ import annotations

from collections.abc import Mapping

from federated.run import serve
from federated.transport.exchange import GridExchange, server_app

__all__ = ["app"]


def _main(exchange: GridExchange, words: Mapping[str, object]) -> None:
    serve(exchange, words)


app = server_app(_main)
"""What a SuperLink runs; `flwr run --run-config` names its configuration."""
