"""The vocabulary of kernels: typed pointers from addresses, vectors of the target's width, accessors of step records.

Needs numba; only kernel sources and the build import it. `Vec` values are LLVM vectors of LANES float32: `+ - * /` work
on them; the other operations are functions here. Loads and stores only need the alignment of an element.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core.datamodel import models, register_default
from numba.core.imputils import lower_builtin, lower_constant, lower_getattr_generic
from numba.core.typing import signature
from numba.core.typing.templates import AbstractTemplate, AttributeTemplate, infer_getattr, infer_global
from numba.extending import intrinsic, typeof_impl

from lite_runtime.native.checking import check
from lite_runtime.native.codegen.operations import call, declare
from lite_runtime.native.target import shape
from lite_runtime.steps.declaration import FLAGS, Named, Step, fields_of

SHAPE = shape()
LANES, INDEXED = SHAPE.lanes, SHAPE.indexed

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_F32 = ir.FloatType()


# -- registration -----------------------------------------------------------------------------------------------------

Source = Callable[..., None]
_KERNEL_OPTIONS: dict[str, Any] = {
    "error_model": "numpy",
    "boundscheck": False,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
_WORDS = types.CPointer(types.int64)
KERNEL_SIGNATURE = types.void(_WORDS, _WORDS, types.int64, types.int64)


def kernel(
    declared: type[Step],
    *,
    fastmath: frozenset[str] | set[str] = frozenset({"contract"}),
    unread: Collection[str] = (),
) -> Callable[[Source], Source]:
    """Mark a function of a family's module as a kernel `(step, bases, worker, workers)` of steps with this declaration.

    fastmath: LLVM's flags; kernels whose sums may be reordered add "reassoc". unread: declared words that this kernel
    does not read. Raises TypeError if the function does not read its step as declared (`checking.py`).
    """

    def mark(function: Source) -> Source:
        check(function, declared, {"ptr": ptr, "nth": nth, "num": num, "real": real, "tail": tail}, unread)
        function.msedge_kernel = {"fastmath": set(fastmath), "args": KERNEL_SIGNATURE, "step": declared}  # type: ignore[attr-defined]
        return function

    return mark


def entry(
    signature: Any, *, fastmath: frozenset[str] | set[str] = frozenset({"contract"})
) -> Callable[[Source], Source]:
    """Mark a function of a family's module as an entry point that is not a kernel, with this Numba signature."""

    def mark(function: Source) -> Source:
        function.msedge_kernel = {"fastmath": set(fastmath), "args": signature}  # type: ignore[attr-defined]
        return function

    return mark


def device(function: Callable[..., Any]) -> Any:
    """A helper that kernels call; always inlined."""
    return njit(**_KERNEL_OPTIONS, forceinline=True, fastmath={"contract"})(function)


def shared(function: Callable[..., Any]) -> Any:
    """A large helper, of which the kernels of a family share one copy."""
    return njit(**_KERNEL_OPTIONS, forceinline=False, fastmath={"contract"})(function)


def exact(function: Callable[..., Any]) -> Any:
    """Like `device`, but every product and sum is rounded separately. Its callers must be kernels with
    fastmath=set()."""
    return njit(**_KERNEL_OPTIONS, forceinline=True, fastmath=set())(function)


def kernel_options(function: Source) -> dict[str, Any]:
    """Numba's options for compiling a marked kernel."""
    return {**_KERNEL_OPTIONS, "fastmath": function.msedge_kernel["fastmath"]}  # type: ignore[attr-defined]


# -- pointers ---------------------------------------------------------------------------------------------------------


def _pointer(element: Any) -> Any:
    @intrinsic
    def cast(typing, address):
        sig = types.CPointer(element)(types.int64)

        def lower(context, builder, sig, args):
            return builder.inttoptr(args[0], context.get_value_type(sig.return_type))

        return sig, lower

    return cast


f32p, f64p = _pointer(types.float32), _pointer(types.float64)
u8p, i8p = _pointer(types.uint8), _pointer(types.int8)
i16p = _pointer(types.int16)
i32p = _pointer(types.int32)
i64p = _pointer(types.int64)


def _reinterpret(source: Any, target: Any, via: ir.Type | None = None) -> Any:
    @intrinsic
    def cast(typing, value):
        sig = target(source)

        def lower(context, builder, sig, args):
            value = builder.trunc(args[0], via) if via is not None else args[0]
            return builder.bitcast(value, context.get_value_type(sig.return_type))

        return sig, lower

    return cast


f32_word = _reinterpret(types.int64, types.float32, _I32)
"""The float32 whose bits are a step word's low half."""
f32_from_bits = _reinterpret(types.int32, types.float32)


# -- the step record --------------------------------------------------------------------------------------------------


class NamedType(types.Type):
    """The positions of a step's words: it has no value at run time; its attributes are constants."""

    def __init__(self, places: Named) -> None:
        self.words = {name: field.word for name, field in fields_of(places).items()}
        super().__init__(name=f"places({self.words})")


@register_default(NamedType)
class NamedModel(models.OpaqueModel):
    """Numba's data model of a Named: nothing is stored."""


@typeof_impl.register(Named)
def _type_of_named(places: Named, _: Any) -> NamedType:
    return NamedType(places)


@lower_constant(NamedType)
def _lower_named(context: Any, builder: Any, kind: Any, places: Any) -> Any:
    return context.get_dummy_value()


@infer_getattr
class NamedAttributes(AttributeTemplate):
    """The words of a Named by name."""

    key = NamedType

    def generic_resolve(self, kind: NamedType, attribute: str) -> Any:
        """int64 for a declared word."""
        return types.int64 if attribute in kind.words else None


@lower_getattr_generic(NamedType)
def _lower_word(context: Any, builder: Any, kind: NamedType, value: Any, attribute: str) -> Any:
    return context.get_constant(types.int64, kind.words[attribute])


@device
def ptr(step, bases, word):
    """Address of an operand; 0 if it was omitted. word: its name, `GEMM.a`."""
    return bases[step[word]] + step[word + 1]


@device
def nth(step, bases, number, word):
    """Address of an operand by its number, for a step with any number of operands. word: the first one's name."""
    return bases[step[word + 2 * number]] + step[word + 1 + 2 * number]


@device
def num(step, word):
    """An integer. word: its name, `GEMM.rows`."""
    return step[word]


@device
def real(step, word):
    """A number as float32. word: its name, `GEMM.low`."""
    return f32_word(step[word])


@device
def tail(step, word):
    """The words of a tail. word: its name, `SWAP.dims`."""
    return i64p(address(step) + 8 * word)


@device
def fault(step, bases):
    """Report that this step found an index outside its operand; the host raises an error after the program has run."""
    i64p(bases[1])[0] = step[FLAGS] | 1


@device
def first(n, worker, workers, grain):
    """Start of this worker's share of `n` items, which are shared in whole grains."""
    grains = (n + grain - 1) // grain
    return min(n, (grains * worker // workers) * grain)


# -- vectors ----------------------------------------------------------------------------------------------------------


class VecType(types.Type):
    """LANES float32 in one register."""

    def __init__(self) -> None:
        super().__init__(name=f"vec{LANES}")


vec = VecType()
_VEC = ir.VectorType(_F32, LANES)


@register_default(VecType)
class VecModel(models.PrimitiveModel):
    """Numba's data model of a Vec: the LLVM vector itself."""

    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, _VEC)


def _operator(op: Any, emit: str) -> None:
    @infer_global(op)
    class VecOperator(AbstractTemplate):
        def generic(self, args, kws):
            if len(args) == 2 and args[0] == vec and args[1] == vec:
                return signature(vec, vec, vec)
            return None

    @lower_builtin(op, VecType, VecType)
    def lower(context, builder, sig, args):
        return getattr(builder, emit)(*args, flags=("contract",))


for _op, _emit in ((operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul"), (operator.truediv, "fdiv")):
    _operator(_op, _emit)


def emit_splat(builder: Any, scalar: Any, type_: ir.VectorType = _VEC) -> Any:
    """A vector whose lanes all hold `scalar`."""
    undefined = ir.Constant(type_, ir.Undefined)
    one = builder.insert_element(undefined, scalar, _I32(0))
    return builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(_I32, type_.count), [0] * type_.count))


def emit_lane(builder: Any, vector: Any, i: int) -> Any:
    """A vector whose lanes all hold lane `i` of `vector`: part of an instruction where targets are INDEXED."""
    lanes = ir.Constant(ir.VectorType(_I32, vector.type.count), [i] * vector.type.count)
    return builder.shuffle_vector(vector, vector, lanes)


def emit_mask(builder: Any, n: Any) -> Any:
    """A mask of the lanes below `n` (int64, any value)."""
    lanes = ir.Constant(ir.VectorType(_I64, LANES), list(range(LANES)))
    return builder.icmp_signed("<", lanes, emit_splat(builder, n, ir.VectorType(_I64, LANES)))


def emit_load(builder: Any, pointer: Any, mask: Any = None) -> Any:
    """Load a vector from a float pointer; with a mask, lanes outside it are 0 and their memory is not accessed."""
    where = builder.bitcast(pointer, _VEC.as_pointer())
    if mask is None:
        return builder.load(where, align=4, typ=_VEC)
    return call(builder, "load_first", LANES, where, mask, ir.Constant(_VEC, [0.0] * LANES))


def emit_store(builder: Any, value: Any, pointer: Any, mask: Any = None) -> None:
    """Store a vector to a float pointer; with a mask, memory of lanes outside it is not accessed."""
    where = builder.bitcast(pointer, _VEC.as_pointer())
    if mask is None:
        builder.store(value, where, align=4)
        return
    call(builder, "store_first", LANES, value, where, mask)


_F32P = types.CPointer(types.float32)


@intrinsic
def vload(typing, pointer):
    """LANES floats at `pointer`."""
    return vec(_F32P), lambda context, builder, sig, args: emit_load(builder, args[0])


@intrinsic
def vload_n(typing, pointer, n):
    """The first `n` floats at `pointer` (n may exceed LANES), then zeros; nothing after the n floats is read."""
    return vec(_F32P, types.int64), lambda context, builder, sig, args: emit_load(
        builder, args[0], emit_mask(builder, args[1])
    )


@intrinsic
def vstore(typing, pointer, value):
    """Store LANES floats."""

    def lower(context, builder, sig, args):
        emit_store(builder, args[1], args[0])
        return context.get_dummy_value()

    return types.void(_F32P, vec), lower


@intrinsic
def vstore_n(typing, pointer, value, n):
    """Store the first `n` lanes; nothing after them is accessed."""

    def lower(context, builder, sig, args):
        emit_store(builder, args[1], args[0], emit_mask(builder, args[2]))
        return context.get_dummy_value()

    return types.void(_F32P, vec, types.int64), lower


@intrinsic
def splat(typing, scalar):
    """A vector of one float32 repeated."""
    return vec(types.float32), lambda context, builder, sig, args: emit_splat(builder, args[0])


def _ternary(name: str, arity: int) -> Any:
    def lower(context, builder, sig, args):
        return builder.call(declare(builder, f"llvm.{name}.v{LANES}f32", _VEC, *[_VEC] * arity), args)

    if arity == 3:

        @intrinsic
        def call(typing, a, b, c):
            return vec(vec, vec, vec), lower

    elif arity == 2:

        @intrinsic
        def call(typing, a, b):
            return vec(vec, vec), lower

    else:

        @intrinsic
        def call(typing, a):
            return vec(vec), lower

    return call


FMA = "fma" if SHAPE.fused else "fmuladd"
"""LLVM's intrinsic for a * b + c: rounded once if targets of this shape have the instruction; if not, twice, which
avoids a call into libm."""
vfma = _ternary(FMA, 3)
"""a * b + c."""
vsqrt, vabs = _ternary("sqrt", 1), _ternary("fabs", 1)


def _rounded(name: str, kind: Any, lanes: int) -> Any:
    """One of the operations that round to whole numbers, on vectors or on scalars."""

    @intrinsic
    def rounded(typing, a):
        return kind(kind), lambda context, builder, sig, args: call(builder, name, lanes, *args)

    return rounded


vfloor, vrint = (_rounded(name, vec, LANES) for name in ("floor", "rint"))
"""Each lane rounded to a whole number: down; to the nearest, halves to even."""


def emit_fused(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c for vectors of float32, rounded once on every target.

    On targets without such an instruction float64 is used: the product is exact, and a sum rounded to odd (its last bit
    is set if it was inexact) rounds to float32 like the exact sum (Boldo and Melquiond 2008). The error of the sum is
    computed by Knuth's two-sum.
    """
    if FMA == "fma":
        return builder.call(declare(builder, f"llvm.fma.v{a.type.count}f32", *[a.type] * 4), [a, b, c])
    doubles, longs = (ir.VectorType(kind, a.type.count) for kind in (ir.DoubleType(), _I64))
    a, b, c = (builder.fpext(value, doubles) for value in (a, b, c))
    product = builder.fmul(a, b)
    total = builder.fadd(product, c)
    rest = builder.fsub(total, product)
    lost = builder.fadd(builder.fsub(product, builder.fsub(total, rest)), builder.fsub(c, rest))
    bits, sign = builder.bitcast(total, longs), builder.bitcast(lost, longs)
    one, zero = ir.Constant(longs, [1] * longs.count), ir.Constant(longs, [0] * longs.count)
    even = builder.icmp_signed("==", builder.and_(bits, one), zero)
    move = builder.and_(even, builder.fcmp_ordered("!=", lost, ir.Constant(doubles, [0.0] * doubles.count)))
    apart = builder.icmp_signed("<", builder.xor(bits, sign), zero)
    odd = builder.select(apart, builder.sub(bits, one), builder.add(bits, one))
    return builder.fptrunc(
        builder.bitcast(builder.select(move, odd, bits), doubles), ir.VectorType(_F32, doubles.count)
    )


def emit_max(builder: Any, a: Any, b: Any, predicate: str = ">") -> Any:
    """a if a > b else b: NaN in `a` gives b, like x86's maxps; "<" gives the minimum."""
    return builder.select(builder.fcmp_ordered(predicate, a, b), a, b)


@intrinsic
def vmax(typing, a, b):
    """Lane-wise a if a > b else b."""
    return vec(vec, vec), lambda context, builder, sig, args: emit_max(builder, args[0], args[1])


@intrinsic
def vmin(typing, a, b):
    """Lane-wise a if a < b else b."""
    return vec(vec, vec), lambda context, builder, sig, args: emit_max(builder, args[0], args[1], "<")


@intrinsic
def vmax_nan(typing, a, b):
    """Lane-wise maximum; NaN if either is NaN (ONNX Max, NumPy maximum)."""

    def lower(context, builder, sig, args):
        a, b = args
        keep = builder.or_(builder.fcmp_ordered(">", a, b), builder.fcmp_unordered("uno", a, a))
        return builder.select(keep, a, b)

    return vec(vec, vec), lower


# -- scalars without libm ---------------------------------------------------------------------------------------------


def _scalar(name: str, arity: int) -> Any:
    def lower(context, builder, sig, args):
        return builder.call(declare(builder, f"llvm.{name}.f32", _F32, *[_F32] * arity), args)

    if arity == 2:

        @intrinsic
        def call(typing, a, b):
            return types.float32(types.float32, types.float32), lower

    elif arity == 3:

        @intrinsic
        def call(typing, a, b, c):
            return types.float32(types.float32, types.float32, types.float32), lower

    else:

        @intrinsic
        def call(typing, a):
            return types.float32(types.float32), lower

    return call


fma = _scalar(FMA, 3)
sqrt, fabs, copysign = _scalar("sqrt", 1), _scalar("fabs", 1), _scalar("copysign", 2)
floor, ceil, trunc, rint = (_rounded(name, types.float32, 1) for name in ("floor", "ceil", "trunc", "rint"))
"""float32 functions that no target computes by a call of a library."""


def _on_stack(builder: Any, kind: ir.Type) -> Any:
    """Uninitialised, 64-byte aligned memory of the function's frame. (cgutils.alloca_once would fill it with zeros.)"""
    with builder.goto_entry_block():
        block = builder.alloca(kind)
    block.align = 64
    return block


@intrinsic(prefer_literal=True)
def stack_words(typing, count):
    """`count` (a literal) int64 of scratch on the stack, as a pointer; one block per call site."""
    n = count.literal_value

    def lower(context, builder, sig, args):
        return builder.bitcast(_on_stack(builder, ir.ArrayType(_I64, n)), _I64.as_pointer())

    return signature(_WORDS, count), lower


@intrinsic(prefer_literal=True)
def stack_floats(typing, count):
    """`count` (a literal) float32 of scratch on the stack, 64-byte aligned."""
    n = count.literal_value

    def lower(context, builder, sig, args):
        return builder.bitcast(_on_stack(builder, ir.ArrayType(_F32, n)), _F32.as_pointer())

    return signature(_F32P, count), lower


@intrinsic
def address(typing, pointer):
    """The address of a typed pointer, as int64."""

    def lower(context, builder, sig, args):
        return builder.ptrtoint(args[0], _I64)

    return types.int64(pointer), lower
