"""A gateway behind fronts, with the models of the one that has none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from edge.gateway.fronts.fronts import Fronts
from tests.edge.gateway.live import Live, examples, live


@contextmanager
def _fronted(models: Any, workers: int = 2, **flags: Any) -> Iterator[Live]:
    with live(models, Fronts, workers=workers, **flags) as made:
        yield made


@pytest.fixture(scope="session")
def fronted() -> Callable[..., AbstractContextManager[Live]]:
    """Serve models behind fronts; see `live`."""
    return _fronted


@pytest.fixture(scope="package")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """As everywhere, behind fronts."""
    with _fronted(examples(tmp_path_factory.mktemp("fronted"))) as made:
        yield made
