"""Random pipelines, rewritten, resumed, divided among processes, give the same elements as the naive interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud import data
from cloud.data import ir
from cloud.data.functions import named
from cloud.data.passes import PASSES, optimised
from cloud.data.reading.streams import CHUNK
from cloud.errors import DataError
from tests.cloud.data.functions import (
    between,
    doubled,
    lucky,
    moved,
    noisy,
    noisy_rows,
    not_third,
    plus_one,
    small,
    twelve,
)
from tests.cloud.data.naive import meaning


def numbers(size: int) -> data.Pipeline:
    x = np.arange(2 * size, dtype=np.float32).reshape(size, 2)
    return data.arrays({"x": x, "y": np.arange(size)})


STEPS: dict[str, Any] = {
    "double x": lambda p, n: p.map(doubled, on="x"),
    "double rows": lambda p, n: p.map(doubled, on="x", rows=True),
    "add rows": lambda p, n: p.map(plus_one, on="x", rows=True),
    "move": lambda p, n: p.map(moved),
    "noise": lambda p, n: p.map(noisy, on="x", seeded=True),
    "noise rows": lambda p, n: p.map(noisy_rows, on="x", rows=True, seeded=True),
    "blend": lambda p, n: data.Pipeline(ir.Blend(p.node, named(between), n)),
    "filter y": lambda p, n: p.filter(not_third, on="y"),
    "filter y rows": lambda p, n: p.filter(not_third, on="y", rows=True),
    "filter x rows": lambda p, n: p.filter(small, on="x", rows=True),
    "shuffle": lambda p, n: p.shuffle(),
    "shuffle 5": lambda p, n: p.shuffle(5),
    "repeat": lambda p, n: p.repeat(1 + n % 3),
    "take": lambda p, n: p.take(2 * n),
    "skip": lambda p, n: p.skip(n),
    "shard": lambda p, n: p.shard(n % 2, 2),
    "mix": lambda p, n: data.mix((p, 2.0), (numbers(n + 1), 1 + n)),
    "zip": lambda p, n: p.zip(data.arrays({"z": np.arange(3 * n + 1)})).map(without_z),
    "prefetch": lambda p, n: p.prefetch(threads=n % 2),
}
LATER: dict[str, Any] = {
    "take": lambda p, n: p.take(n),
    "shuffle": lambda p, n: p.shuffle(),
    "double": lambda p, n: p.map(doubled, on="x"),
    "repeat": lambda p, n: p.repeat(2),
}
ORDERED = [name for name in STEPS if name.split()[0] not in ("shuffle", "mix", "zip", "blend")]


def without_z(element: dict[str, Any]) -> dict[str, Any]:
    return {"x": element["x"], "y": element["y"] + element["z"]}


@st.composite
def pipelines(draw: st.DrawFn, later: bool = True) -> data.Pipeline:
    ordered = draw(st.integers(0, 4)) == 0
    found = data.iterable(twelve) if ordered else numbers(draw(st.integers(1, 40)))
    for name in draw(st.lists(st.sampled_from(ORDERED if ordered else list(STEPS)), max_size=5)):
        found = STEPS[name](found, draw(st.integers(0, 9)))
    found = found.batch(draw(st.sampled_from([2, 4, 6, 12])), draw(st.sampled_from(["pad", "drop"])))
    for name in draw(st.lists(st.sampled_from(list(LATER)), max_size=2 if later and not ordered else 0)):
        found = LATER[name](found, draw(st.integers(0, 9)))
    return found


def read(pipeline: data.Pipeline, **how: Any) -> list[Any] | None:
    """Its batches; None where there is nothing to make one of."""
    try:
        return list(pipeline.batches(3, 1, **how))
    except DataError as problem:
        assert "no element is left for a batch" in str(problem) or "do not fill one batch" in str(problem)
        return None


def same(found: list[Any] | None, expected: list[Any] | None) -> None:
    assert (found is None) == (expected is None)
    for one, other in zip(found or [], expected or [], strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
            assert one[name].dtype == other[name].dtype


@given(pipelines())
@settings(max_examples=100)
def test_batches_are_what_the_pipeline_means(pipeline: data.Pipeline) -> None:
    expected = [batch for _, batch in meaning(pipeline.node, 3, 1)]
    same(read(pipeline) or [], expected)


@pytest.mark.parametrize(
    "chain",
    ["shard skip take shard", "repeat noise", "mix noise", "zip noise", "filter y:repeat:noise", "mix mix",
     "mix:noise rows:repeat:noise rows:blend:shuffle", "zip:blend:noise rows:filter y", "shuffle shuffle noise noise",
     "filter y:shuffle:filter x rows", "noise repeat noise shuffle", "shard shard skip"],
)  # fmt: skip
def test_chains_that_are_rarely_drawn_at_random(chain: str) -> None:
    pipeline = numbers(23)
    for name in chain.split(":" if ":" in chain else None):
        pipeline = STEPS[name](pipeline, 4)
    pipeline = pipeline.batch(4)
    same(read(pipeline), [batch for _, batch in meaning(pipeline.node, 3, 1)])


@given(pipelines())
@settings(max_examples=60)
def test_every_rewrite_alone_keeps_the_meaning(pipeline: data.Pipeline) -> None:
    expected = meaning(pipeline.node, 3, 1)
    for name, rewrite in PASSES.items():
        plain = optimised(pipeline.node, {name: rewrite})
        if any(isinstance(n, ir.Batch) and n.then for n in ir.walk(plain)):
            continue  # what runs inside a batch has its own words; the test above reads it
        found = meaning(plain, 3, 1)
        same([e for _, e in found], [e for _, e in expected])
        assert [key for key, _ in found] == [key for key, _ in expected], name


@given(pipelines(), st.integers(0, 4))
@settings(max_examples=50)
def test_reading_goes_on_from_any_position(pipeline: data.Pipeline, taken: int) -> None:
    whole = read(pipeline)
    if not whole:
        return
    batches = pipeline.batches(3, 1)
    for _ in range(min(taken, len(whole))):
        next(batches)
    position = batches.position()
    assert position["batch"] == min(taken, len(whole))
    same(read(pipeline, position=position), whole[taken:])
    same(read(pipeline, position=position["batch"]), whole[taken:])


@given(pipelines(later=False))
@settings(max_examples=50)
def test_processes_together_see_what_one_sees(pipeline: data.Pipeline) -> None:
    whole = read(pipeline)
    parts = [read(pipeline, process=(index, 2)) for index in range(2)]
    if whole is None:
        assert parts == [None, None]
        return
    together = [{n: np.concatenate([r[n] for r in rows]) for n in rows[0]} for rows in zip(*parts, strict=True)]  # type: ignore[arg-type]
    same(together, whole)


def test_positions_do_not_depend_on_the_number_of_processes() -> None:
    pipeline = numbers(100).shuffle().filter(not_third, on="y").batch(4)
    positions = []
    for count in (1, 2, 4):
        batches = pipeline.batches(process=(count - 1, count))
        for _ in range(5):
            next(batches)
        positions.append(batches.position())
    assert positions[0] == positions[1] == positions[2]
    assert positions[0]["element"] > 20  # it starts there, not at the beginning


def test_a_resumed_stream_reads_only_what_is_left() -> None:
    asked: list[int] = []

    def watched(element: dict[str, Any]) -> bool:
        asked.append(int(element["y"]))
        return element["y"] % 2 == 0  # type: ignore[no-any-return]

    pipeline = numbers(20 * CHUNK).filter(watched).batch(CHUNK, "drop").prefetch(threads=0)
    batches = pipeline.batches()
    for _ in range(8):
        next(batches)
    position = batches.position()
    asked.clear()
    next(pipeline.batches(position=position))
    assert min(asked) >= 15 * CHUNK


def test_epochs_with_a_seeded_filter_have_different_lengths() -> None:
    once = numbers(40).map(noisy, on="x", seeded=True).filter(lucky, on="x").shuffle()
    assert len({len(meaning(once.node, 3, 1, k)) for k in range(3)}) > 1  # or this would show nothing
    pipeline = once.repeat(3).batch(4)
    same(read(pipeline), [batch for _, batch in meaning(pipeline.node, 3, 1)])


def test_epochs_and_seeds_have_different_orders() -> None:
    pipeline = numbers(64).shuffle().batch(64)
    orders = {tuple(next(pipeline.batches(seed, epoch))["y"]) for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4 and all(sorted(order) == list(range(64)) for order in orders)
    fixed = numbers(64).shuffle(7).batch(64)
    assert tuple(next(fixed.batches(0))["y"]) == tuple(next(fixed.batches(1))["y"])


def test_arrays_come_in_the_trainers_own_batches() -> None:
    from cloud.train.inputs.batches import Dataset, batches, epoch_order

    x, y = np.arange(100, dtype=np.float32).reshape(50, 2), np.arange(50)
    pipeline = data.arrays({"x": x, "labels": y}).shuffle().batch(16)
    theirs = batches(Dataset.of({"x": x}, y, ("x",)), epoch_order(50, 3, 2), 16, "pad")
    for ours, batch in zip(pipeline.batches(3, 2), theirs, strict=True):
        np.testing.assert_array_equal(ours["x"], batch.inputs["x"])
        np.testing.assert_array_equal(ours["labels"], batch.labels)
        np.testing.assert_array_equal(ours["mask"], batch.mask)


@pytest.mark.parametrize("name", PASSES)
def test_every_rewrite_applies_somewhere(name: str) -> None:
    chains = {
        "drop what does nothing": numbers(8).skip(0),
        "merge slices": numbers(8).take(6).shard(1, 2),
        "orders before maps": numbers(8).map(moved).shuffle(),
        "filters before maps of other values": numbers(8).map(doubled, on="x").filter(not_third, on="y"),
        "fuse maps": numbers(8).map(moved).map(moved),
        "maps of rows after the batch": numbers(8).map(doubled, on="x", rows=True).batch(4),
    }
    node = chains[name].node
    assert optimised(node, {name: PASSES[name]}) is not node
