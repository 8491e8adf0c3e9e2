"""Low-rank adapters (Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022) beside the weights of
any task: W + alpha / rank * A B, of which A and B alone are trained."""

from __future__ import annotations

import fnmatch
import glob
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from cloud.errors import TrainError
from cloud.train.stepping.freeze import names
from cloud.train.tasks.task import Task, Tree

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["Lora", "LoraTask"]

_A, _B = ".lora_a", ".lora_b"


@dataclass(frozen=True)
class Lora:
    """Adapters of rank `rank` beside the parameters of rank 2 and up that match the globs `targets`; their product is
    multiplied by `alpha` / rank (None: by 1). Parameters that match `also` are trained as a whole beside them, all
    others are frozen. `seed`: of the normal numbers that A starts with; B starts as zeros.

    Names, shapes and the factor are those of a bundle's adapters (`converter.training.Lora`): `<W>.lora_a` is [inputs,
    rank] and `<W>.lora_b` [rank, outputs]. Of a convolution, inputs are channels times the size of the kernel.
    """

    rank: int = 8
    alpha: float | None = None
    targets: Sequence[str] = ("*",)
    also: Sequence[str] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise TrainError(f"lora: expected a rank of at least 1, got {self.rank}")
        if self.alpha is not None and not 0 < self.alpha < math.inf:
            raise TrainError(f"lora: expected an alpha above 0, got {self.alpha}")
        if isinstance(self.targets, str) or not self.targets:
            raise TrainError(f"lora: expected a list of globs as targets, got {self.targets!r}")

    @property
    def factor(self) -> float:
        """The factor of A B."""
        return 1.0 if self.alpha is None else self.alpha / self.rank


class LoraTask:
    """`task` with adapters as further parameters. Its parameters have to be a dict, possibly of dicts."""

    def __init__(self, task: Task, lora: Lora) -> None:
        self._task, self._lora, self.inputs = task, lora, task.inputs
        params, state = task.init()
        if not isinstance(params, Mapping):
            raise TrainError(f"lora: expected parameters in a dict, got {type(params).__name__}; name them")
        there = dict(zip(names(params), jax.tree.leaves(params), strict=True))
        self._base = tuple(there)
        self._across = _across(task)
        self._adapted = {name: array.shape for name, array in there.items() if self._fits(name, array)}
        for pattern in (*lora.targets, *lora.also):
            if not fnmatch.filter(there if pattern in lora.also else self._adapted, pattern):
                known = ", ".join(name for name, array in there.items() if array.ndim >= 2)
                raise TrainError(f"lora: no parameter matches {pattern!r}; adapters are possible beside {known}")
        self._start = {**params, **self._fresh()}, state

    def _fits(self, name: str, array: Any) -> bool:
        taken = any(fnmatch.fnmatchcase(name, p) for p in self._lora.targets)
        whole = any(fnmatch.fnmatchcase(name, p) for p in self._lora.also)
        return taken and not whole and array.ndim >= 2 and bool(jnp.issubdtype(array.dtype, np.floating))

    def _fresh(self) -> dict[str, npt.NDArray[np.float32]]:
        """A normal with variance 1 / inputs, B zeros, in the order of names."""
        rng, rank = np.random.default_rng(self._lora.seed), self._lora.rank
        made: dict[str, npt.NDArray[np.float32]] = {}
        for name, shape in self._adapted.items():
            inputs, outputs = self._sizes(name, shape)
            made[name + _A] = (rng.standard_normal((inputs, rank)) / math.sqrt(inputs)).astype(np.float32)
            made[name + _B] = np.zeros((rank, outputs), np.float32)
        return made

    def _sizes(self, name: str, shape: Sequence[int]) -> tuple[int, int]:
        total = math.prod(shape)
        outputs = shape[0] if name in self._across else shape[-1]
        return total // outputs, outputs

    @property
    def frozen(self) -> tuple[str, ...]:
        """Patterns of the parameters that are not trained."""
        also = self._lora.also
        return tuple(glob.escape(n) for n in self._base if not any(fnmatch.fnmatchcase(n, p) for p in also))

    @property
    def function(self) -> Any:
        """The ONNX model's function, if it is one."""
        return getattr(self._task, "function", None)

    def init(self) -> tuple[Tree, Tree]:
        """See `Task`."""
        return self._start

    def apply(
        self, params: Tree, state: Tree, inputs: Mapping[str, Any], rng: jax.Array | None, train: bool
    ) -> tuple[Any, Tree]:
        """See `Task`."""
        return self._task.apply(self.merged(params), state, inputs, rng, train)

    def export(self, params: Tree, state: Tree) -> ir.Model:
        """See `Task`: with adapters added to the weights, in float32."""
        return self._task.export(self.merged(params), state)

    def merged(self, params: Tree) -> Tree:
        """The task's own parameters with the adapters added."""
        base = {name: value for name, value in params.items() if not name.endswith((_A, _B)) or name in self._base}
        leaves, structure = jax.tree.flatten(base)
        added = [
            leaf + self._change(name, params) if name in self._adapted else leaf
            for name, leaf in zip(names(base), leaves, strict=True)
        ]
        return jax.tree.unflatten(structure, added)

    def adapters(self, params: Tree) -> dict[str, npt.NDArray[np.float32]]:
        """A and B by name, as a bundle with these adapters takes them."""
        return {name + part: np.asarray(params[name + part], np.float32) for name in self._adapted for part in (_A, _B)}

    def _change(self, name: str, params: Tree) -> Any:
        shape = self._adapted[name]
        change = params[name + _A] @ params[name + _B] * self._lora.factor
        return (change.T if name in self._across else change).reshape(shape)


def _across(task: Task) -> frozenset[str]:
    """Of an ONNX model, the weights whose first axis is the outputs': filters, and matrices that Gemm transposes."""
    model = getattr(task, "model", None)
    if model is None:
        return frozenset()
    found: set[str] = set()
    for node in model.graph:
        weight = node.inputs[1].name if len(node.inputs) > 1 and node.inputs[1] is not None else ""
        turned = node.op_type == "Gemm" and "transB" in node.attributes and node.attributes["transB"].as_int()
        if weight and (node.op_type == "Conv" or turned):
            found.add(weight)
    return frozenset(found)
