"""The files for JavaScript: those beside a model and its kernels, and the same modules as a package without a model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from math import prod
from types import MappingProxyType
from typing import Any

from converter.ahead.ports import Port, Ports, shown, state_table, table
from lite_runtime.bundle import processing

__all__ = ["files_of", "processing_of", "runtime_files"]

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
SCRIPTS = (
    *("msedge", "msedge-blake", "msedge-engine", "msedge-errors", "msedge-files", "msedge-flat", "msedge-input"),
    *("msedge-media", "msedge-picture", "msedge-sound", "msedge-state", "msedge-steps", "msedge-team", "msedge-worker"),
)
"""Modules of JavaScript in `web/`; the first is the one that programs import."""


def files_of(signatures: Sequence[Ports], states: Sequence[Port]) -> dict[str, bytes]:
    """The files beside a model, by name."""
    return _files(_types(signatures, states), _PACKAGE, _readme(signatures, states))


def runtime_files(version: str, more: Mapping[str, bytes] = MappingProxyType({})) -> dict[str, bytes]:
    """The files of the package for npm, by name: for programs that load models from elsewhere, or several. more:
    further modules; those with types (NAME.d.mts) are imported as @msedge/runtime/NAME."""
    names = [name.removesuffix(".d.mts") for name in more if name.endswith(".d.mts")]
    entries = {f"./{name}": {"types": f"./{name}.d.mts", "default": f"./{name}.mjs"} for name in names}
    about = {**_RUNTIME, "version": version, "exports": {**_RUNTIME["exports"], **entries}}
    return {**more, **_files(_ANY_TYPES, about, _RUNTIME_README)}


def processing_of(metadata: Mapping[str, Any], signatures: Sequence[str]) -> dict[str, bytes]:
    """The processing that a bundle declares for `predict`, as a file that pages read; nothing without one. Raises
    ProcessingError for a declaration that is wrong."""
    if processing.KEY not in metadata or "predict" not in signatures:
        return {}
    return {"processing.json": json.dumps(processing.check(metadata[processing.KEY])).encode() + b"\n"}


def _files(types: str, package: Mapping[str, object], readme: str) -> dict[str, bytes]:
    web = files(__package__) / "web"
    return {
        **{f"{name}.mjs": (web / f"{name}.mjs").read_bytes() for name in SCRIPTS},
        "msedge.d.mts": ((web / "msedge.d.mts").read_text("utf-8") + types).encode(),
        "msedge-media.d.mts": (web / "msedge-media.d.mts").read_bytes(),
        "package.json": (json.dumps(package, indent=2) + "\n").encode(),
        "README.md": readme.encode(),
    }


_PACKAGE = {
    "name": "msedge-model",
    "version": "0.0.0",
    "private": True,
    "type": "module",
    "exports": {
        ".": {"types": "./msedge.d.mts", "default": "./msedge.mjs"},
        "./*": "./*",
    },
    "files": ["*.mjs", "*.d.mts", "*.msflat", "*.wasm", "*.json"],
    "engines": {"node": ">=20"},
}


_RUNTIME: dict[str, Any] = {
    "name": "@msedge/runtime",
    "version": "0.0.0",
    "description": "Runs and trains models that msedge built for WebAssembly, in browsers and Node",
    "license": "Apache-2.0",
    "type": "module",
    "sideEffects": False,
    "exports": {
        ".": {"types": "./msedge.d.mts", "default": "./msedge.mjs"},
        "./media": {"types": "./msedge-media.d.mts", "default": "./msedge-media.mjs"},
    },
    "files": ["*.mjs", "*.d.mts"],
    "engines": {"node": ">=20"},
}
_ANY_TYPES = f"""
export type Arrays = {{ [name: string]: {" | ".join(dict.fromkeys(_ARRAYS.values()))} }};
export interface Signatures {{
  [name: string]: {{ inputs: Arrays; outputs: Arrays }};
}}
export type First = string;
export type State = Arrays;
"""
_RUNTIME_README = """# msedge in browsers and Node

Runs models that `msedge build model.mslite --target wasm32 -o DIR` made. No dependencies, no eval.

```js
import { load } from "@msedge/runtime";

const model = await load("https://example.org/models/digits/", {
  onProgress: ({ file, loaded, total }) => console.log(file, loaded, total),
});
const { scores } = model.run({ image: new Float32Array(64) });
```

`load` takes the URL of a folder that `msedge build` wrote or, in Node, its path. Several models may be loaded; each has
its own memory and, with `threads`, its own workers, which `model.close()` ends. A folder has the same modules beside
the model, with types of its inputs and outputs; this package serves programs whose models are elsewhere.

State, for models that train: `model.state()`, `setState`, `resetState`; `saveState()` and `loadState()` keep it in the
browser's database, `stateFile()` and `loadStateFile(bytes)` as a file that msedge's Python reads and writes too.

`model.prepare({ image: video })` and `model.prepare({ sound: await record({ seconds: 1 }) })` make inputs by the
processing that the model's bundle declares; `camera` and `record` are in `@msedge/runtime/media`.

Pages: https or localhost; with a Content-Security-Policy `script-src 'self' 'wasm-unsafe-eval'`, `connect-src` with the
models' origin, and `worker-src 'self'` for threads. Threads also need the headers
`Cross-Origin-Opener-Policy: same-origin` and `Cross-Origin-Embedder-Policy: require-corp`.
"""


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

`model.run(inputs, signature)` runs another signature than {json.dumps(name)}. `load(folder)` takes a folder's URL or,
in Node, its path. In a page: serve the folder by https or from localhost, with `script-src 'self' 'wasm-unsafe-eval'`
and `connect-src 'self'` if there is a Content-Security-Policy. Several threads need the headers
`Cross-Origin-Opener-Policy: same-origin` and `Cross-Origin-Embedder-Policy: require-corp`.

The files belong together: `model.msflat` names the digest of `kernels.json`, which lists the modules of kernels. A page
downloads the one module that suits the browser.
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
