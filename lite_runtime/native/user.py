"""Functions of a user's program, compiled by Numba in this process for the operands of one node. Needs numba.

Such a function gets arrays; a step of a program has bases and byte offsets. What is compiled around it makes the
arrays, whose types and shapes are constants of the code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Spec, numpy_dtype

__all__ = ["DTYPES", "address_of"]

DTYPES = frozenset("bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64".split())
"""Element types that Numba's arrays have."""
_KEPT: list[Any] = []
"""Compiled functions: programs hold their addresses as long as the process lives."""


def address_of(name: str, function: Callable[..., None], operands: Sequence[tuple[int, Spec]], shared: bool) -> int:
    """The address of `void (step, bases, worker, workers)` that calls `function` with arrays.

    operands: the word of a step's record where an operand begins, and its type. shared: the function also gets the
    worker's number and how many there are. Raises MsedgeError, with the operator's name, for what Numba cannot compile.
    """
    from numba import cfunc, types
    from numba.core.errors import NumbaError

    words = types.CPointer(types.int64)
    signature = types.void(words, words, types.int64, types.int64)
    try:
        made = cfunc(signature, error_model="numpy")(_entry(function, operands, shared))
    except NumbaError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        why = next((line for line in lines if not line.startswith("Failed in")), type(error).__name__)
        raise MsedgeError(f"Numba cannot compile the kernel of {name}: {why}") from error
    _KEPT.append(made)
    return int(made.address)


def _entry(function: Callable[..., None], operands: Sequence[tuple[int, Spec]], shared: bool) -> Any:
    """`function` behind as many functions as it has operands, each of which appends one array to a tuple."""
    from numba import njit

    inner = njit(error_model="numpy")(function)

    if shared:

        def last(step, bases, worker, workers, arrays):  # type: ignore[no-untyped-def]
            inner(*(arrays + (worker, workers)))  # noqa: RUF005 # Numba has no other form

    else:

        def last(step, bases, worker, workers, arrays):  # type: ignore[no-untyped-def]
            inner(*arrays)

    then = njit(last)
    for word, spec in reversed(operands):
        then = njit(_taking(word, spec, then))
    first = then

    def entry(step, bases, worker, workers):  # type: ignore[no-untyped-def]
        first(step, bases, worker, workers, ())

    return entry


def _taking(word: int, spec: Spec, then: Any) -> Any:
    from numba import carray

    at, dtype, shape = _pointer(), numpy_dtype(spec.dtype), spec.shape

    def taking(step, bases, worker, workers, arrays):  # type: ignore[no-untyped-def]
        array = carray(at(bases[step[word]] + step[word + 1]), shape, dtype)
        then(step, bases, worker, workers, arrays + (array,))  # noqa: RUF005 # as above

    return taking


def _pointer() -> Any:
    """An address as a pointer."""
    from numba import types
    from numba.extending import intrinsic

    @intrinsic  # type: ignore[untyped-decorator]
    def pointer(typing: Any, address: Any) -> Any:
        def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

        return types.voidptr(types.int64), lower

    return pointer
