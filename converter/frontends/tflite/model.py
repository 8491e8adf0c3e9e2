"""A TensorFlow Lite file as plain frozen data: the output of `reader.py` and the input of the translation.

Every index in here was checked against what it points to: operators name existing tensors, tensors existing buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir

from converter.frontends.tflite.contents import Contents, Sparsity, decode

__all__ = [
    "Contents",
    "Custom",
    "Metadata",
    "Model",
    "Operator",
    "Quant",
    "Signature",
    "Sparsity",
    "Subgraph",
    "Tensor",
]


@dataclass(frozen=True)
class Quant:
    """How stored integers mean real numbers: (q - zero_point) * scale.

    `scale` is float32 and `zero_point` int64, both 0-d (per tensor), 1-d (per channel of `axis`), or, when `block` is
    not 0, of the tensor's rank with the size of `axis` divided by `block` (one scale for `block` values along `axis`).
    """

    scale: np.ndarray
    zero_point: np.ndarray
    axis: int = 0
    block: int = 0

    @property
    def per_tensor(self) -> bool:
        """One scale for all values."""
        return self.scale.ndim == 0


@dataclass(frozen=True)
class Tensor:
    """A tensor's declaration. `dtype` is None for resources and variants; `type_name` has their kind.

    `shape` is what the file stores (1 where a size is unknown); `shape_signature` the same with -1 for unknown sizes.
    """

    index: int
    name: str
    shape: tuple[int, ...]
    shape_signature: tuple[int, ...]
    dtype: ir.DataType | None
    type_name: str
    quant: Quant | None = None
    is_variable: bool = False
    has_rank: bool = True
    contents: Contents | None = field(default=None, repr=False)

    @property
    def const(self) -> bool:
        """Whether the file contains its values."""
        return self.contents is not None

    @cached_property
    def array(self) -> np.ndarray | None:
        """The contents of a constant in its shape, None for a tensor that is computed.

        4-bit values are widened to 8 bits, float16 stays float16, strings are an object array of bytes, sparse
        contents are made dense. Raises ConvertError for damaged strings and sparse indices.
        """
        return decode(self)

    @property
    def quantized(self) -> bool:
        """Whether stored values are integers that represent real numbers."""
        return self.quant is not None

    @property
    def rank(self) -> int:
        """The number of dimensions the file declares."""
        return len(self.shape)


@dataclass(frozen=True)
class Custom:
    """A custom operator's name and its options: the bytes, and what they decode to when they are a flexbuffer map."""

    name: str
    data: bytes = b""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Operator:
    """An operator: `inputs` index the subgraph's tensors, -1 where an optional one is left out.

    `intermediates` are tensors that only say how values inside the operator are quantised.
    """

    index: int
    name: str
    version: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any]
    custom: Custom | None = None
    intermediates: tuple[int, ...] = ()


@dataclass(frozen=True)
class Subgraph:
    """Tensors, operators in execution order, and which tensors are inputs and outputs."""

    index: int
    name: str
    tensors: tuple[Tensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[Operator, ...]


@dataclass(frozen=True)
class Signature:
    """An entry point: its key, its subgraph, and the caller's names of that subgraph's inputs and outputs."""

    key: str
    subgraph: int
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Metadata:
    """A named blob beside the model."""

    name: str
    data: memoryview = field(repr=False)


@dataclass(frozen=True)
class Model:
    """A whole file."""

    version: int
    description: str
    subgraphs: tuple[Subgraph, ...]
    signatures: tuple[Signature, ...]
    metadata: tuple[Metadata, ...]
    operators: tuple[str, ...]
