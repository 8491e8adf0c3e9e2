"""Which targets (`lite_runtime.targets`) this machine can run, and which this process compiles for."""

from __future__ import annotations

import os
from functools import cache

from lite_runtime.errors import MsedgeError
from lite_runtime.native import machine
from lite_runtime.targets import PLAIN, TARGETS, Shape, Target

__all__ = ["host", "runnable", "shape"]


def shape() -> Shape:
    """The shape that this process compiles kernels for: MSEDGE_SHAPE, which `build` sets, else this machine's."""
    wanted = os.environ.get("MSEDGE_SHAPE")
    return Shape.read(wanted) if wanted else (host() or PLAIN).shape


@cache
def host() -> Target | None:
    """The best target that this machine can run; None if there is none (references still run). MSEDGE_TARGET
    overrides."""
    wanted = os.environ.get("MSEDGE_TARGET")
    if wanted == "none":
        return None
    fit = runnable()
    if wanted is None:
        return fit[0] if fit else None
    for target in fit:
        if target.name == wanted:
            return target
    names = ", ".join(t.name for t in fit) or "no target"
    raise MsedgeError(f"MSEDGE_TARGET={wanted}: this machine runs {names}; unset it or name one of these")


def runnable() -> tuple[Target, ...]:
    """The targets whose code this machine can run, best first."""
    triple, features = machine.triple(), machine.features()
    return tuple(t for t in TARGETS if t.triple == triple and t.needs <= features)
