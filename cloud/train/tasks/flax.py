"""Flax modules as tasks: NNX, and Linen with its variables."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from cloud.errors import TrainError
from cloud.train.tasks.function import JaxTask
from cloud.train.tasks.task import Delegated, Tree
from lite_runtime.errors import MissingExtraError

__all__ = ["LinenTask", "NnxTask"]

_WHILE_TRAINING = ("train", "training", "is_training")
_WHILE_NOT = ("deterministic", "use_running_average")
"""Arguments that tell a module whether it trains; their values in training: True, and False."""


class NnxTask(Delegated):
    """A `flax.nnx.Module`, which is not changed. Its `Param`s are parameters, random streams follow the step's key, all
    other variables are state. Its `train()` and `eval()` determine the behaviour in training and inference."""

    def __init__(self, module: Any) -> None:
        nnx = _flax("nnx")
        both = nnx.clone(module), nnx.clone(module)
        both[0].train()
        both[1].eval()
        (learning, params, streams, rest), (fixed, *_) = (nnx.split(m, nnx.Param, nnx.RngState, ...) for m in both)
        self._params, self._rest = jax.tree.structure(params), jax.tree.structure(rest)
        self._streams, self._graphs = streams, {True: learning, False: fixed}
        start = nnx.to_pure_dict(params), nnx.to_pure_dict(rest)
        for found, kept in zip(start, (params, rest), strict=True):
            if [id(leaf) for leaf in jax.tree.leaves(found)] != [id(leaf) for leaf in jax.tree.leaves(kept)]:
                raise TrainError(f"{type(module).__name__}: two attributes share a variable; give each its own")
        self._task = JaxTask(_with_inputs(self._run, _parameters(type(module).__call__, 1)), *start)
        self.inputs = self._task.inputs

    def _run(self, params: Tree, state: Tree, *inputs: Any, rng: Any, train: bool) -> tuple[Any, Tree]:
        nnx = _flax("nnx")
        variables = _filled(self._params, params), _filled(self._rest, state)
        module = nnx.merge(self._graphs[train], variables[0], _reseeded(self._streams, rng), variables[1])
        output = module(*inputs)
        return output, nnx.to_pure_dict(nnx.split(module, nnx.Param, nnx.RngState, ...)[3])


class LinenTask(Delegated):
    """A Linen `module` and its `variables`: the collection "params" is trained, the others are state.

    If its `__call__` takes `train`, `training` or `is_training`, they are set accordingly; `deterministic` and
    `use_running_average` to the opposite. Every random stream that it uses follows the step's key.
    """

    def __init__(self, module: Any, variables: Mapping[str, Any]) -> None:
        self._module = module
        if "params" not in variables:
            raise TrainError(f'expected variables with "params", as module.init returns them, got {sorted(variables)}')
        names = _parameters(type(module).__call__, 1)
        self._told = {name: name in _WHILE_TRAINING for name in names if name in (*_WHILE_TRAINING, *_WHILE_NOT)}
        state = {name: value for name, value in variables.items() if name != "params"}
        self._task = JaxTask(
            _with_inputs(self._run, [n for n in names if n not in self._told]), variables["params"], state
        )
        self.inputs = self._task.inputs

    def _run(self, params: Tree, state: Tree, *inputs: Any, rng: Any, train: bool) -> tuple[Any, Tree]:
        told = {name: positive == train for name, positive in self._told.items()}
        variables = {"params": params, **state}
        if not train:
            return self._module.apply(variables, *inputs, **told), state
        streams = _Streams(rng)
        output, moved = self._module.apply(variables, *inputs, rngs=streams, mutable=list(state), **told)
        return output, {**state, **moved}


class _Streams(dict[str, jax.Array]):
    """A key for every name that a Linen stream may have."""

    def __init__(self, rng: jax.Array) -> None:
        super().__init__({name: jax.random.fold_in(rng, i) for i, name in enumerate(("dropout", "noise", "default"))})


def _reseeded(streams: Any, rng: jax.Array | None) -> Any:
    """Random streams restarted from `rng`; unchanged without one."""
    if rng is None:
        return streams
    leaves = [
        jax.random.fold_in(rng, i) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else jnp.zeros_like(leaf)
        for i, leaf in enumerate(jax.tree.leaves(streams))
    ]
    return jax.tree.unflatten(jax.tree.structure(streams), leaves)


def _filled(structure: Any, tree: Tree) -> Any:
    """NNX's tree of that structure with the arrays of a tree of dicts."""
    return jax.tree.unflatten(structure, jax.tree.leaves(tree))


def _parameters(function: Callable[..., Any], skip: int) -> list[str]:
    """Names of the parameters after the first `skip` that a caller must pass or that tell whether the module trains."""
    told = (*_WHILE_TRAINING, *_WHILE_NOT)
    found = list(inspect.signature(function).parameters.values())[skip:]
    return [p.name for p in found if p.default is p.empty or p.name in told]


def _with_inputs(run: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """`run(params, state, *inputs, rng, train)` with the names of its inputs in its signature."""

    def call(*arguments: Any, rng: Any, train: bool) -> Any:
        return run(*arguments, rng=rng, train=train)

    kinds = inspect.Parameter
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [kinds(n, kinds.POSITIONAL_ONLY) for n in ("params", "state", *names)]
        + [kinds(n, kinds.KEYWORD_ONLY) for n in ("rng", "train")]
    )
    return call


def _flax(part: str) -> Any:
    try:
        import flax.nnx
    except ImportError:
        raise MissingExtraError("flax", "flax", "its modules are trained with it") from None
    return getattr(flax, part)
