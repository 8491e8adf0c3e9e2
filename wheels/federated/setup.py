"""Builds the wheel of `federated` for devices: plain Python, over the runtime of the same version and Flower.

The runtime is not among its requirements, though it is needed: pip would look for a package of that name on an index,
where nobody owns it. Both wheels are installed from their files.
"""

import shutil
import tomllib
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "federated"

project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
shutil.rmtree(BUILD / "lib", ignore_errors=True)  # modules that an earlier version had would be packed again
BUILD.mkdir(parents=True, exist_ok=True)
setup(
    version=project["version"],
    python_requires=project["requires-python"],
    install_requires=project["optional-dependencies"]["federated"],
    packages=find_packages(str(ROOT), include=["federated", "federated.*"]),
    package_dir={"federated": "../../federated"},
    package_data={"federated": ["py.typed"]},
    options={"build": {"build_base": str(BUILD)}, "egg_info": {"egg_base": str(BUILD)}},
)
