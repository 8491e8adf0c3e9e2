"""A file's tensors by their roles in the model: each is found, has the right shape, and none is left over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from converter.errors import ConvertError
from converter.frontends.decoders.families import listed
from converter.frontends.decoders.rounding import BLOCK
from converter.frontends.decoders.weights import Blocked, Dense, Matrix, finite
from lite_runtime.graph import Array

__all__ = ["Rounded", "Tensors"]

Rounded = Callable[[str, Dense], Matrix]
"""What a dense matrix becomes, by the name of its product: "layer.0.down", "embedding", "logits"."""


class Tensors:
    """`tensors` by name; `names`: the names by role; `rounded`: what becomes of dense matrices whose rows are whole
    blocks, None to leave them; `ignored`: names of tensors that the graph has no use for."""

    def __init__(
        self,
        tensors: Mapping[str, Matrix],
        names: Mapping[str, str],
        rounded: Rounded | None = None,
        ignored: Iterable[str] = (),
    ) -> None:
        self._tensors, self._names, self._rounded = tensors, names, rounded
        self._used = set(ignored)
        self._made: dict[str, Matrix] = {}
        self.products: dict[str, Dense] = {}
        """The dense matrices that were asked for and can be rounded, by the names of their products."""

    def has(self, role: str, i: int = 0) -> bool:
        """Whether the file has this matrix."""
        return self._name(role, i, "weight") in self._tensors

    def matrix(self, role: str, i: int, rows: int, columns: int) -> Matrix:
        """The matrix (rows, columns), as stored or rounded; the same object when it is asked for again."""
        name = self._name(role, i, "weight")
        if name not in self._made:
            found = self._found(name, (rows, columns))
            if isinstance(found, Dense) and columns % BLOCK == 0:
                product = f"layer.{i}.{role}" if "{i}" in self._names[role] else role
                self.products[product] = found
                found = self._rounded(product, found) if self._rounded else found
            self._made[name] = found
        return self._made[name]

    def vector(self, role: str, i: int, size: int) -> Array:
        """The weights (size,) of a normalisation, float32."""
        return self._vector(self._name(role, i, "weight"), size)

    def bias(self, role: str, i: int, size: int) -> Array | None:
        """The bias (size,) beside a matrix, float32, if there is one."""
        name = self._name(role, i, "bias")
        return self._vector(name, size) if name in self._tensors else None

    def check_all_used(self) -> None:
        """Raise ConvertError if the file has tensors that nothing asked for: the model is not what it says."""
        left = self._tensors.keys() - self._used
        if left:
            raise ConvertError(
                f"expected no other tensors in a model of this family, got {listed(left)}; the graph would not compute "
                "what the model does"
            )

    def _name(self, role: str, i: int, kind: str) -> str:
        return f"{self._names[role].format(i=i)}.{kind}"

    def _found(self, name: str, shape: tuple[int, ...]) -> Matrix:
        found = self._tensors.get(name)
        if found is None:
            raise ConvertError(f"expected a tensor {name!r}, got none; the file is incomplete")
        if found.shape != shape:
            raise ConvertError(f"tensor {name!r}: expected shape {list(shape)}, got {list(found.shape)}")
        self._used.add(name)
        return found

    def _vector(self, name: str, size: int) -> Array:
        found = self._found(name, (size,))
        if isinstance(found, Blocked):
            raise ConvertError(f"tensor {name!r}: expected floating-point numbers, got {found.stored}")
        return finite(name, found.array())
