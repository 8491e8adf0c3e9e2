"""What a run records beside scalars: the model as a graph, a profile of its steps, memory."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cloud.errors import TrackError
from cloud.track import Store
from cloud.track.tracked import Tracked
from cloud.track.watching import profile
from cloud.track.watching.outline import outline
from cloud.track.watching.profile import Profiled, read_profile
from cloud.train import JaxTask, Trainer
from cloud.zoo import mlp

ROWS = np.random.default_rng(0).standard_normal((200, 6)).astype(np.float32)
LABELS = np.arange(200) % 3


def network(params: Any, x: Any) -> Any:
    return jax.nn.relu(x @ params["a"]) @ params["b"] + jnp.sum(params["c"])


def weights() -> dict[str, Any]:
    return {"a": np.ones((6, 5), np.float32), "b": np.ones((5, 3), np.float32), "c": np.ones(3, np.float32)}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, bytes]:
    """A store, its run, and the file of the profile."""
    place, files = tmp_path_factory.mktemp("watching") / "runs.sqlite", []

    def keeping(data: bytes, read: Callable[[bytes], Any] = read_profile) -> Any:
        files.append(data)
        return read(data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profile, "read_profile", keeping)
        tracked = Tracked(place, name="watched", profile=4)
        trainer = Trainer(mlp(6, 3, (8,)), callbacks=[tracked])
        trainer.fit((ROWS, LABELS), epochs=6, batch_size=20, validation=(ROWS[:40], LABELS[:40]))
    return place, tracked.run, files[0]


def test_a_profile_tells_the_time_of_a_step_by_operator(recorded: tuple[Path, str, bytes]) -> None:
    place, run, _ = recorded
    with Store(place) as store:
        found = store.document(run, "profile")
    rows = found["rows"]
    nodes = {row["node"] for row in rows}
    assert any(name.startswith(("Gemm ", "MatMul ")) for name in nodes), nodes
    assert {"forward", "backward", "update"} <= {row["phase"] for row in rows}
    assert found["steps"] >= 4 and found["seconds"] == pytest.approx(sum(row["seconds"] for row in rows))
    assert sum(row["share"] for row in rows) == pytest.approx(1.0)
    assert [row["seconds"] for row in rows] == sorted((row["seconds"] for row in rows), reverse=True)


def test_the_graph_has_the_profiles_names(recorded: tuple[Path, str, bytes]) -> None:
    place, run, _ = recorded
    with Store(place) as store:
        graph, found = store.document(run, "graph"), store.document(run, "profile")
        memory = store.scalars(run, "memory/process")
    names = [node["name"] for node in graph["nodes"]]
    assert graph["inputs"] == ["x"] and graph["left_out"] == 0 and graph["nodes"][0]["from"] == [-1]
    assert sum(node["weights"] for node in graph["nodes"]) == 6 * 8 + 8 + 8 * 3 + 3
    assert {row["node"] for row in found["rows"]} & set(names)
    if sys.platform == "linux":
        assert len(memory) >= 1 and min(memory.values) > 2**20


def test_a_jax_function_is_drawn_by_its_products() -> None:
    graph = outline(JaxTask(network, weights()), {"x": jax.ShapeDtypeStruct((4, 6), np.float32)})
    assert [node["operator"] for node in graph["nodes"]] == ["dot", "relu", "dot"]
    assert [node["from"] for node in graph["nodes"]] == [[-1], [0], [1]]
    assert [node["weights"] for node in graph["nodes"]] == [30, 0, 15]
    assert outline(JaxTask(network, weights()), None) == {}


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-7], lambda data: data[: len(data) // 3], lambda data: b"\x0a\xff" + data]
)
def test_a_damaged_profile_is_an_error(recorded: tuple[Path, str, bytes], damage: Callable[[bytes], bytes]) -> None:
    from cloud.track.watching.xspace import written_as

    assert any("Gemm" in said for names in written_as(recorded[2]).values() for said in names.values())
    with pytest.raises(TrackError, match="damaged at byte"):
        written_as(damage(recorded[2]))


def test_profiling_beside_another_profile_warns_and_goes_on(tmp_path: Path) -> None:
    found: list[Any] = []
    jax.profiler.start_trace(str(tmp_path))
    try:
        trainer = Trainer(mlp(6, 3, (8,)), callbacks=[Profiled(found.append, 2)])
        with pytest.warns(RuntimeWarning, match="not profiled"):
            trainer.fit((ROWS, LABELS), epochs=2, batch_size=20)
    finally:
        jax.profiler.stop_trace()
    assert found == [] and trainer.steps_done == 20
    with pytest.raises(TrackError, match="at least 1 step"):
        Profiled(found.append, 0)


def test_a_store_without_documents_has_none(tmp_path: Path) -> None:
    place = tmp_path / "runs.sqlite"
    with Store(place, create=True) as store:
        run = store.start()
        assert store.document(run, "graph") == {}
        store.add_document(run, "graph", {"nodes": [1]})
        store.add_document(run, "graph", {"nodes": [2]})
        assert store.document(run, "graph") == {"nodes": [2]} and store.document(run, "other") == {}
    with closing(sqlite3.connect(place)) as database, database:
        database.execute("UPDATE documents SET body = 'no JSON'")
    with Store(place) as store, pytest.raises(TrackError, match="damaged"):
        store.document(run, "graph")
