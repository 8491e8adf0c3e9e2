"""Normalisations. BatchNormalization in training form and LayerNormalization have their own gradient operators, which
use the statistics of the forward pass; the others are differentiated as compositions of other operators.

For second-order gradients those two operators are differentiated through their definitions, including the statistics,
and the statistics through the values they are computed from."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from converter.ir import build
from converter.ir.grad.rules import At, Gradients, composed, rule
from converter.ir.grad.tape import Operand, Term

__all__: list[str] = []

_FLOAT = ir.DataType.FLOAT


def _per_channel(v: Term, rank: int) -> Term:
    """[C] against [N, C, ...]."""
    return v.reshape([-1, *[1] * (rank - 2)]) if rank > 2 else v


def _standard(x: Term, axes: Sequence[int], epsilon: float) -> Term:
    """Mean 0 and variance 1 over the axes."""
    centred = x - x.mean(axes)
    return centred / ((centred * centred).mean(axes) + epsilon).op("Sqrt")


@rule("BatchNormalization")
def _batch_normalization(n: At) -> Gradients:
    if n.attr("training_mode", 0):
        return _trained(n)
    return _frozen(n)


def _trained(n: At) -> Gradients:
    """The statistics are the batch's and depend on x. The forward operator becomes ours, which outputs them."""
    n.node.domain = build.DOMAIN
    channels = n.input(1).shape
    for i, kind in ((1, n.input(3)), (2, n.input(4))):
        n.output(i, kind.dtype, channels)
    mean, rstd = n.output(3, _FLOAT, channels), n.output(4, _FLOAT, channels)
    operands = [n.g, n.x, n.input(1), mean, rstd]
    dx, *rest = n.tape.ops("BatchNormalizationGrad", operands, 3, domain=build.DOMAIN)
    wide = [None if g is None else _per_channel(g, n.x.rank) for g in [*n.grads, None, None, None, None][3:5]]
    moved = _through_statistics(n.x, _per_channel(mean, n.x.rank), _per_channel(rstd, n.x.rank), wide, _batch(n.x))
    return [dx if moved is None else dx + moved, *rest]


def _batch(x: Term) -> list[int]:
    """The axes a batch's statistics are taken over."""
    return [0, *range(2, x.rank)]


def _through_statistics(
    x: Term, mean: Term, rstd: Term, grads: Sequence[Operand], axes: Sequence[int]
) -> Term | None:
    """The part of x's gradient that comes through mean and 1 / standard deviation over the axes; None without them."""
    by_mean, by_rstd = grads
    total = by_mean
    if by_rstd is not None:
        moved = (mean - x) * (rstd * rstd * rstd * by_rstd)
        total = moved if total is None else moved + total
    return None if total is None else total / x.count(axes)


@composed("BatchNormalizationGrad")
def _batch_normalization_grad(n: At) -> Sequence[Operand]:
    dy, x, scale, mean, rstd = (n.input(i) for i in range(5))
    axes, rank = _batch(x), x.rank
    wide = _per_channel(rstd, rank)
    normal = (x - _per_channel(mean, rank)) * wide
    return [_normalized_grad(dy, normal, wide, _per_channel(scale, rank), axes), (dy * normal).sum(axes), dy.sum(axes)]


def _normalized_grad(dy: Term, normal: Term, rstd: Term, scale: Term, axes: Sequence[int]) -> Term:
    """dX of normal * scale, where normal = (X - mean) * rstd with the statistics over the axes."""
    arriving = dy * scale
    return (arriving - arriving.mean(axes) - normal * (arriving * normal).mean(axes)) * rstd


def _frozen(n: At) -> Gradients:
    """(x - mean) * scale / sqrt(var + epsilon) + b, with given statistics."""
    x, scale, _, mean, var = (n.input(i) for i in range(5))
    over = _batch(x)
    rstd = 1 / (var + n.attr("epsilon", 1e-5)).op("Sqrt")
    factor, total = scale * rstd, n.g.sum(over)
    along = (n.g * (x - _per_channel(mean, x.rank))).sum(over) if n.wants(1) or n.wants(4) else total
    return [
        n.g * _per_channel(factor, x.rank),
        along * rstd,
        total,
        -(total * factor),
        along * factor * rstd * rstd * -0.5,
    ]


@rule("LayerNormalization")
def _layer_normalization(n: At) -> Gradients:
    x, scale, axis = n.input(0), n.input(1), n.axis(-1)
    rest = [*x.shape[:axis], *[1] * (x.rank - axis)]
    mean, inverse = n.output(1, _FLOAT, rest), n.output(2, _FLOAT, rest)
    whole = scale.shape == x.shape[axis:]
    wide = scale if whole else scale.op("Expand", _sizes(x, axis), shape=x.shape[axis:])
    operands = [n.g, x, wide, mean, inverse]
    dx, dscale, db = n.tape.ops("LayerNormalizationGrad", operands, 3, domain=build.DOMAIN, axis=axis)
    moved = _through_statistics(x, mean, inverse, [*n.grads, None, None][1:3], range(axis, x.rank))
    dx = dx if moved is None else dx + moved
    return [dx, dscale.reduce_to(scale), db.reduce_to(n.input(2)) if n.has(2) else None]


def _sizes(x: Term, axis: int) -> Term:
    known = build.static_dims(x.value)
    return x.op("Shape", start=axis) if known is None else x.tape.ints(known[axis:])


@composed("LayerNormalizationGrad")
def _layer_normalization_grad(n: At) -> Sequence[Operand]:
    dy, x, scale, mean, inverse = (n.input(i) for i in range(5))
    axis = int(n.attr("axis", -1)) % x.rank
    normal, before = (x - mean) * inverse, range(axis)
    dx = _normalized_grad(dy, normal, inverse, scale, range(axis, x.rank))
    return [dx, (dy * normal).sum(before), dy.sum(before)]


@composed("InstanceNormalization")
def _instance_normalization(n: At) -> Sequence[Operand]:
    x, scale, b = (n.input(i) for i in range(3))
    normal = _standard(x, range(2, x.rank), n.attr("epsilon", 1e-5))
    return [normal * _per_channel(scale, x.rank) + _per_channel(b, x.rank)]


@composed("GroupNormalization")
def _group_normalization(n: At) -> Sequence[Operand]:
    x, scale, b = (n.input(i) for i in range(3))
    groups = x.op("Reshape", n.tape.ints([0, n.attr("num_groups", 1), -1]))
    normal = _standard(groups, [2], n.attr("epsilon", 1e-5)).reshape_like(x)
    return [normal * _per_channel(scale, x.rank) + _per_channel(b, x.rank)]


@composed("RMSNormalization")
def _rms_normalization(n: At) -> Sequence[Operand]:
    x, scale = n.input(0), n.input(1)
    axes = range(n.axis(-1), x.rank)
    normal = x / ((x * x).mean(axes) + n.attr("epsilon", 1e-5)).op("Sqrt")
    return [normal.cast(scale.dtype) * scale]


@composed("MeanVarianceNormalization")
def _mean_variance_normalization(n: At) -> Sequence[Operand]:
    axes = [a % n.x.rank for a in n.attr("axes", (0, 2, 3))]
    centred = n.x - n.x.mean(axes)
    return [centred / ((centred * centred).mean(axes).op("Sqrt") + 1e-9)]


@composed("LpNormalization")
def _lp_normalization(n: At) -> Sequence[Operand]:
    axis = n.axis(-1)
    if n.attr("p", 2) == 1:
        return [n.x / n.x.op("Abs").sum([axis], keepdims=True)]
    return [n.x / (n.x * n.x).sum([axis], keepdims=True).op("Sqrt")]


@composed("LRN")
def _lrn(n: At) -> Sequence[Operand]:
    """Sums over neighbouring channels as an average pool over them."""
    size, x = n.attr("size", 1), n.x
    channels = x.size(1)
    flat = (x * x).op("Reshape", n.tape.ints([0, 1, channels, -1]))
    pads = [(size - 1) // 2, 0, size - 1 - (size - 1) // 2, 0]
    mean = flat.op("AveragePool", kernel_shape=[size, 1], pads=pads, count_include_pad=1).reshape_like(x)
    spread = mean * n.attr("alpha", 1e-4) + n.attr("bias", 1.0)
    return [x / spread.op("Pow", spread.number(n.attr("beta", 0.75)))]
