"""Gateways that many tests ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.edge.gateway.live import Live, live, numbers, scaled, simple, simple_string


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A gateway with NVIDIA's example models, one of every datatype, and one that has versions."""
    folder: Path = tmp_path_factory.mktemp("models")
    simple(folder / "simple.mslite")
    simple_string(folder / "simple_string.mslite")
    numbers(folder / "numbers.mslite")
    for version in (1, 2):
        place = folder / "scaled" / str(version)
        place.mkdir(parents=True)
        scaled(place / "model.mslite", float(version))
    (folder / "scaled" / "config.toml").write_text('versions = "all"\nlabels = {canary = 2, stable = 1}\n')
    with live(folder) as made:
        yield made
