"""ai.onnx.ml: tree ensembles, linear and support vector models, and feature operators. Maps are Python dicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lite_runtime.errors import InputError, UnsupportedOpError
from lite_runtime.graph import Array
from lite_runtime.reference.activation import sigmoid
from lite_runtime.reference.normalize import softmax
from lite_runtime.reference.registry import define
from lite_runtime.reference.strings import text
from lite_runtime.reference.support import require

__all__: list[str] = []


def _softmax_zero(x: Array) -> Array:
    """Softmax over the scores that are not 0; scores of 0 stay 0."""
    e = np.where(x == 0, 0, np.exp(x - np.max(x, -1, keepdims=True)))
    total = e.sum(-1, keepdims=True)
    return np.where(total == 0, 0, e / np.where(total == 0, 1, total)).astype(x.dtype)


def _inverse_erf(x: Array) -> Array:
    """Winitzki's closed approximation of the inverse error function, a = 0.147; relative error below 2e-3."""
    log = np.log((1 - x) * (1 + x))
    term = 2 / (np.pi * 0.147) + log / 2
    return np.asarray(np.sign(x) * np.sqrt(np.sqrt(term * term - log / 0.147) - term))


_TRANSFORMS: dict[str, Callable[[Array], Array]] = {
    "NONE": lambda x: x,
    "SOFTMAX": softmax,
    "LOGISTIC": sigmoid,
    "SOFTMAX_ZERO": _softmax_zero,
    "PROBIT": lambda x: (np.sqrt(2) * _inverse_erf(2 * x - 1)).astype(x.dtype),
}


def _transform(x: Array, name: str) -> Array:
    if name not in _TRANSFORMS:
        raise UnsupportedOpError(f"expected post_transform of {', '.join(_TRANSFORMS)}, got {name!r}")
    return _TRANSFORMS[name](x)


_MODES: dict[str, Callable[[Array, Array], Array]] = {
    "BRANCH_LEQ": np.less_equal,
    "BRANCH_LT": np.less,
    "BRANCH_GTE": np.greater_equal,
    "BRANCH_GT": np.greater,
    "BRANCH_EQ": np.equal,
    "BRANCH_NEQ": np.not_equal,
}
_MODE_NAMES = (*_MODES, "BRANCH_MEMBER")

_AGGREGATES: dict[str, Callable[[Array], Array]] = {
    "AVERAGE": lambda x: x.mean(0),
    "SUM": lambda x: x.sum(0),
    "MIN": lambda x: x.min(0),
    "MAX": lambda x: x.max(0),
}


class _Forest:
    """Nodes of all trees in flat arrays; a leaf has mode LEAF. All rows of X traverse all trees at once."""

    def __init__(
        self,
        roots: Array,
        features: Array,
        splits: Array,
        modes: Sequence[str],
        yes: Array,
        no: Array,
        missing: Array,
        members: Mapping[int, Array],
    ) -> None:
        self.roots, self.features, self.splits, self.yes, self.no = roots, features, splits, yes, no
        self.modes, self.missing, self.members = np.array(modes, object), missing, members
        self.inner = self.modes != "LEAF"

    def leaves(self, x: Array) -> Array:
        """(trees, rows): the leaf that each row reaches."""
        at = np.repeat(self.roots[:, None], len(x), 1)
        rows = np.broadcast_to(np.arange(len(x)), at.shape)
        for _ in range(len(self.modes) + 1):
            walking = self.inner[at]
            if not walking.any():
                return at
            node = at[walking]
            value = x[rows[walking], self.features[node]]
            at[walking] = np.where(self._goes_yes(node, value), self.yes[node], self.no[node])
        raise InputError("expected trees without cycles, got nodes that lead back to themselves")

    def _goes_yes(self, node: Array, value: Array) -> Array:
        taken = np.isnan(value) & self.missing[node]
        for mode in set(self.modes[node]):
            here = self.modes[node] == mode
            if mode == "BRANCH_MEMBER":
                taken[here] |= [
                    bool(np.any(self.members[n] == v)) for n, v in zip(node[here], value[here], strict=True)
                ]
            elif mode in _MODES:
                taken[here] |= _MODES[mode](value[here], self.splits[node[here]])
            else:
                raise UnsupportedOpError(f"expected node modes of {', '.join(_MODE_NAMES)} or LEAF, got {mode!r}")
        return np.asarray(taken)


def _aggregate(
    reached: Array, targets: Mapping[int, list[tuple[int, float]]], count: int, how: str, dtype: np.dtype
) -> Array:
    """reached (trees, rows) leaves -> (rows, targets); a target without contributing leaves stays 0."""
    if how not in _AGGREGATES:
        raise UnsupportedOpError(f"expected aggregate_function of {', '.join(_AGGREGATES)}, got {how!r}")
    trees, rows = reached.shape
    weights = np.zeros((trees, rows, count), np.float64)
    named = np.zeros(weights.shape, bool)
    for leaf, parts in targets.items():
        here = reached == leaf
        for target, weight in parts:
            weights[here, target] += weight
            named[here, target] = True
    if how in ("MIN", "MAX"):
        nothing = np.inf if how == "MIN" else -np.inf
        best = _AGGREGATES[how](np.where(named, weights, nothing))
        return np.where(named.any(0), best, 0).astype(dtype)
    return _AGGREGATES[how](weights).astype(dtype)


@define("TreeEnsemble")
def _tree_ensemble(
    x: Array,
    /,
    leaf_targetids: Sequence[int],
    leaf_weights: Array,
    nodes_falseleafs: Sequence[int],
    nodes_falsenodeids: Sequence[int],
    nodes_featureids: Sequence[int],
    nodes_modes: Array,
    nodes_splits: Array,
    nodes_trueleafs: Sequence[int],
    nodes_truenodeids: Sequence[int],
    tree_roots: Sequence[int],
    aggregate_function: int = 1,
    membership_values: Array | None = None,
    n_targets: int | None = None,
    nodes_hitrates: Array | None = None,
    nodes_missing_value_tracks_true: Sequence[int] | None = None,
    post_transform: int = 0,
) -> Array:
    """x (rows, features) -> (rows, n_targets). Leaves are numbered after the inner nodes here."""
    count, leaves = len(nodes_modes), len(leaf_weights)
    modes = [_MODE_NAMES[int(m)] for m in np.ravel(nodes_modes)] + ["LEAF"] * leaves

    def links(ids: Sequence[int], are_leaves: Sequence[int]) -> Array:
        return np.array([i + count if leaf else i for i, leaf in zip(ids, are_leaves, strict=True)] + [0] * leaves)

    def padded(values: Any, dtype: Any) -> Array:
        return np.concatenate([np.asarray(values, dtype), np.zeros(leaves, dtype)])

    sets = _member_sets(np.zeros(0) if membership_values is None else np.ravel(membership_values))
    member_nodes = [i for i, mode in enumerate(modes) if mode == "BRANCH_MEMBER"]
    require(len(sets) >= len(member_nodes), f"expected {len(member_nodes)} membership sets, got {len(sets)}")
    forest = _Forest(
        np.array(tree_roots, np.int64),
        padded(nodes_featureids, np.int64),
        padded(np.ravel(nodes_splits), nodes_splits.dtype),
        modes,
        links(nodes_truenodeids, nodes_trueleafs),
        links(nodes_falsenodeids, nodes_falseleafs),
        padded(nodes_missing_value_tracks_true or [0] * count, bool),
        dict(zip(member_nodes, sets, strict=False)),
    )
    parts = {count + i: [(t, float(w))] for i, (t, w) in enumerate(zip(leaf_targetids, leaf_weights, strict=True))}
    names = tuple(_AGGREGATES)
    require(0 <= aggregate_function < len(names), f"expected aggregate_function of 0 to 3, got {aggregate_function}")
    targets = n_targets or max(leaf_targetids) + 1
    y = _aggregate(forest.leaves(x), parts, targets, names[aggregate_function], x.dtype)
    return _transform(y, tuple(_TRANSFORMS)[post_transform])


def _member_sets(values: Array) -> list[Array]:
    """Sets delimited by NaN."""
    ends = np.flatnonzero(np.isnan(values))
    sets = np.split(values, ends)
    return [s[~np.isnan(s)] for s in sets if s[~np.isnan(s)].size]


_FOREST = tuple(
    f"nodes_{name}" for name in ("treeids", "nodeids", "modes", "featureids", "truenodeids", "falsenodeids")
)


def _classic_forest(attrs: Mapping[str, Any]) -> tuple[_Forest, dict[tuple[int, int], int]]:
    """A forest from the attributes that TreeEnsembleClassifier and Regressor share, and (tree, node) -> its number."""
    missing = [name for name in _FOREST if name not in attrs]
    require(not missing, f"expected attributes {', '.join(_FOREST)}, got none for {', '.join(missing)}")
    trees, nodes = attrs["nodes_treeids"], attrs["nodes_nodeids"]
    number = {key: i for i, key in enumerate(zip(trees, nodes, strict=True))}
    modes = [text(m) for m in attrs["nodes_modes"]]

    def links(ids: Sequence[int]) -> Array:
        return np.array(
            [0 if m == "LEAF" else number[t, i] for t, i, m in zip(trees, ids, modes, strict=True)], np.int64
        )

    children = {
        (t, i)
        for name in ("nodes_truenodeids", "nodes_falsenodeids")
        for t, i, m in zip(trees, attrs[name], modes, strict=True)
        if m != "LEAF"
    }
    roots: dict[int, int] = {}
    for key, i in number.items():
        if key not in children:
            roots.setdefault(key[0], i)  # later ones are orphans
    require(set(roots) == set(trees), f"expected a root in every tree, got none in {sorted(set(trees) - set(roots))}")
    tensor = attrs.get("nodes_values_as_tensor")
    splits = np.asarray(attrs.get("nodes_values", ()), np.float32) if tensor is None else np.ravel(tensor)
    forest = _Forest(
        np.array(list(roots.values()), np.int64),
        np.array(attrs["nodes_featureids"], np.int64),
        splits,
        modes,
        links(attrs["nodes_truenodeids"]),
        links(attrs["nodes_falsenodeids"]),
        np.array(attrs.get("nodes_missing_value_tracks_true") or [0] * len(modes), bool),
        {},
    )
    return forest, number


def _weights(
    attrs: Mapping[str, Any], kind: str, number: Mapping[tuple[int, int], int]
) -> dict[int, list[tuple[int, float]]]:
    """Leaf -> its contributions to targets or classes."""
    tensor = attrs.get(f"{kind}_weights_as_tensor")
    weights = attrs.get(f"{kind}_weights", ()) if tensor is None else np.ravel(tensor)
    parts: dict[int, list[tuple[int, float]]] = {}
    rows = zip(attrs[f"{kind}_treeids"], attrs[f"{kind}_nodeids"], attrs[f"{kind}_ids"], weights, strict=True)
    for tree, node, target, weight in rows:
        parts.setdefault(number[tree, node], []).append((target, float(weight)))
    return parts


def _base(attrs: Mapping[str, Any]) -> Array:
    tensor = attrs.get("base_values_as_tensor")
    return np.asarray(attrs.get("base_values", ()) if tensor is None else np.ravel(tensor), np.float64)


@define("TreeEnsembleRegressor")
def _tree_ensemble_regressor(
    x: Array, /, n_targets: int = 1, aggregate_function: str = "SUM", post_transform: str = "NONE", **attrs: Any
) -> Array:
    """x (rows, features) -> float32 (rows, n_targets)."""
    forest, number = _classic_forest(attrs)
    parts = _weights(attrs, "target", number)
    y = _aggregate(forest.leaves(x), parts, n_targets, aggregate_function, np.dtype(np.float64))
    base = _base(attrs)
    y = (y + base if base.size else y).astype(np.float32)
    return _transform(y, post_transform)


def _labels(ints: Sequence[int] | None, strings: Sequence[str] | None) -> Array:
    return np.array([text(s) for s in strings], object) if strings else np.array(ints or (0, 1), np.int64)


@define("TreeEnsembleClassifier")
def _tree_ensemble_classifier(
    x: Array,
    /,
    classlabels_int64s: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    post_transform: str = "NONE",
    **attrs: Any,
) -> tuple[Array, Array]:
    """(label of the best class, float32 scores (rows, classes)). With two labels and weights for only one class the
    scores are (1 - p, p), or (-p, p) if the single score is a margin (some weight is negative)."""
    labels = _labels(classlabels_int64s, classlabels_strings)
    forest, number = _classic_forest(attrs)
    parts = _weights(attrs, "class", number)
    named = sorted({t for leaf in parts.values() for t, _ in leaf})
    binary = len(labels) == 2 and len(named) == 1
    count = 1 if binary else len(labels)
    if binary:
        parts = {leaf: [(0, w) for _, w in rows] for leaf, rows in parts.items()}
    scores = _aggregate(forest.leaves(x), parts, count, "SUM", np.dtype(np.float64))
    base = _base(attrs)
    scores = (scores + (base[-count:] if base.size >= count else base) if base.size else scores).astype(np.float32)
    if not binary:
        return labels[np.argmax(scores, 1)], _transform(scores, post_transform)
    negative = any(w < 0 for leaf in parts.values() for _, w in leaf)
    margin = scores[:, 0]
    chosen = labels[(margin > (0 if negative else 0.5)).astype(np.int64)]
    return chosen, _two_scores(margin, negative or post_transform != "NONE", post_transform)


def _two_scores(score: Array, is_margin: bool, post_transform: str) -> Array:
    """Both classes' scores from that of the second."""
    if post_transform == "LOGISTIC":
        p = sigmoid(score)
        return np.stack([1 - p, p], 1)
    pair = np.stack([-score if is_margin else 1 - score, score], 1)
    return _transform(pair, post_transform).astype(np.float32)


@define("LinearRegressor")
def _linear_regressor(
    x: Array,
    /,
    coefficients: Sequence[float] = (),
    intercepts: Sequence[float] = (),
    post_transform: str = "NONE",
    targets: int = 1,
) -> Array:
    weights = np.array(coefficients, np.float32).reshape(targets, -1)
    y = np.atleast_2d(x).astype(np.float32) @ weights.T
    return _transform(y + np.array(intercepts, np.float32) if len(intercepts) else y, post_transform)


@define("LinearClassifier")
def _linear_classifier(
    x: Array,
    /,
    coefficients: Sequence[float],
    classlabels_ints: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    intercepts: Sequence[float] = (),
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> tuple[Array, Array]:
    labels = _labels(classlabels_ints, classlabels_strings)
    x = np.atleast_2d(x).astype(np.float32)
    weights = np.array(coefficients, np.float32).reshape(-1, x.shape[1])
    scores = x @ weights.T
    scores = scores + np.array(intercepts, np.float32) if len(intercepts) else scores
    if len(labels) == 2 and scores.shape[1] == 1:
        margin = scores[:, 0]
        return labels[(margin > 0).astype(np.int64)], _with_rest(margin, post_transform)
    return labels[np.argmax(scores, 1)], _transform(scores, post_transform)


def _with_rest(score: Array, post_transform: str) -> Array:
    """The second class's score, and 1 minus it; as in onnxruntime, a softmax of a single score is that score."""
    known = post_transform in ("NONE", "SOFTMAX", "SOFTMAX_ZERO")
    second = score if known else _transform(score, post_transform)
    return np.stack([1 - second, second], 1).astype(np.float32)


_KERNELS: dict[str, Callable[[Array, Array, float, float, float], Array]] = {
    "LINEAR": lambda a, b, gamma, coef0, degree: a @ b.T,
    "POLY": lambda a, b, gamma, coef0, degree: (gamma * (a @ b.T) + coef0) ** degree,
    "RBF": lambda a, b, gamma, coef0, degree: np.exp(-gamma * ((a[:, None] - b) ** 2).sum(-1)),
    "SIGMOID": lambda a, b, gamma, coef0, degree: np.tanh(gamma * (a @ b.T) + coef0),
}


def _kernel(x: Array, vectors: Array, kernel_type: str, parameters: Sequence[float]) -> Array:
    if kernel_type not in _KERNELS:
        raise UnsupportedOpError(f"expected kernel_type of {', '.join(_KERNELS)}, got {kernel_type!r}")
    gamma, coef0, degree = (*parameters, *(0.0, 0.0, 0.0)[len(parameters) :])
    return _KERNELS[kernel_type](x, vectors, gamma, coef0, degree)


@define("SVMRegressor")
def _svm_regressor(
    x: Array,
    /,
    coefficients: Sequence[float] = (),
    kernel_params: Sequence[float] = (),
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: Sequence[float] = (0.0,),
    support_vectors: Sequence[float] = (),
) -> Array:
    x = np.atleast_2d(x).astype(np.float64)
    weights = np.array(coefficients, np.float64)
    if n_supports:
        vectors = np.array(support_vectors, np.float64).reshape(n_supports, -1)
        y = _kernel(x, vectors, kernel_type, kernel_params) @ weights + rho[0]
    else:
        y = _kernel(x, weights.reshape(1, -1), kernel_type, kernel_params)[:, 0] + rho[0]
    y = np.where(y > 0, 1, -1) if one_class else y
    return _transform(y.astype(np.float32)[:, None], post_transform)


@define("SVMClassifier")
def _svm_classifier(
    x: Array,
    /,
    classlabels_ints: Sequence[int] | None = None,
    classlabels_strings: Sequence[str] | None = None,
    coefficients: Sequence[float] = (),
    kernel_params: Sequence[float] = (),
    kernel_type: str = "LINEAR",
    post_transform: str = "NONE",
    prob_a: Sequence[float] = (),
    prob_b: Sequence[float] = (),
    rho: Sequence[float] = (),
    support_vectors: Sequence[float] = (),
    vectors_per_class: Sequence[int] = (),
) -> tuple[Array, Array]:
    """One against one if there are support vectors (every pair of classes votes), otherwise a score per class."""
    labels = _labels(classlabels_ints, classlabels_strings)
    x = np.atleast_2d(x).astype(np.float64)
    if not vectors_per_class:
        weights = np.array(coefficients, np.float64).reshape(len(labels), -1)
        scores = (_kernel(x, weights, kernel_type, kernel_params) + rho[0]).astype(np.float32)
        return labels[np.argmax(scores, 1)], _transform(scores, post_transform)
    count = len(vectors_per_class)
    pairs = _pair_scores(x, vectors_per_class, support_vectors, coefficients, rho, kernel_type, kernel_params)
    duels = [(i, j) for i in range(count) for j in range(i + 1, count)]
    votes = np.zeros((len(x), count))
    for (i, j), score in zip(duels, pairs.T, strict=True):
        votes[:, i] += score > 0
        votes[:, j] += score <= 0
    chosen = labels[np.argmax(votes, 1)]
    if prob_a:
        scores = _pairwise_probabilities(pairs, duels, count, prob_a, prob_b).astype(np.float32)
        return chosen, _transform(scores, post_transform)
    if count == 2:  # onnxruntime: the pair's score belongs to the second class, though it votes for the first
        score = pairs[:, 0].astype(np.float32)
        if post_transform.startswith("SOFTMAX"):
            return chosen, _with_rest(score, post_transform)
        return chosen, _transform(np.stack([-score, score], 1), post_transform)
    return chosen, _transform(pairs.astype(np.float32), post_transform)


def _pair_scores(
    x: Array,
    per_class: Sequence[int],
    support_vectors: Sequence[float],
    coefficients: Sequence[float],
    rho: Sequence[float],
    kernel_type: str,
    kernel_params: Sequence[float],
) -> Array:
    """(rows, pairs) decision values; coefficients are (classes - 1, vectors), as libsvm stores them."""
    total, count = sum(per_class), len(per_class)
    seen = _kernel(x, np.array(support_vectors, np.float64).reshape(total, -1), kernel_type, kernel_params)
    weights = np.array(coefficients, np.float64).reshape(count - 1, total)
    ends = np.cumsum(per_class)
    spans = [slice(e - n, e) for e, n in zip(ends, per_class, strict=True)]
    columns: list[Array] = []
    for i in range(count):
        for j in range(i + 1, count):
            first = seen[:, spans[i]] @ weights[j - 1, spans[i]]
            second = seen[:, spans[j]] @ weights[i, spans[j]]
            columns.append(first + second + rho[len(columns)])
    return np.stack(columns, 1)


def _pairwise_probabilities(
    pairs: Array, duels: Sequence[tuple[int, int]], count: int, prob_a: Sequence[float], prob_b: Sequence[float]
) -> Array:
    """Platt's sigmoid per pair, coupled as in Wu, Lin and Weng (2004), method 2: sum (r_ji p_i - r_ij p_j)² is
    small."""
    r = np.zeros((len(pairs), count, count))
    for (i, j), score, a, b in zip(duels, pairs.T, prob_a, prob_b, strict=True):
        p = np.clip(1 / (1 + np.exp(a * score + b)), 1e-7, 1 - 1e-7)
        r[:, i, j], r[:, j, i] = p, 1 - p
    q = -r * r.swapaxes(1, 2)
    diagonal = np.arange(count)
    q[:, diagonal, diagonal] = (r * r).sum(1)
    return np.stack([_coupled(one) for one in q.astype(np.float32)]) if len(q) else np.zeros((0, count))


def _coupled(q: Array) -> Array:
    """The p that minimises p'qp and sums to 1, by the iteration of libsvm, ONNX and ONNX Runtime. It stops before the
    minimum, about 0.002 from it. q: float32 (classes, classes)."""
    count = len(q)
    p = np.full(count, 1 / count, np.float32)
    for _ in range(max(100, count)):
        qp = q @ p
        energy = p @ qp
        if np.abs(qp - energy).max() < np.float32(0.005) / count:
            break
        for i in range(count):
            step = (energy - qp[i]) / q[i, i]
            p[i] += step
            energy = (energy + step * (step * q[i, i] + 2 * qp[i])) / (1 + step) ** 2
            qp = (qp + step * q[i]) / (1 + step)
            p /= 1 + step
    return p


@define("Binarizer")
def _binarizer(x: Array, /, threshold: float = 0.0) -> Array:
    return (x > threshold).astype(x.dtype)


@define("Scaler")
def _scaler(x: Array, /, offset: Sequence[float] = (0.0,), scale: Sequence[float] = (1.0,)) -> Array:
    return ((x - np.array(offset, np.float32)) * np.array(scale, np.float32)).astype(np.float32)


@define("Normalizer")
def _normalizer(x: Array, /, norm: str = "MAX") -> Array:
    """Rows divided by their maximum, sum of magnitudes, or length; a row whose divisor is 0 is unchanged."""
    norms: dict[str, Callable[[Array], Array]] = {
        "MAX": lambda v: v.max(-1, keepdims=True),
        "L1": lambda v: np.abs(v).sum(-1, keepdims=True),
        "L2": lambda v: np.sqrt((v * v).sum(-1, keepdims=True)),
    }
    if norm not in norms:
        raise UnsupportedOpError(f"expected norm MAX, L1 or L2, got {norm!r}")
    wide = x.astype(np.float32)
    divisor = norms[norm](wide)
    return np.where(divisor == 0, wide, wide / divisor).astype(np.float32)


@define("Imputer")
def _imputer(
    x: Array,
    /,
    imputed_value_floats: Sequence[float] | None = None,
    imputed_value_int64s: Sequence[int] | None = None,
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Array:
    floats = x.dtype.kind == "f"
    values = np.array(imputed_value_floats if floats else imputed_value_int64s, x.dtype)
    old = replaced_value_float if floats else replaced_value_int64
    missing = np.isnan(x) if floats and np.isnan(old) else x == x.dtype.type(old)
    return np.where(missing, values, x).astype(x.dtype)


@define("FeatureVectorizer")
def _feature_vectorizer(*inputs: Array, inputdimensions: Sequence[int] = ()) -> Array:
    """Concatenated columns; each input is truncated to its dimension if one is given."""
    widths = [*inputdimensions, *[None] * (len(inputs) - len(inputdimensions))]
    parts = [np.atleast_2d(x)[:, :n] for x, n in zip(inputs, widths, strict=True)]
    return np.concatenate(parts, 1).astype(np.float32)


@define("OneHotEncoder")
def _one_hot_encoder(
    x: Array, /, cats_int64s: Sequence[int] | None = None, cats_strings: Sequence[str] | None = None, zeros: int = 1
) -> Array:
    categories: list[Any] = [text(c) for c in cats_strings] if cats_strings else list(cats_int64s or ())
    values = [text(v) if cats_strings else int(v) for v in x.ravel()]
    out = np.zeros((len(values), len(categories)), np.float32)
    places = {c: i for i, c in enumerate(categories)}
    for row, value in zip(out, values, strict=True):
        if value in places:
            row[places[value]] = 1
        elif not zeros:
            raise InputError(f"expected one of the categories {categories}, got {value!r}")
    return out.reshape(*x.shape, len(categories))


def _mapped(x: Array, table: Mapping[Any, Any], default: Any, dtype: Any) -> Array:
    out = np.empty(x.size, dtype)
    out[:] = [table.get(_key(v), default) for v in x.ravel()]
    return out.reshape(x.shape)


_NAN = "a NaN key"


def _key(value: Any) -> Any:
    """A key that is the same for equal elements, including NaN."""
    if isinstance(value, str | bytes):
        return text(value)
    return _NAN if value != value else value.item() if isinstance(value, np.generic) else value


@define("LabelEncoder")
def _label_encoder(x: Array, /, **attrs: Any) -> Array:
    """Keys and values are given as one of keys_/values_ strings, int64s, floats, tensor; the last of equal keys
    wins."""
    keys = next((attrs[k] for k in ("keys_strings", "keys_int64s", "keys_floats", "keys_tensor") if k in attrs), None)
    kinds = (
        ("values_strings", "default_string", "_Unused", object),
        ("values_int64s", "default_int64", -1, np.int64),
        ("values_floats", "default_float", -0.0, np.float32),
    )
    for name, fallback, default, dtype in kinds:
        if name in attrs:
            values, unknown, kind = attrs[name], attrs.get(fallback, default), np.dtype(dtype)
            break
    else:
        values = np.asarray(attrs.get("values_tensor", ()))
        kind = np.dtype(object) if values.dtype.kind in "OUS" else values.dtype
        usual: Any = "_Unused" if kind.kind == "O" else -1 if kind.kind in "iu" else -0.0
        unknown = np.ravel(attrs["default_tensor"])[0] if "default_tensor" in attrs else usual
    require(keys is not None, "expected one of keys_strings, keys_int64s, keys_floats, keys_tensor, got none")
    assert keys is not None
    typed = np.asarray(keys, object if x.dtype.kind in "OUT" else x.dtype).ravel()
    require(len(typed) == len(values), f"expected as many values as keys, got {len(values)} and {len(typed)}")
    table = {_key(k): text(v) if kind.kind == "O" else v for k, v in zip(typed, np.ravel(values).tolist(), strict=True)}
    return _mapped(x, table, text(unknown) if kind.kind == "O" else unknown, kind)


@define("CategoryMapper")
def _category_mapper(
    x: Array,
    /,
    cats_int64s: Sequence[int] = (),
    cats_strings: Sequence[str] = (),
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Array:
    names = [text(s) for s in cats_strings]
    if x.dtype.kind in "OUT":
        return _mapped(x, dict(zip(names, cats_int64s, strict=True)), default_int64, np.int64)
    return _mapped(x, dict(zip(cats_int64s, names, strict=True)), text(default_string), object)


@define("DictVectorizer")
def _dict_vectorizer(
    x: Mapping[Any, Any],
    /,
    int64_vocabulary: Sequence[int] | None = None,
    string_vocabulary: Sequence[str] | None = None,
) -> Array:
    """The map's values in the order of the vocabulary, zeros for missing keys: (1, words)."""
    words: list[Any] = [text(w) for w in string_vocabulary] if string_vocabulary else list(int64_vocabulary or ())
    values = list(x.values())
    if any(isinstance(v, str) for v in values):
        return np.array([[text(x.get(w, "")) for w in words]], object)
    sample = np.asarray(values)
    return np.array([[x.get(w, 0) for w in words]], sample.dtype if sample.size else np.float32)


@define("CastMap")
def _cast_map(x: Mapping[int, Any], /, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1) -> Array:
    """The map's values by ascending key, or each at its key's index in a row of `max_map`: (1, n)."""
    types: dict[str, Any] = {"TO_FLOAT": np.float32, "TO_STRING": object, "TO_INT64": np.int64}
    if cast_to not in types or map_form not in ("DENSE", "SPARSE"):
        raise UnsupportedOpError(f"expected cast_to of {', '.join(types)} and map_form DENSE or SPARSE")
    as_text = cast_to == "TO_STRING"
    if map_form == "DENSE":
        row = [x[k] for k in sorted(x)]
    else:
        row = [x.get(k, "" if as_text else 0) for k in range(max_map)]
        require(max(x, default=0) < max_map, f"expected keys below max_map {max_map}, got {max(x, default=0)}")
    return np.array(
        [[str(v) if as_text else float(v) if cast_to == "TO_FLOAT" else int(v) for v in row]], types[cast_to]
    )


@define("ZipMap")
def _zip_map(
    x: Array, /, classlabels_int64s: Sequence[int] | None = None, classlabels_strings: Sequence[str] | None = None
) -> list[Any]:
    """One map from label to score per row."""
    labels: list[Any] = (
        [text(s) for s in classlabels_strings] if classlabels_strings else list(classlabels_int64s or ())
    )
    rows = np.atleast_2d(x)
    require(rows.shape[1] == len(labels), f"expected {len(labels)} columns, got {rows.shape[1]}")
    return [dict(zip(labels, map(np.float32, row), strict=True)) for row in rows]
