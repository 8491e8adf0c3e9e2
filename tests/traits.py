"""What shows that an operator has a trait, without asking its record whether it has: the references' results, other
columns, or a list of names where nothing else knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import lite_runtime.ops  # noqa: F401  # fills the table of inference
from lite_runtime import reference
from lite_runtime.errors import ShapeError
from lite_runtime.graph import Array, Node, Spec
from lite_runtime.operators import OPERATORS, Trait, attributes, family
from lite_runtime.ops.registry import INFERS, Inference

__all__ = ["SHOWN", "drawn", "findings", "made", "names", "operands"]


def names(*families: str) -> set[str]:
    return {record.name for name in families for record in family(name)}


_SPECIAL: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "Gelu": (("float32",), {}),
    "SwiGLU": (("float32", "float32"), {}),
    "PRelu": (("float32", "float32"), {}),
    "Clip": (("float32",), {}),
    "Pow": (("float32", "float32"), {}),
    "BitShift": (("uint8", "uint8"), {"direction": "LEFT"}),
    "Where": (("bool", "float32", "float32"), {}),
    "Cast": (("float32",), {"to": 6}),
    "CastLike": (("float32", "int32"), {}),
    "Identity": (("float32",), {}),
    "Rescale": (("int32",) * 4, {"rounding": "DOUBLE"}),
    "FixedPointSigmoid": (("int16",), {}),
    "FixedPointTanh": (("int16",), {}),
    "FixedPointDiv": (("int32", "int32"), {"multiplier": 1 << 30, "shift": 31}),
    "FixedPointRsqrt": (("int32",), {"part": "MULTIPLIER"}),
}
"""Operand types and attributes of elementwise operators whose record has no element types, or needs attributes."""


def operands(op: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    record = OPERATORS[op]
    if op in _SPECIAL:
        return _SPECIAL[op]
    assert record.types is not None, op
    attrs = {"alpha": 0.25} if op == "LeakyRelu" else {}  # a number that float32 has
    dtype = "float32" if not record.types or "float32" in record.types else record.types[0]
    return (dtype,) * min(max(record.inputs[0], 2 if record.inputs[1] > 1 else 1), 3), attrs


def drawn(dtype: str, *shape: int, seed: int = 0, low: float = -3.0) -> Array:
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype.startswith("float"):
        return rng.uniform(low, 3.0, shape).astype(dtype)
    return rng.integers(0, 7, shape).astype(dtype)


def made(op: str, given: list[Array], attrs: dict[str, Any]) -> Array:
    node = Node(op, tuple(f"x{i}" for i in range(len(given))), ("y",), attrs)
    return np.asarray(reference.evaluate(node, given)[0])


def spread(op: str) -> tuple[int, ...] | None:
    """The shape inferred for operands (3, 1), (1, 4), (1, 1) and (); None where they are refused."""
    types, attrs = operands(op)
    specs = [Spec(dtype, shape) for dtype, shape in zip(types, ((3, 1), (1, 4), (1, 1), ()), strict=False)]
    node = Node(op, tuple(f"x{i}" for i in range(len(specs))), ("y",), attrs)
    try:
        return INFERS[op](Inference(node, specs, [None] * len(specs)))[0].shape
    except ShapeError:
        return None


def commutes(op: str) -> bool:
    types, attrs = operands(op)
    given = [drawn(dtype, 256, seed=i) for i, dtype in enumerate(types[:2])]
    return np.array_equal(made(op, given, attrs), made(op, given[::-1], attrs))


def wraps(op: str) -> bool:
    """Whether results in 8 bits are others than in 64."""
    count = len(operands(op)[0])
    attrs = {"direction": "LEFT"} if op == "BitShift" else {}
    if op in ("Cast", "CastLike"):
        attrs = {"to": 3} if op == "Cast" else {}
        like = [np.zeros(2, np.int8)] if op == "CastLike" else []
        return bool((made(op, [np.array([300, 5]), *like], attrs) != [300, 5]).any())
    types = OPERATORS[op].types or ("int8", "uint8")
    for dtype, values in (("int8", (-128, -1, 1, 3, 127)), ("uint8", (0, 1, 3, 200, 255))):
        if dtype in types:
            right = (1, 2, 3) if op in ("Pow", "BitShift") else [v for v in values if v]
            grid = np.meshgrid(values, right)[:count] if count > 1 else [np.array(values)]
            wide = [x.ravel().astype(np.int64) for x in grid]
            if (made(op, [x.astype(dtype) for x in wide], attrs) != made(op, wide, attrs)).any():
                return True
    return False


def rounded_once(op: str) -> bool:
    """Whether float32 results are the float64 ones, rounded."""
    types, attrs = operands(op)
    count = min(len(types), 2) if OPERATORS[op].inputs[1] > len(types) + 1 else len(types)
    given = [drawn(dtype, 4096, seed=i, low=0.01 if op == "Pow" else -3.0) for i, dtype in enumerate(types[:count])]
    wide = [x.astype(np.float64) if x.dtype == np.float32 else x for x in given]
    with np.errstate(all="ignore"):
        wanted = made(op, wide, attrs)
    got = made(op, given, attrs)
    return bool(np.array_equal(got, wanted.astype(got.dtype), equal_nan=got.dtype.kind == "f"))


def scales_along(op: str) -> bool:
    types, attrs = operands(op)
    given = [drawn(dtype, 256, seed=i) for i, dtype in enumerate(types)]
    result = made(op, given, attrs)
    return all(
        np.array_equal(made(op, [given[0] * np.float32(s), *given[1:]], attrs), result * np.float32(s))
        for s in (2.0, 0.25)
    )


_ON_IMAGES: dict[str, Callable[[Array], tuple[list[Array], dict[str, Any]]]] = {
    **{
        op: lambda x: ([x, np.array([2], np.int64)], {})
        for op in sorted(OPERATORS)
        if op.startswith("Reduce") and op != "ReduceLogSum"
    },
    "ReduceLogSum": lambda x: ([np.abs(x), np.array([2], np.int64)], {}),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), lambda x: ([x], {})),
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), lambda x: ([x], {"kernel_shape": (2, 2)})),
    **dict.fromkeys(("Max", "Min", "Sum", "Mean", "Add", "Mul", "Sub"), lambda x: ([x, x[::-1] * np.float32(0.7)], {})),
    "CumSum": lambda x: ([x, np.array(1)], {}),
}


def _elementwise() -> set[str]:
    ours = {"FixedPointDiv", "FixedPointRsqrt", "FixedPointSigmoid", "FixedPointTanh", "Rescale"}
    return names("elementwise", "activation") | {"Identity"} | ours


def _several() -> set[str]:
    return {op for op in _elementwise() if len(operands(op)[0]) > 1}


def _wrapping() -> set[str]:
    integer = {op for op in _elementwise() if OPERATORS[op].i64 >= 0 and OPERATORS[op].types != ("bool",)}
    integer |= {"Pow", "BitShift", "Cast", "CastLike"}
    integer -= {"Where", "Equal", "Less", "LessOrEqual"}  # which choose or compare
    return {op for op in integer if wraps(op)}


def _scaled() -> set[str]:
    return {"QuantizeLinear", "DequantizeLinear"} | {f"QLinear{op}" for op in _elementwise()} & set(OPERATORS)


def _exact() -> set[str]:
    """Erf is left out: its reference computes in float64. `_scaled`: see test_qelementwise.py."""
    return {op for op in _elementwise() - {"Erf"} if rounded_once(op)} | _scaled()


def stands_still(op: str) -> bool:
    """Whether almost no result changes with a small step of the operands, or none can."""
    types, attrs = operands(op)
    given = [drawn(dtype, 256, seed=i) for i, dtype in enumerate(types)]
    if "float32" not in types:
        return True
    moved = [x + np.float32(1e-3) * (1 + i) if x.dtype == np.float32 else x for i, x in enumerate(given)]
    return bool(np.mean(made(op, moved, attrs) != made(op, given, attrs)) < 0.05)


def _flat() -> set[str]:
    computed = {op for op in _elementwise() - {"Cast", "CastLike"} if stands_still(op)}
    return computed | set(
        "ArgMax ArgMin Bernoulli Constant ConstantOfShape EyeLike Hardmax Multinomial NonMaxSuppression "
        "NonMaxSuppressionPadded NonZero OneHot RandomNormalLike RandomUniformLike Range Shape Size".split()
    )


def _table() -> set[str]:
    return {op for op in names("activation") - {"Relu"} if OPERATORS[op].inputs == (1, 1)} | {
        "Asinh", "Atan", "Cos", "Sin"
    }  # fmt: skip


def _homogeneous() -> set[str]:
    floats = {op for op in _elementwise() if operands(op)[0][0] == "float32" and not OPERATORS[op].result}
    one = {op for op in floats if OPERATORS[op].inputs == (1, 1)} | {"PRelu"}
    return {op for op in one if op != "Cast" and scales_along(op)}


_VIEWS = frozenset("Flatten Reshape Squeeze Unsqueeze".split())
_MOVES = _VIEWS | frozenset(
    "DepthToSpace Expand Gather GatherElements GatherND Identity ReverseSequence Slice SpaceToDepth Split Tile "
    "Transpose".split()
)


def _selects() -> set[str]:
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5)).astype(np.float32)
    found = set()
    for op, case in _ON_IMAGES.items():
        given, attrs = case(x)
        numbers = np.concatenate([g.ravel() for g in given if g.dtype == np.float32])
        if np.isin(made(op, given, attrs), numbers).all():
            found.add(op)
    return found


def _running_graphs() -> set[str]:
    return {op for op in OPERATORS if any(a.kind == "G" and a.required for a in attributes(op).values())}


def _reductions() -> set[str]:
    return {op for op in OPERATORS if op.startswith("Reduce")}


def _statistics() -> set[str]:
    return names("normalize") - {"BatchNormalization", "Softmax", "LogSoftmax", "Hardmax"}


def _quantised() -> set[str]:
    return {op for op in OPERATORS if op.startswith("QLinear")} - {"QLinearResize"}


def _accumulating() -> set[str]:
    floats = {op.removeprefix("QLinear") for op in _quantised()} & names("linear")
    return {"Gemm", *floats, *(f"QLinear{op}" for op in floats)}


SHOWN: Mapping[Trait, Callable[[], set[str]]] = {
    "elementwise": _elementwise,
    "broadcasts": lambda: {op for op in _several() if spread(op) == (3, 4)},
    "scaled": _scaled,
    "exact": _exact,
    "commutes": lambda: {op for op in _several() if len(operands(op)[0]) == 2 or OPERATORS[op].inputs[1] > 5
                         if commutes(op)},
    "wraps": _wrapping,
    "accumulates": _accumulating,
    "quantised": _quantised,
    "flat": _flat,
    "table": _table,
    "homogeneous": _homogeneous,
    "movement": lambda: set(_MOVES),
    "view": lambda: set(_VIEWS),
    "selects": _selects,
    "idle": lambda: _MOVES | set(
        "BitCast CenterCropPad Concat Constant ConstantOfShape Dropout EyeLike InterpolatedTable LookupTable OneHot "
        "Pad Range ScatterElements ScatterND Shape Size TensorScatter Trilu Unpack4 Where".split()
    ),
    "grows": lambda: set("ConstantOfShape EyeLike Expand OneHot Pad Range Resize Tile".split()),
    "shape_only": lambda: {"Shape", "Size"},
    "along_axis": lambda: set("Softmax LogSoftmax Hardmax LpNormalization".split()),
    "reduction": _reductions,
    "normalizes": _statistics,
    "recurrent": lambda: names("recurrent"),
    "wide": lambda: (_reductions() - {"ReduceMax", "ReduceMin"}) | _statistics() | names("recurrent") | set(
        "BatchNormalization CumSum DequantizeLinear DFT DynamicQuantizeLinear Erf Exp If Log LogSoftmax Loop Mean "
        "NegativeLogLikelihoodLoss Pow QuantizeLinear Reciprocal STFT Scan Softmax SoftmaxCrossEntropyLoss Softplus "
        "Sum".split()
    ),
    "random": lambda: {op for op in OPERATORS if "seed" in attributes(op)} - {"Dropout"},
    "control": _running_graphs,
    "optional_first": lambda: _running_graphs() - {"If"},
}  # fmt: skip
"""Trait -> the operators that must have it. None of these reads `Operator.traits`."""


def findings(trait: Trait) -> list[str]:
    """The operators whose record has the trait and should not, or should and has not."""
    said, shown = {op for op, record in OPERATORS.items() if trait in record.traits}, SHOWN[trait]()
    return [f"{op} lacks the trait {trait}" for op in sorted(shown - said)] + [
        f"{op} has the trait {trait}, which nothing shows" for op in sorted(said - shown)
    ]
