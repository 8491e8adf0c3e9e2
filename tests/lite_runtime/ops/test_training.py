"""What training runs natively equals the reference: convolutions whose weights a run computes, and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lite_runtime.reference.windows import resolve
from tests.lite_runtime.ops.one_node import check
from tests.lite_runtime.ops.targets import on_other_targets, run_on

RNG = np.random.default_rng(5)


def _f(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


# -- convolutions -----------------------------------------------------------------------------------------------------

WINDOWS = [
    # height, width, channels, filters, kernel, stride, pads, dilation, groups
    (8, 8, 3, 16, (3, 3), 1, (1, 1, 1, 1), 1, 1),
    (13, 9, 5, 7, (3, 3), 2, (1, 1, 1, 1), 1, 1),
    (10, 11, 8, 20, (3, 2), 1, (0, 1, 2, 0), 1, 2),
    (10, 11, 8, 24, (5, 5), 1, (2, 2, 2, 2), 2, 1),
    (10, 10, 24, 24, (3, 3), 1, (1, 1, 1, 1), 1, 24),
    (11, 12, 37, 37, (5, 5), 2, (2, 2, 2, 2), 1, 37),
    (16, 16, 40, 33, (3, 3), 1, (1, 1, 1, 1), 1, 1),
    (5, 5, 7, 40, (1, 1), 2, (0, 0, 0, 0), 1, 1),
    (6, 5, 37, 41, (1, 1), 1, (0, 0, 0, 0), 1, 1),
    (8, 4, 12, 128, (1, 1), 2, (1, 2, 0, 1), 2, 2),
    (1, 1, 3, 3, (5, 5), 1, (2, 2, 2, 2), 1, 1),
    (3, 3, 2, 4, (3, 3), 5, (2, 2, 0, 0), 1, 1),
]


def _step(
    h: int,
    w: int,
    c: int,
    n: int,
    kernel: tuple[int, ...],
    stride: int,
    pads: tuple[int, ...],
    dilation: int,
    groups: int,
) -> None:
    """Forward, gradient to the weights and gradient to the image of one convolution."""
    attrs: dict[str, Any] = {
        "layout": "NHWC",
        "strides": (stride,) * 2,
        "pads": pads,
        "dilations": (dilation,) * 2,
        "group": groups,
    }
    x, weights = _f(2, h, w, c), _f(n, c // groups, *kernel)
    (y,) = check("Conv", [x, weights, _f(n)], attrs, rtol=1e-4, atol=2e-4)
    check("ConvWeightGrad", [x, _f(*y.shape)], attrs | {"kernel_shape": kernel}, rtol=1e-4, atol=1e-3)
    ends = [
        (o - 1) * stride + (k - 1) * dilation + 1 - p - q
        for o, k, p, q in zip(y.shape[1:3], kernel, pads[:2], pads[2:], strict=True)
    ]
    extra = (h - ends[0], w - ends[1])
    attrs |= {"output_padding": extra}
    for constants in ((), (1,)):
        check("ConvTranspose", [_f(*y.shape), weights], attrs, rtol=1e-4, atol=5e-4, constants=constants)


@pytest.mark.parametrize("window", WINDOWS)
def test_computed_weights_and_gradients(window: tuple[Any, ...]) -> None:
    _step(*window)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_window(data: st.DataObject) -> None:
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    groups, dilation, stride = draw(1, 3), draw(1, 2), draw(1, 3)
    kernel = draw(1, 4), draw(1, 4)
    pads = tuple(draw(0, 2) for _ in range(4))
    high, wide = (max(1, (k - 1) * dilation + 1 - pads[i] - pads[i + 2]) + draw(0, 9) for i, k in enumerate(kernel))
    _step(high, wide, groups * draw(1, 20), groups * draw(1, 20), kernel, stride, pads, dilation, groups)


def test_one_dimension() -> None:
    attrs = {"layout": "NHWC", "strides": (2,), "pads": (2, 1)}
    x, weights = _f(2, 30, 6), _f(10, 6, 5)
    (y,) = check("Conv", [x, weights], attrs, rtol=1e-4, atol=1e-4)
    check("ConvWeightGrad", [x, _f(*y.shape)], attrs | {"kernel_shape": (5,)}, rtol=1e-4, atol=1e-4)
    check("ConvTranspose", [_f(*y.shape), weights], attrs | {"output_padding": (1,)}, rtol=1e-4, atol=1e-4)


def test_no_images() -> None:
    attrs = {"layout": "NHWC", "kernel_shape": (3, 3)}
    (dw,) = check("ConvWeightGrad", [_f(0, 9, 9, 4), _f(0, 7, 7, 6)], attrs, native=False)
    assert dw.shape == (6, 4, 3, 3) and not dw.any()
    check("MatMul", [_f(0, 3), _f(0, 4)], {"transA": 1}, native=False)


def test_sums_over_many_blocks() -> None:
    attrs = {"layout": "NHWC", "pads": (1, 1, 1, 1), "kernel_shape": (3, 3)}
    check("ConvWeightGrad", [_f(1, 90, 80, 20), _f(1, 90, 80, 40)], attrs, rtol=1e-4, atol=5e-3)
    check("ConvWeightGrad", [_f(1, 90, 80, 20), _f(1, 90, 80, 20)], attrs | {"group": 20}, rtol=1e-4, atol=5e-3)


@pytest.mark.parametrize("groups", [1, 24])
def test_activation_of_a_transposed_convolution(groups: int) -> None:
    attrs = {"layout": "NHWC", "strides": (2, 2), "activation": "HardSwish", "group": groups}
    check("ConvTranspose", [_f(1, 4, 5, 24), _f(24, 24 // groups, 3, 3), _f(24)], attrs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((32, 64), (32, 10)),
        ((5000, 7), (5000, 33)),
        ((3, 4, 20, 9), (3, 4, 20, 17)),
        ((20, 9), (6, 20, 17)),
        ((6, 20, 9), (20, 17)),
        ((1, 5), (1, 3)),
    ],
)
def test_transposed_products(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    check("MatMul", [_f(*left), _f(*right)], {"transA": 1}, rtol=1e-4, atol=1e-3)


# -- pools ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "kernel", "strides", "pads", "ceil"),
    [
        ((2, 8, 8, 16), (2, 2), (2, 2), (0,) * 4, 0),
        ((1, 9, 7, 21), (3, 3), (2, 2), (1,) * 4, 1),
        ((2, 9, 7, 5), (3, 3), (1, 1), (1, 0, 1, 2), 0),
        ((2, 12, 5), (3,), (2,), (0, 1), 0),
        ((1, 4, 5, 6, 3), (2, 2, 2), (1, 2, 2), (0,) * 6, 0),
    ],
)
def test_pools(
    shape: tuple[int, ...], kernel: tuple[int, ...], strides: tuple[int, ...], pads: tuple[int, ...], ceil: int
) -> None:
    attrs = {"layout": "NHWC", "kernel_shape": kernel, "strides": strides, "pads": pads, "ceil_mode": ceil}
    out = resolve(shape[1:-1], kernel, strides=strides, pads=pads, ceil_mode=ceil).out
    dy = _f(shape[0], *out, shape[-1])
    check("MaxPoolGrad", [np.round(2 * _f(*shape)), dy], attrs)  # many equal maxima
    check("AveragePoolGrad", [_f(*shape), dy], attrs | {"count_include_pad": ceil})


# -- normalisations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 5, 5, 16), (2, 3, 7, 37), (33, 10), (9, 16, 16, 24), (1, 1, 1, 3), (2, 9, 5)])
def test_batch_normalization(shape: tuple[int, ...]) -> None:
    channels, attrs = shape[-1], {"layout": "NHWC"} if len(shape) > 2 else {}
    x, scale = 3 * _f(*shape) + 10, _f(channels)
    given = [x, scale, _f(channels), _f(channels), _f(channels) ** 2]
    training = {**attrs, "training_mode": 1, "epsilon": 1e-3, "momentum": 0.8}
    saved = check("BatchNormalization", given, training, outputs=5, rtol=2e-4, atol=2e-4)[3:]
    check("BatchNormalization", given, training, outputs=3, rtol=2e-4, atol=2e-4)
    check("BatchNormalizationGrad", [_f(*shape), x, scale, *saved], attrs, outputs=3, rtol=1e-3, atol=1e-3)
    if len(shape) > 2:
        check("BatchNormalization", given, {"layout": "NHWC"}, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(
    ("shape", "axis"), [((4, 5, 16), -1), ((7, 37), 1), ((2, 3, 5, 4), 2), ((300, 33), 1), ((3, 1), 1), ((0, 4), 1)]
)
def test_layer_normalization(shape: tuple[int, ...], axis: int) -> None:
    axis %= len(shape)
    rest = (*shape[:axis], *(1,) * len(shape[axis:]))
    operands = [_f(*shape), _f(*shape), _f(*shape[axis:]), _f(*rest), np.abs(_f(*rest))]
    native = 0 not in shape
    check("LayerNormalizationGrad", operands, {"axis": axis}, outputs=3, rtol=1e-4, atol=1e-4, native=native)


# -- other vectors ----------------------------------------------------------------------------------------------------


def _on_this_target() -> None:
    for window in (WINDOWS[0], WINDOWS[1], WINDOWS[5], WINDOWS[6]):
        _step(*window)
    test_batch_normalization((2, 3, 7, 37))
    test_layer_normalization((7, 37), 1)
    test_pools((1, 9, 7, 21), (3, 3), (2, 2), (1,) * 4, 1)
    test_transposed_products((300, 7), (300, 33))


@on_other_targets
def test_other_vectors(target: str) -> None:
    run_on(target, _on_this_target)
