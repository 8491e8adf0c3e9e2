"""RotaryEmbedding (ONNX operators, RotaryEmbedding-23)."""

from __future__ import annotations

from lite_runtime import steps
from lite_runtime.ops._panels import float32_only
from lite_runtime.ops.registry import Binder, Inference, NoKernel, Spec, bind, infer

__all__: list[str] = []


@infer("RotaryEmbedding")
def _rotary_embedding(n: Inference) -> list[Spec]:
    data = n.spec(0)
    if len(data.shape) not in (3, 4):
        raise n.error(f"expected (batch, sequence, hidden) or (batch, heads, sequence, head size), got {data.shape}")
    if len(data.shape) == 3:
        heads = n.attr("num_heads", 0)
        if heads < 1 or data.shape[2] % heads:
            raise n.error(f"expected num_heads that divides {data.shape[2]}, got {heads}")
    return [data]


@bind("RotaryEmbedding")
def _bind(b: Binder) -> None:
    x, cos, sin, positions = (*b.inputs, None)[:4]
    y = b.outputs[0]
    assert x is not None and cos is not None and sin is not None and y is not None
    float32_only(x, cos, sin)
    if len(x.shape) == 3:
        batches, length, width = x.shape
        heads = int(b.attr("num_heads"))
        size = width // heads
        head, row = size, width
    else:
        batches, heads, length, size = x.shape
        head, row = length * size, size
    half = (b.attr("rotary_embedding_dim", 0) or size) // 2
    rows = (batches, length) if positions is None else cos.shape[:1]
    if cos.shape != (*rows, half) or sin.shape != cos.shape or not 0 < 2 * half <= size:
        raise NoKernel(f"angles {list(cos.shape)} for heads of {size}")
    if positions is not None and (positions.dtype != "int64" or positions.shape != (batches, length)):
        raise NoKernel(f"positions {positions.dtype}{list(positions.shape)}")
    b.emit(
        steps.Rotate(
            x=x,
            cos=cos,
            sin=sin,
            positions=positions,
            y=y,
            batches=batches,
            heads=heads,
            length=length,
            size=size,
            half=half,
            batch=heads * length * size,
            head=head,
            row=row,
            rows=cos.shape[0],
            interleaved=int(b.attr("interleaved", 0)),
        )
    )
