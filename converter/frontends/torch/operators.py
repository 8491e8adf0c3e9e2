"""PyTorch's functions that become one ONNX operator each: dropout, batch normalisation in training, recurrent layers.

PyTorch's exporter drops the first two or takes them apart, and unrolls the third over a fixed length. They are replaced
by operators of our own, which it keeps, and for which it is given a translation.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from converter.errors import ConvertError
from converter.ir import statistics
from lite_runtime.errors import MissingExtraError

__all__ = ["Operators", "operators", "torch_library"]


def torch_library() -> Any:
    """The module torch. Raises MissingExtraError."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "torch", "it exports PyTorch modules") from None
    return torch


@dataclass(frozen=True)
class Operators:
    """`own`: the operators by name. `table`: their translations, for the exporter. `recurrent()`: a context in which
    recurrent layers call them."""

    own: Any
    table: Mapping[Any, Callable[..., Any]]
    recurrent: Callable[[], Any]


@cache
def operators() -> Operators:
    """The operators, registered with PyTorch once."""
    torch = torch_library()
    define, like = torch.library.custom_op, torch.empty_like
    rows: Mapping[str, tuple[str, Callable[..., Any], Callable[..., Any]]] = {
        "dropout": ("(Tensor x, float p) -> Tensor", lambda x, p: like(x), _dropout),
        "feature_dropout": ("(Tensor x, float p) -> Tensor", lambda x, p: like(x), _feature_dropout),
        "batch_norm": (
            "(Tensor x, Tensor? weight, Tensor? bias, Tensor mean, Tensor variance, float momentum, float eps, "
            "bool live) -> Tensor",
            lambda x, *_: like(x),
            _batch_norm,
        ),
        "lstm": (
            "(Tensor x, Tensor h, Tensor c, Tensor[] weights, bool biased, bool both) -> (Tensor, Tensor, Tensor)",
            lambda x, h, c, *_: (_results(x, h), like(h), like(c)),
            _lstm,
        ),
        "rnn": (
            "(Tensor x, Tensor h, Tensor[] weights, bool biased, bool both, str kind) -> (Tensor, Tensor)",
            lambda x, h, *_: (_results(x, h), like(h)),
            _rnn,
        ),
    }
    table = {}
    for name, (schema, shape, translation) in rows.items():
        # `shape` also stands for the operator itself: programs with it are exported, never run.
        define(f"msedge::{name}", shape, mutates_args=(), schema=schema).register_fake(shape)
        table[getattr(torch.ops.msedge, name).default] = translation
    return Operators(torch.ops.msedge, table, _recurrent_mode(torch))


def _results(x: Any, h: Any) -> Any:
    """Every step's hidden states [steps, directions, rows, hidden]."""
    return x.new_empty((x.shape[0], h.shape[0], x.shape[1], h.shape[2]))


def _recurrent_mode(torch: Any) -> Any:
    """A mode of PyTorch in which its recurrent functions are composed of our operators, layer by layer."""
    kinds = {getattr(torch._VF, name): name for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")}

    class Recurrent(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, function: Any, types: Any, arguments: Any = (), named: Mapping[str, Any] | None = None
        ) -> Any:
            kind = kinds.get(function)
            return function(*arguments, **(named or {})) if kind is None else _layers(torch, kind, *arguments)

    return Recurrent


def _layers(torch: Any, kind: str, x: Any, states: Any, *rest: Any) -> Any:
    """torch.lstm, torch.gru, torch.rnn_tanh and torch.rnn_relu of a padded batch, with their arguments."""
    if torch.is_tensor(rest[0]) or isinstance(rest[0], tuple):
        raise ConvertError("packed sequences cannot be exported: give the layer padded ones")
    params, biased, count, dropout, train, both, batch_first = rest
    starts = states if kind == "lstm" else (states,)
    ways, width = 1 + both, 4 if biased else 2
    if len(params) != count * ways * width:
        raise ConvertError("an LSTM with proj_size has no ONNX operator: expected proj_size=0")
    torch._check(x.shape[2] == params[0].shape[1])
    x = x.transpose(0, 1) if batch_first else x
    ends: list[Any] = []
    for layer in range(count):
        here = [start[layer * ways : (layer + 1) * ways] for start in starts]
        weights = list(params[layer * ways * width : (layer + 1) * ways * width])
        if kind == "lstm":
            y, *end = torch.ops.msedge.lstm(x, *here, weights, biased, both)
        else:
            y, *end = torch.ops.msedge.rnn(x, *here, weights, biased, both, kind)
        x = y.transpose(1, 2).flatten(2)
        ends.append(end)
        if dropout and train and layer < count - 1:
            x = torch.ops.msedge.dropout(x, dropout)
    last = [torch.cat(parts, 0) for parts in zip(*ends, strict=True)]
    return (x.transpose(0, 1) if batch_first else x, *last)


def _op() -> Any:
    """ONNX's operators, as translations call them."""
    return importlib.import_module("onnxscript").opset18


def _dropout(x: Any, p: float) -> Any:
    op = _op()
    y, _ = op.Dropout(x, op.Constant(value_float=p))
    return y


def _feature_dropout(x: Any, p: float) -> Any:
    """Whole channels: one draw for [rows, channels, 1, …]."""
    op, rank = _op(), len(x.shape)
    shape = op.Concat(op.Shape(x, start=0, end=2), op.Constant(value_ints=[1] * (rank - 2)), axis=0)
    ones = op.Expand(op.CastLike(op.Constant(value_float=1.0), x), shape)
    return op.Mul(x, _dropout(ones, p))


def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, variance: Any, momentum: float, eps: float, live: bool
) -> Any:
    op, shape = _op(), [int(n) for n in mean.shape]

    def given(value: Any, default: float) -> Any:
        if value is not None:
            return value
        return op.Expand(op.CastLike(op.Constant(value_float=default), x), op.Constant(value_ints=shape))

    scale, offset = given(weight, 1.0), given(bias, 0.0)
    y = op.BatchNormalization(x, scale, offset, mean, variance, epsilon=eps, momentum=1 - momentum)
    y.producer().metadata_props[statistics.KEY] = statistics.UNBIASED if live else statistics.STILL
    return y


_GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn_tanh": (0,), "rnn_relu": (0,)}
"""ONNX's order of gates, as places in PyTorch's: i f g o -> i o f c, r z n -> z r h."""


def _lstm(x: Any, h: Any, c: Any, weights: Sequence[Any], biased: bool, both: bool) -> Any:
    op = _op()
    w, r, b = _weights(op, weights, biased, "lstm")
    hidden, way = int(h.shape[2]), "bidirectional" if both else "forward"
    return op.LSTM(x, w, r, b, None, h, c, hidden_size=hidden, direction=way)


def _rnn(x: Any, h: Any, weights: Sequence[Any], biased: bool, both: bool, kind: str) -> Any:
    op = _op()
    w, r, b = _weights(op, weights, biased, kind)
    common = {"hidden_size": int(h.shape[2]), "direction": "bidirectional" if both else "forward"}
    if kind == "gru":
        return op.GRU(x, w, r, b, None, h, linear_before_reset=1, **common)
    return op.RNN(x, w, r, b, None, h, activations=["Relu" if kind == "rnn_relu" else "Tanh"] * (1 + both), **common)


def _weights(op: Any, weights: Sequence[Any], biased: bool, kind: str) -> tuple[Any, Any, Any]:
    """ONNX's W, R and B (None without biases) of PyTorch's matrices and vectors of one layer."""
    width = 4 if biased else 2
    ways = [weights[at : at + width] for at in range(0, len(weights), width)]

    def joined(parts: list[Any], axis: int) -> Any:
        return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=axis)

    def ordered(value: Any) -> Any:
        gates = _GATES[kind]
        if len(gates) == 1:
            return value
        size = int(value.shape[0]) // len(gates)
        parts = [op.Slice(value, _ints(op, g * size), _ints(op, (g + 1) * size), _ints(op, 0)) for g in gates]
        return joined(parts, 0)

    def stacked(values: list[Any]) -> Any:
        return joined([op.Unsqueeze(value, _ints(op, 0)) for value in values], 0)

    w, r = (stacked([ordered(way[k]) for way in ways]) for k in (0, 1))
    b = stacked([joined([ordered(way[2]), ordered(way[3])], 0) for way in ways]) if biased else None
    return w, r, b


def _ints(op: Any, value: int) -> Any:
    return op.Constant(value_ints=[value])
