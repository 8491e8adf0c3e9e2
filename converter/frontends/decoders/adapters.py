"""Which products of a language model have low-rank adapters, and where each begins in an adapter's numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from converter.errors import TrainingError
from converter.quantize.options import matches

if TYPE_CHECKING:
    from converter.training.options import Lora

__all__ = ["Adapters"]


class Adapters:
    """Products chosen by `lora.targets`: roles ("query") or globs of products' names ("layer.3.query"). They are found
    while a graph is built; of one model, every graph finds the same."""

    def __init__(self, lora: Lora) -> None:
        self.lora = lora
        self.size = 0
        """Numbers of an adapter so far."""
        self._found: list[dict[str, Any]] = []
        self._known: list[str] = []

    def place(self, name: str, inputs: int, outputs: int) -> int | None:
        """Where the adapter of a product begins: A^T [rank, inputs], then B [rank, outputs]. None if it has none."""
        self._known.append(name)
        if not matches(self.lora.targets, name, _role(name)):
            return None
        begin, self.size = self.size, self.size + self.lora.rank * (inputs + outputs)
        self._found.append({"name": name, "inputs": inputs, "outputs": outputs})
        return begin

    def metadata(self) -> dict[str, Any]:
        """What the bundle says of its adapters, when the graph is complete. Raises TrainingError for a target that no
        product has."""
        for glob in self.lora.targets:
            if not any(matches((glob,), name, _role(name)) for name in self._known):
                roles = ", ".join(dict.fromkeys(map(_role, self._known)))
                raise TrainingError(
                    f"adapters: no product matches {glob!r}; there are {roles}, and of single layers names such as"
                    f" {self._known[0]}"
                )
        return {"rank": self.lora.rank, "factor": self.lora.factor, "targets": self._found}


def _role(name: str) -> str:
    """Of a product of a layer, such as layer.3.query."""
    return name.rpartition(".")[2]
