"""LoraMatMul: what a row's adapter adds to a product."""

from __future__ import annotations

from lite_runtime import steps
from lite_runtime.operators.language import RANK
from lite_runtime.ops._checks import one_of
from lite_runtime.ops.registry import Binder, Inference, NoKernel, Spec, bind, infer

__all__: list[str] = []


@infer("LoraMatMul")
def _infer(n: Inference) -> list[Spec]:
    depth, columns, rank, offset = (int(n.attr(name, 0)) for name in ("K", "N", "rank", "offset"))
    if min(depth, columns, rank) < 1 or offset < 0:
        raise n.error(f"expected K, N and rank from 1, offset from 0, got {depth}, {columns}, {rank} and {offset}")
    x, base, adapters = (one_of(n, i, ("float32",)) for i in range(3))
    which = one_of(n, 3, ("int32",))
    if len(which.shape) != 1:
        raise n.error(f"expected an adapter for each row, got shape {list(which.shape)}")
    for i, got, width in ((0, x, depth), (1, base, columns)):
        if got.shape != (*which.shape, width):
            raise n.error(f"expected input {i} of shape {[*which.shape, width]}, got {list(got.shape)}")
    end = offset + rank * (depth + columns)
    if len(adapters.shape) != 2 or adapters.shape[1] < end:
        raise n.error(f"expected adapters of {end} numbers or more, got shape {list(adapters.shape)}")
    return [base]


@bind("LoraMatMul")
def _bind(b: Binder) -> None:
    x, base, adapters, which = b.inputs
    y = b.outputs[0]
    assert x is not None and base is not None and adapters is not None and which is not None and y is not None
    if int(b.attr("rank")) > RANK:
        raise NoKernel(f"a rank above {RANK}")
    b.emit(
        steps.Adapt(
            x=x,
            base=base,
            adapters=adapters,
            which=which,
            y=y,
            rows=which.size,
            depth=int(b.attr("K")),
            columns=int(b.attr("N")),
            rank=int(b.attr("rank")),
            offset=int(b.attr("offset")),
            slots=adapters.shape[0],
            size=adapters.shape[1],
        )
    )
    b.reuse(0, base)
