"""Cortex-M boards that qemu emulates, and programs in C on them: compiled, run, and what they print."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from converter.ahead.firmware import BOARDS, firmware_file
from lite_runtime.targets import AHEAD, Target, named

__all__ = ["BOARDS", "FIRMWARE", "TARGETS", "compiled", "needs_boards", "ran"]

FIRMWARE = Path(__file__).parents[1] / "converter" / "ahead" / "micro"
TARGETS: tuple[Target, ...] = tuple(named(name, AHEAD) for name in BOARDS)
_ABSENT = [tool for tool in ("arm-none-eabi-gcc", "qemu-system-arm") if shutil.which(tool) is None]
needs_boards = pytest.mark.skipif(bool(_ABSENT), reason=f"{' and '.join(_ABSENT)} not installed")


def compiled(target: Target, sources: Sequence[Path], into: Path, *options: str) -> Path:
    """An ELF file of C sources and objects with the firmware's start-up."""
    command = ["arm-none-eabi-gcc", *BOARDS[target.name].flags.split(), "-mthumb", "-std=c99", "-Wall", "-Wextra"]
    script = into.with_suffix(".ld")
    script.write_bytes(firmware_file("board.ld", target.name))
    command += ["-Werror", "-I", str(FIRMWARE), "-T", str(script), "-nostartfiles"]
    command += ["-Wl,--gc-sections,-z,noexecstack", "-Os", *options]
    command += [*map(str, sources), str(FIRMWARE / "startup.c"), "-o", str(into)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return into


def ran(target: Target, program: Path, timeout: float = 60) -> str:
    """What a program prints. It must end with 0."""
    command = ["qemu-system-arm", "-M", BOARDS[target.name].machine, "-nographic", "-monitor", "none"]
    command += ["-serial", "none", "-semihosting-config", "enable=on,target=native", "-kernel", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    text = done.stdout + done.stderr  # semihosting's text goes to either
    assert done.returncode == 0, f"{done.returncode}: {text[-2000:]}"
    return text
