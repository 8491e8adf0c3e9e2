"""Layer-wise relevance propagation: the score, handed back step by step in proportion to what each operand added.

Bach et al. 2015, "On Pixel-Wise Explanations for Non-Linear Classifier Decisions by Layer-Wise Relevance Propagation";
rules and their mix: Montavon et al. 2019, "Layer-Wise Relevance Propagation: An Overview"; Kohlbrenner et al. 2020,
"Towards Best Practice in Explaining Neural Network Decisions with LRP". The rule of each operator, attention's of
Achtibat et al. 2024 among them, is in `relevance`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cloud.engine import EngineFunction
from cloud.engine.lowering import Step
from cloud.explain.graphs import GraphSubject
from cloud.explain.relevance import CONVOLUTIONS, ELSEWHERE, OPERATORS, PRODUCTS, Given, Rule, taken
from lite_runtime.errors import ExplainError
from lite_runtime.explaining.explanation import Explanation, Making
from lite_runtime.graph import Array

__all__ = ["RULES", "Composite", "Rule", "lrp"]


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


def lrp(subject: GraphSubject, x: Array, target: int, *, rules: str | Composite = "composite") -> Explanation:
    """Relevance (*shape) of a sample for an output's score. rules: a name of RULES, or a mix.

    Raises ExplainError for models with operators that have no rule, such as recurrent ones: it lists them.
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
    function = subject.function
    moving, wrong = _dynamic(function), set[str]()
    reached = {function.program.outputs[0]}
    for step in reversed(function.program.steps):
        if not reached & set(step.outputs) or not moving & set(step.outputs):
            continue
        found = taken(step, moving)
        if found is None:
            wrong.add(step.op)
        else:
            reached |= {step.inputs[i] for i in found}
    if wrong:
        raise ExplainError(
            f"{subject.name}: lrp has no rule for {', '.join(sorted(wrong))} as they are used here; "
            "integrated_gradients works for every model with a gradient"
        )


def _propagated(function: EngineFunction, weights: Mapping[str, Any], x: Any, target: Any, mix: Composite) -> Any:
    moving, program = _dynamic(function), function.program
    env: dict[str, Any] = {**program.constants, **weights, function.inputs[0].name: x}
    for step in program.steps:
        found = function.results(step, [env[name] if name else None for name in step.inputs])
        env |= dict(zip(step.outputs, found, strict=False))
    rules, scores = _rules(program.steps, moving, mix), env[program.outputs[0]]
    held = {program.outputs[0]: jax.nn.one_hot(target, scores.shape[1])[None] * scores}
    for step in reversed(program.steps):
        if set(step.outputs) & held.keys() & moving:
            for name, part in _shares(function, step, env, moving, held, rules):
                held[name] = held[name] + part if name in held else part
    return held[function.inputs[0].name], scores[0, target]


def _shares(
    function: EngineFunction, step: Step, env: Mapping[str, Any], moving: set[str], held: Mapping[str, Any],
    rules: Mapping[str, Rule],
) -> Iterator[tuple[str, Any]]:  # fmt: skip
    """The relevance of a step's operands; a name may come twice."""
    own = taken(step, moving) or ()
    values = [env[name] if name else None for name in step.inputs]
    relevance = [held.get(name, jnp.zeros_like(env[name])) for name in step.outputs if name]
    given = Given(function, step, values, own, rules.get(step.outputs[0], ELSEWHERE))
    parts = OPERATORS[step.op].share(given, relevance)
    yield from zip((step.inputs[i] for i in own), parts, strict=True)


def _rules(steps: Sequence[Step], moving: set[str], mix: Composite) -> dict[str, Rule]:
    """The rule of each product with weights and of the bias added to it, by the name of the result."""
    found: dict[str, Rule] = {}
    for step in steps:
        count = sum(name in moving for name in step.inputs)
        if step.op in PRODUCTS and count == 1:
            usual = mix.convolution if step.op in CONVOLUTIONS else mix.dense
            found[step.outputs[0]] = mix.first if mix.first is not None and not found else usual
        elif step.op == "Add" and count == 1:
            rule = next((found[name] for name in step.inputs if name in found), None)
            if rule is not None:
                found[step.outputs[0]] = rule
    return found
