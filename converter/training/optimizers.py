"""Optimisers as graphs: gradient clipping, weight decay, and one update per parameter.

`update` appends all of it. Slots are state named `optimizer/<slot>/<parameter>`; `hyper/learning_rate` is state too, so
that a device may change it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import add
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from converter.ir import build
from converter.ir.grad.tape import Tape, Term
from converter.training.ends import add_input
from converter.training.options import Optimizer, Training
from lite_runtime.graph import Array

__all__ = ["LEARNING_RATE", "STEP", "Update", "update"]

LEARNING_RATE, STEP = "hyper/learning_rate", "optimizer/step"


class Update:
    """One step of an optimiser under construction."""

    def __init__(self, tape: Tape, training: Training) -> None:
        self.tape, self.training = tape, training
        self.initial: dict[str, Array] = {}
        """The state it adds, with initial values; each is a graph input of that name."""
        self.writes: dict[str, ir.Value] = {}
        """State name -> its new value, for parameters and for changing entries of `initial`."""
        self.rate = self.state(LEARNING_RATE, np.asarray(training.learning_rate, np.float32))

    def state(self, name: str, start: Array) -> Term:
        """A new state as a graph input."""
        self.initial[name] = start
        return add_input(self.tape, name, start.shape, ir.DataType.from_numpy(start.dtype))

    def moved(self, slot: str, parameter: Term, change: Callable[[Term], Term]) -> Term:
        """The updated value of a new state that starts with zeros and has the parameter's shape."""
        name = f"optimizer/{slot}/{parameter.value.name}"
        new = change(self.state(name, np.zeros(build.static_dims(parameter.value) or (), np.float32)))
        self.writes[name] = new.value
        return new

    def decayed(self, parameter: Term, direction: Term) -> Term:
        """direction + weight_decay * parameter, for matrices and filters."""
        decay = self.training.weight_decay if parameter.rank >= 2 else 0.0
        return direction + parameter * decay if decay else direction

    def descend(self, parameter: Term, direction: Term) -> None:
        """parameter - rate * direction"""
        self.writes[parameter.value.name or ""] = (parameter - direction * self.rate).value


def update(
    model: ir.Model, training: Training, parameters: Mapping[str, ir.Value], gradients: Mapping[str, ir.Value]
) -> Update:
    """Append one step of `training.optimizer` to an adopted model; both mappings are by parameter."""
    tape = Tape(model.graph)
    tape.hint = "optimizer"
    made = Update(tape, training)
    clipped = _clipped(made, {name: tape.term(gradient) for name, gradient in gradients.items()})
    _OPTIMIZERS[training.optimizer](made, {name: tape.term(value) for name, value in parameters.items()}, clipped)
    return made


Terms: TypeAlias = Mapping[str, Term]


def _clipped(made: Update, gradients: Terms) -> Terms:
    value, norm = made.training.clip_value, made.training.clip_norm
    if value is not None:
        return {name: g.op("Clip", g.number(-value), g.number(value)) for name, g in gradients.items()}
    if norm is not None:
        factor = _norm_factor(list(gradients.values()), norm)
        return {name: g * factor for name, g in gradients.items()}
    return gradients


def _norm_factor(gradients: list[Term], limit: float) -> Term:
    """limit / max(norm of all, limit)"""
    total = reduce(add, [g.op("ReduceSumSquare", keepdims=0) for g in gradients])
    most = total.number(limit)
    return most / total.op("Sqrt").op("Max", most)


def _sgd(made: Update, parameters: Terms, gradients: Terms) -> None:
    for name, parameter in parameters.items():
        made.descend(parameter, made.decayed(parameter, gradients[name]))


def _momentum(made: Update, parameters: Terms, gradients: Terms) -> None:
    """v <- momentum * v + g; p <- p - rate * v (Nesterov: g + momentum * v in v's place; Sutskever et al., 2013)"""
    momentum = made.training.momentum
    for name, parameter in parameters.items():
        gradient = made.decayed(parameter, gradients[name])
        velocity = made.moved("momentum", parameter, lambda v, g=gradient: v * momentum + g)  # type: ignore[misc]
        made.descend(parameter, velocity * momentum + gradient if made.training.nesterov else velocity)


def _adam(made: Update, parameters: Terms, gradients: Terms) -> None:
    """Kingma & Ba, 2015, their algorithm 1; with weight decay AdamW."""
    first, second = made.training.betas
    step = made.state(STEP, np.asarray(0, np.int64)) + made.tape.const(1, np.int64)
    made.writes[STEP] = step.value
    count = step.cast(ir.DataType.FLOAT)
    of_mean, of_variance = (1.0 - count.number(beta).op("Pow", count) for beta in (first, second))
    for name, parameter in parameters.items():
        gradient = gradients[name]
        mean = made.moved("mean", parameter, _towards(gradient, first))
        variance = made.moved("variance", parameter, _towards(gradient * gradient, second))
        root = (variance / of_variance).op("Sqrt")
        direction = mean / of_mean / (root + made.training.epsilon)
        made.descend(parameter, made.decayed(parameter, direction))


def _towards(new: Term, share: float) -> Callable[[Term], Term]:
    """old * share + new * (1 - share)"""
    return lambda old: old * share + new * (1.0 - share)


_OPTIMIZERS: Mapping[Optimizer, Callable[[Update, Terms, Terms], None]] = {
    "sgd": _sgd,
    "momentum": _momentum,
    "adam": _adam,
}
