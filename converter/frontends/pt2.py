"""`.pt2` files of `torch.export.save`, checked before PyTorch loads them.

`torch.export.load` trusts its file: it unpickles constants, weights and sample inputs, resolves the names of operators
by `getattr` from the module torch, and evaluates the expressions of sizes. So a copy is loaded that holds only what was
checked here: raw tensors, operators of known names, expressions of known symbols, no sample inputs.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from typing import Any

from converter.errors import ConvertError
from converter.frontends.loaded import Loaded
from converter.frontends.torch import of_program, torch_library

__all__ = ["load"]

_TARGET = re.compile(
    r"torch\.ops\.(aten|prims)\.(?!from_file)\w+\.\w+|torch\.sym_\w+|math\.\w+"
    r"|torch\.ops\.higher_order\.(cond|while_loop|scan|wrap_with_set_grad_enabled|wrap_with_autocast)"
    r"|_operator\.(add|sub|mul|truediv|floordiv|mod|pow|neg|pos|eq|ne|lt|le|gt|ge|and_|or_|getitem)"
)
_NAMES = (
    "Symbol Integer Rational Float Add Mul Pow Max Min Mod PythonMod FloorDiv CleanDiv CeilDiv CeilToInt FloorToInt "
    "TruncToInt IntTrueDiv ToFloat Where Identity Eq Ne Equality Unequality StrictLessThan LessThan StrictGreaterThan "
    "GreaterThan And Or Not true false True False positive nonnegative integer"
).split()
_SIZES = re.compile(rf"(?:\s|\d+(?:\.\d+)?|[-+*/%(),<>=&|~]|'[suz]\d+'|\b(?:[suz]\d+|{'|'.join(_NAMES)})\b)*")
"""Expressions of sizes: calls of these names, without attributes and other texts."""
_KEPT_METADATA = ("stack_trace", "nn_module_stack")
_COPIED = re.compile(
    r"archive_format|archive_version|byteorder|\.data/version|data/(?:weights/weight|constants/tensor)_\d+"
)
_MODEL, _SAMPLES = "models/model.json", "data/sample_inputs/model.pt"
_CONFIGS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
_LARGEST = 1 << 28
"""Bytes of a graph's description."""


def load(data: bytes) -> Loaded:
    """The program as a model. Raises ConvertError, and MissingExtraError without PyTorch."""
    torch = torch_library()
    clean = _clean(data)
    try:
        program = torch.export.load(io.BytesIO(clean))
    except Exception as error:  # library: PyTorch promises no type for a file that it cannot load
        raise ConvertError(f"PyTorch {torch.__version__} cannot load the program: {error}; save it again") from error
    return of_program(program)


def _clean(data: bytes) -> bytes:
    """The archive with only what was checked."""
    made = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as target:
            infos = {info.filename.partition("/")[2]: info for info in source.infolist()}
            if sum(info.file_size for info in infos.values()) > len(data):
                raise ConvertError("a .pt2 file has its tensors uncompressed; this one is not from torch.export.save")

            def add(name: str, contents: bytes) -> None:
                target.writestr(f"model/{name}", contents)

            for name, info in infos.items():
                if _COPIED.fullmatch(name):
                    add(name, source.read(info))
            for name in (_MODEL, *_CONFIGS):
                if name not in infos or infos[name].file_size > _LARGEST:
                    raise ConvertError(f"a .pt2 file of torch.export.save has {name}; save the program again")
                described = json.loads(source.read(infos[name]))
                for found in _unsafe(described) if name == _MODEL else _pickled(described):
                    raise ConvertError(
                        f"the .pt2 file {found}, which is not read from a file: load it yourself, if you trust it: "
                        "converter.convert(torch.export.load(path))"
                    )
                add(name, json.dumps(described).encode())
            add(_SAMPLES, b"")
    except (zipfile.BadZipFile, ValueError, RecursionError, NotImplementedError, OSError) as error:
        raise ConvertError(f"the .pt2 file is damaged: {error}; save the program again") from None
    return made.getvalue()


def _pickled(config: Any) -> Iterator[str]:
    """Why a table of tensors cannot be trusted."""
    rows = config.get("config") if isinstance(config, dict) else None
    if not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()):
        raise ConvertError("the .pt2 file is damaged: a table of tensors is not valid; save the program again")
    for name, row in rows.items():
        if row.get("use_pickle") is not False or not re.fullmatch(r"(weight|tensor)_\d+", str(row.get("path_name"))):
            yield f"holds {name!r} as a pickle"


def _unsafe(value: Any) -> Iterator[str]:
    """Why a graph cannot be trusted; metadata that PyTorch would resolve to objects is removed from it."""
    if isinstance(value, list):
        for item in value:
            yield from _unsafe(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key == "target" and "outputs" in value and not (isinstance(item, str) and _TARGET.fullmatch(item)):
                yield f"calls {item!r}"
            elif key == "expr_str" and not (isinstance(item, str) and _SIZES.fullmatch(item)):
                yield f"has a size {item!r}"
            elif key == "metadata" and isinstance(item, dict):
                value[key] = {name: item[name] for name in _KEPT_METADATA if name in item}
            else:
                yield from _unsafe(item)
    elif isinstance(value, str) and "__enum__" in value:
        yield "names a class of Python's"
