"""Ways to damage a file in ORT format that keep it a flatbuffer; and such files: made by ONNX Runtime of ONNX
models, and of tables as Python values."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import flatbuffers
import numpy as np
import onnxruntime
from flatbuffers import number_types

from converter.frontends.flatbuffer import Field, File, Table
from converter.frontends.ort import schema
from tests.fuzz.converting import flat_files

__all__ = ["canonical", "pack", "saved", "spoil"]

_NAMED = ("name", "op_type", "domain", "puts[]", "key", "dim_param")
_LAYOUT = flat_files.Layout("InferenceSession", schema.TABLES, {"value": schema.TYPES}, _NAMED)

_SCALARS = {
    "i1": number_types.Int8Flags, "i4": number_types.Int32Flags, "i8": number_types.Int64Flags,
    "u1": number_types.Uint8Flags, "u4": number_types.Uint32Flags, "f4": number_types.Float32Flags,
}  # fmt: skip


def spoil(rng: Random, data: bytes, others: list[bytes]) -> bytes:
    """One more change of the file `data`."""
    return flat_files.spoil(rng, data, _LAYOUT)


def saved(model: bytes | Path, level: str = "ORT_ENABLE_EXTENDED", settings: Mapping[str, str] | None = None) -> bytes:
    """An ONNX model as ONNX Runtime stores it after its optimisations of that level. `settings`: more entries of its
    configuration."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    for key, value in {"session.save_model_format": "ORT", **(settings or {})}.items():
        options.add_session_config_entry(key, value)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.ort"
        options.optimized_model_filepath = str(file)
        source = str(model) if isinstance(model, Path) else model
        onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        return file.read_bytes()


def canonical(data: bytes) -> bytes:
    """The same model in the same bytes every time: ONNX Runtime writes hash tables, whose order differs by process."""
    return pack(_unpacked(File(data, schema.TABLES).root("InferenceSession", schema.IDENTIFIER, "a model")))


_UNORDERED = {"node_args": "name", "initializers": "name", "opset_import": "domain", "metadata_props": "key"}
"""Vectors whose order means nothing, and what sorts them."""


def _unpacked(table: Table) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, (_, field) in table.fields.items():
        if not table.has(name):
            continue
        if field.type == "str":
            made[name] = table.texts(name) if field.vector else table.text(name)
        elif field.type in _SCALARS:
            made[name] = table.vector(name).tolist() if field.vector else table.number(name)
        elif field.vector:
            made[name] = [_unpacked(inner) for inner in table.tables(name)]
        else:
            inner = table.table(name, schema.TYPES[table.integer("value_type")] if field.type == "union" else "")
            made[name] = _unpacked(inner) if inner is not None else {}
        if name in _UNORDERED:
            made[name].sort(key=lambda row, by=_UNORDERED[name]: row[by])
    return made


def pack(root: dict[str, Any]) -> bytes:
    """A file with these tables; a union's value is the fields of the table that its kind selects."""
    builder = flatbuffers.Builder(0)

    def offsets(found: list[int]) -> int:
        builder.StartVector(4, len(found), 4)
        for at in reversed(found):
            builder.PrependUOffsetTRelative(at)
        return int(builder.EndVector())

    def stored(field: Field, value: Any, fields: dict[str, Any]) -> int:
        if field.type == "str":
            return offsets([builder.CreateString(v) for v in value]) if field.vector else builder.CreateString(value)
        if field.vector and field.type not in schema.TABLES:
            return int(builder.CreateNumpyVector(np.array(value, field.type)))
        if field.vector:
            return offsets([table(field.type, v) for v in value])
        return table(schema.TYPES[fields["value_type"]] if field.type == "union" else field.type, value)

    def table(name: str, fields: dict[str, Any]) -> int:
        rows = [(i, f) for i, f in enumerate(schema.TABLES[name]) if f is not None and f.name in fields]
        numbers = {i: _SCALARS[f.type] for i, f in rows if f.type in _SCALARS and not f.vector}
        parts = {i: stored(f, fields[f.name], fields) for i, f in rows if i not in numbers}
        builder.StartObject(len(schema.TABLES[name]))
        for i, f in rows:
            if i in numbers:
                builder.PrependSlot(numbers[i], i, fields[f.name], None)
            else:
                builder.PrependUOffsetTRelativeSlot(i, parts[i], 0)
        return int(builder.EndObject())

    builder.Finish(table("InferenceSession", root), schema.IDENTIFIER)
    return bytes(builder.Output())
