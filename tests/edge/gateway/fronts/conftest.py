"""A gateway behind fronts, with the models of the one that has none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import tests.edge.gateway.live as place
from edge.gateway.fronts.fronts import Fronts
from tests.edge.gateway.live import Live, live, numbers, scaled, simple, simple_string


@contextmanager
def _fronted(models: Any, workers: int = 2, **flags: Any) -> Iterator[Live]:
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:  # for as long as it starts: others' gateways have no fronts
            patch.setattr(place, "HttpServer", Fronts)
            made = stack.enter_context(live(models, workers=workers, **flags))
        yield made


@pytest.fixture(scope="session")
def fronted() -> Callable[..., AbstractContextManager[Live]]:
    """Serve models behind fronts; see `live`."""
    return _fronted


@pytest.fixture(scope="package")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """As everywhere, behind fronts."""
    folder: Path = tmp_path_factory.mktemp("fronted")
    simple(folder / "simple.mslite")
    simple_string(folder / "simple_string.mslite")
    numbers(folder / "numbers.mslite")
    for version in (1, 2):
        home = folder / "scaled" / str(version)
        home.mkdir(parents=True)
        scaled(home / "model.mslite", float(version))
    (folder / "scaled" / "config.toml").write_text('versions = "all"\nlabels = {canary = 2, stable = 1}\n')
    with _fronted(folder) as made:
        yield made
