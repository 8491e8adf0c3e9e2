"""Builds the device's wheel: the runtime's files without kernels' source, and its kernels, compiled.

MSEDGE_TARGETS names the instruction sets to compile for, separated by spaces; all of them by default, which takes some
minutes where the cache holds none. The machine must be able to run them.
"""

import os
import shutil
import sys
import tomllib
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "runtime"
sys.path.insert(0, str(ROOT))


class Files(build_py):
    """Copies what a device needs and packs the kernels."""

    def run(self) -> None:
        """Fill the build folder anew."""
        from lite_runtime.native import wheel
        from lite_runtime.native.target import TARGETS

        into = Path(self.build_lib) / "lite_runtime"
        wheel.fill(str(into), os.environ.get("MSEDGE_TARGETS", "").split() or [target.name for target in TARGETS])
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
        return "py3", "none", "manylinux2014_x86_64.musllinux_1_1_x86_64"


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
