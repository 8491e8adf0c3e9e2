"""Contents of a device's wheel: the runtime's files without the kernels' source, and every target's compiled kernels.

    python -m lite_runtime.native.wheel FOLDER [TARGET…]     fill a folder with them; needs numba

A target is a name of `lite_runtime.targets`, or one of `SYSTEMS` for all of a system's on a processor (linux-x86_64 by
default). This machine need not be able to run them. Those for macOS and Windows need LLVM's linker besides.

The size matters for a device. The machine code of five targets takes 4 MB; with the code that a target shares with its
dot-product variant stored once, and packed by xz, 0.9 MB (zlib: 1.2). The references, whose source and bytecode take
0.7 MB, are in an archive of 0.07 MB, from which Python imports the few that a model needs (`__path__` in
`lite_runtime/__init__.py`).
"""

from __future__ import annotations

import lzma
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Mapping, Sequence

from lite_runtime import ARCHIVE
from lite_runtime._blake import blake2b
from lite_runtime._files import write_atomically
from lite_runtime.errors import MsedgeError
from lite_runtime.native import build, trust
from lite_runtime.native.libraries.linking import linked
from lite_runtime.native.libraries.loading import description
from lite_runtime.targets import TARGETS, Target, named, with_bases

__all__ = ["DEFAULTS", "SYSTEMS", "device_files", "expanded", "fill", "pack", "platforms"]

SYSTEMS = {
    "linux-x86_64": ("x86_64-unknown-linux-gnu", "manylinux2014_x86_64.musllinux_1_1_x86_64"),
    "linux-aarch64": ("aarch64-unknown-linux-gnu", "manylinux2014_aarch64.musllinux_1_1_aarch64"),
    "linux-armv7": ("armv7-unknown-linux-gnueabihf", "manylinux2014_armv7l.musllinux_1_1_armv7l"),
    "linux-riscv64": ("riscv64-unknown-linux-gnu", "manylinux_2_31_riscv64.musllinux_1_2_riscv64"),
    "macos-arm64": ("aarch64-apple-macosx11.0", "macosx_11_0_arm64"),
    "macos-x86_64": ("x86_64-apple-macosx10.13", "macosx_10_13_x86_64"),
    "windows-x86_64": ("x86_64-w64-windows-gnu", "win_amd64"),
    "windows-arm64": ("aarch64-w64-windows-gnu", "win_arm64"),
}
"""Systems for which there are wheels: the triple of their targets, and pip's name of the platform. Kernels call no C
library, so of Linux any will do.
"""
DEFAULTS = ("linux-x86_64",)
DEVELOPER = frozenset(
    f"native/{name}.py"
    for name in "checking compile objects portable simd user wheel".split()
    + [f"libraries/{name}" for name in "coff contents linking macho".split()]
)
"""Files of the runtime that only compiling needs, in addition to the kernels' source."""
SERVER = frozenset(
    {
        "bundle/processing.py",
        "bundle/signing.py",
        "learning/grouping.py",
        "learning/grouping_rules.py",
        "learning/grouping_walk.py",
        "learning/personal.py",
        "learning/rowwise.py",
    }
)
"""Files that are only needed by a gateway or for creating bundles."""


def device_files(root: str) -> list[str]:
    """The runtime's files that a device needs, as paths from `root`, the package's folder.

    That is all except the kernels' source; tables that planning shares with kernels (opcodes, for example) are in
    separate files.
    """
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in ("__pycache__", "codegen", "kernels", "prebuilt")]
        inside = os.path.relpath(folder, root)
        wanted = (name for name in names if name.endswith(".py") or name == "py.typed")
        found += [os.path.normpath(os.path.join(inside, name)) for name in wanted]
    found = sorted(set(found) - DEVELOPER - SERVER)
    tables: set[str] = set()
    for path in found:
        with open(os.path.join(root, path), encoding="utf-8") as file:
            tables.update(_TABLES.findall(file.read()))
    return [*found, *(f"kernels/{name}.py" for name in sorted({"__init__", *tables}))]


def expanded(names: Sequence[str]) -> list[Target]:
    """The targets with these names, among which a system's stands for all of its own. Raises MsedgeError for others."""
    found: dict[str, Target] = {}
    for name in names:
        own = SYSTEMS.get(name)
        found |= {t.name: t for t in TARGETS if t.triple == own[0]} if own else {name: named(name)}
    return list(found.values())


def _system(target: Target) -> str:
    """The name of a target's system. Raises MsedgeError for a target of which no wheel is made."""
    found = next((name for name, (triple, _) in SYSTEMS.items() if triple == target.triple), None)
    if found is None:
        raise MsedgeError(
            f"{target.name}: expected a target of {', '.join(SYSTEMS)}; no wheel is made for {target.triple}"
        )
    return found


def platforms(names: Sequence[str]) -> str:
    """The platforms in the name of a wheel with the kernels of these targets. Raises MsedgeError if they are of several
    systems or processors, as a device installs one wheel."""
    systems = sorted({_system(target) for target in expanded(names)})
    if len(systems) != 1:
        raise MsedgeError(f"expected targets of one system and processor in a wheel, got those of {', '.join(systems)}")
    return SYSTEMS[systems[0]][1]


def fill(folder: str, names: Sequence[str]) -> None:
    """Fill `folder` with what a device installs as `lite_runtime`: its files, and the kernels of the given targets
    (`expanded`)."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    with zipfile.ZipFile(os.path.join(folder, ARCHIVE), "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in device_files(build.ROOT):
            source, copy = os.path.join(build.ROOT, path), os.path.join(folder, path)
            if path.startswith("reference"):
                entry = zipfile.ZipInfo(path)  # without the file's time, so that equal files give equal bits
                entry.external_attr = 0o644 << 16
                with open(source, "rb") as file:
                    archive.writestr(entry, file.read(), zipfile.ZIP_DEFLATED, 9)
            else:
                os.makedirs(os.path.dirname(copy), exist_ok=True)
                shutil.copyfile(source, copy)
    pack(os.path.join(folder, "native", "prebuilt"), names)


_TABLES = re.compile(r"^\s*from lite_runtime\.kernels(?:\.| import )(\w+)", re.MULTILINE)
"""Matches an import from the kernels' folder."""


def pack(into: str, names: Sequence[str]) -> None:
    """Write the kernels of each given target into a folder, which becomes `build.NATIVE` on a device: `<target>.xz`,
    or a library and its description (`libraries/loading.py`).

    A family whose code is the same for one of the target's bases is packed once, with the base.
    """
    targets = expanded(names)
    for target in targets:
        build.prepare(target=target)
    whole = {target.name: _images(target) for target in targets}
    images = {}
    for target in targets:
        bases = [whole[base.name] for base in with_bases(target)[1:] if base.name in whole]
        images[target.name] = {f: code for f, code in whole[target.name].items() if all(b[f] != code for b in bases)}
    identity = _identity(images)
    os.makedirs(into, exist_ok=True)
    for target in targets:
        own = images[target.name]
        for suffix, content in (_library if target.library else _packed)(target, own, identity).items():
            write_atomically(os.path.join(into, f"{target.name}{suffix}"), content)


Images = Mapping[str, tuple[bytes, Mapping[str, int]]]
"""Code, or an object file, and kernels of a target's families."""


def _packed(target: Target, own: Images, identity: bytes) -> dict[str, bytes]:
    content = build.image_file(own, identity.hex())
    head = build.PACKED_HEAD.pack(build.PACKED, identity, len(content))
    return {".xz": head + lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)}


def _library(target: Target, own: Images, identity: bytes) -> dict[str, bytes]:
    made = linked(target, own)
    described = description(identity.hex(), made, {family: list(kernels) for family, (_, kernels) in own.items()})
    return {target.library: made, ".txt": described}


def _images(target: Target) -> Images:
    made: dict[str, tuple[bytes, Mapping[str, int]]] = {}
    for family in build.families():
        path = build._path(family, target)
        with trust.opened(path) as file:
            code, kernels = build.ImageFile(file, path).code(family)
            made[family] = bytes(code), dict(kernels)
    return made


def _identity(images: Mapping[str, Images]) -> bytes:
    """A digest of everything that determines a device's results: the runtime's files and every target's kernels."""
    h = blake2b(digest_size=16)
    for path in device_files(build.ROOT):
        with open(os.path.join(build.ROOT, path), "rb") as file:
            h.update(path.encode() + b"\0" + file.read())
    for name, own in sorted(images.items()):
        for family, (code, kernels) in sorted(own.items()):
            h.update(f"{name} {family} {sorted(kernels.items())}".encode() + code)
    return h.digest()


if __name__ == "__main__":
    fill(sys.argv[1], sys.argv[2:] or DEFAULTS)
