"""Products of matrices and tensors."""

from __future__ import annotations

import onnx_ir as ir

from converter.ir import build
from converter.ir.grad.rules import At, Gradients, refuse, rule
from converter.ir.grad.tape import Term

__all__: list[str] = []


@rule("Gemm")
def _gemm(n: At) -> Gradients:
    """Y = alpha * A' B' + beta * C, where ' transposes as transA and transB say."""
    a, b, alpha = n.input(0), n.input(1), n.attr("alpha", 1.0)
    ta, tb = n.attr("transA", 0), n.attr("transB", 0)

    def product(left: Term, right: Term, trans_left: int, trans_right: int) -> Term:
        return left.op("Gemm", right, alpha=alpha, transA=trans_left, transB=trans_right)

    da = product(b, n.g, tb, 1) if ta else product(n.g, b, 0, 1 - tb)
    db = product(n.g, a, 1, ta) if tb else product(a, n.g, 1 - ta, 0)
    if not n.has(2):
        return [da, db]
    beta = n.attr("beta", 1.0)
    return [da, db, (n.g if beta == 1 else n.g * beta).reduce_to(n.input(2))]


@rule("MatMul")
def _matmul(n: At) -> Gradients:
    """dA = g B^T and dB = A^T g, summed over axes along which a stack was broadcast; vectors as matrices of one row
    or column."""
    a, b, g = n.input(0), n.input(1), n.g
    if a.rank == 1:
        g = g.unsqueeze(g.rank - (b.rank > 1))
    if b.rank == 1:
        g = g.unsqueeze(g.rank)
    left = a.unsqueeze(0) if a.rank == 1 else a
    right = b.unsqueeze(1) if b.rank == 1 else b
    if left.rank > 2 and right.rank == 2:
        return [g.matmul(right.swap()).reshape_like(a), _flat_product(left, g).reshape_like(b)]
    da, db = g.matmul(right.swap()).reduce_to(left), left.swap().matmul(g).reduce_to(right)
    return [da.reshape_like(a), db.reshape_like(b)]


def _flat_product(left: Term, g: Term) -> Term:
    """The sum of left^T g over all rows of two stacks, as one product."""
    rows, after = ([-1, *_last(x)] for x in (left, g))
    return left.reshape(rows).op("Gemm", g.reshape(after), transA=1)


def _last(x: Term) -> list[int]:
    return [x.size(-1)]


def _sides(node: ir.Node) -> tuple[list[str], str] | None:
    """The letters of an equation's operands and result; None for one that no rule differentiates."""
    text = str(build.attr(node, "equation", "")).replace(" ", "")
    left, arrow, result = text.partition("->")
    operands = left.split(",")
    if not arrow:
        letters = "".join(operands)
        result = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    if "." in text or any(len(set(o)) < len(o) for o in (*operands, result)):
        return None
    return operands, result


@refuse("Einsum")
def _einsum_refusal(node: ir.Node) -> str:
    return "" if _sides(node) else "an equation with '...' or a letter twice in one operand"


@rule("Einsum")
def _einsum(n: At) -> Gradients:
    """For each operand, the product of the result's gradient with all other operands, summed to the operand's letters;
    along letters that appear nowhere else it is constant."""
    sides = _sides(n.node)
    assert sides is not None, "refused"
    (operands, result), found = sides, list[Term | None]()
    for i, letters in enumerate(operands):
        others = [(o, n.input(j)) for j, o in enumerate(operands) if j != i]
        there = set(result).union(*(o for o, _ in others))
        kept = "".join(c for c in letters if c in there)
        equation = ",".join([result, *(o for o, _ in others)]) + "->" + kept
        part = n.g.op("Einsum", *(term for _, term in others), equation=equation)
        lone = [k for k, c in enumerate(letters) if c not in there]
        found.append(part.unsqueeze(*lone).expand_like(n.input(i)) if lone else part)
    return found


@rule("MatMulNBits")
def _matmul_n_bits(n: At) -> Gradients:
    """dA = g W, or g W^T of the transposed product; weights are constants, and what activations lose when they are
    rounded is taken for constant too."""
    given = ("K", "N", "bits", "block_size", "zero_point", "accuracy_level")
    attrs = {name: n.attr(name, None) for name in given if n.attr(name, None) is not None}
    transposed, bias = 1 - n.attr("transposed", 0), n.has(6) and n.wants(6)
    tables = [n.input(i) if n.has(i) else None for i in (1, 2, 3)]
    shape = (*n.g.shape[:-1], attrs["K" if transposed else "N"])
    da = n.g.op("MatMulNBits", *tables, domain=build.DOMAIN, transposed=transposed, shape=shape, **attrs)
    found: list[Term | None] = [da, *[None] * 5, n.g.reduce_to(n.input(6)) if bias else None, n.g]
    return found[: len(n.inputs)]
