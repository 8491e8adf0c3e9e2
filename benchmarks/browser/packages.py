"""The other runtimes, as packages of npm in the user's cache."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from lite_runtime.errors import MsedgeError
from lite_runtime.native.build import cache_folder

__all__ = ["PACKAGES", "installed"]

PACKAGES = {"@litertjs/core": "2.5.3", "onnxruntime-web": "1.30.0"}


def installed() -> Path:
    """The folder `node_modules` with PACKAGES, which npm fills if it does not have them. Raises MsedgeError without
    npm, and with npm's last line if it fails."""
    folder = Path(cache_folder()) / "npm"
    modules = folder / "node_modules"
    if all(_version(modules / name) == version for name, version in PACKAGES.items()):
        return modules
    npm = shutil.which("npm")
    if npm is None:
        raise MsedgeError("expected npm, which comes with Node.js, found none; install Node.js 20 or later")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text(json.dumps({"private": True, "dependencies": PACKAGES}))
    command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise MsedgeError(f"npm could not install {', '.join(PACKAGES)}: {done.stderr.strip().splitlines()[-1]}")
    return modules


def _version(folder: Path) -> str:
    try:
        return str(json.loads((folder / "package.json").read_text())["version"])
    except (OSError, ValueError, KeyError):
        return ""
