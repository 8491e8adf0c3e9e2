"""What a SuperNode runs."""

from federated.transport.app_client import app

__all__ = ["app"]
