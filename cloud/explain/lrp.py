"""Layer-wise relevance propagation: the score, handed back step by step in proportion to what each operand added.

Bach et al. 2015, "On Pixel-Wise Explanations for Non-Linear Classifier Decisions by Layer-Wise Relevance Propagation";
rules and their mix: Montavon et al. 2019, "Layer-Wise Relevance Propagation: An Overview"; Kohlbrenner et al. 2020,
"Towards Best Practice in Explaining Neural Network Decisions with LRP".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from cloud.engine import EngineFunction
from cloud.engine.lowering import Step
from cloud.explain.graphs import GraphSubject
from lite_runtime.errors import ExplainError
from lite_runtime.explaining.explanation import Explanation, Making
from lite_runtime.graph import Array

__all__ = ["RULES", "Composite", "Rule", "lrp"]


@dataclass(frozen=True)
class Rule:
    """How a product hands relevance back. kind: `epsilon`, by what each input adds to the result, the bias keeping its
    part; `gamma`, with positive weights `1 + gamma` times as large; `z_plus`, by positive additions alone; `flat`,
    evenly; these three without bias. `epsilon` is added to the magnitude of what is divided by."""

    kind: Literal["epsilon", "gamma", "z_plus", "flat"]
    epsilon: float = 1e-9
    gamma: float = 0.25


@dataclass(frozen=True)
class Composite:
    """A rule for convolutions, one for dense layers, and perhaps another for the first convolution or dense layer."""

    convolution: Rule
    dense: Rule
    first: Rule | None = None


_EPSILON, _GAMMA, _PLUS = Rule("epsilon"), Rule("gamma"), Rule("z_plus")
RULES: Mapping[str, Composite] = {
    "epsilon": Composite(_EPSILON, _EPSILON),
    "gamma": Composite(_GAMMA, _GAMMA),
    "z_plus": Composite(_PLUS, _PLUS),
    "composite": Composite(_PLUS, _EPSILON),
    "composite_flat": Composite(_PLUS, _EPSILON, Rule("flat")),
}

_CONVOLUTIONS = ("Conv", "ConvTranspose")
_DENSE = ("Gemm", "MatMul")
_PASSED = frozenset((
    "Clip", "Dropout", "Elu", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Relu", "Selu", "Sigmoid",
    "Silu", "Softplus", "Tanh",
))  # fmt: skip
"""Functions of single elements: relevance passes them unchanged."""
_MOVED = frozenset((
    "Concat", "Expand", "Flatten", "MaxPool", "GlobalMaxPool", "Pad", "Reshape", "Slice", "Split", "Squeeze",
    "Transpose", "Unsqueeze",
))  # fmt: skip
"""Relevance goes where the value came from."""
_LINEAR = frozenset((
    "Add", "AveragePool", "BatchNormalization", "GlobalAveragePool", "ReduceMean", "ReduceSum", "Sub", "Sum",
))  # fmt: skip
"""By the epsilon rule."""
_SCALED = frozenset(("Mul", "Div"))
"""As these, if one operand alone depends on the sample."""
_ELSEWHERE = Rule("epsilon")
"""Of steps that are no products."""


def lrp(subject: GraphSubject, x: Array, target: int, *, rules: str | Composite = "composite") -> Explanation:
    """Relevance (*shape) of a sample for an output's score. rules: a name of RULES, or a mix.

    Raises ExplainError for models with operators that have no rule, such as attention: it lists them.
    """
    x = subject.checked(x)
    if isinstance(rules, str) and rules not in RULES:
        raise ExplainError(f"rules: expected one of {', '.join(RULES)}, got {rules!r}")
    mix = RULES[rules] if isinstance(rules, str) else rules
    subject.needs(1, "lrp", "allow one row")
    with Making(subject, "lrp", target) as making:
        _check(subject)
        function = subject.function
        run = subject.compiled(
            ("lrp", mix), lambda: lambda weights, x, target: _propagated(function, weights, x, target, mix)
        )
        relevance, score = run(subject.weights(), jnp.asarray(x[None]), np.int32(target))
        subject.asked += 1
        name = rules if isinstance(rules, str) else "own"
        return making.done(np.asarray(relevance[0], np.float64), float(score), rules=name)


def _dynamic(function: EngineFunction) -> set[str]:
    """The values that depend on the sample."""
    found = {function.inputs[0].name}
    for step in function.program.steps:
        if step.op != "Shape" and found & set(step.inputs):
            found |= set(step.outputs)
    return found


def _check(subject: GraphSubject) -> None:
    moving = _dynamic(subject.function)
    wrong = set()
    for step in subject.function.program.steps:
        count = sum(name in moving for name in step.inputs)
        single = step.op in (*_CONVOLUTIONS, *_DENSE) or step.op in _SCALED
        known = single or step.op in _PASSED | _MOVED | _LINEAR
        if count and step.op != "Shape" and (not known or (single and count > 1) or not _by_sample(step, moving)):
            wrong.add(step.op)
    if wrong:
        raise ExplainError(
            f"{subject.name}: lrp has no rule for {', '.join(sorted(wrong))} as they are used here; "
            "integrated_gradients works for every model with a gradient"
        )


def _by_sample(step: Step, moving: set[str]) -> bool:
    """Whether the sample's values are where the rules expect them: not a divisor, weights or a shape."""
    if step.op in ("Add", "Sub", "Sum", "Mul", "Concat"):
        return True
    return not any(name in moving for name in step.inputs[1:]) or (step.op in _DENSE and step.inputs[0] not in moving)


def _propagated(function: EngineFunction, weights: Mapping[str, Any], x: Any, target: Any, mix: Composite) -> Any:
    moving, program = _dynamic(function), function.program
    env: dict[str, Any] = {**program.constants, **weights, function.inputs[0].name: x}
    for step in program.steps:
        found = function.results(step, [env[name] if name else None for name in step.inputs])
        env |= dict(zip(step.outputs, found, strict=False))
    back = _Backward(function, env, moving, _rules(program.steps, moving, mix))
    scores = env[program.outputs[0]]
    held = {program.outputs[0]: jax.nn.one_hot(target, scores.shape[1])[None] * scores}
    for step in reversed(program.steps):
        if step.op != "Shape" and set(step.outputs) & held.keys() and set(step.inputs) & moving:
            for name, part in back.step(step, held):
                held[name] = held[name] + part if name in held else part
    return held[function.inputs[0].name], scores[0, target]


def _rules(steps: Sequence[Step], moving: set[str], mix: Composite) -> dict[str, Rule]:
    """The rule of each product and of the bias added to it, by the name of the result."""
    found: dict[str, Rule] = {}
    for step in steps:
        if step.op in (*_CONVOLUTIONS, *_DENSE):
            usual = mix.convolution if step.op in _CONVOLUTIONS else mix.dense
            found[step.outputs[0]] = mix.first if mix.first is not None and not found else usual
        elif step.op == "Add" and sum(name in moving for name in step.inputs) == 1:
            rule = next((found[name] for name in step.inputs if name in found), None)
            if rule is not None:
                found[step.outputs[0]] = rule
    return found


@dataclass(frozen=True)
class _Backward:
    """One pass back through the steps."""

    function: EngineFunction
    env: Mapping[str, Any]
    moving: set[str]
    rules: Mapping[str, Rule]

    def step(self, step: Step, held: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """The relevance of a step's inputs that depend on the sample; a name may come twice."""
        own = [i for i, name in enumerate(step.inputs) if name in self.moving]
        values = [self.env[name] if name else None for name in step.inputs]
        relevance = [held.get(name, jnp.zeros_like(self.env[name])) for name in step.outputs if name]
        rule = self.rules.get(step.outputs[0], _ELSEWHERE)
        if step.op in _PASSED or (step.op == "Add" and rule.kind != "epsilon"):
            parts: Sequence[Any] = relevance
        elif step.op in (*_CONVOLUTIONS, *_DENSE):
            parts = [self._product(step, values, own[0], relevance[0], rule)]
        else:
            given = tuple(values[i] for i in own)
            out, back = jax.vjp(lambda *given: self._run(step, values, dict(zip(own, given, strict=True))), *given)
            if step.op in _MOVED:
                parts = back(tuple(relevance))
            else:
                shares = back(tuple(r / _stable(z, rule.epsilon) for r, z in zip(relevance, out, strict=True)))
                parts = [value * share for value, share in zip(given, shares, strict=True)]
        yield from zip((step.inputs[i] for i in own), parts, strict=True)

    def _product(self, step: Step, values: Sequence[Any], own: int, relevance: Any, rule: Rule) -> Any:
        x, w = values[own], values[1 - own]
        if rule.kind == "epsilon":
            (z,), back = jax.vjp(lambda x: self._run(step, values, {own: x}), x)
            return x * back((relevance / _stable(z, rule.epsilon),))[0]
        up = jnp.maximum(w, 0)
        if rule.kind == "gamma":
            pairs = [(x, w + rule.gamma * up)]
        elif rule.kind == "z_plus":
            pairs = [(jnp.maximum(x, 0), up), (jnp.minimum(x, 0), jnp.minimum(w, 0))]
        else:
            pairs = [(jnp.ones_like(x), jnp.ones_like(w))]
        runs = [jax.vjp(lambda x, w=w: self._run(step, values, {own: x, 1 - own: w, 2: None})[0], x) for x, w in pairs]
        shares = relevance / _stable(sum(z for z, _ in runs), rule.epsilon)
        return sum(x * back(shares)[0] for (x, _), (_, back) in zip(pairs, runs, strict=True))

    def _run(self, step: Step, values: Sequence[Any], changes: Mapping[int, Any]) -> tuple[Any, ...]:
        changed = [changes.get(i, value) for i, value in enumerate(values)]
        return tuple(self.function.results(step, changed))[: len([name for name in step.outputs if name])]


def _stable(z: Any, epsilon: float) -> Any:
    """The value, further from 0 by epsilon."""
    return z + jnp.where(z >= 0, epsilon, -epsilon)
