"""Sparse initializers of ONNX models become dense ones, as every runtime makes of them.

Source: SparseTensorProto in onnx.proto: `values` in order of `indices`, which number the elements of the dense tensor
([n]) or give a coordinate for each dimension ([n, rank]); all other elements are 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, numpy_helper

from converter.errors import ConvertError

__all__ = ["densify"]

_FREE, _PER_VALUE = 1 << 24, 1024
"""Bytes that all sparse initializers of a model may take as dense ones: an allowance, and so many for each value."""


def densify(proto: ModelProto) -> ModelProto:
    """A copy with dense initializers only, or `proto` itself if it has no others. Their tensors have been checked.

    Raises ConvertError for indices that are not those of distinct elements, and for tensors that are far too large for
    the values stored.
    """
    if not any(graph.sparse_initializer for graph in _graphs(proto)):
        return proto
    made = ModelProto()
    made.CopyFrom(proto)
    found = [sparse for graph in _graphs(made) for sparse in graph.sparse_initializer]
    limit = _FREE + _PER_VALUE * sum(prod(sparse.values.dims) for sparse in found)
    for graph in _graphs(made):
        for sparse in graph.sparse_initializer:
            limit -= prod(sparse.dims) * onnx.helper.tensor_dtype_to_np_dtype(sparse.values.data_type).itemsize
            if limit < 0:
                raise ConvertError(
                    f"sparse initializer {sparse.values.name!r} of shape {list(sparse.dims)}: expected at most "
                    f"{_PER_VALUE} bytes for each value stored, beside {_FREE} for all; store it as a dense one"
                )
            graph.initializer.append(_dense(sparse))
        del graph.sparse_initializer[:]
    return made


def _graphs(proto: ModelProto) -> Iterator[GraphProto]:
    yield from _below(proto.graph)
    for function in proto.functions:
        yield from _inside(function.node)


def _below(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    yield from _inside(graph.node)


def _inside(nodes: Iterable[NodeProto]) -> Iterator[GraphProto]:
    for node in nodes:
        for attribute in node.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                yield from _below(graph)


def _dense(sparse: SparseTensorProto) -> TensorProto:
    shape, values = tuple(sparse.dims), numpy_helper.to_array(sparse.values)
    indices = numpy_helper.to_array(sparse.indices).astype(np.int64)
    places = _places(indices, shape, f"sparse initializer {sparse.values.name!r}")
    flat = np.zeros(prod(shape), values.dtype)
    flat[places] = values.reshape(-1)
    made = numpy_helper.from_array(flat.reshape(shape), sparse.values.name)
    made.data_type = sparse.values.data_type
    return made


def _places(indices: np.ndarray, shape: tuple[int, ...], where: str) -> np.ndarray:
    """Numbers of elements of the dense tensor."""
    ends = np.array(shape if indices.ndim == 2 else [prod(shape)], np.int64)
    columns = indices.reshape(len(indices), len(ends)) if indices.size else np.zeros((0, len(ends)), np.int64)
    if (columns < 0).any() or (columns >= ends).any():
        raise ConvertError(f"{where}: expected indices inside {list(shape)}, got others; the model is damaged")
    steps = np.array([prod(ends[i + 1 :].tolist()) for i in range(len(ends))], np.int64)
    places = columns @ steps
    if len(np.unique(places)) < len(places):
        raise ConvertError(f"{where}: expected one value for each index, got several; the model is damaged")
    return np.asarray(places)
