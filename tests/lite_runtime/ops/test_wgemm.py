"""Products by narrow weights natively equal the reference, whatever the element, the scales and the shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lite_runtime.errors import ShapeError
from lite_runtime.graph import Array, Node
from lite_runtime.ops.registry import INFERS, Inference, Spec
from lite_runtime.reference.narrow import pack4
from tests.lite_runtime.ops.one_node import check
from tests.lite_runtime.ops.targets import on_other_targets, run_on

ENDS = {"int8": (-128, 127), "uint8": (0, 255), "int4": (-8, 7), "uint4": (0, 15)}
KINDS = ("float16", *ENDS)
SHAPES = [(1, 1, 1), (1, 64, 48), (2, 40, 200), (3, 33, 70), (5, 16, 256), (7, 300, 33), (9, 129, 64), (60, 264, 130)]


def operands(
    kind: str, m: int, k: int, n: int, *, block: int = 0, zeros: bool = False, turned: bool = False, seed: int = 0
) -> tuple[list[Array | None], dict[str, Any]]:
    """x, weights, scales and zero points of a product, and its attributes. block=-1: one scale for all."""
    rng = np.random.default_rng(seed)
    x, attrs = rng.normal(size=(m, k)).astype(np.float32), dict[str, Any](transB=int(turned))
    if kind == "float16":
        w = rng.normal(size=(k, n)).astype(np.float16)
        return [x, w.T.copy() if turned else w], attrs
    dtype = np.int8 if kind.startswith("int") else np.uint8
    scales = () if block < 0 else (-(-k // block), n) if block else (n,)
    w, points = (rng.integers(*ENDS[kind], size, endpoint=True).astype(dtype) for size in ((k, n), scales))
    parts: list[Array | None] = [w, np.asarray(rng.uniform(0.01, 0.1, scales).astype(np.float32))]
    parts.append(np.asarray(points) if zeros else None)
    if turned:
        parts = [part.T.copy() if part is not None and part.ndim == 2 else part for part in parts]
    if block > 0:
        attrs["block_size"] = block
    if kind.endswith("4"):
        assert parts[0] is not None
        attrs |= {"shape": parts[0].shape, "signed": int(dtype == np.int8)}
        parts[0] = pack4(parts[0])
    return [x, *parts], attrs


def exact(inputs: list[Array | None], attrs: dict[str, Any]) -> Array:
    while inputs[-1] is None:
        inputs.pop()
    depth = inputs[0].shape[-1] if inputs[0] is not None else 0
    return check("NarrowMatMul", inputs, attrs, constants=(1, 2, 3, 4), rtol=2e-4, atol=3e-5 * (depth + 1))[0]


@pytest.mark.parametrize(("m", "k", "n"), SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_weight(kind: str, m: int, k: int, n: int) -> None:
    for turned in (False, True):
        exact(*operands(kind, m, k, n, turned=turned))


@pytest.mark.parametrize("block", [-1, 0, 7, 8, 32, 1000])
@pytest.mark.parametrize("kind", list(ENDS))
def test_scales_and_zero_points(kind: str, block: int) -> None:
    for m, k, n in ((1, 96, 130), (4, 35, 70), (50, 160, 64)):
        for turned in (False, True):
            exact(*operands(kind, m, k, n, block=block, zeros=True, turned=turned))
        exact(*operands(kind, m, k, n, block=block))


@pytest.mark.parametrize("activation", ["Relu", "Gelu", "HardSwish"])
@pytest.mark.parametrize("m", [1, 6, 70])
def test_bias_residual_and_activation(m: int, activation: str) -> None:
    rng = np.random.default_rng(1)
    for kind in ("float16", "int8", "int4"):
        inputs, attrs = operands(kind, m, 288, 100)
        inputs += [None] * (4 - len(inputs))
        inputs += [rng.normal(size=size).astype(np.float32) for size in ((100,), (m, 100))]
        exact(inputs, attrs | {"activation": activation})


@pytest.mark.parametrize("shape", [(40,), (2, 3, 40), (0, 40)])
def test_leading_axes_of_x(shape: tuple[int, ...]) -> None:
    inputs, attrs = operands("int4", 1, 40, 24)
    inputs[0] = np.random.default_rng(2).normal(size=shape).astype(np.float32)
    exact(inputs, attrs)


def test_every_half_there_is() -> None:
    """Each float16, subnormal, infinite and NaN ones too, times one."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).reshape(1, -1)
    for m in (1, 12):
        got = exact([np.ones((m, 1), np.float32), halves], {})
        np.testing.assert_array_equal(got[0], halves[0].astype(np.float32))


def test_values_outside_a_block_do_not_affect_it() -> None:
    """An infinite input is multiplied only by weights of its own row."""
    inputs, attrs = operands("int4", 1, 64, 40, block=32)
    x = inputs[0]
    assert x is not None
    x[0, 63] = np.inf
    assert not np.isfinite(exact(inputs, attrs)).all()


def _others() -> None:
    for kind in KINDS:
        for m, k, n in ((1, 65, 40), (3, 128, 64), (30, 136, 21)):
            exact(*operands(kind, m, k, n, block=0 if kind == "float16" else 8, zeros=kind != "float16"))
    test_every_half_there_is()


@on_other_targets
def test_on_other_targets(target: str) -> None:
    run_on(target, _others)


def _infer(specs: list[Spec | None], **attrs: Any) -> list[Spec]:
    return list(INFERS["NarrowMatMul"](Inference(Node("NarrowMatMul", ("",) * 6, ("y",), attrs), specs, [None] * 6)))


def test_the_type_of_the_result() -> None:
    f32, s8 = lambda *shape: Spec("float32", shape), Spec("int8", (6, 8))
    assert _infer([f32(2, 3, 6), s8, f32(8)]) == [f32(2, 3, 8)]
    one = Spec("uint8", (6, 8)), f32(), Spec("uint8", (1,))
    assert _infer([f32(2, 6), *one]) == [f32(2, 8)]
    assert _infer([f32(8), s8, f32(6, 2), None, f32(6)], transB=1, block_size=4) == [f32(6)]


@pytest.mark.parametrize(
    ("specs", "attrs"),
    [
        ([Spec("float32", (2, 5)), Spec("int8", (6, 8)), Spec("float32", (8,))], {}),
        ([Spec("float32", (2, 6)), Spec("int8", (6, 8))], {}),
        ([Spec("float32", (2, 6)), Spec("float16", (6, 8)), Spec("float32", (8,))], {}),
        ([Spec("float32", (2, 6)), Spec("float16", (6, 8))], {"block_size": 2}),
        ([Spec("float32", (2, 6)), Spec("int8", (6, 8)), Spec("float32", (6,))], {}),
        ([Spec("float32", (2, 6)), Spec("int8", (6, 8)), Spec("float32", (8, 2))], {"block_size": 3}),
        ([Spec("float32", (2, 6)), Spec("int8", (6, 8)), Spec("float32", (8,)), Spec("uint8", (8,))], {}),
        ([Spec("float32", (2, 6)), Spec("uint8", (6, 8)), Spec("float32", (8,))], {"shape": (6, 8)}),
        ([Spec("float32", (2, 6)), Spec("int8", (6, 8)), Spec("float32", (8,)), None, Spec("float32", (3,))], {}),
    ],
)
def test_operands_that_do_not_fit_are_refused(specs: list[Spec | None], attrs: dict[str, Any]) -> None:
    with pytest.raises(ShapeError, match="NarrowMatMul"):
        _infer(specs, **attrs)
