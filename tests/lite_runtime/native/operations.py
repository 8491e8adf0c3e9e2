"""Operations as functions that can be called: what they give by their generic form, by a target's own, and by NumPy."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from lite_runtime.graph import Array
from lite_runtime.native.codegen import operations, retarget
from lite_runtime.native.codegen.bodies import bodies_of
from lite_runtime.native.codegen.link import link
from lite_runtime.targets import Target

WORDS = 64
"""Vectors of each operand."""


class Case(NamedTuple):
    """operands: lanes, rng -> arrays, one vector a row, or one number a row for scalars. meaning: arrays -> the
    results."""

    operands: Callable[[int, np.random.Generator], list[Array]]
    meaning: Callable[..., Array]


def _ints(n: int, rng: np.random.Generator) -> Array:
    return rng.integers(-(2**31), 2**31, (WORDS, n)).astype(np.int32)


def _halves(n: int, rng: np.random.Generator) -> Array:
    return rng.choice(np.array([-(2**15), 2**15 - 1, 0, 1, *rng.integers(-(2**15), 2**15, 60)]), (WORDS, n)).astype(
        np.int16
    )


def _bytes(n: int, rng: np.random.Generator, dtype: str = "uint8") -> Array:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return rng.choice(np.array([low, high, high - 1, 0, *rng.integers(low, high + 1, 60)]), (WORDS, 4 * n)).astype(
        dtype
    )


_SPECIAL = [
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    0.5,
    -0.5,
    1.5,
    -2.5,
    2.0**23,
    2.0**23 + 1,
    -(2.0**24),
    8388607.5,
    1e-45,
    -1e-40,
]


def _floats(n: int, rng: np.random.Generator, nan: bool = True, high: float = np.inf) -> Array:
    """All magnitudes, halves, and the numbers at which something changes."""
    wide = rng.standard_normal(WORDS * n) * 2.0 ** rng.integers(-40, 40, WORDS * n)
    near = rng.integers(-600, 600, WORDS * n) / 4
    found = rng.choice(np.concatenate([wide, near, _SPECIAL, [np.nan] * nan]), (WORDS, n))
    return np.where(found > high, 1.25, found).astype(np.float32)


def _dots(so_far: Array, a: Array, w: Array, each: int) -> Array:
    products = a.astype(np.int64) * w.astype(np.int64)
    return (so_far + products.reshape(*so_far.shape, each).sum(-1)).astype(np.int32)


def _whole(x: Array) -> Array:
    near = np.rint(x.astype(np.float64))
    return np.where(near >= -(2**31), near, -(2**31)).astype(np.int64).astype(np.int32)


def _packed(dtype: str) -> Callable[[Array, Array], Array]:
    def pack(a: Array, b: Array) -> Array:
        """Within every 16 bytes of the result: half of them from a, then half from b."""
        each = 16 // a.dtype.itemsize
        parts = [x.reshape(WORDS, -1, each) for x in (a, b)]
        ends = np.iinfo(dtype)
        return np.clip(np.concatenate(parts, -1), ends.min, ends.max).astype(dtype).reshape(WORDS, -1)

    return pack


def _nibbles(dwords: Array, which: Array) -> Array:
    four = dwords.view(np.uint32) >> (4 * which.astype(np.uint32)) & 15
    return (four.astype(np.int32) - 16 * (four > 7)).astype(np.float32)


TABLE = np.random.default_rng(3).integers(0, 256, 256).astype(np.uint8)
"""Kept alive: operands hold its address."""


def _scaled(v: Array, n: Array) -> Array:
    return np.ldexp(v.astype(np.float64), n.astype(np.int64)).astype(np.float32)


def _half_bits(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return x.astype(np.float16).view(np.int16)


def _all_halves(n: int, rng: np.random.Generator) -> Array:
    return rng.choice(np.arange(-(2**15), 2**15), (WORDS, n)).astype(np.int16)


def _near_halves(n: int, rng: np.random.Generator) -> Array:
    """float16 numbers, and what lies at and next to the middle between two."""
    below = rng.choice(np.arange(0, 0x7C00), (WORDS, n)).astype(np.int16)
    low, high = below.view(np.float16).astype(np.float64), (below + 1).view(np.float16).astype(np.float64)
    middle = np.where(np.isinf(high), 65520.0, (low + high) / 2) * rng.choice(
        [1.0, 1 + 2.0**-20, 1 - 2.0**-20], (WORDS, n)
    )
    special = rng.choice([np.nan, np.inf, 1e30, 65519.9, 65520.0, 6e-8, 2.98e-8, 2.9802322e-08, 0.0], (WORDS, n))
    return (np.where(rng.random((WORDS, n)) < 0.2, special, middle) * rng.choice([-1, 1], (WORDS, n))).astype(
        np.float32
    )


CASES: dict[str, Case] = {
    "pair_dot": Case(
        lambda n, rng: [_ints(n, rng), _halves(2 * n, rng), _halves(2 * n, rng)], lambda s, a, w: _dots(s, a, w, 2)
    ),
    "dot": Case(
        lambda n, rng: [_ints(n, rng), _bytes(n, rng), _bytes(n, rng, "int8")], lambda s, a, w: _dots(s, a, w, 4)
    ),
    "signed_dot": Case(
        lambda n, rng: [_ints(n, rng), _bytes(n, rng, "int8"), _bytes(n, rng, "int8")],
        lambda s, a, w: _dots(s, a, w, 4),
    ),
    "small_dot": Case(
        lambda n, rng: [_ints(n, rng), _bytes(n, rng) & 127, np.maximum(_bytes(n, rng, "int8"), -127)],
        lambda s, a, w: _dots(s, a, w, 4),
    ),
    "whole": Case(
        lambda n, rng: [_floats(n, rng, high=2.0**31 - 128)], lambda x: _whole(np.where(np.isnan(x), -np.inf, x))
    ),
    "pack_pairs": Case(
        lambda n, rng: [_ints(n, rng) >> np.int32(rng.integers(0, 24)), _ints(n, rng) >> 16], _packed("int16")
    ),
    "pack_bytes": Case(lambda n, rng: [_halves(2 * n, rng), _halves(2 * n, rng) >> np.int16(7)], _packed("uint8")),
    "look_up": Case(
        lambda n, rng: [_bytes(n, rng), np.full(WORDS, TABLE.ctypes.data, np.int64)], lambda x, _: TABLE[x]
    ),
    "nibbles": Case(
        lambda n, rng: [_ints(n, rng), rng.integers(0, 8, WORDS)], lambda d, which: _nibbles(d, which[:, None])
    ),
    "rint": Case(lambda n, rng: [_floats(n, rng)], np.rint),
    "floor": Case(lambda n, rng: [_floats(n, rng)], np.floor),
    "ceil": Case(lambda n, rng: [_floats(n, rng)], np.ceil),
    "trunc": Case(lambda n, rng: [_floats(n, rng)], np.trunc),
    "scale": Case(
        lambda n, rng: [
            rng.uniform(0.5, 2, (WORDS, n)).astype(np.float32),
            rng.integers(-152, 129, (WORDS, n)).astype(np.float32),
        ],
        _scaled,
    ),
    "from_half": Case(lambda n, rng: [_all_halves(n, rng)], lambda bits: bits.view(np.float16).astype(np.float32)),
    "to_half": Case(lambda n, rng: [_near_halves(n, rng)], _half_bits),
    "load_first": Case(
        lambda n, rng: [_floats(n, rng), rng.integers(-1, n + 2, WORDS), _floats(n, rng)],
        lambda held, count, other: np.where(np.arange(held.shape[1]) < count[:, None], held, other),
    ),
    "store_first": Case(
        lambda n, rng: [_floats(n, rng), _floats(n, rng), rng.integers(-1, n + 2, WORDS)],
        lambda value, held, count: np.where(np.arange(held.shape[1]) < count[:, None], value, held),
    ),
}
"""By operation: `pause` and `clock` have no operands and no results to compare."""
SCALAR = frozenset("rint floor ceil trunc from_half to_half".split())
"""Operations that also exist with one lane."""


def same(name: str, found: Array, wanted: Array) -> bool:
    """Equal bits; NaN is NaN, whatever its bits."""
    kind = np.float16 if name == "to_half" else found.dtype
    found, wanted = found.view(kind), wanted.reshape(found.shape).view(kind)
    if np.issubdtype(kind, np.floating):
        nan = np.isnan(wanted)
        if not (np.isnan(found) == nan).all():
            return False
        found, wanted = np.where(nan, 0, found).astype(kind), np.where(nan, 0, wanted).astype(kind)
    return found.tobytes() == wanted.tobytes()


def bitcode(name: str, lanes: int, symbol: str = "test.run") -> bytes:
    """A module with a kernel `symbol(address of a row of each operand…, address of the result)`."""
    llvm, module = retarget.llvm(), ir.Module("test")
    result, operands = operations.OPERATIONS[name].types(lanes)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * (len(operands) + 1)), symbol)
    builder = ir.IRBuilder(function.append_basic_block())
    values = []
    for kind, address in zip(operands, function.args, strict=False):
        if isinstance(kind, ir.PointerType):
            values.append(builder.inttoptr(address, kind))
        elif isinstance(kind, ir.VectorType) and kind.element == ir.IntType(1):
            count = builder.load(builder.inttoptr(address, ir.IntType(64).as_pointer()), typ=ir.IntType(64))
            longs = ir.VectorType(ir.IntType(64), lanes)
            numbers = ir.Constant(longs, list(range(lanes)))
            values.append(builder.icmp_signed("<", numbers, operations.splat(builder, count, longs)))
        else:
            values.append(builder.load(builder.inttoptr(address, kind.as_pointer()), align=1, typ=kind))
    found = operations.call(builder, name, lanes, *values)
    if not isinstance(result, ir.VoidType):
        builder.store(found, builder.inttoptr(function.args[-1], result.as_pointer()), align=1)
    builder.ret_void()
    module.triple = "x86_64-unknown-linux-gnu"
    made = llvm.parse_assembly(str(module)).as_bitcode()
    assert isinstance(made, bytes)
    return made


def code(name: str, lanes: int, target: Target, own: bool) -> tuple[bytes, int]:
    """Machine code for a target, and where it begins. own: by the target's own function, or in its generic form, which
    may ask for other operations."""
    kept = {key: emit for key, emit in bodies_of(target).items() if own or key[0] != name}
    obj, symbols = retarget.object_of(bitcode(name, lanes), target, "test", bodies=kept)
    made, offsets = link(obj, symbols)
    return made, offsets["test.run"]


def rows(name: str, lanes: int, seed: int = 0) -> tuple[list[Array], Array]:
    """Operands of a case and NumPy's results."""
    case = CASES[name]
    operands = case.operands(lanes, np.random.default_rng([seed, lanes]))
    with np.errstate(all="ignore"):
        return operands, np.ascontiguousarray(case.meaning(*operands))


def run(made: bytes, begin: int, name: str, operands: list[Array], like: Array) -> Array:
    """What code of this machine's processor gives for every row."""
    memory = mmap.mmap(-1, len(made), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(made)
    address = np.frombuffer(memory, np.uint8).ctypes.data + begin
    function: Any = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * (len(operands) + 1))(address)
    stores = name == "store_first"
    held = [np.ascontiguousarray(operand).copy() for operand in operands]
    found = held[1] if stores else np.zeros(like.shape, like.dtype)
    for i in range(WORDS):
        at = [operand.ctypes.data + i * operand.strides[0] for operand in held]
        function(*at, found.ctypes.data + i * found.strides[0])
    return found
