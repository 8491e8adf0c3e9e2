"""How each operator hands relevance from its results back to its operands: a table of rules by operator.

The rules of products are Bach's and Montavon's (`cloud.explain.lrp`). Those of attention are of Achtibat et al. 2024,
"AttnLRP: Attention-Aware Layer-wise Relevance Propagation for Transformers": a softmax by its Taylor expansion at the
operand, half to each operand of a product of two results, and norms as factors that keep what they scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from cloud.engine import EngineFunction
from cloud.engine.lowering import Step
from cloud.engine.lowering.registry import normalise_axes

__all__ = ["CONVOLUTIONS", "ELSEWHERE", "OPERATORS", "PRODUCTS", "Given", "Operator", "Rule", "taken"]


@dataclass(frozen=True)
class Rule:
    """How a product hands relevance back. kind: `epsilon`, by what each input adds to the result, the bias keeping its
    part; `gamma`, with positive weights `1 + gamma` times as large; `z_plus`, by positive additions alone; `flat`,
    evenly; these three without bias. `epsilon` is added to the magnitude of what is divided by."""

    kind: Literal["epsilon", "gamma", "z_plus", "flat"]
    epsilon: float = 1e-9
    gamma: float = 0.25


ELSEWHERE = Rule("epsilon")
"""Of steps that are no products with weights."""


@dataclass(frozen=True)
class Given:
    """A step with the values of its operands, and the numbers of those that get relevance."""

    function: EngineFunction
    step: Step
    values: Sequence[Any]
    own: Sequence[int]
    rule: Rule

    @property
    def operands(self) -> tuple[Any, ...]:
        """The values that get relevance."""
        return tuple(self.values[i] for i in self.own)

    def run(self, changes: Mapping[int, Any]) -> tuple[Any, ...]:
        """The step's results with other operands."""
        changed = [changes.get(i, value) for i, value in enumerate(self.values)]
        return tuple(self.function.results(self.step, changed))[: len([name for name in self.step.outputs if name])]

    def linearised(self) -> tuple[Any, Callable[[Any], Any]]:
        """Its results, and the function from weights of them to the gradients of `operands`."""
        return jax.vjp(lambda *given: self.run(dict(zip(self.own, given, strict=True))), *self.operands)


Parts = Sequence[Any]
"""Relevance of each of `Given.operands`, of its shape."""


@dataclass(frozen=True)
class Operator:
    """A row of the table. `share(given, relevance)`: the parts of those operands that get relevance, of that of each
    result. operands: which may depend on the sample, and get some: the `first`; `any`; `factors`, the first two;
    `values`, all but the first. `scaled`: the first, while others may depend on the sample and get none."""

    share: Callable[[Given, Parts], Parts]
    operands: Literal["first", "any", "factors", "values", "scaled"] = "first"


def taken(step: Step, moving: set[str]) -> tuple[int, ...] | None:
    """The numbers of the operands that get relevance, of a step with operands that depend on the sample (`moving`);
    None if there is no rule for it, or it is used in another way."""
    if step.op not in OPERATORS:
        return None
    found = tuple(i for i, name in enumerate(step.inputs) if name in moving)
    operands = OPERATORS[step.op].operands
    if operands == "scaled":
        return (0,) if 0 in found else None
    fits = {"first": found == (0,), "any": True, "factors": max(found) < 2, "values": 0 not in found}[operands]
    return found if fits else None


# -- the rules ---------------------------------------------------------------------------------------------------------


def _stable(z: Any, epsilon: float) -> Any:
    """The value, further from 0 by epsilon."""
    return z + jnp.where(z >= 0, epsilon, -epsilon)


def _passed(given: Given, relevance: Parts) -> Parts:
    """Functions of single elements: unchanged."""
    return relevance[:1]


def _even(given: Given, relevance: Parts) -> Parts:
    """The same to each factor or scaled value, whatever the values are."""

    def joined(*operands: Any) -> Any:
        return sum(jnp.broadcast_to(one, relevance[0].shape) for one in operands) / len(operands)

    return tuple(jax.vjp(joined, *given.operands)[1](relevance[0]))


def _moved(given: Given, relevance: Parts) -> Parts:
    """Where the value came from."""
    return tuple(given.linearised()[1](tuple(relevance)))


def _linear(given: Given, relevance: Parts) -> Parts:
    """By what each operand adds."""
    out, back = given.linearised()
    shares = back(tuple(r / _stable(z, given.rule.epsilon) for r, z in zip(relevance, out, strict=True)))
    return [value * share for value, share in zip(given.operands, shares, strict=True)]


def _added(given: Given, relevance: Parts) -> Parts:
    """A bias of a product whose rule leaves it out gets nothing."""
    return relevance if given.rule.kind != "epsilon" else _linear(given, relevance)


def _product(given: Given, relevance: Parts) -> Parts:
    """One operand with weights by the rule; two operands that both depend on the sample get half each."""
    if len(given.own) > 1 or given.rule.kind == "epsilon" or len(given.values) < 2:
        return [part / len(given.own) for part in _linear(given, relevance)]
    (own,), rule = given.own, given.rule
    x, w = given.values[own], given.values[1 - own]
    up = jnp.maximum(w, 0)
    if rule.kind == "gamma":
        pairs = [(x, w + rule.gamma * up)]
    elif rule.kind == "z_plus":
        pairs = [(jnp.maximum(x, 0), up), (jnp.minimum(x, 0), jnp.minimum(w, 0))]
    else:
        pairs = [(jnp.ones_like(x), jnp.ones_like(w))]
    runs = [jax.vjp(lambda x, w=w: given.run({own: x, 1 - own: w, 2: None})[0], x) for x, w in pairs]
    shares = relevance[0] / _stable(sum(z for z, _ in runs), rule.epsilon)
    return [sum(x * back(shares)[0] for (x, _), (_, back) in zip(pairs, runs, strict=True))]


def _factors(given: Given, relevance: Parts) -> Parts:
    """Evenly to factors that depend on the sample; of a constant and one that does, to this one."""
    return _even(given, relevance) if len(given.own) > 1 else _linear(given, relevance)


def _softmax(given: Given, relevance: Parts) -> Parts:
    """x * (R - s * sum of R): what the value at 0 has is absorbed. Hidden scores (-inf) get nothing."""
    x, axis = given.operands[0], given.step.attributes.get("axis", -1)
    whole = jnp.sum(relevance[0], axis=axis, keepdims=True)
    return [jnp.where(jnp.isfinite(x), x, 0) * (relevance[0] - given.run({})[0] * whole)]


def _normalised(axes: Callable[[Step, int], tuple[int, ...]], *, centred: bool) -> Callable[[Given, Parts], Parts]:
    """Norms: the deviation counts as a constant factor, so that the rest is linear; a bias keeps its part."""

    def share(given: Given, relevance: Parts) -> Parts:
        x, out = given.operands[0], given.run({})[0]
        own = axes(given.step, x.ndim)

        def centre(x: Any) -> Any:
            return x - jnp.mean(x, axis=own, keepdims=True) if centred else x

        epsilon = given.step.attributes.get("epsilon", 1e-5)
        factor = jax.lax.rsqrt(jnp.mean(centre(x) ** 2, axis=own, keepdims=True) + epsilon)
        scale = given.values[1]
        scale = scale.reshape(-1, *[1] * (x.ndim - 2)) if given.step.op == "InstanceNormalization" else scale
        back = jax.vjp(lambda x: centre(x) * factor * scale, x)[1]
        return [x * back(relevance[0] / _stable(out, given.rule.epsilon))[0]]

    return share


def _trailing(step: Step, rank: int) -> tuple[int, ...]:
    return tuple(range(normalise_axes((step.attributes.get("axis", -1),), rank)[0], rank))


CONVOLUTIONS = ("Conv", "ConvTranspose")
PRODUCTS = (*CONVOLUTIONS, "Gemm", "MatMul", "Einsum")
_PASSED = (
    "Clip", "Dropout", "Elu", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "LpNormalization", "Mish",
    "Relu", "Selu", "Sigmoid", "Silu", "Softplus", "Softsign", "Swish", "Tanh", "ThresholdedRelu",
)  # fmt: skip
_MOVED = (
    "DepthToSpace", "Expand", "Flatten", "Gather", "GlobalMaxPool", "MaxPool", "Pad", "Reshape", "Slice",
    "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
)  # fmt: skip
_LINEAR = (
    "AveragePool", "BatchNormalization", "GlobalAveragePool", "ReduceMean", "ReduceSum", "RotaryEmbedding",
)  # fmt: skip

OPERATORS: Mapping[str, Operator] = {
    **dict.fromkeys(_PASSED, Operator(_passed)),
    **dict.fromkeys(_MOVED, Operator(_moved)),
    "Concat": Operator(_moved, "any"),
    "Where": Operator(_moved, "values"),
    **dict.fromkeys(_LINEAR, Operator(_linear)),
    "Add": Operator(_added, "any"),
    **dict.fromkeys(("Sub", "Sum"), Operator(_linear, "any")),
    "Mul": Operator(_factors, "any"),
    "Div": Operator(_even, "scaled"),
    **dict.fromkeys(CONVOLUTIONS, Operator(_product)),
    "Gemm": Operator(_product, "factors"),
    **dict.fromkeys(("Einsum", "MatMul"), Operator(_product, "any")),
    "Softmax": Operator(_softmax),
    "LayerNormalization": Operator(_normalised(_trailing, centred=True)),
    "RMSNormalization": Operator(_normalised(_trailing, centred=False)),
    "InstanceNormalization": Operator(_normalised(lambda step, rank: tuple(range(2, rank)), centred=True)),
}
