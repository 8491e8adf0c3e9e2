"""Operations by x86-64's instructions."""

from __future__ import annotations

from llvmlite import ir

from lite_runtime.native.codegen.operations import (
    F32,
    HALF,
    I8,
    I16,
    I32,
    I64,
    Emit,
    declare,
    each,
    pick,
    splat,
    vector,
)
from lite_runtime.targets import Target

__all__ = ["bodies"]


def bodies(target: Target) -> dict[tuple[str, int], Emit]:
    """The target's own functions, by operation and lanes."""
    wide, lanes = target.lanes == 16, target.lanes
    found: dict[str, Emit] = {"pair_dot": pair_dot, "whole": whole, "look_up": look_up}
    found |= {"pack_pairs": _packed("packssdw"), "pack_bytes": _packed("packuswb")}
    found["small_dot"] = maddubs
    if target.dot == "vpdpbusd":
        found["dot"] = found["small_dot"] = vpdpbusd
    if wide:
        found |= {"scale": scale, "nibbles": nibbles}
    if target.shape.fused:  # and then AVX2's companion F16C is there
        found |= {"from_half": from_half, "to_half": to_half}
    scalars: dict[str, Emit] = {"pause": pause, "clock": clock}
    scalars |= {name: found[name] for name in ("from_half", "to_half") if name in found}
    return {(name, lanes): emit for name, emit in found.items()} | {(name, 1): emit for name, emit in scalars.items()}


def vpdpbusd(builder, lanes, so_far, a, w):
    """Four products of bytes and their sum at once."""
    return builder.call(
        declare(builder, f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", so_far.type, so_far.type, a.type, w.type),
        [so_far, a, w],
    )


def maddubs(builder, lanes, so_far, a, w):
    """vpmaddubsw, whose sums of two products do not saturate where one factor is below 128; then vpmaddwd by 1."""
    name = {4: "ssse3.pmadd.ub.sw.128", 8: "avx2.pmadd.ub.sw", 16: "avx512.pmaddubs.w.512"}[lanes]
    pairs = ir.VectorType(I16, 2 * lanes)
    sums = builder.call(declare(builder, f"llvm.x86.{name}", pairs, a.type, w.type), [a, w])
    return pair_dot(builder, lanes, so_far, sums, each(pairs, 1))


def pair_dot(builder, lanes, so_far, a, b):
    """vpmaddwd."""
    name = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}[lanes]
    products = builder.call(declare(builder, f"llvm.x86.{name}", so_far.type, a.type, b.type), [a, b])
    return builder.add(so_far, products)


def whole(builder, lanes, value):
    """vcvtps2dq: NaN and all that int32 does not hold become its lowest number."""
    ints = ir.VectorType(I32, lanes)
    if lanes == 16:
        mask, mode = ir.IntType(16), I32(4)  # the processor's current rounding mode
        function = declare(builder, "llvm.x86.avx512.mask.cvtps2dq.512", ints, value.type, ints, mask, I32)
        return builder.call(function, [value, each(ints, 0), mask(0xFFFF), mode])
    name = {4: "sse2.cvtps2dq", 8: "avx.cvt.ps2dq.256"}[lanes]
    return builder.call(declare(builder, f"llvm.x86.{name}", ints, value.type), [value])


def _packed(instruction: str) -> Emit:
    def packed(builder, lanes, a, b):
        prefix, suffix = {4: ("sse2", ".128"), 8: ("avx2", ""), 16: ("avx512", ".512")}[lanes]
        narrow = ir.VectorType(ir.IntType(a.type.element.width // 2), 2 * a.type.count)
        function = declare(builder, f"llvm.x86.{prefix}.{instruction}{suffix}", narrow, a.type, b.type)
        return builder.call(function, [a, b])

    return packed


def look_up(builder, lanes, x, table):
    """Each of the table's sixteen rows of sixteen is shuffled by the low halves of the bytes; the high bits then select
    among the rows, one bit per round."""
    name = {4: "ssse3.pshuf.b.128", 8: "avx2.pshuf.b", 16: "avx512.pshuf.b.512"}[lanes]
    shuffle = declare(builder, f"llvm.x86.{name}", x.type, x.type, x.type)
    low, sixteen = builder.and_(x, each(x.type, 15)), ir.VectorType(I8, 16)
    rows = []
    for k in range(16):
        where = builder.inttoptr(builder.add(table, I64(16 * k)), sixteen.as_pointer())
        row = builder.load(where, align=1, typ=sixteen)
        repeated = pick(builder, row, row, [i % 16 for i in range(x.type.count)])
        rows.append(builder.call(shuffle, [repeated, low]))
    for bit in range(4, 8):
        chosen = builder.icmp_unsigned("!=", builder.and_(x, each(x.type, 1 << bit)), each(x.type, 0))
        rows = [builder.select(chosen, rows[k + 1], rows[k]) for k in range(0, len(rows), 2)]
    return rows[0]


def nibbles(builder, lanes, dwords, which):
    """A table of sixteen floats, indexed by the low four bits."""
    floats = ir.VectorType(F32, lanes)
    table = ir.Constant(floats, [float(v) for v in (*range(8), *range(-8, 0))])
    permute = declare(builder, "llvm.x86.avx512.permvar.sf.512", floats, floats, dwords.type)
    up = splat(builder, builder.trunc(builder.mul(which, I64(4)), I32), dwords.type)
    return builder.call(permute, [table, builder.lshr(dwords, up)])


def scale(builder, lanes, value, n):
    """vscalefps."""
    kind, mask, mode = value.type, ir.IntType(16), I32(4)  # the processor's current rounding mode
    function = declare(builder, "llvm.x86.avx512.mask.scalef.ps.512", kind, kind, kind, kind, mask, I32)
    return builder.call(function, [value, n, each(kind, 0.0), mask(-1), mode])


def from_half(builder, lanes, bits):
    """vcvtph2ps."""
    return builder.fpext(builder.bitcast(bits, vector(HALF, lanes)), vector(F32, lanes))


def to_half(builder, lanes, value):
    """vcvtps2ph."""
    return builder.bitcast(builder.fptrunc(value, vector(HALF, lanes)), vector(I16, lanes))


def pause(builder, lanes):
    """pause."""
    builder.call(declare(builder, "llvm.x86.sse2.pause", ir.VoidType()), [])


def clock(builder, lanes, ask):
    """rdtsc."""
    return builder.call(declare(builder, "llvm.readcyclecounter", I64), [])
