"""Transposed convolutions as convolutions of phases: the same numbers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from cloud.audit.phases import split_phases
from converter import to_ir
from tests.cloud.models import parsed, run_onnx

Pair = tuple[int, int]


@pytest.mark.parametrize(
    "kernel, steps, pads, more, size, wanted",
    [
        ((5, 5), (2, 2), (1, 1, 2, 2), (0, 0), (7, 7), (14, 14)),
        ((3, 3), (2, 2), (0, 0, 1, 1), (0, 0), (4, 6), (8, 12)),
        ((4, 4), (2, 2), (1, 1, 1, 1), (0, 0), (5, 5), (10, 10)),
        ((2, 2), (3, 3), (0, 0, 0, 0), (1, 1), (3, 3), (9, 9)),
        ((7, 7), (3, 3), (2, 2, 2, 2), (0, 0), (5, 5), (15, 15)),
        ((1, 9), (1, 2), (0, 3, 0, 4), (0, 0), (1, 8), (1, 16)),
        ((3, 1), (3, 1), (0, 0, 0, 0), (0, 0), (4, 5), (12, 5)),
        ((3, 5), (2, 4), (0, 1, 1, 0), (0, 0), (3, 4), (6, 16)),
    ],
)
def test_the_numbers_are_the_same(
    kernel: Pair, steps: Pair, pads: tuple[int, ...], more: Pair, size: Pair, wanted: Pair
) -> None:
    text = f"net (float[n, 3, {_of(size)}] x, float[3, 4, {_of(kernel)}] w) => (float[n, 4, {_of(wanted)}] y)"
    said = f"strides = [{_of(steps)}], pads = [{_of(pads)}], output_padding = [{_of(more)}]"
    model = to_ir(parsed(f"{text} {{ y = ConvTranspose<{said}>(x, w) }}"))
    random = np.random.default_rng(0)
    w, x = (random.standard_normal(s).astype(np.float32) for s in ((3, 4, *kernel), (2, 3, *size)))
    held = model.graph.inputs.pop(1)
    held.const_value = ir.tensor(w, name="w")
    model.graph.register_initializer(held)
    before = run_onnx(model, x=x)[0]
    split_phases(model)
    assert model.graph[0].op_type == "Conv" and "ConvTranspose" not in {node.op_type for node in model.graph}
    np.testing.assert_allclose(run_onnx(model, x=x)[0], before, atol=1e-5)


def _of(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


def test_others_are_left_alone() -> None:
    model = to_ir(parsed("""net (float[n, 4, 5, 5] x) => (float[n, 4, 10, 11] y)
        <float[4, 2, 3, 3] w = {0}> { y = ConvTranspose<strides = [2, 2], group = 2>(x, w) }""".replace(
        "{0}", "{" + ", ".join(["0.5"] * 72) + "}").replace("10, 11", "11, 11")))  # fmt: skip
    split_phases(model)
    assert [node.op_type for node in model.graph] == ["ConvTranspose"]
