"""Attention and rotary position embedding."""

from __future__ import annotations

from functools import partial

from lite_runtime.operators.record import Operator

__all__ = ["RECORDS"]

_op = partial(Operator, reference="attention")

RECORDS: tuple[Operator, ...] = (
    _op(
        "Attention",
        since=23,
        inputs=(3, 7),
        outputs=(1, 4),
        attrs=(
            "is_causal:i kv_num_heads:i left_window_size:i q_num_heads:i qk_matmul_output_mode:i "
            "right_window_size:i scale:f softcap:f softmax_precision:i"
        ),
    ),
    _op(
        "FlexAttention",
        since=1,
        inputs=(3, 3),
        attrs="prob_mod:G scale:f score_mod:G softmax_precision:i",
        domain="ai.onnx.preview",
    ),
    _op(
        "LinearAttention",
        since=27,
        inputs=(3, 6),
        outputs=(2, 2),
        attrs="chunk_size:i kv_num_heads:i! q_num_heads:i! scale:f update_rule:s",
    ),
    _op(
        "RotaryEmbedding",
        since=23,
        inputs=(3, 4),
        attrs="interleaved:i num_heads:i rotary_embedding_dim:i",
        settings=(1, 2),
    ),
)
