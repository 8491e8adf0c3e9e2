"""Losses over classes."""

from __future__ import annotations

from converter.ir.grad.rules import At, Gradients, rule
from converter.ir.grad.tape import Operand, Term

__all__: list[str] = []


@rule("SoftmaxCrossEntropyLoss")
def _softmax_cross_entropy(n: At) -> Gradients:
    """share * (softmax(scores) - one_hot(labels)), and what the second result, log_softmax(scores), adds."""
    scores = n.input(0)
    found: Operand = None
    if n.grads[0] is not None:
        found = _share(n) * (scores.op("Softmax", axis=1) - _one_hot(n, scores))
    second = n.grads[1] if len(n.grads) > 1 else None
    if second is not None:
        more = second - n.outputs[1].op("Exp") * second.sum([1], keepdims=True)
        found = more if found is None else found + more
    return [found, None, None]


@rule("NegativeLogLikelihoodLoss")
def _negative_log_likelihood(n: At) -> Gradients:
    return [-(_share(n) * _one_hot(n, n.input(0))), None, None]


def _one_hot(n: At, like: Term) -> Term:
    """1 along axis 1 where the label is, else 0."""
    values = n.tape.const([0, 1], like.dtype.numpy())
    return n.input(1).op("OneHot", n.tape.ints(like.size(1)), values, axis=1, shape=like.shape)


def _share(n: At) -> Term:
    """[N, 1, ...]: the weight of each label's loss in the result, times the result's gradient."""
    labels, dtype, ignored = n.input(1), n.input(0).dtype, n.attr("ignore_index", None)
    weights: Operand = None
    if n.has(2):
        weights = n.input(2).op("Gather", _within(n, labels, ignored), axis=0)
    if ignored is not None:
        counts = n.tape.where(_is(labels, ignored), n.tape.const(0, dtype.numpy()), n.tape.const(1, dtype.numpy()))
        weights = counts if weights is None else weights * counts
    reduction = n.attr("reduction", "mean")
    if reduction == "none":
        return (n.g if weights is None else n.g * weights).unsqueeze(1)
    g = n.g
    if reduction == "mean":
        everywhere = list(range(labels.rank))
        g = g / (labels.count(everywhere, dtype) if weights is None else weights.sum(everywhere))
    if weights is None:
        return g
    return (g * weights).unsqueeze(1)


def _is(labels: Term, number: int) -> Term:
    return labels.equals(number)


def _within(n: At, labels: Term, ignored: int | None) -> Term:
    """Labels that are valid indices of weights; ignored labels may not be valid."""
    return labels if ignored is None else n.tape.where(_is(labels, ignored), 0, labels)
