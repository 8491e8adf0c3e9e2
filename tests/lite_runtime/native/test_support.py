"""Functions that back ends call: on this processor, against those of the C library."""

from __future__ import annotations

import ctypes
import ctypes.util

import llvmlite.binding as llvm
import numpy as np
import pytest

from lite_runtime.graph import Array
from lite_runtime.native.codegen import retarget
from lite_runtime.native.codegen.support import needed

LIBM = ctypes.util.find_library("m")
BATCH = """
define void @batch(ptr %x, ptr %y, ptr %z, ptr %to, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %xi = getelementptr double, ptr %x, i64 %i
  %yi = getelementptr double, ptr %y, i64 %i
  %zi = getelementptr double, ptr %z, i64 %i
  %ti = getelementptr double, ptr %to, i64 %i
  %a = load double, ptr %xi
  %b = load double, ptr %yi
  %c = load double, ptr %zi
  %r = call double @"our fma"(double %a, double %b, double %c)
  store double %r, ptr %ti
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""


def _ours(x: Array, y: Array, z: Array) -> Array:
    retarget.llvm()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    text = needed(["fma"]).replace("@fma(", '@"our fma"(')
    module = llvm.parse_assembly(text + BATCH)
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    found = np.empty_like(x)
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, ctypes.c_int64)(engine.get_function_address("batch"))
    run(x.ctypes.data, y.ctypes.data, z.ctypes.data, found.ctypes.data, len(x))
    return found


def _numbers(rng: np.random.Generator, n: int) -> Array:
    """All bits, magnitudes near 1 and few bits, the smallest and largest numbers, zeros, infinities, NaN."""
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 5e-324, -5e-324, 2.2250738585072014e-308]
    special += [1.7976931348623157e308, 2.0**-1074, 2.0**-1022, 2.0**1023, 1 + 2.0**-52, 1 - 2.0**-53]
    bits = rng.integers(0, 1 << 64, n, np.uint64).view(np.float64)
    near = rng.integers(-(1 << 53), 1 << 53, n) * 2.0 ** rng.integers(-60, 10, n)
    few = rng.integers(-64, 65, n) * 2.0 ** rng.integers(-3, 4, n)
    tiny = rng.integers(-(1 << 53), 1 << 53, n) * 2.0 ** rng.integers(-1074, -1000, n)
    kinds = np.stack([bits, near, few, tiny, rng.choice(special, n)])
    return np.ascontiguousarray(np.take_along_axis(kinds, rng.integers(0, len(kinds), n)[None], 0)[0])


@pytest.mark.skipif(LIBM is None, reason="no C library of mathematics")
def test_fma_is_rounded_once() -> None:
    rng, n = np.random.default_rng(5), 60_000
    with np.errstate(all="ignore"):
        x, y, z = (_numbers(rng, n) for _ in range(3))
        z[: n // 3] = -(x * y)[: n // 3]  # what cancels
        z[: n // 6] *= 1 + rng.integers(-4, 5, n // 6) * 2.0**-52
    fma = ctypes.CDLL(LIBM).fma
    fma.argtypes, fma.restype = [ctypes.c_double] * 3, ctypes.c_double
    wanted = np.array([fma(*row) for row in zip(x.tolist(), y.tolist(), z.tolist(), strict=True)])
    found = _ours(x, y, z)
    same = (found.view(np.int64) == wanted.view(np.int64)) | (np.isnan(found) & np.isnan(wanted))
    assert same.all(), [(a, b, c) for a, b, c in zip(x[~same], y[~same], z[~same], strict=True)][:5]
