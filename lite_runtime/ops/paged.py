"""PagedAttention: rows of several sequences, over caches in pages."""

from __future__ import annotations

from typing import Any

from lite_runtime import steps
from lite_runtime.operators.language import PAGE, SCALE
from lite_runtime.ops._checks import one_of
from lite_runtime.ops.registry import Binder, Inference, NoKernel, Operand, Spec, bind, infer

__all__: list[str] = []

_KINDS = {"float16": "f16", "float32": "f32", "int8": "i8"}
"""Element types of caches, and how their kernels begin."""
_MOST_GROUP, _WIDEST = 16, 256
"""Heads of the query that share a head of the key, and features of a head, at most: `kernels.paged` has memory for so
many."""


@infer("PagedAttention")
def _infer(n: Inference) -> list[Spec]:
    heads, kv_heads = int(n.attr("num_heads", 0)), int(n.attr("kv_num_heads", 0))
    query, key, value = (one_of(n, i, ("float32",)) for i in range(3))
    if heads < 1 or kv_heads < 1 or heads % kv_heads or any(len(x.shape) != 2 for x in (query, key, value)):
        raise n.error(f"expected matrices, and {heads} heads a multiple of {kv_heads}")
    rows, size, deep = query.shape[0], query.shape[1] // heads, value.shape[1] // kv_heads
    _same(n, 0, query, (rows, heads * size))
    _same(n, 1, key, (rows, kv_heads * size))
    _same(n, 2, value, (rows, kv_heads * deep))
    key_cache = one_of(n, 3, tuple(_KINDS))
    value_cache = one_of(n, 4, (key_cache.dtype,))
    pages = key_cache.shape[0] if key_cache.shape else 0
    more = SCALE if key_cache.dtype == "int8" else 0
    _same(n, 3, key_cache, (pages, kv_heads, size + more, PAGE))
    _same(n, 4, value_cache, (pages, kv_heads, PAGE, deep + more))
    cumulative, past, table = (one_of(n, i, ("int32",)) for i in (5, 6, 7))
    sequences = past.shape[0] if past.shape else 0
    _same(n, 5, cumulative, (sequences + 1,))
    _same(n, 6, past, (sequences,))
    if len(table.shape) != 2:
        raise n.error(f"expected a table of sequences and pages, got shape {list(table.shape)}")
    _same(n, 7, table, (sequences, table.shape[1]))
    if n.has(8) != n.has(9):
        raise n.error("expected cosines and sines together")
    if n.has(8):
        cos, sin = one_of(n, 8, ("float32",)), one_of(n, 9, ("float32",))
        if len(cos.shape) != 2 or sin != cos or not 0 < 2 * cos.shape[1] <= size:
            raise n.error(f"expected angles of up to {size // 2} pairs, got {list(cos.shape)} and {list(sin.shape)}")
    return [Spec("float32", (rows, heads * deep)), key_cache, value_cache]


def _same(n: Inference, i: int, got: Spec, shape: tuple[int, ...]) -> None:
    if got.shape != shape or 0 in shape[1:]:
        raise n.error(f"expected input {i} of shape {list(shape)}, got {list(got.shape)}")


@bind("PagedAttention")
def _bind(b: Binder) -> None:
    given: list[Operand | None] = [*b.inputs, None, None][:10]
    query, key, value, key_cache, value_cache, cumulative, past, table, cos, sin = given
    y = b.outputs[0]
    assert (
        query is not None
        and key is not None
        and value is not None
        and key_cache is not None
        and value_cache is not None
    )
    assert table is not None and y is not None
    if key_cache.value is not None or value_cache.value is not None:
        raise NoKernel("constant caches")
    heads, kv_heads = int(b.attr("num_heads")), int(b.attr("kv_num_heads"))
    if heads // kv_heads > _MOST_GROUP:
        raise NoKernel(f"more than {_MOST_GROUP} heads that share keys")
    size, deep = query.shape[1] // heads, value.shape[1] // kv_heads
    if max(size, deep) > _WIDEST:
        raise NoKernel(f"heads of more than {_WIDEST} features")
    kind = _KINDS[key_cache.dtype]
    words = -(-size // 4) + 2 if key_cache.dtype == "int8" else size  # rows of `kernels._scores`, or of float32
    turned = b.scratch("float32", (query.shape[0], heads * words))
    sequences: dict[str, Any] = {"cumulative": cumulative, "past": past, "table": table}
    sizes: dict[str, Any] = {
        "rows": query.shape[0],
        "sequences": table.shape[0],
        "heads": heads,
        "kv_heads": kv_heads,
        "size": size,
        "deep": deep,
        "pages": key_cache.shape[0],
        "slots": table.shape[1],
    }
    b.emit(
        steps.Append(
            query=query,
            key=key,
            value=value,
            cos=cos,
            sin=sin,
            key_cache=key_cache,
            value_cache=value_cache,
            turned=turned,
            angles=0 if cos is None else cos.shape[0],
            pairs=0 if cos is None else cos.shape[1],
            interleaved=int(b.attr("rotary_interleaved", 0)),
            **sequences,
            **sizes,
        ),
        kernel=f"paged.{kind}_append",
    )
    b.emit(
        steps.Attend(
            turned=turned,
            key_cache=key_cache,
            value_cache=value_cache,
            y=y,
            window=max(int(b.attr("local_window_size", -1)), 0),
            scale=float(b.attr("scale", 0.0)) or size**-0.5,
            softcap=float(b.attr("softcap", 0.0)),
            **sequences,
            **sizes,
        ),
        kernel=f"paged.{kind}_attend",
    )
    for i, cache in ((1, key_cache), (2, value_cache)):
        if len(b.outputs) > i and b.outputs[i] is not None:
            b.view(i, cache)
