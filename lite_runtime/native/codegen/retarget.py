"""A family's portable bitcode to a target's machine code. Needs llvmlite alone.

The target's own functions take the place of operations, LLVM's pass pipeline for the target runs, and the object that
it makes becomes position-independent code with all internal references resolved (`link.py`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from lite_runtime.native.codegen.bodies import bodies_of, body
from lite_runtime.native.codegen.link import link, outside
from lite_runtime.native.codegen.operations import PREFIX, Emit, define
from lite_runtime.native.codegen.support import needed
from lite_runtime.targets import Target

__all__ = ["by_one_worker", "code_of", "llvm", "object_of"]

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
    if target.library or not target.linked:
        return obj, {symbol.removeprefix(f"{family}."): 0 for symbol in symbols}
    code, offsets = link(obj, symbols)
    return code, {symbol.removeprefix(f"{family}."): offset for symbol, offset in offsets.items()}


def object_of(
    bitcode: bytes,
    target: Target,
    family: str,
    *,
    bodies: Mapping[tuple[str, int], Emit] | None = None,
    support: bool = True,
) -> tuple[bytes, list[str]]:
    """An object file for the system of a target, and its kernels' symbols, `FAMILY.KERNEL`. bodies: instead of its
    own. support: whether what back ends call (`support.py`) is added where code is linked."""
    whole = llvm().parse_bitcode(bitcode)
    kernels = [f.name for f in whole.functions if f.linkage == llvm().Linkage.external and not f.is_declaration]
    _specialise(whole, bodies_of(target) if bodies is None else bodies)
    machine = _machine(target)
    whole.triple, whole.data_layout = target.triple, str(machine.target_data)
    small = target.shape.small
    if small:
        by_one_worker(whole, kernels)
        for function in whole.functions:
            function.add_function_attribute("optsize")
    tuning = llvm().create_pipeline_tuning_options(speed_level=2 if small else 3)
    tuning.slp_vectorization = not small
    tuning.loop_vectorization = target.shape.vectors > 0
    tuning.loop_unrolling = not small
    passes = llvm().create_pass_builder(machine, tuning)
    passes.getModulePassManager().run(whole, passes)
    if _is_arm_32(target):
        whole = _with_plain_sums(whole)
    if small:
        whole = _with_sections(whole)
    if "MSEDGE_KEEP_ASM" in os.environ:
        with open(os.path.join(os.environ["MSEDGE_KEEP_ASM"], f"{family}.s"), "w", encoding="utf-8") as file:
            file.write(machine.emit_assembly(whole))
    if support and target.linked and _is_arm_32(target):
        return _with_support(whole, machine, target), kernels
    return bytes(machine.emit_object(whole)), kernels


def _is_arm_32(target: Target) -> bool:
    return target.processor.startswith(("armv7", "thumb"))


def _with_plain_sums(whole: Any) -> Any:
    """A module whose addresses are sums. Of an address that is an `or disjoint` of a base and an offset, LLVM 22's back
    end for 32-bit Arm takes the offset for 0 when it lets a store step the address on: the next store goes astray."""
    return llvm().parse_assembly(str(whole).replace(" = or disjoint ", " = add "))


def by_one_worker(whole: Any, kernels: Sequence[str]) -> None:
    """Let kernels be called by the only worker: what divides work among several is dropped."""
    from llvmlite import ir

    module, word = ir.Module("one worker"), ir.IntType(64)
    module.triple, module.data_layout = whole.triple, str(whole.data_layout)
    words = word.as_pointer()
    for name in kernels:
        shared = whole.get_function(name)
        if [str(argument.type) for argument in shared.arguments] == _SHARED:
            shared.name = f"shared.{name}"
            kind = ir.FunctionType(ir.VoidType(), (words, words, word, word))
            function = ir.Function(module, kind, name)
            builder = ir.IRBuilder(function.append_basic_block())
            builder.call(ir.Function(module, kind, shared.name), [*function.args[:2], word(0), word(1)])
            builder.ret_void()
    whole.link_in(llvm().parse_assembly(str(module)))
    for function in whole.functions:
        if function.name.startswith("shared."):
            function.linkage = "internal"
            function.add_function_attribute("alwaysinline")


_SHARED = ["ptr", "ptr", "i64", "i64"]
"""Types of kernels' arguments, the last of which are the worker and the number of workers."""


def _with_sections(whole: Any) -> Any:
    """A module whose functions have a section each, of which a linker keeps those that a program uses."""
    named = re.sub(r'^(define .*@"?([\w.$]+)"?\(.*\)[^{]*) {$', r'\1 section ".text.\2" {', str(whole), flags=re.M)
    return llvm().parse_assembly(named)


def _with_support(whole: Any, machine: Any, target: Target) -> bytes:
    """A module's object, which holds the functions that the back end calls. Only making it shows which they are."""
    finished = whole.as_bitcode()
    made = machine.emit_object(whole)
    functions = needed(outside(made))
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
        for full in sorted(asked):
            name, _, lanes = full.removeprefix(PREFIX).rpartition(".")
            emit = body(own, name, int(lanes))
            if emit is not None:
                module = ir.Module("body")  # of its own: it may hold another asked operation's generic form
                module.triple, module.data_layout = whole.triple, str(whole.data_layout)
                define(module, name, int(lanes), emit)
                whole.link_in(llvm().parse_assembly(str(module)))
        done |= asked  # what these functions ask for is next
    for function in whole.functions:
        if function.name.startswith(PREFIX):
            function.linkage = "internal"
            function.add_function_attribute("alwaysinline")
