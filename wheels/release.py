"""Builds all files of a release and their checksums: `python wheels/release.py [FOLDER]`, which `make release` runs.

    msedge-VERSION-py3-none-any.whl         everything but what devices need alone
    msedge_runtime-VERSION-….whl            what a device installs: NumPy and compiled kernels
    msedge_federated-VERSION-….whl          what a device that learns with others installs beside it
    msedge-agent-VERSION.pyz                the agent as one file, for devices without pip; --targets adds kernels
    SHA256SUMS                              for `sha256sum -c`

What is built is the last commit, in an empty folder, without bytecode or kernels of this machine's caches, and with the
commit's time in the archives (or SOURCE_DATE_EPOCH). The same commit and the same versions of the tools named in
SHA256SUMS give the same bits. The packages of this environment build; nothing is fetched.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WHEELS = {"msedge": ".", "runtime": "wheels/runtime", "federated": "wheels/federated"}
"""By name, the folder that pip builds."""
AGENT = "agent"
TOOLS = ("setuptools", "numpy", "numba", "llvmlite", "tuf", "securesystemslib", "urllib3")


def main() -> None:
    """Read the command line and build."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist", help="where to write; default: dist")
    names = [*WHEELS, AGENT]
    parser.add_argument("--only", nargs="+", choices=sorted(names), default=names, help="what to build")
    parser.add_argument(
        "--targets", action="append", metavar="NAMES",
        help="targets of kernels, of one processor; repeatable: a runtime and an agent for each (linux-x86_64)",
    )  # fmt: skip
    given = parser.parse_args()
    os.umask(0o022)  # modes are part of a wheel
    commit = _git("rev-parse", "HEAD")
    if _git("status", "--porcelain", "--untracked-files=no"):
        print("warning: changes that are not committed are left out", file=sys.stderr)
    given.folder.mkdir(parents=True, exist_ok=True)
    targets = {"runtime": given.targets or [""], AGENT: ["", *(given.targets or ())]}
    built = [_built(name, commit, of) for name in given.only for of in targets.get(name, [""])]
    for name, data in built:
        _write(given.folder / name, data)
    rows = [f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in built]
    _write(given.folder / "SHA256SUMS", "".join([_told(commit), *rows]).encode())
    print("".join(rows), end="")


def _git(*words: str) -> str:
    return _git_bytes(*words).decode().strip()


def _git_bytes(*words: str) -> bytes:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"expected a git checkout at {ROOT}, as a release is built from a commit: {done.stderr.decode()}")
    return done.stdout


def _told(commit: str) -> str:
    """A comment with what the bits depend on."""
    tools = ", ".join(f"{tool} {metadata.version(tool)}" for tool in TOOLS)
    return f"# commit {commit}, Python {sys.version.split()[0]}, {tools}\n"


def _built(name: str, commit: str, targets: str) -> tuple[str, bytes]:
    """The file name and content of a wheel, or of the agent, of that commit."""
    with tempfile.TemporaryDirectory(prefix="msedge-release-") as folder:
        source, out = Path(folder, "source"), Path(folder, "out")
        with tarfile.open(fileobj=io.BytesIO(_git_bytes("archive", commit))) as archive:
            archive.extractall(source, filter="data")
        settings = {
            "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct", commit),
            "MSEDGE_CACHE": str(Path(folder, "cache")), "MSEDGE_TARGETS": targets, "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": "",
        }  # fmt: skip
        command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--quiet"]
        command += ["--wheel-dir", str(out), str(source / WHEELS.get(name, ""))]
        if name == AGENT:
            out.mkdir()
            made = out / f"msedge-agent-{_version(source)}{'-' * bool(targets)}{targets.replace(' ', '-')}.pyz"
            command = [sys.executable, str(source / "wheels" / "agent.py"), str(made)]
            command += ["--targets", *targets.split()] if targets else []
        done = subprocess.run(command, env={**os.environ, **settings}, stdout=sys.stderr, check=False)
        if done.returncode:
            sys.exit(f"{name!r} could not be built; see above")
        (built,) = out.iterdir()
        return built.name, built.read_bytes()


def _version(source: Path) -> str:
    return str(tomllib.loads((source / "pyproject.toml").read_text("utf-8"))["project"]["version"])


def _write(path: Path, data: bytes) -> None:
    """Replace a file in one step."""
    part = path.with_name(f".{path.name}.part")
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


if __name__ == "__main__":
    main()
