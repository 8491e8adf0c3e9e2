"""Models of token ids as what is explained: functions of the vectors of their tokens.

    subject = text_from_bundle("bert.mslite")

The step that looks vectors up becomes an input. All else that reads the ids, such as a mask of padding, still does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir

import lite_runtime
from cloud.audit.lifting import function_of_graph, without_softmax
from cloud.engine import EngineFunction, TensorSpec, lower
from cloud.engine.lowering import LOWERINGS, Program, Step
from cloud.errors import EngineError
from cloud.explain.graphs import GraphSubject, filled, taken_apart
from converter import to_ir
from lite_runtime import bundle
from lite_runtime.errors import ExplainError
from lite_runtime.explaining import Embedding, Limits, Subject, subject_of
from lite_runtime.explaining.bundles import position_of
from lite_runtime.explaining.faithfulness import probabilities
from lite_runtime.graph import Array

__all__ = ["text_from_bundle", "text_from_onnx", "text_subject"]

_SAME = ("Cast", "Identity")
_AT = "#position"
_TOLERANCE = 1e-3
"""The greatest difference between a bundle's probabilities and those of its JAX function."""


def text_from_onnx(model: str | os.PathLike[str] | ir.Model, name: str = "", **form: Any) -> Subject:
    """An ONNX model through the cloud engine. form: as of `text_subject`. Raises ExplainError for a model of another
    form or with operators that the engine does not have, ConvertError for a file that cannot be read."""
    name = name or (str(model.graph.name) if isinstance(model, ir.Model) else Path(model).name)
    try:
        function = lower(model if isinstance(model, ir.Model) else to_ir(model))
    except EngineError as error:
        raise ExplainError(f"{name}: {error}; convert it and explain the bundle") from None
    return text_subject(function, name, **form)


def text_from_bundle(source: str | os.PathLike[str] | bytes, name: str = "", **form: Any) -> Subject:
    """A float bundle's `predict`: its graph as it is stored. form: as of `text_subject`.

    Raises ExplainError for a model of another form, and if the function's probabilities differ from the runtime's;
    AuditError for operators that the engine does not have (all integer bundles).
    """
    name = name or ("bundle" if isinstance(source, bytes) else Path(source).name)
    function = function_of_graph(bundle.read(source).at_first("predict"), name)
    limits = form.pop("limits", None)
    found = text_subject(function, name, **form)
    deployed = subject_of(lite_runtime.load(source), name, plain=True, **form)
    assert found.embedding is not None, "a text"
    ids = np.random.default_rng(0).integers(0, found.embedding.tokens, (2, *found.shape)).astype(found.dtype)
    ours, theirs = (probabilities(subject.scores(ids)) for subject in (found, deployed))
    if not np.abs(ours - theirs).max() <= _TOLERANCE * max(1.0, float(np.abs(theirs).max())):
        raise ExplainError(
            f"{name}: its JAX function's probabilities differ from the runtime's by {np.abs(ours - theirs).max():.3g}; "
            "methods that need predictions alone remain"
        )
    return found.within(limits or Limits())


def text_subject(
    function: EngineFunction, name: str, *, given: str | None = None, output: str | None = None,
    held: Mapping[str, Array] | None = None, position: int = -1, limits: Limits | None = None,
) -> Subject:  # fmt: skip
    """A model of token ids, with gradients by their vectors; its scores are logits where it ends in a softmax.

    given, output, held, position: as of `lite_runtime.explaining.subject_of`. Raises ExplainError for a model of
    another form, above all one that does not look the ids up in one table of vectors.
    """
    held = {key: np.asarray(array) for key, array in (held or {}).items()}
    spec = _ids(function, name, given, held)
    rows, *sizes = spec.shape or ()
    if opened := [str(size) for size in sizes if not isinstance(size, int)]:
        raise ExplainError(
            f"{name}: expected an input with all sizes known but the first, got open ones ({', '.join(opened)}); "
            "convert with --input-shape"
        )
    shape = tuple(size for size in sizes if isinstance(size, int))
    lookup, table = _lookup(function, name, spec.name)
    rest = _without(_scored(function, name, output, position, shape, spec, held), lookup, table.shape[1], spec)
    text = _Text(name, rest, spec, lookup.outputs[0], table, held, rows == 1, {})
    outputs = text.outputs(shape)
    return Subject(
        name, shape, outputs, text.scores_of_ids, dtype=spec.dtype, meaning="logit", limits=limits,
        embedding=Embedding(text.vectors, partial(text.around, outputs), len(table), has_steps=True),
    )  # fmt: skip


def _ids(function: EngineFunction, name: str, given: str | None, held: Mapping[str, Array]) -> TensorSpec:
    others = [spec for spec in function.inputs if spec.name not in held]
    found = [spec for spec in others if given in (None, spec.name)]
    if len(found) != 1 or len(others) != 1:
        raise ExplainError(
            f"{name}: expected one input to explain and a value for each other, got "
            f"{', '.join(spec.name for spec in function.inputs)} with values for {', '.join(held) or 'none'}"
        )
    if found[0].dtype.kind not in "iu" or not found[0].shape:
        raise ExplainError(f"{name}: expected token ids, got {found[0].name} {found[0].dtype}")
    return found[0]


def _lookup(function: EngineFunction, name: str, ids: str) -> tuple[Step, Array]:
    """The step that looks the ids up, and its table (tokens, width)."""
    same, found = {ids}, list[Step]()
    weights: dict[str, Any] = {**function.program.constants, **function.params}
    for step in function.program.steps:
        if step.op in _SAME and step.inputs[0] in same:
            same.add(step.outputs[0])
        elif step.op == "Gather" and step.inputs[1] in same and step.attributes.get("axis", 0) == 0:
            found.append(step)
    tables = [step for step in found if step.inputs[0] in weights and np.ndim(weights[step.inputs[0]]) == 2]
    if len(tables) != 1:
        raise ExplainError(
            f"{name}: expected one table of vectors in which {ids} is looked up, got {len(tables)}; methods that need "
            "predictions alone remain"
        )
    return tables[0], np.asarray(weights[tables[0].inputs[0]])


def _scored(
    function: EngineFunction, name: str, output: str | None, position: int, shape: tuple[int, ...], spec: TensorSpec,
    held: Mapping[str, Array],
) -> EngineFunction:  # fmt: skip
    """The function with the scores [rows, outputs] of one output, or of one position of it, as its only output."""
    names = [out.name for out in function.outputs]
    output = output or names[0]
    if output not in names:
        raise ExplainError(f"{name}: expected an output of {', '.join(names)}, got {output!r}")
    program = without_softmax(replace(function.program, outputs=(output,)))
    made = replace(function, program=program, outputs=(function.outputs[names.index(output)],))
    inputs = {spec.name: jnp.zeros((1, *shape), spec.dtype), **held}
    found = jax.eval_shape(lambda params, state: made.apply(params, state, inputs)[0], function.params, function.state)
    sizes = found[output].shape
    if len(sizes) == 2:
        return made
    if len(sizes) != 3:
        raise ExplainError(
            f"{name}: expected scores [rows, outputs] or [rows, positions, outputs], got {output} {list(sizes)}"
        )
    at = np.asarray(position_of(name, position, sizes[1]))
    last = Step("Gather", LOWERINGS["Gather"], (program.outputs[0], _AT), (f"{output}{_AT}",), {"axis": 1}, name, 0)
    return replace(
        made,
        program=replace(
            program, steps=(*program.steps, last), outputs=last.outputs, constants={**program.constants, _AT: at}
        ),
    )


def _without(function: EngineFunction, lookup: Step, width: int, ids: TensorSpec) -> EngineFunction:
    """The function with the vectors as its first input in place of the step that looks them up."""
    program: Program = function.program
    vectors = TensorSpec(lookup.outputs[0], np.dtype(np.float32), (*(ids.shape or ()), width))
    steps = tuple(step for step in program.steps if step is not lookup)
    return replace(
        function, inputs=(vectors, *function.inputs),
        program=replace(program, steps=steps, inputs=(vectors.name, *program.inputs)),
    )  # fmt: skip


@dataclass(frozen=True)
class _Text:
    """What runs rows of vectors beside ids. `single`: of a model for one row at a time."""

    name: str
    function: EngineFunction
    ids: TensorSpec
    vectors_name: str
    table: Array
    held: Mapping[str, Array]
    single: bool
    programs: dict[Any, Any]

    def outputs(self, shape: tuple[int, ...]) -> int:
        """How many scores there are."""
        x = jnp.zeros((1, *shape), self.ids.dtype)
        found = jax.eval_shape(self._forward, self._weights(), x, jnp.zeros((1, *shape, self.table.shape[1])))
        return int(found.shape[1])

    def vectors(self, ids: Array) -> Array:
        """Ids (rows, *shape) to vectors. Raises ExplainError for ids that the table does not have."""
        low, high = int(ids.min(initial=0)), int(ids.max(initial=0))
        if low < 0 or high >= len(self.table):
            raise ExplainError(
                f"{self.name}: expected token ids from 0 to {len(self.table) - 1}, got {low if low < 0 else high}"
            )
        return np.asarray(self.table[ids], np.float32)

    def scores_of_ids(self, x: Array) -> Array:
        """Scores (rows, outputs) of ids (rows, *shape)."""
        ids, run = filled(x), self._compiled("scores", self._forward)
        return np.asarray(run(self._weights(), ids, self.vectors(ids)))[: len(x)]

    def around(self, outputs: int, x: Array) -> GraphSubject:
        """The subject of vectors, with these ids."""
        found = GraphSubject(
            self.name, (*x.shape, self.table.shape[1]), outputs, partial(self._scores, x), partial(self._slopes, x),
            meaning="logit",
        )  # fmt: skip
        found.function, found.programs = taken_apart(self.function), self.programs
        found.held = {self.ids.name: jnp.asarray(x[None]), **self.held}
        return found

    def _scores(self, ids: Array, vectors: Array) -> Array:
        given = filled(vectors)
        rows = np.broadcast_to(ids, (len(given), *ids.shape))
        return np.asarray(self._compiled("scores", self._forward)(self._weights(), rows, given))[: len(vectors)]

    def _slopes(self, ids: Array, vectors: Array, target: int) -> Array:
        given = filled(vectors)
        rows = np.broadcast_to(ids, (len(given), *ids.shape))
        run = self._compiled("slopes", self._backward)
        return np.asarray(run(self._weights(), rows, given, np.int32(target)))[: len(vectors)]

    def _backward(self, weights: Any, ids: Any, vectors: Any, target: Any) -> Any:
        return jax.grad(lambda vectors: self._forward(weights, ids, vectors)[:, target].sum())(vectors)

    def _forward(self, weights: Any, ids: Any, vectors: Any) -> Any:
        def batch(ids: Any, vectors: Any) -> Any:
            held = {key: jnp.repeat(array, len(ids), axis=0) for key, array in weights["held"].items()}
            inputs = {self.vectors_name: vectors, self.ids.name: ids, **held}
            return next(iter(self.function.apply(weights["params"], weights["state"], inputs)[0].values()))

        if not self.single:
            return batch(ids, vectors)
        return jax.vmap(lambda ids, vectors: batch(ids[None], vectors[None])[0])(ids, vectors)

    def _weights(self) -> dict[str, Any]:
        return {"params": self.function.params, "state": self.function.state, "held": dict(self.held)}

    def _compiled(self, key: str, function: Any) -> Any:
        if key not in self.programs:
            self.programs[key] = jax.jit(function)
        return self.programs[key]
