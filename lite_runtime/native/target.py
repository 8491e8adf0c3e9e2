"""Targets of compilation: the properties of an instruction set that kernels and the planner need."""

from __future__ import annotations

import os
import platform
from functools import cache

from lite_runtime.errors import MsedgeError
from lite_runtime.frozen import NamedTuple

__all__ = ["TARGETS", "Target", "host"]


class Target(NamedTuple):
    """One instruction set. `lanes`: float32 elements in a vector; `vectors`: vector registers.

    `dot`: how four products of bytes are summed into an int32 lane: "vpdpbusd", the LLVM intrinsic that does it in one
    instruction, or "vpmaddwd": bytes widened to 16 bits, even and odd ones multiplied separately. The sums are the
    same.
    """

    name: str
    triple: str
    cpu: str
    features: str
    lanes: int
    vectors: int
    dot: str
    needs: frozenset[str]
    """CPU flags, by Linux's names, that its code needs."""


def _x86(name: str, cpu: str, features: str, lanes: int, vectors: int, dot: str, needs: str) -> Target:
    return Target(name, "x86_64-unknown-linux-gnu", cpu, features, lanes, vectors, dot, frozenset(needs.split()))


_V3 = "avx2 fma bmi1 bmi2 f16c movbe"
_V4 = f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl"
TARGETS: tuple[Target, ...] = (
    # LLVM's x86-64-v4 prefers 256-bit vectors because Skylake lowers its clock for wider ones; the kernels here use
    # 512.
    _x86("x86-64-v4-vnni", "x86-64-v4", "-prefer-256-bit,+avx512vnni", 16, 32, "vpdpbusd", f"{_V4} avx512_vnni"),
    _x86("x86-64-v4", "x86-64-v4", "-prefer-256-bit", 16, 32, "vpmaddwd", _V4),
    _x86("x86-64-v3-vnni", "x86-64-v3", "+avxvnni", 8, 16, "vpdpbusd", f"{_V3} avx_vnni"),
    _x86("x86-64-v3", "x86-64-v3", "", 8, 16, "vpmaddwd", _V3),
    _x86("x86-64-v2", "x86-64-v2", "", 4, 16, "vpmaddwd", "sse4_1 sse4_2 ssse3 popcnt"),
)
"""Best first."""


def _cpu_flags() -> frozenset[str]:
    """The processor's flags by Linux's names; empty if the system does not report them."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith(("flags", "Features")):
                    return frozenset(line.partition(":")[2].split())
    except OSError:
        pass
    return frozenset()


@cache
def host() -> Target | None:
    """The best target that this machine can run; None if there is none (references still run). MSEDGE_TARGET
    overrides."""
    wanted = os.environ.get("MSEDGE_TARGET")
    if wanted == "none" or platform.machine() not in ("x86_64", "AMD64") or platform.system() != "Linux":
        return None
    flags = _cpu_flags()
    fit = [t for t in TARGETS if t.needs <= flags]
    if wanted is None:
        return fit[0] if fit else None
    for target in fit:
        if target.name == wanted:
            return target
    names = ", ".join(t.name for t in fit) or "no target"
    raise MsedgeError(f"MSEDGE_TARGET={wanted}: this machine runs {names}; unset it or name one of these")
