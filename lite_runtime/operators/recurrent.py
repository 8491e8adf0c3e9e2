"""Recurrent networks."""

from __future__ import annotations

from functools import partial

from lite_runtime.operators.record import Operator

__all__ = ["RECORDS"]

_op = partial(Operator, reference="recurrent")

RECORDS: tuple[Operator, ...] = (
    _op(
        "GRU",
        since=1,
        inputs=(3, 7),
        outputs=(0, 2),
        attrs=(
            "activation_alpha:F activation_beta:F activations:S block_size:i clip:f "
            "direction:s(forward|reverse|bidirectional) hidden_size:i layout:i linear_before_reset:i"
        ),
        traits=("recurrent", "wide"),
    ),
    _op(
        "LSTM",
        since=1,
        inputs=(3, 9),
        outputs=(0, 3),
        attrs=(
            "activation_alpha:F activation_beta:F activations:S block_size:i clip:f "
            "direction:s(forward|reverse|bidirectional) hidden_size:i input_forget:i layout:i "
            "rounding:s(|SYMMETRIC|ASYMMETRIC)"
        ),
        traits=("recurrent", "wide"),
    ),
    _op(
        "RNN",
        since=1,
        inputs=(3, 6),
        outputs=(0, 2),
        attrs=(
            "activation_alpha:F activation_beta:F activations:S clip:f direction:s(forward|reverse|bidirectional) "
            "hidden_size:i layout:i"
        ),
        traits=("recurrent", "wide"),
    ),
)
