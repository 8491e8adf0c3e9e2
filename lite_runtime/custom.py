"""Operators of a user's program: a class with the operator's record, its result types and its meaning in NumPy.

    @register
    class Clamp(CustomOperator):
        domain, name = "acme", "Clamp"
        attributes = "low:f! high:f!"

        def infer(self, x, *, low, high):
            return x                                  # the result has the type and shape of x

        def compute(self, x, *, low, high):
            return np.clip(x, np.float32(low), np.float32(high))

A method `kernel` may give a function that Numba compiles, so that the operator runs inside the native program.

A bundle holds the operator's name and attributes only, "acme::Clamp". Nothing is imported because a file says so: a
program that has not registered the operator refuses the bundle. Custom operators of TensorFlow Lite have the domain
`TFLITE`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, ClassVar, TypeVar

import numpy as np

from lite_runtime.errors import MsedgeError, ShapeError
from lite_runtime.graph import Array, Spec, dtype_name, numpy_dtype, spec_of
from lite_runtime.operators import ONNX, OURS, Attribute, Operator, find
from lite_runtime.operators.record import CUSTOM, parsed
from lite_runtime.ops.registry import BINDS, INFERS, Binder, DataDependent, Inference, NoKernel
from lite_runtime.reference.registry import REGISTERED

__all__ = ["TFLITE", "CustomOperator", "attributes", "key", "record", "register", "registered", "unregister"]

TFLITE = "tflite.custom"
"""The domain of TensorFlow Lite's custom operators; their name is the custom code."""


class CustomOperator:
    """One operator. Subclasses set `domain` and `name`, and define `compute`.

    Inputs that are left out are None. Attributes come as keywords: int, float, str, tuples of these, arrays; those that
    a model leaves out are not passed, so that `compute` and `infer` state their defaults.
    """

    domain: ClassVar[str] = ""
    name: ClassVar[str] = ""
    inputs: ClassVar[tuple[int, int]] = (1, 1)
    """The least and greatest number; likewise for `outputs`."""
    outputs: ClassVar[tuple[int, int]] = (1, 1)
    attributes: ClassVar[str] = ""
    """`name:kind` for each, as in lite_runtime/operators/record.py: i, f, s, tuples I, F, S, array T; `!` if it must be
    given."""

    def infer(self, *inputs: Spec | None, **attributes: Any) -> Spec | Sequence[Spec] | None:
        """Element type and shape of every result, as `Spec(dtype, shape)`, from those of the inputs.

        None if they depend on contents: then what follows in a model is planned when they are known."""
        return None

    def compute(self, *inputs: Array | None, **attributes: Any) -> Array | tuple[Array, ...]:
        """The results for these inputs, which cannot be changed; several are a tuple. A pure function: equal nodes of a
        model may be computed once, and nodes without readers not at all."""
        raise NotImplementedError

    shared: ClassVar[bool] = False
    """Whether workers share the function that `kernel` gives: it then also gets the worker's number and how many there
    are, and each worker computes its part."""

    def kernel(self, *inputs: Spec | None, **attributes: Any) -> Callable[..., None] | None:
        """A function for these operands that Numba compiles: it gets the arrays of the inputs that are not left out,
        then those of all results, contiguous and of exactly these types, and writes the results. It computes what
        `compute` does, must not raise, and must not write inputs. What it closes over is constant.

        None, or a machine without Numba: `compute` runs. `compute` is also what other backends and `verify` use."""
        return None


Made = TypeVar("Made", bound=type[CustomOperator])
_CUSTOM: dict[str, tuple[Operator, Mapping[str, Attribute]]] = {}


def key(domain: str, name: str) -> str:
    """The operator's name in a bundle."""
    return f"{domain}{CUSTOM}{name}"


def record(op: str) -> Operator | None:
    """The record of a registered custom operator by its name in a bundle; None for other names."""
    found = _CUSTOM.get(op)
    return None if found is None else found[0]


def attributes(op: str) -> Mapping[str, Attribute]:
    """The attributes of a registered custom operator."""
    return _CUSTOM[op][1]


def registered() -> tuple[str, ...]:
    """The names of all registered custom operators."""
    return tuple(_CUSTOM)


def register(operator: Made) -> Made:
    """Make an operator known to the converter and the runtime of this process; also a class decorator.

    Raises MsedgeError for a name that msedge or an earlier registration has, or a malformed record.
    """
    name = key(operator.domain, operator.name)
    made = Operator(name, inputs=operator.inputs, outputs=operator.outputs, attrs=operator.attributes)
    try:
        known = parsed(operator.attributes)
    except ValueError as error:
        raise MsedgeError(f"custom operator {name}: {error}") from None
    if operator.domain in (*ONNX, OURS) or not operator.name or CUSTOM in operator.domain + operator.name:
        raise MsedgeError(f"custom operator {name}: expected a domain of your own and a name without {CUSTOM!r}")
    if find(operator.domain, operator.name) is not None or name in _CUSTOM:
        raise MsedgeError(f"custom operator {name}: there is an operator of this name already; choose another")
    if operator.compute is CustomOperator.compute:
        raise MsedgeError(f"custom operator {name}: expected a method compute, got none")
    calls = _Calls(name, operator())
    _CUSTOM[name] = made, known
    INFERS[name] = calls.infer
    REGISTERED[name] = calls.compute
    if operator.kernel is not CustomOperator.kernel:
        BINDS[name] = calls.bind
    return operator


def unregister(operator: type[CustomOperator]) -> None:
    """Forget an operator; models that are loaded already may still use it."""
    name = key(operator.domain, operator.name)
    for table in (_CUSTOM, INFERS, REGISTERED, BINDS):
        table.pop(name, None)


class _Calls:
    """Calls the methods of a user's operator and checks what they return."""

    def __init__(self, name: str, operator: CustomOperator) -> None:
        self._name, self._operator = name, operator
        self._compiled: dict[str, int] = {}
        """Addresses of compiled functions, by the types of operands and the attributes."""

    def infer(self, n: Inference) -> Sequence[Spec]:
        """The rule for result types."""
        found = self._types(n.specs, n.node.attrs)
        if found is None:
            raise DataDependent(n.node.where)
        return found

    def bind(self, b: Binder) -> None:
        """The rule for native steps: a call of the function that `kernel` gives."""
        from lite_runtime.steps.user import INPUTS, OUTPUTS, Call

        specs = [None if x is None else x.spec for x in b.inputs]
        made = self._types(specs, b.node.attrs)
        if made is None or not all(map(find_spec, ("numba", "lite_runtime.native.user"))):
            raise NoKernel("its types are not known, or this runtime cannot compile")
        from lite_runtime.native import user

        results = [y or b.scratch(*spec) for y, spec in zip(b.outputs, made, strict=False)]
        results += [b.scratch(*spec) for spec in made[len(results) :]]
        types = [*(spec for spec in specs if spec is not None), *made]
        if len(b.inputs) > len(INPUTS) or len(results) > len(OUTPUTS):
            raise NoKernel(f"more than {len(INPUTS)} operands or {len(OUTPUTS)} results")
        if not user.DTYPES.issuperset(spec.dtype for spec in types) or not all(spec.size for spec in types):
            raise NoKernel("an element type that Numba lacks, or no elements")
        fields: dict[str, Any] = dict.fromkeys((*INPUTS, *OUTPUTS))
        fields |= {**dict(zip(INPUTS, b.inputs, strict=False)), **dict(zip(OUTPUTS, results, strict=False))}
        places = Call.layout.by_name
        given = [name for name in (*INPUTS, *OUTPUTS) if fields[name] is not None]
        words = tuple((places[name].word, fields[name].spec) for name in given)
        shared = self._operator.shared
        plain = {k: a.tolist() if isinstance(a, np.ndarray) else a for k, a in b.node.attrs.items()}
        key = repr((words, sorted(plain.items())))
        if key not in self._compiled:
            function = self._asked("kernel", MsedgeError, *specs, **b.node.attrs)
            if function is None:
                raise NoKernel("its class gives no kernel for these operands")
            self._compiled[key] = user.address_of(self._name, function, words, shared)
        b.emit(Call(**fields, function=self._compiled[key]), parallel=shared)

    def compute(self, *inputs: Any, **attributes: Any) -> tuple[Array, ...]:
        """The definition. Results must have the types that `infer` announced."""
        views = [None if x is None else _frozen(x) for x in inputs]
        results = self._asked("compute", MsedgeError, *views, **attributes)
        several = results if isinstance(results, tuple) else (results,)
        made = [y[()] if isinstance(y, np.ndarray) and y.ndim else np.asarray(y) for y in several]
        announced = self._types([None if x is None else spec_of(x) for x in inputs], attributes)
        if announced is not None and len(announced) != len(made):
            expected = f"expected {len(announced)} results as infer says"
            raise ShapeError(f"compute of {self._name}: {expected}, got {len(made)}")
        for i, (y, spec) in enumerate(zip(made, announced or (), strict=False)):
            if (_dtype(y), y.shape) != (spec.dtype, spec.shape):
                raise ShapeError(
                    f"compute of {self._name}, result {i}: expected {spec.dtype}{list(spec.shape)} as infer says, "
                    f"got {y.dtype}{list(y.shape)}"
                )
        shared = [x for x in views if x is not None]
        return tuple(y.copy() if any(np.may_share_memory(y, x) for x in shared) else y for y in made)

    def _types(self, specs: Sequence[Spec | None], attributes: Mapping[str, Any]) -> tuple[Spec, ...] | None:
        found = self._asked("infer", ShapeError, *specs, **attributes)
        several = None if found is None else (found,) if isinstance(found, Spec) else tuple(found)
        for i, spec in enumerate(several or ()):
            if not isinstance(spec, Spec) or not _valid(spec):
                expected = "expected Spec(dtype, shape) with sizes of 0 or more"
                raise ShapeError(f"infer of {self._name}, result {i}: {expected}, got {spec!r}")
        return several

    def _asked(self, method: str, failure: type[MsedgeError], *operands: Any, **attributes: Any) -> Any:
        """What a method returns; `failure` if it fails."""
        try:
            return getattr(self._operator, method)(*operands, **attributes)
        except MsedgeError:
            raise
        except Exception as error:  # user code: an operator raises what it likes
            raise failure(f"{method} of {self._name} failed: {type(error).__name__}: {error}") from error


def _frozen(x: Array) -> Array:
    """A view that cannot be written."""
    view = x.view()
    view.flags.writeable = False
    return view


def _dtype(y: Array) -> str:
    try:
        return dtype_name(y.dtype)
    except MsedgeError:
        return str(y.dtype)


def _valid(spec: Spec) -> bool:
    try:
        numpy_dtype(spec.dtype)
    except (MsedgeError, TypeError, KeyError):
        return False
    return isinstance(spec.shape, tuple) and all(type(d) is int and d >= 0 for d in spec.shape)
