"""What the SuperLink runs."""

from federated.transport.app_server import app

__all__ = ["app"]
