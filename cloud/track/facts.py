"""A run's environment and source version, which may explain differences between runs later."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["device_memory", "environment", "git_state", "host", "memory_now"]

PACKAGES = "msedge numpy jax jaxlib optax onnx onnx_ir flax grain orbax-checkpoint scipy".split()


def host() -> str:
    """This machine's name."""
    return platform.node() or "unknown"


def environment() -> dict[str, Any]:
    """Versions of the packages, the machine and, if JAX is in use in this process, its devices."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "host": host(),
        "command": sys.argv[:1] + [word if len(word) < 200 else f"{word[:200]}…" for word in sys.argv[1:]],
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        **_devices(),
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> dict[str, Any]:
    jax = sys.modules.get("jax")
    if jax is None:
        return {}
    devices = jax.devices()
    return {"devices": {"count": len(devices), "kind": devices[0].device_kind, "platform": devices[0].platform}}


def device_memory() -> tuple[int, int] | None:
    """(Peak bytes in use, total bytes) of this process's first device; None if it does not report them (CPUs)."""
    jax = sys.modules.get("jax")
    found = (jax.local_devices()[0].memory_stats() if jax is not None else None) or {}
    used = found.get("peak_bytes_in_use")
    return None if used is None else (int(used), int(found.get("bytes_limit", 0)))


def memory_now() -> dict[str, float]:
    """Bytes in use now: "process", by this process (on Linux), and "device", by its first device if that tells."""
    found: dict[str, float] = {}
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/statm", encoding="ascii") as file:
        found["process"] = float(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    jax = sys.modules.get("jax")
    stats = (jax.local_devices()[0].memory_stats() if jax is not None else None) or {}
    if "bytes_in_use" in stats:
        found["device"] = float(stats["bytes_in_use"])
    return found


def git_state(folder: Path) -> dict[str, Any]:
    """{"commit", "branch", "dirty"} of the work tree around `folder`; {} without a work tree or git."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return {}
    return {
        "commit": commit,
        "branch": _git(folder, "rev-parse", "--abbrev-ref", "HEAD") or "",
        "dirty": bool(_git(folder, "status", "--porcelain", "--untracked-files=no")),
    }


def _git(folder: Path, *words: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(folder), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
