"""Memory that is not there yet, and addresses the compiler must not reason about."""

from __future__ import annotations

from llvmlite import ir

from lite_runtime.native.simd import declare

_I64, _I32 = ir.IntType(64), ir.IntType(32)
_BYTES = ir.IntType(8).as_pointer()
FIRST, SECOND = 3, 2
"""Caches to fetch into, as LLVM counts them."""


def emit_prefetch(builder, where, cache=SECOND):
    """Fetch the line at an address (int64), mapped or not, into a cache, for reading."""
    function = declare(builder, "llvm.prefetch.p0", ir.VoidType(), _BYTES, _I32, _I32, _I32)
    builder.call(function, [builder.inttoptr(where, _BYTES), _I32(0), _I32(cache), _I32(1)])


def emit_opaque(builder, value):
    """The same int64, of which the compiler knows nothing: it would keep every sum of addresses, and spill them."""
    return builder.asm(ir.FunctionType(_I64, [_I64]), "", "=r,0", [value], side_effect=False)
