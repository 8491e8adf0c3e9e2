"""The graph of a decoder-only language model all of whose weights are trained, in operators of ONNX alone.

    inputs   input_ids int32 (batch, length)
    output   logits float32 (batch, length, vocabulary)

Initialisers are the file's tensors under the file's names; every other number of the graph is the result of a Constant
node, so that trainers leave it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from converter.errors import ConvertError
from converter.frontends.decoders.decoder import Decoder
from converter.frontends.decoders.learning import Learning, LearningGraph
from converter.frontends.decoders.tensors import Tensors
from converter.frontends.decoders.weights import Dense, Matrix
from converter.ir import build

__all__ = ["to_whole_ir"]


def to_whole_ir(
    model: Decoder, tensors: Mapping[str, Matrix], names: Mapping[str, str], ignored: Iterable[str] = ()
) -> ir.Model:
    """The model's graph. `names`: the tensors' names by role. Raises ConvertError for tensors that are missing, left
    over, of another shape, or in blocks."""
    for name, matrix in tensors.items():
        if not isinstance(matrix, Dense):
            raise ConvertError(f"tensor {name!r}: expected floating-point numbers to train, got {matrix.stored}")
    held = Tensors(tensors, names, ignored=ignored)
    made = _Whole(model, held, LearningGraph(model.architecture, "float32"), names).whole(None)
    for i in range(model.layers):
        for role, name in names.items():
            bias = made.graph.initializers.pop(f"layer.{i}.{role}.bias", None)
            if bias is not None:
                bias.name = f"{name.format(i=i)}.bias"
                made.graph.register_initializer(bias)
    build.fix(made.graph, tensors)
    return made


class _Whole(Learning):
    def __init__(self, model: Decoder, tensors: Tensors, graph: LearningGraph, names: Mapping[str, str]) -> None:
        super().__init__(model, tensors, graph)
        self._names = names

    def _norm(self, role: str, i: int, x: ir.Value, name: str, size: int = 0) -> ir.Value:
        """The file's weights are trained, not their sums with the family's offset."""
        g, held = self.g, f"{self._names[role].format(i=i)}.weight"
        weights = g.constant(held, self.tensors.vector(role, i, size or self.model.width))
        if self.model.norm_offset:
            weights = g.op("Add", [weights, self._number("norm_offset", self.model.norm_offset)], f"{name}.weight")
        return g.op("RMSNormalization", [x, weights], name, axis=-1, epsilon=self.model.epsilon)

    def _active(self, gate: ir.Value, name: str) -> ir.Value:
        if self.model.activation != "Silu":
            return super()._active(gate, name)
        return self.g.op("Mul", [gate, self.g.op("Sigmoid", [gate], f"{name}.sigmoid")], name)
