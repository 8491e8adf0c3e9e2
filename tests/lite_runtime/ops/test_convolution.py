"""Convolutions natively equal the reference: windows, borders, groups, residuals, activations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_runtime.errors import ShapeError
from lite_runtime.graph import Node
from lite_runtime.ops.registry import INFERS, Inference, Spec
from tests.lite_runtime.ops.one_node import check
from tests.lite_runtime.ops.targets import on_other_targets, run_on

RNG = np.random.default_rng(12)


def _f(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def _conv(x: np.ndarray, w: np.ndarray, attrs: dict[str, Any], residual: bool = False) -> None:
    operands: list[Any] = [x, w, _f(w.shape[0])]
    if residual:
        specs = [Spec("float32", o.shape) for o in operands]
        (out,) = INFERS["Conv"](Inference(Node("Conv", ("x", "w", "b"), ("y",), attrs), specs, [None] * 3))
        operands.append(_f(*out.shape))
    check("Conv", operands, attrs, constants=(1, 2), rtol=1e-4, atol=2e-4)


CASES = [
    # height, width, channels, results, kernel, stride, pads, dilation, groups
    (8, 8, 3, 16, (3, 3), 1, (1, 1, 1, 1), 1, 1),
    (13, 9, 5, 7, (3, 3), 2, (1, 1, 1, 1), 1, 1),
    (10, 11, 8, 24, (1, 1), 1, (0, 0, 0, 0), 1, 1),
    (10, 11, 8, 24, (1, 1), 2, (0, 0, 0, 0), 1, 1),
    (10, 11, 8, 24, (5, 5), 1, (2, 2, 2, 2), 2, 1),
    (10, 11, 8, 20, (3, 2), 1, (0, 1, 2, 0), 1, 2),
    (7, 6, 48, 96, (3, 3), 1, (1, 1, 1, 1), 1, 1),
    (17, 19, 24, 24, (3, 3), 1, (1, 1, 1, 1), 1, 24),
    (17, 19, 36, 36, (5, 5), 2, (2, 2, 2, 2), 1, 36),
    (9, 9, 4, 8, (3, 3), 1, (1, 1, 1, 1), 1, 4),
    (3, 3, 2, 4, (3, 3), 5, (2, 2, 0, 0), 1, 1),
]


@pytest.mark.parametrize(("h", "w", "c", "n", "kernel", "stride", "pads", "dilation", "groups"), CASES)
def test_two_dimensions(
    h: int,
    w: int,
    c: int,
    n: int,
    kernel: tuple[int, int],
    stride: int,
    pads: tuple[int, ...],
    dilation: int,
    groups: int,
) -> None:
    attrs = {"layout": "NHWC", "strides": (stride,) * 2, "pads": pads, "dilations": (dilation,) * 2, "group": groups}
    _conv(_f(2, h, w, c), _f(n, c // groups, *kernel), attrs)


def test_one_dimension() -> None:
    _conv(_f(2, 30, 6), _f(10, 6, 5), {"layout": "NHWC", "strides": (2,), "pads": (2, 1)})


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_automatic_padding(mode: str) -> None:
    _conv(_f(1, 9, 8, 4), _f(6, 4, 4, 4), {"layout": "NHWC", "auto_pad": mode, "strides": (2, 2)})


@pytest.mark.parametrize("groups", [1, 20])
@pytest.mark.parametrize("activation", ["Relu", "Clip", "HardSwish", "Silu"])
def test_residual_and_activation(groups: int, activation: str) -> None:
    attrs = {"layout": "NHWC", "pads": (1,) * 4, "group": groups, "activation": activation}
    if activation == "Clip":
        attrs |= {"activation_min": 0.0, "activation_max": 6.0}
    _conv(_f(1, 9, 10, 20), _f(20, 20 // groups, 3, 3), attrs, residual=True)


@settings(max_examples=25)
@given(st.data())
def test_any_window(data: st.DataObject) -> None:
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    groups, deep = draw(1, 3), draw(1, 5)
    kernel = draw(1, 4), draw(1, 4)
    dilation = draw(1, 2), draw(1, 2)
    pads = tuple(draw(0, 3) for _ in range(4))
    least = [
        max(1, (k - 1) * d + 1 - pads[i] - pads[i + 2]) for i, (k, d) in enumerate(zip(kernel, dilation, strict=True))
    ]
    x = _f(draw(1, 2), least[0] + draw(0, 9), least[1] + draw(0, 9), groups * deep)
    attrs = {
        "layout": "NHWC",
        "pads": pads,
        "dilations": dilation,
        "strides": (draw(1, 3), draw(1, 3)),
        "group": groups,
    }
    _conv(x, _f(groups * draw(1, 20), deep, *kernel), attrs)


def _depthwise(size: int, stride: int, high: int, wide: int, channels: int, pads: tuple[int, ...]) -> None:
    attrs = {"layout": "NHWC", "strides": (stride,) * 2, "pads": pads, "group": channels, "activation": "Relu"}
    _conv(_f(2, high, wide, channels), _f(channels, 1, size, size), attrs)


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels", [2, 16, 40])
def test_depthwise_rectangles_and_borders(size: int, stride: int, channels: int) -> None:
    for high, wide, pads in [
        (size, size, (0, 0, 0, 0)),
        (1, 23, (size // 2,) * 4),
        (23, 1, (size // 2,) * 4),
        (7, 7, (size // 2,) * 4),
        (14, 21, (0, 1, 2, 2)),
        (27, 12, (size - 1,) * 4),
    ]:
        _depthwise(size, stride, high, wide, channels, pads)


def _on_this_target() -> None:
    for size, stride in [(3, 1), (3, 2), (5, 1), (5, 2)]:
        _depthwise(size, stride, 15, 18, 21, (size // 2,) * 4)


@on_other_targets
def test_depthwise_with_other_vectors(target: str) -> None:
    run_on(target, _on_this_target)


@pytest.mark.parametrize(
    ("kernel", "stride", "pads", "extra"), [(3, 2, 1, 0), (4, 2, 1, 1), (2, 2, 0, 0), (3, 1, 0, 0)]
)
def test_transposed(kernel: int, stride: int, pads: int, extra: int) -> None:
    attrs = {"layout": "NHWC", "strides": (stride,) * 2, "pads": (pads,) * 4, "output_padding": (extra,) * 2}
    check(
        "ConvTranspose",
        [_f(2, 7, 5, 6), _f(6, 9, kernel, kernel), _f(9)],
        attrs,
        constants=(1, 2),
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_three_dimensions_go_to_the_reference(layout: str) -> None:
    x = _f(1, 4, 5, 6, 3) if layout == "NHWC" else _f(1, 3, 4, 5, 6)
    check("Conv", [x, _f(2, 3, 2, 2, 2)], {"layout": layout}, constants=(1,), native=False, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("attrs", "w"),
    [
        ({"group": 0}, (4, 3, 3, 3)),
        ({"group": 2}, (4, 3, 3, 3)),
        ({"strides": (0, 1)}, (4, 3, 3, 3)),
        ({"pads": (-1, 0, 0, 0)}, (4, 3, 3, 3)),
        ({"dilations": (1, 1 << 40)}, (4, 3, 3, 3)),
        ({}, (4, 3, 30, 3)),
        ({}, (4, 3, 0, 3)),
        ({"kernel_shape": (2, 2)}, (4, 3, 3, 3)),
        ({"layout": "CHWN"}, (4, 3, 3, 3)),
        ({"auto_pad": "SAME"}, (4, 3, 3, 3)),
    ],
)
def test_windows_that_do_not_fit_are_named(attrs: dict[str, Any], w: tuple[int, ...]) -> None:
    node = Node("Conv", ("x", "w"), ("y",), attrs, "conv_7")
    with pytest.raises(ShapeError, match="conv_7"):
        INFERS["Conv"](Inference(node, [Spec("float32", (1, 3, 8, 8)), Spec("float32", w)], [None, None]))
