"""Operators of language models: products with weights in blocks, adapters, and attention over caches in pages.

Most are named after ONNX Runtime's operators with the same purpose; ARCHITECTURE.md says what differs.
"""

from __future__ import annotations

from functools import partial

from lite_runtime.operators.record import Operator

__all__ = ["ACTIVATIONS", "PAGE", "PANEL", "RANK", "RECORDS", "SCALE", "SMALLER", "unit_of"]

PAGE = 16
"""Positions of a page of the caches."""
SCALE = 2
"""Bytes of a scale, a float16, behind the features of a position in caches of int8."""
PANEL = 16
"""Outputs of a panel of weights: one vector of the widest processors, a whole number of vectors of all others."""
ACTIVATIONS, SMALLER = 32, 16
"""Neighbours that share a scale in DynamicQuantizeBlocks: 32, or 16 for products with blocks of weights that are no
multiples of 32."""

RANK = 64
"""The highest rank of an adapter for which there is a kernel."""


def unit_of(block: int) -> int:
    """Neighbours of activations that share a scale, for blocks of weights of this size; 0: none do."""
    return next((unit for unit in (ACTIVATIONS, SMALLER) if block % unit == 0), 0)


_op = partial(Operator, domain="msedge")
_BLOCKED = "K:i! N:i! bits:i! block_size:i! layout:s(|panels) zero_point:i"

RECORDS: tuple[Operator, ...] = (
    _op("DynamicQuantizeBlocks", outputs=(3, 3), attrs="block_size:i", reference="blocked"),
    _op(
        "GatedMatMulNBits",
        inputs=(7, 9),
        outputs=(3, 3),
        attrs=f"{_BLOCKED} activation:s(Silu|GeluTanh)",
        reference="blocked",
    ),
    _op("GatherBlockQuantized", inputs=(3, 4), attrs=_BLOCKED, reference="blocked"),
    _op("LoraMatMul", inputs=(4, 4), attrs="K:i! N:i! offset:i! rank:i!", reference="lora"),
    _op("MatMulNBits", inputs=(3, 8), attrs=f"{_BLOCKED} accuracy_level:i transposed:i", reference="blocked"),
    _op(
        "PagedAttention",
        inputs=(8, 10),
        outputs=(1, 3),
        attrs=("kv_num_heads:i! local_window_size:i num_heads:i! rotary_interleaved:i scale:f softcap:f"),
        reference="paged",
    ),
)
