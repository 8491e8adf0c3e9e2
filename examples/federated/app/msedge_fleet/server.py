"""The ServerApp that the SuperLink runs."""

from federated import server_app as app

__all__ = ["app"]
