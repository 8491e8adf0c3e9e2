"""Models built ahead of time, for targets that have kernels and no planner.

build(bundle, folder, target)       a folder that a program of the target uses as it is
planning     the plans of signatures; what the target cannot run is refused by name
flat         the format of the file that holds them; assembling: plans to this file
wasm_object, wasm_link    kernels' object files -> one WebAssembly module
package      the folder for a web page or a Node program (`web/`: its module)
library      the folder for a program in C (`c/`: its reader); ports: the tables of all folders' READMEs
firmware     the folder for a microcontroller (`micro/`: start-up and example); archive: its library; needs: its RAM
trimming     the loops that elementwise chains use
"""

from __future__ import annotations

from converter.ahead.building import Built, build

__all__ = ["Built", "build"]
