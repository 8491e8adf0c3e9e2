"""Prefetching, and addresses that are hidden from the compiler's analysis."""

from __future__ import annotations

from llvmlite import ir

from lite_runtime.native.simd import declare

_I64, _I32 = ir.IntType(64), ir.IntType(32)
_BYTES = ir.IntType(8).as_pointer()
FIRST, SECOND = 3, 2
"""Cache levels to prefetch into, as LLVM numbers them."""


def emit_prefetch(builder, where, cache=SECOND):
    """Prefetch the line at an address (int64), mapped or not, into a cache, for reading."""
    function = declare(builder, "llvm.prefetch.p0", ir.VoidType(), _BYTES, _I32, _I32, _I32)
    builder.call(function, [builder.inttoptr(where, _BYTES), _I32(0), _I32(cache), _I32(1)])


def emit_opaque(builder, value):
    """The same int64, opaque to the compiler, which would otherwise keep every sum of addresses and spill registers."""
    return builder.asm(ir.FunctionType(_I64, [_I64]), "", "=r,0", [value], side_effect=False)
