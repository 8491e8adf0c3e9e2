"""Where a kernel family's native code comes from. No compiler is imported here.

    native/<target>.xz   built with the runtime and part of its wheel: `lite_runtime.native.wheel` packs it
    the user's cache     MSEDGE_CACHE, else XDG_CACHE_HOME/msedge, else ~/.cache/msedge
    a compiler           `lite_runtime.native.compile`, in separate processes, if numba is installed; the result
                         is stored in the cache

On macOS and Windows it is a shared library that came with the runtime (`libraries/`), or none. Files in the cache are
image files (`images.py`), named by a digest of everything they depend on and written atomically.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, BinaryIO

from lite_runtime import _inside
from lite_runtime._blake import blake2b
from lite_runtime._extras import install_line
from lite_runtime.errors import MissingExtraError, MsedgeError
from lite_runtime.native import trust
from lite_runtime.native.images import MAGIC, BuildError, Image, ImageFile, image_file
from lite_runtime.native.libraries.loading import Library, library
from lite_runtime.native.target import host
from lite_runtime.targets import AHEAD, TARGETS, Shape, Target, with_bases

__all__ = [
    "BuildError",
    "Image",
    "ImageFile",
    "NotCompiledError",
    "addresses",
    "available",
    "cache_folder",
    "code_for",
    "families",
    "function",
    "identity",
    "image",
    "image_file",
    "kept",
    "prepare",
    "remedy",
    "uncompiled",
]

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder of the package `lite_runtime`."""
NATIVE = os.path.join(ROOT, "native", "prebuilt")
"""The folder of kernels that came with the runtime."""
PACKED = b"MSKPCK01"
"""The first bytes of a packed image file."""
PACKED_HEAD = struct.Struct("<8s16sQ")
"""Magic, the runtime's identity, size of the image file in the xz stream that follows."""


class NotCompiledError(BuildError):
    """Kernels are needed that are not compiled yet, where nobody may wait for them: see `uncompiled`."""

    def __init__(self, families: Sequence[str]) -> None:
        super().__init__(f"the kernels of {', '.join(families)} are not compiled yet")
        self.families = tuple(families)


# -- kernels that came with the runtime --------------------------------------------------------------------------------


@cache
def _native(target: str) -> ImageFile | None:
    """The runtime's own kernels for a target, unpacked into the cache once; None if the runtime came without them."""
    packed = os.path.join(NATIVE, f"{target}.xz")
    try:
        with _inside.opened(packed) as file:
            head = file.read(PACKED_HEAD.size)
    except FileNotFoundError:
        return None
    if len(head) < PACKED_HEAD.size:
        raise _packed_damaged(packed, f"a header of {PACKED_HEAD.size} bytes", f"{len(head)} bytes")
    magic, digest, size = PACKED_HEAD.unpack(head)
    if magic != PACKED:
        raise _packed_damaged(packed, f"{PACKED!r} at its start", repr(magic))
    path = os.path.join(cache_folder(), "kernels", f"{target}-{digest.hex()}.img")
    try:
        with trust.opened(path) as file:
            return _checked(file, path, digest.hex())
    except (OSError, MsedgeError):  # missing, damaged or not trusted: unpack again, or in memory
        return _unpacked(packed, size, path, digest.hex())


def _packed_damaged(packed: str, expected: str, got: str) -> BuildError:
    return BuildError(f"{packed} is damaged: expected {expected}, got {got}; install the runtime again")


def _checked(file: BinaryIO, shown: str, identity: str) -> ImageFile:
    held = ImageFile(file, shown)
    if held.identity != identity:
        raise BuildError(
            f"{shown}: expected kernels of the runtime {identity}, got those of {held.identity or 'none'}; "
            "delete it and run again"
        )
    return held


def _unpacked(packed: str, size: int, path: str, identity: str) -> ImageFile:
    """The image file in a packed one, stored at `path` if that can be written and trusted, otherwise in memory."""
    try:
        import lzma
    except ImportError:
        raise BuildError("this Python has no lzma, which kernels are packed with; install one that has") from None
    try:
        with _inside.opened(packed) as file:
            content = lzma.LZMADecompressor().decompress(file.read()[PACKED_HEAD.size :], size)
    except (EOFError, lzma.LZMAError) as problem:
        raise _packed_damaged(packed, "an xz stream", str(problem)) from None
    if len(content) != size:
        raise _packed_damaged(packed, f"{size} bytes packed", f"{len(content)}")
    try:
        trust.write(path, content)
        with trust.opened(path) as file:
            return _checked(file, path, identity)
    except (OSError, MsedgeError) as problem:  # a read-only home: every process unpacks it, in milliseconds
        if isinstance(problem, trust.TrustError):
            trust.warn(problem, "kernels are unpacked into memory at each start")
        with open(os.memfd_create("msedge-kernels"), "w+b") as file:
            file.write(content)
            file.seek(0)
            return _checked(file, f"{packed}, unpacked,", identity)


def _natives(target: Target) -> tuple[ImageFile | Library, ...]:
    """The target's own file, then those of its bases, which have the code that it shares with them."""
    found = (library(NATIVE, one) if one.library else _native(one.name) for one in with_bases(target))
    return tuple(file for file in found if file is not None)


def identity() -> str:
    """A digest of the runtime as it was built, including kernels; "" for a runtime whose kernels are compiled here."""
    target = host()
    files = _natives(target) if target else ()
    return files[0].identity if files else ""


# -- kernels of the cache ----------------------------------------------------------------------------------------------


def cache_folder() -> str:
    """The folder where kernels are stored between runs."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("MSEDGE_CACHE") or os.path.join(home, "msedge")


@cache
def families() -> tuple[str, ...]:
    """Names of the kernel families whose source is installed, or which came with the runtime."""
    there = set(_inside.modules(os.path.join(ROOT, "kernels")))
    target = host()
    return tuple(sorted(there.union(*(file.families for file in _natives(target))) if target else there))


@cache
def _compiler() -> str:
    """Versions of the installed compiler, found without importing it; "" if there is none, or this runtime came without
    what compiling needs."""
    import importlib.util

    if not os.path.exists(os.path.join(ROOT, "native", "compile.py")):
        return ""
    spec = importlib.util.find_spec("numba")
    if spec is None or not spec.submodule_search_locations:
        return ""
    site = os.path.dirname(spec.submodule_search_locations[0])
    names = (name for name in os.listdir(site) if name.startswith(("numba-", "llvmlite-")) and name.endswith("info"))
    return " ".join(sorted(names))


# Not compiled here, which would take 1 ms: only runtimes that compile their kernels search for imports. Of the table of
# targets, a target's own row counts, not all of it.
_IMPORT = r"(?m)^from lite_runtime\.(kernels\.\w+|steps\.\w+|native\.simd|native\.codegen\.operations) import"
_IMPORT_MODULES = r"(?m)^from lite_runtime\.kernels import ([\w, ]+)$"


def _source(module: str) -> bytes:
    with open(os.path.join(ROOT, *module.split(".")) + ".py", "rb") as file:
        return file.read()


@cache
def _sources(module: str) -> tuple[str, ...]:
    """A module of the runtime and all modules it imports among simd, operations, steps and other kernels, sorted."""
    found = {module}
    text = _source(module).decode()
    modules = [f"kernels.{name.strip()}" for names in re.findall(_IMPORT_MODULES, text) for name in names.split(",")]
    for imported in (*re.findall(_IMPORT, text), *modules):
        found.update(_sources(imported))
    return tuple(sorted(found))


@cache
def _portable_path(family: str, shape: Shape) -> str:
    """The path in the cache of a family's bitcode for targets of one shape: named by the recipe, its sources and the
    compiler's versions."""
    h = blake2b(f"{shape} {_compiler()}".encode(), digest_size=12)
    for source in ("native.portable", "native.codegen.contraction", *_sources(f"kernels.{family}")):
        h.update(_source(source))
    return os.path.join(cache_folder(), "kernels", f"{shape}-{family}-{h.hexdigest()}.bc")


@cache
def _path(family: str, target: Target) -> str:
    """The path in the cache of a family's code: named by what its bitcode depends on, the target, and what makes the
    one of the other."""
    facts = (MAGIC, target.triple, target.cpu, target.features, target.dot)
    portable = os.path.basename(_portable_path(family, target.shape_of(family)))
    return os.path.join(cache_folder(), "kernels", f"{target.name}-{family}-{_recipe((portable, facts), target)}.img")


def _recipe(facts: tuple[Any, ...], target: Target) -> str:
    """A digest of facts and of what makes a target's code of bitcode."""
    h = blake2b(repr(facts).encode(), digest_size=12)
    others = {t.bodies for t in (*TARGETS, *AHEAD)} - {target.bodies}
    for name in sorted(os.listdir(os.path.join(ROOT, "native", "codegen"))):
        if name.endswith(".py") and name[:-3] not in others:
            h.update(_source(f"native.codegen.{name[:-3]}"))
    return h.hexdigest()


def object_path(kernels: Sequence[str], loops: Sequence[str], target: Target) -> str:
    """The path in the cache of the object file with these kernels and loops (`objects.py`)."""
    families = dict.fromkeys(kernel.partition(".")[0] for kernel in kernels)
    portable = [os.path.basename(_portable_path(family, target.shape_of(family))) for family in families]
    source = blake2b(_source("native.objects"), digest_size=12).hexdigest()
    facts = (target.triple, target.cpu, target.features, target.dot, source, *portable, *kernels, *loops)
    return os.path.join(cache_folder(), "kernels", f"{target.name}-{_recipe(facts, target)}.o")


def read_portable(family: str, shape: Shape) -> bytes | None:
    """A family's bitcode in the cache; None if it is not there, or damaged."""
    return read_kept(_portable_path(family, shape))


def write_portable(family: str, shape: Shape, bitcode: bytes) -> None:
    """Keep a family's bitcode in the cache."""
    write_kept(_portable_path(family, shape), bitcode)


def read_kept(path: str) -> bytes | None:
    """What `write_kept` wrote; None if it is not there, or damaged."""
    try:
        with trust.opened(path) as file:
            digest, content = file.read(16), file.read()
    except OSError:
        return None
    return content if blake2b(content, digest_size=16).digest() == digest else None


def write_kept(path: str, content: bytes) -> None:
    """Write a file of the cache atomically, with a digest."""
    trust.write(path, blake2b(content, digest_size=16).digest() + content)


def kept() -> dict[str, str]:
    """Every family of this machine's target and where its code is: "wheel", "cache", or "" if it was not built yet.

    Empty on a machine without a target.
    """
    target = host()
    if target is None:
        return {}
    own = {family for file in _natives(target) for family in file.families}
    return {
        family: "wheel" if family in own else "cache" if _compiled(family, target) else ""
        for family in families()
    }


def _compiled(family: str, target: Target) -> bool:
    """Whether the cache has code of a family that this machine can run: no library is made where it would run, which
    would take a linker that few machines have."""
    return not target.library and os.path.exists(_path(family, target))


def available() -> bool:
    """Whether native code can run here: this machine has a target, and its kernels exist or can be compiled."""
    target = host()
    if target is None or _natives(target):
        return target is not None
    return not target.library and (bool(_compiler()) or (bool(families()) and all(kept().values())))


def remedy() -> str:
    """How this machine gets native kernels where none are available."""
    target = host()
    if target is not None and target.library:
        return f"install the wheel of msedge-runtime for {sys.platform}"
    return install_line("jit", ["numba"])


_images: dict[str, Image] = {}
_WAITS: ContextVar[bool] = ContextVar("waits", default=True)
"""Whether code that is needed and missing is compiled, while the caller waits."""


@contextmanager
def uncompiled() -> Iterator[None]:
    """In this context, on this thread, NotCompiledError is raised where kernels would have to be compiled."""
    token = _WAITS.set(False)
    try:
        yield
    finally:
        _WAITS.reset(token)


def addresses(kernels: Sequence[str]) -> list[int]:
    """The addresses of kernels named FAMILY.KERNEL; all families that are missing are compiled at the same time. Raises
    as `image` does."""
    names = [kernel.split(".") for kernel in kernels]
    target = host()
    if target is not None:
        own = {family for file in _natives(target) for family in file.families}
        wanted = dict.fromkeys(family for family, _ in names if family not in _images and family not in own)
        _compile([family for family in wanted if not os.path.exists(_path(family, target))])
    return [image(family).addresses[name] for family, name in names]


def _compile(wanted: Sequence[str]) -> None:
    if wanted and not _WAITS.get():
        raise NotCompiledError(wanted)
    if wanted:
        prepare(wanted)


def image(family: str) -> Image:
    """The family's code: the runtime's own, else from the cache, else compiled now (a second or more per family).

    Raises BuildError if it cannot be compiled or the stored code is damaged, TrustError if others can write to the
    cache, MissingExtraError if there is neither code nor a compiler.
    """
    if family not in _images:
        target = host()
        if target is None:
            raise BuildError("this machine is no target of the native kernels; use backend='reference'")
        native = next((file for file in _natives(target) if family in file.families), None)
        if native is None and target.library:
            raise BuildError(f"the library of {target.name} has no kernels of {family}: {remedy()}")
        made = native.image(family) if native else _cached(family, target)
        _images.setdefault(family, made)  # the first one stays: another thread's plans may have its addresses already
    return _images[family]


def _cached(family: str, target: Target) -> Image:
    """A family's code in the cache; compiled if it is missing, and compiled again if it is damaged."""
    path = _path(family, target)
    if not os.path.exists(path):
        _compile([family])
    try:
        return _kept_image(family, path)
    except BuildError:
        if not _compiler():
            raise
    os.unlink(path)
    _compile([family])
    return _kept_image(family, path)


def _kept_image(family: str, path: str) -> Image:
    with trust.opened(path) as file:
        return ImageFile(file, path).image(family)


def code_for(families: Sequence[str], target: Target) -> dict[str, bytes]:
    """Families' code for any target, compiled if it is not in the cache. Raises as `image` does."""
    prepare(families, target=target)
    found = {}
    for family in families:
        with trust.opened(path := _path(family, target)) as file:
            found[family] = bytes(ImageFile(file, path).code(family)[0])
    return found


def function(family: str, name: str, *arguments: Any) -> Any:
    """A ctypes function for an entry point (not a kernel); the arguments are ctypes types."""
    return ctypes.CFUNCTYPE(None, *arguments)(image(family).addresses[name])


def prepare(
    wanted: Iterable[str] | None = None,
    *,
    target: Target | None = None,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    nice: int = 0,
    portable: bool = False,
) -> list[str]:
    """Compile the families (default: all) that are not compiled yet; returns their names. target: any; by default this
    machine's, if it runs what is compiled and no library. `progress` is called now and then with the number of finished
    families and of all; an exception that it raises ends the compilers. Without it, a line is written to stderr when
    compiling begins and when it ends. nice: how far the compilers' priority is lowered. portable: only their bitcode,
    for `objects.py`.
    """
    if target is None:
        target = host()
        if target is None or target.library:
            return []
    paths = {
        family: _portable_path(family, target.shape_of(family)) if portable else _path(family, target)
        for family in (families() if wanted is None else wanted)
        if portable or not any(family in file.families for file in _natives(target))
    }
    missing = [family for family, path in paths.items() if not os.path.exists(path)]
    if not missing:
        return []
    if not _compiler():
        raise MissingExtraError(
            "numba", "jit", f"it compiles the kernels of {', '.join(missing)}, none kept on this machine"
        )
    import subprocess

    trust.make_folder(os.path.dirname(paths[missing[0]]))  # refuse before minutes of compiling, not after
    jobs = min(jobs or os.cpu_count() or 1, len(missing))
    started = time.perf_counter()
    if progress is None:
        print(f"msedge: compiling kernels for {target.name}, once: {' '.join(missing)}", file=sys.stderr, flush=True)
    # In a separate process: Numba reads NUMBA_OPT when imported, and the compiler's memory is freed when it ends.
    environment = {**os.environ, "NUMBA_OPT": "0", "NUMBA_DISABLE_JIT": "0"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (os.path.dirname(ROOT), os.environ.get("PYTHONPATH"))))
    shares = _shares(missing, jobs, target)
    command = [sys.executable, "-W", "ignore", "-m", "lite_runtime.native.compile"]
    command += [*(["--portable"] if portable else []), target.name]
    running = [
        subprocess.Popen(
            [*command, *share],
            env={**environment, "MSEDGE_SHAPE": str(target.shape_of(share[0]))},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for share in shares
    ]
    for process in running if nice and hasattr(os, "setpriority") else ():
        os.setpriority(os.PRIO_PROCESS, process.pid, nice)
    try:
        for share, process in zip(shares, running, strict=True):
            while True:
                try:
                    output, _ = process.communicate(timeout=None if progress is None else 0.2)
                    break
                except subprocess.TimeoutExpired:
                    if progress is not None:
                        progress(sum(os.path.exists(paths[family]) for family in missing), len(missing))
            if process.returncode:
                raise BuildError(f"compiling {' '.join(share)} failed:\n{output.strip()}")
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.communicate()
    if progress is None:
        print(f"msedge: kernels kept after {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)
    else:
        progress(len(missing), len(missing))
    return missing


def _shares(wanted: Iterable[str], jobs: int, target: Target) -> list[list[str]]:
    """Families for each process, all of one shape, largest first; the length of a family's source is the estimate of
    its compile time."""
    by_shape: dict[Shape, list[tuple[int, str]]] = {}
    for family in wanted:
        by_shape.setdefault(target.shape_of(family), []).append((len(_source(f"kernels.{family}")), family))
    loads: list[tuple[int, list[str]]] = []
    for families in sorted(by_shape.values(), key=len):  # the few that have another shape get a process of their own
        own: list[tuple[int, list[str]]] = [(0, []) for _ in range(min(len(families), max(1, jobs - len(loads))))]
        for size, family in sorted(families)[::-1]:
            load, share = min(own, key=lambda entry: entry[0])
            own[own.index((load, share))] = (load + size, [*share, family])
        loads += own
    return [share for _, share in loads]
