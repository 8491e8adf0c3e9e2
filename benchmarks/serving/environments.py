"""Environments of the other servers: `python -m benchmarks.serving.environments FOLDER` creates the missing ones."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.serving.contenders import CONTENDERS, Contender
from lite_runtime.errors import MsedgeError

__all__ = ["WANTED", "main", "python_of", "versions_of"]

WANTED: Mapping[str, Sequence[str]] = {
    "mlserver": ("mlserver>=1.7,<2", "uvloop", "httptools", "onnxruntime"),
    "litserve": ("litserve>=0.2,<0.3", "uvloop", "httptools", "onnxruntime"),
    "bentoml": ("bentoml>=1.4,<1.5", "uvloop", "httptools", "onnxruntime"),
    "rayserve": ("ray[serve]>=2.60,<3", "uvloop", "httptools", "onnxruntime"),
}
"""Installed packages by environment: each with uvicorn's faster loop and parser, which it uses if installed."""
_ASK = """
import json, sys
from importlib import metadata
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        found[name] = "not installed"
print(json.dumps(found))
"""


def python_of(contender: Contender, peers: Path | None) -> str | None:
    """The interpreter that runs a server: that of its environment, or this one if it needs none; None if its
    environment does not exist."""
    if not contender.environment:
        return sys.executable
    path = peers / contender.environment / "bin" / "python" if peers else None
    return str(path) if path is not None and path.exists() else None


def versions_of(contender: Contender, python: str) -> dict[str, str]:
    """The versions of a server's packages in its environment."""
    if not contender.packages:
        return {}
    found = subprocess.run([python, "-c", _ASK, *contender.packages], capture_output=True, text=True, check=False)
    if found.returncode:
        raise MsedgeError(f"the environment of {contender.name} does not run: {found.stderr.strip()[-500:]}")
    return dict(json.loads(found.stdout))


def main(argv: Sequence[str] | None = None) -> int:
    """Create environments and install packages into them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving.environments", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="names, separated by commas")
    args = parser.parse_args(argv)
    for contender in CONTENDERS:
        name = contender.environment
        if not name or (args.only and name not in args.only.split(",")):
            continue
        python = args.folder / name / "bin" / "python"
        if not python.exists():
            venv.create(args.folder / name, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *WANTED[name]], check=True)
        print(f"{name}: {versions_of(contender, str(python))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
