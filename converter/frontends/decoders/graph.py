"""A graph under construction, with the operators that language models consist of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from converter.frontends.decoders.adapters import Adapters
from converter.frontends.decoders.weights import Blocked, Dense, Matrix, finite
from converter.ir import build
from lite_runtime.graph import OPSET, Array
from lite_runtime.operators.language import ACTIVATIONS, unit_of

__all__ = ["Activations", "Cache", "Graph", "block_format", "trimmed"]

Cache = Literal["float16", "float32", "int8"]
"""Element types of keys and values in the caches; int8: with a float16 scale for each position and head."""
Activations = Literal["int8", "float32"]
"""What products with weights in blocks read: blocks of 8-bit integers made of the activations, or these as floats."""
_IR_VERSION = 11
_AT_ONCE = 1 << 16
"""Bytes of constants that are read when they are made, because passes read such small ones again and again."""


class Graph:
    """Values are named by what they are; weights by their names in the file. Contents of weights are read when they are
    written, not before."""

    def __init__(self, name: str, activations: Activations) -> None:
        imports = {"": OPSET, build.DOMAIN: build.DOMAIN_VERSION}
        self.graph = ir.Graph([], [], nodes=[], name=name, opset_imports=imports)
        self.activations = activations
        self._adapters: Adapters | None = None
        self._rows: list[ir.Value] = []
        self._constants: dict[object, ir.Value] = {}
        self._quantized: dict[tuple[ir.Value, int], Sequence[ir.Value]] = {}

    def input(self, name: str, dtype: ir.DataType, shape: Sequence[int | str]) -> ir.Value:
        """A new input of the graph."""
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
        self.graph.inputs.append(value)
        return value

    def ops(
        self, op: str, inputs: Sequence[ir.Value | None], names: Sequence[str], *, domain: str = "", **attrs: Any
    ) -> Sequence[ir.Value]:
        """An operator and its results, which get these names."""
        results = [ir.Value(name=name) for name in names]
        node = ir.Node(domain, op, inputs, outputs=results, name=names[0])
        build.set_attrs(node, **attrs)
        self.graph.append(node)
        return results

    def op(self, op: str, inputs: Sequence[ir.Value | None], name: str, *, domain: str = "", **attrs: Any) -> ir.Value:
        """An operator of one result."""
        return self.ops(op, inputs, [name], domain=domain, **attrs)[0]

    def constant(self, name: str, contents: Array) -> ir.Value:
        """A constant; of one name, there is one."""
        return self._lazy(name, contents.dtype, contents.shape, lambda: contents)

    def _lazy(self, name: str, dtype: Any, shape: Sequence[int], read: Callable[[], Array]) -> ir.Value:
        if name not in self._constants:
            kind, dims = ir.DataType.from_numpy(np.dtype(dtype)), ir.Shape(shape)
            lazy = ir.LazyTensor(lambda: ir.Tensor(read(), name=name), kind, dims, name=name)
            tensor = lazy if lazy.nbytes > _AT_ONCE else ir.Tensor(read(), name=name)
            value = ir.Value(name=name, type=ir.TensorType(kind), shape=ir.Shape(shape), const_value=tensor)
            self.graph.register_initializer(value)
            self._constants[name] = value
        return self._constants[name]

    def finish(
        self, output: ir.Value, shape: Sequence[int | str], seen: Mapping[str, int] = MappingProxyType({})
    ) -> ir.Model:
        """The model with this output, a float32 tensor. `seen`: names and widths of values that are outputs too."""
        values = {value.name: value for node in self.graph for value in node.outputs}
        sized = [(output, list(shape)), *((values[name], [shape[0], width]) for name, width in seen.items())]
        for value, dims in sized:
            value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(dims)
            self.graph.outputs.append(value)
        return ir.Model(self.graph, ir_version=_IR_VERSION)

    def adapt(self, adapters: Adapters, inputs: list[ir.Value]) -> None:
        """From now on, chosen products of layers add what the adapters of their rows give; see LoraMatMul for its last
        two inputs."""
        self._adapters, self._rows = adapters, inputs

    # -- with weights ------------------------------------------------------------------------------------------------

    def norm(self, x: ir.Value, weights: Array, epsilon: float, name: str) -> ir.Value:
        """x / root mean square * weights, over the last axis."""
        inputs = [x, self.constant(f"{name}.weight", weights)]
        return self.op("RMSNormalization", inputs, name, axis=-1, epsilon=epsilon)

    def rows_of(self, matrix: Matrix, ids: ir.Value, name: str) -> ir.Value:
        """The rows of the matrix with these numbers."""
        if isinstance(matrix, Dense):
            return self.op("Gather", [self._dense(matrix), ids], name, axis=0)
        q, *rest = self._blocks(matrix)
        return self.op("GatherBlockQuantized", [q, ids, *rest], name, domain=build.DOMAIN, **block_format(matrix))

    def product(
        self, x: ir.Value, matrix: Matrix, name: str, bias: Array | None = None, residual: ir.Value | None = None
    ) -> ir.Value:
        """x times the transposed matrix, plus bias, plus residual; where there are adapters, plus theirs."""
        added = None if bias is None else self.constant(f"{name}.bias", bias)
        (n, k), place = matrix.shape, None
        if self._adapters is not None and name.startswith("layer."):
            place = self._adapters.place(name, k, n)
        if self._adapters is None or place is None:
            return self._base(x, matrix, name, added, residual)
        base = self._base(x, matrix, f"{name}.base", added, residual)
        return self._with_adapter(x, base, name, {"K": k, "N": n, "rank": self._adapters.lora.rank, "offset": place})

    def _with_adapter(self, x: ir.Value, base: ir.Value, name: str, sizes: dict[str, int]) -> ir.Value:
        """base plus what the adapter of a product adds."""
        return self.op("LoraMatMul", [x, base, *self._rows], name, domain=build.DOMAIN, **sizes)

    def _base(
        self, x: ir.Value, matrix: Matrix, name: str, added: ir.Value | None, residual: ir.Value | None
    ) -> ir.Value:
        if isinstance(matrix, Dense):
            inputs = trimmed([x, self._dense(matrix), added, residual])
            return self.op("MatMul", inputs, name, domain=build.DOMAIN, transB=1)
        a = self._activations_of(x, matrix)
        inputs = trimmed([a[0], *self._blocks(matrix), *a[1:], added, residual])
        return self.op("MatMulNBits", inputs, name, domain=build.DOMAIN, **block_format(matrix))

    def _activations_of(self, x: ir.Value, matrix: Blocked) -> Sequence[ir.Value | None]:
        """What the product with this matrix reads: x, or three results of quantising it, once for all its readers.
        Blocks of weights must consist of whole blocks of activations."""
        unit = unit_of(matrix.block)
        if self.activations == "float32" or not unit:
            return [x, None, None]
        if (x, unit) not in self._quantized:
            more = "" if unit == ACTIVATIONS else f".{unit}"
            names = [f"{x.name}.{part}{more}" for part in ("int8", "scales", "sums")]
            self._quantized[x, unit] = self.ops(
                "DynamicQuantizeBlocks", [x], names, domain=build.DOMAIN, block_size=unit
            )
        return self._quantized[x, unit]

    def _dense(self, matrix: Dense) -> ir.Value:
        return self._lazy(matrix.name, np.float32, matrix.shape, lambda: finite(matrix.name, matrix.array()))

    def _blocks(self, matrix: Blocked) -> list[ir.Value | None]:
        """Its integers, scales and offsets."""
        (n, k), name = matrix.shape, matrix.name
        table, blocks = np.float16 if matrix.half else np.float32, k // matrix.block
        q = self._lazy(f"{name}.q", np.uint8, (n, blocks, matrix.block * matrix.bits // 8), matrix.integers)
        scales = self._lazy(f"{name}.scales", table, (n, blocks), matrix.scales)
        offsets = matrix.offsets
        return [q, scales, None if offsets is None else self._lazy(f"{name}.offsets", table, (n, blocks), offsets)]


def block_format(matrix: Blocked) -> dict[str, int]:
    """The attributes of operators that read a matrix in blocks."""
    n, k = matrix.shape
    return {"K": k, "N": n, "bits": matrix.bits, "block_size": matrix.block, "zero_point": matrix.zero_point}


def trimmed(inputs: list[ir.Value | None]) -> list[ir.Value | None]:
    """Inputs of an operator without those at the end that are left out."""
    while inputs[-1] is None:
        inputs.pop()
    return inputs
