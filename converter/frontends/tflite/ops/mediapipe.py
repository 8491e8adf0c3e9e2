"""MediaPipe's custom operators: transposed convolution with a bias, pools that remember places, and crops at landmarks.

Their options are a C structure (convolution, pools) or a flexbuffer map. Meaning: mediapipe/util/tflite/operations in
MediaPipe's sources. Of a batch MediaPipe computes the first image only, so that a batch of 1 is required where it does.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.op import Op, translate
from converter.frontends.tflite.ops.windows import image_sizes, images
from converter.ir import build

__all__: list[str] = []

_SAME, _VALID = 1, 2


class _Window(NamedTuple):
    """The head of TfLitePoolParams, and of TfLiteTransposeConvParams without the sizes of a filter."""

    padding: int
    width_stride: int
    height_stride: int
    width: int = 0
    height: int = 0
    activation: int = 0

    @property
    def strides(self) -> tuple[int, int]:
        return self.height_stride, self.width_stride

    @property
    def kernel(self) -> tuple[int, int]:
        return self.height, self.width


def _structure(op: Op, count: int) -> _Window:
    data = op.custom.data if op.custom is not None else b""
    if len(data) < 4 * count:
        op.fail(f"expected options of at least {4 * count} bytes, got {len(data)}")
    found = _Window(*struct.unpack_from(f"<{count}i", data))
    sizes = found[1:5] if count > 3 else found[1:3]
    if found.padding not in (_SAME, _VALID) or min(sizes) < 1 or max(sizes) > 1 << 16 or found.activation:
        op.fail(f"expected padding 1 or 2, sizes of at least 1 and no activation, got {tuple(found)}")
    return found


def _sizes(op: Op, x: ir.Value) -> tuple[int, ...]:
    found = image_sizes(images(op, x))
    if found is None:
        op.fail("expected images of known size, got open ones; give --shape")
    return found


@translate("Convolution2DTransposeBias")
def convolution_transpose(op: Op) -> ir.Value:
    """Operands: images, weights (out, height, width, in), a bias."""
    win, x = _structure(op, 3), op.real(0)
    shape = op.tensor(1).shape
    if len(shape) != 4 or 0 in shape:
        op.fail(f"expected weights of 4 dimensions of at least 1, got shape {list(shape)}")
    cuts = [0, 0]
    if win.padding == _SAME:
        pairs = zip(shape[1:3], _sizes(op, x), win.strides, strict=True)
        cuts = [max(0, kernel - (size - 1) % stride - 1) for kernel, size, stride in pairs]
    pads = [*(cut // 2 for cut in cuts), *(cut - cut // 2 for cut in cuts)]
    attrs = {"kernel_shape": shape[1:3], "strides": win.strides, "pads": pads}
    return op.nhwc(op.emit("ConvTranspose", [op.nchw(x), op.permuted(1, (3, 0, 1, 2)), op.real(2)], attrs))


@translate("MaxPoolingWithArgmax2D")
def max_pool_with_places(op: Op) -> list[ir.Value]:
    """The largest element of each window, and its index in the window plus 0.1, as float32."""
    win, x = _structure(op, 6), op.real(0)
    height, width = _sizes(op, x)
    before, after = [0, 0], [0, 0]
    for axis, (size, kernel, stride) in enumerate(zip((height, width), win.kernel, win.strides, strict=True)):
        if win.padding == _SAME:
            total = max(0, (-(-size // stride) - 1) * stride + kernel - size)
            before[axis], after[axis] = total // 2, total - total // 2
    attrs = {"kernel_shape": win.kernel, "strides": win.strides, "pads": [*before, *after]}
    y, places = op.emit("MaxPool", [op.nchw(x)], attrs, outputs=2)
    rows = op.emit("Mod", [op.emit("Div", [places, op.constant(width)]), op.constant(height)])
    columns = op.emit("Mod", [places, op.constant(width)])
    spans = [size + b + a for size, b, a in zip((height, width), before, after, strict=True)]
    counts = [(span - k) // s + 1 for span, k, s in zip(spans, win.kernel, win.strides, strict=True)]
    tops, lefts = (np.arange(n) * s - b for n, s, b in zip(counts, win.strides, before, strict=True))
    inside = op.emit("Mul", [op.emit("Sub", [rows, op.constant(tops[:, None])]), op.constant(win.width)])
    inside = op.emit("Add", [inside, op.emit("Sub", [columns, op.constant(lefts)])])
    real = op.emit("Add", [op.emit("Cast", [inside], {"to": int(ir.DataType.FLOAT)}), op.constant(0.1)])
    return [op.nhwc(y), op.nhwc(real)]


@translate("MaxUnpooling2D")
def max_unpool(op: Op) -> ir.Value:
    """Each element at its index in a window of the result, which has the size of all windows; zeros elsewhere."""
    win, x = _structure(op, 6), op.real(0)
    if win.strides != win.kernel:
        op.fail(f"expected windows that touch without overlap, got strides {win.strides} for windows {win.kernel}")
    height, width = _sizes(op, x)
    cells, channels = win.height * win.width, op.tensor(0).shape[-1]
    places = op.emit("Cast", [op.real(1)], {"to": int(ir.DataType.INT64)})
    column = op.constant([3])
    chosen = op.emit("Equal", [op.emit("Unsqueeze", [places, column]), op.constant(np.arange(cells)[:, None])])
    spread = op.emit("Where", [chosen, op.emit("Unsqueeze", [x, column]), op.constant(0.0)])
    split = op.emit("Reshape", [spread, op.constant([-1, height, width, *win.kernel, channels])])
    turned = op.emit("Transpose", [split], {"perm": (0, 1, 3, 2, 4, 5)})
    return op.emit("Reshape", [turned, op.constant([-1, height * win.height, width * win.width, channels])])


# crops at landmarks


def _options(op: Op, **wanted: Any) -> dict[str, Any]:
    """Options by name, each of the type of its default; a type instead of a default: the option is required."""
    found = op.custom.options if op.custom is not None else {}
    made = {}
    for name, default in wanted.items():
        kind = default if isinstance(default, type) else type(default)
        value = found.get(name, default)
        known = isinstance(value, int | float) and not isinstance(value, bool)
        if kind is list:
            several = isinstance(value, list | tuple) and len(value) > 0
            known = several and all(isinstance(v, int) and v >= 0 for v in value)
        if isinstance(value, type) or not known:
            op.fail(f"expected option {name} of type {kind.__name__}, got {found.get(name)!r}")
        made[name] = kind(value)
    return made


def _one(op: Op, i: int, rank: int) -> ir.Value:
    """Operand `i`, which must have this rank and a batch of 1."""
    x = op.real(i)
    shape = build.dims(x)
    if shape is None or len(shape) != rank or shape[0] != 1:
        op.fail(f"expected operand {i} of {rank} dimensions and a batch of 1, got {list(shape or ())}")
    return x


def _matrix(op: Op) -> tuple[ir.Value, ir.Value]:
    """Operand 1, a transformation [1, 4, 4]: the 2x2 part, transposed, and the shift [2]."""
    rows = op.emit("Reshape", [_one(op, 1, 3), op.constant([4, 4])])
    turned = op.emit("Transpose", [rows], {"perm": (1, 0)})
    parts = op.emit("Slice", [turned, op.constant([0]), op.constant([2]), op.constant([1])])
    linear = op.emit("Slice", [parts, op.constant([0]), op.constant([2]), op.constant([0])])
    shift = op.emit("Slice", [parts, op.constant([3]), op.constant([4]), op.constant([0])])
    return linear, op.emit("Reshape", [shift, op.constant([2])])


@translate("TransformTensor", "TransformTensorBilinear")
def transform_tensor(op: Op) -> ir.Value:
    """Pixels of the result are read at transformed positions, linearly between pixels; zero outside the image.
    From version 2 on, positions are those of the pixels' centres."""
    x = _one(op, 0, 4)
    height, width = _sizes(op, x)
    wanted = op.output().shape
    if len(wanted) != 4 or min(wanted) < 1:
        op.fail(f"expected a result of 4 known sizes, got {list(wanted)}")
    linear, shift = _matrix(op)
    half = 0.5 if op.version > 1 else 0.0
    ys, xs = np.mgrid[: wanted[1], : wanted[2]]
    points = op.constant(np.stack([xs, ys], -1).reshape(-1, 2).astype(np.float32) + np.float32(half))
    at = op.emit("Add", [op.emit("MatMul", [points, linear]), shift])
    if half:
        at = op.emit("Sub", [at, op.constant(half)])
    last = np.array([width - 1, height - 1], np.float32)
    above = op.emit("GreaterOrEqual", [at, op.constant(np.zeros(2, np.float32))])
    inside = op.emit("And", [above, op.emit("LessOrEqual", [at, op.constant(last)])])
    both = op.emit("ReduceMin", [op.emit("Cast", [inside], {"to": int(ir.DataType.FLOAT)}), op.constant([1])])
    grid = op.emit("Sub", [op.emit("Mul", [at, op.constant(2 / np.maximum(last, 1))]), op.constant(1.0)])
    grid = op.emit("Reshape", [grid, op.constant([1, *wanted[1:3], 2])])
    attrs = {"align_corners": 1, "mode": "linear", "padding_mode": "border"}
    y = op.nhwc(op.emit("GridSample", [op.nchw(x), grid], attrs))
    return op.emit("Mul", [y, op.emit("Reshape", [both, op.constant([1, *wanted[1:3], 1])])])


@translate("TransformLandmarks")
def transform_landmarks(op: Op) -> ir.Value:
    """x and y of each landmark, transformed; a third coordinate stays. Version 1: [1, height, width, landmarks of
    `dimensions` numbers], and the shift is multiplied by `scale`."""
    first = op.version == 1
    found = _options(op, dimensions=int, scale=1.0) if first else {}
    x = _one(op, 0, 4 if first else 3)
    shape = build.dims(x) or ()
    size = found["dimensions"] if first else shape[-1]
    if size not in (2, 3) or not isinstance(shape[-1], int) or shape[-1] % size:
        op.fail(f"expected landmarks of 2 or 3 numbers, got shape {list(shape)} for {size}")
    linear, shift = _matrix(op)
    if first:
        shift = op.emit("Mul", [shift, op.constant(found["scale"])])
    points = op.emit("Reshape", [x, op.constant([-1, size])])
    start, two, axis = op.constant([0]), op.constant([2]), op.constant([1])
    flat = op.emit("Add", [op.emit("MatMul", [op.emit("Slice", [points, start, two, axis]), linear]), shift])
    if size == 3:
        rest = op.emit("Slice", [points, two, op.constant([3]), axis])
        flat = op.emit("Concat", [flat, rest], {"axis": 1})
    return op.emit("Reshape", [flat, op.emit("Shape", [x])])


@translate("Landmarks2TransformMatrix")
def landmarks_to_matrix(op: Op) -> ir.Value:
    """The transformation [1, 4, 4] from pixels of a crop to the image: the box around chosen landmarks, turned so that
    the line from one landmark to another is level, and enlarged."""
    return _matrix_of_first_version(op) if op.version == 1 else _matrix_of_box(op)


def _points(op: Op, rank: int) -> ir.Value:
    """x and y of the landmarks of operand 0: [landmarks, 2]."""
    rows = op.emit("Reshape", [_one(op, 0, rank), op.constant([-1, 3])])
    return op.emit("Slice", [rows, op.constant([0]), op.constant([2]), op.constant([1])])


def _pair(op: Op, point: ir.Value) -> tuple[ir.Value, ir.Value]:
    """The two numbers in [..., 2], each [..., 1]."""
    x, y = op.emit("Split", [point, op.constant([1, 1])], {"axis": -1}, outputs=2)
    return x, y


def _sum(op: Op, a: ir.Value, b: ir.Value, c: ir.Value, d: ir.Value, sign: str) -> ir.Value:
    """a * b + c * d, or the difference."""
    return op.emit(sign, [op.emit("Mul", [a, b]), op.emit("Mul", [c, d])])


def _turned(op: Op, point: tuple[ir.Value, ir.Value], cos: ir.Value, sin: ir.Value) -> tuple[ir.Value, ir.Value]:
    x, y = point
    return _sum(op, cos, x, sin, y, "Sub"), _sum(op, sin, x, cos, y, "Add")


class _Box(NamedTuple):
    """Its centre in the image, and its sizes along its own axes."""

    centre: tuple[ir.Value, ir.Value]
    sizes: tuple[ir.Value, ir.Value]


def _box(op: Op, points: ir.Value, chosen: Sequence[int], cos: ir.Value, sin: ir.Value) -> _Box:
    """The box around chosen landmarks after a turn."""
    picked = op.emit("Gather", [points, op.constant(list(chosen))], {"axis": 0})
    middles, sizes = [], []
    for along in _turned(op, _pair(op, picked), cos, sin):
        least, most = (op.emit(f"Reduce{end}", [along, op.constant([0])], {"keepdims": 0}) for end in ("Min", "Max"))
        middles.append(op.emit("Mul", [op.emit("Add", [least, most]), op.constant(0.5)]))
        sizes.append(op.emit("Sub", [most, least]))
    centre = _turned(op, (middles[0], middles[1]), cos, op.emit("Neg", [sin]))
    return _Box(centre, (sizes[0], sizes[1]))


def _composed(
    op: Op, cos: ir.Value, sin: ir.Value, box: _Box, shifts: Sequence[float], factors: Sequence[float] = (1.0, 1.0)
) -> ir.Value:
    """[1, 4, 4]: shift, scale by `box.sizes`, turn by the angle of `cos` and -`sin`, move to `box.centre`; then the
    rows are multiplied by `factors`."""
    (u, v), back = box.sizes, op.emit("Neg", [sin])
    zero, one = op.constant(np.zeros(1, np.float32)), op.constant(np.ones(1, np.float32))
    rows = []
    for (a, b, sign), middle, factor in zip(((cos, back, "Sub"), (back, cos, "Add")), box.centre, factors, strict=True):
        left = op.emit("Mul", [a, u])
        right = op.emit("Mul", [b, v])
        if sign == "Sub":
            right = op.emit("Neg", [right])
        moved = _sum(op, left, op.constant(shifts[0]), right, op.constant(shifts[1]), "Add")
        row = op.emit("Concat", [left, right, zero, op.emit("Add", [moved, middle])], {"axis": 0})
        rows.append(row if factor == 1.0 else op.emit("Mul", [row, op.constant(factor)]))
    rows += [op.emit("Concat", [one if i == k else zero for i in range(4)], {"axis": 0}) for k in (2, 3)]
    return op.emit("Reshape", [op.emit("Concat", rows, {"axis": 0}), op.constant([1, 4, 4])])


def _line(op: Op, points: ir.Value, left: int, right: int) -> tuple[ir.Value, ir.Value]:
    """x and y of the way from one landmark to the other."""
    ends = [op.emit("Gather", [points, op.constant([i])], {"axis": 0}) for i in (left, right)]
    way = op.emit("Reshape", [op.emit("Sub", [ends[1], ends[0]]), op.constant([2])])
    return _pair(op, way)


def _matrix_of_box(op: Op) -> ir.Value:
    o = _options(
        op, left_rotation_idx=int, right_rotation_idx=int, subset_idxs=list, target_rotation_radians=0.0,
        output_height=int, output_width=int, scale_x=1.0, scale_y=1.0,
    )  # fmt: skip
    points = _points(op, 3)
    _within(op, [o["left_rotation_idx"], o["right_rotation_idx"], *o["subset_idxs"]])
    if min(o["output_height"], o["output_width"], o["scale_x"], o["scale_y"]) <= 0:
        op.fail("expected output_height, output_width, scale_x and scale_y above 0")
    dx, dy = _line(op, points, o["left_rotation_idx"], o["right_rotation_idx"])
    length = op.emit("Sqrt", [_sum(op, dx, dx, dy, dy, "Add")])
    none = op.emit("Equal", [length, op.constant(0.0)])
    safe = op.emit("Where", [none, op.constant(1.0), length])
    along = op.emit("Where", [none, op.constant(1.0), op.emit("Div", [dx, safe])])
    across = op.emit("Div", [dy, safe])
    c, s = (op.constant(float(f(o["target_rotation_radians"]))) for f in (np.cos, np.sin))
    cos, sin = _sum(op, c, along, s, across, "Add"), _sum(op, s, along, c, across, "Sub")
    box = _box(op, points, o["subset_idxs"], cos, sin)
    width, height = o["output_width"], o["output_height"]
    factors = (o["scale_x"] / width, o["scale_y"] / height)
    u, v = (op.emit("Mul", [size, op.constant(f)]) for size, f in zip(box.sizes, factors, strict=True))
    return _composed(op, cos, sin, _Box(box.centre, (u, v)), (-width / 2, -height / 2))


def _matrix_of_first_version(op: Op) -> ir.Value:
    o = _options(
        op, left_rotation_idx=int, right_rotation_idx=int, subset=list, dimensions=3, landmarks_range=int,
        bbox_size_multiplier=float, input_hw=list, output_hw=list,
    )  # fmt: skip
    points = _points(op, 4)
    _within(op, [o["left_rotation_idx"], o["right_rotation_idx"], *o["subset"]])
    sizes = (*o["input_hw"], *o["output_hw"])
    if o["dimensions"] != 3 or o["landmarks_range"] <= 0 or not o["bbox_size_multiplier"]:
        op.fail("expected landmarks of 3 dimensions, and a range and a multiplier above 0")
    if len(sizes) != 4 or min(sizes) < 2:
        op.fail(f"expected input_hw and output_hw of two sizes of at least 2, got {sizes}")
    dx, dy = _line(op, points, o["left_rotation_idx"], o["right_rotation_idx"])
    angle = op.emit("Neg", [op.emit("Atan", [op.emit("Div", [dy, dx])])])
    cos, sin = op.emit("Cos", [angle]), op.emit("Sin", [angle])
    box = _box(op, points, o["subset"], cos, sin)
    share = o["bbox_size_multiplier"] / o["landmarks_range"]
    crop = (sizes[3] - 1, sizes[2] - 1)
    u, v = (op.emit("Mul", [size, op.constant(2 * share / n)]) for size, n in zip(box.sizes, crop, strict=True))
    x, y = (op.emit("Mul", [middle, op.constant(2.0 / o["landmarks_range"])]) for middle in box.centre)
    factors = ((sizes[1] - 1) / 2, (sizes[0] - 1) / 2)
    return _composed(op, cos, sin, _Box((x, y), (u, v)), (-crop[0] / 2, -crop[1] / 2), factors)


def _within(op: Op, indices: Sequence[int]) -> None:
    shape = build.static_dims(op.real(0)) or (0,)
    count = int(np.prod(shape)) // 3
    if not all(0 <= i < count for i in indices):
        op.fail(f"expected indices of {count} landmarks, got {max(indices)}")
