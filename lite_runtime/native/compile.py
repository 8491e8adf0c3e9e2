"""Kernel source to native code: the recipe is only in this file. Needs numba.

    MSEDGE_TARGET=… NUMBA_OPT=0 python -m lite_runtime.native.compile FAMILY…     into the cache;
    `build.prepare` calls it

A family (`lite_runtime/kernels/<family>.py`) becomes position-independent machine code followed by its constants, with
all internal references resolved and no external ones (docs/decisions/0004): Numba at optimisation 0 -> an LLVM module
for each kernel -> one module of internal functions with our calling convention -> the target's own pass pipeline ->
object -> code (`lite_runtime/native/link.py`).
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from typing import Any

from lite_runtime.native import build, trust
from lite_runtime.native.build import BuildError
from lite_runtime.native.link import link
from lite_runtime.native.target import Target, host

_NO_LIBRARY = ("-disable-loop-idiom-all", "-opt-disable=memcpyopt")
"""LLVM's options that prevent it from replacing loops and stores by calls of memset and memcpy."""


def _compile(family: str, target: Target) -> tuple[bytes, list[str]]:
    """A family's ELF object and the names of its kernels."""
    from numba import njit

    from lite_runtime.native.simd import kernel_options

    llvm = _llvm()
    module = import_module(f"lite_runtime.kernels.{family}")
    marked = {
        name: f for name, f in vars(module).items() if hasattr(f, "msedge_kernel") and f.__module__ == module.__name__
    }
    whole = llvm.parse_assembly("")
    for name, function in marked.items():
        sig = function.msedge_kernel["args"]
        overload = njit(sig, **kernel_options(function))(function).overloads[sig.args]
        whole.link_in(_freestanding(overload, name))
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


@cache
def _llvm() -> Any:
    """LLVM with all its targets, with the options above set once."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    for option in _NO_LIBRARY:
        llvm.set_option("msedge", option)
    return llvm


def _freestanding(overload: Any, name: str) -> Any:
    """LLVM's module of a function that Numba compiled, with a function `void name(arguments)` beside it.

    Numba's own function takes two more pointers, for its result and its exception, and returns a status; kernels have
    no result and never fail.
    """
    from llvmlite import ir

    llvm = _llvm()
    made = llvm.parse_bitcode(overload.library.serialize_using_bitcode()[2])
    for variable in made.global_variables:
        if variable.linkage == llvm.Linkage.common:  # Numba's environments: unused and not shared
            variable.linkage = "internal"
    described = overload.fndesc
    native = overload.target_context.call_conv.get_function_type(described.restype, described.argtypes)
    module = ir.Module(name)
    module.triple, module.data_layout = made.triple, made.data_layout
    inner = ir.Function(module, native, described.llvm_func_name)
    outer = ir.Function(module, ir.FunctionType(ir.VoidType(), native.args[2:]), name)
    builder = ir.IRBuilder(outer.append_basic_block())
    unused = [builder.alloca(ir.PointerType()) for _ in native.args[:2]]
    builder.call(inner, [*unused, *outer.args])
    builder.ret_void()
    made.link_in(llvm.parse_assembly(str(module)))
    return made


def _keep(path: str, family: str, code: bytes, kernels: Mapping[str, int]) -> None:
    """Write a family's image file atomically."""
    trust.write(path, build.image_file({family: (code, kernels)}))


def _prepare(families: Sequence[str]) -> None:
    """Compile families into the cache, except those already there."""
    target = host()
    if target is None:
        raise BuildError("this machine is no target of the native kernels; use backend='reference'")
    for family in families:
        path = build._path(family, target)
        if not os.path.exists(path):
            with _locked(path):
                if not os.path.exists(path):
                    obj, names = _compile(family, target)
                    _keep(path, family, *link(obj, names))


@contextmanager
def _locked(path: str) -> Iterator[None]:
    """Wait while another process compiles the same family. The lock file is removed again: a process that waited for it
    finds the image."""
    trust.make_folder(os.path.dirname(path))
    with open(f"{path}.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            with suppress(FileNotFoundError):
                os.unlink(lock.name)


if __name__ == "__main__":
    _prepare(sys.argv[1:])
