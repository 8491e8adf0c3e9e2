"""Sums of outer products over pixels: weight gradients, and A^T B."""

from __future__ import annotations

from lite_runtime import steps
from lite_runtime.ops._geometry import Geometry
from lite_runtime.ops.registry import Binder, Operand

__all__ = ["emit_outer", "emit_transposed_product"]

BLOCK = 1 << 18
"""Bytes of both operands that all tiles process before continuing: a share of the second-level cache."""


def emit_outer(
    b: Binder,
    g: Geometry,
    a: Operand,
    dy: Operand,
    out: Operand,
    group: int,
    sizes: tuple[int, int],
    batches: tuple[int, int, int, int] = (1, 0, 0, 0),
) -> None:
    """out (batches, groups, taps, rows, columns) from images `a` and results `dy`; sizes: rows and columns of a group;
    batches: their number, and the bytes of a, dy and out for each."""
    rows, columns = sizes
    line = 4 * (g.width * g.channels * g.strides[0] + g.out[1] * group * columns)
    count, batch_a, batch_b, batch_c = batches
    b.emit(
        steps.Outer(
            a=a,
            b=dy,
            c=out,
            images=g.images,
            height=g.height,
            width=g.width,
            deep=g.channels,
            high=g.out[0],
            wide=g.out[1],
            b_deep=group * columns,
            kernel_h=g.kernel[0],
            kernel_w=g.kernel[1],
            stride_h=g.strides[0],
            stride_w=g.strides[1],
            dilation_h=g.dilations[0],
            dilation_w=g.dilations[1],
            top=g.begins[0],
            left=g.begins[1],
            groups=group,
            rows=rows,
            columns=columns,
            block=max(1, BLOCK // line),
            batches=count,
            batch_a=batch_a,
            batch_b=batch_b,
            batch_c=batch_c,
        ),
        kernel="outer.f32_depthwise" if rows == columns == 1 and group > 1 else "outer.f32_outer",
    )


def emit_transposed_product(
    b: Binder, a: Operand, right: Operand, out: Operand, sizes: tuple[int, int, int], batches: tuple[int, int, int]
) -> None:
    """out (m, n) = A^T B from dense A (k, m) and B (k, n); sizes: k, m, n; batches: their number, and whether A and B
    have one matrix per batch (1) or share one (0)."""
    k, m, n = sizes
    count, of_a, of_b = batches
    column = Geometry(1, k, 1, m, (k, 1), (1, 1), (1, 1), (1, 1), (0, 0))
    emit_outer(b, column, a, right, out, 1, (m, n), (count, of_a * 4 * k * m, of_b * 4 * k * n, 4 * m * n))
