"""The folder for microcontrollers beside a model and its kernels: a library for Arduino, a module for Zephyr, and
firmware for an emulated board."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from importlib.resources import files

from converter.ahead.archive import archive
from converter.ahead.library import TYPES
from converter.ahead.needs import ALIGN, Needs, needs_of
from converter.ahead.ports import Port, Ports, state_table, table
from lite_runtime.frozen import NamedTuple
from lite_runtime.targets import Target

__all__ = ["BOARDS", "Board", "files_of", "firmware_file"]


class Board(NamedTuple):
    """A board that qemu emulates: its name there, gcc's options for its processor, and the sizes of its memories for
    code and data, as linkers read them."""

    machine: str
    flags: str
    flash: str
    ram: str


BOARDS = {
    "cortex-m4": Board("mps2-an386", "-mcpu=cortex-m4 -mfloat-abi=hard -mfpu=fpv4-sp-d16", "4M", "4M"),
    "cortex-m7": Board("mps2-an500", "-mcpu=cortex-m7 -mfloat-abi=hard -mfpu=fpv5-sp-d16", "4M", "4M"),
    "cortex-m55": Board("mps3-an547", "-mcpu=cortex-m55 -mfloat-abi=hard", "512K", "512K"),
}
"""By target."""
_SOURCES = ("msedge.h", "msedge.c", "msedge_test.c", "model.S")
_FIRMWARE = ("Makefile", "board.ld", "startup.c", "startup.h", "main.c")
_ZEPHYR = ("CMakeLists.txt", "Kconfig", "module.yml")
_KERNELS = "kernels.o"
"""The archive's member."""


def firmware_file(name: str, target: str, library: str = "") -> bytes:
    """A file of the folder `firmware` for a target's board. library: the path of the kernels' archive."""
    words = {**BOARDS[target]._asdict(), "library": library}
    text = (files(__package__) / "micro" / name).read_text("utf-8")
    return re.sub("@([a-z]+)@", lambda found: words[found[1]], text).encode()


def files_of(
    signatures: Sequence[Ports], states: Sequence[Port], target: Target, kernels: bytes, flat: bytes, symbol: str
) -> dict[str, bytes]:
    """The files by path. symbol: the one that the object file of kernels defines."""
    here, needs = files(__package__), needs_of(flat, kernels)
    library = f"src/{target.cpu}/libmsedge_kernels.a"  # where Arduino looks, by the processor's name
    filled = partial(firmware_file, target=target.name, library=library)
    return {
        "library.properties": filled("library.properties"),
        **{f"src/{name}": (here / "c" / name).read_bytes() for name in _SOURCES},
        "src/msedge_model.h": _header(needs).encode(),
        library: archive({_KERNELS: kernels}, {_KERNELS: [symbol]}),
        **{f"firmware/{name}": filled(name) for name in _FIRMWARE},
        **{f"zephyr/{name}": filled(name) for name in _ZEPHYR},
        "README.md": _readme(signatures, states, target, needs).encode(),
        "src/model.msflat": flat,
    }


def _header(needs: Needs) -> str:
    parts = f"{needs.arena} of arena, {needs.state} of state, {needs.buffers} of inputs and outputs, {needs.tables}"
    return f"""/* What this model needs. */
#ifndef MSEDGE_MODEL_H
#define MSEDGE_MODEL_H

/* Bytes for msedge_open: {parts} of tables. */
#define MSEDGE_MODEL_MEMORY {needs.memory}

/* Bytes of stack for msedge_open and msedge_run, without what interrupts take. */
#define MSEDGE_MODEL_STACK {needs.stack}

#endif
"""


def _readme(signatures: Sequence[Ports], states: Sequence[Port], target: Target, needs: Needs) -> str:
    state = f"\n## State\n\n{state_table(states, TYPES, 'C')}\n" if states else ""
    return f"""# A model for {target.cpu}

{table(signatures, TYPES, "C")}

RAM: {needs.memory} bytes of memory, {needs.stack} of stack. Constants are read in flash.

| folder | what it is for |
|---|---|
| `src` | the model, its kernels, the reader and its header: all that a program needs |
| `firmware` | an example for the emulated board {BOARDS[target.name].machine}: `make run` |
| `zephyr` | this folder is a module: `west build -- -DZEPHYR_EXTRA_MODULES=FOLDER` (CONFIG_FPU, CONFIG_FP_HARDABI) |
| `library.properties` | this folder is a library for Arduino, for boards with {target.cpu} |

```c
#include "msedge.h"
#include "msedge_model.h"

static struct msedge model;
static uint8_t memory[MSEDGE_MODEL_MEMORY] __attribute__((aligned(MSEDGE_ALIGN)));

int start(void) {{
  size_t bytes = (size_t)(msedge_model_end - msedge_model);
  return msedge_open(&model, &msedge_kernels, msedge_model, bytes, memory, sizeof memory);
}}
```

`msedge_run(&model, number)` runs a signature on what is in `model.signatures[number].inputs[i].data`; `msedge.h`
describes each function. Kernels take floats in registers of the floating-point unit (`-mfloat-abi=hard`), which the
program must have switched on. Here buffers lie at multiples of {ALIGN} bytes, and the file's SHA-256 is not checked, as
the file is part of the program: `-DMSEDGE_CHECK_DIGEST` has it checked.
{state}"""
