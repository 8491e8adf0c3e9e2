"""XGBoost: model files (JSON, UBJSON), boosters and estimators of its scikit-learn interface.

Source: XGBoost's "Introduction to Model IO" and its model schema; versions 1.6 to 3.2. gbtree, dart and gblinear;
categorical splits, vector leaves, early stopping (estimators predict with the best iteration, files and boosters with
all trees, as XGBoost's own `predict`). Categories are the codes that the model was trained with.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.tape import Tape

from converter.errors import ConvertError
from converter.frontends.trees.forest import LINKS, LT, MEMBER, Forest, Labels, Tree, check_links, to_ir, wrap
from converter.frontends.trees.ubjson import parse
from lite_runtime.graph import Array

__all__ = ["load", "of_object"]

_NAMES = (
    "identity: reg:squarederror reg:linear reg:squaredlogerror reg:pseudohubererror reg:absoluteerror "
    "reg:quantileerror reg:expectileerror binary:logitraw rank:pairwise rank:ndcg rank:map; "
    "sigmoid: binary:logistic reg:logistic; exp: count:poisson reg:gamma reg:tweedie survival:cox survival:aft; "
    "step: binary:hinge; softmax: multi:softprob; argmax: multi:softmax"
)
_LINKS = {name: link for part in _NAMES.split("; ") for link, names in [part.split(": ", 1)] for name in names.split()}
"""Each objective's link: from the sum of the trees to what `predict` gives."""
_LOGIT = ("binary:logistic", "reg:logistic")
"""Objectives whose base_score is a probability; where the link is exp it is a mean; it is a score for all others."""
_CLASSIFIER = {"sigmoid": "sigmoid", "softmax": "softmax", "argmax": "softmax"}
_DTYPES = {"f": np.float64, "i": np.int64}


def load(data: bytes) -> ir.Model:
    """A model file's contents as IR. Raises ConvertError."""
    return _model(_parse(data))


def of_object(source: Any) -> ir.Model:
    """A Booster, or an estimator of the scikit-learn interface. Raises ConvertError."""
    if not hasattr(source, "get_booster"):
        return _model(_parse(bytes(source.save_raw("ubj"))))
    try:
        document = _parse(bytes(source.get_booster().save_raw("ubj")))
    except Exception as error:  # library: XGBoost's own NotFittedError, a class of scikit-learn where that is there
        raise ConvertError(f"expected a fitted {type(source).__name__}, got: {error}") from error
    best = _text(document["learner"].get("attributes", {}), "best_iteration", "")
    labels = None if getattr(source, "classes_", None) is None else [int(label) for label in source.classes_]
    missing = getattr(source, "missing", None)
    number = None if missing is None or np.isnan(missing) else float(missing)
    return _model(document, labels, int(best) + 1 if best.isdecimal() else None, number)


def _parse(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data) if data[:2].rstrip().startswith(b'{"') or data[1:2].isspace() else parse(data)
    except (ValueError, RecursionError) as error:
        raise ConvertError(f"XGBoost: the model is not valid JSON ({error}); save it again") from None
    if not isinstance(document, dict) or not isinstance(document.get("learner"), dict):
        raise ConvertError("XGBoost: expected a model with a 'learner'; write it with Booster.save_model")
    return document


def _model(
    document: Mapping[str, Any], labels: Labels | None = None, rounds: int | None = None, missing: float | None = None
) -> ir.Model:
    learner = _table(document, "learner")
    parameters, objective = _table(learner, "learner_model_param"), _text(_table(learner, "objective"), "name")
    if objective not in _LINKS:
        raise ConvertError(f"XGBoost: expected an objective of {', '.join(_LINKS)}, got {objective!r}")
    link = _LINKS[objective]
    if labels is not None:
        link = _CLASSIFIER.get(link, link)
        labels = None if link not in _CLASSIFIER.values() else labels
    features = _count(parameters, "num_feature")
    targets = max(1, _count(parameters, "num_class", 0), _count(parameters, "num_target", 1))
    base = _base(_text(parameters, "base_score"), objective, link, targets)
    booster = _table(learner, "gradient_booster")
    if _text(booster, "name", "gbtree") == "gblinear":
        return _linear(_table(booster, "model"), features, targets, base, link, labels)
    trees = list(_trees(booster, features, targets, rounds))
    return to_ir(Forest(trees, features, targets, base, link, missing=missing), labels)


def _base(text: str, objective: str, link: str, targets: int) -> Array:
    """base_score as scores: one number, or since version 3.1 one for each target."""
    try:
        base = np.array([float(part) for part in text.strip("[]").split(",")], np.float64)
    except ValueError:
        raise ConvertError(f"XGBoost: expected base_score of numbers, got {text!r}") from None
    if base.size not in (1, targets):
        raise ConvertError(f"XGBoost: expected 1 or {targets} numbers as base_score, got {base.size}")
    with np.errstate(divide="ignore", invalid="ignore"):
        base = np.log(base / (1 - base)) if objective in _LOGIT else np.log(base) if link == "exp" else base
    if not np.isfinite(base).all():
        raise ConvertError(f"XGBoost: base_score {text} is not valid for objective {objective}")
    return np.broadcast_to(base, (targets,))


def _trees(booster: Mapping[str, Any], features: int, targets: int, rounds: int | None) -> Iterator[Tree]:
    """The trees of the first `rounds` rounds, or of all."""
    name = _text(booster, "name", "gbtree")
    if name not in ("gbtree", "dart"):
        raise ConvertError(f"XGBoost: expected booster gbtree, dart or gblinear, got {name!r}")
    model = _table(_table(booster, "gbtree") if name == "dart" else booster, "model")
    described = model.get("trees")
    if not isinstance(described, list) or not all(isinstance(tree, dict) for tree in described):
        raise ConvertError("XGBoost: expected a list of trees")
    of = _array(model, "tree_info", "i", len(described), "the model")
    if of.size and not (of.min() >= 0 and of.max() < targets):
        raise ConvertError(f"XGBoost: expected tree_info of 0 to {targets - 1}, got {of.min()} to {of.max()}")
    weights = _array(booster, "weight_drop", "f", len(described), "dart") if name == "dart" else np.ones(len(described))
    used = len(described)
    if rounds is not None:
        ends = model.get("iteration_indptr")
        parallel = max(1, _count(_table(model, "gbtree_model_param"), "num_parallel_tree", 1))
        used = int(ends[rounds]) if ends is not None and rounds < len(ends) else rounds * parallel * targets
    for number, tree in enumerate(described[:used]):
        yield from _tree(tree, int(of[number]), weights[number], features, targets, f"XGBoost: tree {number}")


def _tree(
    tree: Mapping[str, Any], target: int, weight: float, features: int, targets: int, where: str
) -> Iterator[Tree]:
    """One tree; for leaves that are vectors, the same tree for every target."""
    left = _array(tree, "left_children", "i", None, where)
    count = left.size
    right = _array(tree, "right_children", "i", count, where)
    conditions = _array(tree, "split_conditions", "f", count, where)
    column = _array(tree, "split_indices", "i", count, where)
    categorical = _array(tree, "split_type", "i", count, where) if "split_type" in tree else np.zeros(count, np.int64)
    inner = left != -1
    place = np.where(inner, np.cumsum(inner) - 1, ~(np.cumsum(~inner) - 1))
    children = np.concatenate([left[inner], right[inner]])
    if not count or children.min(initial=0) < 0 or children.max(initial=0) >= count:
        raise ConvertError(f"{where}: a branch leads out of the tree; the file is damaged")
    yes, no = place[left[inner]], place[right[inner]]
    check_links(yes, no, int((~inner).sum()), where)
    if column[inner].max(initial=0) >= features or column[inner].min(initial=0) < 0:
        raise ConvertError(f"{where}: expected features of 0 to {features - 1}, got {column[inner].max(initial=0)}")
    missing = _array(tree, "default_left", "i", count, where)[inner] != 0
    member = categorical[inner] == 1
    # A row whose category is in the set goes right, and there is no operator for "not in the set".
    yes, no, missing = np.where(member, no, yes), np.where(member, yes, no), missing ^ member
    sets = _sets(tree, place, where) if member.any() else {}
    modes, splits = np.where(member, MEMBER, LT), conditions[inner]
    if set(sets) != set(np.flatnonzero(member).tolist()):
        raise ConvertError(f"{where}: expected a set of categories for every categorical split")
    empty = np.array([node for node, values in sets.items() if not values.size], np.int64)
    modes[empty], splits[empty] = LT, -np.inf  # ONNX has no empty set; no number is below -infinity
    sets = {node: values for node, values in sets.items() if values.size}
    for one, values in _leaves(tree, conditions, right, ~inner, target, targets, where):
        yield Tree(column[inner], modes, splits, yes, no, missing, values * weight, sets, one)


def _leaves(
    tree: Mapping[str, Any], conditions: Array, right: Array, leaf: Array, target: int, targets: int, where: str
) -> Iterator[tuple[int, Array]]:
    """(target, the values of all leaves). A leaf's value is its condition, or a vector that its right child numbers."""
    size = _count(_table(tree, "tree_param"), "size_leaf_vector", 1)
    if size <= 1:
        yield target, conditions[leaf]
        return
    if size != targets or "leaf_weights" not in tree:
        raise ConvertError(f"{where}: expected leaf_weights for {targets} targets; save the model with XGBoost 3.1")
    rows = _array(tree, "leaf_weights", "f", int(leaf.sum()) * size, where).reshape(-1, size)
    which = right[leaf]
    if which.min() < 0 or which.max() >= len(rows):
        raise ConvertError(f"{where}: a leaf has no values; the file is damaged")
    for one in range(size):
        yield one, rows[which, one]


def _sets(tree: Mapping[str, Any], place: Array, where: str) -> dict[int, Array]:
    """Node -> the categories that go right."""
    nodes = _array(tree, "categories_nodes", "i", None, where)
    starts = _array(tree, "categories_segments", "i", nodes.size, where)
    sizes = _array(tree, "categories_sizes", "i", nodes.size, where)
    every = _array(tree, "categories", "i", None, where)
    if nodes.size and (nodes.min() < 0 or nodes.max() >= place.size or starts.min() < 0 or sizes.min() < 0):
        raise ConvertError(f"{where}: its categories are damaged")
    if (starts + sizes).max(initial=0) > every.size:
        raise ConvertError(f"{where}: expected {(starts + sizes).max()} categories, got {every.size}")
    return {int(place[n]): every[at : at + size] for n, at, size in zip(nodes, starts, sizes, strict=True)}


def _linear(
    model: Mapping[str, Any], features: int, targets: int, base: Array, link: str, labels: Labels | None
) -> ir.Model:
    """gblinear: a row of weights for every feature, then the biases. Missing values add nothing."""
    weights = _array(model, "weights", "f", (features + 1) * targets, "XGBoost: gblinear")
    table = weights.reshape(features + 1, targets).astype(np.float32)
    bias = (table[-1] + base[0]).astype(np.float32)  # XGBoost 3.2 adds the first number to every score

    def scores(tape: Tape, x: ir.Value) -> ir.Value:
        zero, w, b = (
            tape.initializer(ir.tensor(array, name=name), name)
            for name, array in (("zero", np.float32(0)), ("weights", table[:-1]), ("bias", bias))
        )
        known = tape.op("Where", [tape.op("IsNaN", [x]), zero, x])
        return LINKS[link](tape, tape.op("Gemm", [known, w, b]))

    return wrap(scores, features, 1 if link == "argmax" else targets, labels)


# -- fields of the document, checked ---------------------------------------------------------------------------------


def _table(parent: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = parent.get(name)
    if not isinstance(found, dict):
        raise ConvertError(f"XGBoost: expected {name} to be an object; the file is damaged, or older than version 1.6")
    return found


def _text(parent: Mapping[str, Any], name: str, default: str | None = None) -> str:
    found = parent.get(name, default)
    if not isinstance(found, str):
        raise ConvertError(f"XGBoost: expected {name} to be a text, got {found!r}")
    return found


def _count(parent: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A number of at most 2^24, written as text."""
    text = _text(parent, name, None if default is None else str(default))
    if not text.isdecimal() or len(text) > 8 or int(text) > 1 << 24:
        raise ConvertError(f"XGBoost: expected {name} to be a number of 0 to {1 << 24}, got {text!r}")
    return int(text)


def _array(parent: Mapping[str, Any], name: str, kind: str, size: int | None, where: str) -> Array:
    values = parent.get(name)
    if not isinstance(values, Sequence | np.ndarray) or isinstance(values, str):
        raise ConvertError(f"{where}: expected {name}; the file is damaged, or older than version 1.6")
    try:
        array = np.asarray(values, _DTYPES[kind])
    except (ValueError, TypeError, OverflowError):
        raise ConvertError(f"{where}: expected {name} of numbers") from None
    if array.ndim != 1 or (size is not None and array.size != size):
        raise ConvertError(f"{where}: expected {size} values of {name}, got {array.size}")
    return array
