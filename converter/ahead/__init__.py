"""Models built ahead of time, for targets that have kernels and no planner.

build(bundle, folder, target)       a folder that a program of the target uses as it is
planning     the plans of signatures; what the target cannot run is refused by name
flat         the format of the file that holds them; assembling: plans to this file
wasm_object, wasm_link    kernels' object files -> one WebAssembly module
web          the folder of a web page or a Node program (`web/`: its module)
"""

from __future__ import annotations

from converter.ahead.building import Built, build

__all__ = ["Built", "build"]
