"""Transposed convolutions as convolutions of phases: the same numbers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from cloud.audit.phases import split_phases
from converter import to_ir
from tests.cloud.models import parsed, run_onnx


@pytest.mark.parametrize(
    "kernel, stride, pads, more, size, wanted",
    [
        (5, 2, [1, 1, 2, 2], 0, 7, 14),
        (3, 2, [0, 0, 1, 1], 0, 4, 8),
        (4, 2, [1, 1, 1, 1], 0, 5, 10),
        (2, 3, [0, 0, 0, 0], 1, 3, 9),
        (7, 3, [2, 2, 2, 2], 0, 5, 15),
    ],
)
def test_the_numbers_are_the_same(kernel: int, stride: int, pads: list[int], more: int, size: int, wanted: int) -> None:
    text = (
        f"net (float[n, 3, {size}, {size}] x, float[3, 4, {kernel}, {kernel}] w) => (float[n, 4, {wanted}, {wanted}] y)"
    )
    said = f"strides = [{stride}, {stride}], pads = {pads}, output_padding = [{more}, {more}]"
    model = to_ir(parsed(f"{text} {{ y = ConvTranspose<{said}>(x, w) }}"))
    random = np.random.default_rng(0)
    w, x = (random.standard_normal(s).astype(np.float32) for s in ((3, 4, kernel, kernel), (2, 3, size, size)))
    held = model.graph.inputs.pop(1)
    held.const_value = ir.tensor(w, name="w")
    model.graph.register_initializer(held)
    before = run_onnx(model, x=x)[0]
    split_phases(model)
    assert [node.op_type for node in model.graph] == ["Conv", "DepthToSpace"]
    np.testing.assert_allclose(run_onnx(model, x=x)[0], before, atol=1e-5)


def test_others_are_left_alone() -> None:
    model = to_ir(parsed("""net (float[n, 4, 5, 5] x) => (float[n, 4, 10, 11] y)
        <float[4, 2, 3, 3] w = {0}> { y = ConvTranspose<strides = [2, 2], group = 2>(x, w) }""".replace(
        "{0}", "{" + ", ".join(["0.5"] * 72) + "}").replace("10, 11", "11, 11")))  # fmt: skip
    split_phases(model)
    assert [node.op_type for node in model.graph] == ["ConvTranspose"]
