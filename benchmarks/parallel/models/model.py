"""A training step as written for one device, and the shapes of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cloud.parallel.staged.recompute import recomputed

__all__ = ["Field", "Model", "Optimizer", "Tree", "build", "cast", "constrained", "layer_norm", "lies", "normal"]

Tree: TypeAlias = Any
Optimizer: TypeAlias = optax.GradientTransformation


Lie: TypeAlias = Callable[[jax.Array, bool], jax.Array]
_LIE: ContextVar[Lie] = ContextVar("lie", default=lambda x, shared: x)


@contextmanager
def constrained(lie: Lie) -> Iterator[None]:
    """Meanwhile models that are traced pass activations through `lie(x, shared)`: where an expert who shards a model by
    hand writes a constraint."""
    token = _LIE.set(lie)
    try:
        yield
    finally:
        _LIE.reset(token)


def lies(x: jax.Array, shared: bool = False) -> jax.Array:
    """`x`, an activation whose dimension 0 is the examples; of those with more than two, dimension 1 is a place (a
    position of a text, a plane of a volume). `shared`: every example or place needs those of all others, as keys."""
    return _LIE.get()(x, shared)


@dataclass(frozen=True, slots=True)
class Field:
    """An array of the batch: integers below `below`, or normally distributed numbers if that is 0."""

    shape: tuple[int, ...]
    below: int = 0

    @property
    def struct(self) -> jax.ShapeDtypeStruct:
        """Its shape and type."""
        dtype = jnp.int32 if self.below else jnp.float32
        found: jax.ShapeDtypeStruct = jax.eval_shape(lambda: jnp.zeros(self.shape, dtype))
        return found

    def draw(self, rng: np.random.Generator) -> np.ndarray[Any, Any]:
        """A random array of that shape."""
        if self.below:
            return rng.integers(0, self.below, self.shape).astype(np.int32)
        return rng.standard_normal(self.shape).astype(np.float32)


@dataclass(frozen=True)
class Model:
    """`step(state, batch) -> (state, metrics)`; `state` and `batch` are trees of shapes, nothing is allocated.
    `loss_sums(params, extra, batch, key) -> (sums, extra)`: sums over rows, "loss" and "count"."""

    name: str
    step: Callable[[Tree, Tree], tuple[Tree, Tree]]
    loss_sums: Callable[[Tree, Tree, Tree, Any], tuple[Mapping[str, jax.Array], Tree]]
    optimizer: Optimizer
    init: Callable[[jax.Array], Tree]
    fields: Mapping[str, Field]
    recomputed: Callable[[float], Model]
    """The same model, with this part of its forward pass recomputed in its backward pass."""

    @property
    def state(self) -> Tree:
        """Shapes of the state that one step passes to the next."""
        return jax.eval_shape(self.init, jax.random.key(0))

    @property
    def batch(self) -> Mapping[str, jax.ShapeDtypeStruct]:
        """Shapes of one batch."""
        return {name: field.struct for name, field in self.fields.items()}

    def make(self, seed: int = 0) -> tuple[Tree, Tree]:
        """An initial state and a random batch."""
        rng = np.random.default_rng(seed)
        state = jax.jit(self.init)(jax.random.key(seed))
        return state, {name: field.draw(rng) for name, field in self.fields.items()}


def build(
    name: str,
    params: Callable[[jax.Array], tuple[Tree, Tree]],
    loss_sums: Callable[[Tree, Tree, Tree], tuple[Mapping[str, jax.Array], Tree]],
    fields: Mapping[str, Field],
    optimizer: Optimizer | None = None,
) -> Model:
    """`params(key) -> (params, extra)`; `extra` is state of the loss itself, such as running means. The default
    optimiser is Adam."""
    update = optax.adam(1e-3) if optimizer is None else optimizer

    def init(key: jax.Array) -> Tree:
        values, extra = params(key)
        return {"params": values, "slots": update.init(values), "extra": extra}

    def step(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        def loss(values: Tree) -> tuple[jax.Array, Tree]:
            sums, extra = loss_sums(values, state["extra"], batch)
            return sums["loss"] / sums["count"], extra

        (value, extra), gradient = jax.value_and_grad(loss, has_aux=True)(state["params"])
        change, slots = update.update(gradient, state["slots"], state["params"])
        return {"params": optax.apply_updates(state["params"], change), "slots": slots, "extra": extra}, {"loss": value}

    def sums_of(values: Tree, extra: Tree, batch: Tree, key: Any) -> tuple[Mapping[str, jax.Array], Tree]:
        return loss_sums(values, extra, batch)

    def again(share: float) -> Model:
        return build(name, params, recomputed(loss_sums, share), fields, optimizer)

    return Model(name, step, sums_of, update, init, fields, again)


def normal(key: jax.Array, *shape: int, fan: int | None = None) -> jax.Array:
    """Weights of variance 1 / `fan` (the first dimension unless given)."""
    weights: jax.Array = jax.random.normal(key, shape) * (fan or shape[0]) ** -0.5
    return weights


def cast(tree: Tree, bfloat16: bool) -> Tree:
    """Parameters cast to bfloat16 for computing; the original ones are updated."""
    if not bfloat16:
        return tree
    return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16) if leaf.dtype == jnp.float32 else leaf, tree)


def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    """Normalise over the last dimension, in float32."""
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    normed = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)
    scaled: jax.Array = normed * scale + bias
    back: jax.Array = scaled.astype(x.dtype)
    return back
