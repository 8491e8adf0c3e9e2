"""ai.onnx.ml: decision forests, native on float32 rows; and the result types of simple feature operators.

A forest is checked completely before use: every link, feature and target must be within bounds, without cycles.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lite_runtime import steps
from lite_runtime.errors import ShapeError
from lite_runtime.graph import Array, Node
from lite_runtime.ops._axes import attr_int, expect
from lite_runtime.ops.reduce import operands
from lite_runtime.ops.registry import Binder, Inference, NoKernel, Operand, Spec, bind, infer

__all__ = ["Forest", "forest_of"]

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_LEAF = "LEAF"
_DEEPEST = 1 << 14
_MOST_FEATURES = 1 << 24
_NUMBERS = {"float32", "float64", "int64", "int32"}


@dataclass(frozen=True)
class Forest:
    """Checked trees in the order in which kernels/trees.py reads them.

    `nodes` (n, 4) int32, `roots`, `leaves` (votes of leaf i: [leaves[i], leaves[i + 1])), `targets`, `weights`, `sets`
    and `members` as defined there. `exact`: whether float32 thresholds separate float32 values as the given ones do.
    """

    nodes: Array
    roots: Array
    leaves: Array
    targets: Array
    weights: Array
    sets: Array
    members: Array
    features: int
    """Least number of features in a row."""
    exact: bool
    leq_only: bool


class _Bad(Exception):
    """An invalid forest; the text says why."""


def _need(condition: bool, what: str) -> None:
    if not condition:
        raise _Bad(what)


def _ints(attrs: Mapping[str, Any], name: str, length: int | None = None, default: int | None = None) -> Array:
    """Attribute `name` as int64."""
    value = attrs.get(name)
    if default is not None and (value is None or len(value) == 0):
        return np.full(length or 0, default, np.int64)
    _need(value is not None, f"expected attribute {name}")
    try:
        array = np.asarray(value, np.int64).ravel()
    except (OverflowError, ValueError, TypeError):
        raise _Bad(f"expected {name} of integers") from None
    _need(length is None or array.size == length, f"expected {name} of {length} integers, got {array.size}")
    return array


def _reals(attrs: Mapping[str, Any], name: str, length: int | None = None) -> Array:
    """Attribute `name`, or `name`_as_tensor; in the latter's own precision."""
    tensor = attrs.get(f"{name}_as_tensor")
    try:
        array = np.asarray(attrs.get(name, ()), np.float32).ravel() if tensor is None else np.ravel(np.asarray(tensor))
        array = array if array.dtype == np.float64 else array.astype(np.float32)
    except (OverflowError, ValueError, TypeError):
        raise _Bad(f"expected {name} of numbers") from None
    _need(length is None or array.size == length, f"expected {name} of {length} numbers, got {array.size}")
    return array


def _table(attrs: Mapping[str, Any], name: str) -> Array:
    """A tensor attribute's numbers; half precision is widened."""
    value = attrs.get(name)
    _need(isinstance(value, np.ndarray) and value.dtype.kind in "iuf", f"expected {name} to be a tensor of numbers")
    array = np.ravel(np.asarray(value))
    return array.astype(np.float32) if array.dtype == np.float16 else array


def _within(array: Array, bound: int, what: str) -> None:
    if array.size and not (array.min() >= 0 and array.max() < bound):
        raise _Bad(f"expected {what} within [0, {bound}), got {int(array.min())} to {int(array.max())}")


def _check_walks(yes: Array, no: Array, roots: Array) -> None:
    """No path from a root may visit a node twice: the number of levels must be finite."""
    level = np.unique(roots[roots >= 0])
    for _ in range(min(len(yes), _DEEPEST) + 1):
        if not level.size:
            return
        following = np.concatenate([yes[level], no[level]])
        level = np.unique(following[following >= 0])
    raise _Bad(f"expected trees without cycles and at most {_DEEPEST} deep")


def _assemble(
    modes: Array,
    features: Array,
    splits: Array,
    missing: Array,
    yes: Array,
    no: Array,
    roots: Array,
    leaves: Array,
    targets: Array,
    weights: Array,
    sets: Sequence[Array] = (),
) -> Forest:
    """Check and pack. `yes`, `no` and `roots` name inner nodes by index, or a leaf by ~index."""
    count, leaf_count = len(modes), len(leaves) - 1
    for links, what in ((yes, "true branches"), (no, "false branches"), (roots, "roots")):
        _within(np.where(links >= 0, links, 0), max(count, 1), what)
        _within(np.where(links < 0, ~links, 0), max(leaf_count, 1), what)
    _need(count > 0 or not np.any(roots >= 0), "expected nodes")
    _within(features, _MOST_FEATURES, "feature ids")
    _check_walks(yes, no, roots)
    nodes = np.zeros((count, 4), np.int32)
    nodes[:, 0] = features | modes << 24 | (missing != 0).astype(np.int64) << 28
    nodes[:, 1] = splits.astype(np.float32).view(np.int32)
    members = np.flatnonzero(modes == len(MODES) - 1)
    _need(len(sets) >= len(members), f"expected {len(members)} membership sets, got {len(sets)}")
    nodes[members, 1] = np.arange(len(members))
    nodes[:, 2], nodes[:, 3] = yes, no
    plain = modes != len(MODES) - 1
    with np.errstate(over="ignore"):
        exact = bool(np.array_equal(splits[plain].astype(np.float32), splits[plain], equal_nan=True))
        exact &= all(np.array_equal(s.astype(np.float32), s) for s in sets)
    sizes = np.cumsum([0, *(s.size for s in sets)])
    return Forest(
        nodes,
        roots.astype(np.int32),
        leaves.astype(np.int32),
        targets.astype(np.int32),
        weights.astype(np.float64),
        sizes.astype(np.int32),
        np.concatenate([np.zeros(0, np.float32), *sets]).astype(np.float32),
        int(features.max(initial=-1)) + 1,
        exact,
        bool((modes == 0).all() and not (missing != 0).any()),
    )


def _classic(attrs: Mapping[str, Any], kind: str, targets: int) -> Forest:
    """From the attributes of TreeEnsembleClassifier and TreeEnsembleRegressor; `kind`: prefix of the votes'."""
    trees, ids = _ints(attrs, "nodes_treeids"), _ints(attrs, "nodes_nodeids")
    count = trees.size
    _need(
        ids.size == count > 0,
        f"expected as many nodes_nodeids as nodes_treeids and one at least, got {ids.size}, {count}",
    )
    names = [m.decode("utf-8", "replace") if isinstance(m, bytes) else str(m) for m in attrs.get("nodes_modes", ())]
    _need(len(names) == count, f"expected nodes_modes of {count} names, got {len(names)}")
    known = {name: i for i, name in enumerate(MODES[:-1])} | {_LEAF: -1}
    unknown = sorted(set(names) - set(known))
    _need(not unknown, f"expected nodes_modes of {', '.join(known)}, got {', '.join(unknown)}")
    modes = np.array([known[name] for name in names], np.int64)
    inner = modes >= 0
    place = np.where(inner, np.cumsum(inner) - 1, ~(np.cumsum(~inner) - 1))
    number = {key: i for i, key in enumerate(zip(trees.tolist(), ids.tolist(), strict=True))}
    _need(len(number) == count, "expected every node id once per tree")

    def lookup(of_trees: Array, of_ids: Array, what: str) -> Array:
        _need(of_trees.size == of_ids.size, f"expected {what} of {of_trees.size} integers, got {of_ids.size}")
        try:
            found = [number[key] for key in zip(of_trees.tolist(), of_ids.tolist(), strict=True)]
        except KeyError as error:
            raise _Bad(
                f"expected {what} to name a node, got node {error.args[0][1]} of tree {error.args[0][0]}"
            ) from None
        return np.array(found, np.int64)

    yes = lookup(trees[inner], _ints(attrs, "nodes_truenodeids", count)[inner], "nodes_truenodeids")
    no = lookup(trees[inner], _ints(attrs, "nodes_falsenodeids", count)[inner], "nodes_falsenodeids")
    is_root = np.ones(count, bool)
    is_root[yes] = is_root[no] = False
    roots = np.flatnonzero(is_root)
    _need(
        len(roots) == len(np.unique(trees)) == len(np.unique(trees[roots])),
        f"expected one root per tree, got {len(roots)} roots of {len(np.unique(trees))} trees",
    )
    voter = lookup(_ints(attrs, f"{kind}_treeids"), _ints(attrs, f"{kind}_nodeids"), f"{kind}_nodeids")
    of = _ints(attrs, f"{kind}_ids", voter.size)
    _within(of, targets, f"{kind}_ids")
    weights = _reals(attrs, f"{kind}_weights", voter.size)
    at_leaf = ~inner[voter]
    leaf = ~place[voter[at_leaf]]
    order = np.argsort(leaf, kind="stable")
    leaves = np.concatenate([[0], np.cumsum(np.bincount(leaf, minlength=int((~inner).sum())))])
    return _assemble(
        modes[inner],
        _ints(attrs, "nodes_featureids", count)[inner],
        _reals(attrs, "nodes_values", count)[inner],
        _ints(attrs, "nodes_missing_value_tracks_true", count, 0)[inner],
        place[yes],
        place[no],
        place[roots],
        leaves,
        of[at_leaf][order],
        weights[at_leaf][order],
    )


def _modern(attrs: Mapping[str, Any], targets: int) -> Forest:
    """From the attributes of TreeEnsemble."""
    modes = _table(attrs, "nodes_modes").astype(np.int64)
    count = modes.size
    _within(modes, len(MODES), "nodes_modes")
    splits = _table(attrs, "nodes_splits")
    _need(splits.size == count > 0, f"expected nodes_splits of {count} numbers and one at least, got {splits.size}")
    weights = _table(attrs, "leaf_weights").astype(np.float64)
    of = _ints(attrs, "leaf_targetids", weights.size)
    _within(of, targets, "leaf_targetids")

    def links(side: str) -> Array:
        ids = _ints(attrs, f"nodes_{side}nodeids", count)
        _need(not ids.size or ids.min() >= 0, f"expected nodes_{side}nodeids of 0 and more")
        return np.where(_ints(attrs, f"nodes_{side}leafs", count) != 0, ~ids, ids)

    roots = _ints(attrs, "tree_roots")
    _within(roots, count, "tree_roots")
    values = _table(attrs, "membership_values").astype(np.float64) if "membership_values" in attrs else np.zeros(0)
    sets = [s[~np.isnan(s)] for s in np.split(values, np.flatnonzero(np.isnan(values)))]
    return _assemble(
        modes,
        _ints(attrs, "nodes_featureids", count),
        splits,
        _ints(attrs, "nodes_missing_value_tracks_true", count, 0),
        links("true"),
        links("false"),
        roots,
        np.arange(weights.size + 1),
        of,
        weights,
        [s for s in sets if s.size],
    )


_KINDS = {"TreeEnsembleClassifier": "class", "TreeEnsembleRegressor": "target"}
_forests: dict[int, tuple[weakref.ref[Node], Forest]] = {}


def forest_of(node: Node) -> Forest:
    """The node's forest, checked and packed once. Raises ShapeError."""
    held = _forests.get(id(node))
    if held is not None and held[0]() is node:
        return held[1]
    try:
        targets = _targets(node)
        kind = _KINDS.get(node.op)
        forest = _modern(node.attrs, targets) if kind is None else _classic(node.attrs, kind, targets)
    except _Bad as error:
        raise ShapeError(f"{node.where}: {error}") from None
    key = id(node)
    _forests[key] = (weakref.ref(node, lambda _: _forests.pop(key, None)), forest)
    return forest


def _labels(attrs: Mapping[str, Any], ints: str, strings: str) -> tuple[Array | None, int]:
    """(integer labels, or None if they are strings; their number)."""
    names = attrs.get(strings)
    if names:
        return None, len(names)
    labels = np.asarray(attrs.get(ints) or (0, 1), np.int64)
    return labels, len(labels)


def _targets(node: Node) -> int:
    """Number of scores per row."""
    if node.op == "TreeEnsembleClassifier":
        return _labels(node.attrs, "classlabels_int64s", "classlabels_strings")[1]
    count = node.attrs.get("n_targets")
    if count is None:
        ids = _ints(node.attrs, "leaf_targetids") if node.op == "TreeEnsemble" else np.zeros(1, np.int64)
        count = int(ids.max(initial=0)) + 1
    _need(isinstance(count, int) and 0 < count < 1 << 24, f"expected n_targets of 1 and more, got {count!r}")
    assert isinstance(count, int)
    return count


def _choice(node: Node, name: str, default: int, names: Sequence[str]) -> int:
    """The number of an attribute that is a name; TreeEnsemble gives the number itself."""
    value: Any = node.attrs.get(name, names[default])
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str) and value in names:
        return names.index(value)
    if isinstance(value, int) and 0 <= value < len(names) and node.op == "TreeEnsemble":
        return value
    raise ShapeError(f"{node.where}: expected {name} to be one of {', '.join(names)}, got {value!r}")


def _rows(n: Inference, dtypes: set[str]) -> Spec:
    spec = expect(n, 0, dtypes)
    if len(spec.shape) != 2:
        raise n.error(f"expected rows of features, got shape {list(spec.shape)}")
    forest = forest_of(n.node)
    if forest.features > spec.shape[1]:
        raise n.error(f"expected at least {forest.features} features, got {spec.shape[1]}")
    _choice(n.node, "post_transform", 0, TRANSFORMS)
    return spec


def _base(node: Node, count: int) -> Array:
    """The values added to every sum: none, one for all, or one each."""
    base = _reals(node.attrs, "base_values").astype(np.float64)
    if base.size not in (0, 1, count) and not (node.op == "TreeEnsembleClassifier" and count == 1 and base.size == 2):
        raise ShapeError(f"{node.where}: expected {count} base_values, 1 or none, got {base.size}")
    return np.ascontiguousarray(np.broadcast_to(base[-count:] if base.size else 0.0, (count,)), np.float64)


@infer("TreeEnsembleClassifier")
def _infer_classifier(n: Inference) -> tuple[Spec, ...]:
    spec = _rows(n, _NUMBERS)
    labels, count = _labels(n.node.attrs, "classlabels_int64s", "classlabels_strings")
    _base(n.node, 1 if _binary(n.node) else count)
    return Spec("string" if labels is None else "int64", spec.shape[:1]), Spec("float32", (spec.shape[0], count))


@infer("TreeEnsembleRegressor")
def _infer_regressor(n: Inference) -> tuple[Spec]:
    spec = _rows(n, _NUMBERS)
    _choice(n.node, "aggregate_function", 1, AGGREGATES)
    _base(n.node, _targets(n.node))
    return (Spec("float32", (spec.shape[0], _targets(n.node))),)


@infer("TreeEnsemble")
def _infer_ensemble(n: Inference) -> tuple[Spec]:
    spec = _rows(n, {"float32", "float64", "float16"})
    _choice(n.node, "aggregate_function", 1, AGGREGATES)
    return (Spec(spec.dtype, (spec.shape[0], _targets(n.node))),)


def _binary(node: Node) -> bool:
    """Whether only one of two classes gets votes."""
    return _targets(node) == 2 and len(np.unique(forest_of(node).targets)) == 1


def _walk(b: Binder, x: Operand, count: int, how: int, targets: Array) -> Operand:
    """Emit the traversal; returns float64 sums (rows, count)."""
    forest = forest_of(b.node)
    if not forest.exact:
        raise NoKernel("thresholds that float32 cannot hold")
    tables = (forest.nodes, forest.roots, forest.leaves, targets, forest.weights, forest.sets, forest.members)
    # Empty tables are never read, but every operand needs memory of its own.
    held = [b.constant(t if t.size else np.zeros(1, t.dtype)) for t in tables]
    sums = b.scratch("float64", (x.shape[0], count))
    base = b.constant(_base(b.node, count))
    nodes, roots, leaves, votes, weights, sets, members = held
    b.emit(
        steps.Walk(
            x=x,
            nodes=nodes,
            roots=roots,
            leaves=leaves,
            targets=votes,
            weights=weights,
            sets=sets,
            members=members,
            base=base,
            sums=sums,
            rows=x.shape[0],
            features=x.shape[1],
            trees=len(forest.roots),
            target_count=count,
            how=how,
        ),
        kernel=f"trees.f32_walk{'__leq' * forest.leq_only}",
    )
    return sums


@bind("TreeEnsembleRegressor", "TreeEnsemble")
def _bind_ensemble(b: Binder) -> None:
    (x,) = operands(b, 0)
    count, out = _targets(b.node), b.outputs[0]
    how = _choice(b.node, "aggregate_function", 1, AGGREGATES)
    sums = _walk(b, x, count, how, forest_of(b.node).targets)
    transform = _choice(b.node, "post_transform", 0, TRANSFORMS)
    assert out is not None
    b.emit(steps.Scores(sums=sums, out=out, rows=x.shape[0], targets=count, transform=transform))


@bind("TreeEnsembleClassifier")
def _bind_classifier(b: Binder) -> None:
    (x,) = operands(b, 0)
    labels, count = _labels(b.node.attrs, "classlabels_int64s", "classlabels_strings")
    if labels is None:
        raise NoKernel("string labels")
    rows, forest = x.shape[0], forest_of(b.node)
    transform = _choice(b.node, "post_transform", 0, TRANSFORMS)
    label = b.outputs[0] or b.scratch("int64", (rows,))
    scores = (b.outputs[1] if len(b.outputs) > 1 else None) or b.scratch("float32", (rows, count))
    if not _binary(b.node):
        sums = _walk(b, x, count, AGGREGATES.index("SUM"), forest.targets)
        b.emit(
            steps.Classes(
                sums=sums,
                labels=b.constant(labels),
                label=label,
                out=scores,
                rows=rows,
                classes=count,
                transform=transform,
            )
        )
        return
    margin = bool((forest.weights < 0).any())
    sums = _walk(b, x, 1, AGGREGATES.index("SUM"), np.zeros_like(forest.targets))
    b.emit(
        steps.TwoClasses(
            sums=sums,
            labels=b.constant(labels),
            label=label,
            out=scores,
            rows=rows,
            transform=transform,
            margin=int(margin),
            negative=int(margin or transform != 0),
        )
    )


# -- features before the trees, run by their references ---------------------------------------------------------------


@infer("Normalizer", "Scaler")
def _infer_to_float(n: Inference) -> tuple[Spec]:
    spec = expect(n, 0, _NUMBERS)
    if n.node.op == "Normalizer" and n.attr("norm", "MAX") not in ("MAX", "L1", "L2"):
        raise n.error(f"expected norm MAX, L1 or L2, got {n.attr('norm')!r}")
    return (Spec("float32", spec.shape),)


@infer("Binarizer", "Imputer")
def _infer_same(n: Inference) -> tuple[Spec]:
    return (expect(n, 0, _NUMBERS),)


@infer("ArrayFeatureExtractor")
def _infer_extractor(n: Inference) -> tuple[Spec]:
    x, which = n.spec(0), expect(n, 1, {"int64"})
    if not x.shape:
        raise n.error("expected at least one axis, got a scalar")
    lead = x.shape[:-1] if len(x.shape) > 1 else (1,)
    return (Spec(x.dtype, (*lead, which.size)),)


_ENCODED = {
    "values_strings": "string",
    "values_int64s": "int64",
    "values_floats": "float32",
}


@infer("LabelEncoder")
def _infer_encoder(n: Inference) -> tuple[Spec]:
    spec = n.spec(0)
    for name, dtype in _ENCODED.items():
        if n.attr(name):
            return (Spec(dtype, spec.shape),)
    tensor = n.attr("values_tensor")
    if not isinstance(tensor, np.ndarray):
        raise n.error(f"expected one of {', '.join((*_ENCODED, 'values_tensor'))}")
    from lite_runtime.graph import dtype_name

    return (Spec(dtype_name(tensor.dtype), spec.shape),)


@infer("LinearRegressor")
def _infer_linear_regressor(n: Inference) -> tuple[Spec]:
    spec = expect(n, 0, _NUMBERS)
    targets = attr_int(n, "targets", 1)
    if targets < 1 or len(spec.shape) not in (1, 2) or len(n.attr("coefficients", ())) != targets * spec.shape[-1]:
        raise n.error(f"expected {targets} times {spec.shape[-1] if spec.shape else 0} coefficients")
    return (Spec("float32", (spec.shape[0] if len(spec.shape) == 2 else 1, targets)),)
