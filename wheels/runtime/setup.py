"""Builds the device's wheel: the runtime's files without kernels' source, and its kernels, compiled.

MSEDGE_TARGETS names the targets to compile for, separated by spaces; linux-x86_64, which stands for all of that
system and processor, by default. It takes some minutes where the cache holds none.
"""

import os
import shutil
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "runtime"
sys.path.insert(0, str(ROOT))


def targets() -> Sequence[str]:
    """What to compile for."""
    from lite_runtime.native import wheel

    return os.environ.get("MSEDGE_TARGETS", "").split() or wheel.DEFAULTS


class Files(build_py):
    """Copies what a device needs and packs the kernels."""

    def run(self) -> None:
        """Fill the build folder anew."""
        from lite_runtime.native import wheel

        into = Path(self.build_lib) / "lite_runtime"
        wheel.fill(str(into), targets())
        shutil.copyfile(ROOT / "LICENSE", into / "LICENSE")


class Binary(Distribution):
    """A distribution with machine code."""

    def has_ext_modules(self) -> bool:
        """Yes, though none is an extension module."""
        return True


class Tagged(bdist_wheel):
    """Kernels call no library, so any Python and any C library will do."""

    def get_tag(self) -> tuple[str, str, str]:
        """Python, ABI, platforms."""
        from lite_runtime.native import wheel

        return "py3", "none", wheel.platforms(targets())


project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BUILD.mkdir(parents=True, exist_ok=True)
setup(
    version=project["version"],
    python_requires=project["requires-python"],
    install_requires=project["dependencies"],
    packages=["lite_runtime"],
    package_dir={"lite_runtime": "../../lite_runtime"},
    distclass=Binary,
    cmdclass={"build_py": Files, "bdist_wheel": Tagged},
    options={"build": {"build_base": str(BUILD)}, "egg_info": {"egg_base": str(BUILD)}},
)
