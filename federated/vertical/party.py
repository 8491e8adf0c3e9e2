"""What both parties of a vertical run have: a part of the model, rows with identifiers, and steps of SGD."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from federated import tree
from federated.client.lite import LiteLearner
from federated.data import arrays_of
from federated.errors import FederatedError
from federated.learner import Gradient, sgd
from federated.server.rounds import seed_of
from federated.tree import Array, Tree
from federated.vertical.config import Learning, Party
from lite_runtime import bundle
from lite_runtime._files import write_atomically

__all__ = ["Schedule", "Table", "Trained", "ordered", "table_of", "trained_of"]


@dataclass(frozen=True)
class Table:
    """Rows by identifier. `inputs`: arrays [n, ...] by name; `labels`: [n], at the active party."""

    identifiers: Sequence[bytes]
    inputs: Mapping[str, Array]
    labels: Array | None

    @property
    def digest(self) -> str:
        """Of the identifiers, in order: a run continues with the rows it began with."""
        joined = b"\0".join(hashlib.sha256(each).digest() for each in self.identifiers)
        return hashlib.sha256(joined).hexdigest()

    def at(self, rows: Array) -> dict[str, Array]:
        """The inputs of some rows."""
        return {name: values[rows] for name, values in self.inputs.items()}


def table_of(party: Party) -> Table:
    """The rows of a party's file. Raises FederatedError for files that cannot be read or lack arrays."""
    path, words = party.path(party.data.file), party.data
    arrays = arrays_of(path)
    ids = arrays.pop(words.id, None)
    if ids is None or ids.ndim != 1 or ids.dtype.kind not in "USiu":
        got = "none" if ids is None else f"{ids.dtype} {list(ids.shape)}"
        what = f"an array {words.id!r} of texts or whole numbers, one for each row"
        raise FederatedError(f"{path}: expected {what}, got {got}")
    labels = arrays.pop(words.labels, None) if party.role == "active" else None
    if party.role == "active" and labels is None:
        got = ", ".join(sorted(arrays)) or "nothing"
        raise FederatedError(f"{path}: expected an array {words.labels!r}, got {got}")
    if wrong := [name for name, values in arrays.items() if values.shape[:1] != ids.shape]:
        raise FederatedError(f"{path}: expected {len(ids)} rows of {wrong[0]!r}, one for each identifier")
    if labels is not None and labels.shape[:1] != ids.shape:
        raise FederatedError(f"{path}: expected {len(ids)} labels, one for each identifier, got {len(labels)}")
    if not len(ids):
        raise FederatedError(f"{path}: expected rows, got none")
    return Table([_identifier(each) for each in ids.tolist()], arrays, labels)


def _identifier(value: Any) -> bytes:
    """The bytes that both parties hash: UTF-8; numbers in decimal digits."""
    return value if isinstance(value, bytes) else str(value).encode()


@dataclass
class Trained:
    """A part of the model, and its parameters as they change."""

    learner: LiteLearner
    words: Learning
    path: Path
    params: Tree
    velocity: Tree = field(default_factory=dict)

    def step(self, gradient: Gradient) -> None:
        """One step of SGD with momentum, as on a device (`federated.algorithms.steps.descend`)."""
        if self.words.momentum:
            old = self.velocity or tree.zeros(gradient.grads)
            self.velocity = tree.add(gradient.grads, old, self.words.momentum)
            gradient = gradient._replace(grads=self.velocity)
        self.params = sgd(self.params, gradient, self.words.rate)

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"params": dict(self.params), "velocity": dict(self.velocity)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """From a checkpoint. Raises FederatedError for parameters of another bundle."""
        found = state.get("params", {})
        if _shapes(found) != _shapes(self.params):
            raise FederatedError("checkpoint: expected the parameters of this party's bundle, got others")
        self.params, self.velocity = found, state.get("velocity", {})

    def write(self, path: Path) -> None:
        """This part of the model as a new bundle."""
        write_atomically(path, bundle.with_state(self.path.read_bytes(), self.params), FederatedError)


def _shapes(params: Tree) -> dict[str, tuple[int, ...]]:
    return {name: leaf.shape for name, leaf in params.items()}


def ordered(table: Table, rows: Array) -> Array:
    """Row numbers in the order of their identifiers, in which both parties number the common rows."""
    return np.array(sorted(rows.tolist(), key=lambda at: table.identifiers[at]), np.int64)


def trained_of(party: Party) -> Trained:
    """A party's part of the model. Raises FederatedError for a bundle that is no such part."""
    path = party.path(party.vertical.bundle)
    learner = LiteLearner(path, outputs=True)
    held = bundle.read(path)
    if moving := held.uses["gradients"].writes:
        got = min(moving.values())
        raise FederatedError(
            f"{path}: expected a model without running statistics, got {got!r}; convert it with --batch-norm frozen"
        )
    return Trained(learner, party.learning, path, learner.params)


@dataclass(frozen=True)
class Schedule:
    """Which of the common rows are trained on, and in which steps: a function of seed and counts, for both parties."""

    rows: int
    test: float
    batch: int
    epochs: int
    seed: int

    @property
    def parts(self) -> tuple[Array, Array]:
        """The rows to train on and those to test with (int64, ascending); at least one to train on."""
        order = np.random.default_rng(seed_of(self.seed, "vertical test")).permutation(self.rows)
        count = min(round(self.test * self.rows), self.rows - 1)
        return np.sort(order[count:]), np.sort(order[:count])

    @property
    def steps_an_epoch(self) -> int:
        """How many steps go once through the rows; the last may be smaller."""
        return -(-len(self.parts[0]) // self.batch)

    @property
    def steps(self) -> int:
        """In the whole run."""
        return self.epochs * self.steps_an_epoch

    def batch_of(self, step: int) -> Array:
        """The rows of a step, from 1 (int64 [batch or fewer])."""
        epoch, place = divmod(step - 1, self.steps_an_epoch)
        train = self.parts[0]
        order = np.random.default_rng(seed_of(self.seed, "vertical epoch", epoch)).permutation(train)
        return order[place * self.batch : (place + 1) * self.batch]
