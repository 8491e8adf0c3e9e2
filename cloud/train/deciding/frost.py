"""Which layers are frozen as a run goes on: unfrozen one by one from the back, or frozen one by one from the front."""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from cloud.errors import CheckpointError, TrainError
from cloud.train.stepping.freeze import names
from cloud.train.stepping.step import Batch, Objective

__all__ = ["Frost", "GradualUnfreezing", "ProgressiveFreezing", "layer_norms"]

Layers = Sequence[Sequence[str]]


@dataclass(frozen=True)
class GradualUnfreezing:
    """Trains the last `first` layers, and one more from the back after every `every` epochs, until none is frozen
    (Howard and Ruder, "Universal Language Model Fine-tuning", ACL 2018). `layers`: patterns, from the front; (): see
    `cloud.train.stepping.layers.layers_of`."""

    first: int = 1
    every: int = 1
    layers: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("first", "every"):
            if getattr(self, name) < 1:
                raise TrainError(f"expected {name} of at least 1 for gradual unfreezing, got {getattr(self, name)}")


@dataclass(frozen=True)
class ProgressiveFreezing:
    """Freezes layers from the front for good, after every `every` epochs: up to the active layer whose gradient has the
    smallest norm, but at most the `share` of the active layers (He et al., "PipeTransformer", ICML 2021, equation 1).
    The gradient is that of `batches` batches. The last layer is always trained. `layers`: see `GradualUnfreezing`."""

    share: float = 1 / 3
    every: int = 1
    batches: int = 4
    layers: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise TrainError(f"expected a share between 0 and 1 for progressive freezing, got {self.share}")
        for name in ("every", "batches"):
            if getattr(self, name) < 1:
                raise TrainError(f"expected {name} of at least 1 for progressive freezing, got {getattr(self, name)}")


@dataclass
class Frost:
    """`count` of the first `layers` are frozen, beside the patterns `always`; decided last at the end of epoch `at`."""

    way: GradualUnfreezing | ProgressiveFreezing
    layers: Layers
    always: tuple[str, ...] = ()
    count: int = field(init=False)
    at: int = 0

    def __post_init__(self) -> None:
        if len(self.layers) < 2:
            raise TrainError(f"expected at least 2 layers to freeze some of, got {len(self.layers)}: name layers=")
        self.count = self._thawed(0) if isinstance(self.way, GradualUnfreezing) else 0

    def patterns(self) -> tuple[str, ...]:
        """Glob patterns of all that is frozen now."""
        return (*self.always, *(glob.escape(name) for layer in self.layers[: self.count] for name in layer))

    def due(self, epochs: int) -> bool:
        """Whether something is to be decided after that many epochs."""
        return epochs > self.at and epochs % self.way.every == 0 and not (
            isinstance(self.way, GradualUnfreezing) and self.count == 0
        )  # fmt: skip

    def until(self, epochs: int) -> int | None:
        """The epoch at which more is unfrozen, if it is known."""
        if not isinstance(self.way, GradualUnfreezing) or not self.count:
            return None
        return (epochs // self.way.every + 1) * self.way.every

    def decide(self, epochs: int, norms: Callable[[Layers], Sequence[float]]) -> bool:
        """Decide how many layers are frozen from now on; returns whether that changed. `norms(layers)`: of
        gradients."""
        before, self.at = self.count, epochs
        if isinstance(self.way, GradualUnfreezing):
            self.count = self._thawed(epochs)
        else:
            active = self.layers[before:]
            most = int(self.way.share * len(active) + 1e-9)
            if most and len(active) > 1:
                self.count = before + min(most, 1 + int(np.argmin(norms(active)[:-1])))
        return self.count != before

    def said(self) -> dict[str, int]:
        """What was decided so far, as JSON data."""
        return {"count": self.count, "at": self.at}

    def resumed(self, said: Mapping[str, Any]) -> None:
        """The inverse of `said`. Raises CheckpointError."""
        count, at = said.get("count"), said.get("at")
        if not isinstance(count, int) or not isinstance(at, int) or not 0 <= count < len(self.layers):
            raise CheckpointError(f"the checkpoint's frozen layers are damaged, or of another model: {dict(said)}")
        self.count, self.at = count, at

    def _thawed(self, epochs: int) -> int:
        assert isinstance(self.way, GradualUnfreezing)
        return max(0, len(self.layers) - self.way.first - epochs // self.way.every)


def layer_norms(
    objective: Objective, seed: int, params: Any, state: Any, batches: Sequence[Batch], layers: Layers
) -> list[float]:
    """The norms of the layers' parts of the mean loss's gradient over `batches`."""

    @jax.jit
    def slopes(params: Any, state: Any, batch: Batch, number: Any) -> Any:
        key = jax.random.fold_in(jax.random.key(seed), number)

        def mean(params: Any) -> Any:
            sums, _ = objective.loss_sums(params, state, batch, key)
            return sums["loss"] / jnp.maximum(sums["examples"], 1)

        return jax.grad(mean)(params)

    total: Any = None
    for number, batch in enumerate(batches):
        found = slopes(params, state, batch, number)
        total = found if total is None else jax.tree.map(jnp.add, total, found)
    leaves = dict(zip(names(total), jax.device_get(jax.tree.leaves(total)), strict=True))
    squares = {name: float(np.square(leaf, dtype=np.float64).sum()) for name, leaf in leaves.items()}
    return [sum(squares[name] for name in layer) ** 0.5 / len(batches) for layer in layers]
