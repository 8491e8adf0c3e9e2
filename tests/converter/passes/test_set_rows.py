"""A replaced row, as TensorFlow's converter writes it, becomes ScatterND; what only looks like it stays."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import lite_runtime
from converter import convert

FAR = 2**63 - 1
MODEL = """<ir_version: 10, opset_import: ["" : 21]>
g (float[5, 3] x, float[5, 3] other, int32 i, float[3] v) => (float[rows, 3] y) {
    one = Constant <value = int32 {1}> ()
    shape = Constant <value = int64[1] {1}> ()
    all = Constant <value = int32[1] {-1}> ()
    none = Constant <value = int32[1] {0}> ()
    zero = Constant <value = int64 {0}> ()
    zeros = Constant <value = int64[2] {0, 0}> ()
    far = Constant <value = int64 {FAR}> ()
    ends = Constant <value = int64[2] {FAR, FAR}> ()
    axes = Constant <value = int64[2] {0, 1}> ()
    row_axis = Constant <value = int64[1] {0}> ()
    i1 = Reshape (i, shape)
    size = Concat <axis = 0> (i1, all)
    size64 = Cast <to = 7> (size)
    negative = Less (size64, zero)
    end = Where (negative, far, size64)
    before = Slice (x, zeros, end, axes)
    j = Add (i, one)
    j1 = Reshape (j, shape)
    start = Concat <axis = 0> (j1, none)
    start64 = Cast <to = 7> (start)
    behind = Slice (BEHIND, start64, ends, axes)
    row = Unsqueeze (v, row_axis)
    y = Concat <axis = 0> (before, row, behind)
}"""


def model(behind: str = "x", step: int = 1) -> onnx.ModelProto:
    text = MODEL.replace("FAR", str(FAR)).replace("BEHIND", behind)
    return onnx.parser.parse_model(text.replace("int32 {1}", f"int32 {{{step}}}"))


def ops(proto: onnx.ModelProto) -> tuple[lite_runtime.Model, set[str]]:
    held = lite_runtime.load(convert(proto).bundle)
    return held, {node.op for node in held.bundle.at_first("predict").nodes}


@pytest.mark.parametrize("i", range(5))
def test_a_row_is_set(i: int) -> None:
    held, found = ops(model())
    assert "ScatterND" in found and not found & {"Slice", "Concat"}
    x, v = np.random.default_rng(i).normal(size=(5, 3)).astype(np.float32), np.float32([7, 8, 9])
    wanted = x.copy()
    wanted[i] = v
    feeds = {"x": x, "other": x, "i": np.int32(i), "v": v}
    got = held.run({name: feeds[name] for name in (v.name for v in held.bundle.at_first("predict").inputs)})
    np.testing.assert_array_equal(got["y"], wanted)


@pytest.mark.parametrize(("behind", "step"), [("other", 1), ("x", 2), ("x", 0)])
def test_other_parts_are_not_a_row(behind: str, step: int) -> None:
    held, found = ops(model(behind, step))
    assert "ScatterND" not in found
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    got = held.run({"x": x, "other": -x, "i": np.int32(2), "v": np.zeros(3, np.float32)})["y"]
    rest = {"x": x, "other": -x}[behind][2 + step :]
    np.testing.assert_array_equal(got, np.concatenate([x[:2], np.zeros((1, 3)), rest]))
