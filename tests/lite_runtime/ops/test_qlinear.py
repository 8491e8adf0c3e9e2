"""Integer contractions natively equal the reference bit for bit: every zero point, tail, border and kind of result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lite_runtime.errors import ShapeError
from lite_runtime.graph import Array, Node
from lite_runtime.native.target import host, runnable
from lite_runtime.ops.registry import INFERS, Inference, Spec
from tests.lite_runtime.ops.one_node import check, graph_of, onnxruntime_results
from tests.lite_runtime.ops.targets import run_on

INT8, UINT8, INT16 = np.dtype(np.int8), np.dtype(np.uint8), np.dtype(np.int16)


def _ints(rng: np.random.Generator, dtype: np.dtype, *shape: int) -> Array:
    """The whole range, its ends more often than chance would have them."""
    ends = np.iinfo(dtype)
    values = rng.integers(ends.min, ends.max + 1, shape)
    return np.where(rng.random(shape) < 0.1, rng.choice([ends.min, ends.max], shape), values).astype(dtype)


def _scale(value: float) -> Array:
    return np.array(value, np.float32)


def operands(
    rng: np.random.Generator,
    x: Array,
    w: Array,
    columns: int,
    depth: int,
    *,
    y: np.dtype | None = INT8,
    weight_zero: bool = False,
    per_column: bool = True,
    bias: bool = True,
) -> list[Array | None]:
    """The nine operands of a QLinear contraction whose results fill the range of `y`; None: float32."""
    wide = x.dtype == INT16
    zero = np.array(
        rng.integers(*((-99, 99) if x.dtype == INT8 else (3, 251) if x.dtype == UINT8 else (-9, 9))), x.dtype
    )
    count = columns if per_column else 1
    middle = 128 if w.dtype == UINT8 else 0
    zeros = rng.integers(-40, 40, count) + middle if weight_zero else np.full(count, middle)
    w_scale = rng.uniform(0.01, 0.05, count).astype(np.float32)
    spread = (300 if wide else 0.9) * 70 * 70 * 0.03 * np.sqrt(max(depth, 1))
    whole = np.int64 if wide else np.int32
    b: Array | None = None
    if bias:
        b = rng.integers(-(1 << 15), 1 << 15, columns).astype(whole)
        b = rng.standard_normal(columns).astype(np.float32) if y is None else b
    shape = (count,) if per_column else ()
    return [
        *(x, _scale(0.7), zero, w, w_scale.reshape(shape), zeros.astype(w.dtype).reshape(shape)),
        *((None, None) if y is None else (_scale(spread / (30000 if wide else 100)), np.array(7, y))),
        b,
    ]


def equal(
    op: str, given: Sequence[Array | None], attrs: dict[str, Any] | None = None, fed: tuple[int, ...] = (0,)
) -> Array:
    """The native result, which has every bit of the reference's; all operands but `fed` are constants."""
    constants = [i for i in range(len(given)) if i not in fed]
    (result,) = check(op, given, attrs, constants=constants, rtol=0, atol=0)
    return result


def conv(rng: np.random.Generator, image: tuple[int, ...], out: int, kernel: tuple[int, ...], **kinds: Any) -> Array:
    """A channels-last QLinearConv of random operands. kinds: `x`, `w` dtypes, those of `operands`; the rest attrs."""
    x_type, w_type = kinds.pop("x", INT8), kinds.pop("w", INT8)
    settings = {k: kinds.pop(k) for k in ("y", "weight_zero", "per_column", "bias") if k in kinds}
    depth = image[-1] // kinds.get("group", 1)
    x, w = _ints(rng, x_type, *image), _ints(rng, w_type, out, depth, *kernel)
    given = operands(rng, x, w, out, depth * int(np.prod(kernel)), **settings)
    return equal("QLinearConv", given, {"layout": "NHWC", **kinds})


@pytest.mark.parametrize("channels", [1, 3, 5, 17, 33])
@pytest.mark.parametrize("x", [INT8, UINT8])
def test_channels(channels: int, x: np.dtype) -> None:
    rng = np.random.default_rng(channels)
    conv(rng, (2, 7, 6, channels), 20, (3, 3), pads=(1, 1, 1, 1), x=x)
    conv(rng, (1, 5, 9, channels), 70, (1, 1), x=x)


@pytest.mark.parametrize("out", [1, 3, 15, 16, 17, 33, 48, 49, 64, 65, 100, 130])
@pytest.mark.parametrize("weight_zero", [False, True])
def test_columns(out: int, weight_zero: bool) -> None:
    rng = np.random.default_rng(out)
    conv(rng, (1, 5, 11, 6), out, (2, 2), weight_zero=weight_zero)


@pytest.mark.parametrize("x", [INT8, UINT8])
@pytest.mark.parametrize("w", [INT8, UINT8])
@pytest.mark.parametrize("y", [INT8, UINT8, None])
@pytest.mark.parametrize("weight_zero", [False, True])
@pytest.mark.parametrize("per_column", [False, True])
def test_kinds(x: np.dtype, w: np.dtype, y: np.dtype | None, weight_zero: bool, per_column: bool) -> None:
    kinds = {"x": x, "w": w, "y": y, "weight_zero": weight_zero, "per_column": per_column}
    rng = np.random.default_rng(7)
    result = conv(rng, (2, 6, 7, 5), 19, (3, 3), pads=(1, 0, 2, 1), **kinds)
    assert len(np.unique(result)) > 50
    conv(rng, (1, 6, 7, 5), 19, (1, 1), bias=False, **kinds)


@pytest.mark.parametrize(
    "attrs",
    [
        {"strides": (2, 2), "pads": (1, 1, 1, 1)},
        {"strides": (2, 3), "auto_pad": "SAME_UPPER"},
        {"auto_pad": "SAME_LOWER"},
        {"dilations": (2, 2)},
        {"dilations": (1, 3), "pads": (2, 2, 2, 2)},
        {"pads": (0, 3, 4, 0)},
    ],
)
@pytest.mark.parametrize("channels", [2, 8])
def test_windows(attrs: dict[str, Any], channels: int) -> None:
    rng = np.random.default_rng(3)
    conv(rng, (2, 9, 11, channels), 12, (3, 2), **attrs)


@pytest.mark.parametrize(("group", "channels", "out"), [(2, 4, 6), (3, 15, 6), (4, 64, 68), (5, 5, 10)])
@pytest.mark.parametrize("weight_zero", [False, True])
def test_groups(group: int, channels: int, out: int, weight_zero: bool) -> None:
    rng = np.random.default_rng(4)
    conv(rng, (2, 6, 5, channels), out, (3, 2), group=group, pads=(1, 1, 1, 0), weight_zero=weight_zero)


@pytest.mark.parametrize("channels", [2, 3, 8, 16, 17, 24, 32, 33, 63, 64, 65, 100, 144])
@pytest.mark.parametrize("weight_zero", [False, True])
def test_depthwise(channels: int, weight_zero: bool) -> None:
    rng = np.random.default_rng(channels)
    kinds: dict[str, Any] = {"group": channels, "weight_zero": weight_zero}
    conv(rng, (2, 7, 9, channels), channels, (3, 3), pads=(1, 1, 1, 1), **kinds)
    conv(rng, (1, 7, 9, channels), channels, (3, 3), strides=(2, 2), x=UINT8, w=UINT8, y=UINT8, **kinds)
    conv(rng, (1, 5, 6, channels), channels, (2, 2), pads=(0, 1, 2, 0), y=None, **kinds)
    conv(rng, (1, 9, 8, channels), channels, (1, 5), strides=(1, 3), dilations=(1, 1), y=None, bias=False, **kinds)
    conv(rng, (1, 9, 8, channels), channels, (3, 2), dilations=(3, 2), y=UINT8, activation="Relu", **kinds)
    conv(rng, (2, 21, channels), channels, (4,), pads=(1, 2), per_column=False, **kinds)


def test_depthwise_with_a_scale_for_every_image() -> None:
    rng = np.random.default_rng(1)
    for x_type, channels in ((INT8, 70), (UINT8, 16)):
        x, w = _ints(rng, x_type, 3, 6, 5, channels), _ints(rng, INT8, channels, 1, 3, 3)
        given = operands(rng, x, w, channels, 9, y=None)
        given[1] = rng.uniform(0.1, 2, (3, 1, 1, 1)).astype(np.float32)
        given[2] = _ints(rng, x_type, 3, 1, 1, 1)
        equal("QLinearConv", given, {"layout": "NHWC", "pads": (1, 1, 1, 1), "group": channels}, fed=(0, 1, 2))


def test_channel_multiplier() -> None:
    rng = np.random.default_rng(2)
    conv(rng, (2, 6, 5, 6), 12, (3, 3), group=6, pads=(1, 1, 1, 1))


@pytest.mark.parametrize("y", [INT16, None])
@pytest.mark.parametrize("w", [INT8, UINT8])
def test_sixteen_bits(y: np.dtype | None, w: np.dtype) -> None:
    rng = np.random.default_rng(15)
    kinds: dict[str, Any] = {"x": INT16, "w": w, "y": y, "weight_zero": w == UINT8}
    for channels in (1, 2, 5, 16, 33):
        conv(rng, (2, 6, 5, channels), 2 * channels + 1, (3, 3), pads=(1, 0, 1, 2), **kinds)
        conv(rng, (1, 6, 5, channels), 70, (1, 1), activation="Relu", **kinds)
        conv(rng, (2, 7, 6, 3 * channels), 3 * channels, (3, 3), pads=(1,) * 4, group=3 * channels, **kinds)
    conv(rng, (1, 6, 5, 15), 6, (3, 2), group=3, dilations=(2, 1), **kinds)
    for m, k, n in ((1, 1, 1), (5, 3, 40), (50, 700, 65)):
        given = operands(rng, _ints(rng, INT16, m, k), _ints(rng, w, k, n), n, k, y=y, weight_zero=w == UINT8)
        equal("QLinearMatMul", given)


@pytest.mark.parametrize(("x", "w"), [(-32768, 127), (-32768, -128), (32767, 127)])
def test_sixteen_bits_pass_int32(x: int, w: int) -> None:
    a, b = np.full((3, 5000), x, np.int16), np.full((5000, 20), w, np.int8)
    for zero in (0, -128, 127):
        given = [a, _scale(1), np.array(0, np.int16), b, _scale(1), np.array(zero, np.int8), None, None, None]
        assert (equal("QLinearMatMul", given) == np.float32(x * (w - zero) * 5000)).all()


@pytest.mark.parametrize("seed", range(30))
def test_any_convolution(seed: int) -> None:
    """Geometry and kinds drawn together."""
    rng = np.random.default_rng(seed)
    axes = int(rng.integers(1, 3))
    kernel, strides, dilations, spare = (tuple(int(v) for v in rng.integers(1, 4, axes)) for _ in range(4))
    pads = tuple(int(v) for v in rng.integers(0, 3, 2 * axes))
    extent = [(k - 1) * d + s for k, d, s in zip(kernel, dilations, spare, strict=True)]
    group = int(rng.choice([1, 1, 2, 7, 20]))
    depthwise = group > 2 and rng.random() < 0.7
    depth = 1 if depthwise else int(rng.integers(1, 20))
    out = group * (1 if depthwise else int(rng.integers(1, 60 // group + 1)))
    x, w = (INT8, UINT8, INT16)[rng.integers(3)], (INT8, UINT8)[rng.integers(2)]
    y = (None, INT16 if x == INT16 else (INT8, UINT8)[rng.integers(2)])[rng.integers(2)]
    kinds: dict[str, Any] = {
        "x": x,
        "w": w,
        "y": y,
        "weight_zero": bool(rng.integers(2)),
        "bias": bool(rng.integers(2)),
    }
    space = (e + int(rng.integers(0, 9)) for e in extent)
    kinds |= {"strides": strides, "dilations": dilations, "pads": pads, "group": group}
    conv(rng, (int(rng.integers(1, 4)), *space, group * depth), out, kernel, **kinds)


def test_one_axis() -> None:
    rng = np.random.default_rng(5)
    conv(rng, (2, 31, 5), 9, (4,), strides=(3,), pads=(2, 1))
    conv(rng, (1, 31, 1), 9, (3,), dilations=(2,))


@pytest.mark.parametrize("y", [INT8, UINT8, None])
def test_activations(y: np.dtype | None) -> None:
    rng = np.random.default_rng(6)
    conv(rng, (1, 6, 6, 8), 24, (3, 3), y=y, activation="Relu")
    conv(rng, (1, 6, 6, 8), 24, (3, 3), y=y, activation="Clip", activation_min=-20.0, activation_max=33.3)


@pytest.mark.parametrize(
    ("m", "k", "n"), [(1, 1, 1), (1, 5000, 3), (7, 13, 17), (50, 64, 80), (97, 2, 48), (49, 259, 200)]
)
@pytest.mark.parametrize("y", [INT8, None])
def test_products(m: int, k: int, n: int, y: np.dtype | None) -> None:
    rng = np.random.default_rng(m)
    for weight_zero in (False, True):
        x, w = _ints(rng, INT8, m, k), _ints(rng, INT8, k, n)
        given = operands(rng, x, w, n, k, y=y, weight_zero=weight_zero)
        equal("QLinearMatMul", given)
        given[3] = w.T.copy()
        equal("QLinearMatMul", given, {"transB": 1})


@pytest.mark.parametrize(
    ("left", "right"),
    [((2, 3, 5, 6), (2, 3, 6, 7)), ((2, 3, 5, 6), (1, 1, 6, 7)), ((5, 6), (4, 6, 7)), ((6,), (6, 7)), ((5, 3), (3,))],
)
@pytest.mark.parametrize("fed", [(0,), (0, 3)])
@pytest.mark.parametrize("w", [INT8, UINT8])
def test_batches(left: tuple[int, ...], right: tuple[int, ...], fed: tuple[int, ...], w: np.dtype) -> None:
    rng = np.random.default_rng(8)
    columns = right[-1] if len(right) > 1 else 1
    for y in (INT8, None):
        x, b = _ints(rng, UINT8, *left), _ints(rng, w, *right)
        given = operands(rng, x, b, columns, left[-1], y=y, weight_zero=w == UINT8, per_column=False)
        equal("QLinearMatMul", given, fed=fed)


@pytest.mark.parametrize(("m", "k", "n"), [(9, 33, 17), (64, 64, 65), (3, 3, 100), (20, 130, 64)])
@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("weight_zero", [False, True])
def test_computed_right_side(m: int, k: int, n: int, turned: int, weight_zero: bool) -> None:
    rng = np.random.default_rng(n)
    x, b = _ints(rng, INT8, 2, m, k), _ints(rng, INT8, *((2, n, k) if turned else (2, k, n)))
    given = operands(rng, x, b, n, k, weight_zero=weight_zero, per_column=False)
    equal("QLinearMatMul", given, {"transB": turned}, fed=(0, 3))


def test_a_scale_for_every_row_or_image() -> None:
    rng = np.random.default_rng(9)
    for x_type in (INT8, UINT8):
        x, w = _ints(rng, x_type, 3, 50, 21), _ints(rng, INT8, 21, 40)
        given = operands(rng, x, w, 40, 21, y=None, weight_zero=x_type == UINT8)
        given[1] = rng.uniform(0.1, 2, (3, 50, 1)).astype(np.float32)
        given[2] = _ints(rng, x_type, 3, 50, 1)
        equal("QLinearMatMul", given, fed=(0, 1, 2))
        x, w = _ints(rng, x_type, 4, 6, 6, 5), _ints(rng, INT8, 18, 5, 3, 3)
        given = operands(rng, x, w, 18, 45, y=None)
        given[1] = rng.uniform(0.1, 2, (4, 1, 1, 1)).astype(np.float32)
        given[2] = _ints(rng, x_type, 4, 1, 1, 1)
        equal("QLinearConv", given, {"layout": "NHWC", "pads": (1, 1, 1, 1)}, fed=(0, 1, 2))
        given[1], given[2] = _scale(0.3), np.array(9, x_type)
        equal("QLinearConv", given, {"layout": "NHWC", "pads": (1, 1, 1, 1)}, fed=(0, 1, 2))


@pytest.mark.parametrize(("x", "w"), [(-128, 127), (-128, -128), (127, 127), (127, -128)])
@pytest.mark.parametrize("k", [5, 5000])
def test_extremes_that_do_not_saturate_on_the_way(x: int, w: int, k: int) -> None:
    for zero in (0, -128, 127):
        a, b = np.full((9, k), x, np.int8), np.full((k, 20), w, np.int8)
        given = [a, _scale(1), np.array(zero, np.int8), b, _scale(1), np.array(0, np.int8), None, None, None]
        result = equal("QLinearMatMul", given)
        assert (result == np.float32((x - zero) * w * k)).all()
        given[6:8] = _scale(1 << 20), np.array(-3, np.int8)
        equal("QLinearMatMul", given)


ROUNDED = [("TWICE", INT8), ("DOUBLE", INT8), ("TWICE", UINT8), ("DOUBLE", UINT8)]
ROUNDED += [(rounding, INT16) for rounding in ("FIXED", "TWICE", "DOUBLE", "REAL")]


@pytest.mark.parametrize(("rounding", "x"), ROUNDED)
def test_sums_rounded_otherwise(rounding: str, x: np.dtype) -> None:
    rng = np.random.default_rng(15)
    narrow = x != INT16
    for m, k, n in ((3, 5, 7), (64, 70, 130), (1, 9, 33), (17, 64, 64), (40, 3, 100)):
        for weight_zero in (False, narrow):
            a, b = _ints(rng, x, m, k), _ints(rng, INT8, k, n)
            equal("QLinearMatMul", operands(rng, a, b, n, k, y=x, weight_zero=weight_zero), {"rounding": rounding})
    b = _ints(rng, x if narrow else INT8, 7, 9)
    given = operands(rng, _ints(rng, x, 5, 7), b, 9, 7, y=x, per_column=False)
    if narrow:
        equal("QLinearMatMul", given, {"rounding": rounding}, fed=(0, 3))
    for group, channels in ((1, 4), (6, 6), (70, 70)):
        out = 7 if group == 1 else channels
        conv(rng, (2, 6, 5, channels), out, (3, 2), x=x, y=x, rounding=rounding, group=group)


@pytest.mark.parametrize("channels", [1, 7, 8, 20])
def test_channels_after_the_last_multiple_of_eight(channels: int) -> None:
    """LANES rounds halves up before them, away from zero there: the results are -1.5 and 1.5 before rounding."""
    x, w = np.array([[[[-6]]], [[[6]]]], np.int8), np.ones((channels, 1, 1, 1), np.int8)
    zero = np.array(0, np.int8)
    given = [x, _scale(1), zero, w, _scale(1), zero, _scale(4), zero]
    found = {
        rounding: equal("QLinearConv", given, {"layout": "NHWC", "rounding": rounding}).reshape(2, -1).tolist()
        for rounding in ("TWICE", "DOUBLE", "LANES")
    }
    last = channels % 8
    assert found["TWICE"] == [[-1] * channels, [2] * channels]
    assert found["DOUBLE"] == [[-2] * channels, [2] * channels]
    assert found["LANES"] == [[-1] * (channels - last) + [-2] * last, [2] * channels]


@pytest.mark.parametrize("rounding", ["", "FIXED", "TWICE"])
@pytest.mark.parametrize("turned", [0, 1])
def test_both_operands_of_sixteen_bits(turned: int, rounding: str) -> None:
    rng = np.random.default_rng(16)
    for lead in ((), (2,), (3, 2)):
        for m, k, n in ((3, 5, 7), (20, 33, 130), (1, 1, 33), (5, 2, 20), (4, 1, 1)):
            a, b = _ints(rng, INT16, *lead, m, k), _ints(rng, INT16, *lead, *((n, k) if turned else (k, n)))
            if m == 5:
                a[...], b[...] = -32768, -32768
            zero, y_scale = np.array(0, INT16), 0.0002 * 30000 * np.sqrt(k) * 30000 / 32768
            given = [a, _scale(0.01), zero, b, _scale(0.02), zero, _scale(y_scale), zero]
            for fed in ((0, 3), (0,)):
                equal("QLinearMatMul", given, {"rounding": rounding, "transB": turned}, fed=fed)


def test_results_halfway_are_rounded_to_even_and_far_ones_saturate() -> None:
    a = np.array([[1], [2], [3], [5], [127], [-128]], np.int8)
    b = np.array([[1, -1, 100]], np.int8)
    given = [
        a,
        _scale(0.5),
        np.array(0, np.int8),
        b,
        _scale(1),
        np.array(0, np.int8),
        _scale(1),
        np.array(1, np.int8),
        None,
    ]
    result = equal("QLinearMatMul", given)
    assert result[:4, 0].tolist() == [1, 2, 3, 3] and result[4:, 2].tolist() == [127, -128]
    given[6] = _scale(1e-30)
    assert set(np.unique(equal("QLinearMatMul", given))) == {-128, 127}


@pytest.mark.parametrize("y_scale", [1e-30, 1e-9, 1e-3, 1e30])
@pytest.mark.parametrize("weight_zero", [False, True])
def test_results_far_beyond_their_range(y_scale: float, weight_zero: bool) -> None:
    rng = np.random.default_rng(17)
    for y in (INT8, UINT8):
        for channels, group in ((70, 70), (70, 1)):
            x, w = _ints(rng, INT8, 1, 5, 6, channels), _ints(rng, INT8, channels, channels // group, 3, 3)
            given = operands(rng, x, w, channels, 9, y=y, weight_zero=weight_zero)
            given[6] = _scale(y_scale)
            equal("QLinearConv", given, {"layout": "NHWC", "group": group})


@pytest.mark.parametrize("rows", [2, 7, 47, 49, 95, 97, 191, 193, 200, 400])
def test_rows_in_blocks(rows: int) -> None:
    rng = np.random.default_rng(rows)
    for n, y, weight_zero in ((70, INT8, False), (20, UINT8, True), (40, None, False)):
        x, w = _ints(rng, INT8, rows, 11), _ints(rng, INT8, 11, n)
        equal("QLinearMatMul", operands(rng, x, w, n, 11, y=y, weight_zero=weight_zero))
    conv(rng, (3, 1, rows, 4), 18, (1, 1))


@pytest.mark.parametrize("n", [5, 20, 40, 64, 100])
def test_one_row(n: int) -> None:
    """Its sums are kept in parts: reductions that these divide and that they do not."""
    rng = np.random.default_rng(n)
    for k in (3, 4, 5, 8, 16, 27, 31, 32, 36, 61):
        for weight_zero in (False, True):
            x, w = _ints(rng, UINT8, 1, k), _ints(rng, INT8, k, n)
            equal("QLinearMatMul", operands(rng, x, w, n, k, weight_zero=weight_zero))


@pytest.mark.parametrize("weight_zero", [False, True])
def test_a_few_of_each_kind(weight_zero: bool) -> None:
    """Each kernel of bytes, each kind of result, whole and broken vectors."""
    rng = np.random.default_rng(16)
    for y, x in ((INT8, UINT8), (UINT8, INT8), (None, INT8)):
        kinds: dict[str, Any] = {"x": x, "y": y, "weight_zero": weight_zero, "pads": (1, 1, 1, 1)}
        for channels, out in ((3, 5), (8, 16), (17, 33), (6, 65)):
            conv(rng, (2, 5, 6, channels), out, (3, 3), **kinds)
        for channels in (3, 8, 33, 70):
            conv(rng, (2, 5, 6, channels), channels, (3, 3), group=channels, **kinds)
        a, b = _ints(rng, x, 9, 35), _ints(rng, INT8, 35, 19)
        equal("QLinearMatMul", operands(rng, a, b, 19, 35, y=y, weight_zero=weight_zero, per_column=False), fed=(0, 3))


def test_nothing_to_compute() -> None:
    rng = np.random.default_rng(10)
    given = operands(rng, _ints(rng, INT8, 0, 4), _ints(rng, INT8, 4, 5), 5, 4)
    assert equal("QLinearMatMul", given).shape == (0, 5)
    assert conv(rng, (0, 4, 4, 3), 5, (3, 3)).shape == (0, 2, 2, 5)


def test_integer_results() -> None:
    rng = np.random.default_rng(12)
    x, w = _ints(rng, UINT8, 30, 19), _ints(rng, INT8, 19, 21)
    equal("MatMulInteger", [x, w, np.array(9, np.uint8), np.array(3, np.int8)])
    equal("MatMulInteger", [x, w])
    equal("MatMulInteger", [x, w, np.array(9, np.uint8), _ints(rng, INT8, 21)])
    equal("MatMulInteger", [x, w, np.array(200, np.uint8), np.array(-3, np.int8)], fed=(0, 1, 2))


def test_onnx_agrees() -> None:
    """Where ONNX Runtime computes the same operator, results differ by its rounding at most."""
    rng = np.random.default_rng(13)
    x, w = _ints(rng, UINT8, 1, 6, 9, 8), _ints(rng, INT8, 10, 6, 3, 3)
    given = operands(rng, x, w, 10, 54, y=UINT8)
    ours = graph_of("QLinearConv", given, {"pads": (1, 1, 1, 1)}, 1, range(1, 9))[2][0]
    theirs = onnxruntime_results("QLinearConv", given, {"pads": (1, 1, 1, 1)}, 1)[0]
    assert np.abs(ours.astype(int) - theirs).max() <= 1 and (ours == theirs).mean() > 0.95


@pytest.mark.parametrize(
    "change",
    [
        {6: None},
        {8: np.zeros(4, np.int32)},
        {8: np.zeros(5, np.float32)},
        {3: np.zeros((3, 5), np.int8)},
        {1: np.ones(4, np.float32)},
        {1: np.array(1, np.int32)},
        {2: np.zeros((1, 2), np.int8)},
        {2: np.array(0, np.uint8)},
        {4: np.ones(2, np.float32)},
        {5: np.zeros(5, np.int32)},
        {6: np.ones(5, np.float32)},
        {7: np.array(0, np.int32)},
    ],
)
def test_misfits_are_refused(change: dict[int, Array | None]) -> None:
    rng = np.random.default_rng(14)
    given = operands(rng, _ints(rng, INT8, 2, 4), _ints(rng, INT8, 4, 5), 5, 4)
    for i, value in change.items():
        given[i] = value
    node = Node("QLinearMatMul", tuple(str(i) for i in range(9)), ("y",), {}, "it")
    specs = [None if x is None else Spec(str(x.dtype), x.shape) for x in given]
    with pytest.raises(ShapeError):
        INFERS["QLinearMatMul"](Inference(node, specs, [None] * 9))


_OTHERS = [t.name for t in runnable() if t is not host()]


def everything() -> None:
    """What every target is asked."""
    for weight_zero in (False, True):
        test_a_few_of_each_kind(weight_zero)
    for y, w in ((INT16, INT8), (None, UINT8)):
        test_sixteen_bits(y, w)
    for x in (-128, 127):
        test_extremes_that_do_not_saturate_on_the_way(x, -128, 500)
    for low, high in ((-32768, -128), (32767, 127)):
        test_sixteen_bits_pass_int32(low, high)


@pytest.mark.parametrize("name", _OTHERS)
def test_every_target_gives_the_same_bits(name: str) -> None:
    """Those with and without an instruction for dot products, and every width of a vector."""
    run_on(name, everything)
