"""Grad-CAM: the channels of a convolution's result, each weighed by its mean gradient.

Selvaraju et al. 2017, "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cloud.engine import EngineFunction, TensorSpec
from cloud.engine.lowering import LOWERINGS, Program, Step
from cloud.explain.graphs import GraphSubject
from lite_runtime.errors import ExplainError
from lite_runtime.explaining.explanation import Explanation, Making
from lite_runtime.graph import Array

__all__ = ["channel_map", "grad_cam", "layers_of"]

_CONVOLUTIONS = ("Conv", "ConvTranspose")
_FOLLOWING = frozenset(("Add", "BatchNormalization", "Clip", "Elu", "Gelu", "HardSwish", "LeakyRelu", "Relu", "Silu"))
"""What belongs to a convolution: the default layer is the result of the last of these after the last convolution."""
_DELTA = "#delta"


def grad_cam(subject: GraphSubject, x: Array, target: int, *, layer: str = "", relu: bool = True) -> Explanation:
    """The map of a layer, enlarged linearly to the sample's size and shared out evenly over its channels.

    layer: a name of `layers_of`; by default the last convolution with what is added and activated after it. relu: only
    what raises the score. Raises ExplainError for models without convolutions, and names that are not there.
    """
    x = subject.checked(x)
    subject.needs(1, "grad_cam", "allow one row")
    with Making(subject, "grad_cam", target) as making:
        layer = _chosen(subject, layer)
        found, score = channel_map(subject, x, target, layer)
        found = np.maximum(found, 0) if relu else found
        axes = _axes(subject.shape, found.shape, layer)
        big = np.asarray(jax.image.resize(found, [subject.shape[axis] for axis in axes], "linear"), np.float64)
        others = [axis for axis in range(x.ndim) if axis not in axes]
        big = np.broadcast_to(np.expand_dims(big, others), x.shape) / int(np.prod([x.shape[a] for a in others]))
        subject.asked += 1
        return making.done(big, score, layer=layer, relu=relu)


def channel_map(subject: GraphSubject, x: Array, target: int, layer: str) -> tuple[Array, float]:
    """The sum over channels of a layer's result times the mean gradient of its channel, of the layer's size, without
    its batch and channels; and the score."""
    run = subject.compiled(("grad_cam", layer), lambda: _mapped(subject.function, layer))
    function = subject.function
    found, score = run(function.params, function.state, dict(subject.held), jnp.asarray(x[None]), np.int32(target))
    return np.asarray(found, np.float64), float(score)


def _mapped(function: EngineFunction, layer: str) -> Callable[..., Any]:
    """Parameters, state, further inputs, a sample and a target to the map and the score."""
    tapped = _tapped(function, layer)
    given, scores, kept = function.inputs[0].name, tapped.outputs[0].name, tapped.outputs[1].name

    def run(params: Any, state: Any, held: Any, x: Any, target: Any) -> tuple[Any, Any]:
        def scored(delta: Any) -> tuple[Any, Any]:
            found = tapped.apply(params, state, {given: x, **held, _DELTA: delta})[0]
            return found[scores][0, target], found[kept]

        shape = jax.eval_shape(scored, jnp.zeros((), jnp.float32))[1].shape
        (score, values), slopes = jax.value_and_grad(scored, has_aux=True)(jnp.zeros(shape, jnp.float32))
        spatial = tuple(range(2, len(shape)))
        return (values * slopes.mean(spatial, keepdims=True)).sum(1)[0], score

    return run


def layers_of(subject: GraphSubject) -> tuple[str, ...]:
    """Names of the results that can be explained: of convolutions, and of what follows them."""
    steps = subject.function.program.steps
    return tuple(name for step in steps if step.op in _CONVOLUTIONS for name in _chain(steps, step))


def _chain(steps: tuple[Step, ...], step: Step) -> list[str]:
    """The results of a step and of those after it in its chain."""
    names = [step.outputs[0]]
    while True:
        readers = [other for other in steps if names[-1] in other.inputs]
        if len(readers) != 1 or readers[0].op not in _FOLLOWING:
            return names
        names.append(readers[0].outputs[0])


def _chosen(subject: GraphSubject, layer: str) -> str:
    names = layers_of(subject)
    if not names:
        raise ExplainError(f"{subject.name}: grad_cam needs a convolution, and there is none; use another method")
    if layer and layer not in names:
        raise ExplainError(f"layer: expected one of {', '.join(names)}, got {layer!r}")
    if layer:
        return layer
    steps = subject.function.program.steps
    return _chain(steps, next(step for step in reversed(steps) if step.op in _CONVOLUTIONS))[-1]


def _tapped(function: EngineFunction, name: str) -> EngineFunction:
    """The function with one more input, that is added to the value `name`, and the sum as one more output."""
    steps: list[Step] = []
    for step in function.program.steps:
        if name not in step.outputs:
            steps.append(step)
            continue
        raw = f"{name}#raw"
        steps.append(replace(step, outputs=tuple(raw if output == name else output for output in step.outputs)))
        steps.append(Step("Add", LOWERINGS["Add"], (raw, _DELTA), (name,), {}, step.where, step.index))
    program: Program = replace(
        function.program, steps=tuple(steps), inputs=(*function.program.inputs, _DELTA),
        outputs=(*function.program.outputs[:1], name),
    )  # fmt: skip
    kept = TensorSpec(f"{name}#kept", np.dtype(np.float32), None)
    delta = TensorSpec(_DELTA, np.dtype(np.float32), None)
    return replace(
        function, program=program, inputs=(*function.inputs, delta), outputs=(*function.outputs[:1], kept)
    )  # fmt: skip


def _axes(shape: tuple[int, ...], size: tuple[int, ...], layer: str) -> tuple[int, ...]:
    """The sample's axes that the map lies along: those after the channels or, with channels last, before them."""
    rank = len(size)
    for first in (1, 0):
        axes = tuple(range(first, first + rank))
        if rank < len(shape) and all(shape[axis] >= extent for axis, extent in zip(axes, size, strict=True)):
            return axes
    raise ExplainError(f"layer: expected one whose size {list(size)} fits a sample {list(shape)}, got {layer!r}")
