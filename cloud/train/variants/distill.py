"""A teacher: the student also learns its outputs (Hinton et al., "Distilling the Knowledge in a Neural Network", 2015)
and hidden values (Romero et al., "FitNets: Hints for Thin Deep Nets", ICLR 2015)."""

from __future__ import annotations

import glob
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from cloud._jax import shaped
from cloud.errors import EngineError, TrainError
from cloud.train.stepping.losses import PerExample
from cloud.train.tasks import Task, as_task
from cloud.train.tasks.task import Tree

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["HINT", "Distill", "DistillTask", "Taught", "distilled", "of_student"]

HINT = "hint:"
"""How the names of matrices begin that map hidden values to the teacher's."""
_ROWS = 2


@dataclass(frozen=True)
class Distill:
    """`teacher`: what `Trainer` takes as a model, with the student's inputs; it computes in inference form and does not
    change. The loss is (1 - weight) times that of the labels, plus weight times temperature² times the divergence
    KL(teacher ‖ student) of the softmax of the outputs divided by `temperature`.

    `hints`: hidden values of the student by name (values of an ONNX graph; of other tasks, outputs by name) and the
    teacher's value that each should equal; the mean of their squared differences times `hint_weight` is added. Where an
    ONNX student's hidden value has another number of channels, a trained matrix maps it to the teacher's; channels are
    the axis 1 of images and the last one otherwise. Metrics and validation are of the student and the labels alone.
    """

    teacher: Any
    temperature: float = 2.0
    weight: float = 0.5
    hints: Mapping[str, str] = field(default_factory=dict)
    hint_weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise TrainError(f"distill: expected a temperature above 0, got {self.temperature}")
        if not 0 <= self.weight <= 1:
            raise TrainError(f"distill: expected a weight from 0 to 1, got {self.weight}")
        if not (0 < self.hint_weight < math.inf):
            raise TrainError(f"distill: expected a hint_weight above 0, got {self.hint_weight}")
        if self.weight == 0 and not self.hints:
            raise TrainError("distill: expected a weight above 0, or hints: without both the teacher teaches nothing")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Taught:
    """The student's output, the teacher's, and pairs of hidden values."""

    student: Any
    teacher: Any
    hints: tuple[tuple[Any, Any], ...]


class DistillTask:
    """`student` beside a teacher, whose weights are part of the state, so that plans and checkpoints hold them."""

    def __init__(self, student: Task, distill: Distill, frozen: Sequence[str] = ()) -> None:
        teacher = as_task(distill.teacher)
        if set(teacher.inputs) != set(student.inputs):
            raise TrainError(f"distill: expected a teacher of {list(student.inputs)}, got {list(teacher.inputs)}")
        self._student, self.inputs, self._hints = student, student.inputs, dict(distill.hints)
        self._of_student = _hinting(student, tuple(self._hints), "student", frozen)
        self._of_teacher = _hinting(teacher, tuple(dict.fromkeys(self._hints.values())), "teacher", ())
        (params, state), taught = student.init(), teacher.init()
        mapped = self._projections((params, state), taught)
        if mapped and not isinstance(params, Mapping):
            raise TrainError(f"distill: expected parameters in a dict, got {type(params).__name__}; name them")
        start = {**params, **mapped} if mapped else params
        self._start = start, {"student": state, "teacher": taught}

    @property
    def function(self) -> Any:
        """The student's function, if it is an ONNX model."""
        return getattr(self._student, "function", None)

    @property
    def student(self) -> Task:
        """The task that is taught."""
        return self._student

    def init(self) -> tuple[Tree, Tree]:
        """See `Task`."""
        return self._start

    def apply(
        self, params: Tree, state: Tree, inputs: Mapping[str, Any], rng: jax.Array | None, train: bool
    ) -> tuple[Any, Tree]:
        """See `Task`: `Taught` in training, else the student's output."""
        own, maps = self._apart(params)
        if not train:
            output, after = self._student.apply(own, state["student"], inputs, rng, train)
            return output, {**state, "student": after}
        found, after = self._of_student(own, state["student"], inputs, rng, train)
        weights, held = state["teacher"]
        try:
            wanted, _ = self._of_teacher(weights, held, inputs, None, False)
        except EngineError as error:
            raise TrainError(f"distill: the teacher does not take the student's inputs: {error}") from error
        wanted = jax.lax.stop_gradient(wanted)
        pairs = tuple(self._pair(s, t, found[1], wanted[1], maps) for s, t in self._hints.items())
        return Taught(found[0], wanted[0], pairs), {**state, "student": after}

    def export(self, params: Tree, state: Tree) -> ir.Model:
        """See `Task`: the student."""
        return self._student.export(self._apart(params)[0], state["student"])

    def _apart(self, params: Tree) -> tuple[Tree, Mapping[str, Any]]:
        """The student's parameters, and the matrices of hints."""
        if not self._hints or not isinstance(params, Mapping):
            return params, {}
        maps = {name: value for name, value in params.items() if str(name).startswith(HINT)}
        return {name: value for name, value in params.items() if name not in maps}, maps

    @staticmethod
    def _pair(mine: str, other: str, found: Any, wanted: Any, maps: Mapping[str, Any]) -> tuple[Any, Any]:
        a, b = found[mine], wanted[other]
        if (matrix := maps.get(f"{HINT}{mine}")) is not None:
            axis = _channels(a.ndim)
            a = jnp.moveaxis(jnp.moveaxis(a, axis, -1) @ matrix.astype(a.dtype), -1, axis)
        if a.shape != b.shape:
            raise TrainError(
                f"distill: the hints {mine!r} {list(a.shape)} and {other!r} {list(b.shape)} differ in shape"
            )
        return a, b

    def _projections(self, of_student: tuple[Tree, Tree], of_teacher: tuple[Tree, Tree]) -> dict[str, Any]:
        """Matrices [student's channels, teacher's channels] for hints of ONNX models whose channels differ."""
        specs = getattr(getattr(self._student, "function", None), "inputs", ())
        known = specs and all(s.shape is not None and all(isinstance(d, int) for d in s.shape[1:]) for s in specs)
        if not self._hints or not known:
            return {}
        given = {spec.name: shaped((_ROWS, *spec.shape[1:]), spec.dtype) for spec in specs}
        mine = jax.eval_shape(lambda x: self._of_student(*of_student, x, jax.random.key(0), True)[0][1], given)
        theirs = jax.eval_shape(lambda x: self._of_teacher(*of_teacher, x, None, False)[0][1], given)
        made = {}
        rng = np.random.default_rng(0)
        for name, other in self._hints.items():
            a, b = (found.shape[_channels(len(found.shape))] for found in (mine[name], theirs[other]))
            if a != b:
                made[f"{HINT}{name}"] = (rng.standard_normal((a, b)) / math.sqrt(a)).astype(np.float32)
        return made


def _channels(rank: int) -> int:
    return 1 if rank >= 4 else -1


class _Hinting:
    """A task's apply that returns ((output, hidden values by name), state)."""

    def __init__(self, run: Callable[..., Any], hidden: Sequence[str], what: str) -> None:
        self._run, self._hidden, self._what = run, tuple(hidden), what

    def __call__(self, params: Tree, state: Tree, inputs: Mapping[str, Any], rng: Any, train: bool) -> Any:
        output, after = self._run(params, state, inputs, rng, train)
        if not self._hidden:
            return (output, {}), after
        if not isinstance(output, Mapping) or not set(self._hidden) < set(output):
            told = sorted(output) if isinstance(output, Mapping) else "one array"
            raise TrainError(
                f"distill: expected outputs {list(self._hidden)} and one more of the {self._what}, got {told}"
            )
        rest = {name: value for name, value in output.items() if name not in self._hidden}
        main = next(iter(rest.values())) if len(rest) == 1 else rest
        return (main, {name: output[name] for name in self._hidden}), after


def _hinting(task: Task, hidden: Sequence[str], what: str, frozen: Sequence[str]) -> _Hinting:
    model = getattr(task, "model", None)
    if model is None or not hidden:
        return _Hinting(task.apply, hidden, what)
    from cloud.engine import lower

    copy = model.clone()
    values = {value.name: value for node in copy.graph for value in node.outputs}
    for name in hidden:
        if name not in values:
            few = ", ".join(list(values)[:12])
            raise TrainError(f"distill: the {what} has no value {name!r}; there are {few} …")
        if not values[name].is_graph_output():
            copy.graph.outputs.append(values[name])
    chosen = [glob.escape(name) for name in task.function.params]  # type: ignore[attr-defined]
    function = lower(copy, training=True, trainable=chosen, frozen=frozen)

    def run(params: Tree, state: Tree, inputs: Mapping[str, Any], rng: Any, train: bool) -> Any:
        return function.apply(params, state, inputs, rng=rng, train=train)

    return _Hinting(run, hidden, what)


def distilled(loss: PerExample, distill: Distill) -> PerExample:
    """The loss of `Taught`; of a plain output, as in validation, the loss itself."""

    def taught(output: Any, labels: Any) -> Any:
        if not isinstance(output, Taught):
            return loss(output, labels)
        rows = (1 - distill.weight) * loss(output.student, labels)
        if distill.weight:
            rows += distill.weight * _divergence(output.student, output.teacher, distill.temperature)
        for mine, other in output.hints:
            rows += distill.hint_weight * _by_row(jnp.square(mine - other))
        return rows

    return taught


def _divergence(student: Any, teacher: Any, temperature: float) -> Any:
    """[rows]: temperature² KL(teacher ‖ student), the mean over the positions of a sequence."""
    if not (hasattr(student, "shape") and hasattr(teacher, "shape") and student.shape == teacher.shape):
        shown = [jax.tree.map(lambda a: list(a.shape), each) for each in (student, teacher)]
        raise TrainError(
            f"distill: expected outputs of one shape, got the student's {shown[0]}, the teacher's {shown[1]}"
        )
    wanted = jax.nn.log_softmax(teacher / temperature)
    found = jax.nn.log_softmax(student / temperature)
    return _by_row(temperature**2 * jnp.sum(jnp.exp(wanted) * (wanted - found), axis=-1))


def _by_row(values: Any) -> Any:
    return values if values.ndim == 1 else jnp.mean(values, axis=tuple(range(1, values.ndim)))


def of_student(metric: PerExample) -> PerExample:
    """A metric of the student's output."""

    def measured(output: Any, labels: Any) -> Any:
        return metric(output.student if isinstance(output, Taught) else output, labels)

    return measured
