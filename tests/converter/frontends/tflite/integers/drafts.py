"""A random model of one operator: odd shapes, far zero points, scales of any size, numbers that saturate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tests.converter.frontends.tflite.builder import Builder, Quant, Tensor, litert

__all__ = ["ACTIVATIONS", "BYTES", "CASES", "STORED", "Case", "Draft", "Drawn", "Refused", "case", "drawn", "near"]

BYTES = ("int8", "uint8")
STORED = (*BYTES, "int16")
"""Element types of quantised tensors."""
ACTIVATIONS = ("NONE", "NONE", "RELU", "RELU6", "RELU_N1_TO_1")
_RANKS = (0, 200, 30, 14, 8)
"""Largest sizes of an axis, by rank."""
_LARGEST = 4800
"""Elements of a tensor."""
_VERSIONS = range(1, 13)


class Draft:
    """A model under construction, and what its inputs hold.

    Outputs have the shapes `shapes`, in order, where the caller knows them: LiteRT computes them in a first run.
    """

    def __init__(self, seed: Sequence[int], version: int = 1, shapes: Sequence[tuple[int, ...]] = ()) -> None:
        self.rng = np.random.default_rng(seed)
        self.builder = Builder()
        self.inputs: list[np.ndarray] = []
        self._version, self._shapes = version, list(shapes)

    # numbers

    def numbers(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        """Of the whole range, some of them its ends; of 16 bits half are small; of 4 bits without the least one."""
        rng = self.rng
        if dtype == "float32":
            spread, shift = np.exp(rng.uniform(-2, 2)), rng.choice([0, 0, rng.normal() * 2])
            return np.asarray(rng.normal(size=shape) * spread + shift, np.float32)
        if dtype == "bool":
            return rng.integers(0, 2, shape).astype(bool)
        if dtype == "int4":
            return rng.integers(-7, 8, shape).astype(np.int8)
        ends = np.iinfo(dtype)
        found = rng.integers(ends.min, ends.max, shape, dtype, endpoint=True)
        if dtype == "int16":
            small = np.rint(rng.normal(size=shape) * np.exp(rng.uniform(1, 9, shape)))
            found = np.where(rng.random(shape) < 0.5, np.clip(small, ends.min, ends.max).astype(dtype), found)
        extremes = np.where(rng.random(shape) < 0.5, ends.min, ends.max)
        return np.asarray(np.where(rng.random(shape) < 0.02, extremes, found), dtype)

    def weights(self, shape: Sequence[int], dtype: str = "int8") -> np.ndarray:
        """Symmetric: without the least number."""
        found = self.numbers(shape, dtype)
        return np.maximum(found, -127) if dtype == "int8" else found

    def shape(self, low: int = 1, rank: int | None = None) -> tuple[int, ...]:
        """Of any rank from 1 to 4, or of this one."""
        while True:
            dims = rank or int(self.rng.integers(1, 5))
            found = tuple(int(n) for n in self.rng.integers(low, _RANKS[dims], dims))
            if np.prod(found) <= _LARGEST:
                return found

    def some(self, low: int, high: int) -> int:
        """A whole number in [low, high)."""
        return int(self.rng.integers(low, high))

    def chance(self, share: float = 0.5) -> bool:
        """True with this probability."""
        return bool(self.rng.random() < share)

    def activation(self) -> dict[str, str]:
        """The option of a fused activation."""
        return {"fused_activation_function": str(self.rng.choice(ACTIVATIONS))}

    # tensors

    def quant(self, dtype: str, scale: float | None = None, zero: int | None = None) -> Quant:
        """One scale, and a zero point anywhere in the range or at its ends."""
        if scale is None:
            scale = float(np.exp(self.rng.uniform(-9, -5) if dtype == "int16" else self.rng.uniform(-6, -1)))
        ends = np.iinfo(dtype)
        anywhere = int(self.rng.integers(ends.min, ends.max + 1))
        if zero is None:
            zero = int(self.rng.choice([anywhere, anywhere, ends.min, ends.max, 0, (ends.min + ends.max + 1) // 2]))
        return Quant(float(np.float32(scale)), 0 if dtype == "int16" else zero)

    def entry(
        self, shape: Sequence[int], dtype: str = "float32", quant: Quant | None = None, data: Any = None
    ) -> Tensor:
        """An input, of random contents or these."""
        found = self.numbers(shape, dtype) if data is None else np.asarray(data, dtype)
        self.inputs.append(found)
        return self.builder.input(f"x{len(self.inputs)}", found.shape, dtype, quant=quant)

    def const(self, data: Any, dtype: str | None = None, quant: Quant | None = None) -> Tensor:
        """A constant."""
        return self.builder.const(np.asarray(data), dtype, quant=quant)

    def ints(self, *values: int) -> Tensor:
        """A constant vector of int32."""
        return self.const(np.asarray(values, np.int32))

    # the operator

    def result(
        self,
        op: str,
        operands: Sequence[Tensor | None],
        dtype: str = "float32",
        quant: Quant | None = None,
        shape: tuple[int, ...] | None = None,
        **options: Any,
    ) -> None:
        """The operator, with one result, which is the model's."""
        shape = shape if shape is not None else self._next()
        self.builder.output(self.builder.op(op, operands, shape, dtype, quant=quant, version=self._version, **options))

    def results(
        self,
        op: str,
        operands: Sequence[Tensor | None],
        kinds: Sequence[tuple[str, Quant | None]],
        **options: Any,
    ) -> None:
        """The operator, with results of these types."""
        made = [self.builder.tensor("", self._next(), dtype, quant=quant) for dtype, quant in kinds]
        self.builder.node(op, operands, made, version=self._version, **options)
        self.builder.output(*made)

    def _next(self) -> tuple[int, ...]:
        return self._shapes.pop(0) if self._shapes else ()


Make = Callable[[Draft, str, str], None]


class Case(NamedTuple):
    """An operator and the types of its operands and results, in words; `make` drafts a model."""

    op: str
    types: str
    make: Make

    def __str__(self) -> str:
        return f"{self.op} {self.types}"


CASES: list[Case] = []


def case(ops: str, *types: str) -> Callable[[Make], Make]:
    """Register the decorated function for operators of these types."""

    def register(make: Make) -> Make:
        CASES.extend(Case(op, kind, make) for op in ops.split() for kind in types)
        return make

    return register


def near(draft: Draft, scale: float) -> float:
    """A scale within a factor of 3."""
    return float(scale) * float(np.exp(draft.rng.uniform(-1.2, 1.2)))


class Refused(Exception):
    """LiteRT does not run such a model."""


class Drawn(NamedTuple):
    """A model, its inputs, and LiteRT's results with XNNPACK, after `runs` runs."""

    model: bytes
    inputs: list[np.ndarray]
    results: list[np.ndarray]


def drawn(one: Case, seed: int, runs: int = 1) -> Drawn:
    """The case's model number `seed`, of the first version that LiteRT has. Raises Refused."""
    for version in _VERSIONS:
        draft = _drafted(one, seed, version)
        try:
            shapes = [y.shape for y in litert(draft.builder.build(), draft.inputs, kernels="xnnpack")]
        except (RuntimeError, ValueError) as error:
            if "Registration failed" in str(error) and version < _VERSIONS[-1]:
                continue
            raise Refused(f"{one}: {error}") from None
        draft = _drafted(one, seed, version, shapes)
        model = draft.builder.build()
        try:
            return Drawn(model, draft.inputs, litert(model, draft.inputs, kernels="xnnpack", runs=runs))
        except (RuntimeError, ValueError) as error:
            raise Refused(f"{one}: {error}") from None
    raise AssertionError("no version is left")


def _drafted(one: Case, seed: int, version: int, shapes: Sequence[tuple[int, ...]] = ()) -> Draft:
    draft = Draft([seed, len(one.op)], version, shapes)
    one.make(draft, one.op, one.types)
    return draft
