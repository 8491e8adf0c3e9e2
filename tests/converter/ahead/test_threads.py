"""Several threads, and modules of kernels for engines that offer more: the same bits, and clear errors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from converter.ahead import build, building, modules
from lite_runtime.graph import Array
from lite_runtime.native.target import host
from tests.converter.ahead import models, node

pytestmark = [pytest.mark.skipif(host() is None, reason="no native kernels on this processor"), node.needs_node]


@pytest.fixture(scope="module", params=["int8_convnet", "transformer", "lstm"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small models for several threads, which would gain nothing."""
    made = tmp_path_factory.mktemp("threads") / "built"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "worth", lambda steps, most: most)
        build(models.MODELS[request.param](), made)
    return made


def inputs_of(folder: Path, count: int) -> list[dict[str, Array]]:
    ports = node.run(folder).answer["signatures"]["predict"]["inputs"]
    rng = np.random.default_rng(3)
    return [{p["name"]: rng.standard_normal(p["shape"]).astype(p["dtype"]) for p in ports} for _ in range(count)]


def test_results_are_the_same_with_any_number_of_threads(folder: Path) -> None:
    """From the third run on a team is used; 3 are more than this machine may have."""
    inputs = inputs_of(folder, 12)
    alone = node.run(folder, *inputs)
    for threads in (2, 3):
        several = node.run(folder, *inputs, threads=threads)
        assert several.answer["threads"] == threads and several.answer["kernels"] == "kernels-threads.wasm"
        for one, other in zip(alone.outputs, several.outputs, strict=True):
            assert {k: v.tobytes() for k, v in one.items()} == {k: v.tobytes() for k, v in other.items()}


def test_one_thread_is_used_where_memory_is_not_shared(folder: Path) -> None:
    told = node.ask(folder, "unshared")
    assert told["default"] == {"threads": 1, "kernels": "kernels.wasm"}
    assert "Cross-Origin-Opener-Policy: same-origin" in told["asked"]
    assert told["asked"].startswith("MsedgeError: threads: 2 threads need shared memory")


def test_a_worker_that_does_not_start_is_told(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "msedge-worker.mjs").unlink()
    told = node.ask(tmp_path, "workers")
    assert told.startswith("MsedgeError: threads: a worker does not start (") and "msedge-worker.mjs" in told


def test_a_thread_that_stops_stops_the_others(folder: Path) -> None:
    """Kernels whose scratch memory is said to lie outside leave memory: all threads fail, and the program goes on."""
    told = node.ask(folder, "stops")
    assert told["first"].startswith("MsedgeError: the model stopped (")
    assert told["second"] == "MsedgeError: the model stopped in an earlier run; load it again"


def test_modules_are_left_out_that_no_engine_needs(tmp_path: Path) -> None:
    build(models.float_convnet(), tmp_path / "float")
    build(models.int8_convnet(), tmp_path / "int8")
    names = {kind: {path.name for path in (tmp_path / kind).glob("*.wasm")} for kind in ("float", "int8")}
    assert names == {"float": {"kernels.wasm"}, "int8": {"kernels.wasm", "kernels-relaxed.wasm"}}
    listed = json.loads((tmp_path / "int8" / modules.LIST).read_text())["modules"]
    assert [row["bytes"] for row in listed] == [(tmp_path / "int8" / row["file"]).stat().st_size for row in listed]
