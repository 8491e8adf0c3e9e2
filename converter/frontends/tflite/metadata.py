"""A file's metadata as JSON values: description, versions, labels, normalisation of inputs.

Source: metadata_schema.fbs of TensorFlow Lite Support (identifier M001), stored in a metadata entry TFLITE_METADATA;
the files it mentions (labels, vocabularies) are in a zip archive appended to the model.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from typing import Any

import numpy as np

from converter.errors import ConvertError
from converter.frontends.flatbuffer import File, Table, parse
from converter.frontends.tflite.model import Model

__all__ = ["describe"]

_TABLES = parse(
    """
ModelMetadata: name str, description str, version str, subgraph_metadata [SubGraphMetadata], author str, license str,
    associated_files [AssociatedFile], min_parser_version str
SubGraphMetadata: name str, description str, input_tensor_metadata [TensorMetadata],
    output_tensor_metadata [TensorMetadata], associated_files [AssociatedFile]
TensorMetadata: name str, description str, -, -, process_units [ProcessUnit], stats Stats,
    associated_files [AssociatedFile]
ProcessUnit: options_type u1, options union
NormalizationOptions: mean [f4], std [f4]
ScoreThresholdingOptions: global_score_threshold f4
Stats: max [f4], min [f4]
AssociatedFile: name str, description str, type i1, locale str, version str
"""
)
_UNITS = tuple(
    "NONE NormalizationOptions ScoreCalibrationOptions ScoreThresholdingOptions BertTokenizerOptions "
    "SentencePieceTokenizerOptions RegexTokenizerOptions".split()
)
_KINDS = "unknown descriptions labels value_labels score_calibration vocabulary scann_index".split()
_READ_AS_LINES = frozenset({"labels", "value_labels", "vocabulary"})
_FILE_LIMIT, _FILES_LIMIT = 16 << 20, 64


def describe(model: Model, data: bytes) -> dict[str, Any]:
    """The file's metadata; keys without a value are omitted.

    `description`; `min_runtime_version`; `author`, `license`, `name`, `version`; `inputs` and `outputs`: for each
    tensor, in order, `name`, `description`, `mean`, `std`, `min`, `max`, `score_threshold`, and `files`; `files`: each
    with `name`, `kind`, and for label and vocabulary files their `lines`. Damaged metadata is omitted, and
    `metadata_error` says why: metadata does not change what the model computes.
    """
    entries = {entry.name: entry.data for entry in model.metadata}
    found: dict[str, Any] = {"description": model.description}
    if "min_runtime_version" in entries:
        version = bytes(entries["min_runtime_version"][:64]).split(b"\0")[0]
        found["min_runtime_version"] = version.decode("ascii", "replace")
    if "TFLITE_METADATA" in entries:
        try:
            root = File(entries["TFLITE_METADATA"], _TABLES).root("ModelMetadata", b"M001", "model metadata")
            found |= _model(root, _Archive(data))
        except ConvertError as error:
            found["metadata_error"] = str(error)
    return {key: value for key, value in found.items() if value not in ("", [], {})}


class _Archive:
    """The zip archive appended to the model, if there is one."""

    def __init__(self, data: bytes) -> None:
        try:
            self._zip: zipfile.ZipFile | None = zipfile.ZipFile(io.BytesIO(data))
        except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, EOFError):
            self._zip = None
        self._left = _FILES_LIMIT

    def lines(self, name: str) -> list[str] | None:
        """A text file's lines; None when it is absent, damaged or too large."""
        self._left -= 1
        if self._zip is None or self._left < 0:
            return None
        try:
            if self._zip.getinfo(name).file_size > _FILE_LIMIT:
                return None
            with self._zip.open(name) as file:
                return file.read(_FILE_LIMIT).decode("utf-8", "replace").splitlines()
        except (zipfile.BadZipFile, zlib.error, KeyError, ValueError, OSError, RuntimeError, EOFError):
            return None


def _model(root: Table, archive: _Archive) -> dict[str, Any]:
    found: dict[str, Any] = {key: root.text(key) for key in ("name", "description", "version", "author", "license")}
    found = {key: value for key, value in found.items() if value}
    files = _files(root, archive)
    for subgraph in root.tables("subgraph_metadata")[:1]:
        files += _files(subgraph, archive)
        found["inputs"] = [_tensor(table, archive) for table in subgraph.tables("input_tensor_metadata")]
        found["outputs"] = [_tensor(table, archive) for table in subgraph.tables("output_tensor_metadata")]
    return {**found, "files": files}


def _tensor(table: Table, archive: _Archive) -> dict[str, Any]:
    found: dict[str, Any] = {key: table.text(key) for key in ("name", "description")}
    for unit in table.tables("process_units"):
        kind, options = unit.union("options", _UNITS)
        if options is not None and kind == "NormalizationOptions":
            found |= {"mean": _floats(options, "mean"), "std": _floats(options, "std")}
        if options is not None and kind == "ScoreThresholdingOptions":
            found["score_threshold"] = float(options.number("global_score_threshold"))
    stats = table.table("stats")
    if stats is not None:
        found |= {"min": _floats(stats, "min"), "max": _floats(stats, "max")}
    found["files"] = _files(table, archive)
    return {key: value for key, value in found.items() if value not in ("", [])}


def _floats(table: Table, name: str) -> list[float]:
    return [float(v) for v in np.nan_to_num(table.vector(name)[:1024])]


def _files(table: Table, archive: _Archive) -> list[dict[str, Any]]:
    return [_file(entry, archive) for entry in table.tables("associated_files")]


def _file(table: Table, archive: _Archive) -> dict[str, Any]:
    number = table.integer("type")
    kind = _KINDS[number] if 0 <= number < len(_KINDS) else _KINDS[0]
    found: dict[str, Any] = {"name": table.text("name"), "kind": kind, "description": table.text("description")}
    lines = archive.lines(found["name"]) if kind in _READ_AS_LINES else None
    if lines is not None:
        found["lines"] = lines
    return {key: value for key, value in found.items() if value != ""}
