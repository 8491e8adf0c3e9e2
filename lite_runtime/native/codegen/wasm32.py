"""Operations by WebAssembly's instructions of 128-bit vectors (simd128), and a relaxed one."""

from __future__ import annotations

from llvmlite import ir

from lite_runtime.native.codegen import without_masks
from lite_runtime.native.codegen.operations import I8, I64, Emit, declare, each
from lite_runtime.targets import Target

__all__ = ["bodies"]


def bodies(target: Target) -> dict[tuple[str, int], Emit]:
    """The target's own functions, by operation and lanes."""
    own: dict[str, Emit] = {
        "look_up": look_up,
        "pack_bytes": pack_bytes,
        "pack_pairs": pack_pairs,
        "pair_dot": pair_dot,
    }
    if target.dot == "wasm.relaxed_dot":
        own["dot"] = relaxed_dot
    return {(name, target.lanes): emit for name, emit in own.items()} | without_masks.bodies(target.lanes)


def pair_dot(builder, lanes, so_far, a, b):
    """i32x4.dot_i16x8_s."""
    return builder.add(so_far, builder.call(declare(builder, "llvm.wasm.dot", so_far.type, a.type, b.type), [a, b]))


def relaxed_dot(builder, lanes, so_far, a, w):
    """i32x4.relaxed_dot_i8x16_i7x16_add_s, whose second factor has 7 bits on all engines. It is `dot` on those that
    read all 8 bits as an unsigned number, as with x86's vpdpbusd: whoever loads a module tries it first."""
    kinds = [so_far.type, w.type, a.type, so_far.type]
    return builder.call(declare(builder, "llvm.wasm.relaxed.dot.i8x16.i7x16.add.signed", *kinds), [w, a, so_far])


def pack_pairs(builder, lanes, a, b):
    """i16x8.narrow_i32x4_s."""
    narrow = ir.VectorType(ir.IntType(16), 8)
    return builder.call(declare(builder, "llvm.wasm.narrow.signed.v8i16.v4i32", narrow, a.type, a.type), [a, b])


def pack_bytes(builder, lanes, a, b):
    """i8x16.narrow_i16x8_u."""
    narrow = ir.VectorType(I8, 16)
    return builder.call(declare(builder, "llvm.wasm.narrow.unsigned.v16i8.v8i16", narrow, a.type, a.type), [a, b])


def look_up(builder, lanes, x, table):
    """i8x16.swizzle, which gives 0 for places outside its sixteen bytes: one row of the table gives each result."""
    swizzle, row = declare(builder, "llvm.wasm.swizzle", x.type, x.type, x.type), ir.VectorType(I8, 16)
    found = each(x.type, 0)
    for k in range(16):
        where = builder.inttoptr(builder.add(table, I64(16 * k)), row.as_pointer())
        held = builder.load(where, align=1, typ=row)
        found = builder.or_(found, builder.call(swizzle, [held, builder.sub(x, each(x.type, 16 * k))]))
    return found
