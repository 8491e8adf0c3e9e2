"""Processors' own functions for operations, in the file with the processor's name; others stay as they are."""

from __future__ import annotations

from collections.abc import Mapping

from lite_runtime.native.codegen import aarch64, armv7, cortex_m, riscv64, wasm32, x86_64
from lite_runtime.native.codegen.operations import Emit
from lite_runtime.targets import Target

__all__ = ["bodies_of", "body"]

_BY_MODULE = {
    "aarch64": aarch64.bodies,
    "armv7": armv7.bodies,
    "cortex_m": cortex_m.bodies,
    "riscv64": riscv64.bodies,
    "wasm32": wasm32.bodies,
    "x86_64": x86_64.bodies,
}


def body(own: Mapping[tuple[str, int], Emit], name: str, lanes: int) -> Emit | None:
    """The function for an operation among a target's own, in which 0 stands for any number of lanes; None if it has
    none."""
    return own.get((name, lanes)) or own.get((name, 0))


def bodies_of(target: Target) -> dict[tuple[str, int], Emit]:
    """The functions that a target has of its own, by operation and lanes."""
    of = _BY_MODULE.get(target.bodies)
    return of(target) if of else {}
