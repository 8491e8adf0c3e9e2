"""Trees as plain arrays, and the graph that they become: one TreeEnsemble of ai.onnx.ml 5, and a link function.

Conditions hold for float32 features. A link to node i of a tree is i, to leaf i it is ~i.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir
from onnx_ir.tape import Tape

from converter.errors import ConvertError
from lite_runtime.graph import Array
from lite_runtime.ops.trees import MODES

__all__ = ["ROWS", "Forest", "Labels", "Tree", "check_links", "to_ir", "wrap"]

ML = "ai.onnx.ml"
OPSET, ML_VERSION, IR_VERSION = 18, 5, 10
ROWS = "batch"
"""The name of the open number of rows."""
LEQ, LT, MEMBER = (MODES.index(name) for name in ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_MEMBER"))

Labels = Sequence[int] | Sequence[str]


@dataclass(frozen=True)
class Tree:
    """One tree. For node i: row[features[i]] is compared by modes[i] with splits[i], or with the set sets[i] if the
    mode is MEMBER; `yes` or `no` is next. A missing value (NaN) goes to `yes` where missing[i]. A tree without nodes
    has one leaf. `values`: what each leaf adds to the score `target`."""

    features: Array
    modes: Array
    splits: Array
    yes: Array
    no: Array
    missing: Array
    values: Array
    sets: Mapping[int, Array] = field(default_factory=dict)
    target: int = 0


@dataclass(frozen=True)
class Forest:
    """Scores = base + the sum over the trees; the model's result is link(scores). `features`: columns of a row.

    `zeros`: the columns where magnitudes of at most `ZERO` are missing values. `missing`: a number that stands for a
    missing value, besides NaN.
    """

    trees: Sequence[Tree]
    features: int
    targets: int
    base: Array
    link: str = "identity"
    zeros: frozenset[int] = frozenset()
    missing: float | None = None
    names: Sequence[str] = ()
    """The columns' names, if the model has any."""


ZERO = np.float32(1e-35)
"""What LightGBM takes for zero."""


def check_links(yes: Array, no: Array, leaves: int, where: str) -> None:
    """Refuse links out of range and nodes that several nodes lead to. Raises ConvertError."""
    links = np.concatenate([yes, no])
    inner, leaf = links[links >= 0], ~links[links < 0]
    if inner.max(initial=0) >= max(len(yes), 1) or leaf.max(initial=0) >= leaves:
        raise ConvertError(f"{where}: a branch leads out of the tree; the file is damaged")
    if len(yes) and (np.bincount(inner, minlength=len(yes)) > (np.arange(len(yes)) > 0)).any():
        raise ConvertError(f"{where}: expected every node below one other node, the first below none; it is damaged")


def _one_leaf(tree: Tree) -> Tree:
    """A tree of one leaf as a node both of whose branches are that leaf: ONNX has no other form."""
    if len(tree.features):
        return tree
    zero, leaf = np.zeros(1, np.int64), np.full(1, -1)
    return replace(tree, features=zero, modes=zero, splits=zero, yes=leaf, no=leaf, missing=zero)


def _attributes(forest: Forest) -> dict[str, ir.Attr]:
    """TreeEnsemble's attributes. The base is a further tree of one leaf: the operator has no other place for it."""
    none = np.zeros(0, np.int64)
    based = [
        Tree(none, none, none, none, none, none, np.array([value]), target=target)
        for target, value in enumerate(forest.base)
        if value or not any(tree.target == target for tree in forest.trees)
    ]
    trees = [_one_leaf(tree) for tree in (*based, *forest.trees)]
    roots = np.cumsum([0, *(len(tree.features) for tree in trees)])
    leaves = np.cumsum([0, *(len(tree.values) for tree in trees)])

    def links(side: str) -> tuple[Array, Array]:
        parts = [getattr(tree, side).astype(np.int64) for tree in trees]
        moved = [np.where(p < 0, ~p + leaf, p + root) for p, root, leaf in zip(parts, roots, leaves, strict=False)]
        return np.concatenate(moved), np.concatenate(parts) < 0

    def joined(side: str, dtype: type = np.int64) -> Array:
        return np.concatenate([np.asarray(getattr(tree, side)).astype(dtype) for tree in trees])

    yes, yes_leaf = links("yes")
    no, no_leaf = links("no")
    ints: dict[str, Array] = {
        "tree_roots": roots[:-1],
        "nodes_featureids": joined("features"),
        "nodes_truenodeids": yes,
        "nodes_trueleafs": yes_leaf,
        "nodes_falsenodeids": no,
        "nodes_falseleafs": no_leaf,
        "nodes_missing_value_tracks_true": joined("missing", bool),
        "leaf_targetids": np.concatenate([np.full(len(tree.values), tree.target) for tree in trees]),
    }
    with np.errstate(over="ignore"):  # doubles beyond float32 are infinite, as they are for the rows themselves
        tensors: dict[str, Array] = {
            "nodes_modes": joined("modes", np.uint8),
            "nodes_splits": joined("splits", np.float32),
            "leaf_weights": joined("values", np.float32),
        }
    sets = [tree.sets[node] for tree in trees for node in sorted(tree.sets)]
    if sets:
        tensors["membership_values"] = np.concatenate([np.append(s, np.nan) for s in sets]).astype(np.float32)
    found = [ir.AttrInt64s(name, [int(v) for v in values]) for name, values in ints.items()]
    found += [ir.AttrTensor(name, ir.tensor(values)) for name, values in tensors.items()]
    found += [ir.AttrInt64("n_targets", forest.targets), ir.AttrInt64("aggregate_function", 1)]
    return {attribute.name: attribute for attribute in found}


def _cleaned(tape: Tape, x: ir.Value, forest: Forest) -> ir.Value:
    """The rows with NaN for all that is missing."""

    def blank(where: ir.Value, x: ir.Value) -> ir.Value:
        return tape.op("Where", [where, _constant(tape, np.float32(np.nan)), x])

    if forest.missing is not None:
        x = blank(tape.op("Equal", [x, _constant(tape, np.float32(forest.missing))]), x)
    if forest.zeros:
        limits = np.full(forest.features, -1, np.float32)
        limits[list(forest.zeros)] = ZERO
        x = blank(tape.op("LessOrEqual", [tape.op("Abs", [x]), _constant(tape, limits)]), x)
    return x


def _constant(tape: Tape, values: Array | np.generic, dtype: type | None = None) -> ir.Value:
    array = np.asarray(values, dtype)
    name = f"constant_{len(tape.initializers)}"
    return tape.initializer(ir.tensor(array, name=name), name)


Link = Callable[[Tape, ir.Value], ir.Value]


def _unary(*ops: str) -> Link:
    def link(tape: Tape, scores: ir.Value) -> ir.Value:
        for op in ops:
            scores = tape.op(op, [scores])
        return scores

    return link


def _cast(tape: Tape, value: ir.Value) -> ir.Value:
    return tape.op("Cast", [value], {"to": ir.DataType.FLOAT.value})


def _signed_square(tape: Tape, scores: ir.Value) -> ir.Value:
    return tape.op("Mul", [scores, tape.op("Abs", [scores])])


def _step(tape: Tape, scores: ir.Value) -> ir.Value:
    return _cast(tape, tape.op("Greater", [scores, _constant(tape, np.float32(0))]))


def _best(tape: Tape, scores: ir.Value) -> ir.Value:
    return _cast(tape, tape.op("ArgMax", [scores], {"axis": 1, "keepdims": 1}))


LINKS: dict[str, Link] = {
    "identity": _unary(),
    "sigmoid": _unary("Sigmoid"),
    "softmax": lambda tape, scores: tape.op("Softmax", [scores], {"axis": 1}),
    "exp": _unary("Exp"),
    "log1p_exp": _unary("Softplus"),
    "signed_square": _signed_square,
    "step": _step,  # 1 where the score is positive
    "argmax": _best,
}
"""The links by name; scores (rows, targets) float32."""


def to_ir(forest: Forest, labels: Labels | None = None) -> ir.Model:
    """One input `x` (rows, features). Without `labels` one output `prediction`: (rows,) for a single score, else (rows,
    scores); with them, `label` (rows,) and `probabilities` (rows, labels)."""
    attributes = _attributes(forest)

    def scores(tape: Tape, x: ir.Value) -> ir.Value:
        rows = _cleaned(tape, x, forest)
        found = tape.op("TreeEnsemble", [rows], attributes, domain=ML)
        return LINKS[forest.link](tape, found)

    return wrap(scores, forest.features, 1 if forest.link == "argmax" else forest.targets, labels)


def wrap(compute: Link, features: int, width: int, labels: Labels | None) -> ir.Model:
    """A model around `compute`, which gives (rows, width) for rows of `features` columns; outputs as in `to_ir`."""
    tape = Tape()
    x = ir.val("x", ir.DataType.FLOAT, [ROWS, features])
    found = compute(tape, x)
    if labels is None:
        outputs = [_named(_column(tape, found) if width == 1 else found, "prediction")]
        outputs[0].shape = ir.Shape([ROWS] if width == 1 else [ROWS, width])
    else:
        outputs = _classes(tape, found, width, labels)
    graph = ir.Graph(
        [x], outputs, nodes=tape.nodes, initializers=tape.initializers, name="trees",
        opset_imports={"": OPSET, ML: ML_VERSION},
    )  # fmt: skip
    return ir.Model(graph, ir_version=IR_VERSION)


def _column(tape: Tape, value: ir.Value) -> ir.Value:
    return tape.op("Squeeze", [value, _constant(tape, np.array([1]), np.int64)])


def _classes(tape: Tape, found: ir.Value, width: int, labels: Labels) -> list[ir.Value]:
    """The label and the probabilities of the classes; a single probability is that of the second."""
    if width == 1:
        other = tape.op("Sub", [_constant(tape, np.float32(1)), found])
        found = tape.op("Concat", [other, found], {"axis": 1})
    if len(labels) != max(width, 2):
        raise ConvertError(f"expected {max(width, 2)} classes, got {len(labels)}")
    best = tape.op("ArgMax", [found], {"axis": 1, "keepdims": 0})
    text = isinstance(labels[0], str)
    names = tape.initializer(
        ir.StringTensor([str(label).encode() for label in labels], shape=ir.Shape([len(labels)]), name="classes")
        if text else ir.tensor(np.asarray(labels, np.int64), name="classes"), "classes",
    )  # fmt: skip
    label = _named(tape.op("Gather", [names, best]), "label", ir.DataType.STRING if text else ir.DataType.INT64)
    label.shape = ir.Shape([ROWS])
    chances = _named(found, "probabilities")
    chances.shape = ir.Shape([ROWS, len(labels)])
    return [label, chances]


def _named(value: ir.Value, name: str, dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
    value.name, value.type = name, ir.TensorType(dtype)
    return value
