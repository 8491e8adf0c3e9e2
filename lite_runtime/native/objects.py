"""Chosen kernels as one relocatable object file, for programs that are linked with them (`converter.ahead`).

It defines one symbol, `msedge_kernels`, as `msedge.h` declares it:

    0    u32        number of kernels
    4    28 bytes   the target's name, ended by a zero byte
    32   32 bytes   SHA-256 of the file in which these bytes are `PLACE`
    64   addresses  of the kernels, in the order asked for: `void (const int64_t *step, const int64_t *bases,
                    int64_t worker, int64_t workers)`

The file is made in a separate process, and kept in the cache.

    python -m lite_runtime.native.objects TARGET LOOP,… KERNEL…
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Collection, Sequence
from hashlib import sha256
from typing import Any

from lite_runtime.native import build
from lite_runtime.native.codegen.link import outside
from lite_runtime.native.codegen.operations import PREFIX
from lite_runtime.native.codegen.retarget import by_one_worker, llvm, object_of
from lite_runtime.native.codegen.support import FUNCTIONS, needed
from lite_runtime.native.libraries import coff, macho
from lite_runtime.targets import AHEAD, TARGETS, Target, named

__all__ = ["SYMBOL", "object_for"]

SYMBOL = "msedge_kernels"
PLACE = sha256(b"the place of the digest of an object file of kernels").digest()


def object_for(kernels: Sequence[str], loops: Sequence[str], target: Target) -> tuple[bytes, bytes]:
    """The object file with these kernels ("family.name"), and its digest. loops: those of elementwise chains that are
    used, as "float32.op3": a chain's kernel has one for every operation and for every type that it loads and stores
    (`kernels/_map.py`). Raises BuildError if it cannot be compiled, MissingExtraError without a compiler, TrustError if
    others can write to the cache."""
    path = build.object_path(kernels, loops, target)
    found = build.read_kept(path)
    if found is None:
        build.prepare(_families(kernels), target=target, portable=True)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((os.path.dirname(build.ROOT), *sys.path))}
        command = [sys.executable, "-W", "ignore", "-m", "lite_runtime.native.objects", target.name]
        command += [",".join(loops), *kernels]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        found = build.read_kept(path)
        if done.returncode or found is None:
            raise build.BuildError(f"compiling {' '.join(kernels)} failed:\n{done.stdout.strip()}")
    digest = sha256(found).digest()
    return found.replace(PLACE, digest), digest


def _families(kernels: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(kernel.partition(".")[0] for kernel in kernels))


def _make(kernels: Sequence[str], loops: Sequence[str], target: Target) -> None:
    """Write the object file, without its digest, to the cache. Only `SYMBOL` is seen from outside."""
    whole = llvm().parse_assembly("")
    for family in _families(kernels):
        bitcode = build.read_portable(family, target.shape_of(family))
        if bitcode is None:
            raise build.BuildError(f"the cache lost the bitcode of {family} while it was needed; run again")
        whole.link_in(llvm().parse_bitcode(_with_loops(bitcode, loops) if family == _CHAINS else bitcode))
    there = {function.name for function in whole.functions}
    if lacking := [name for name in kernels if name not in there]:
        raise build.BuildError(f"expected kernels, got none called {' '.join(lacking)}")
    if target.shape.small:
        by_one_worker(whole, kernels)
    whole.link_in(llvm().parse_assembly(_table(kernels, target)))
    made = _object(whole, target)
    if own := _outside(made) & _OWN:  # only making it shows what the back end calls
        whole.link_in(llvm().parse_assembly(_support(own)))
        made = _object(whole, target)
    if needs := {name for name in _outside(made) if target.linked or not name.startswith(_ABI)} - _PROBES:
        raise build.BuildError(f"kernel code needs {', '.join(sorted(needs))} from outside; kernels call no library")
    if made.count(PLACE) != 1:
        raise build.BuildError(f"expected one place for a digest in the object file, got {made.count(PLACE)}")
    build.write_kept(build.object_path(kernels, loops, target), made)


_CHAINS = "elementwise"
"""The family of the chains' kernels."""
_LOOP = re.compile(
    r'^(define internal (void|i32) @"?msedge\.((?:float32|int64)\.(?:op|load|store)\d+)(?:\.\d+)?"?'
    r"\([^)]*\)[^{\n]*{\n).*?^}$",
    re.MULTILINE | re.DOTALL,
)


def _with_loops(bitcode: bytes, used: Collection[str]) -> bytes:
    """The chains' bitcode in which loops that are not used do nothing."""

    def kept(found: re.Match[str]) -> str:
        head, result, loop = found.groups()
        return found[0] if loop in used else f"{head}  ret {'void' if result == 'void' else 'i32 0'}\n}}"

    text = _LOOP.sub(kept, str(llvm().parse_bitcode(bitcode)))
    return bytes(llvm().parse_assembly(text).as_bitcode())


def _object(whole: Any, target: Target) -> bytes:
    for function in whole.functions:
        if not function.is_declaration and not function.name.startswith(PREFIX):
            function.linkage = "internal"
            function.add_function_attribute("nounwind")
    return object_of(whole.as_bitcode(), target, "chosen", support=False)[0]


_OWN = frozenset(FUNCTIONS)
"""Functions of our own: libgcc's are larger, as they convert 64-bit integers through float64, and newlib's `fma` rounds
twice."""
_ABI = "__aeabi_"
"""Functions of 32-bit Arm's run-time ABI, which every compiler for firmware has."""


_PROBES = frozenset({"___chkstk_ms", "__chkstk"})
"""What code for Windows calls where a function's frame is larger than a page; each compiler's library has it."""


def _outside(made: bytes) -> set[str]:
    if made[:2] in coff.MACHINES:
        return coff.outside(made)
    return macho.outside(made) if made.startswith(macho.MAGIC) else outside(made)


def _table(kernels: Sequence[str], target: Target) -> str:
    """The symbol's definition in LLVM's text."""
    count = len(kernels)
    declared = "".join(f'declare void @"{name}"(ptr, ptr, i64, i64)\n' for name in kernels)
    kinds = f"i32, [28 x i8], [32 x i8], [{count} x ptr]"
    addresses = ", ".join(f'ptr @"{name}"' for name in kernels)
    name = target.name.encode().ljust(28, b"\0")
    values = f'i32 {count}, [28 x i8] c"{_bytes(name)}", [32 x i8] c"{_bytes(PLACE)}", [{count} x ptr] [{addresses}]'
    return f"{declared}@{SYMBOL} = constant {{ {kinds} }} {{ {values} }}, align 64\n"


def _support(names: Collection[str]) -> str:
    """What the back end of 32-bit Arm calls, as functions that only this file sees: other programs have their own."""
    text = needed(names).replace("define hidden ", "define internal ")
    pointers = ", ".join(f"ptr @{name}" for name in sorted(names))
    kept = f'@llvm.compiler.used = appending global [{len(names)} x ptr] [{pointers}], section "llvm.metadata"'
    return f"{text}\n{kept}\n"


def _bytes(content: bytes) -> str:
    return "".join(f"\\{byte:02x}" for byte in content)


if __name__ == "__main__":
    _make(sys.argv[3:], list(filter(None, sys.argv[2].split(","))), named(sys.argv[1], (*TARGETS, *AHEAD)))
