"""The parts of transformers: attention and the dense layers after it, without norm and residual sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from cloud.errors import EngineError
from cloud.zoo.build import Builder, dims

__all__ = ["DEVIATION", "attention", "feed_forward", "need_heads", "patches", "placed", "present", "vision_block"]

DEVIATION = 0.02
"""Standard deviation of initial weights, as in BERT and GPT-2."""


def need_heads(width: int, heads: int) -> None:
    """Raises EngineError for a width that is not divisible by the heads."""
    if width % heads:
        raise EngineError(f"expected a width divisible by {heads} heads, got {width}")


def attention(
    b: Builder, x: ir.Value, heads: int, *, name: str, memory: ir.Value | None = None, mask: ir.Value | None = None,
    inner: int = 0, bias: bool = True, deviation: float = DEVIATION, asking: float = 0.0, into: float = DEVIATION,
    **more: Any,
) -> ir.Value:  # fmt: skip
    """[batch, length, width] -> the same: `x` attends to `memory` (None: to itself) where `mask` is true, or with a
    mask of floats added to the scores. `inner`: the width of all heads (0: that of `x`); standard deviations of initial
    weights: `deviation`, of the queries' product `asking` (0: the same) and of the last product `into`; `more`:
    attributes of ONNX's Attention."""
    width = int(dims(x)[-1])
    inner, source = inner or width, x if memory is None else memory
    q, k, v = (
        b.linear(given, inner, name=f"{name}.{part}", deviation=spread, bias=bias)
        for part, given, spread in (
            ("query", x, asking or deviation),
            ("key", source, deviation),
            ("value", source, deviation),
        )
    )
    operands = (q, k, v) if mask is None else (q, k, v, mask)
    y = b.op("Attention", *operands, name=name, q_num_heads=heads, kv_num_heads=heads, **more)
    return b.linear(y, width, name=f"{name}.out", deviation=into, bias=bias)


def feed_forward(
    b: Builder, x: ir.Value, hidden: int, *, name: str, deviation: float = DEVIATION, into: float = DEVIATION,
    activation: str = "Gelu", bias: bool = True, **more: Any,
) -> ir.Value:  # fmt: skip
    """[..., width] -> the same, by a dense layer of `hidden` units, an activation (`more`: its attributes) and another
    dense layer."""
    width = int(dims(x)[-1])
    y = b.linear(x, hidden, name=f"{name}.up", deviation=deviation, bias=bias)
    y = b.op(activation, y, name=f"{name}.{activation.lower()}", **more)
    return b.linear(y, width, name=f"{name}.down", deviation=into, bias=bias)


def vision_block(
    b: Builder, x: ir.Value, heads: int, hidden: int, *, dropout: float, name: str, deviation: float = DEVIATION
) -> ir.Value:  # fmt: skip
    """A transformer's encoder block with layer norm before both parts (epsilon 1e-6, as in ViT). `deviation`: of all
    initial weights."""
    y = b.layer_norm(x, name=f"{name}.attention.norm", epsilon=1e-6)
    y = attention(b, y, heads, name=f"{name}.attention", deviation=deviation, into=deviation)
    y = b.dropout(y, dropout, name=f"{name}.attention.dropout")
    x = b.add(x, y, name=f"{name}.attention.add")
    y = b.layer_norm(x, name=f"{name}.mlp.norm", epsilon=1e-6)
    y = feed_forward(b, y, hidden, name=f"{name}.mlp", deviation=deviation, into=deviation)
    y = b.dropout(y, dropout, name=f"{name}.mlp.dropout")
    return b.add(x, y, name=f"{name}.mlp.add")


def patches(b: Builder, x: ir.Value, patch: int, width: int, stem: int = 0) -> ir.Value:
    """Images [batch, C, H, W] -> one vector for each square of `patch` pixels [batch, count, width]: of a convolution
    with that kernel, or, with a `stem`, of convolutions of 3x3 with stride 2, batch norm and ReLU, the first with so
    many filters and each further one with twice as many, and one of 1x1 (Xiao et al., "Early Convolutions Help
    Transformers See Better", 2021). Raises EngineError for sizes that squares do not fill, and for a stem with patches
    that are no power of two."""
    _, _, height, across = dims(x)
    if int(height) % patch or int(across) % patch:
        raise EngineError(f"expected images of whole patches of {patch} pixels, got {height} x {across}")
    if stem and patch & (patch - 1):
        raise EngineError(f"expected patches of a power of two pixels with a stem, got {patch}")
    for i in range(patch.bit_length() - 1 if stem else 0):
        x = b.conv_bn_relu(x, stem << i, 3, stride=2, name=f"stem.{i}")
    kernel = 1 if stem else patch
    y = b.conv(x, width, kernel, stride=kernel, pads=0, bias=True, name="patches")
    count = (int(height) // patch) * (int(across) // patch)
    return b.transpose(b.reshape(y, (width, count)), (0, 2, 1), name="tokens")


def placed(b: Builder, x: ir.Value, before: ir.Value, after: ir.Value | None, positions: ir.Value) -> ir.Value:
    """Tokens [batch, n, width] between further learned ones [1, k, width], with positions [1, all, width] added. A sum
    with zeros in place of others joins them, so that no size of the batch is needed."""
    batch, count, width = dims(x)
    first, last = int(dims(before)[1]), 0 if after is None else int(dims(after)[1])
    total = first + int(count) + last

    def padded(value: ir.Value, ahead: int, behind: int, name: str) -> ir.Value:
        pads = b.constant(f"{name}.pads", [0, ahead, 0, 0, behind, 0])
        return b.op("Pad", value, pads, name=name, shape=(dims(value)[0], total, width))

    learned = b.add(positions, padded(before, 0, total - first, "before"), name="learned")
    if after is not None:
        learned = b.add(learned, padded(after, total - last, 0, "after"), name="learned.all")
    return b.op("Add", padded(x, first, last, "placed"), learned, name="placed.all", shape=(batch, total, width))


def present(b: Builder, ids: ir.Value, *, name: str = "present") -> ir.Value:
    """Whether an id [batch, length] is a token, and not padding (0): [batch, 1, 1, length] bool."""
    batch, length = dims(ids)
    empty = b.weight(f"{name}.padding", np.array(0, np.int32))
    found = b.op("Not", b.op("Equal", ids, empty, dtype=ir.DataType.BOOL), dtype=ir.DataType.BOOL)
    return b.op("Unsqueeze", found, b.constant(f"{name}.axes", (1, 2)), name=name, shape=(batch, 1, 1, length),
                dtype=ir.DataType.BOOL)  # fmt: skip
