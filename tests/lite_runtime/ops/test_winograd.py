"""Winograd's convolution equals the reference: sizes, borders, residuals, activations, targets; where it is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lite_runtime
from lite_runtime import bundle
from lite_runtime.kernels._winograd import POINTS
from lite_runtime.ops import winograd
from lite_runtime.ops.convolution import Geometry
from lite_runtime.targets import Shape
from tests.lite_runtime.ops.one_node import check, graph_of
from tests.lite_runtime.ops.targets import on_other_targets, run_on

RNG = np.random.default_rng(43)

CASES = [
    # images, height, width, channels, columns, pads
    (1, 8, 8, 16, 16, (1, 1, 1, 1)),
    (2, 13, 9, 5, 7, (1, 1, 1, 1)),
    (1, 1, 1, 3, 1, (1, 1, 1, 1)),
    (1, 3, 3, 1, 1, (0, 0, 0, 0)),
    (1, 7, 6, 48, 96, (1, 1, 1, 1)),
    (1, 5, 20, 40, 70, (0, 0, 0, 0)),
    (3, 3, 3, 17, 33, (0, 1, 2, 0)),
    (1, 2, 9, 20, 9, (3, 3, 3, 3)),
    (1, 30, 31, 32, 64, (1, 1, 1, 1)),  # 64 tiles of 4 x 4: more than a block
    (1, 28, 28, 20, 200, (2, 2, 2, 2)),
]


def _f(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def _conv(
    monkeypatch: pytest.MonkeyPatch,
    m: int,
    x: np.ndarray,
    w: np.ndarray,
    pads: tuple[int, ...],
    bias: bool = True,
    residual: bool = False,
    activation: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    monkeypatch.setattr(winograd, "tile_size", lambda g: m)
    operands: list[Any] = [x, w, _f(w.shape[0]) if bias else None]
    if residual:
        high, wide = (x.shape[i] + pads[i - 1] + pads[i + 1] - 2 for i in (1, 2))
        operands.append(_f(x.shape[0], high, wide, w.shape[0]))
    attrs = {"layout": "NHWC", "pads": pads, **activation}
    check("Conv", operands, attrs, constants=(1, 2), rtol=1e-4, atol=2e-4)
    assert "winograd.f32_winograd" in _kernels(operands, attrs)


def _kernels(operands: list[Any], attrs: dict[str, Any]) -> list[str]:
    """What computes the node."""
    graph, fed, _ = graph_of("Conv", operands, attrs, 1, (1, 2))
    model = lite_runtime.load(bundle.write(None, {"predict": graph}), threads=1)
    return [row.kernel for row in model.profile(fed, repeats=1)]


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize(("images", "height", "width", "channels", "columns", "pads"), CASES)
def test_sizes(
    monkeypatch: pytest.MonkeyPatch,
    images: int,
    height: int,
    width: int,
    channels: int,
    columns: int,
    pads: tuple[int, ...],
    m: int,
) -> None:
    _conv(monkeypatch, m, _f(images, height, width, channels), _f(columns, channels, 3, 3), pads)


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("columns", [20, 70])
@pytest.mark.parametrize("activation", ["", "Relu", "Clip", "Silu"])
def test_residual_and_activation(monkeypatch: pytest.MonkeyPatch, activation: str, columns: int, m: int) -> None:
    asked: dict[str, Any] = {"activation": activation}
    if activation == "Clip":
        asked |= {"activation_min": 0.0, "activation_max": 6.0}
    x, w = _f(2, 9, 10, 20), _f(columns, 20, 3, 3)
    _conv(monkeypatch, m, x, w, (1, 1, 1, 1), residual=True, activation=asked)
    _conv(monkeypatch, m, x, w, (1, 1, 1, 1), bias=False, activation=asked)


@settings(max_examples=25)
@given(st.data())
def test_any_image(data: st.DataObject) -> None:
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    pads = tuple(draw(0, 3) for _ in range(4))
    least = [max(1, 3 - pads[i] - pads[i + 2]) for i in (0, 1)]
    x = _f(draw(0, 3), least[0] + draw(0, 17), least[1] + draw(0, 17), draw(1, 40))
    m = data.draw(st.sampled_from([2, 4]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(winograd, "tile_size", lambda g: m)
        attrs = {"layout": "NHWC", "pads": pads}
        check("Conv", [x, _f(draw(1, 80), x.shape[3], 3, 3)], attrs, constants=(1,), rtol=1e-4, atol=2e-4)


def _on_this_target() -> None:
    with pytest.MonkeyPatch.context() as patch:
        for m in (2, 4):
            for images, height, width, channels, columns, pads in CASES:
                _conv(patch, m, _f(images, height, width, channels), _f(columns, channels, 3, 3), pads, residual=True)


@on_other_targets
def test_other_targets(target: str) -> None:
    run_on(target, _on_this_target)


@pytest.mark.parametrize("shape", [(1, 60, 60, 16), (1, 8, 60, 16)])
def test_more_workers_than_scratch_memory(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]) -> None:
    monkeypatch.setattr(winograd, "tile_size", lambda g: 4)
    attrs = {"layout": "NHWC", "pads": (1, 1, 1, 1)}
    graph, fed, (wanted,) = graph_of("Conv", [_f(*shape), _f(40, 16, 3, 3)], attrs, 1, (1,))
    data = bundle.write(None, {"predict": graph})
    models = (lite_runtime.load(data, backend="guard", threads=n) for n in (1, winograd.WORKERS + 3))
    alone, many = (model.run(fed)["o0"] for model in models)
    assert alone.tobytes() == many.tobytes()
    np.testing.assert_allclose(many, wanted, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize(("m", "bound"), [(2, 2e-6), (4, 3e-6)])
def test_error(monkeypatch: pytest.MonkeyPatch, m: int, bound: float) -> None:
    """Against float64, relative to the largest result: some 3 times that of a direct sum in float32."""
    monkeypatch.setattr(winograd, "tile_size", lambda g: m)
    x, w = np.maximum(_f(1, 24, 24, 64), 0), _f(32, 64, 3, 3)
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    exact = sum(
        padded[:, i : i + 24, j : j + 24] @ w[:, :, i, j].T.astype(np.float64) for i in range(3) for j in range(3)
    )
    attrs = {"layout": "NHWC", "pads": (1, 1, 1, 1)}
    (got,) = check("Conv", [x, w], attrs, constants=(1,), rtol=1e-3, atol=1e-3)
    assert np.abs(got - exact).max() < bound * np.abs(exact).max()


def test_weights_are_zero_behind_the_last_channel_and_column() -> None:
    packed = winograd.transformed(np.ones((5, 3, 3, 3), np.float32), 4, Shape(8, 16, fused=True)).reshape(36, 8, 8)
    assert not packed[:, 3:].any() and not packed[:, :, 5:].any() and packed[0, :3, :5].all()


def test_points_recover_a_convolution() -> None:
    """In one dimension: the transform of a filter, evaluated at the points, is the filter as a polynomial."""
    for m, finite in POINTS.items():
        for i, point in enumerate(finite):
            others = np.prod([point - other for other in finite if other != point])
            np.testing.assert_allclose(winograd.points(m)[i] @ [2, 3, 5], np.polyval([5, 3, 2], point) / others)
        assert winograd.points(m)[-1] @ [2, 3, 5] == 5


@pytest.mark.parametrize(
    ("images", "size", "channels", "m"),
    [
        (1, 224, 64, 4),
        (1, 14, 256, 4),
        (1, 13, 12, 4),
        (1, 13, 11, 0),
        (1, 12, 32, 2),
        (1, 7, 512, 2),
        (1, 7, 31, 0),
        (1, 6, 512, 0),
        (9, 8, 64, 4),
        (16, 1, 64, 0),
        (0, 14, 64, 0),
    ],
)
def test_where_it_is_chosen(images: int, size: int, channels: int, m: int) -> None:
    g = Geometry(images, size, size, channels, (size, size), (3, 3), (1, 1), (1, 1), (1, 1))
    assert winograd.tile_size(g) == m


@pytest.mark.parametrize(
    ("kernel", "strides", "dilations"), [((5, 5), (1, 1), (1, 1)), ((3, 3), (2, 1), (1, 1)), ((3, 3), (1, 1), (1, 2))]
)
def test_other_windows_are_summed_directly(
    kernel: tuple[int, int], strides: tuple[int, int], dilations: tuple[int, int]
) -> None:
    assert winograd.tile_size(Geometry(1, 60, 60, 64, (56, 56), kernel, strides, dilations, (0, 0))) == 0


@pytest.mark.parametrize(("group", "wanted"), [(1, True), (2, False)])
def test_groups_are_summed_directly(group: int, wanted: bool) -> None:
    attrs = {"layout": "NHWC", "pads": (1, 1, 1, 1), "group": group}
    kernels = _kernels([_f(1, 32, 32, 64), _f(8, 64 // group, 3, 3)], attrs)
    assert ("winograd.f32_winograd" in kernels) == wanted
