"""Weights in the order in which the register tiles read them, and the numbers in a product's step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from lite_runtime.graph import Array
from lite_runtime.ops.activation import ACTIVATIONS, activation
from lite_runtime.ops.registry import Binder, NoKernel, Operand
from lite_runtime.targets import Shape

__all__ = ["NO_ACTIVATION", "Finish", "finish_of", "panels", "tile_vectors", "widths"]


if TYPE_CHECKING:

    class Finish(TypedDict):
        """What a product's kernel applies to a sum: bounds, the activation's code and its parameters."""

        low: float
        high: float
        activation: int
        alpha: float
        beta: float

else:
    Finish = dict


NO_ACTIVATION = Finish(low=-math.inf, high=math.inf, activation=0, alpha=0.0, beta=0.0)
RELU, CLIP = ACTIVATIONS["Relu"].code, ACTIVATIONS["Clip"].code


def tile_vectors(columns: int, shape: Shape) -> int:
    """Vectors of a full panel, 1 to 4; the last panel may be narrower, so that no vector is wasted. 1 where code must
    be small, so that one tile serves all. Outer products want vectors that are as long as can be.

    With 32 registers, 6 x 4 and 8 x 3 are equally fast, and the width that divides the columns wins: the products of
    MobileNetV2 and ResNet-50 as a whole lose 0.4 to 1.8 % against the best width of each one (`msedge bench --tune`).
    With 16 registers, 4 vectors of weights and 12 sums leave none for the other operand: 3 are 1.9 times as fast (1050
    and 559 µs for MobileNetV2's three 196 x 576 x 96 under AVX2), and 2 where 4 would be split into 3 and 1.
    """
    vectors = -(-columns // shape.lanes)
    if shape.small:
        return 1
    if shape.outer:
        return min(vectors, 4)
    if shape.vectors < 32:
        return 2 if vectors == 4 else min(vectors, 3)
    if vectors <= 4:
        return vectors
    return 3 if vectors % 3 == 0 and vectors % 4 else 4


def widths(rows: int, columns: int, shape: Shape) -> tuple[str, ...]:
    """Candidate numbers of vectors for a panel, the rule's choice first. One row leaves registers free, so the widest
    is best: 1000 columns of 1280 take 84 µs in fours, 103 in threes."""
    most = 1 if shape.small else min(4, -(-columns // shape.lanes))
    rule = most if rows == 1 else tile_vectors(columns, shape)
    return (str(rule), *(str(n) for n in range(2, most + 1) if n != rule))


def panels(matrix: Array, shape: Shape, vectors: int = 0) -> Array:
    """(k, n) -> panels of `vectors` (or tile_vectors(n)) * lanes columns, each (k, width), zero-padded after column n;
    the last may be narrower by whole vectors. float32, flat."""
    k, n = matrix.shape
    width = (vectors or tile_vectors(n, shape)) * shape.lanes
    padded = -(-n // shape.lanes) * shape.lanes
    whole = np.zeros((k, padded), np.float32)
    whole[:, :n] = matrix
    return np.concatenate([whole[:, at : at + width].ravel() for at in range(0, padded, width)])


def packed_size(k: int, n: int, lanes: int) -> int:
    """Number of floats in the `panels` of a (k, n) matrix."""
    return k * (-(-n // lanes) * lanes)


def finish_of(b: Binder) -> Finish:
    """The node's activation; a clamp is applied in registers, other activations to the finished tile."""
    code, first, second = activation(b.attr)
    if code == RELU:
        return {**NO_ACTIVATION, "low": 0.0}
    if code == CLIP and not first <= second:
        raise NoKernel(f"a clamp to [{first}, {second}]")
    if code == CLIP:
        return {**NO_ACTIVATION, "low": first, "high": second}
    return {**NO_ACTIVATION, "activation": code, "alpha": first, "beta": second}


def float32_only(*operands: Operand | None) -> None:
    """Raise NoKernel unless every operand is float32."""
    if any(o is not None and o.dtype != "float32" for o in operands):
        raise NoKernel("not float32")


def column_bias(b: Binder, bias: Operand | None, columns: int) -> Operand | None:
    """The bias as one value per column, or None."""
    if bias is None or bias.size == 0:
        return None
    if bias.size == columns and bias.shape and bias.shape[-1] == columns:
        return bias
    if bias.value is not None and bias.size == 1:
        return b.constant(np.full(columns, bias.value.reshape(()), np.float32))
    raise NoKernel(f"a bias of shape {list(bias.shape)}")


def broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """NumPy's broadcast of shapes; raises ValueError if they are incompatible."""
    return np.broadcast_shapes(*shapes)
