"""Pipeline parallelism: each device holds a stage of the model, and microbatches pass through all stages.

One program runs on a mesh of stages × replicas × the devices of a stage. In each tick of the schedule a device computes
its stage (one branch per stage) forward on one microbatch and backward on one, from inputs that it kept, and sends the
results to its neighbours. Gradients of replicas, and of parameters that several stages read, are summed once per step;
then each stage updates its own parameters. A stage's state is in flat vectors, [stages, n] over the mesh. The planner
splits a stage over several devices (`cloud.parallel.staged.inside`); between stages each of them sends its part of the
crossing values.

The results are those of `make_step` with the same number of `accumulate` parts: models whose rows are not independent
(BatchNormalization in training) are refused; a loss that couples rows otherwise (experts with a capacity) couples those
of a microbatch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cloud._jax import auto_mesh, everywhere, shaped
from cloud.errors import PlanError
from cloud.parallel.plan import Collective
from cloud.parallel.staged.cuts import line
from cloud.parallel.staged.holdings import Holdings
from cloud.parallel.staged.packing import TENSOR, over
from cloud.parallel.staged.programs import Programs, programs
from cloud.parallel.staged.schedule import schedule as timetable
from cloud.parallel.staged.sharing import Shared, sharing
from cloud.parallel.staged.stages import balanced
from cloud.parallel.staged.ticks import OnDevice
from cloud.parallel.staged.traffic import traffic
from cloud.parallel.topology import Topology
from cloud.train.stepping.freeze import which_frozen
from cloud.train.stepping.step import StepOptions, TrainState

__all__ = ["Pipelined"]

_SPEC: Any = jax.sharding.PartitionSpec


class Pipelined:
    """A pipeline-parallel step of `loss_sums(params, state, batch, key) -> (sums, state)`.

    `state` and `batch`: arrays or their shapes, of the whole step. `stages`: their number, cut where work is balanced
    and little is sent, or the places to cut at (see `cloud.parallel.staged.cuts`). `replicas`: number of copies of each
    stage, which divide the rows. `tensor`: devices of each replica of a stage, planned on the fastest links of
    `topology` (by default the table entry for the devices); `shared`: such plans made before. `schedule`: see
    `cloud.parallel.staged.schedule`. `devices`: stages × replicas × tensor of them. Raises `PlanError`.
    """

    def __init__(
        self, loss_sums: Callable[..., Any], optimizer: optax.GradientTransformation, options: StepOptions,
        state: TrainState, batch: Any, *, stages: int | Sequence[int], microbatches: int, replicas: int = 1,
        tensor: int = 1, schedule: str = "paired", devices: Sequence[Any] | None = None,
        topology: Topology | None = None, shared: Shared | None = None,
    ) -> None:  # fmt: skip
        if state.scale is not None:
            raise PlanError('pipeline parallelism has no loss scaling, got precision="float16": use "bfloat16"')
        if options.accumulate != 1 or options.recompute:
            raise PlanError(
                f"in pipeline parallelism `microbatches` take the place of accumulate, and stages always recompute: "
                f"expected accumulate=1 and recompute=0, got {options.accumulate} and {options.recompute}"
            )
        devices = jax.devices() if devices is None else devices
        self._options, self._replicas, self._tensor = options, replicas, tensor
        self._state, self._batch = jax.tree.map(_shape, (state, batch))
        self._key = jax.eval_shape(lambda: jax.random.key(0))
        rows = _microbatch(self._batch, replicas, microbatches)
        walked, constants = line(loss_sums, self._state.params, self._state.state, rows, self._key)
        cuts = balanced(walked, stages) if isinstance(stages, int) else tuple(stages)
        frozen = which_frozen(state.params, options.freeze)
        trained = frozenset(i for i, still in enumerate(frozen) if not still)
        params, kept = (len(jax.tree.leaves(tree)) for tree in (state.params, state.state))
        self.programs: Programs = programs(walked, constants, params, kept, cuts, trained, tensor)
        self.schedule = timetable(schedule, len(self.programs.stages), microbatches)
        self.mesh = _mesh(devices, self.schedule.stages, replicas, tensor)
        self.shared = shared if shared is not None or tensor == 1 else sharing(
            self.programs, tensor, topology or Topology.of_devices(devices),
            reduce_scatter=devices[0].platform != "cpu",
        )  # fmt: skip
        if self.shared is not None and self.shared.programs.trained != trained:
            raise PlanError("these stages were planned with other parameters frozen: give `pipelines` the same freeze")
        dims = {} if self.shared is None else self.shared.dims
        self.holdings = Holdings(self.programs, optimizer, self._state, tensor, dims)
        inside = OnDevice(self.programs, self.shared, self.holdings, self.schedule, options, replicas)
        self._compute = jax.shard_map(
            inside, mesh=self.mesh, in_specs=(_SPEC("stage"), _SPEC(), _SPEC("data")),
            out_specs=(_SPEC("stage"), _SPEC(), _SPEC()), axis_names={"stage", "data"}, check_vma=False,
        )  # fmt: skip
        held = self.holdings.shapes.items()
        self._held = {part: {key: self._over("stage", *over(key)) for key in flats} for part, flats in held}
        shardings = {"held": self._held, "common": everywhere(self.mesh)}
        self.step = jax.jit(
            self._step, donate_argnums=0, in_shardings=(shardings, self._over("data")),
            out_shardings=(shardings, everywhere(self.mesh)),
        )  # fmt: skip
        """`(placed state, batch) -> (placed state, sums)`; the state is donated."""

    def place(self, state: TrainState) -> dict[str, Any]:
        """The state in the form of `step`, every stage's part on its devices."""
        held = self.holdings.packed(jax.tree.map(np.asarray, state))
        return {
            "held": jax.tree.map(_put, self._held, held),
            "common": jax.tree.map(partial(_put, everywhere(self.mesh)), _common(state)),
        }

    def place_batch(self, batch: Any) -> Any:
        """A whole batch with its rows on the replicas that compute them."""
        return jax.tree.map(partial(_put, self._over("data")), batch)

    def gather(self, placed: Mapping[str, Any]) -> TrainState:
        """The inverse of `place`: the state as arrays of the host."""
        whole = jax.jit(lambda tree: tree, out_shardings=everywhere(self.mesh))(dict(placed))
        held, common = jax.tree.map(lambda a: np.asarray(a.addressable_data(0)), (whole["held"], whole["common"]))
        return self.holdings.unpacked(held, replace(self._state, **common))

    def lower(self) -> Any:
        """The step lowered for `mesh`, with nothing allocated; `.compile()` gives the program."""
        held, common = self.holdings.shapes, _common(self._state)
        return self.step.lower({"held": held, "common": common}, self._batch)

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """The collectives of a step; see `cloud.parallel.staged.traffic`."""
        packs = self.holdings.gradients, self.holdings.shared
        made = list(traffic(self.programs, self.shared, self.schedule, self._replicas, packs))
        for axis, size in ((0, self.schedule.stages), (2, self._tensor)) if self._options.clip is not None else ():
            if size > 1 and (axis == 0 or any(map(over, self.holdings.trained_sizes))):
                made.append(Collective("all-reduce", 4, (axis,), size, 1, "norm of the gradients"))
        return tuple(one for one in made if one.bytes)

    def _over(self, *axes: str | None) -> Any:
        return jax.sharding.NamedSharding(self.mesh, _SPEC(*axes))

    def _step(self, placed: Mapping[str, Any], batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        held, common, sums = self._compute(placed["held"], placed["common"], batch)
        return {"held": held, "common": common}, dict(zip(self.programs.sums, sums, strict=True))


def _shape(value: Any) -> Any:
    return shaped(jnp.shape(value), jax.dtypes.result_type(value))


def _common(state: TrainState) -> dict[str, Any]:
    """The values that every stage has."""
    return {"state": state.state, "step": state.step}


def _microbatch(batch: Any, replicas: int, microbatches: int) -> Any:
    """The shapes of one microbatch on one replica."""
    rows = {leaf.shape[:1] for leaf in jax.tree.leaves(batch)}
    if len(rows) != 1 or () in rows:
        raise PlanError(f"expected batch arrays with the same first dimension (rows), got {sorted(rows)}")
    ((total,),) = rows
    if total % (replicas * microbatches):
        raise PlanError(
            f"a batch of {total} rows cannot be divided among {replicas} replicas × {microbatches} microbatches: "
            f"take a multiple of {replicas * microbatches} rows, or fewer microbatches"
        )
    part = total // (replicas * microbatches)
    return jax.tree.map(lambda a: shaped((part, *a.shape[1:]), a.dtype), batch)


def _mesh(devices: Sequence[Any], stages: int, replicas: int, tensor: int) -> jax.sharding.Mesh:
    if len(devices) != stages * replicas * tensor:
        each = f"{stages} stages × {replicas} replicas" + (f" × {tensor} devices" if tensor > 1 else "")
        raise PlanError(f"{each} take {stages * replicas * tensor} devices, got {len(devices)}")
    return auto_mesh(np.asarray(devices).reshape(stages, replicas, tensor), ("stage", "data", TENSOR))


def _put(sharding: Any, value: Any) -> jax.Array:
    """Every process has the whole array and gives its devices their parts."""
    whole = np.asarray(value)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])
