"""Bytes of a .tflite file to a `Model`. Every malformed file raises one ConvertError that says what, where and why.

Everything that does not depend on the meaning of operators is checked here: the flatbuffer itself, indices of tensors,
buffers, operators and subgraphs, sizes of constants, quantisation parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from converter.errors import ConvertError
from converter.frontends.flatbuffer import File, Table
from converter.frontends.tflite import flexbuffer, schema
from converter.frontends.tflite.contents import PACKED, STORED, stored_bytes
from converter.frontends.tflite.model import (
    Contents,
    Custom,
    Metadata,
    Model,
    Operator,
    Quant,
    Signature,
    Sparsity,
    Subgraph,
    Tensor,
)

__all__ = ["read"]

_VERSION = 3
_QUANTIZED = frozenset("INT2 INT4 UINT4 INT8 UINT8 INT16 UINT16 INT32 INT64".split())
_RANK_LIMIT, _ELEMENT_LIMIT = 32, 1 << 48
_CUSTOM = "CUSTOM"


def read(data: bytes | memoryview) -> Model:
    """The model in `data`. Constants are views of `data`, decoded when first used. Raises ConvertError."""
    file = File(data, schema.TABLES)
    root = file.root("Model", schema.IDENTIFIER, "a TensorFlow Lite model")
    if root.integer("version") != _VERSION:
        raise ConvertError(
            f"expected schema version {_VERSION} of a TensorFlow Lite model, got {root.integer('version')}"
        )
    buffers = [_buffer(table, file) for table in root.tables("buffers")]
    codes = [_code(table) for table in root.tables("operator_codes")]
    subgraphs = tuple(_Reader(file, buffers, codes, i, t).subgraph() for i, t in enumerate(root.tables("subgraphs")))
    if not subgraphs:
        raise ConvertError("the model has no subgraphs: expected at least one")
    return Model(
        version=root.integer("version"),
        description=root.text("description"),
        subgraphs=subgraphs,
        signatures=tuple(_signature(table, subgraphs) for table in root.tables("signature_defs")),
        metadata=tuple(_metadata(table, buffers) for table in root.tables("metadata")),
        operators=tuple(name for name, _ in codes),
    )


def _buffer(table: Table, file: File) -> memoryview:
    """Contents inside the flatbuffer, or, in files above 2 GB, at an offset behind it."""
    offset = table.integer("offset")
    if offset > 1:
        return file.span(offset, table.integer("size"), table.where)
    return table.blob("data")


def _code(table: Table) -> tuple[str, int]:
    """An operator's name and version. Codes below 128 are in the older of two fields; the other is then 0 or equal."""
    number = max(table.integer("deprecated_builtin_code"), table.integer("builtin_code"))
    if not 0 <= number < len(schema.BUILTINS):
        raise ConvertError(
            f"{table.where}: expected a builtin code of 0 to {len(schema.BUILTINS) - 1}, got {number}; the file is "
            "damaged, or newer than this converter"
        )
    name = schema.BUILTINS[number]
    version = table.integer("version")
    if name == _CUSTOM:
        return f"{_CUSTOM}:{table.text('custom_code')}", version
    return name, version


def _item(items: Any, index: int, where: str, what: str) -> Any:
    if not 0 <= index < len(items):
        raise ConvertError(f"{where}: refers to {what} {index}, but there are {len(items)}; the file is damaged")
    return items[index]


def _metadata(table: Table, buffers: list[memoryview]) -> Metadata:
    return Metadata(table.text("name"), _item(buffers, table.integer("buffer"), table.where, "buffer"))


def _signature(table: Table, subgraphs: tuple[Subgraph, ...]) -> Signature:
    subgraph = _item(subgraphs, table.integer("subgraph_index"), table.where, "subgraph")
    where = f"{table.where} {table.text('signature_key')!r}"

    def names(field: str, allowed: Iterable[int]) -> tuple[tuple[str, int], ...]:
        """The caller's names. Those of tensors that are none of the subgraph's are dropped, as LiteRT does."""
        listed = tuple((entry.text("name"), entry.integer("tensor_index")) for entry in table.tables(field))
        wrong = [index for _, index in listed if not 0 <= index < len(subgraph.tensors)]
        if wrong:
            raise ConvertError(
                f"{where}: {field} refers to tensors {wrong}, subgraph {subgraph.index} has {len(subgraph.tensors)}"
            )
        ends = set(allowed)
        found = tuple((name, index) for name, index in listed if index in ends)
        if len({name for name, _ in found}) < len(found):
            raise ConvertError(f"{where}: two of its {field} have the same name: {[name for name, _ in found]}")
        return found

    return Signature(
        table.text("signature_key"),
        subgraph.index,
        names("inputs", subgraph.inputs),
        names("outputs", subgraph.outputs),
    )


class _Reader:
    """One subgraph's tensors and operators."""

    def __init__(
        self, file: File, buffers: list[memoryview], codes: list[tuple[str, int]], index: int, table: Table
    ) -> None:
        self._file, self._buffers, self._codes, self._index, self._table = file, buffers, codes, index, table
        self._tensor_tables = table.tables("tensors")

    def subgraph(self) -> Subgraph:
        table, count = self._table, len(self._tensor_tables)
        operators = tuple(self._operator(i, t) for i, t in enumerate(table.tables("operators")))
        inputs, outputs = (self._indices(table, field, count, optional=False) for field in ("inputs", "outputs"))
        computed = {i for operator in operators for i in operator.outputs} | set(inputs)
        tensors = tuple(self._tensor(i, t, i in computed) for i, t in enumerate(self._tensor_tables))
        return Subgraph(self._index, table.text("name"), tensors, inputs, outputs, operators)

    def _indices(self, table: Table, field: str, count: int, *, optional: bool) -> tuple[int, ...]:
        found = table.ints(field)
        wrong = [i for i in found if not (-1 if optional else 0) <= i < count]
        if wrong:
            raise ConvertError(
                f"{table.where}: its {field} refer to tensors {wrong[:8]}, but there are {count}; the file is damaged"
            )
        return found

    # operators

    def _operator(self, index: int, table: Table) -> Operator:
        name, version = _item(self._codes, table.integer("opcode_index"), table.where, "operator code")
        count = len(self._tensor_tables)
        custom = None
        if name.startswith(_CUSTOM + ":"):
            name = name.removeprefix(_CUSTOM + ":")
            data = self._custom_options(table)
            custom = Custom(name, bytes(data), flexbuffer.mapping(data))
        return Operator(
            index=index,
            name=name,
            version=version,
            inputs=self._indices(table, "inputs", count, optional=True),
            outputs=self._indices(table, "outputs", count, optional=True),
            options=self._options(table),
            intermediates=self._indices(table, "intermediates", count, optional=True),
            custom=custom,
        )

    def _custom_options(self, table: Table) -> memoryview:
        offset = table.integer("large_custom_options_offset")
        if offset > 1:
            data = self._file.span(offset, table.integer("large_custom_options_size"), table.where)
        else:
            data = table.blob("custom_options")
        self._file.charge(len(data), table.where)
        return data

    def _options(self, table: Table) -> dict[str, Any]:
        for field, kinds in (("builtin_options", schema.OPTIONS), ("builtin_options2", schema.OPTIONS_2)):
            kind, options = table.union(field, kinds)
            if options is not None and kind != "NONE":
                return {name: _option(options, name) for name in options.fields}
        return {}

    # tensors

    def _tensor(self, index: int, table: Table, computed: bool) -> Tensor:
        name = table.text("name")
        where = f"{table.where} {name!r}"
        type_name = _item(schema.TENSOR_TYPES, table.integer("type"), where, "element type")
        shape = tuple(max(d, -1) for d in table.ints("shape"))
        signature = tuple(table.ints("shape_signature")) or shape
        self._check_shape(shape, signature, where)
        signature = tuple(-1 if s < 0 or d < 0 else d for s, d in zip(signature, shape, strict=True))
        shape = tuple(1 if d < 0 else d for d in shape)
        if table.integer("external_buffer"):
            raise ConvertError(f"{where}: its contents are stored in another file; expected them in the model")
        quantization = table.table("quantization")
        return Tensor(
            index=index,
            name=name,
            shape=shape,
            shape_signature=signature,
            dtype=STORED[type_name][0] if type_name in STORED else None,
            type_name=type_name,
            quant=None if quantization is None else self._quant(quantization, shape, type_name, where),
            is_variable=bool(table.integer("is_variable")),
            has_rank=bool(table.integer("has_rank")) or bool(shape),
            contents=None if computed else self._contents(table, shape, type_name, where),
        )

    def _check_shape(self, shape: tuple[int, ...], signature: tuple[int, ...], where: str) -> None:
        if len(shape) != len(signature):
            raise ConvertError(f"{where}: shape {list(shape)} and signature {list(signature)} differ in rank")
        if len(shape) > _RANK_LIMIT:
            raise ConvertError(f"{where}: expected at most {_RANK_LIMIT} dimensions, got {len(shape)}")
        if prod(max(d, 1) for d in shape) > _ELEMENT_LIMIT:
            raise ConvertError(f"{where}: shape {list(shape)} is larger than any memory; the file is damaged")

    def _contents(self, table: Table, shape: tuple[int, ...], type_name: str, where: str) -> Contents | None:
        index = table.integer("buffer")
        data = _item(self._buffers, index, where, "buffer") if index else memoryview(b"")
        if type_name not in STORED or (not data and (bool(prod(shape)) or table.integer("is_variable") or not index)):
            return None
        sparsity = table.table("sparsity")
        if sparsity is not None:
            return Contents(data, _sparsity(sparsity, shape, len(data), type_name))
        if type_name != "STRING":
            wanted = stored_bytes(type_name, prod(shape))
            if len(data) != wanted:
                raise ConvertError(
                    f"{where}: {type_name} of shape {list(shape)} needs {wanted} bytes, the file holds {len(data)}; "
                    "its weights are damaged"
                )
        return Contents(data)

    # quantisation

    def _quant(self, table: Table, shape: tuple[int, ...], type_name: str, where: str) -> Quant | None:
        if type_name not in _QUANTIZED:
            return None
        kind, details = table.union("details", schema.DETAILS)
        axis = table.integer("quantized_dimension")
        if kind == "BlockwiseQuantization" and details is not None:
            return self._blockwise(details, shape, where)
        if kind != "NONE":
            raise ConvertError(
                f"{where}: quantised by {kind}, which is not supported; quantise per channel"
            )
        scale = np.array(table.vector("scale"), np.float32)
        if not scale.size or (scale.size == 1 and scale[0] == 0):
            return None
        zero = np.array(table.vector("zero_point"), np.int64)
        if zero.size not in (0, 1, scale.size):
            raise ConvertError(f"{where}: {scale.size} scales but {zero.size} zero points; the file is damaged")
        zero = np.broadcast_to(zero if zero.size else np.zeros(1, np.int64), scale.shape)
        _check_numbers(scale, zero, type_name, where)
        if scale.size == 1:
            return Quant(scale.reshape(()), zero.reshape(()))
        if not 0 <= axis < len(shape) or shape[axis] != scale.size:
            raise ConvertError(
                f"{where}: {scale.size} scales along dimension {axis} of a tensor of shape {list(shape)}; the file is "
                "damaged"
            )
        return Quant(scale, zero, axis)

    def _blockwise(self, details: Table, shape: tuple[int, ...], where: str) -> Quant:
        """Scales are float16 (or float32) in a separate tensor: the shape with its last dimension in blocks."""
        block = details.integer("block_size")
        scales = _item(self._tensor_tables, details.integer("scales"), where, "tensor")
        if not shape or block < 1 or shape[-1] % block:
            raise ConvertError(f"{where}: blocks of {block} do not divide its shape {list(shape)}; the file is damaged")
        blocks = (*shape[:-1], shape[-1] // block)
        scale = self._numbers(scales, blocks, where).astype(np.float32)
        zero = np.zeros(blocks, np.int64)
        index = details.integer("zero_points")
        if index > 0:
            zero = self._numbers(_item(self._tensor_tables, index, where, "tensor"), blocks, where).astype(np.int64)
        if not np.isfinite(scale).all():
            raise ConvertError(f"{where}: its scales are not finite; the file is damaged")
        return Quant(scale, zero, len(shape) - 1, block)

    def _numbers(self, table: Table, shape: tuple[int, ...], where: str) -> np.ndarray:
        """The contents of a small tensor that another tensor's quantisation refers to."""
        type_name = _item(schema.TENSOR_TYPES, table.integer("type"), table.where, "element type")
        own = tuple(table.ints("shape"))
        contents = self._contents(table, own, type_name, table.where) if prod(own) == prod(shape) else None
        if contents is None or type_name in PACKED or type_name == "STRING" or any(d < 0 for d in own):
            raise ConvertError(
                f"{where}: expected scales or zero points of shape {list(shape)}, got {type_name} of shape {list(own)}"
            )
        self._file.charge(len(contents.data), where)
        return np.frombuffer(contents.data, STORED[type_name][1]).reshape(shape)


def _option(table: Table, name: str) -> Any:
    field = table.fields[name][1]
    if field.vector:
        return table.floats(name) if field.type.startswith("f") else table.ints(name)
    if field.type == "str":
        return table.text(name)
    value = table.number(name)
    if field.type == "b":
        return bool(value)
    return float(value) if field.type.startswith("f") else int(value)


def _check_numbers(scale: np.ndarray, zero: np.ndarray, type_name: str, where: str) -> None:
    if not np.isfinite(scale).all() or (scale < 0).any():
        raise ConvertError(f"{where}: expected finite scales of at least 0, got {scale.reshape(-1)[:8].tolist()}")
    low, high = _range(type_name)
    if zero.min() < low or zero.max() > high:
        raise ConvertError(
            f"{where}: expected zero points of {low} to {high} ({type_name}), got {zero.min()} to {zero.max()}"
        )


def _range(type_name: str) -> tuple[int, int]:
    bits = PACKED.get(type_name) or STORED[type_name][1].itemsize * 8
    if type_name.startswith("U"):
        return 0, (1 << bits) - 1
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


_DENSE, _COMPRESSED = 0, 1


def _sparsity(table: Table, shape: Sequence[int], stored: int, type_name: str) -> Sparsity:
    if type_name not in STORED or type_name in PACKED or type_name == "STRING":
        raise ConvertError(f"{table.where}: expected numbers of whole bytes in sparse storage, got {type_name}")
    if stored % STORED[type_name][1].itemsize:
        raise ConvertError(f"{table.where}: {stored} bytes are not a whole number of {type_name}; the file is damaged")
    traversal, block_map = table.ints("traversal_order"), table.ints("block_map")
    dims = table.tables("dim_metadata")
    if sorted(traversal) != list(range(len(shape) + len(block_map))) or len(dims) != len(traversal):
        raise ConvertError(
            f"{table.where}: expected an order and a description for each of {len(shape)} dimensions and "
            f"{len(block_map)} blocks, got order {list(traversal)[:16]} and {len(dims)} descriptions"
        )
    if any(not 0 <= cut < len(shape) for cut in block_map):
        raise ConvertError(f"{table.where}: blocks cut dimensions {list(block_map)[:16]} of {len(shape)}")
    return Sparsity(traversal, block_map, tuple(_sparse_dim(dim) for dim in dims))


def _sparse_dim(table: Table) -> int | tuple[np.ndarray, np.ndarray]:
    if table.integer("format") == _DENSE:
        return table.integer("dense_size")
    if table.integer("format") != _COMPRESSED:
        raise ConvertError(f"{table.where}: expected format dense (0) or CSR (1), got {table.integer('format')}")
    segments, indices = (_index_vector(table, field) for field in ("array_segments", "array_indices"))
    return segments, indices


def _index_vector(table: Table, field: str) -> np.ndarray:
    kind, vector = table.union(field, schema.SPARSE_INDICES)
    if kind == "NONE" or vector is None:
        raise ConvertError(f"{table.where}: {field} is missing; the file is damaged")
    return vector.vector("values").astype(np.int64)
