"""A differentiable model as what is explained, with the steps of its graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

__all__ = ["GraphSubject", "filled", "graph_subject", "taken_apart"]


class GraphSubject(Subject):
    """A subject whose inside methods may look at. `function`: its first input is what is explained, the scores are its
    only output; `held` has the values of further inputs."""

    has_steps = True
    function: EngineFunction
    programs: dict[Any, Callable[..., Any]]
    held: Mapping[str, Any]

    def compiled(self, key: Any, make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        """The function that `make` returns, compiled once for each key."""
        if key not in self.programs:
            self.programs[key] = jax.jit(make())
        return self.programs[key]

    def weights(self) -> dict[str, Any]:
        """Parameters, statistics and the values of further inputs by name."""
        return {**self.function.params, **self.function.state, **self.held}


def graph_subject(white: WhiteBox, limits: Limits | None = None) -> GraphSubject:
    """A white-box victim (`cloud.audit.victim`: from_onnx, from_bundle) as what is explained: its scores, logits where
    the model ends in a softmax."""
    assert white.function is not None, "made from a file"
    found = GraphSubject(
        white.name, white.shape, white.classes, white.logits, lambda x, target: _gradient(white, x, target),
        meaning="logit", limits=limits,
    )  # fmt: skip
    found.function, found.programs, found.held = taken_apart(white.function), {}, {}
    return found


def taken_apart(function: EngineFunction) -> EngineFunction:
    """The function by the steps that its scores depend on, attention as what it stands for."""
    steps = expanded(_needed(function.program))
    return replace(function, program=replace(function.program, steps=steps))


def _needed(program: Program) -> tuple[Step, ...]:
    """The steps that the scores depend on: the victim leaves out a last softmax, not what computes it."""
    wanted, kept = {program.outputs[0]}, list[Step]()
    for step in reversed(program.steps):
        if wanted & set(step.outputs):
            wanted |= set(step.inputs)
            kept.append(step)
    return tuple(reversed(kept))


def filled(x: Array) -> Array:
    """The rows and copies of the first, so that there are few sizes, for which few programs are compiled."""
    return np.concatenate([x, np.repeat(x[:1], (1 << max(len(x) - 1, 0).bit_length()) - len(x), axis=0)])


def _gradient(white: WhiteBox, x: Array, target: int) -> Array:
    white.counted(len(x))
    return np.asarray(white.compiled(_slopes)(filled(x), np.int32(target)))[: len(x)]


def _slopes(forward: Any, x: Any, target: Any) -> Any:
    return jax.grad(lambda x: forward(x)[:, target].sum())(x)
