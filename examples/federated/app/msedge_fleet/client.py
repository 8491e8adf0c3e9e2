"""The ClientApp that a SuperNode runs."""

from federated import client_app as app

__all__ = ["app"]
