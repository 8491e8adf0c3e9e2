"""Kernel source to LLVM bitcode that every target of one shape can use. Needs numba.

A family (`lite_runtime/kernels/<family>.py`) is compiled by Numba at optimisation 0, an LLVM module for each kernel.
These become one module of internal functions, operations (`codegen/operations.py`) and kernels with our calling
convention; `codegen/retarget.py` makes a target's code of it (docs/decisions/0004, 0032).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from lite_runtime.native import target
from lite_runtime.native.codegen.contraction import contracted
from lite_runtime.native.codegen.operations import PREFIX
from lite_runtime.native.codegen.retarget import llvm

__all__ = ["portable"]


def portable(family: str) -> bytes:
    """LLVM bitcode of a family's kernels for every target of this process's shape."""
    from numba import njit

    from lite_runtime.native.simd import kernel_options

    module = import_module(f"lite_runtime.kernels.{family}")
    marked = {
        name: f for name, f in vars(module).items() if hasattr(f, "msedge_kernel") and f.__module__ == module.__name__
    }
    whole = llvm().parse_assembly("")
    for name, function in marked.items():
        sig = function.msedge_kernel["args"]
        overload = njit(sig, **kernel_options(function))(function).overloads[sig.args]
        whole.link_in(_freestanding(overload, f"{family}.{name}"))
    for defined in whole.functions:
        kept = defined.name.startswith(PREFIX) or defined.name.removeprefix(f"{family}.") in marked
        if not defined.is_declaration and not kept:
            defined.linkage = "internal"
    return bytes(_contracted(whole).as_bitcode())


def _contracted(module: Any) -> Any:
    """The module with its multiply-adds decided (`contraction.py`); the same where there are none."""
    text, fused = str(module), target.shape().fused
    if "contract " in text and fused:
        # No passes that know a processor or the width of pointers: those of targets differ.
        passes = llvm().create_new_module_pass_manager()
        passes.add_always_inliner_pass()
        passes.add_sroa_pass()
        machine = llvm().Target.from_triple(module.triple).create_target_machine()
        passes.run(module, llvm().create_pass_builder(machine, llvm().create_pipeline_tuning_options()))
        text = str(module)
    return llvm().parse_assembly(contracted(text, fused)) if "contract " in text or not fused else module


def _freestanding(overload: Any, name: str) -> Any:
    """LLVM's module of a function that Numba compiled, with a function `void name(arguments)` beside it.

    Numba's own function takes two more pointers, for its result and its exception, and returns a status; kernels have
    no result and never fail.
    """
    from llvmlite import ir

    made = llvm().parse_bitcode(overload.library.serialize_using_bitcode()[2])
    for variable in made.global_variables:
        if variable.linkage == llvm().Linkage.common:  # Numba's environments: unused and not shared
            variable.linkage = "internal"
    described = overload.fndesc
    # Whole, or its stores to the exception that kernels do not have would remain.
    made.get_function(described.llvm_func_name).add_function_attribute("alwaysinline")
    native = overload.target_context.call_conv.get_function_type(described.restype, described.argtypes)
    module = ir.Module(name)
    module.triple, module.data_layout = made.triple, made.data_layout
    inner = ir.Function(module, native, described.llvm_func_name)
    outer = ir.Function(module, ir.FunctionType(ir.VoidType(), native.args[2:]), name)
    builder = ir.IRBuilder(outer.append_basic_block())
    unused = [builder.alloca(ir.PointerType()) for _ in native.args[:2]]
    builder.call(inner, [*unused, *outer.args])
    builder.ret_void()
    made.link_in(llvm().parse_assembly(str(module)))
    return made
