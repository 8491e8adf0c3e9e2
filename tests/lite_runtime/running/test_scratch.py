"""Plans of one graph share their working memory: results stay those of plans that have their own."""

from __future__ import annotations

import numpy as np

import lite_runtime
from cloud.zoo.build import Builder
from converter import convert


def test_sizes_of_a_batch_share_an_arena_and_keep_their_results() -> None:
    b = Builder("model", 0)
    y = b.relu(b.dense(b.input("x", ("batch", 40)), 300, name="a"))
    data = convert(b.model(y=b.dense(y, 200, name="b"))).bundle
    model, rng = lite_runtime.load(data), np.random.default_rng(0)
    inputs = {n: rng.standard_normal((n, 40)).astype(np.float32) for n in (3, 1, 64, 7, 200, 2)}
    alone = {n: lite_runtime.load(data).run({"x": x})["y"] for n, x in inputs.items()}
    for n in (*inputs, *reversed(inputs)):
        np.testing.assert_array_equal(model.run({"x": inputs[n]})["y"], alone[n])
    bindings = {n: model.bind(arrays={"x": x}) for n, x in inputs.items()}
    for n in (*inputs, *reversed(inputs)):
        bindings[n]()
        np.testing.assert_array_equal(bindings[n].outputs["y"], alone[n])
    executor = bindings[1].executor
    arenas = {id(bound.arena): bound.arena.nbytes for bound in executor.bounds}
    needed = [bound.plan.arena_bytes for bound in executor.bounds]
    assert len(executor.bounds) == len(inputs) and len(arenas) < len(inputs)
    assert max(needed) <= max(arenas.values()) and sum(arenas.values()) < 4 * max(needed)
