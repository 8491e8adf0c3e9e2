"""The gateway that many tests use, over gRPC."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.edge.gateway.grpc.serving import listening
from tests.edge.gateway.live import Live


@pytest.fixture(scope="session")
def address(gateway: Live) -> Iterator[str]:
    """The session's gateway over gRPC."""
    with listening(gateway) as found:
        yield found
