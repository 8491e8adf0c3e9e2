"""The files for C beside a model and its kernels: the reader, make's and CMake's files, and a README."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from converter.ahead.ports import Port, Ports, state_table, table
from lite_runtime.targets import Target

__all__ = ["TYPES", "files_of"]

_FILES = ("msedge.h", "msedge.c", "msedge_test.c", "model.S", "Makefile", "CMakeLists.txt")
TYPES = {
    "bool": "uint8_t",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for bits in (8, 16, 32, 64) for sign in ("", "u")},
    "float16": "uint16_t",
    "float32": "float",
    "float64": "double",
}
"""C's types by dtype."""
_MAKE = {
    "aarch64-unknown-linux-gnu": " CROSS_COMPILE=aarch64-linux-gnu-",
    "armv7-unknown-linux-gnueabihf": " CROSS_COMPILE=arm-linux-gnueabihf-",
    "riscv64-unknown-linux-gnu": " CROSS_COMPILE=riscv64-linux-gnu-",
    "aarch64-apple-ios14.0": ' libmodel.a CC="xcrun -sdk iphoneos clang -arch arm64 -miphoneos-version-min=14.0"',
    "aarch64-apple-ios14.0-simulator": ' libmodel.a CC="xcrun -sdk iphonesimulator clang -arch arm64"',
    "x86_64-w64-windows-gnu": " CROSS_COMPILE=x86_64-w64-mingw32-",
    "aarch64-w64-windows-gnu": " CROSS_COMPILE=aarch64-w64-mingw32-",
}
"""Arguments of make, by target triple: Debian's compilers for other processors, Apple's for other systems."""


def files_of(signatures: Sequence[Ports], states: Sequence[Port], target: Target) -> dict[str, bytes]:
    """The files by name."""
    here = files(__package__) / "c"
    found = {name: (here / name).read_bytes() for name in _FILES}
    return {**found, "README.md": _readme(signatures, states, target).encode()}


def _readme(signatures: Sequence[Ports], states: Sequence[Port], target: Target) -> str:
    name, inputs, outputs = signatures[0]
    lines = [
        *_each("fill", "inputs", inputs),
        "  if (msedge_run(&model, 0) != MSEDGE_OK) return 1;",
        *_each("use", "outputs", outputs),
    ]
    shared = "model.dll" if "windows" in target.triple else "libmodel.so"
    return f"""# A model as a C library, for {target.name}

    make{_MAKE.get(target.triple, "")}

gives `libmodel.a` and `{shared}`; `CMakeLists.txt` gives the target `msedge_model`. Nothing is needed but a C99
compiler: no allocation, no C library beyond memcpy and memset.

{table(signatures, TYPES, "C")}

Arrays are in row-major order; float16 is given by its bits, bool as 0 and 1. Signatures and their ports have the order
of the table.

```c
#include <stdlib.h>

#include "msedge.h"

static struct msedge model;

int main(void) {{
  size_t bytes, flat_bytes = (size_t)(msedge_model_end - msedge_model);
  if (msedge_size(&msedge_kernels, msedge_model, flat_bytes, &bytes) != MSEDGE_OK) return 1;
  void *memory = aligned_alloc(MSEDGE_ALIGN, bytes); /* C11; or a static array */
  if (msedge_open(&model, &msedge_kernels, msedge_model, flat_bytes, memory, bytes) != MSEDGE_OK) return 1;
  if (msedge_test(&model, 0) != MSEDGE_OK) return 1; /* the sample of {_comment(name)} */
{chr(10).join(lines)}
}}
```

`msedge.h` describes each function; `msedge_text` says what a status means. `model.msflat` may also be mapped into
memory instead of being linked. A program with two models links one `msedge.c` and renames the symbols of the other
model (`objcopy --redefine-sym msedge_kernels=other_kernels kernels.o`).
{_state_text(states)}"""


def _each(call: str, side: str, ports: Sequence[Port]) -> list[str]:
    return [
        f"  {call}(model.signatures[0].{side}[{i}].data); /* {_comment(port.name)} */" for i, port in enumerate(ports)
    ]


def _state_text(states: Sequence[Port]) -> str:
    if not states:
        return ""
    return f"""
## State

Signatures read `model.states`, in this order, and some replace them after a run that succeeded. Their data may be read,
kept and written between runs; `msedge_reset` returns to the values in the file.

{state_table(states, TYPES, "C")}
"""


def _comment(text: str) -> str:
    """A text within a comment in C."""
    return text.replace("*/", "* /")
