"""`msedge doctor`: what is installed on this machine, what is missing, and how to install it."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

import typer

from edge.cli.errors import CHECK_FAILED
from edge.cli.options import Json
from edge.cli.output import console, emit, table

__all__ = ["doctor"]


def doctor(as_json: Json = False) -> None:
    """Show the processor, kernels and packages of this machine, and what is missing.

    Exit code 1 if bundles cannot run natively on this machine.
    """
    facts = _facts()
    if as_json:
        emit(facts)
    else:
        _print(facts)
    if not facts["ok"]:
        raise typer.Exit(CHECK_FAILED)


def _facts() -> dict[str, Any]:
    import numpy as np

    from edge.extras import EXTRAS, installed_version, pip_line
    from lite_runtime.native import build, trust
    from lite_runtime.native.target import host

    target = host()
    folder = Path(build.cache_folder())
    facts: dict[str, Any] = {
        "msedge": installed_version("msedge"),
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "numpy": np.__version__,
        "target": target and {"name": target.name, "vector_bits": 32 * target.lanes, "features": sorted(target.needs)},
        "native": build.available(),
        "kernels": build.kept(),
        "cache": {
            "folder": str(folder),
            "writable": _writable(folder),
            "problem": trust.problem(str(folder / "kernels")),
        },
        "extras": {},
    }
    for name, extra in EXTRAS.items():
        found = extra.versions()
        lacking = [package for package, version in found.items() if version is None]
        facts["extras"][name] = {"why": extra.why, "packages": found, "install": pip_line(name) if lacking else None}
    problems = _problems(facts)
    return {**facts, "ok": not problems, "problems": problems}


def _problems(facts: dict[str, Any]) -> list[str]:
    """What prevents native code from running; a missing extra alone is not a problem."""
    from lite_runtime.native import build

    if facts["target"] is None:
        return ["no target of native kernels fits this machine: bundles run on the NumPy reference, slowly"]
    if not facts["native"]:
        return [f"no compiled kernels are here, and none can be compiled: {build.remedy()}"]
    if facts["cache"]["problem"] and not all(origin == "wheel" for origin in facts["kernels"].values()):
        return [facts["cache"]["problem"]]
    if not facts["cache"]["writable"] and not all(facts["kernels"].values()):
        return [f"kernels cannot be saved in {facts['cache']['folder']}: make it writable, or set MSEDGE_CACHE"]
    return []


def _writable(folder: Path) -> bool:
    """Whether files can be created in `folder`, or the folder itself in its nearest existing parent."""
    there = next((p for p in (folder, *folder.parents) if p.exists()), folder)
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _print(facts: dict[str, Any]) -> None:
    out = console()
    rows = table("", "", "", "", fold=("",))
    rows.show_header, rows.box = False, None
    target = facts["target"]
    rows.add_row("", "msedge", facts["msedge"] or "not installed, running from its source folder")
    rows.add_row("", "python", f"{facts['python']} ({facts['executable']})")
    rows.add_row("", "numpy", facts["numpy"])
    rows.add_row("", "system", f"{facts['platform']}, {facts['cores']} cores")
    rows.add_row(_mark(target is not None), "cpu", _cpu(target))
    rows.add_row(_mark(facts["native"]), "kernels", _kernels(facts["kernels"]))
    rows.add_row(_mark(facts["cache"]["writable"] and not facts["cache"]["problem"]), "cache", facts["cache"]["folder"])
    for name, extra in facts["extras"].items():
        versions = ", ".join(f"{package} {version or '–'}" for package, version in extra["packages"].items())
        rows.add_row(_mark(not extra["install"]), f"[{name}]", versions)
        if extra["install"]:
            rows.add_row("", "", f"{extra['why']}: {extra['install']}")
    out.print(rows)
    if facts["cache"]["problem"] and facts["ok"]:
        out.print(f"warning: {facts['cache']['problem']}", style="yellow")
    for problem in facts["problems"]:
        out.print(f"problem: {problem}", style="bold red")


def _cpu(target: dict[str, Any] | None) -> str:
    if target is None:
        return "not supported by native kernels"
    return f"{target['name']}: {target['vector_bits']}-bit vectors ({' '.join(target['features'])})"


_ORIGINS = {"wheel": "shipped with the runtime", "cache": "compiled and cached", "": "compiled on first use"}
"""The text for each result of `build.kept`."""


def _kernels(kept: dict[str, str]) -> str:
    found = list(kept.values())
    parts = [f"{found.count(origin)} {words}" for origin, words in _ORIGINS.items() if origin in found]
    missing = [family for family, origin in kept.items() if not origin]
    return "; ".join(parts) + (f": {', '.join(missing)}" if missing else "") or "none"


def _mark(fine: bool) -> str:
    return "✓" if fine else "–"
