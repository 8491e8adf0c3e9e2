"""Pruning by magnitude on a schedule (Zhu and Gupta, "To prune, or not to prune", 2017), of single weights or of whole
channels (Li et al., "Pruning Filters for Efficient ConvNets", ICLR 2017)."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from cloud.errors import TrainError
from cloud.train.stepping.freeze import names
from cloud.train.tasks.task import Delegated, Task, Tree
from cloud.train.variants.distill import HINT

if TYPE_CHECKING:
    import onnx_ir as ir

    from converter.ir.channels import Group

__all__ = ["Prune", "Pruned", "PrunedTask", "density", "masked", "pruned"]


@dataclass(frozen=True)
class Prune:
    """Weights become zero, and stay it, until the share `sparsity` of each array is: none before step `begin`, all at
    step `end`, in between by 1 - (1 - t)³ of the way, chosen anew every `every` steps, the smallest first. For
    parameters of rank 2 and up that match the globs `targets`; biases and norms are never pruned by themselves.

    `structured`: whole channels instead, of an ONNX model: the filters with the smallest norm, together with biases,
    norms and everything else that belongs to the same channels (residual sums make them common). The exported graph
    does not have them. `targets` then choose filters and matrices; a group is pruned if all of its own match.
    """

    sparsity: float
    end: int
    begin: int = 0
    every: int = 50
    targets: Sequence[str] = ("*",)
    structured: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.sparsity < 1:
            raise TrainError(f"prune: expected a sparsity between 0 and 1, got {self.sparsity}")
        if not 0 <= self.begin <= self.end or self.end < 1:
            raise TrainError(
                f"prune: expected 0 <= begin <= end and an end of at least 1, got {self.begin}, {self.end}"
            )
        if self.every < 1:
            raise TrainError(f"prune: expected every to be at least 1 step, got {self.every}")
        if isinstance(self.targets, str) or not self.targets:
            raise TrainError(f"prune: expected a list of globs as targets, got {self.targets!r}")

    def share(self, step: Any) -> Any:
        """The sparsity after `step` steps."""
        way = jnp.clip((step - self.begin) / max(self.end - self.begin, 1), 0.0, 1.0)
        return jnp.where(step < self.begin, 0.0, self.sparsity * (1 - (1 - way) ** 3))

    def due(self, step: Any) -> Any:
        """Whether what is zero is chosen anew after `step` steps."""
        within = (step >= self.begin) & (step <= self.end)
        return within & (((step - self.begin) % self.every == 0) | (step == self.end))


class Pruned(NamedTuple):
    """The optimiser's state: the inner one's, steps done, and what is kept: bool arrays, of parameters by name, of
    groups of channels by number."""

    inner: Any
    step: Any
    kept: Mapping[str, Any]


class _Choice(NamedTuple):
    """Which parameters are pruned, or which axes of them: (name, axis, block, whether its norm counts) by group."""

    whole: tuple[str, ...]
    groups: Mapping[str, tuple[int, tuple[tuple[str, int, int, bool], ...]]]


class PrunedTask(Delegated):
    """An ONNX `task` whose exported graph lacks the channels that are zero."""

    def __init__(self, task: Task) -> None:
        self._task, self.inputs = task, task.inputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def export(self, params: Tree, state: Tree) -> ir.Model:
        """See `Task`."""
        from converter.ir.channels import cut

        model = self._task.export(params, state)
        cut(model)
        return model


def pruned(inner: optax.GradientTransformation, prune: Prune, task: Task) -> optax.GradientTransformationExtraArgs:
    """`inner`, with updates that make what is pruned exactly zero. What is zero is part of its state, so a resumed run
    goes on with it. Raises TrainError if nothing can be pruned."""
    inner = optax.with_extra_args_support(inner)
    groups = _groups(prune, task) if prune.structured else {}

    def choice(params: Any) -> _Choice:
        there = _named(params)
        kept = {name: of for name, of in groups.items() if all(member[0] in there for member in of[1])}
        whole = () if prune.structured else tuple(n for n, a in there.items() if _matches(prune, n) and a.ndim >= 2)
        if not (kept or whole):
            what = "group of channels whose filters" if prune.structured else "trained parameter of rank 2 and up that"
            raise TrainError(f"prune: no {what} match {list(prune.targets)}")
        return _Choice(whole, kept)

    def init(params: Any) -> Pruned:
        chosen, there = choice(params), _named(params)
        kept = {name: jnp.ones(there[name].shape, bool) for name in chosen.whole}
        kept |= {name: jnp.ones((size,), bool) for name, (size, _) in chosen.groups.items()}
        return Pruned(inner.init(params), jnp.zeros((), jnp.int32), kept)

    def update(gradients: Any, state: Pruned, params: Any = None, **extra: Any) -> tuple[Any, Pruned]:
        if params is None:
            raise TrainError("prune: expected the parameters as an argument of update")
        updates, after = inner.update(gradients, state.inner, params, **extra)
        step, chosen = state.step + 1, choice(params)
        new = _named(optax.apply_updates(params, updates))
        kept = jax.lax.cond(
            prune.due(step), lambda: _chosen(chosen, new, state.kept, prune.share(step)), lambda: dict(state.kept)
        )
        masks = _masks(chosen, kept, new)
        leaves, structure = jax.tree.flatten(updates)
        fixed = [
            u if (mask := masks.get(name)) is None else jnp.where(mask, u, -p.astype(u.dtype))
            for name, u, p in zip(names(params), leaves, jax.tree.leaves(params), strict=True)
        ]
        return jax.tree.unflatten(structure, fixed), Pruned(after, step, kept)

    made: optax.GradientTransformationExtraArgs = optax.GradientTransformationExtraArgs(init, update)
    return made


def masked(params: Any, prune: Prune, task: Task, slots: Pruned) -> Any:
    """`params` (all, or None where frozen) with zeros where the optimiser's state says, as for a moving average."""
    groups = _groups(prune, task) if prune.structured else {}
    there = _named(params)
    chosen = _Choice(
        tuple(name for name in slots.kept if name not in groups), {n: of for n, of in groups.items() if n in slots.kept}
    )
    masks = _masks(chosen, slots.kept, there)
    leaves = [a if (m := masks.get(n)) is None else jnp.where(m, a, 0).astype(a.dtype) for n, a in there.items()]
    return jax.tree.unflatten(jax.tree.structure(params), leaves)


def density(slots: Pruned) -> float:
    """The share of the prunable weights, or channels, that is kept."""
    kept = sum(int(jnp.sum(mask)) for mask in slots.kept.values())
    return kept / max(1, sum(int(mask.size) for mask in slots.kept.values()))


def _named(params: Any) -> dict[str, Any]:
    return dict(zip(names(params), jax.tree.leaves(params), strict=True))


def _matches(prune: Prune, name: str) -> bool:
    return not name.startswith(HINT) and any(fnmatch.fnmatchcase(name, pattern) for pattern in prune.targets)


def _groups(prune: Prune, task: Task) -> dict[str, tuple[int, tuple[tuple[str, int, int, bool], ...]]]:
    """By the name of their first filter: size, and what has to be zero for a channel to be."""
    from converter.ir.channels import groups

    model = getattr(task, "model", None)
    if model is None:
        raise TrainError("prune: expected an ONNX model for structured = true, whose graph says what belongs together")
    found: list[Group] = groups(model)
    made = {}
    for group in found:
        makers = [member for member in group.members if member.makes]
        filters = [member.name for member in makers if member.weighs]
        if group.size > 1 and all(_matches(prune, name) for name in filters):
            made[f"channels of {filters[0]}"] = (
                group.size, tuple((m.name, m.axis, m.block, m.weighs) for m in makers)
            )  # fmt: skip
    return made


def _chosen(chosen: _Choice, new: Mapping[str, Any], kept: Mapping[str, Any], share: Any) -> dict[str, Any]:
    """What is kept from now on; what was zero is so still, as the smallest."""
    made = {name: _largest(jnp.abs(new[name]) * kept[name], share) for name in chosen.whole}
    for name, (size, members) in chosen.groups.items():
        squares = sum(
            jnp.sum(jnp.square(jnp.moveaxis(new[of], axis, 0).reshape(size, -1).astype(jnp.float32)), axis=1)
            for of, axis, _, weighs in members
            if weighs
        )
        made[name] = _largest(squares * kept[name], share, least=1)
    return made


def _largest(sizes: Any, share: Any, least: int = 0) -> Any:
    """Whether each number is not among the smallest `share`; of equal ones the first are smaller."""
    flat = sizes.reshape(-1)
    most = flat.size - least
    count = jnp.minimum(jnp.floor(share * flat.size + 1e-4), most).astype(jnp.int32)
    order = jnp.argsort(flat, stable=True)
    kept = jnp.zeros(flat.shape, bool).at[order].set(jnp.arange(flat.size) >= count)
    return kept.reshape(sizes.shape)


def _masks(chosen: _Choice, kept: Mapping[str, Any], there: Mapping[str, Any]) -> dict[str, Any]:
    """By parameter, in a shape that fits it."""
    made: dict[str, Any] = {name: kept[name] for name in chosen.whole}
    for name, (_, members) in chosen.groups.items():
        for of, axis, block, _ in members:
            if of not in there:
                continue
            shape = [1] * there[of].ndim
            shape[axis] = there[of].shape[axis]
            own = jnp.repeat(kept[name], block).reshape(shape)
            made[of] = own if of not in made else made[of] & own
    return made
