"""Kernel source to native code, kept. The only file that knows how.

A family (`lite_runtime/kernels/<family>.py`) becomes one *image*: position-independent machine code with its constants
behind it, every reference inside resolved, nothing outside needed. Loading is one mmap; numba and llvmlite make images
and are never needed to use one. Recipe (docs/decisions/0004): Numba at optimisation 0 -> LLVM text -> one module of
internal functions with our calling convention -> the target's own pass pipeline -> object -> image.

Images lie in the user's cache folder (MSEDGE_CACHE, else XDG_CACHE_HOME/msedge, else ~/.cache/msedge), written
atomically, named by a digest of everything they depend on: this file, simd.py, target.py, the family's source, the
target, the versions of numba and llvmlite.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import mmap
import os
import re
import struct
import sys
import time
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np

from lite_runtime._blake import blake2b
from lite_runtime._files import write_atomically
from lite_runtime.errors import MissingExtraError, MsedgeError
from lite_runtime.target import Target, host

__all__ = ["BuildError", "Image", "available", "cache_folder", "families", "image", "kept", "prepare"]

_HERE = os.path.dirname(os.path.abspath(__file__))
_MAGIC = b"MSKIMG01"
_PAGE = 4096


class BuildError(MsedgeError):
    """Kernels could not be compiled or the kept image is unusable."""


class Image:
    """One family's machine code in memory. `addresses`: kernel name -> address, valid while the image lives.

    Raises BuildError for a file that is not whole.
    """

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            head = file.read(_PAGE)
            try:
                assert head.startswith(_MAGIC)
                length, text = struct.unpack_from("<II", head, len(_MAGIC))
                header = json.loads(head[16 : 16 + length])
                # Private and executable, as a shared library's text is.
                self._map = mmap.mmap(
                    file.fileno(), text, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC, offset=_PAGE
                )
                assert _digest(self._map) == header["digest"]
            except (AssertionError, ValueError, KeyError, struct.error):
                raise BuildError(f"{path} is damaged; delete it and run again") from None
        base = np.frombuffer(self._map, np.uint8).ctypes.data
        self.addresses: Mapping[str, int] = {name: base + offset for name, offset in header["kernels"].items()}


def _digest(code: bytes | mmap.mmap) -> str:
    return blake2b(code, digest_size=16).hexdigest()


def cache_folder() -> str:
    """Where kernels are kept between runs."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("MSEDGE_CACHE") or os.path.join(home, "msedge")


@cache
def families() -> tuple[str, ...]:
    """Names of all kernel families."""
    names = os.listdir(os.path.join(_HERE, "kernels"))
    return tuple(sorted(n[:-3] for n in names if n.endswith(".py") and not n.startswith("_")))


@cache
def _compiler() -> str:
    """Versions of the installed compiler, found without importing it; "" where there is none."""
    spec = importlib.util.find_spec("numba")
    if spec is None or not spec.submodule_search_locations:
        return ""
    site = os.path.dirname(spec.submodule_search_locations[0])
    names = (name for name in os.listdir(site) if name.startswith(("numba-", "llvmlite-")) and name.endswith("info"))
    return " ".join(sorted(names))


_IMPORT = re.compile(r"^from lite_runtime\.(kernels\.\w+|simd|target) import", re.MULTILINE)
_IMPORT_MODULES = re.compile(r"^from lite_runtime\.kernels import ([\w, ]+)$", re.MULTILINE)


def _source(module: str) -> bytes:
    with open(os.path.join(_HERE, *module.split(".")) + ".py", "rb") as file:
        return file.read()


@cache
def _sources(module: str) -> tuple[str, ...]:
    """A module of the runtime and all it imports of simd, target and the other kernels, sorted."""
    found = {module}
    text = _source(module).decode()
    modules = [f"kernels.{name.strip()}" for names in _IMPORT_MODULES.findall(text) for name in names.split(",")]
    for imported in (*_IMPORT.findall(text), *modules):
        found.update(_sources(imported))
    return tuple(sorted(found))


@cache
def _path(family: str, target: Target) -> str:
    facts = (target.triple, target.cpu, target.features, target.lanes)
    h = blake2b(repr(facts).encode() + _compiler().encode(), digest_size=12)
    for source in ("build", *_sources(f"kernels.{family}")):
        h.update(_source(source))
    return os.path.join(cache_folder(), "kernels", f"{target.name}-{family}-{h.hexdigest()}.img")


def kept() -> dict[str, bool]:
    """Every family of this machine's target and whether its image is in the cache; empty on a machine of no target."""
    target = host()
    return {} if target is None else {family: os.path.exists(_path(family, target)) for family in families()}


def available() -> bool:
    """Whether native code can run here: this machine is a target and its kernels are kept or can be compiled."""
    return host() is not None and (bool(_compiler()) or all(kept().values()))


_images: dict[str, Image] = {}


def image(family: str) -> Image:
    """The family's code, from the cache or compiled now (about a second a family)."""
    if family not in _images:
        target = host()
        if target is None:
            raise BuildError("this machine is no target of the native kernels; use backend='reference'")
        path = _path(family, target)
        if not os.path.exists(path):
            prepare([family])
        try:
            _images[family] = Image(path)
        except BuildError:
            if not _compiler():
                raise
            os.unlink(path)
            prepare([family])
            _images[family] = Image(path)
    return _images[family]


def prepare(wanted: Iterable[str] | None = None, *, jobs: int | None = None) -> list[str]:
    """Compile the families that are not kept yet (default: of all); their names. Progress goes to stderr."""
    target = host()
    if target is None:
        return []
    import subprocess

    missing = [f for f in (families() if wanted is None else wanted) if not os.path.exists(_path(f, target))]
    if not missing:
        return []
    if not _compiler():
        raise MissingExtraError(
            "numba", "jit", f"it compiles the kernels of {', '.join(missing)}, none kept on this machine"
        )
    jobs = min(jobs or os.cpu_count() or 1, len(missing))
    started = time.perf_counter()
    print(f"msedge: compiling kernels for {target.name}, once: {' '.join(missing)}", file=sys.stderr, flush=True)
    # A process of its own: Numba reads NUMBA_OPT when imported, and a compiler's memory goes back when it ends.
    environment = {**os.environ, "NUMBA_OPT": "0", "NUMBA_DISABLE_JIT": "0", "MSEDGE_TARGET": target.name}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (os.path.dirname(_HERE), os.environ.get("PYTHONPATH"))))
    shares = _shares(missing, jobs)
    command = [sys.executable, "-W", "ignore", "-m", "lite_runtime.build"]
    running = [
        subprocess.Popen(
            [*command, *share], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for share in shares
    ]
    for share, process in zip(shares, running, strict=True):
        output, _ = process.communicate()
        if process.returncode:
            raise BuildError(f"compiling {' '.join(share)} failed:\n{output.strip()}")
    print(f"msedge: kernels kept after {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)
    return missing


def _shares(wanted: Iterable[str], jobs: int) -> list[list[str]]:
    """Families for each process; a family's source length stands for its compile time, largest first."""
    loads: list[tuple[int, list[str]]] = [(0, []) for _ in range(jobs)]
    for size, family in sorted((len(_source(f"kernels.{f}")), f) for f in wanted)[::-1]:
        load, share = min(loads, key=lambda entry: entry[0])
        loads[loads.index((load, share))] = (load + size, [*share, family])
    return [share for _, share in loads]


# -- compiling: a process of its own ----------------------------------------------------------------------------------


def _compile(family: str, target: Target) -> tuple[bytes, list[str]]:
    """A family's ELF object and the names of its kernels."""
    import llvmlite.binding as llvm
    from numba import njit

    from lite_runtime.simd import kernel_options

    module = importlib.import_module(f"lite_runtime.kernels.{family}")
    marked = {
        name: f for name, f in vars(module).items() if hasattr(f, "msedge_kernel") and f.__module__ == module.__name__
    }
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    whole = llvm.parse_assembly("")
    for name, function in marked.items():
        sig = function.msedge_kernel["args"]
        overload = njit(sig, **kernel_options(function))(function).overloads[sig.args]
        text = _freestanding(str(overload.library.get_llvm_str()), overload.fndesc.llvm_func_name, name)
        whole.link_in(llvm.parse_assembly(text))
    for defined in whole.functions:
        if not defined.is_declaration and defined.name not in marked:
            defined.linkage = "internal"
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, reloc="pic", codemodel="small"
    )
    whole.triple, whole.data_layout = target.triple, str(machine.target_data)
    tuning = llvm.create_pipeline_tuning_options(speed_level=3)
    tuning.loop_vectorization = tuning.slp_vectorization = True
    passes = llvm.create_pass_builder(machine, tuning)
    passes.getModulePassManager().run(whole, passes)
    if "MSEDGE_KEEP_ASM" in os.environ:
        with open(os.path.join(os.environ["MSEDGE_KEEP_ASM"], f"{family}.s"), "w", encoding="utf-8") as file:
            file.write(machine.emit_assembly(whole))
    return machine.emit_object(whole), list(marked)


_SCALARS = {"int64": "i64", "float32": "float"}


def _freestanding(text: str, mangled: str, name: str) -> str:
    """Numba's module for one function -> one whose only visible definition is `void name(arguments)`."""
    quoted = f'@"{mangled}"' if f'@"{mangled}"' in text else f"@{mangled}"
    match = re.search(rf"define [^\n]*{re.escape(quoted)}\(([^\n]*)\) [^\n]*{{", text) or re.search(
        rf"define [^\n]*{re.escape(quoted)}\(([^\n]*)\)\s*{{", text
    )
    assert match, f"no definition of {mangled}"
    kinds = [("ptr" if a.strip().startswith("ptr") else a.strip().split()[0]) for a in match.group(1).split(",")][2:]
    text = re.sub(r"\bnoinline\b", "alwaysinline", text)
    text = re.sub(r"= common (?:local_unnamed_addr )?global", "= internal global", text)
    # Else LLVM turns loops into calls of memset and memcpy.
    text = re.sub(r"^(define .*\))", r'\1 "no-builtins"', text, flags=re.MULTILINE)
    text = re.sub(r'"target-cpu"="[^"]*"|"target-features"="[^"]*"', "", text)
    wrapped = ", ".join(f"{kind} %a{i}" for i, kind in enumerate(kinds))
    return f"""{text}
define void @{name}({wrapped}) "no-builtins" {{
  %status = alloca ptr
  %error = alloca ptr
  %ignored = call i32 {quoted}(ptr %status, ptr %error{"".join(", " + a for a in wrapped.split(", ") if a)})
  ret void
}}
"""


# -- object to image --------------------------------------------------------------------------------------------------

_PC32, _PLT32 = 2, 4


def _link(obj: bytes, names: list[str]) -> tuple[bytes, dict[str, int]]:
    """Lay an x86-64 ELF object's sections out and resolve its references to itself; code and kernel offsets.

    Only PC-relative references exist in such code (System V ABI, AMD64 supplement, table 4.9); anything else, or a
    symbol defined elsewhere, is refused by name.
    """
    offset, entry, count, strings = *struct.unpack_from("<Q", obj, 40), *struct.unpack_from("<HHH", obj, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", obj, offset + i * entry) for i in range(count)]
    names_at = sections[strings][4]

    def string(at: int) -> str:
        return obj[at : obj.index(b"\0", at)].decode()

    placed: dict[int, int] = {}
    image_bytes = bytearray()
    for i, (_, kind, flags, _, at, size, _, _, align, _) in enumerate(sections):
        if flags & 2 and kind in (1, 8, 14):  # allocated: code, constants, zeros
            image_bytes += bytes(-len(image_bytes) % max(align, 64))
            placed[i] = len(image_bytes)
            image_bytes += obj[at : at + size] if kind != 8 else bytes(size)
    symbols = next(s for s in sections if s[1] == 2)
    table = [struct.unpack_from("<IBBHQQ", obj, symbols[4] + 24 * i) for i in range(symbols[5] // 24)]
    symbol_names = sections[symbols[6]][4]
    for section in sections:
        if section[1] != 4 or section[7] not in placed:
            continue
        for at in range(section[4], section[4] + section[5], 24):
            where, info, addend = struct.unpack_from("<QQq", obj, at)
            kind, symbol = info & 0xFFFFFFFF, table[info >> 32]
            name = string(symbol_names + symbol[0])
            if symbol[3] not in placed:
                raise BuildError(
                    f"kernel code needs {name or 'an unnamed symbol'} from outside; kernels call no library"
                )
            if kind not in (_PC32, _PLT32):
                raise BuildError(
                    f"relocation type {kind} of {string(names_at + section[0])} against {name}: expected PC32"
                )
            spot = placed[section[7]] + where
            value = placed[symbol[3]] + symbol[4] + addend - spot
            image_bytes[spot : spot + 4] = struct.pack("<i", value)
    found = {string(symbol_names + s[0]): placed[s[3]] + s[4] for s in table if s[3] in placed}
    return bytes(image_bytes), {name: found[name] for name in names}


def _keep(path: str, code: bytes, kernels: dict[str, int], target: Target) -> None:
    """Write an image so that no reader ever sees half of it."""
    code += bytes(-len(code) % _PAGE)
    header = json.dumps({"kernels": kernels, "target": target.name, "digest": _digest(code)}).encode()
    assert len(header) + 16 <= _PAGE, "a family's kernel names must fit one page"
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    write_atomically(path, (_MAGIC + struct.pack("<II", len(header), len(code)) + header).ljust(_PAGE, b"\0") + code)


def _main(wanted: list[str]) -> None:
    target = host()
    assert target is not None
    for family in wanted:
        path = _path(family, target)
        if not os.path.exists(path):
            obj, names = _compile(family, target)
            _keep(path, *_link(obj, names), target)


def function(family: str, name: str, *arguments: Any) -> Any:
    """A ctypes function for an entry point (not a kernel): arguments are ctypes types."""
    return ctypes.CFUNCTYPE(None, *arguments)(image(family).addresses[name])


if __name__ == "__main__":
    _main(sys.argv[1:])
