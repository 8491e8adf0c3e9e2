"""Kernel source to native code: the recipe, and the only file that knows how. Needs numba.

    MSEDGE_TARGET=… NUMBA_OPT=0 python -m lite_runtime.native.compile FAMILY…     into the cache; `build.prepare` calls
    it

A family (`lite_runtime/kernels/<family>.py`) becomes position-independent machine code with its constants behind it,
every reference inside resolved, nothing outside needed (docs/decisions/0004): Numba at optimisation 0 -> LLVM text ->
one module of internal functions with our calling convention -> the target's own pass pipeline -> object -> code.
"""

from __future__ import annotations

import os
import re
import struct
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

from lite_runtime._files import write_atomically
from lite_runtime.native import build
from lite_runtime.native.build import BuildError
from lite_runtime.native.target import Target, host


def _compile(family: str, target: Target) -> tuple[bytes, list[str]]:
    """A family's ELF object and the names of its kernels."""
    import llvmlite.binding as llvm
    from numba import njit

    from lite_runtime.native.simd import kernel_options

    module = import_module(f"lite_runtime.kernels.{family}")
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


# -- object to code ----------------------------------------------------------------------------------------------------

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


# -- what is kept ------------------------------------------------------------------------------------------------------


def _keep(path: str, family: str, code: bytes, kernels: Mapping[str, int]) -> None:
    """Write a family's image file so that no reader ever sees half of it."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    write_atomically(path, build.image_file({family: (code, kernels)}))


def _prepare(families: Sequence[str]) -> None:
    """Compile families into the cache, but those that are there."""
    target = host()
    assert target is not None
    for family in families:
        path = build._path(family, target)
        if not os.path.exists(path):
            obj, names = _compile(family, target)
            _keep(path, family, *_link(obj, names))


if __name__ == "__main__":
    _prepare(sys.argv[1:])
