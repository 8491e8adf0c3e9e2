"""Emulated systems: what they are, how they and their emulators are prepared, and how a Python program is run on one.

Package scripts of a foreign architecture cannot run while a system is prepared, so that links they would make are made
here. Nothing is mounted or registered: qemu loads a program of the prepared folder and translates its system calls.
Windows is Wine's, on this machine's own processor (`wine.py`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from lite_runtime.native import build
from lite_runtime.native.target import runnable
from tests.emulated import wine

PACKAGES, EMULATORS = "python3,python3-numpy", "qemu-user"
SUITES = ("trixie", "forky")
"""Debian's releases that have what is needed; the next is tried where a mirror has only part of one, for a while. Their
qemu is 10 or later: 7.2, of the release before, ends where a vector comparison of RISC-V lies across two pages."""


class System(NamedTuple):
    """debian: the architecture's name there, "" for Windows; libraries: the folder of its libraries; emulator: qemu's
    program, or Wine's; targets: processors to emulate, by target."""

    name: str
    debian: str
    libraries: str
    emulator: str
    targets: Mapping[str, str]


# Pointer authentication, emulated, makes `import numpy` seven times as slow; under emulated SME, OpenBLAS gives wrong
# products of float64, and with them wrong references.
_MAX = "max,pauth=off,sme=off"
SYSTEMS = (
    System(
        "aarch64",
        "arm64",
        "aarch64-linux-gnu",
        "qemu-aarch64",
        {"aarch64": "cortex-a72", "aarch64-dotprod": "neoverse-n1", "aarch64-i8mm": _MAX},
    ),
    System("armv7", "armhf", "arm-linux-gnueabihf", "qemu-arm", {"armv7": "cortex-a15"}),
    System(
        "riscv64",
        "riscv64",
        "riscv64-linux-gnu",
        "qemu-riscv64",
        {"riscv64-v": "rv64,v=true,vlen=128", "riscv64-v256": "rv64,v=true,vlen=256", "riscv64": "rv64,v=false"},
    ),
    System(
        "windows", "", "", wine.EMULATOR, {f"windows-{t.name}": "" for t in runnable() if t.processor == "x86_64"}
    ),
)


def named(name: str) -> System:
    """The system with this name."""
    return next(system for system in SYSTEMS if system.name == name)


def folder(system: System) -> Path:
    """Where a system is, or will be."""
    return Path(build.cache_folder()) / "emulated" / system.name


def emulator(system: System) -> Path:
    """Where a system's emulator is, or will be: a program without libraries, beside the systems."""
    return folder(system).parent / "emulators" / system.emulator


def lacking(system: System) -> str:
    """The program that must be installed before a system can be prepared, or used; "" if there is none."""
    if not system.debian:
        return wine.missing()
    there = folder(system).is_dir() and emulator(system).is_file()
    return "" if there or shutil.which("mmdebstrap") else "mmdebstrap is not installed: apt-get install mmdebstrap"


def missing(system: System) -> str:
    """What keeps a system from being used here; "" if nothing does."""
    if problem := lacking(system):
        return problem
    there = folder(system).is_dir() and (not system.debian or emulator(system).is_file())
    return "" if there else f"{system.name} is not prepared: python -m tests.emulated prepare"


def prepare(system: System) -> None:
    """Make a system's folder and the emulators if they are not there: about 30 s of a processor and 150 MB; 250 MB for
    Windows. Raises RuntimeError where they cannot be had."""
    into = folder(system)
    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into.parent) as scratch:
        if not into.is_dir():
            _placed(_system(system, Path(scratch)) if system.debian else wine.made(Path(scratch)), into)
        if system.debian and not emulator(system).is_file():
            _placed(_emulators(Path(scratch)), emulator(system).parent)


def _placed(made: Path, into: Path) -> None:
    try:
        made.rename(into)
    except OSError:
        if not into.is_dir():  # another process was first
            raise


def _system(system: System, scratch: Path) -> Path:
    made = _extracted(scratch, system.name, f"--arch={system.debian}", f"--include={PACKAGES}")
    (made / "lib").symlink_to("usr/lib")
    libraries = made / "usr" / "lib" / system.libraries
    for library in ("blas/libblas.so.3", "lapack/liblapack.so.3"):
        (libraries / Path(library).name).symlink_to(library)
    return made


def _emulators(scratch: Path) -> Path:
    """Of a package of 455 MB the programs for the systems, 46 MB."""
    made, whole = scratch / "chosen", _extracted(scratch, "emulators", f"--include={EMULATORS}")
    made.mkdir()
    for system in (system for system in SYSTEMS if system.debian):
        (whole / "usr" / "bin" / system.emulator).rename(made / system.emulator)
    return made


def _extracted(scratch: Path, what: str, *chosen: str) -> Path:
    """A folder with packages of Debian. Raises RuntimeError, with what was said, if no release can be had."""
    options = ["--quiet", "--variant=extract", *chosen]
    options.append("--aptopt=Acquire::Check-Valid-Until false")  # a mirror that is behind serves as well
    said = ""
    for suite in SUITES:
        into = scratch / f"{what}-{suite}"
        done = subprocess.run(
            ["mmdebstrap", *options, suite, str(into), *_mirror()], capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            return into
        said = done.stderr
    raise RuntimeError(f"mmdebstrap made no {what} of {' or '.join(SUITES)}: {said[-2000:]}")


def _mirror() -> Sequence[str]:
    """The first mirror that this machine's apt uses."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)"]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    return found[:1]


def command(system: System, target: str, arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The command that runs a system's Python on an emulated processor. environment: what it sees in addition."""
    at = folder(system)
    if not system.debian:
        return wine.command(at, target, arguments, environment)
    seen = {"PYTHONPYCACHEPREFIX": str(at.parent / "bytecode"), **environment}
    settings = [part for name, value in seen.items() for part in ("-E", f"{name}={value}")]
    hidden = [part for name in ("PYTHONDONTWRITEBYTECODE", "MSEDGE_TARGET") for part in ("-U", name)]
    # Variables to remove come before those to set: one that is removed later would be missing.
    python = str(at / "usr" / "bin" / "python3")
    processor = ["-cpu", system.targets[target], "-L", str(at)]
    return [str(emulator(system)), *processor, *hidden, *settings, python, *arguments]


def run(system: System, target: str, arguments: Sequence[str], environment: Mapping[str, str], timeout: float) -> str:
    """What a Python program writes to stdout on an emulated processor. Raises RuntimeError, with its stderr, if it
    fails."""
    done = subprocess.run(
        command(system, target, arguments, environment),
        capture_output=True,
        text=True,
        timeout=timeout,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{target}: exit status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout
