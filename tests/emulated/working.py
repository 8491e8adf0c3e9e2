"""What emulated processors run: a device's files, records of this machine's runs, code of operations; their reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lite_runtime.native import wheel
from lite_runtime.native.build import BuildError
from lite_runtime.native.codegen.bodies import bodies_of, body
from lite_runtime.targets import Target
from tests.emulated import systems
from tests.emulated.systems import System
from tests.lite_runtime.native import operations

ROOT = Path(__file__).parents[2]
NOT_GENERIC = {("armv7", "from_half")}
"""Operations whose generic form a target cannot use: its product is of subnormal numbers, which NEON takes for 0."""


def device_files(into: Path, targets: Sequence[str]) -> None:
    """What a device of these targets installs, as the package `lite_runtime` in a folder."""
    wheel.fill(str(into / "lite_runtime"), targets)


def record(into: Path, arguments: Sequence[str], each: int) -> int:
    """Run tests on this machine and keep what they run natively; returns the number of records."""
    into.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "MSEDGE_RECORDS": str(into), "MSEDGE_RECORDS_EACH": str(each)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "tests.emulated.recording", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"recording failed:\n{done.stdout[-4000:]}")
    return len(list(into.glob("*.npz")))


def compiled_operations(into: Path, target: Target) -> None:
    """Every operation's code for a target: in its generic form, and by the target's own instructions."""
    into.mkdir(parents=True, exist_ok=True)
    for name in operations.CASES:
        for lanes in (target.lanes, *[1] * (name in operations.SCALAR)):
            operands, wanted = operations.rows(name, lanes)
            held = {f"operand{i}": operand for i, operand in enumerate(operands)}
            held |= {"table": operations.TABLE} if name == "look_up" else {}
            has_own = body(bodies_of(target), name, lanes) is not None
            generic = () if (target.name, name) in NOT_GENERIC else (False,)
            for own in (*generic, True) if has_own else generic:
                try:
                    code, begin = operations.code(name, lanes, target, own)
                except BuildError:
                    if own or not has_own:
                        raise
                    continue  # the generic form would be a call of libm, which is why the target has its own
                np.savez(
                    into / f"{name}-{lanes}-{'own' if own else 'generic'}.npz",
                    code=np.frombuffer(code, np.uint8),
                    begin=begin,
                    name=name,
                    operands=len(operands),
                    wanted=wanted,
                    **held,
                )


PROGRAM = str(Path(__file__).with_name("device.py"))


def report(system: System, target: str, folder: Path, timeout: float = 3600, **work: Path | int) -> dict[str, Any]:
    """Run the device's program on an emulated processor. folder: holds `site`, and gets a cache. work: the program's
    options."""
    environment = {
        "PYTHONPATH": str(folder / "site"),
        "MSEDGE_CACHE": str(folder / f"cache-{target}"),
        "MSEDGE_TARGET": target,
        "OPENBLAS_NUM_THREADS": "1",
    }
    said = systems.run(system, target, [PROGRAM, *_options(work)], environment, timeout)
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def report_here(target: str | None = None, **work: Path | int) -> dict[str, Any]:
    """The same on this machine, by this checkout; target: by default its best."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **({"MSEDGE_TARGET": target} if target else {})}
    done = subprocess.run(
        [sys.executable, PROGRAM, *_options(work)], env=environment, capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _options(work: Mapping[str, Path | int]) -> list[str]:
    return [part for name, value in work.items() for part in (f"--{name}", str(value))]
