"""Tiny bundles (y = factor * x), a runner without a scheduler, and repositories over a folder of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.gateway.job import Job
from edge.gateway.models.loading import Loader
from edge.gateway.models.repository import Options, Repository
from edge.gateway.models.served import Served, Shapes
from edge.gateway.sources.listing import Folder
from lite_runtime import bundle
from lite_runtime.graph import Graph, Node, StateUse, Value


def tiny(factor: float = 1.0, *, width: int | str = 4, golden: float | None = None, **given: Any) -> bytes:
    """y = factor * x for x float32 [n, width]; its golden example says `golden` where that is another factor."""
    ports = Value("x", "float32", ("n", width)), Value("y", "float32", ("n", width))
    graph = Graph((ports[0],), (ports[1],), (Node("Mul", ("x", "k"), ("y",)),), {"k": np.array([factor], np.float32)})
    x = np.arange(4, dtype=np.float32)[None]
    example = ({"x": x}, {"y": x * np.float32(factor if golden is None else golden)})
    return bundle.write(None, {"predict": graph}, golden={"predict": example}, **given)


def counter() -> bytes:
    """A bundle whose one signature changes state."""
    by, n = Value("by", "int64", ()), Value("n", "int64", ())
    graph = Graph((n, by), (Value("next", "int64", ()),), (Node("Add", ("n", "by"), ("next",)),), {})
    uses = {"count": StateUse({"n": "n"}, {"next": "n"})}
    return bundle.write(None, {"count": graph}, state={"n": np.array(0, np.int64)}, uses=uses)


class Plain:
    """A runner that runs its jobs one by one."""

    limit = 1
    nbytes = 0

    def __init__(self, served: Served, signature: str, shapes: Shapes, personal: bool) -> None:
        self.key, self.model = f"{served.name}/{served.version}/{signature}/{shapes}/{personal}", served.name
        self.shapes, self.personal = shapes, personal
        self._model = served.model

    def run(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            try:
                job.outputs = self._model.run(job.inputs, job.signature)
            except Exception as error:
                job.error = error


@dataclass
class Place:
    """A folder of models, and what happened to repositories over it."""

    root: Path
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    forgotten: list[str] = field(default_factory=list)
    prepared: list[str] = field(default_factory=list)

    def put(self, path: str, data: bytes | str) -> Path:
        """Write a file as a careful deployment does: to a temporary name, then rename."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.parent / f".{target.name}"
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)
        temporary.rename(target)
        return target

    def repository(self, *sources: Any, prepare: Callable[[Served], None] | None = None, **options: Any) -> Repository:
        def note(served: Served) -> None:
            self.prepared.append(f"{served.name}/{served.version}")
            if prepare is not None:
                prepare(served)

        loader = Loader(
            factory=Plain,  # type: ignore[arg-type]
            prepare=note,
            forget=lambda served: self.forgotten.append(f"{served.name}/{served.version}"),
        )
        told = {"tell": lambda event, facts: self.events.append((event, dict(facts))), **options}
        return Repository(sources or [Folder(self.root)], loader, Options(**told))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    root = tmp_path / "models"
    root.mkdir()
    return Place(root)


@pytest.fixture(scope="session")
def make() -> Any:
    return tiny


@pytest.fixture(scope="session")
def stateful() -> bytes:
    return counter()


def factor_of(served: Served) -> float:
    """The factor of a version, from a run of its model."""
    x = np.ones((1, 4), np.float32)
    job = Job({"x": x}, 1, lambda job: None, arrived=0.0)
    served.runner_for(job).run([job])
    assert job.error is None and job.outputs is not None, job.error
    return float(job.outputs["y"][0, 0])


@pytest.fixture(scope="session")
def factor() -> Any:
    return factor_of
