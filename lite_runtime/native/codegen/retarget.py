"""A family's portable bitcode to a target's machine code. Needs llvmlite alone.

The target's own functions take the place of operations, LLVM's pass pipeline for the target runs, and the object that
it makes becomes position-independent code with all internal references resolved (`link.py`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from lite_runtime.native.codegen.bodies import bodies_of, body
from lite_runtime.native.codegen.link import link, outside
from lite_runtime.native.codegen.operations import PREFIX, Emit, define
from lite_runtime.native.codegen.support import needed
from lite_runtime.targets import Target

__all__ = ["code_of", "llvm", "object_of"]

_NO_LIBRARY = ("-disable-loop-idiom-all", "-opt-disable=memcpyopt")
"""LLVM's options that prevent it from replacing loops and stores by calls of memset and memcpy."""


@cache
def llvm() -> Any:
    """LLVM with all its targets, with the options above set once."""
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    for option in _NO_LIBRARY:
        llvm.set_option("msedge", option)
    return llvm


def code_of(bitcode: bytes, target: Target, family: str) -> tuple[bytes, dict[str, int]]:
    """Position-independent code, and the offsets of kernels in it; of a target whose code is linked later, the object
    file, and 0 for each. Raises BuildError if linked code needs anything from outside."""
    obj, symbols = object_of(bitcode, target, family)
    if not target.linked:
        return obj, {symbol.removeprefix(f"{family}."): 0 for symbol in symbols}
    code, offsets = link(obj, symbols)
    return code, {symbol.removeprefix(f"{family}."): offset for symbol, offset in offsets.items()}


def object_of(
    bitcode: bytes, target: Target, family: str, *, bodies: Mapping[tuple[str, int], Emit] | None = None
) -> tuple[bytes, list[str]]:
    """An object file for the system of a target, and its kernels' symbols, `FAMILY.KERNEL`. bodies: instead of its
    own."""
    whole = llvm().parse_bitcode(bitcode)
    kernels = [f.name for f in whole.functions if f.linkage == llvm().Linkage.external and not f.is_declaration]
    _specialise(whole, bodies_of(target) if bodies is None else bodies)
    machine = _machine(target)
    whole.triple, whole.data_layout = target.triple, str(machine.target_data)
    tuning = llvm().create_pipeline_tuning_options(speed_level=3)
    tuning.loop_vectorization = tuning.slp_vectorization = True
    passes = llvm().create_pass_builder(machine, tuning)
    passes.getModulePassManager().run(whole, passes)
    if _is_arm_32(target):
        whole = _with_plain_sums(whole)
    if "MSEDGE_KEEP_ASM" in os.environ:
        with open(os.path.join(os.environ["MSEDGE_KEEP_ASM"], f"{family}.s"), "w", encoding="utf-8") as file:
            file.write(machine.emit_assembly(whole))
    return _with_support(whole, machine, target), kernels


def _is_arm_32(target: Target) -> bool:
    return target.processor == "armv7"


def _with_plain_sums(whole: Any) -> Any:
    """A module whose addresses are sums. Of an address that is an `or disjoint` of a base and an offset, LLVM 22's back
    end for 32-bit Arm takes the offset for 0 when it lets a store step the address on: the next store goes astray."""
    return llvm().parse_assembly(str(whole).replace(" = or disjoint ", " = add "))


def _with_support(whole: Any, machine: Any, target: Target) -> bytes:
    """A module's object, which holds the functions that the back end calls. Only making it shows which they are."""
    finished = whole.as_bitcode()
    made = machine.emit_object(whole)
    functions = needed(outside(made)) if _is_arm_32(target) else ""
    if not functions:
        return bytes(made)
    whole, support = llvm().parse_bitcode(finished), llvm().parse_assembly(functions)
    support.triple, support.data_layout = target.triple, str(machine.target_data)
    whole.link_in(support)
    return bytes(machine.emit_object(whole))


def _machine(target: Target) -> Any:
    reloc = "pic" if target.linked else "static"
    return (
        llvm()
        .Target.from_triple(target.triple)
        .create_target_machine(cpu=target.cpu, features=target.features, opt=3, reloc=reloc, codemodel="small")
    )


def _specialise(whole: Any, own: Mapping[tuple[str, int], Emit]) -> None:
    """Put a target's own functions in the place of operations; all are inlined."""
    from llvmlite import ir

    done = set[str]()
    while asked := {f.name for f in whole.functions if f.name.startswith(PREFIX)} - done:
        module = ir.Module("bodies")
        module.triple, module.data_layout = whole.triple, str(whole.data_layout)
        for full in sorted(asked):
            name, _, lanes = full.removeprefix(PREFIX).rpartition(".")
            emit = body(own, name, int(lanes))
            if emit is not None:
                define(module, name, int(lanes), emit)
        whole.link_in(llvm().parse_assembly(str(module)))
        done |= asked  # what these functions ask for is next
    for function in whole.functions:
        if function.name.startswith(PREFIX):
            function.linkage = "internal"
            function.add_function_attribute("alwaysinline")
