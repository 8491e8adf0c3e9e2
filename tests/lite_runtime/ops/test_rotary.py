"""RotaryEmbedding natively equals the reference."""

from __future__ import annotations

import numpy as np
import pytest

from lite_runtime.graph import Array
from tests.lite_runtime.ops.one_node import check
from tests.lite_runtime.ops.targets import on_other_targets, run_on

SHAPES = [(1, 1, 1, 2), (2, 5, 3, 8), (1, 33, 9, 64), (3, 2, 1, 18)]


def angles(*shape: int) -> tuple[Array, Array]:
    turns = np.random.default_rng(0).uniform(-7, 7, shape)
    return np.cos(turns).astype("f4"), np.sin(turns).astype("f4")


@pytest.mark.parametrize(("batch", "length", "heads", "size"), SHAPES)
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("joined", [False, True])
def test_rotation(batch: int, length: int, heads: int, size: int, interleaved: int, joined: bool) -> None:
    shape = (batch, length, heads * size) if joined else (batch, heads, length, size)
    x = np.random.default_rng(1).normal(size=shape).astype("f4")
    attrs = {"interleaved": interleaved} | ({"num_heads": heads} if joined else {})
    check("RotaryEmbedding", [x, *angles(batch, length, size // 2)], attrs, rtol=1e-5, atol=1e-6)
    positions = np.random.default_rng(2).integers(0, 40, (batch, length))
    check("RotaryEmbedding", [x, *angles(40, size // 2), positions], attrs, rtol=1e-5, atol=1e-6)
    part = {**attrs, "rotary_embedding_dim": 2}
    check("RotaryEmbedding", [x, *angles(batch, length, 1)], part, rtol=1e-5, atol=1e-6)


def all_rotations() -> None:
    for shape in SHAPES:
        test_rotation(*shape, interleaved=1, joined=True)
        test_rotation(*shape, interleaved=0, joined=False)


@on_other_targets
def test_other_targets(target: str) -> None:
    run_on(target, all_rotations)
