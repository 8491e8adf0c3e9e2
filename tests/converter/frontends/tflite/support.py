"""One operator or a small model, translated and run by the NumPy reference, against LiteRT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
import onnx_ir as ir

from converter.frontends import Integers, tflite
from converter.ir import build, spec
from converter.lowering import lower
from converter.pass_lists import optimize
from lite_runtime import reference
from tests.converter.frontends.tflite.builder import Builder, Quant, Tensor, litert

__all__ = [
    "I32",
    "C",
    "Out",
    "X",
    "check",
    "check_op",
    "compare",
    "fitted",
    "floats",
    "integers",
    "run",
    "stored",
    "translated",
]


def translated(model: bytes, integers: Integers = "exact") -> ir.Model:
    """The first signature as checked IR."""
    found = tflite.load(model, integers=integers).models["predict"]
    build.adopt(found)
    spec.check(found, "as translated")
    return found


def run(model: ir.Model, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The reference's outputs, in order."""
    graph = lower(model)
    names = [value.name for value in graph.inputs]
    found = reference.run(graph, dict(zip(names, inputs, strict=True)))
    return [found[value.name] for value in graph.outputs]


def check(
    builder: Builder,
    inputs: Sequence[np.ndarray],
    *,
    kernels: str = "builtin",
    limit: float = 1e-5,
    steps: int = 1,
) -> list[np.ndarray]:
    """Translate, run, compare with LiteRT; the outputs."""
    data = builder.build()
    wanted = litert(data, inputs, kernels=kernels)
    return _both(data, inputs, wanted, builder, limit=limit, steps=steps)


def _both(
    data: bytes, inputs: Sequence[np.ndarray], wanted: Sequence[np.ndarray], builder: Builder, **limits: Any
) -> list[np.ndarray]:
    """As translated, and after all passes, in exact and in LiteRT's arithmetic; the first one's outputs."""
    found = []
    for arithmetic in get_args(Integers):
        model = translated(data, arithmetic)
        found.append(run(model, inputs))
        compare(found[-1], wanted, builder, **limits)
        optimize(model)
        compare(run(model, inputs), wanted, builder, **limits)
    return found[0]


def compare(
    got: Sequence[np.ndarray], wanted: Sequence[np.ndarray], builder: Builder, *, limit: float = 1e-5, steps: int = 1
) -> None:
    """Floats within `limit` of the range, quantised integers within `steps`, all else equal."""
    assert len(got) == len(wanted)
    for index, mine, theirs in zip(builder.table.outputs, got, wanted, strict=True):
        if np.iscomplexobj(theirs):
            theirs = np.stack([theirs.real, theirs.imag], -1)
        assert mine.dtype == theirs.dtype, (mine.dtype, theirs.dtype)
        assert mine.shape == theirs.shape, (mine.shape, theirs.shape)
        if not mine.size:
            continue
        if mine.dtype.kind == "f":
            assert np.array_equal(np.isfinite(mine), np.isfinite(theirs)), (mine, theirs)
            real = np.isfinite(theirs)
            span = max(float(np.abs(theirs[real]).max(initial=0)), 1e-3)
            error = float(np.abs(mine[real].astype(np.float64) - theirs[real]).max(initial=0)) / span
            assert error <= limit, (error, mine, theirs)
        else:
            allowed = steps if builder.table.tensors[index].quantization is not None else 0
            off = int(np.abs(mine.astype(np.int64) - theirs.astype(np.int64)).max())
            assert off <= allowed, (off, mine, theirs)


# one operator


class X(NamedTuple):
    """An operand: what the run feeds, or a constant of the file."""

    data: np.ndarray
    quant: Quant | None = None
    const: bool = False
    dtype: str | None = None


class Out(NamedTuple):
    """A result's type; its shape is what LiteRT makes of the operands."""

    dtype: Any = None
    quant: Quant | None = None


def C(data: Any, dtype: Any = None, quant: Quant | None = None) -> X:
    """A constant operand."""
    return X(np.asarray(data, dtype), quant, True)


def I32(*numbers: Any) -> X:
    """A constant int32 operand: several numbers are a vector."""
    return C(numbers[0] if len(numbers) == 1 else numbers, np.int32)


def check_op(
    name: str,
    operands: Sequence[X | None],
    outs: Sequence[Out] = (Out(),),
    *,
    kernels: str = "builtin",
    limit: float = 1e-5,
    steps: int = 1,
    version: int = 1,
    custom: bytes | None = None,
    **options: Any,
) -> list[np.ndarray]:
    """One operator, translated and run, against LiteRT; our results. Shapes of results are LiteRT's."""

    def build_with(shapes: Sequence[tuple[int, ...]]) -> Builder:
        builder = Builder()
        tensors = [_operand(builder, i, x) for i, x in enumerate(operands)]
        first = next(x.data.dtype for x in operands if x is not None)
        results = [
            builder.tensor("", shape, out.dtype or first, quant=out.quant)
            for shape, out in zip(shapes, outs, strict=True)
        ]
        builder.node(name, tensors, results, version=version, custom=custom, **options)
        builder.output(*results)
        return builder

    inputs = [x.data for x in operands if x is not None and not x.const]
    wanted = litert(build_with([()] * len(outs)).build(), inputs, kernels=kernels)
    builder = build_with([w.shape for w in wanted])
    return _both(builder.build(), inputs, wanted, builder, limit=limit, steps=steps)


def _operand(builder: Builder, i: int, x: X | None) -> Tensor | None:
    if x is None:
        return None
    if x.const:
        return builder.const(x.data, x.dtype, quant=x.quant)
    return builder.input(f"x{i}", x.data.shape, x.dtype or x.data.dtype, quant=x.quant)


def floats(*shape: int, seed: int = 0, low: float | None = None, high: float = 1.0) -> np.ndarray:
    """Normal numbers, or uniform ones from `low` to `high`."""
    rng = np.random.default_rng([seed, *shape])
    found = rng.standard_normal(shape) if low is None else rng.uniform(low, high, shape)
    return found.astype(np.float32)


def integers(*shape: int, seed: int = 0, low: int = -9, high: int = 10, dtype: Any = np.int32) -> np.ndarray:
    """Whole numbers from `low` to `high` - 1."""
    return np.random.default_rng([seed, *shape]).integers(low, high, shape).astype(dtype)


def fitted(real: np.ndarray, dtype: Any = np.int8) -> Quant:
    """The quantisation that spans an array and zero; symmetric for int16."""
    limits = np.iinfo(dtype)
    low, high = min(float(real.min(initial=0)), 0.0), max(float(real.max(initial=0)), 1e-3)
    if limits.bits == 16:
        return Quant(max(-low, high) / limits.max, 0)
    scale = float(np.float32((high - low) / 255))
    return Quant(scale, int(np.clip(round(limits.min - low / scale), limits.min, limits.max)))


def stored(real: np.ndarray, dtype: Any = np.int8, quant: Quant | None = None, const: bool = False) -> X:
    """An operand quantised to fit."""
    quant = quant or fitted(real, dtype)
    return X(quant.store(real, dtype), quant, const)
