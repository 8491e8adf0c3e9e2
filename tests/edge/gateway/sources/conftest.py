"""The repositories over a folder of tiny bundles of the tests of `models`."""

from tests.edge.gateway.models.conftest import make, place

__all__ = ["make", "place"]
