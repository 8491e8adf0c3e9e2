"""Loops over blocks, one per operation, chosen by a switch: built as LLVM IR so that each is exactly a vector loop.

A loop's loads and stores carry an access group that its latch declares parallel: LLVM then vectorises without checking
whether source and destination overlap, so a destination may also be a source. Counts are multiples of LANE_GROUP, so
there is no remainder loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from llvmlite import ir
from llvmlite.ir.values import MDValue
from numba import types
from numba.extending import intrinsic

from lite_runtime.kernels._opcodes import LANE_GROUP
from lite_runtime.native.simd import SHAPE

__all__ = ["Operation", "block_stack", "loader", "machine", "rolled", "storer"]

_I64 = ir.IntType(64)


class Operation(NamedTuple):
    """A device function with these numbers of block operands and scalar parameters; `vector` False: its loop stays
    scalar."""

    function: Any
    sources: int = 1
    parameters: int = 0
    vector: bool = True


class _Distinct(MDValue):
    """A metadata node that is distinct from all others, as access groups and loop identities must be."""

    def descr(self, buf: list[str]) -> None:
        references = [op.get_reference() for op in self.operands]
        buf += (f"distinct !{{ {', '.join(references)} }}", "\n")

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


def _distinct(module: Any, operands: Sequence[Any] = ()) -> _Distinct:
    return _Distinct(module, operands, str(len(module.metadata)))


def _hint(module: Any, name: str, *values: Any) -> Any:
    return module.add_metadata([name, *values])


def _loop_identity(module: Any, group: Any, width: int) -> Any:
    """Metadata of a loop's latch: parallel in `group`, vectorised if there are vectors, neither interleaved nor
    unrolled."""
    width = width if SHAPE.vectors else 1
    i1, i32 = ir.IntType(1), ir.IntType(32)
    identity = _distinct(module)
    identity.operands = (
        identity,
        _hint(module, "llvm.loop.parallel_accesses", group),
        _hint(module, "llvm.loop.vectorize.enable", i1(width > 1)),
        _hint(module, "llvm.loop.vectorize.width", i32(width)),
        _hint(module, "llvm.loop.interleave.count", i32(1)),
        _hint(module, "llvm.loop.unroll.disable"),
    )
    return identity


def _counted(builder: Any, count: Any, body: Any) -> Any:
    """Emit body(i) for i below `count`, which is positive; the branch back, which takes the loop's metadata."""
    entry = builder.block
    loop, done = builder.append_basic_block("loop"), builder.append_basic_block("done")
    builder.branch(loop)
    builder.position_at_end(loop)
    i = builder.phi(_I64)
    i.add_incoming(_I64(0), entry)
    body(i)
    following = builder.add(i, _I64(1), flags=("nuw", "nsw"))
    i.add_incoming(following, builder.block)
    latch = builder.cbranch(builder.icmp_unsigned("==", following, count), done, loop)
    builder.position_at_end(done)
    return latch


def rolled(builder: Any, count: int, body: Any) -> None:
    """Emit body(i) for i below `count` as a loop that LLVM neither vectorises nor unrolls."""
    latch = _counted(builder, _I64(count), body)
    identity = _distinct(builder.module)
    off = _hint(builder.module, "llvm.loop.vectorize.enable", ir.IntType(1)(0))
    identity.operands = (identity, off, _hint(builder.module, "llvm.loop.unroll.disable"))
    latch.set_metadata("llvm.loop", identity)


def _emit_loop(builder: Any, count: Any, width: int, body: Any) -> None:
    """Emit body(i, in_group) for i below `count`, which is positive; in_group marks a load or store and returns it."""
    group = _distinct(builder.module)

    def in_group(access: Any) -> Any:
        access.set_metadata("llvm.access.group", group)
        return access

    latch = _counted(builder, count, lambda i: body(i, in_group))
    latch.set_metadata("llvm.loop", _loop_identity(builder.module, group, width))


def _emit_function(context: Any, module: Any, name: str, sig: Any, call: Any, row: Operation, width: int) -> Any:
    """One operation's loop as a function of its own, in Numba's calling convention: (d, a, b, c, u, v, n)."""
    _, sources, parameters, vector = row
    function = ir.Function(module, context.call_conv.get_function_type(types.none, sig.args[1:]), name)
    function.linkage = "internal"
    d, a, b, c, u, v, n = context.call_conv.get_arguments(function)
    builder = ir.IRBuilder(function.append_basic_block("entry"))

    def body(i: Any, in_group: Any) -> None:
        loads = [builder.load(builder.gep(p, [i], inbounds=True), align=4) for p in (a, b, c)[:sources]]
        result = call(builder, [*map(in_group, loads), *(u, v)[:parameters]])
        in_group(builder.store(result, builder.gep(d, [i], inbounds=True), align=4))

    _emit_loop(builder, builder.and_(n, _I64(-LANE_GROUP)), width if vector else 1, body)
    context.call_conv.return_value(builder, context.get_dummy_value())
    return function


def machine(element: Any, width: int, operations: Sequence[Operation]) -> Any:
    """An intrinsic `execute(op, d, a, b, c, u, v, n)`: d[i] = operations[op](sources, parameters), for i below n.

    d, a, b, c point to elements of type `element`, and u and v are values of that type; n is positive and a multiple of
    LANE_GROUP. A source may be the destination. Every loop is a separate function, so that LLVM simplifies it before it
    combines it with the others.
    """
    pointer = types.CPointer(element)

    @intrinsic
    def execute(typing, op, d, a, b, c, u, v, n):
        sig = types.none(types.int64, pointer, pointer, pointer, pointer, element, element, types.int64)
        functions = []
        for function, sources, parameters, _ in operations:
            kind = typing.resolve_value_type(function)
            functions.append((kind, kind.get_call_type(typing, (element,) * (sources + parameters), {})))

        def lower(context, builder, sig, args):
            after, unknown = builder.append_basic_block("executed"), builder.append_basic_block("unknown")
            switch = builder.switch(args[0], unknown)
            for code, ((kind, call), row) in enumerate(zip(functions, operations, strict=True)):
                implementation = context.get_function(kind, call)
                context.add_linking_libs(getattr(implementation, "libs", ()))
                name = f"msedge.{element}.op{code}"
                function = _emit_function(context, builder.module, name, sig, implementation, row, width)
                block = builder.append_basic_block(f"op{code}")
                switch.add_case(_I64(code), block)
                builder.position_at_end(block)
                context.call_conv.call_function(builder, function, types.none, sig.args[1:], args[1:])
                builder.branch(after)
            builder.position_at_end(unknown)
            builder.branch(after)
            builder.position_at_end(after)
            return context.get_dummy_value()

        return sig, lower

    return execute


@intrinsic(prefer_literal=True)
def block_stack(typing, count):
    """The address of `count` (a literal) bytes on the stack, 64-byte aligned, contents undefined.

    simd's stack_floats clears its memory, which for a block of this size LLVM unrolls into tens of thousands of stores.
    """
    n = count.literal_value

    def lower(context, builder, sig, args):
        with builder.goto_entry_block():
            block = builder.alloca(ir.ArrayType(ir.IntType(8), n))
        block.align = 64
        return builder.ptrtoint(block, _I64)

    return types.int64(count), lower


# -- conversions ------------------------------------------------------------------------------------------------------

Convert = Callable[..., Any]
"""(builder, value, u, v) -> value; u and v are the two parameters of a load or store."""


def _switch(builder: Any, kind: Any, args: Sequence[Any], functions: dict[int, Any]) -> None:
    """Call functions[kind](args…); do nothing for any other kind."""
    after = builder.append_basic_block("converted")
    switch = builder.switch(kind, after)
    for code, function in functions.items():
        block = builder.append_basic_block(f"kind{code}")
        switch.add_case(_I64(code), block)
        builder.position_at_end(block)
        builder.call(function, args)
        builder.branch(after)
    builder.position_at_end(after)


def _new_function(module: Any, name: str, arguments: Sequence[Any]) -> tuple[Any, Any]:
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), arguments), name)
    function.linkage = "internal"
    return function, ir.IRBuilder(function.append_basic_block("entry"))


def _emit_load(module: Any, name: str, element: Any, stored: Any, convert: Convert) -> Any:
    """(dest, source, stride, count, u, v): dest[i] = convert(source[i * stride], u, v); strides 1 and 0 have separate
    loops."""
    function, builder = _new_function(module, name, [element.as_pointer(), _I64, _I64, _I64, element, element])
    dest, address, stride, count, u, v = function.args
    source = builder.inttoptr(address, stored.as_pointer())
    blocks = [builder.append_basic_block(f"stride{s}") for s in ("1", "0", "n")]
    choice = builder.switch(stride, blocks[2])
    choice.add_case(_I64(1), blocks[0])
    choice.add_case(_I64(0), blocks[1])

    def fetch(index: Any) -> Any:
        return builder.load(builder.gep(source, [index]), align=align_of(stored))

    def keep(i: Any, value: Any, in_group: Any) -> None:
        in_group(builder.store(value, builder.gep(dest, [i], inbounds=True), align=element_align))

    element_align = align_of(element)

    def dense(i: Any, in_group: Any) -> None:
        keep(i, convert(builder, in_group(fetch(i)), u, v), in_group)

    def apart(i: Any, in_group: Any) -> None:
        keep(i, convert(builder, in_group(fetch(builder.mul(i, stride))), u, v), in_group)

    builder.position_at_end(blocks[0])
    _emit_loop(builder, count, LANE_GROUP, dense)
    builder.ret_void()
    builder.position_at_end(blocks[1])
    one = convert(builder, fetch(_I64(0)), u, v)
    _emit_loop(builder, count, LANE_GROUP, lambda i, in_group: keep(i, one, in_group))
    builder.ret_void()
    builder.position_at_end(blocks[2])
    _emit_loop(builder, count, 1, apart)
    builder.ret_void()
    return function


def _emit_store(module: Any, name: str, element: Any, stored: Any, convert: Convert) -> Any:
    """(target, source, count, u, v): target[i] = convert(source[i], u, v)."""
    function, builder = _new_function(module, name, [_I64, element.as_pointer(), _I64, element, element])
    address, source, count, u, v = function.args
    target = builder.inttoptr(address, stored.as_pointer())

    def body(i: Any, in_group: Any) -> None:
        value = in_group(builder.load(builder.gep(source, [i], inbounds=True), align=align_of(element)))
        where = builder.gep(target, [i], inbounds=True)
        in_group(builder.store(convert(builder, value, u, v), where, align=align_of(stored)))

    _emit_loop(builder, count, LANE_GROUP, body)
    builder.ret_void()
    return function


def align_of(kind: Any) -> int:
    """Bytes of a scalar LLVM type."""
    sizes = {ir.FloatType(): 4, ir.DoubleType(): 8, ir.HalfType(): 2}
    return sizes[kind] if kind in sizes else max(kind.width // 8, 1)


def loader(element: Any, kinds: dict[int, tuple[Any, Convert]]) -> Any:
    """An intrinsic `load(kind, dest, source, stride, count, u, v)`: read `count` elements of `kind`, `stride` elements
    apart, from the address `source`, convert them to `element` with parameters u and v, and write them to the pointer
    `dest`. kinds: code -> (LLVM type, conversion)."""

    @intrinsic
    def load(typing, kind, dest, source, stride, count, u, v):
        integers = (types.int64,) * 3
        sig = types.none(types.int64, types.CPointer(element), *integers, element, element)

        def lower(context, builder, sig, args):
            value = context.get_value_type(element)
            functions = {
                code: _emit_load(builder.module, f"msedge.{element}.load{code}", value, *row)
                for code, row in kinds.items()
            }
            _switch(builder, args[0], args[1:], functions)
            return context.get_dummy_value()

        return sig, lower

    return load


def storer(element: Any, kinds: dict[int, tuple[Any, Convert]]) -> Any:
    """An intrinsic `store(kind, target, source, count, u, v)`: the inverse of `loader`."""

    @intrinsic
    def store(typing, kind, target, source, count, u, v):
        sig = types.none(types.int64, types.int64, types.CPointer(element), types.int64, element, element)

        def lower(context, builder, sig, args):
            value = context.get_value_type(element)
            functions = {
                code: _emit_store(builder.module, f"msedge.{element}.store{code}", value, *row)
                for code, row in kinds.items()
            }
            _switch(builder, args[0], args[1:], functions)
            return context.get_dummy_value()

        return sig, lower

    return store
