"""QLinearSoftmax: every bit is the reference's, and the reference is a softmax."""

from __future__ import annotations

import numpy as np
import pytest

from lite_runtime import reference
from lite_runtime.errors import MsedgeError, ShapeError
from lite_runtime.graph import Array, Node
from lite_runtime.ops.registry import INFERS, Inference, Spec
from lite_runtime.reference.qsoftmax import exponentials
from tests.lite_runtime.ops.one_node import check
from tests.lite_runtime.ops.targets import on_other_targets, run_on

SHAPES = [((1, 10), -1), ((5, 1), 1), ((3, 1000), 1), ((2, 8, 49, 49), -1), ((2, 7, 70), 1), ((4, 3, 5), 0), ((7,), 0)]
SHAPES += [((3, 513), 1), ((2, 5, 64), 1), ((0, 4), 1), ((4, 0), 0)]


def operands(x: Array, x_scale: float, result: str, y_scale: float = 1 / 256, zero: int | None = None) -> list[Array]:
    low = np.iinfo(result).min if zero is None else zero
    return [x, *(np.array(v, d) for v, d in ((x_scale, "float32"), (3, x.dtype), (y_scale, "float32"), (low, result)))]


def of_bytes(*shape: int, dtype: str, seed: int = 0) -> Array:
    return np.asarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)).view(dtype)


@pytest.mark.parametrize("result", ["int8", "uint8"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_every_axis(shape: tuple[int, ...], axis: int, dtype: str, result: str) -> None:
    for x_scale in (1e-3, 0.05, 0.3, 4.0):
        inputs = operands(of_bytes(*shape, dtype=dtype), x_scale, result)
        check("QLinearSoftmax", list(inputs), {"axis": axis}, constants=[1, 2, 3, 4], rtol=0, atol=0)


def test_saturation_and_other_scales() -> None:
    for y_scale, zero in ((1 / 255, 0), (1e-4, -5), (1 / 64, 100), (1e-39, 0), (3e38, 7)):
        inputs = operands(of_bytes(5, 9, dtype="int8"), 0.1, "int8", y_scale, zero)
        check("QLinearSoftmax", list(inputs), constants=[1, 2, 3, 4], rtol=0, atol=0)


@pytest.mark.parametrize("result", ["int8", "uint8"])
def test_it_is_a_softmax(result: str) -> None:
    """Within half a step of the real one, and less than a thousandth for its table."""
    x = of_bytes(20, 40, dtype="int8", seed=3)
    inputs = operands(x, 0.07, result)
    (got,) = reference.evaluate(Node("QLinearSoftmax", tuple("xabcd"), ("y",), {}), inputs)
    wide = np.exp((x.astype(np.float64) - x.max(1, keepdims=True)) * np.float64(np.float32(0.07)))
    want = wide / wide.sum(1, keepdims=True) * 256 + np.iinfo(result).min
    assert np.abs(got - np.minimum(want, np.iinfo(result).max)).max() <= 0.501


@pytest.mark.parametrize("result", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_sums_in_order(dtype: str, result: str) -> None:
    for shape in ((1, 10), (7, 3), (3, 1000), (2, 8, 49, 49), (0, 4), (5, 1), (9, 33)):
        for x_scale in (1e-3, 0.05, 0.3, 4.0):
            scale = 2.0**-16 if result == "int16" else 1 / 256
            inputs = operands(of_bytes(*shape, dtype=dtype), x_scale, result, scale)
            check("QLinearSoftmax", list(inputs), {"rounding": "ORDERED"}, constants=[1, 2, 3, 4], rtol=0, atol=0)


def test_sixteen_bits() -> None:
    rng = np.random.default_rng(4)
    for shape in ((1, 10), (7, 3), (3, 1000), (2, 3, 49), (5, 1)):
        for x_scale in (1e-6, 1e-4, 1e-3, 0.05):
            inputs = operands(rng.integers(-(1 << 15), 1 << 15, shape).astype(np.int16), x_scale, "int16", 2.0**-15, 0)
            check("QLinearSoftmax", list(inputs), constants=[1, 2, 3, 4], rtol=0, atol=0)
    wide = np.exp((inputs[0].astype(np.float64) - inputs[0].max(-1, keepdims=True)) * 0.001)
    inputs = operands(inputs[0], 0.001, "int16", 2.0**-15, 0)
    (got,) = reference.evaluate(Node("QLinearSoftmax", tuple("xabcd"), ("y",), {}), inputs)
    assert np.abs(got / 32768 - wide / wide.sum(-1, keepdims=True)).max() < 1e-3


def test_exponentials() -> None:
    powers = exponentials(0.1)
    assert powers[0] == 1 << 30 and powers[255] == round(np.exp(-25.5) * 2**30) and (np.diff(powers) <= 0).all()
    assert exponentials(100.0)[1:].sum() == 0


def test_what_is_computed_takes_the_reference() -> None:
    inputs = operands(of_bytes(5, 9, dtype="int8"), 0.1, "int8")
    check("QLinearSoftmax", list(inputs), constants=[2, 3, 4], native=False)
    node = Node("QLinearSoftmax", tuple("xabcd"), ("y",), {})
    with pytest.raises(MsedgeError, match="x_scale"):
        reference.evaluate(node, operands(of_bytes(5, 9, dtype="int8"), 0.0, "int8"))


_X, _ONE, _ZERO = Spec("int8", (2, 3)), Spec("float32", ()), Spec("int8", ())


@pytest.mark.parametrize(
    ("specs", "axis"),
    [
        ((Spec("int16", (2, 3)), _ONE, _ZERO, _ONE, _ZERO), -1),
        ((_X, _ONE, _ZERO, _ONE, Spec("int16", ())), -1),
        ((_X, Spec("float32", (3,)), _ZERO, _ONE, _ZERO), -1),
        ((_X, _ONE, _ZERO, Spec("float64", ()), _ZERO), -1),
        ((_X, _ONE, _ZERO, _ONE, _ZERO), 2),
    ],
)
def test_operands_that_do_not_fit_are_refused(specs: tuple[Spec, ...], axis: int) -> None:
    node = Node("QLinearSoftmax", tuple("xabcd"), ("y",), {"axis": axis})
    with pytest.raises(ShapeError, match="QLinearSoftmax"):
        INFERS["QLinearSoftmax"](Inference(node, specs, [None] * 5))


def everything() -> None:
    """What one process shows of a target."""
    for shape, axis in SHAPES:
        test_every_axis(shape, axis, "int8", "uint8")
    test_saturation_and_other_scales()


@on_other_targets
def test_other_targets(target: str) -> None:
    run_on(target, everything)
