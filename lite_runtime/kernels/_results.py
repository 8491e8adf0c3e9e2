"""The end of a product's tile: bias, residual and bounds, and the results in memory."""

from __future__ import annotations

from llvmlite import ir

from lite_runtime.kernels._dot import at
from lite_runtime.native.simd import LANES, emit_load, emit_mask, emit_max, emit_splat, emit_store

_F32, _I64 = ir.FloatType(), ir.IntType(64)


def emit_results(builder, totals, out, stride, bias, residual, live, columns, mapped, bounds=()):
    """Store rows of sums (variables of vectors) plus bias and residual, whose addresses may be 0; stride: bytes between
    rows of `out` and of the residual. The first `live` rows and `columns` columns are stored. mapped: an address that
    can be read, since addresses are formed where nothing is read (see `grouped`). bounds: none, or lowest and highest.
    """
    limits = [emit_splat(builder, bound) for bound in bounds]
    masks = [emit_mask(builder, builder.sub(columns, _I64(j * LANES))) for j in range(len(totals[0]))]
    nothing = ir.Constant(masks[0].type, [0] * LANES)
    terms = [
        (builder.select(given, term, other), given, step)
        for term, other, step in ((bias, mapped, _I64(0)), (residual, out, stride))
        for given in (builder.icmp_signed("!=", term, _I64(0)),)
    ]

    def place(base, row, step, vector):
        where = builder.add(builder.add(base, _I64(4 * LANES * vector)), builder.mul(_I64(row), step))
        return at(builder, where, _F32)

    for i, row in enumerate(totals):
        with builder.if_then(builder.icmp_signed("<", _I64(i), live)):
            for j, total in enumerate(row):
                value = builder.load(total)
                for term, given, step in terms:
                    only = builder.select(given, masks[j], nothing)
                    value = builder.fadd(value, emit_load(builder, place(term, i, step, j), only))
                for limit, predicate in zip(limits, "><", strict=False):
                    value = emit_max(builder, limit, value, predicate)
                emit_store(builder, value, place(out, i, stride, j), masks[j])
