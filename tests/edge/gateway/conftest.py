"""Gateways that many tests use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.edge.gateway.live import Live, examples, live


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A gateway with NVIDIA's example models, one of every datatype, and one that has versions."""
    with live(examples(tmp_path_factory.mktemp("models"))) as made:
        yield made
