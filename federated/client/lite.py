"""`LiteLearner`: the learner interface of federated algorithms for a trainable bundle, run by `lite_runtime`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from threading import Lock
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

import lite_runtime
from federated import tree
from federated.client.loops import Loop
from federated.errors import FederatedError
from federated.learner import Batch, Evaluation, Gradient, sgd
from federated.tree import Array, Tree
from lite_runtime import bundle
from lite_runtime.graph import numpy_dtype

__all__ = ["LiteLearner", "stacked"]

Carry = TypeVar("Carry")

CHUNK = 256
"""Labels that `evaluate` processes at once, at least those of one example, which bounds its memory."""
PREFIX, SLOPE, LABELS, PREDICT = "grad/", "slope/", "labels", "predict"
NEEDED = ("gradients", "evaluate")
CURVATURE, ALONG, CURVE = "curvature", "along/", "curve/"


class LiteLearner:
    """A bundle converted with `trainable`, used through its signatures `gradients` and `evaluate`. Without them:
    FederatedError.

    `source`, `threads`, `backend`: as for `lite_runtime.load`. Parameters are the arrays with gradients, statistics
    those that `gradients` writes. An algorithm uses new parameters in every call, so the bundle's state is passed as
    inputs and outputs of its graphs: nothing is loaded, swapped or packed between two calls, and calls are independent.
    `outputs`: whether the model's outputs are wanted too.
    """

    def __init__(
        self, source: bundle.Source, *, threads: int = 1, backend: str = "auto", outputs: bool = False
    ) -> None:
        held = bundle.read(source)
        if missing := [name for name in NEEDED if name not in held.uses]:
            raise FederatedError(
                f"expected a bundle that can be trained, with the signatures {', '.join(NEEDED)}; this one lacks "
                f"{', '.join(missing)}: convert it with trainable=…"
            )
        self.second_order = CURVATURE in held.uses
        """Whether `meta_gradient` is available: the bundle has the signature `curvature`."""
        used = (*NEEDED, *((CURVATURE,) if self.second_order else ()), *((PREDICT,) if outputs else ()))
        graphs = {name: held.signatures[name] for name in used}
        self._model = lite_runtime.load(bundle.write(None, graphs), threads=threads, backend=backend)
        self._reads = {name: held.uses[name].reads for name in used}
        self._labels = numpy_dtype(next(v.dtype for v in graphs["gradients"].inputs if v.name == LABELS))
        outputs_ = [value.name for value in graphs["gradients"].outputs]
        self._grads = {name: name.removeprefix(PREFIX) for name in outputs_ if name.startswith(PREFIX)}
        self._shapes = {
            value.name: tuple(side if isinstance(side, int) else 0 for side in value.shape or ())
            for value in graphs["gradients"].inputs
        }
        self._types = {value.name: numpy_dtype(value.dtype) for value in graphs["gradients"].inputs}
        self._slopes = {name: name.removeprefix(SLOPE) for name in outputs_ if name.startswith(SLOPE)}
        self._statistics = held.uses["gradients"].writes
        moving = (*self._grads.values(), *self._statistics.values())
        self._params = {name: held.state[name] for name in moving}
        self._fixed = {name: value for name, value in held.state.items() if name not in self._params}
        self._loops: dict[Hashable, Loop | None] = {}
        self._lock = Lock()

    @property
    def classifies(self) -> bool:
        """Whether labels are classes; then the loss is a cross-entropy, which is never negative."""
        return np.issubdtype(self._labels, np.integer)

    @property
    def params(self) -> dict[str, Array]:
        """Trainable parameters, then running statistics, with the bundle's values."""
        return dict(self._params)

    def gradient(self, params: Tree, batch: Batch) -> Gradient:
        """See `federated.learner.Learner`."""
        return self.slopes(params, batch)[0]

    def slopes(self, params: Tree, batch: Batch) -> tuple[Gradient, dict[str, Array]]:
        """The gradient, and the loss's gradients with respect to the inputs that the bundle was converted for."""
        found = self._ask("gradients", params, batch)
        grads = {name: found[output] for output, name in self._grads.items()}
        moved = {name: found[output] for output, name in self._statistics.items()}
        return Gradient(found["loss"], grads, moved), {name: found[output] for output, name in self._slopes.items()}

    @property
    def slope_names(self) -> tuple[str, ...]:
        """The inputs that `slopes` is about."""
        return tuple(self._slopes.values())

    def input_shape(self, name: str) -> tuple[int, ...]:
        """The shape of an input, with 0 for its open dimensions. KeyError for another name."""
        return self._shapes[name]

    def outputs(self, params: Tree, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The model's outputs by name, in inference form; needs `outputs` when it was made."""
        return self._model.run({**inputs, **self._state(PREDICT, params)}, PREDICT)

    def meta_gradient(self, params: Tree, rates: Tree, support: Batch, query: Batch) -> tuple[Gradient, Tree]:
        """See `federated.learner.Learner`. Backwards through the steps: the Jacobian of params - rates * gradient is
        I - H diag(rates), with the Hessian H of that step's loss. Raises FederatedError without `curvature`."""
        if not self.second_order:
            raise FederatedError(
                "expected a bundle with the signature curvature, for second-order gradients; convert the model with "
                "--second-order, or use the algorithm's first-order variant"
            )
        way: list[tuple[Tree, Batch, Tree]] = []
        for i in range(len(support.labels)):
            batch = _at(support, i)
            found = self.gradient(params, batch)
            way.append((params, batch, found.grads))
            params = sgd(params, found, rates)
        asked = self.gradient(params, query)
        back, slopes = asked.grads, tree.zeros(asked.grads)
        for there, batch, grads in reversed(way):
            slopes = tree.sub(slopes, tree.mul(back, grads))
            back = tree.sub(back, self._curvature(there, batch, tree.map_leaves(lambda x, r: x * r, back, rates)))
        return asked._replace(grads=back), slopes

    def _curvature(self, params: Tree, batch: Batch, along: Tree) -> Tree:
        """The Hessian's product with a tree."""
        found = self._ask(CURVATURE, params, batch, {f"{ALONG}{name}": leaf for name, leaf in along.items()})
        return {name: found[f"{CURVE}{name}"] for name in along}

    def evaluate(self, params: Tree, batch: Batch) -> Evaluation:
        """See `federated.learner.Learner`."""
        loss, correct, examples = 0.0, 0, 0
        step = max(1, CHUNK * len(batch.labels) // max(1, batch.labels.size))
        for first in range(0, len(batch.labels), step):
            rows = slice(first, first + step)
            asked = Batch({name: values[rows] for name, values in batch.inputs.items()}, batch.labels[rows])
            found = self._ask("evaluate", params, asked)
            count = int(found["examples"])
            loss += float(found["loss"]) * count if count else 0.0  # without labels that count it may not be a number
            correct += int(found.get("correct", 0))
            examples += count
        return Evaluation(np.float32(loss), correct, examples)

    def descend(
        self, params: Tree, batches: Batch, rate: float, pool: Batch | None = None
    ) -> tuple[dict[str, Array], Array] | None:
        """See `federated.learner.Descends`."""
        if self._statistics or type(rate) is not float or params.keys() != self._params.keys():
            return None
        key = self._shapes_of(batches, pool)
        if key is None or not self._lock.acquire(blocking=False):
            return None  # another thread has the arrays
        try:
            if key not in self._loops:
                self._loops[key] = self._loop(key)
            loop = self._loops[key]
            return None if loop is None else loop.descend(params, batches, rate, pool)
        finally:
            self._lock.release()

    def _shapes_of(self, batches: Batch, pool: Batch | None) -> tuple[tuple[str, tuple[int, ...]], ...] | None:
        """Name and shape of what a step reads; None if types would have to change."""
        held = batches if pool is None else pool
        first = () if pool is None else batches.labels.shape[1:]
        if any(self._types.get(name) != values.dtype for name, values in (*held.inputs.items(), (LABELS, held.labels))):
            return None
        return (*((name, (*first, *values.shape[1:])) for name, values in held.inputs.items()),
                (LABELS, (*first, *held.labels.shape[1:])))  # fmt: skip

    def _loop(self, sizes: tuple[tuple[str, tuple[int, ...]], ...]) -> Loop | None:
        made = Loop(self._model, dict(sizes), self._reads["gradients"], self._grads, self._fixed)
        return made if made.fixed else None

    def scan(
        self, step: Callable[[Carry, Batch], tuple[Carry, Any]], carry: Carry, batches: Batch
    ) -> tuple[Carry, Any]:
        """A loop."""
        outs = []
        for i in range(len(batches.labels)):
            carry, out = step(carry, _at(batches, i))
            outs.append(out)
        return carry, stacked(outs)

    def _ask(self, signature: str, params: Tree, batch: Batch, more: Tree = MappingProxyType({})) -> dict[str, Array]:
        labels = np.asarray(batch.labels, self._labels)
        return self._model.run({**batch.inputs, LABELS: labels, **self._state(signature, params), **more}, signature)

    def _state(self, signature: str, params: Tree) -> dict[str, Array]:
        reads = self._reads[signature].items()
        return {name: params[read] if read in params else self._fixed[read] for name, read in reads}


def _at(batches: Batch, i: int) -> Batch:
    return Batch({name: values[i] for name, values in batches.inputs.items()}, batches.labels[i])


def stacked(outs: Sequence[Any]) -> Any:
    """Stacks trees or arrays of the same form: each leaf gets a new leading axis [len(outs), ...]. FederatedError if
    empty."""
    if not outs:
        raise FederatedError("expected at least one batch to learn from, got none")
    if isinstance(outs[0], Mapping):
        return {name: stacked([out[name] for out in outs]) for name in outs[0]}
    return np.asarray(outs)
