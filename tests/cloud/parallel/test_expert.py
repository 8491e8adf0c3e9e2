"""Expert plans move the bytes that the literature states."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.parallel.models import gpt, moe
from benchmarks.parallel.models.model import Model
from cloud.parallel.plan import Mesh
from cloud.parallel.searching.search import search
from cloud.parallel.searching.walk import sums
from cloud.parallel.topology import PRESETS
from cloud.parallel.tracing.trace import trace

H100 = PRESETS["h100x8"]
BLOCKS, ROWS, LENGTH, WIDTH = 2, 8, 16, 64  # of the small models


def moved(model: Model, expert: str, mesh: Mesh) -> dict[tuple[str, tuple[int, ...]], Counter[int]]:
    """Bytes of each collective, by kind and axes."""
    graph = trace(model.step, model.state, model.batch)
    found: dict[tuple[str, tuple[int, ...]], Counter[int]] = {}
    for one in search(graph, H100, expert=expert, meshes=[mesh]).estimate.collectives:
        found.setdefault((one.kind, one.axes), Counter())[one.bytes] += one.times
    return found


def test_experts_exchange_rows_forward_and_back() -> None:
    """Each block sends its rows to the experts and back, and their gradients the same way; no expert's weights move."""
    found = moved(moe(small=True), "ep", Mesh((8,), (0,)))
    experts, room = 8, int(1.25 * LENGTH / 8)
    sent = experts * ROWS * room * WIDTH * 4 // 8
    assert found["all-to-all", (0,)] == {sent: 4 * BLOCKS}
    stack = experts * WIDTH * 128 * 4
    assert all(size < stack for sizes in found.values() for size in sizes)


@pytest.mark.parametrize(("expert", "mesh", "rows"), [
    ("megatron", Mesh((8,), (0,)), ROWS), ("dp_tp", Mesh((2, 4), (0, 0)), ROWS // 2),
])  # fmt: skip
def test_columns_then_rows_sum_activations_twice_a_block_and_way(expert: str, mesh: Mesh, rows: int) -> None:
    found = moved(gpt(small=True), expert, mesh)
    whole = rows * LENGTH * WIDTH * 4
    inner = (len(mesh.sizes) - 1,)
    # Attention and MLP forward and back, the words looked up, and the head's gradient.
    assert found["all-reduce", inner][whole] == 4 * BLOCKS + 2


def test_zero1_keeps_parameters_whole_and_splits_their_moments() -> None:
    model = gpt(small=True)
    graph = trace(model.step, model.state, model.batch)
    plan = search(graph, H100, expert="zero1", meshes=[Mesh((8,), (0,))])
    lies = {graph.values[v].name: split for v, split in zip(graph.entering, plan.entering, strict=True)}
    assert lies["params.block0.up.w"] == ((), ()) and lies["batch.x"] == ((0,), ())
    assert lies["slots.0.mu.block0.up.w"] == ((), (0,)) and lies["slots.0.nu.words"] == ((0,), ())
    assert lies["slots.0.mu.block0.up.b"] == ((0,),) and lies["slots.0.count"] == ()
    vectors = [one for one in sums(graph, plan) if len(graph.values[one.value].shape) == 1]
    assert len(vectors) >= 8 and {one.split for one in vectors} == {((0,),)}  # none ends whole, to be cut after
