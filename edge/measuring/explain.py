"""What `msedge explain` does: which model answers which method, the explanations, and how faithful they are to the
model that is deployed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lite_runtime import bundle
from lite_runtime.errors import ExplainError, MsedgeError
from lite_runtime.explaining import (
    METHODS,
    Curves,
    Explanation,
    Limits,
    Method,
    Subject,
    Wish,
    available,
    curves,
    explain,
    infidelity,
    sensitivity_max,
    subject_of,
)
from lite_runtime.graph import Array, numpy_dtype

__all__ = ["GRAPH_METHODS", "Asked", "Explained", "Faithful", "Opened", "faithful", "opened"]

GRAPH_METHODS = ("grad_cam", "lrp")
"""Methods of `cloud.explain`, which need its packages."""
ALL = "all"
CHANGES, NEARBY = 64, 4
"""Rows of the infidelity, and copies of the sample of the sensitivity."""
RADIUS = 0.02
"""Of the copies, as a share of the sample's range."""
NOTHING: Mapping[str, Array] = {}


@dataclass(frozen=True)
class Faithful:
    """How an explanation agrees with the deployed model. Scores that are compared are those of the sample's target."""

    curves: Curves
    infidelity: float
    """With attributions scaled to the best, as a share of the mean squared change: 0 is perfect, 1 says nothing."""
    sensitivity: float | None
    """None of inputs that cannot be changed a little."""


@dataclass(frozen=True)
class Asked:
    """An explanation, what was asked for it, and how faithful it is if that was wanted."""

    explanation: Explanation
    model: str
    faithful: Faithful | None = None


@dataclass(frozen=True)
class Explained:
    """All that is shown."""

    model: str
    sample: Array
    wish: Wish
    target: int
    scores: Array
    """(outputs,) of the deployed model."""
    asked: Sequence[Asked]
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Methods that were among "all" and do not fit, with the reason."""


@dataclass(frozen=True)
class Opened:
    """The deployed model, and the one that methods by gradients and inside the graph ask."""

    deployed: Subject
    inside: Subject
    table: Mapping[str, Method]
    words: str
    """What `inside` is."""

    def subject(self, method: str) -> Subject:
        """The one that a method asks."""
        return self.deployed if self.table[method].needs == "scores" else self.inside

    def methods(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """The methods asked for; `all`: those that fit."""
        if unknown := [name for name in wanted if name not in self.table and name != ALL]:
            raise ExplainError(f"method: expected all or some of {', '.join(self.table)}, got {unknown[0]!r}")
        if ALL in wanted:
            return tuple(self.table)
        fits = available(self.inside, self.table)
        usual = "integrated_gradients" if "integrated_gradients" in fits else "kernel_shap"
        return tuple(dict.fromkeys(wanted)) or (usual,)

    def run(
        self, sample: Array, wish: Wish, wanted: Sequence[str], target: int | None = None, *, compare: bool = False,
        limits: Limits | None = None, tell: Callable[[str], None] = lambda text: None,
    ) -> Explained:  # fmt: skip
        """The explanations of one sample. compare: also how faithful they are. limits: of each method by itself.
        Raises ExplainError for methods and settings that do not fit; of `all`, those are left out."""
        sample = self.deployed.checked(sample)
        scores = self.deployed.within(Limits()).scores(sample[None])[0]
        target = self.deployed.target(int(scores.argmax()) if target is None else target)
        asked, left = list[Asked](), dict[str, str]()
        for name in self.methods(wanted):
            tell(name)
            subject = self.subject(name).within(limits or Limits())
            try:
                found = explain(subject, sample, name, wish, target, self.table)
                told = faithful(self, sample, wish, found) if compare else None
            except ExplainError as error:
                if ALL not in wanted:
                    raise
                left[name] = str(error)
                continue
            what = "the model as deployed" if self.table[name].needs == "scores" else self.words
            asked.append(Asked(found, f"{subject.meaning}, {what}", told))
        if not asked:
            raise ExplainError("; ".join(dict.fromkeys(left.values())))
        return Explained(self.deployed.name, sample, wish, target, scores, asked, left)


def faithful(models: Opened, sample: Array, wish: Wish, found: Explanation) -> Faithful:
    """The figures of an explanation, asked of the deployed model."""
    subject, base, method = models.deployed.within(Limits()), wish.baselines[0], models.table[found.method]
    given = (subject, sample, found.target, found.attributions)
    both = curves(*given, baseline=base, layout=wish.layout)
    count = int(wish.parts.max()) + 1
    removed = np.random.default_rng(wish.seed).random((CHANGES, count))[:, wish.parts] < 0.3
    slopes = method.slopes and sample.dtype.kind == "f"
    missed = infidelity(*given, removed, baseline=base, slopes=slopes, scaled=True)
    nothing = infidelity(*given[:3], np.zeros(sample.shape), removed, baseline=base)
    moved = None
    if sample.dtype.kind == "f":
        again = models.subject(found.method).within(Limits())
        moved = sensitivity_max(
            lambda x: explain(again, x, found.method, wish, found.target, models.table).attributions, sample,
            radius=RADIUS * (float(np.ptp(sample)) or 1.0), samples=NEARBY, seed=wish.seed,
        )  # fmt: skip
    return Faithful(both, missed / nothing if nothing else 0.0, moved)


def opened(
    model: Path, twin: Path | None, wanted: Sequence[str], *, given: str | None = None, output: str | None = None,
    held: Mapping[str, Array] = NOTHING, position: int = -1, layer: str = "", rules: str = "composite",
) -> Opened:  # fmt: skip
    """A bundle, or a model that can be converted, by its path. twin: a float model of the same function for methods by
    gradients, a bundle or another format. given, output, held, position: as of `subject_of`. Raises ExplainError for
    forms that do not fit, and for `grad_cam` and `lrp` where the packages of training are missing."""
    form: dict[str, Any] = {"given": given, "output": output, "held": held, "position": position}
    if model.suffix != ".mslite":
        if twin is not None:
            raise ExplainError(
                f"expected a bundle with a float twin, got {model.name}, which is one itself; omit --float"
            )
        subject, table = _inside(model, layer, rules, form)
        return Opened(subject, subject, table, _by_vectors(subject, "by JAX"))
    import lite_runtime

    loaded, words = lite_runtime.load(model), "by the bundle's signature explain"
    deployed = subject_of(loaded, model.name, plain=True, **form)
    signed = subject_of(loaded, model.name, **form)
    graph = bool({*wanted} & {*GRAPH_METHODS, ALL})
    gradient = not wanted or any(METHODS[name].needs == "gradient" for name in wanted if name in METHODS)
    if twin is None and not graph and (signed.has_gradient or not gradient):
        return Opened(deployed, signed, METHODS, words)
    try:
        subject, table = _inside(twin or model, layer, rules, form)
    except (MsedgeError, ImportError) as error:
        return _without(deployed, signed, twin, {*wanted}, error)
    if subject.shape != deployed.shape or subject.outputs != deployed.outputs:
        raise ExplainError(
            f"--float: expected a model from {list(deployed.shape)} to {deployed.outputs} scores as {model.name}, got "
            f"{list(subject.shape)} and {subject.outputs}"
        )
    words = f"of the float twin {twin.name}" if twin else "of its graph by JAX"
    return Opened(deployed, subject, table, _by_vectors(subject, words))


def _by_vectors(subject: Subject, words: str) -> str:
    return words if subject.embedding is None else f"{words}, with respect to the tokens' vectors"


def _without(deployed: Subject, signed: Subject, twin: Path | None, wanted: set[str], error: Exception) -> Opened:
    """The bundle alone, if that is enough for what is wanted."""
    named = [name for name in wanted if name in GRAPH_METHODS or (name in METHODS and METHODS[name].needs != "scores")]
    if isinstance(error, ImportError) and (twin is not None or named):
        from edge.extras import explain_missing

        raise (explain_missing(error) if isinstance(error, ModuleNotFoundError) else None) or error
    if twin is not None:
        raise error
    left = [name for name in named if name not in available(signed)]
    if left:
        why, remain = str(error).partition(";")[0], ", ".join(available(signed))
        raise ExplainError(
            f"{left[0]} needs a gradient of a float model: {why}; {remain} remain, or give that model with --float, "
            "or convert with --explainable"
        )
    return Opened(deployed, signed, METHODS, "by the bundle's signature explain")


def _inside(path: Path, layer: str, rules: str, form: Mapping[str, Any]) -> tuple[Subject, Mapping[str, Method]]:
    """The model as a function of JAX. form: given, output, held and position, of a model of token ids."""
    from cloud.audit.victim import from_bundle, from_onnx
    from cloud.explain import graph_subject, methods, text_from_bundle, text_from_onnx
    from converter import to_ir

    table = methods(layer=layer, rules=rules)
    if path.suffix == ".mslite":
        inputs = bundle.read(path).signatures["predict"].inputs
        if _is_text({value.name: numpy_dtype(value.dtype) for value in inputs}, form):
            return text_from_bundle(path, **form), table
        return graph_subject(from_bundle(path)), table
    model = to_ir(path)
    dtypes = {str(value.name): np.dtype(value.dtype.numpy()) for value in model.graph.inputs if value.dtype is not None}
    if _is_text(dtypes, form):
        return text_from_onnx(model, path.name, **form), table
    return graph_subject(from_onnx(model, path.name)), table


def _is_text(dtypes: Mapping[str, np.dtype[Any]], form: Mapping[str, Any]) -> bool:
    """Whether what is explained are token ids: whole numbers of more than 8 bits, which images of integers have."""
    names = [name for name in dtypes if name not in form["held"] and form["given"] in (None, name)]
    return len(names) == 1 and dtypes[names[0]].kind in "iu" and dtypes[names[0]].itemsize > 1
