"""The files for JavaScript beside a model and its kernels: the module, its types, package.json and a README."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files

from lite_runtime.graph import Value

__all__ = ["files_of"]

_ARRAYS = {
    "bool": "Uint8Array",
    "int8": "Int8Array",
    "uint8": "Uint8Array",
    "int16": "Int16Array",
    "uint16": "Uint16Array",
    "int32": "Int32Array",
    "uint32": "Uint32Array",
    "int64": "BigInt64Array",
    "uint64": "BigUint64Array",
    "float16": "Uint16Array",
    "float32": "Float32Array",
    "float64": "Float64Array",
}
"""JavaScript's arrays by dtype, as in `web/msedge.mjs`."""
_FILES = ("msedge.mjs", "msedge.d.mts", "model.msflat", "kernels.wasm")


def files_of(inputs: Sequence[Value], outputs: Sequence[Value]) -> dict[str, bytes]:
    """The files by name. inputs, outputs: with all sizes known."""
    web = files(__package__) / "web"
    types = (web / "msedge.d.mts").read_text("utf-8") + _types("Inputs", inputs) + _types("Outputs", outputs)
    return {
        "msedge.mjs": (web / "msedge.mjs").read_bytes(),
        "msedge.d.mts": types.encode(),
        "package.json": (json.dumps(_PACKAGE, indent=2) + "\n").encode(),
        "README.md": _readme(inputs, outputs).encode(),
    }


_PACKAGE = {
    "name": "msedge-model",
    "version": "0.0.0",
    "private": True,
    "type": "module",
    "exports": {
        ".": {"types": "./msedge.d.mts", "default": "./msedge.mjs"},
        "./model.msflat": "./model.msflat",
        "./kernels.wasm": "./kernels.wasm",
    },
    "files": list(_FILES),
    "engines": {"node": ">=20"},
}


def _shape(value: Value) -> str:
    return ", ".join(map(str, value.shape or ()))


def _types(name: str, values: Sequence[Value]) -> str:
    rows = [f"  /** {v.dtype} [{_shape(v)}] */\n  {json.dumps(v.name)}: {_ARRAYS[v.dtype]};" for v in values]
    return "\n".join(["", f"export interface {name} {{", *rows, "}", ""])


def _count(value: Value) -> int:
    count = 1
    for size in value.shape or ():
        count *= int(size or 0)
    return count


def _readme(inputs: Sequence[Value], outputs: Sequence[Value]) -> str:
    rows = [
        f"| {role} | `{_cell(v.name)}` | {v.dtype} | {_shape(v) or 'scalar'} | `{_ARRAYS[v.dtype]}` |"
        for role, values in (("input", inputs), ("output", outputs))
        for v in values
    ]
    given = ",\n".join(f"  {json.dumps(v.name)}: new {_ARRAYS[v.dtype]}({_count(v)})" for v in inputs)
    first = json.dumps(outputs[0].name) if outputs else '""'
    return f"""# A model for browsers and Node

| | name | dtype | shape | array |
|---|---|---|---|---|
{chr(10).join(rows)}

Arrays are in row-major order; float16 is given by its bits, bool as 0 and 1.

```js
import {{ load }} from "./msedge.mjs";

const model = await load();
model.selfTest();
const results = model.run({{
{given}
}});
console.log(results[{first}]);
```

`load({{ model, kernels }})` takes URLs, paths (in Node) or bytes. In a page: serve the folder by https or from
localhost, with `script-src 'self' 'wasm-unsafe-eval'` and `connect-src 'self'` if there is a Content-Security-Policy.

`model.msflat` and `kernels.wasm` belong together: a model's file names the digest of its kernels.
"""


def _cell(name: str) -> str:
    return name.replace("|", "\\|").replace("`", "'")
