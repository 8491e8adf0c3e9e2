"""Pipelines as plain data for files and checkpoints, and back; fingerprints of pipelines."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from cloud.data import ir
from cloud.data.augment import AUGMENTATIONS
from cloud.data.functions import Function, found
from cloud.data.transforms import TRANSFORMS, Tokenize
from cloud.errors import DataError

__all__ = ["digest", "fingerprint", "from_dict", "to_dict"]

_TRANSFORMS = {**TRANSFORMS, **AUGMENTATIONS}


def to_dict(node: ir.Node) -> dict[str, Any]:
    """Dicts, lists, strings and numbers for JSON. DataError for arrays in memory and functions without a name."""
    plain: dict[str, Any] = _plain(node, in_words=False)
    return plain


def from_dict(plain: Any) -> ir.Node:
    """The argument of `to_dict`. Imports the modules of its functions: load only trusted data. Raises DataError."""
    return _node(plain, "pipeline")


def fingerprint(node: ir.Node) -> str:
    """Changes with the nodes, the code of functions and shapes of arrays, but not with the data."""
    return hashlib.blake2b(json.dumps(_plain(node, in_words=True)).encode(), digest_size=16).hexdigest()


def digest(node: ir.Node) -> str:
    """`fingerprint` and the data: every byte of arrays and files, names and sizes of a folder's files."""
    hashed = hashlib.blake2b(fingerprint(node).encode(), digest_size=16)
    for below in ir.walk(node):
        match below:
            case ir.Arrays(arrays):
                for name in sorted(arrays):
                    hashed.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
            case ir.Npz(path) | ir.Records(path) | ir.Text(path):
                _hash_file(hashed, path)
            case ir.Parquet(paths) | ir.Tar(paths):
                for path in paths:
                    _hash_file(hashed, path)
            case ir.Folder(path):
                files = sorted(p for p in Path(path).rglob("*") if p.is_file())
                hashed.update(repr([(p.relative_to(path).as_posix(), p.stat().st_size) for p in files]).encode())
            case ir.Map(_, steps):
                for step in steps:
                    if isinstance(step.function.transform, Tokenize):
                        _hash_file(hashed, os.fspath(step.function.transform.file))
    return hashed.hexdigest()


def _hash_file(hashed: Any, path: str) -> None:
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                hashed.update(block)
    except OSError as problem:
        raise DataError(f"cannot read {path!r}: {problem}") from problem


def _plain(value: Any, *, in_words: bool) -> Any:
    """`in_words`: arrays in memory and nameless functions are described instead of refused."""
    if isinstance(value, Function) and value.transform is not None:
        settings = {name: list(v) if isinstance(v, tuple) else v for name, v in vars(value.transform).items()}
        return {"transform": value.transform.name, **settings}
    if isinstance(value, Function):
        return value.fingerprint if in_words else value.to_name()
    if isinstance(value, ir.Step):
        return {f.name: _plain(getattr(value, f.name), in_words=in_words) for f in fields(value)}
    if isinstance(value, ir.Node):
        held = {f.name: _plain(getattr(value, f.name), in_words=in_words) for f in fields(value)}
        return {"node": type(value).__name__.lower(), **held}
    if isinstance(value, Mapping):
        if not in_words:
            raise DataError(
                f"arrays in memory ({', '.join(value)}) cannot be written to a file: save them with numpy.savez and "
                "read them with cloud.data.npz(path)"
            )
        return {name: [array.dtype.str, list(array.shape)] for name, array in sorted(value.items())}
    return [_plain(part, in_words=in_words) for part in value] if isinstance(value, tuple) else value


def _node(plain: Any, where: str) -> ir.Node:
    if not isinstance(plain, dict) or plain.get("node") not in ir.NODES:
        got = plain.get("node") if isinstance(plain, dict) else type(plain).__name__
        raise DataError(f"{where}: expected a node of {', '.join(ir.NODES)}, got {got!r}")
    kind = ir.NODES[plain["node"]]
    if kind is ir.Arrays:
        raise DataError(f"{where}: expected a node that files can contain, got arrays in memory")
    made: ir.Node = _read(kind, {n: v for n, v in plain.items() if n != "node"}, f"{where}.{plain['node']}")
    return made


def _read(kind: Any, plain: dict[str, Any], where: str) -> Any:
    known = {f.name: str(f.type) for f in fields(kind)}
    if set(plain) != set(known):
        raise DataError(f"{where}: expected {sorted(known)}, got {sorted(map(str, plain))}")
    return kind(**{name: _field(kind_of, plain[name], f"{where}.{name}") for name, kind_of in known.items()})


_PLAIN = {"str": (str,), "int": (int,), "bool": (bool,), "int | None": (int, type(None))}


def _field(kind: str, value: Any, where: str) -> Any:
    if kind in _PLAIN:
        if type(value) not in _PLAIN[kind]:
            raise DataError(f"{where}: expected {kind}, got {value!r}")
        return value
    if kind == "Node":
        return _node(value, where)
    if kind == "float":
        return _number(value, where)
    if kind == "Function":
        if isinstance(value, dict):
            return _transform(value, where)
        if not isinstance(value, str):
            raise DataError(f"{where}: expected 'module:name', got {value!r}")
        return found(value)
    if not isinstance(value, list):
        raise DataError(f"{where}: expected a list, got {value!r}")
    each = {
        "tuple[Node, ...]": lambda v, at: _node(v, at),
        "tuple[Step, ...]": lambda v, at: _read(ir.Step, v if isinstance(v, dict) else {}, at),
        "tuple[str, ...]": lambda v, at: _field("str", v, at),
        "tuple[float, ...]": _number,
    }[kind]
    return tuple(each(part, f"{where}[{k}]") for k, part in enumerate(value))


def _transform(plain: dict[str, Any], where: str) -> Function:
    name = plain.get("transform")
    if not isinstance(name, str) or name not in _TRANSFORMS:
        raise DataError(f"{where}: expected a transform of {', '.join(_TRANSFORMS)}, got {name!r}")
    made = _read(_TRANSFORMS[name], {n: v for n, v in plain.items() if n != "transform"}, f"{where}.{name}")
    return Function(made, "")


def _number(value: Any, where: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise DataError(f"{where}: expected a number, got {value!r}")
    return float(value)
