"""Inputs of a dense first layer, exactly, by a division.

Phong, Aono, Hayashi, Wang and Moriai, "Privacy-Preserving Deep Learning via Additively Homomorphic Encryption", IEEE
TIFS 2018, section III; Geiping, Bauermeister, Dröge and Moeller 2020, proposition 3.1. The gradient of a unit's weights
is the input times that of its bias. For one example every unit gives the input; of several, a unit that only one of
them activates gives that one, and every other unit a mixture. The factor of clipping cancels.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cloud.audit.privacy.inversion.observe import Observed
from cloud.errors import AuditError

__all__ = ["dense_inputs", "first_dense"]

_PASS = ("Flatten", "Reshape", "Identity", "Squeeze", "Unsqueeze")
_AGREE = 1e-2
"""How far apart, relative to their length, two units' inputs may be to be those of one example."""


class _Dense(NamedTuple):
    """The names of a layer's parameters, and whether its weight is (inputs, units)."""

    weight: str
    bias: str
    inputs_first: bool


def first_dense(observed: Observed) -> _Dense | None:
    """The dense layer with a bias that reads the model's whole input; None if there is none."""
    found = _first(observed)
    if found is None or not {found.weight, found.bias} <= observed.gradient.keys():
        return None
    inputs = observed.gradient[found.weight].shape[0 if found.inputs_first else 1]
    return found if inputs == int(np.prod(observed.input[1])) else None  # not one that reads each part by itself


def _first(observed: Observed) -> _Dense | None:
    here, product = {observed.input[0]}, ""
    weights = {name: (name, True) for name in observed.gradient}  # operand of MatMul: its parameter, inputs first
    weight, inputs_first = "", True
    for step in observed.function.program.steps:
        if step.op in _PASS and step.inputs[0] in here:
            here.add(step.outputs[0])
        elif step.op == "Transpose" and step.inputs[0] in observed.gradient:
            weights[step.outputs[0]] = step.inputs[0], False
        elif step.op == "Gemm" and step.inputs[0] in here and len(step.inputs) > 2:
            weight, bias = step.inputs[1:3]
            return _Dense(weight, bias, not step.attributes.get("transB", 0))
        elif step.op == "MatMul" and step.inputs[0] in here and step.inputs[1] in weights:
            product, (weight, inputs_first) = step.outputs[0], weights[step.inputs[1]]
        elif step.op == "Add" and product and product in step.inputs:
            bias = next(name for name in step.inputs if name != product)
            return _Dense(weight, bias, inputs_first)
    return None


def dense_inputs(observed: Observed) -> np.ndarray:
    """Up to `examples` reconstructions (found, ...) float32: of one example the least squares over all units; of
    several the inputs on which most units agree, then those of the units with the largest gradients.

    Raises AuditError if the model's first layer is not dense with a bias, or no unit has a gradient.
    """
    layer = first_dense(observed)
    if layer is None:
        raise AuditError("expected a dense first layer with a bias; use geiping for convolutions")
    weight, bias = (np.asarray(observed.gradient[name], np.float64) for name in (layer.weight, layer.bias))
    shape = observed.input[1]
    weight = weight.T if layer.inputs_first else weight
    alive = np.abs(bias) > 1e-12 * max(float(np.abs(bias).max(initial=0.0)), 1e-30)
    if not alive.any():
        raise AuditError("the first layer's gradient is zero; there is nothing to invert")
    weight, bias = weight[alive], bias[alive]
    if observed.examples == 1:
        found = (bias @ weight / (bias @ bias))[None]
    else:
        found = _agreed(weight / bias[:, None], np.abs(bias), observed.examples)
    return found.reshape(-1, *shape).astype(np.float32)


def _agreed(inputs: np.ndarray, weights: np.ndarray, count: int) -> np.ndarray:
    lengths = np.maximum(np.linalg.norm(inputs, axis=1), 1e-12)
    squares = lengths[:, None] ** 2 + lengths[None] ** 2 - 2 * inputs @ inputs.T
    near = np.sqrt(np.maximum(squares, 0)) <= _AGREE * np.minimum(lengths[:, None], lengths[None])
    votes = near.sum(1)
    chosen: list[int] = []
    for at in np.lexsort((-weights, -votes)):
        if not any(near[at, other] for other in chosen):
            chosen.append(int(at))
        if len(chosen) == count:
            break
    return inputs[chosen]
