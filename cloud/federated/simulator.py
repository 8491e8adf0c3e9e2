"""`Simulator`: thousands of devices as one compiled computation per round.

All examples are in one pool of arrays, and a device is a set of row numbers in it; drawing a batch means drawing row
numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh

from cloud._jax import everywhere
from cloud.errors import TrainError
from cloud.federated import fleet
from cloud.federated.draws import drawn
from cloud.federated.learner import JaxLearner
from federated.algorithms.base import Algorithm
from federated.data import draw
from federated.learner import Batch, Evaluation
from federated.schedule import Schedule
from federated.server.rounds import choose, seed_of, wanted
from federated.tree import Tree

__all__ = ["Report", "Rows", "Simulator"]

Rows: TypeAlias = npt.NDArray[np.integer[Any]]
"""Row numbers of one device's examples in the pool."""

_Asked = TypeVar("_Asked", fleet.Training, fleet.Adapting)


class Report(NamedTuple):
    """The names of the devices that took part in a round, and their mean training losses (float32 [devices])."""

    round: int
    devices: list[str]
    losses: npt.NDArray[np.float32]


class _Lot(NamedTuple):
    """Everything that a round's draws depend on, besides what is constant in a simulator."""

    number: int
    fraction: float
    steps: int


class Simulator:
    """A fleet under one algorithm, on all of JAX's devices.

    `pool`: examples, arrays [examples, ...]; `shards`: the rows of each device by its name; in a round, each device
    takes `steps` local steps on batches of `size` examples. `group`: how many devices compute in parallel: small models
    with matrix products run faster in groups, convolutions one device at a time. Equal seeds give equal runs, and equal
    devices and batches in every simulator. `state` (the server's), `personal` (of all devices, [fleet, ...]) and
    `rounds` are the whole state of a run. Float fields of `algorithm` may be changed between rounds without compiling.
    `schedule` changes its rates from round to round, as in `[schedule]` of a configuration; a cosine needs `rounds`.
    """

    def __init__(
        self, algorithm: Algorithm, learner: JaxLearner, pool: Batch, shards: Mapping[str, Rows],
        *, steps: int, size: int, seed: int = 0, group: int = 1, schedule: Schedule | None = None,
    ) -> None:  # fmt: skip
        schedule = schedule or Schedule()
        schedule.check(algorithm)
        if schedule.open_ended:
            raise TrainError("schedule.rounds: expected the round at which the cosine ends, got 0; set it")
        if empty := [name for name, rows in shards.items() if not len(rows)] or ([] if shards else ["the fleet"]):
            raise TrainError(f"expected at least one example of every device, got none of {', '.join(empty)}")
        self.algorithm, self._learner, self._schedule = algorithm, learner, schedule
        self._names = sorted(shards)
        self._shards = [np.asarray(shards[name]) for name in self._names]
        self._index = {name: i for i, name in enumerate(self._names)}
        self._steps, self._size, self._seed, self._group = steps, size, seed, group
        self._weights = np.array([1 if algorithm.uniform else len(rows) for rows in self._shards], np.float32)
        self._known = np.zeros(len(shards), bool)
        self._mesh = Mesh(np.array(jax.devices()), ("fleet",))
        placed = everywhere(self._mesh)
        self._pool = jax.device_put(pool, placed)
        # With the types and placement that a round returns: otherwise the second round would compile again.
        self.state: Tree = jax.device_put(jax.tree.map(_strong, algorithm.init(learner.params)), placed)
        enrolled = jax.eval_shape(lambda state: algorithm.enrol(algorithm.broadcast(state)), self.state)
        nobody = jax.tree.map(lambda leaf: jnp.zeros((len(shards), *leaf.shape), leaf.dtype), enrolled)
        self.personal: Tree = jax.device_put(nobody, placed)
        self.rounds = 0
        self._ahead: tuple[_Lot, tuple[list[str], Rows]] | None = None

    def round(self, fraction: float = 1.0) -> Report:
        """One round with `fraction` of the fleet, at least one device."""
        lot = _Lot(self.rounds + 1, fraction, self._steps * self.algorithm.batches_a_step)
        names, rows = self._ahead[1] if self._ahead and self._ahead[0] == lot else self._lot(lot)
        devices = np.array([self._index[name] for name in names])
        asked = fleet.Training(devices, self._known[devices], rows, self._weights[devices])
        share = np.float32(len(devices) / len(self._names))
        algorithm = self._schedule.at(self.algorithm, lot.number, self._schedule.rounds)
        self.state, self.personal, losses = self._run(algorithm, fleet.train, self._grouped(asked), share)
        self._known[devices] = True
        self.rounds = lot.number
        # While JAX computes, draw what the next round will probably need.
        following = lot._replace(number=lot.number + 1)
        self._ahead = following, self._lot(following)
        return Report(lot.number, names, np.asarray(losses).reshape(-1)[: len(names)])

    def adapt(
        self, devices: Sequence[str], support: Sequence[Rows], query: Sequence[Rows],
        *, steps: int, size: int, seed: int = 0,
    ) -> tuple[Evaluation, Evaluation]:  # fmt: skip
        """Each device on its `query` rows, before and after adapting on `steps` batches of `size` from `support`.

        A name of the fleet starts from that device's personal state; any other name is a new device. A name may occur
        several times. Leaves of the results are NumPy arrays [devices].
        """
        numbers = np.array([self._index.get(name, len(self._names)) for name in devices])
        known = np.append(self._known, False)[numbers]
        rows = [
            self._drawn(np.asarray(own), ("evaluate", seed, i), steps, size) for i, own in enumerate(support)
        ]
        queries, mask = _padded([np.asarray(own) for own in query])
        asked = self._grouped(fleet.Adapting(numbers, known, np.stack(rows), queries, mask))
        found = self._run(self.algorithm, fleet.adapt, asked)
        before, after = jax.tree.map(lambda leaf: np.asarray(leaf).reshape(-1)[: len(devices)], found)
        return before, after

    def _lot(self, lot: _Lot) -> tuple[list[str], Rows]:
        """The devices that take part, and their rows [devices, steps, size], sorted within a batch for locality.
        Batches of all examples need no draw."""
        names = choose(self._names, wanted(len(self._names), lot.fraction, 1), self._seed, lot.number)
        shards = [self._shards[self._index[name]] for name in names]
        if lot.steps == 1 and all(len(own) == self._size for own in shards):
            rows: Rows = np.stack(shards)[:, None]
        else:
            rows = drawn(shards, names, (self._seed, "train", lot.number), lot.steps, self._size)
        return names, np.sort(rows)

    def _drawn(self, rows: Rows, words: tuple[int | str, ...], steps: int, size: int) -> Rows:
        """Rows [steps, size], drawn in the same way as examples."""
        rng = np.random.default_rng(seed_of(self._seed, *words))
        drawn: Rows = draw(Batch({}, rows), rng, steps, size).labels
        return drawn

    def _run(self, algorithm: Algorithm, function: Any, *arguments: Any) -> Any:
        kind, numbers = fleet.apart(algorithm)
        return _compute(
            function, kind, self._learner, self._mesh, numbers, self._pool, self.state, self.personal, *arguments
        )

    def _grouped(self, asked: _Asked) -> _Asked:
        """Leaves [devices, ...] as [groups, group, ...], a number of groups that JAX's devices share evenly. The rest
        is filled with a device number beyond the fleet, whose other leaves are zero."""
        count = len(asked.numbers)
        group = min(self._group, -(-count // self._mesh.size))
        missing = -count % (group * self._mesh.size)

        def grouped(leaf: npt.NDArray[Any], filler: int) -> npt.NDArray[Any]:
            filling = np.full((missing, *leaf.shape[1:]), filler, leaf.dtype)
            return np.concatenate([leaf, filling]).reshape(-1, group, *leaf.shape[1:])

        fillers = (len(self._names), *(0 for _ in asked[1:]))
        return type(asked)(*(grouped(leaf, filler) for leaf, filler in zip(asked, fillers, strict=True)))


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _compute(
    function: Any, kind: Algorithm, learner: JaxLearner, mesh: Mesh, numbers: Tree, *arguments: Any
) -> Any:  # fmt: skip
    """Compiled once per kind of algorithm and learner, for all hyperparameters and simulators."""
    return function(fleet.with_hyperparameters(kind, numbers), learner, mesh, *arguments)


def _strong(leaf: Any) -> jax.Array:
    """An array whose type is not promoted by other operands (not weakly typed)."""
    return jnp.asarray(leaf, jnp.asarray(leaf).dtype)


def _padded(rows: Sequence[Rows]) -> tuple[Rows, npt.NDArray[np.float32]]:
    """Rows of unequal numbers as one array [devices, longest], and which count."""
    counts = np.array([len(own) for own in rows])
    mask = np.arange(counts.max()) < counts[:, None]
    padded = np.zeros(mask.shape, np.int64)
    padded[mask] = np.concatenate(rows)
    return padded, mask.astype(np.float32)
