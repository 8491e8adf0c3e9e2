"""GroupedMatMul: a product whose right operand is selected from a table for each row."""

from __future__ import annotations

from math import prod

from lite_runtime import steps
from lite_runtime.ops._checks import one_of
from lite_runtime.ops._panels import finish_of
from lite_runtime.ops.registry import Binder, Inference, NoKernel, Spec, bind, infer

__all__: list[str] = []


@infer("GroupedMatMul")
def _(n: Inference) -> list[Spec]:
    x, table, slots = one_of(n, 0, ("float32",)), one_of(n, 1, ("float32",)), one_of(n, 2, ("int64",))
    if not x.shape or len(table.shape) != 3 or x.shape[-1] != table.shape[1]:
        raise n.error(f"expected x[..., K] and a table [D, K, N], got {list(x.shape)} and {list(table.shape)}")
    if len(slots.shape) != 1:
        raise n.error(f"expected slots [G], got {list(slots.shape)}")
    rows, groups = prod(x.shape[:-1]), slots.shape[0]
    if rows % groups if groups else rows:
        raise n.error(f"expected rows in {groups} equal groups, got {rows}")
    result = Spec("float32", (*x.shape[:-1], table.shape[2]))
    if n.has(3) and n.spec(3) != Spec("float32", (table.shape[0], table.shape[2])):
        raise n.error(f"expected a bias float32{[table.shape[0], table.shape[2]]}, got {list(n.spec(3).shape)}")
    if n.has(4) and n.spec(4) != result:
        raise n.error(f"expected R float32{list(result.shape)}, got {n.spec(4).dtype}{list(n.spec(4).shape)}")
    return [result]


@bind("GroupedMatMul")
def _(b: Binder) -> None:
    x, table, slots, bias, residual = (*b.inputs, None, None)[:5]
    out = b.outputs[0]
    assert x is not None and table is not None and slots is not None and out is not None
    if not table.size or not x.size:
        raise NoKernel("an empty product")
    matrices, depth, columns = table.shape
    rows = x.size // depth
    b.emit(
        steps.F32Grouped(
            x=x,
            table=table,
            slots=slots,
            biases=bias,
            residual=residual,
            y=out,
            rows=rows,
            each=rows // slots.shape[0],
            depth=depth,
            columns=columns,
            matrices=matrices,
            **finish_of(b),
        )
    )
