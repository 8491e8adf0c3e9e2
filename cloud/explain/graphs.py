"""A differentiable model as what is explained, with the steps of its graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from cloud.audit.victim import WhiteBox
from cloud.engine import EngineFunction
from cloud.engine.lowering import Program, Step
from cloud.explain.attention import expanded
from lite_runtime.explaining import Limits, Subject
from lite_runtime.graph import Array

__all__ = ["GraphSubject", "graph_subject"]


class GraphSubject(Subject):
    """A subject whose inside methods may look at. `function` has one input, and the scores as its only output."""

    has_steps = True
    function: EngineFunction
    white: WhiteBox
    programs: dict[Any, Callable[..., Any]]

    def within(self, limits: Limits) -> GraphSubject:
        """See `Subject.within`."""
        made = graph_subject(self.white, limits)
        made.programs = self.programs
        return made

    def compiled(self, key: Any, make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        """The function that `make` returns, compiled once for each key."""
        if key not in self.programs:
            self.programs[key] = jax.jit(make())
        return self.programs[key]

    def weights(self) -> dict[str, Any]:
        """Parameters and statistics by name."""
        return {**self.function.params, **self.function.state}


def graph_subject(white: WhiteBox, limits: Limits | None = None) -> GraphSubject:
    """A white-box victim (`cloud.audit.victim`: from_onnx, from_bundle) as what is explained: its scores, logits where
    the model ends in a softmax."""
    assert white.function is not None, "made from a file"
    found = GraphSubject(
        white.name, white.shape, white.classes, white.logits, lambda x, target: _gradient(white, x, target),
        meaning="logit", limits=limits,
    )  # fmt: skip
    found.programs = {}
    program = white.function.program
    found.function, found.white = (
        replace(white.function, program=replace(program, steps=expanded(_needed(program)))),
        white,
    )
    return found


def _needed(program: Program) -> tuple[Step, ...]:
    """The steps that the scores depend on: the victim leaves out a last softmax, not what computes it."""
    wanted, kept = {program.outputs[0]}, list[Step]()
    for step in reversed(program.steps):
        if wanted & set(step.outputs):
            wanted |= set(step.inputs)
            kept.append(step)
    return tuple(reversed(kept))


def _gradient(white: WhiteBox, x: Array, target: int) -> Array:
    rows = 1 << max(len(x) - 1, 0).bit_length()  # few sizes, so that few programs are compiled
    filled = np.concatenate([x, np.repeat(x[:1], rows - len(x), axis=0)])
    white.counted(len(x))
    return np.asarray(white.compiled(_slopes)(filled, np.int32(target)))[: len(x)]


def _slopes(forward: Any, x: Any, target: Any) -> Any:
    return jax.grad(lambda x: forward(x)[:, target].sum())(x)
