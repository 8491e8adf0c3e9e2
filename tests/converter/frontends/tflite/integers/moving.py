"""What moves stored numbers: joins, parts, pads, gathers; also where the result's scale is another, which LiteRT takes
without converting."""

from __future__ import annotations

import numpy as np

from tests.converter.frontends.tflite.builder import Tensor
from tests.converter.frontends.tflite.integers.drafts import BYTES, STORED, Draft, case, near

__all__: list[str] = []


def _moved(d: Draft, op: str, shape: tuple[int, ...]) -> list[Tensor]:
    """The operands after the first."""
    rank = len(shape)
    if op == "TRANSPOSE":
        return [d.ints(*d.rng.permutation(rank))]
    if op == "SLICE":
        return [d.ints(*[0] * rank), d.ints(*(d.some(1, n + 1) for n in shape))]
    if op == "STRIDED_SLICE":
        return [d.ints(*[0] * rank), d.ints(*shape), d.ints(*[d.some(1, 3)] * rank)]
    if op == "TILE":
        return [d.ints(*d.rng.integers(1, 3, rank))]
    found = {
        "RESHAPE": [-1],
        "EXPAND_DIMS": [0],
        "REVERSE_V2": [rank - 1],
        "BROADCAST_TO": [2, *shape],
    }.get(op)
    return [] if found is None else [d.ints(*found)]


_PLAIN = "TRANSPOSE TILE SLICE RESHAPE EXPAND_DIMS SQUEEZE REVERSE_V2 BROADCAST_TO STRIDED_SLICE"


@case(_PLAIN, *STORED)
def moved(d: Draft, op: str, dtype: str) -> None:
    shape, q = d.shape(), d.quant(dtype)
    if op == "SQUEEZE":
        shape = (1, *shape)[:4]
    d.result(op, [d.entry(shape, dtype, q), *_moved(d, op, shape)], dtype, q)


_EVERY_OTHER = "TILE RESHAPE SQUEEZE REVERSE_V2 BROADCAST_TO GATHER GATHER_ND MAXIMUM SELECT_V2 TOPK_V2"


@case(_EVERY_OTHER, *(f"{dtype}, another scale" for dtype in STORED))
@case("REDUCE_MAX RESIZE_NEAREST_NEIGHBOR", "int8, another scale", "uint8, another scale")
@case("TRANSPOSE SLICE STRIDED_SLICE PAD SPLIT CONCATENATION RESIZE_BILINEAR MAX_POOL_2D", "int16, another scale")
def relabelled(d: Draft, op: str, types: str) -> None:
    dtype, shape = types.split(",")[0], d.shape(rank=4)
    q = d.quant(dtype)
    y = d.quant(dtype, q.scale * (0.6 + d.rng.random()))
    if op in ("SQUEEZE", "SPLIT"):
        shape = (1, *shape[:3]) if op == "SQUEEZE" else (*shape[:3], 4)
    x = d.entry(shape, dtype, q)
    if op == "SPLIT":
        d.results(op, [d.const(np.int32(3)), x], [(dtype, y)] * 2, num_splits=2)
    elif op == "TOPK_V2":
        d.results(op, [x, d.const(np.int32(1))], [(dtype, y), ("int32", None)])
    elif op == "SELECT_V2":
        d.result(op, [d.entry(shape, "bool"), x, d.entry(shape, dtype, q)], dtype, y)
    elif op in ("MAXIMUM", "CONCATENATION"):
        d.result(op, [x, d.entry(shape, dtype, q)], dtype, y)
    elif op == "MAX_POOL_2D":
        window = {"filter_height": 1, "filter_width": 1, "stride_h": 1, "stride_w": 1, "padding": "VALID"}
        d.result(op, [x], dtype, y, **window)
    else:
        others = {
            "PAD": lambda: [d.const(np.ones((4, 2), np.int32))],
            "GATHER": lambda: [d.ints(0, 0)],
            "GATHER_ND": lambda: [d.const(np.zeros((1, 2), np.int32))],
            "REDUCE_MAX": lambda: [d.ints(1)],
            **dict.fromkeys(("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"), lambda: [d.ints(5, 7)]),
        }.get(op, lambda: _moved(d, op, shape))
        d.result(op, [x, *others()], dtype, y)


# joins and parts


@case("CONCATENATION", *STORED, "uint8, other scales", "int16, other scales")
def joined(d: Draft, op: str, types: str) -> None:
    dtype, shape, y = types.split(",")[0], list(d.shape()), d.quant(types.split(",")[0])
    axis, parts = d.some(0, len(shape)), []
    for _ in range(d.some(2, 5)):
        shape[axis] = d.some(1, 8)
        quant = d.quant(dtype, near(d, y.scale)) if "other" in types else y
        parts.append(d.entry(shape, dtype, quant))
    d.result(op, parts, dtype, y, axis=axis)


@case("SPLIT SPLIT_V", *STORED)
def split(d: Draft, op: str, dtype: str) -> None:
    shape, q = d.shape(), d.quant(dtype)
    sizes = [d.some(1, 5) for _ in range(3)] if op == "SPLIT_V" else [shape[-1]] * d.some(1, 4)
    x = d.entry((*shape[:-1], sum(sizes)), dtype, q)
    axis = d.const(np.int32(len(shape) - 1))
    operands = [axis, x] if op == "SPLIT" else [x, d.ints(*sizes), axis]
    d.results(op, operands, [(dtype, q)] * len(sizes), num_splits=len(sizes))


@case("PACK", *STORED)
def pack(d: Draft, op: str, dtype: str) -> None:
    shape, q = d.shape(rank=d.some(1, 4)), d.quant(dtype)
    d.result(op, [d.entry(shape, dtype, q), d.entry(shape, dtype, q)], dtype, q, axis=0, values_count=2)


@case("UNPACK", *STORED)
def unpack(d: Draft, op: str, dtype: str) -> None:
    q = d.quant(dtype)
    x = d.entry((3, *d.shape(rank=d.some(1, 4))), dtype, q)
    d.results(op, [x], [(dtype, q)] * 3, axis=0, num=3)


# pads, gathers and scatters


@case("PAD PADV2 MIRROR_PAD", *STORED)
def pad(d: Draft, op: str, dtype: str) -> None:
    shape, q = d.shape(low=2), d.quant(dtype)
    edges = d.const(d.rng.integers(0, 2, (len(shape), 2)).astype(np.int32))
    number = [d.const(d.numbers((), dtype), dtype, q)] if op == "PADV2" else []
    options = {"mode": str(d.rng.choice(["REFLECT", "SYMMETRIC"]))} if op == "MIRROR_PAD" else {}
    d.result(op, [d.entry(shape, dtype, q), edges, *number], dtype, q, **options)


@case("GATHER", *STORED)
def gather(d: Draft, op: str, dtype: str) -> None:
    shape, q = d.shape(), d.quant(dtype)
    d.result(op, [d.entry(shape, dtype, q), d.ints(*d.rng.integers(0, shape[0], 4))], dtype, q, axis=0)


@case("GATHER_ND", *STORED)
def gather_nd(d: Draft, op: str, dtype: str) -> None:
    shape, q = d.shape(rank=3), d.quant(dtype)
    places = np.stack([d.rng.integers(0, n, 5) for n in shape[:2]], -1).astype(np.int32)
    d.result(op, [d.entry(shape, dtype, q), d.const(places)], dtype, q)


@case("SCATTER_ND", *BYTES)
def scatter_nd(d: Draft, op: str, dtype: str) -> None:
    q, rows, width = d.quant(dtype), d.some(2, 12), d.some(1, 20)
    places = d.rng.permutation(rows)[: d.some(1, rows)].reshape(-1, 1).astype(np.int32)
    operands = [d.const(places), d.entry((len(places), width), dtype, q), d.ints(rows, width)]
    d.result(op, operands, dtype, q)


@case("SPARSE_TO_DENSE", *BYTES)
def sparse_to_dense(d: Draft, op: str, dtype: str) -> None:
    q, places = d.quant(dtype), np.sort(d.rng.permutation(30)[: d.some(1, 6)]).astype(np.int32)
    default = d.const(d.numbers((), dtype), dtype, q)
    operands = [d.const(places), d.ints(30), d.entry(places.shape, dtype, q), default]
    d.result(op, operands, dtype, q)


@case("DYNAMIC_UPDATE_SLICE", *STORED)
def update(d: Draft, op: str, dtype: str) -> None:
    shape, q = d.shape(low=2), d.quant(dtype)
    whole = d.entry(shape, dtype, q)
    part = d.entry(tuple(d.some(1, n + 1) for n in shape), dtype, q)
    d.result(op, [whole, part, d.ints(*(d.some(0, n) for n in shape))], dtype, q)


@case("SELECT SELECT_V2", *STORED)
def select(d: Draft, op: str, dtype: str) -> None:
    shape, q = d.shape(), d.quant(dtype)
    other = shape if op == "SELECT" else shape[-1:]
    d.result(op, [d.entry(shape, "bool"), d.entry(shape, dtype, q), d.entry(other, dtype, q)], dtype, q)


# sequences, diagonals and constants


@case("REVERSE_SEQUENCE", "uint8", "int16")
def reverse_sequence(d: Draft, op: str, dtype: str) -> None:
    shape, q = d.shape(rank=3), d.quant(dtype)
    lengths = d.ints(*d.rng.integers(0, shape[1] + 1, shape[0]))
    d.result(op, [d.entry(shape, dtype, q), lengths], dtype, q, seq_dim=1, batch_dim=0)


@case("MATRIX_DIAG MATRIX_SET_DIAG", *STORED)
def diagonal(d: Draft, op: str, dtype: str) -> None:
    q, rows, columns = d.quant(dtype), d.some(1, 7), d.some(1, 7)
    if op == "MATRIX_DIAG":
        d.result(op, [d.entry((2, rows), dtype, q)], dtype, q)
    else:
        operands = [d.entry((2, rows, columns), dtype, q), d.entry((2, min(rows, columns)), dtype, q)]
        d.result(op, operands, dtype, q)


@case("FILL", *STORED)
def fill(d: Draft, op: str, dtype: str) -> None:
    q = d.quant(dtype)
    d.result(op, [d.ints(2, 3), d.entry((), dtype, q)], dtype, q, shape=(2, 3))


@case("ONE_HOT", *BYTES)
def one_hot(d: Draft, op: str, dtype: str) -> None:
    q = d.quant(dtype)
    places = d.entry((5,), "int32", data=d.rng.integers(0, 4, 5))
    ends = [d.const(d.numbers((), dtype), dtype, q) for _ in range(2)]
    d.result(op, [places, d.const(np.int32(4)), *ends], dtype, q, axis=-1)
