"""Makes a target's shared library of its families' object files, with LLVM's linker (`lld`), on any machine.

What comes out is checked: it exports the kernels and nothing else, uses no symbol of another library, and has no place
that a system would have to write an address to; on macOS it is signed ad hoc, which 64-bit Arm demands.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from lite_runtime.native.images import BuildError
from lite_runtime.native.libraries import coff, macho
from lite_runtime.targets import Target

__all__ = ["linked", "linker"]

SYSTEM = "/usr/lib/libSystem.B.dylib"
"""The library that every program of Apple's systems has: newer versions of dyld load none that is linked with none."""
_LLVM = "/usr/lib"
"""Where Debian has one folder for each version of LLVM, whose programs may not be on PATH."""
_STUB = """--- !tapi-tbd
tbd-version: 4
targets: [ x86_64-macos, arm64-macos ]
install-name: {}
...
"""
_PROBES = {
    # push rax, rcx; rcx = rsp before the call; once a page: rcx -= 4096, test [rcx], rax -= 4096, ja; pop rcx, rax; ret
    "x86_64": ("___chkstk_ms", "50 51 488d4c2418 4881e900100000 8509 482d00100000 77ef 59 58 c3"),
    # x16 = 16 * x15, x17 = sp; once a page: x17 -= 4096, ldr xzr, [x17], x16 -= 4096, b.hi; ret
    "aarch64": ("__chkstk", "f0ed7cd3 f1030091 310640d1 3f0240f9 100640f1 a8ffff54 c0035fd6"),
}
"""What code for Windows calls where a function's frame is larger than a page: it reads from every page of the frame,
as Windows makes pages of a stack in their order alone. rax, x15 * 16: bytes; no register but x16 and x17 changes."""


def linker(name: str) -> str:
    """The path of `ld64.lld` or `lld-link`. Raises BuildError, with what to install, if there is none."""
    versions = Path(_LLVM).glob(f"llvm-*/bin/{name}")
    newest = max(versions, key=lambda path: [int(number) for number in re.findall(r"\d+", str(path))], default="")
    found = shutil.which(name) or str(newest)
    if not found:
        raise BuildError(f"expected {name}, which links kernels for this system, got none: install LLVM's lld")
    return found


def linked(target: Target, families: Mapping[str, tuple[bytes, Mapping[str, int]]]) -> bytes:
    """The library with these families' object files. families: as `build` keeps them, the object and its kernels.
    Raises BuildError if it cannot be linked, or is not as described above."""
    names = [f"{family}.{kernel}" for family, (_, kernels) in sorted(families.items()) for kernel in kernels]
    with tempfile.TemporaryDirectory(prefix="msedge-link-") as scratch:
        folder = Path(scratch)
        for family, (content, _) in families.items():
            (folder / f"{family}.o").write_bytes(content)
        objects = sorted(f"{family}.o" for family in families)
        words = (_for_macos if target.library == ".dylib" else _for_windows)(target, folder, names)
        done = subprocess.run(
            [*words, *objects], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode:
            raise BuildError(f"linking {target.name}{target.library} failed:\n{done.stdout.strip()}")
        made = (folder / f"{target.name}{target.library}").read_bytes()
    _check(target, made, names)
    return made


def _for_macos(target: Target, folder: Path, names: list[str]) -> list[str]:
    version = target.triple.partition("macosx")[2]
    (folder / "exports").write_text("".join(f"_{name}\n" for name in names))
    (folder / "libSystem.tbd").write_text(_STUB.format(SYSTEM))
    return [
        *(linker("ld64.lld"), "-dylib", "-arch", "arm64" if target.processor == "aarch64" else target.processor),
        *("-platform_version", "macos", version, version, "-install_name", f"@rpath/{target.name}.dylib"),
        *("-exported_symbols_list", "exports", "-adhoc_codesign", "-no_fixup_chains", "-x", "-S"),
        *("-o", f"{target.name}.dylib", "libSystem.tbd"),
    ]


def _for_windows(target: Target, folder: Path, names: list[str]) -> list[str]:
    machine = {"x86_64": "x64", "aarch64": "arm64"}[target.processor]
    probe, code = _PROBES[target.processor]
    (folder / "probe.obj").write_bytes(coff.object_with(target.processor, probe, bytes.fromhex(code)))
    (folder / "exports.def").write_text("EXPORTS\n" + "".join(f"  {name}\n" for name in names))
    return [
        *(linker("lld-link"), "/dll", "/noentry", "/nodefaultlib", "/noimplib", "/brepro", f"/machine:{machine}"),
        *("/def:exports.def", f"/out:{target.name}.dll", "probe.obj"),
    ]


def _check(target: Target, made: bytes, names: list[str]) -> None:
    apple = target.library == ".dylib"
    found = (macho if apple else coff).contents(made)
    needs = {*found.imports, *found.libraries} - ({SYSTEM} if apple else set())
    expected = {
        "the processor": (target.processor, found.processor),
        "exports": (sorted(names), sorted(found.exports)),
        "symbols and libraries from outside": ([], sorted(needs)),
        "bytes of places to write addresses to": (0, found.fixed),
        "a signature of": (f"{target.name}.dylib" if apple else "", macho.signature(made) if apple else ""),
    }
    for what, (wanted, got) in expected.items():
        if wanted != got:
            raise BuildError(f"linking {target.name}{target.library}: expected {what} {wanted}, got {got}")
