"""The files for JavaScript beside a model and its kernels: the module, its types, package.json and a README."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from math import prod

from converter.ahead.ports import Port, Ports, shown, state_table, table

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


def files_of(signatures: Sequence[Ports], states: Sequence[Port]) -> dict[str, bytes]:
    """The files by name."""
    web = files(__package__) / "web"
    types = (web / "msedge.d.mts").read_text("utf-8") + _types(signatures, states)
    return {
        "msedge.mjs": (web / "msedge.mjs").read_bytes(),
        "msedge.d.mts": types.encode(),
        "package.json": (json.dumps(_PACKAGE, indent=2) + "\n").encode(),
        "README.md": _readme(signatures, states).encode(),
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


def _types(signatures: Sequence[Ports], states: Sequence[Port]) -> str:
    """`Signatures` and `State` of a model."""
    rows = ["", "export interface Signatures {"]
    for name, inputs, outputs in signatures:
        rows.append(f"  {json.dumps(name)}: {{")
        for side, ports in (("inputs", inputs), ("outputs", outputs)):
            rows += [f"    {side}: {{", *(_field(port, 6) for port in ports), "    };"]
        rows.append("  };")
    first = json.dumps(signatures[0].signature)
    rows += [
        "}",
        f"export type First = {first};",
        "export interface State {",
        *(_field(port, 2) for port in states),
        "}",
    ]
    return "\n".join([*rows, ""])


def _field(port: Port, indent: int) -> str:
    space = " " * indent
    return f"{space}/** {port.dtype} [{shown(port)}] */\n{space}{json.dumps(port.name)}: {_ARRAYS[port.dtype]};"


def _readme(signatures: Sequence[Ports], states: Sequence[Port]) -> str:
    name, inputs, outputs = signatures[0]
    given = ",\n".join(f"  {json.dumps(port.name)}: new {_ARRAYS[port.dtype]}({prod(port.shape)})" for port in inputs)
    first = json.dumps(outputs[0].name) if outputs else '""'
    return f"""# A model for browsers and Node

{table(signatures, _ARRAYS, "array")}

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

`model.run(inputs, signature)` runs another signature than {json.dumps(name)}. `load({{ model, kernels }})` takes URLs,
paths (in Node) or bytes. In a page: serve the folder by https or from localhost, with `script-src 'self'
'wasm-unsafe-eval'` and `connect-src 'self'` if there is a Content-Security-Policy.

`model.msflat` and `kernels.wasm` belong together: a model's file names the digest of its kernels.
{_state_text(states)}"""


def _state_text(states: Sequence[Port]) -> str:
    if not states:
        return ""
    return f"""
## State

Signatures read these arrays, and some replace them after a run that succeeded. `model.state()` gives copies by name,
`model.setState({{ … }})` replaces some or all, `model.resetState()` returns to the values in the file.

{state_table(states, _ARRAYS, "array")}
"""
