"""Each stage's share of the training state, as flat vectors, and its update, which needs no other stage.

A stage's share of a tree is the tree with None for the leaves that other stages hold: the optimiser sees an ordinary
tree, and the names of its slots identify them among the slots of the whole state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cloud._jax import is_literal, shaped
from cloud.errors import PlanError
from cloud.parallel.staged.packing import Flats, Pack, dtype_of, largest, shape_of
from cloud.parallel.staged.programs import Program, Programs
from cloud.parallel.staged.traffic import gradient_packs
from cloud.parallel.tracing.inline import flat
from cloud.train.stepping.averaging import averaged
from cloud.train.stepping.step import StepOptions, TrainState

__all__ = ["Holdings"]


@dataclass(frozen=True, eq=False)
class _Share:
    """One stage: numbers of its trained parameters and of their slots, and their packing."""

    params: Pack
    trained: tuple[int, ...]
    gradients: Pack
    slots: tuple[int, ...]
    structure: Any
    pack: Pack


class Holdings:
    """How `state` (a TrainState of shapes) is distributed to the stages of `programs`; raises `PlanError` if
    `optimizer` computes an update of one stage's parameters from another's. `dims`: for parameters, by their number,
    the dimension that is split over the `width` devices of a stage; slots of a parameter's shape are split likewise."""

    def __init__(
        self, programs: Programs, optimizer: optax.GradientTransformation, state: TrainState, width: int = 1,
        dims: Mapping[int, int | None] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self._width, self._dims = width, dims
        self._stages, self._state = programs.stages, state
        self._optimizer = optax.with_extra_args_support(optimizer)
        self._avals, self._structure = jax.tree.flatten(state.params)
        users = [{s for s, stage in enumerate(self._stages) if i in stage.params} for i in range(len(self._avals))]
        self._owners = [min(stages) for stages in users]
        self.gradients, self.shared = gradient_packs(programs, dims, width)
        self._shares = [self._share(*both, programs.trained) for both in zip(self._stages, self.gradients, strict=True)]
        self._check(users, sorted(programs.trained))
        self.trained_sizes = largest(self.gradients)
        self._sizes = {
            "params": largest(share.params for share in self._shares),
            "slots": largest(share.pack for share in self._shares),
        }
        if state.average is not None:
            self._sizes["average"] = self.trained_sizes
        self._shared = tuple(i for i in sorted(programs.trained) if len(users[i]) > 1)

    @property
    def shapes(self) -> dict[str, Flats]:
        """Shapes of the vectors of all stages: [stages, n] or [stages, width, n]."""
        stages = len(self._stages)
        return {
            part: {key: shaped((stages, *shape_of(key, n, self._width)), dtype_of(key)) for key, n in sizes.items()}
            for part, sizes in self._sizes.items()
        }

    def packed(self, state: TrainState) -> dict[str, Flats]:
        """The vectors [stages, n] of a state of NumPy arrays."""
        params, slots = jax.tree.leaves(state.params), jax.tree.leaves(state.slots)
        average = dict(zip(self._trained, jax.tree.leaves(state.average), strict=False))
        rows = []
        for stage, share in zip(self._stages, self._shares, strict=True):
            parts = {
                "params": share.params.pack([params[i] for i in stage.params], self._sizes["params"], np),
                "slots": share.pack.pack([slots[i] for i in share.slots], self._sizes["slots"], np),
            }
            if average:
                parts["average"] = share.gradients.pack([average[i] for i in share.trained], self.trained_sizes, np)
            rows.append(parts)
        stacked: dict[str, Flats] = jax.tree.map(lambda *vectors: np.stack(vectors), *rows)
        return stacked

    def unpacked(self, held: Mapping[str, Flats], state: TrainState) -> TrainState:
        """`state` with the arrays of `packed`, each taken from the stage that owns it."""
        params: dict[int, Any] = {}
        slots: dict[int, Any] = {}
        average: dict[int, Any] = {}
        for s in reversed(range(len(self._stages))):
            stage, share = self._stages[s], self._shares[s]
            own = jax.tree.map(lambda vectors, s=s: vectors[s], dict(held))
            params.update(zip(stage.params, share.params.unpack(own["params"], np), strict=True))
            slots.update(zip(share.slots, share.pack.unpack(own["slots"], np), strict=True))
            if "average" in own:
                average.update(zip(share.trained, share.gradients.unpack(own["average"], np), strict=True))
        return replace(
            state,
            params=_filled(state.params, params),
            slots=_filled(state.slots, slots),
            average=_filled(state.average, dict(enumerate(average[i] for i in sorted(average)))),
        )

    def params(self, stage: int, flats: Flats) -> list[Any]:
        """The stage's parameters, in the order of `Program.params`."""
        return self._shares[stage].params.unpack(flats)

    def packed_gradients(self, stage: int, gradients: Sequence[Any]) -> Flats:
        """Gradients of the stage's trained parameters as vectors."""
        return self._shares[stage].gradients.pack(gradients, self.trained_sizes)

    def shared_of(self, stage: int, gradients: Flats) -> Flats:
        """The stage's gradients of parameters that several stages read, zeros for those it does not read."""
        own = dict(zip(self._shares[stage].trained, self._shares[stage].gradients.unpack(gradients), strict=True))
        arrays = [own.get(i, jnp.zeros(self._avals[i].shape, self._avals[i].dtype)) for i in self._shared]
        return self.shared.pack(arrays, self.shared.sizes)

    def with_shared(self, stage: int, gradients: Flats, sums: Flats) -> Flats:
        """The stage's gradients, with the sums over stages for those that it shares."""
        share = self._shares[stage]
        summed = dict(zip(self._shared, self.shared.unpack(sums), strict=True))
        own = zip(share.trained, share.gradients.unpack(gradients), strict=True)
        return share.gradients.pack([summed.get(i, g) for i, g in own], self.trained_sizes)

    def squares(self, stage: int, gradients: Flats) -> Any:
        """Sum of squares of the gradients that the stage owns, () float32."""
        share = self._shares[stage]
        found = zip(share.trained, share.gradients.rows(gradients), strict=True)
        own = [jnp.square(g.astype(jnp.float32)).sum(-1) for i, g in found if self._owners[i] == stage]
        whole, parts = (sum((s for s in own if s.ndim == rank), jnp.zeros((1,) * rank)) for rank in (0, 1))
        return whole + parts.sum()

    def updated(
        self, stage: int, options: StepOptions, held: Mapping[str, Flats], gradients: Flats, step: Any, loss: Any
    ) -> dict[str, Flats]:
        """The stage's vectors after the optimiser's update."""
        program, share = self._stages[stage], self._shares[stage]
        arrays = dict(zip(program.params, share.params.unpack(held["params"]), strict=True))
        trained = self._tree({i: arrays[i] for i in share.trained})
        tree = self._tree(dict(zip(share.trained, share.gradients.unpack(gradients), strict=True)))
        slots = jax.tree.unflatten(share.structure, share.pack.unpack(held["slots"]))
        updates, slots = self._optimizer.update(tree, slots, trained, value=loss)
        trained = optax.apply_updates(trained, updates)
        arrays.update(zip(share.trained, jax.tree.leaves(trained), strict=True))
        after = {
            "params": share.params.pack([arrays[i] for i in program.params], self._sizes["params"]),
            "slots": share.pack.pack(jax.tree.leaves(slots), self._sizes["slots"]),
        }
        if options.average is not None:
            before = self._tree(dict(zip(share.trained, share.gradients.unpack(held["average"]), strict=True)))
            mean = jax.tree.leaves(averaged(step, before, trained, options.average))
            after["average"] = share.gradients.pack(mean, self.trained_sizes)
        return after

    @property
    def _trained(self) -> list[int]:
        return sorted({i for share in self._shares for i in share.trained})

    def _tree(self, arrays: Mapping[int, Any]) -> Any:
        """The tree of parameters with only these arrays."""
        return jax.tree.unflatten(self._structure, [arrays.get(i) for i in range(len(self._avals))])

    def _share(self, stage: Program, gradients: Pack, all_trained: frozenset[int]) -> _Share:
        trained = tuple(i for i in stage.params if i in all_trained)
        slots = jax.eval_shape(self._optimizer.init, self._tree({i: self._avals[i] for i in trained}))
        numbers = {path: k for k, path in enumerate(_paths(self._state.slots))}
        if missing := [path for path in _paths(slots) if path not in numbers]:
            raise PlanError(f"the optimiser's slots differ from the state's: {missing[:3]} is missing in the state")
        places = tuple(numbers[path] for path in _paths(slots))
        pack = Pack.of(jax.tree.leaves(slots), self._dims_of(slots), self._width)
        params = Pack.of(
            (self._avals[i] for i in stage.params), [self._dims.get(i) for i in stage.params], self._width
        )  # fmt: skip
        return _Share(params, trained, gradients, places, jax.tree.structure(slots), pack)

    def _dims_of(self, slots: Any) -> list[int | None]:
        """For each slot, the split dimension of its parameter, found by the end of its path and by its shape."""
        params = [(path, i) for i, path in enumerate(_paths(self._state.params)) if self._dims.get(i) is not None]
        return [
            next((self._dims[i] for end, i in params if path.endswith(end) and a.shape == self._avals[i].shape), None)
            for path, a in zip(_paths(slots), jax.tree.leaves(slots), strict=True)
        ]

    def _check(self, users: Sequence[set[int]], trained: Sequence[int]) -> None:
        """Check that each stage has all gradients that its updates and slots depend on."""
        tree = self._tree({i: self._avals[i] for i in trained})
        value = shaped((), np.dtype(np.float32))
        closed = jax.make_jaxpr(lambda g, slots, p, v: self._optimizer.update(g, slots, p, value=v))(
            tree, self._state.slots, tree, value
        )
        made = _made_from(flat(closed).jaxpr, len(trained))
        slots = range(len(made) - len(trained))
        homes = [users[i] for i in trained]
        homes += [{s for s, share in enumerate(self._shares) if k in share.slots} for k in slots]
        for sources, home in zip(made, homes, strict=True):
            if any(not home <= users[trained[g]] for g in range(len(trained)) if sources >> g & 1):
                raise PlanError(
                    "the optimiser's updates of one stage's parameters depend on the gradients of another's (clipping "
                    "by the global norm?): give the Trainer `clip`, which works with pipeline parallelism, instead of "
                    "optax.clip_by_global_norm, or train without pipeline parallelism"
                )


def _made_from(jaxpr: Any, sources: int) -> list[int]:
    """For each result, a bit for each of the first `sources` arguments that it derives from."""
    bits: dict[Any, int] = {v: 1 << i for i, v in enumerate(jaxpr.invars[:sources])}

    def of(atoms: Sequence[Any]) -> int:
        found = 0
        for atom in atoms:
            found |= 0 if is_literal(atom) else bits.get(atom, 0)
        return found

    for eqn in jaxpr.eqns:
        bits.update(dict.fromkeys(eqn.outvars, of(eqn.invars)))
    return [of([atom]) for atom in jaxpr.outvars]


def _paths(tree: Any) -> list[str]:
    return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def _filled(tree: Any, arrays: Mapping[int, Any]) -> Any:
    return jax.tree.unflatten(jax.tree.structure(tree), [arrays[i] for i in range(len(arrays))])
