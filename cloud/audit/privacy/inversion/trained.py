"""The function whose gradient devices send, from the bundle that they train."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from cloud.audit.lifting import function_of_graph
from cloud.audit.privacy.inversion.geiping import gradient_of
from cloud.audit.privacy.inversion.observe import Loss
from cloud.errors import AuditError, EngineError
from cloud.federated.products import as_products
from federated.client.lite import LABELS, LiteLearner
from federated.learner import Batch
from lite_runtime import bundle
from lite_runtime.graph import Graph

__all__ = ["trained_function"]

LOSS = "loss"
_TOLERANCE = 1e-3
"""The greatest difference between the function's gradient and the device's, relative to the largest element."""


def trained_function(source: str | os.PathLike[str] | bytes) -> Loss:
    """The loss of a bundle's signature `gradients`, in training form, as a JAX function of one float32 input and its
    labels; `params` are those with gradients, `state` the running statistics.

    Raises AuditError for bundles of another form, with operators that the engine does not have, or whose gradient on
    the device runtime is another one; FederatedError for a bundle that cannot be trained.
    """
    learner, held = LiteLearner(source), bundle.read(source)
    name = "bundle" if isinstance(source, bytes) else os.path.basename(source)
    graph = _up_to(held.at_first("gradients"), LOSS)
    inputs = [value for value in graph.inputs if value.name != LABELS]
    if len(inputs) != 1 or inputs[0].dtype != "float32" or not inputs[0].shape or not learner.classifies:
        raise AuditError(f"{name}: expected a classifier of one float32 input, got inputs {[v.name for v in inputs]}")
    whole = function_of_graph(graph.replace(inputs=(*inputs, *(v for v in graph.inputs if v.name == LABELS))), name)
    statistics = set(held.uses["gradients"].writes.values())
    params = {n: jnp.asarray(value) for n, value in learner.params.items() if n not in statistics}
    state = {n: jnp.asarray(value) for n, value in learner.params.items() if n in statistics}
    fixed = {n: np.asarray(value) for n, value in whole.params.items() if n not in learner.params}
    program = replace(whole.program, constants={**whole.program.constants, **fixed})
    scores = held.signatures["predict"].outputs[0].shape if "predict" in held.signatures else None
    function = as_products(
        Loss(
            whole.inputs, whole.outputs, params, state, True, whole.opset, program,
            classes=scores[-1] if scores and isinstance(scores[-1], int) else 0,
        )
    )  # fmt: skip
    _check(name, function, learner)
    return function


def _up_to(graph: Graph, output: str) -> Graph:
    """The part of a graph that computes this output."""
    needed, nodes = {output}, []
    for node in reversed(graph.nodes):
        if needed & set(node.outputs):
            nodes.append(node)
            needed |= set(node.inputs)
    outputs = tuple(value for value in graph.outputs if value.name == output)
    constants = {name: array for name, array in graph.constants.items() if name in needed}
    return graph.replace(nodes=tuple(nodes[::-1]), outputs=outputs, constants=constants)


def _check(name: str, function: Loss, learner: LiteLearner) -> None:
    """Raises AuditError unless the gradient is what a device computes."""
    spec, rng = function.inputs[0], np.random.default_rng(0)
    sizes = [size if isinstance(size, int) else 2 for size in spec.shape or ()]
    x, labels = rng.random(sizes, np.float32), np.zeros(sizes[0], np.int32)
    device = learner.gradient(learner.params, Batch({spec.name: x}, labels)).grads
    try:
        ours = jax.jit(partial(gradient_of, function))(function.params, function.state, x, labels)
    except EngineError as error:
        raise AuditError(f"{name}: {error}") from None
    largest = max(float(np.abs(value).max(initial=0.0)) for value in device.values())
    apart = max(float(np.abs(np.asarray(ours[n]) - value).max(initial=0.0)) for n, value in device.items())
    if not apart <= _TOLERANCE * largest:
        raise AuditError(
            f"{name}: its JAX function's gradient differs from the device's by {apart:.3g}, where the largest element "
            f"is {largest:.3g}, so that nothing can be said of its messages"
        )
