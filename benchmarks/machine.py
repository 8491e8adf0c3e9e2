"""The machine and the software of a measurement, as readable text: `python -m benchmarks.machine`."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from edge.extras import EXTRAS, installed_version
from lite_runtime.native.target import host

__all__ = ["PEERS", "code", "cpu", "facts", "facts_table", "versions"]

PEERS = (*EXTRAS["oracle"].packages.values(), *EXTRAS["peers"].packages.values())
"""The packages of the runtimes that models are compared with."""

MEASURED = ("lite_runtime", "converter", "edge", "benchmarks")
"""The packages whose sources figures depend on."""
_CPUINFO = Path("/proc/cpuinfo")
_MICROARCHITECTURES: Mapping[tuple[str, int], Sequence[tuple[range, str]]] = {
    ("AuthenticAMD", 23): ((range(0x01, 0x02), "Zen, Naples"), (range(0x31, 0x32), "Zen 2, Rome")),
    ("AuthenticAMD", 25): (
        (range(0x00, 0x10), "Zen 3, Milan"), (range(0x10, 0x20), "Zen 4, Genoa"),
        (range(0xA0, 0xB0), "Zen 4c, Bergamo"),
    ),
    ("AuthenticAMD", 26): ((range(0x00, 0x10), "Zen 5, Turin"), (range(0x10, 0x20), "Zen 5c, Turin Dense")),
    ("GenuineIntel", 6): (
        (range(0x55, 0x56), "Skylake-SP or Cascade Lake"), (range(0x6A, 0x6B), "Ice Lake-SP"),
        (range(0x8F, 0x90), "Sapphire Rapids"), (range(0xAD, 0xAE), "Granite Rapids"),
        (range(0xCF, 0xD0), "Emerald Rapids"),
    ),
}  # fmt: skip
"""Server processors by vendor, family and model number. Virtual machines often hide the product's name, but not
these."""
_EXTENSIONS = "avx2 fma f16c avx512f avx512bw avx512_vnni avx512_bf16 avx512_fp16 avx_vnni amx_tile amx_int8 amx_bf16"


def _fields(text: str) -> dict[str, str]:
    """The first processor's fields."""
    first = text.split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _cpuinfo() -> str:
    try:
        return _CPUINFO.read_text(encoding="utf-8")
    except OSError:
        return ""


def cpu(text: str | None = None) -> str:
    """The processor's name, its vendor's numbers and the name of their product line; `text`: contents of
    /proc/cpuinfo."""
    held = _fields(_cpuinfo() if text is None else text)
    name = held.get("model name") or platform.processor() or platform.machine()
    if not {"vendor_id", "cpu family", "model", "stepping"} <= set(held):
        return name
    vendor, family, model = held["vendor_id"], int(held["cpu family"]), int(held["model"])
    known = (what for models, what in _MICROARCHITECTURES.get((vendor, family), ()) if model in models)
    numbers = f"{vendor} family {family} model {model} stepping {held['stepping']}"
    return f"{name} ({', '.join([*known, numbers])})"


def facts() -> dict[str, str]:
    """Facts about this machine that a reader needs, by name."""
    held = _fields(_cpuinfo())
    flags = set(held.get("flags", "").split())
    target = host()
    found = {
        "CPU": cpu(),
        "cores": f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}",
        "virtual machine": "yes" if "hypervisor" in flags else "no",
        "instruction sets": ", ".join(name for name in _EXTENSIONS.split() if name in flags),
        "msedge's kernels are built for": target.name if target else "no target: NumPy references",
        "cache of a core": held.get("cache size", ""),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "C library": " ".join(platform.libc_ver()),
    }
    return {name: text for name, text in found.items() if text}


def versions(packages: Sequence[str] = PEERS) -> dict[str, str]:
    """The versions of Python, NumPy, Numba and `packages`; "not installed" for those that are missing."""
    names = dict.fromkeys(("numpy", "numba", *packages))
    return {"Python": platform.python_version(), **{name: installed_version(name) or "not installed" for name in names}}


def code(root: Path | None = None, packages: Sequence[str] = MEASURED) -> str:
    """A digest of the measured sources, of this checkout or of `root`: it prevents mixing figures of two versions."""
    root = root or Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def facts_table(held: Mapping[str, str]) -> str:
    """Markdown."""
    rows = "\n".join(f"| {name} | {text.replace('|', '/')} |" for name, text in held.items())
    return f"| | |\n| --- | --- |\n{rows}"


if __name__ == "__main__":
    print(facts_table({**facts(), **versions()}))
    sys.exit(0)
