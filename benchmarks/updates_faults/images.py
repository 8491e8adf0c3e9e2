"""File systems in image files, mounted by loop devices."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["attached", "made", "mounted", "possible"]


def made(image: Path, megabytes: int) -> Path:
    """A new image with ext4, of which all can be used."""
    with open(image, "wb") as file:
        file.truncate(megabytes << 20)
    _do("mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal" if megabytes < 8 else "has_journal", str(image))
    return image


@contextlib.contextmanager
def mounted(device: Path, at: Path) -> Iterator[Path]:
    """A device or an image, mounted in a folder."""
    at.mkdir(parents=True, exist_ok=True)
    _do("mount", *(["-o", "loop"] if device.is_file() else []), str(device), str(at))
    try:
        yield at
    finally:
        for left in range(50, -1, -1):
            done = subprocess.run(["umount", str(at)], capture_output=True, check=left == 0)
            if done.returncode == 0:
                break
            time.sleep(0.1)


@contextlib.contextmanager
def attached(image: Path) -> Iterator[Path]:
    """A loop device over a file."""
    device = Path(_do("losetup", "--find", "--show", str(image)).strip())
    try:
        yield device
    finally:
        _do("losetup", "--detach", str(device))


def possible(work: Path) -> str:
    """Why images cannot be mounted here, "" if they can."""
    if os.geteuid() != 0:
        return "expected root, who may mount images"
    try:
        with mounted(made(work / "probe.img", 4), work / "probe"):
            return ""
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        return said.decode().strip() if isinstance(said, bytes) else str(said)


def _do(*words: str) -> str:
    return subprocess.run(words, capture_output=True, check=True).stdout.decode()
