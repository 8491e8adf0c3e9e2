"""Several losses: one for each output of a model, added up with weights; and the weights of examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from cloud.errors import TrainError
from cloud.train.inputs.weights import plain, weights_of
from cloud.train.metrics.table import Metric, is_lower_better, metric_of
from cloud.train.metrics.whole import SetMetric
from cloud.train.stepping.losses import LOSSES, PerExample, is_of_classes

__all__ = ["Aims", "Head", "Loss", "aims_of", "loss_of"]


@dataclass(frozen=True)
class Head:
    """One of several losses. `output`: the model's output that it takes, by default the one with the head's name;
    `labels`: the key among labels that are a dict, by default the head's name. Its loss is reported as the metric
    NAME_loss, its `metrics` (names, or functions by name) as NAME_METRIC."""

    loss: str | PerExample = "softmax_cross_entropy"
    weight: float = 1.0
    output: str = ""
    labels: str = ""
    metrics: Sequence[str] | Mapping[str, Metric] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.weight < float("inf"):
            raise TrainError(f"expected a weight of at least 0 for a loss, got {self.weight}")


Loss: TypeAlias = str | PerExample | Mapping[str, str | PerExample | Head]


@dataclass(frozen=True)
class Aims:
    """What is minimised and measured: `loss` and `metrics` as a step takes them, `sets` over whole sets, names of which
    `less` is better, and which outputs have classes as labels: (output, labels) keys, "" for the only one."""

    loss: PerExample
    metrics: Mapping[str, PerExample]
    sets: Mapping[str, SetMetric]
    less: frozenset[str]
    of_classes: Sequence[tuple[str, str]]

    @property
    def known(self) -> list[str]:
        """The names of all metrics."""
        return [*self.metrics, *self.sets]


def aims_of(loss: Loss, metrics: Sequence[str] | Mapping[str, Metric] | None) -> Aims:
    """From the arguments of `Trainer`. Raises TrainError for names that are not known."""
    if not isinstance(loss, Mapping):
        if metrics is None:
            metrics = ("accuracy",) if loss == "softmax_cross_entropy" else ()
        one = loss_of(loss)
        measured = _metrics(metrics, one)
        return _aims(one, measured, _lesser(measured), [("", "")] if is_of_classes(one) else [])
    if not loss:
        raise TrainError("expected at least one loss, got an empty dict")
    heads = {name: head if isinstance(head, Head) else Head(head) for name, head in loss.items()}
    terms = {name: _picked(name, head, loss_of(head.loss)) for name, head in heads.items()}

    def total(output: Any, labels: Any) -> Any:
        return sum(head.weight * terms[name](output, labels) for name, head in heads.items())

    found: dict[str, Metric] = {f"{name}_loss": term for name, term in terms.items()}
    less = {*found}
    for name, head in heads.items():
        mine = _metrics(head.metrics, loss_of(head.loss))
        less |= {f"{name}_{key}" for key in _lesser(mine)}
        shared = {m.rows: _picked(name, head, m.rows) for m in mine.values() if isinstance(m, SetMetric)}
        for key, metric in mine.items():
            if isinstance(metric, SetMetric):
                found[f"{name}_{key}"] = replace(metric, rows=shared[metric.rows])
            else:
                found[f"{name}_{key}"] = _picked(name, head, metric)
    others = _metrics(metrics or {}, total)
    found, less = found | others, less | _lesser(others)
    classes = [_keys(name, head) for name, head in heads.items() if is_of_classes(loss_of(head.loss))]
    return _aims(total, found, less, classes)


def loss_of(choice: str | PerExample) -> PerExample:
    """The loss of that name, or the function itself."""
    if callable(choice):
        return choice
    if choice not in LOSSES:
        raise TrainError(f"expected a loss of {', '.join(LOSSES)}, or a function, got {choice!r}")
    return LOSSES[choice]


def _metrics(metrics: Sequence[str] | Mapping[str, Metric], loss: PerExample) -> dict[str, Metric]:
    pairs: Mapping[str, Any] = metrics if isinstance(metrics, Mapping) else {name: name for name in metrics}
    return {
        name: metric_of(metric, loss) if isinstance(metric, str) else metric for name, metric in pairs.items()
    }  # fmt: skip


def _lesser(metrics: Mapping[str, Metric]) -> set[str]:
    return {name for name, metric in metrics.items() if is_lower_better(metric)}


def _aims(loss: PerExample, metrics: Mapping[str, Metric], less: set[str], classes: Sequence[tuple[str, str]]) -> Aims:
    """With the weights of examples taken into account by the loss, and left out by metrics."""
    shared = {m.rows: _without(m.rows) for m in metrics.values() if isinstance(m, SetMetric)}
    sets = {n: replace(m, rows=shared[m.rows]) for n, m in metrics.items() if isinstance(m, SetMetric)}
    rows = {n: _without(m) for n, m in metrics.items() if not isinstance(m, SetMetric)}
    return Aims(_weighted(loss), rows, sets, frozenset(less | {"loss"}), classes)


def _weighted(loss: PerExample) -> PerExample:
    def weighted(output: Any, labels: Any) -> Any:
        values, weights = loss(output, plain(labels)), weights_of(labels)
        return values if weights is None else values * weights

    return weighted


def _without(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda output, labels: function(output, plain(labels))


def _keys(name: str, head: Head) -> tuple[str, str]:
    return head.output or name, head.labels or name


def _picked(name: str, head: Head, function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """`function` of the head's output and labels."""
    output, label = _keys(name, head)

    def picked(outputs: Any, labels: Any) -> Any:
        return function(_part(name, "output", outputs, output), _part(name, "labels", labels, label))

    return picked


def _part(name: str, what: str, tree: Any, key: str) -> Any:
    if isinstance(tree, Mapping) and key in tree:
        return tree[key]
    got = sorted(tree) if isinstance(tree, Mapping) else "one array"
    raise TrainError(f"loss {name!r}: expected {what} {key!r} in a dict, got {got}; name the right one: Head({what}=…)")
