"""Writes the agent as one file: `python wheels/agent.py FILE.pyz`, which `make release` runs.

In it are the agent, the runtime with its references, what both need of `federated`, and tuf, securesystemslib and
urllib3 as they are installed here: all of it Python. A device needs Python 3.11, NumPy and cryptography beside it,
which systems have as packages, and no pip: `python3 msedge-agent.pyz run agent.toml`. Kernels come with --targets;
without them the NumPy references compute.

Equal sources, packages and times give equal bits. SOURCE_DATE_EPOCH: the time of all files in it.
"""

from __future__ import annotations

import argparse
import ast
import os
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import metadata
from io import BytesIO
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
OTHERS = ("tuf", "securesystemslib", "urllib3")
OURS = ("edge", "federated")
"""Packages of which the files are taken that the agent imports."""
MAIN = """\
import sys
from edge.agent.command.__main__ import main
sys.exit(main())
"""


def main() -> None:
    """Read the command line and write."""
    from lite_runtime._files import write_atomically

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, help="where to write")
    parser.add_argument("--targets", nargs="*", default=[], metavar="NAME", help="of kernels, of Linux: linux-x86_64")
    given = parser.parse_args()
    content = archive(given.targets)
    write_atomically(given.file, content, mode=0o755)
    print(f"{given.file}: {len(content)} bytes")


def archive(targets: list[str]) -> bytes:
    """The bytes of the file, with kernels for some targets."""
    files = {"__main__.py": MAIN.encode(), **_ours(), **_runtime(targets), **_described()}
    for name in OTHERS:
        files |= _installed(name)
    # Folders too: Python finds packages without __init__.py by them.
    files |= {f"{folder}/": b"" for name in files for folder in PurePosixPath(name).parents if folder.name}
    made = BytesIO(b"#!/usr/bin/env python3\n")
    made.seek(0, os.SEEK_END)
    at = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), 315_532_800))[:6]
    with zipfile.ZipFile(made, "a", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(name, at)
            entry.external_attr, entry.create_system = (0o40755 if entry.is_dir() else 0o100644) << 16, 3
            packed.writestr(entry, content, zipfile.ZIP_DEFLATED, 9)
    return made.getvalue()


def _ours() -> dict[str, bytes]:
    """The agent's files, and those of ours that they import, wherever an import stands; the runtime is added whole."""
    todo = sorted((ROOT / "edge" / "agent").rglob("*.py"))
    found: dict[str, bytes] = {}
    while todo:
        path = todo.pop()
        name = path.relative_to(ROOT).as_posix()
        if name not in found:
            found[name] = path.read_bytes()
            todo += [other for module in _imports(ast.parse(found[name])) for other in _files(module)]
            todo += [folder / "__init__.py" for folder in path.parents if (folder / "__init__.py").is_file()]
    return found


def _imports(node: ast.AST) -> Iterator[str]:
    """Modules that are imported somewhere in a tree, but for those that only type checkers import."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
    elif not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
        for child in ast.iter_child_nodes(node):
            yield from _imports(child)


def _files(module: str) -> Iterator[Path]:
    """The file of a module of ours, if it is one."""
    parts = module.split(".")
    if parts[0] in OURS:
        path = ROOT.joinpath(*parts)
        yield from (one for one in (path.with_suffix(".py"), path / "__init__.py") if one.is_file())


def _runtime(targets: list[str]) -> dict[str, bytes]:
    """What a device has of the runtime: see `lite_runtime.native.wheel`. The references are files here."""
    from lite_runtime.native import build, wheel

    found = {f"lite_runtime/{name}": Path(build.ROOT, name).read_bytes() for name in wheel.device_files(build.ROOT)}
    if targets:
        wheel.platforms(targets)  # refuses those of several systems
        with tempfile.TemporaryDirectory(prefix="msedge-agent-") as folder:
            wheel.pack(folder, targets)
            found |= {f"lite_runtime/native/prebuilt/{one.name}": one.read_bytes() for one in Path(folder).iterdir()}
    return found


def _described() -> dict[str, bytes]:
    """What `importlib.metadata` finds of us, and our licence."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    told = f"Metadata-Version: 2.4\nName: msedge\nVersion: {version}\nLicense-Expression: Apache-2.0\n"
    folder = f"msedge-{version}.dist-info"
    return {f"{folder}/METADATA": told.encode(), f"{folder}/licenses/LICENSE": (ROOT / "LICENSE").read_bytes()}


def _installed(name: str) -> dict[str, bytes]:
    """The Python of an installed package, with its licence and metadata."""
    listed = metadata.files(name)
    if listed is None:
        sys.exit(f"expected the package {name} with a list of its files, got none; pip install {name}")
    found = {}
    for path in listed:
        text = path.as_posix()
        about = ".dist-info/" in text and (text.endswith("/METADATA") or "/licenses/" in text)
        if about or (text.endswith((".py", "/py.typed")) and ".." not in path.parts):
            found[text] = path.read_binary()
        elif text.endswith((".so", ".pyd", ".dylib")):
            sys.exit(f"expected a package of Python alone, got {name} with {text}")
    return found


if __name__ == "__main__":
    main()
