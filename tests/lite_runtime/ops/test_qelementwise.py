"""QLinearAdd, QLinearSub, QLinearMul: native equals reference bit for bit; both are close to the real result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lite_runtime import reference
from lite_runtime.errors import ShapeError
from lite_runtime.graph import Array, Node
from lite_runtime.ops.registry import INFERS, Inference, Spec
from lite_runtime.reference.qelementwise import RATIOS, multipliers
from tests.lite_runtime.ops.one_node import check
from tests.lite_runtime.ops.targets import on_other_targets, run_on

OPS = ("QLinearAdd", "QLinearSub", "QLinearMul")
TYPES = ("int8", "uint8")
SCALES = (1, 2, 4, 5, 6, 7)
SHAPES = [
    ((5,), (5,)),
    ((), ()),
    ((1,), (1, 1)),
    ((7, 100), (100,)),
    ((100,), (7, 100)),
    ((3, 67), (1,)),
    ((), (3, 67)),
    ((2, 5, 6, 19), (2, 1, 1, 19)),
    ((2, 19, 5, 6), (1, 19, 1, 1)),
    ((2, 19, 1, 1), (2, 19, 5, 6)),
    ((4, 1, 6), (1, 5, 1)),
    ((2, 3, 4, 5), (3, 1, 5)),
    ((1, 1, 33), (8, 1, 1)),
    ((300, 131), (300, 131)),
    ((0, 4), (4,)),
]


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    ends = np.iinfo(dtype)
    return rng.integers(ends.min, ends.max, shape, dtype, endpoint=True)


def operands(rng: np.random.Generator, a: tuple[int, ...], b: tuple[int, ...], dtype: str, op: str) -> list[Array]:
    scales = np.exp(rng.uniform(-5, -2, 3)).astype(np.float32)
    if op == "QLinearMul":
        scales[2] = scales[0] * scales[1] * rng.uniform(20, 300)
    zeros = [np.asarray(rng.choice([np.iinfo(dtype).min, np.iinfo(dtype).max, 3]), dtype) for _ in range(3)]
    first = [drawn(rng, a, dtype), np.asarray(scales[0]), zeros[0]]
    return [*first, drawn(rng, b, dtype), np.asarray(scales[1]), zeros[1], np.asarray(scales[2]), zeros[2]]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_any_broadcast(a: tuple[int, ...], b: tuple[int, ...], op: str, dtype: str) -> None:
    given = operands(np.random.default_rng(sum(a) + sum(b)), a, b, dtype, op)
    check(op, given, constants=SCALES)
    check(op, given, constants=(*SCALES, 3))


@pytest.mark.parametrize("attrs", [
    {"activation": "Relu"},
    {"activation": "Clip", "activation_min": -0.5, "activation_max": 1.25},
    {"activation": "Clip", "activation_max": 0.1},
])  # fmt: skip
@pytest.mark.parametrize("op", OPS)
def test_activations_bound_the_result(op: str, attrs: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    given = operands(rng, (40, 41), (41,), "int8", op)
    given[6], given[7] = np.array(0.02, np.float32), np.array(-5, np.int8)
    (y,) = check(op, given, attrs, constants=SCALES)
    real = (y.astype(int) + 5) * 0.02
    low = 0 if attrs["activation"] == "Relu" else attrs.get("activation_min", -np.inf)
    assert real.min() >= low - 0.01 and real.max() <= attrs.get("activation_max", np.inf) + 0.01


@pytest.mark.parametrize("op", OPS)
def test_every_pair_of_bytes_is_close_to_the_real_result(op: str) -> None:
    """Half a step from the real number, and the little that 21 bits of multiplier leave."""
    rng = np.random.default_rng(5)
    every = np.arange(256).astype(np.uint8)
    for _ in range(5):
        given = operands(rng, (1,), (1,), "uint8", op)
        given[0], given[3] = every[:, None], every
        (y,) = check(op, given, constants=SCALES)
        a, b = ((x.astype(np.float64) - float(z)) * float(s) for x, s, z in (given[0:3], given[3:6]))
        real = {"QLinearAdd": a + b, "QLinearSub": a - b, "QLinearMul": a * b}[op] / float(given[6]) + float(given[7])
        assert np.abs(y - np.clip(real, 0, 255)).max() <= 0.5 + 1e-3


@pytest.mark.parametrize("ratio", [RATIOS[0], 0.75, 1.0, 255.99])
def test_sums_stay_within_32_bits(ratio: float) -> None:
    """The extremes of bytes, zero points and multipliers, at the ends of the ratios that are taken."""
    for dtype in TYPES:
        ends = np.array([np.iinfo(dtype).min, np.iinfo(dtype).max], dtype)
        scale, one = np.array(ratio, np.float32), np.array(1, np.float32)
        for za in ends:
            for zb in ends:
                zeros = np.asarray(za), np.asarray(zb), np.array(1, dtype)
                given = [ends[:, None], scale, zeros[0], ends, scale, zeros[1], one, zeros[2]]
                for op in OPS:
                    check(op, given, constants=SCALES)


def test_products_saturate() -> None:
    for step in (1e-38, 1e38):
        given = operands(np.random.default_rng(0), (50,), (50,), "int8", "QLinearMul")
        given[6] = np.array(step, np.float32)
        check("QLinearMul", given, constants=SCALES)


@pytest.mark.parametrize(("a", "b"), [(256.0, 1.0), (2.0**-11, 2.0**-12), (-1.0, 1.0), (np.nan, 1.0), (np.inf, 1.0)])
def test_ratios_beyond_the_multipliers_are_refused(a: float, b: float) -> None:
    assert multipliers(a, b, 1.0) is None and multipliers(b, a, 1.0) is None
    one, zero, x = np.array(1, np.float32), np.array(0, np.int8), np.zeros(3, np.int8)
    node = Node("QLinearAdd", tuple("abcdefgh"), ("y",), {}, "it")
    with pytest.raises(ShapeError, match="ratio"):
        reference.evaluate(node, [x, np.array(a, np.float32), zero, x, np.array(b, np.float32), zero, one, zero])


@pytest.mark.parametrize(
    ("index", "spec", "text"),
    [
        (0, Spec("int16", (3,)), "input 0"),
        (3, Spec("uint8", (3,)), "input 3"),
        (3, Spec("int8", (4,)), "broadcast"),
        (4, Spec("float64", ()), "input 4"),
        (6, Spec("float32", (3,)), "one element"),
        (7, Spec("uint8", ()), "input 7"),
    ],
)
def test_operands_that_do_not_fit_are_refused(index: int, spec: Spec, text: str) -> None:
    data, scale, zero = Spec("int8", (3,)), Spec("float32", ()), Spec("int8", ())
    specs = [data, scale, zero, data, scale, zero, scale, zero]
    specs[index] = spec
    node = Node("QLinearSub", tuple("abcdefgh"), ("y",), {}, "it")
    with pytest.raises(ShapeError, match=text):
        INFERS["QLinearSub"](Inference(node, specs, (None,) * 8))


def everything() -> None:
    """What one process shows of a target."""
    for op in OPS:
        for a, b in SHAPES[3:10]:
            test_any_broadcast(a, b, op, "int8")


@on_other_targets
def test_other_targets(target: str) -> None:
    run_on(target, everything)
