"""Translation of operators: a graph under construction (`Program`), and a subgraph's tensors in it (`Scope`).

A tensor has up to two values: raw (as stored) and real (dequantised). An operator gives one; the other is created at
its first use. A quantised tensor's real value always comes from its raw one, so rounding happens where the file
says it does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from converter.errors import ConvertError
from converter.frontends.loaded import Integers
from converter.frontends.tflite import schema
from converter.frontends.tflite.contents import PACKED
from converter.frontends.tflite.custom import rule_of
from converter.frontends.tflite.infer import infer
from converter.frontends.tflite.model import Model, Operator, Quant, Subgraph, Tensor
from converter.frontends.tflite.op import INTEGERS, Op, Result
from converter.frontends.tflite.state import LARGEST, States
from converter.ir import build, quantization
from lite_runtime.graph import OPSET

__all__ = ["Program", "Scope"]

_OPERATORS_LIMIT = 200_000
_UNFOLDING = ("DEQUANTIZE", "DENSIFY")
"""Operators that only decode a stored constant: the constant itself replaces them."""
_SHOWN = 16
"""Operators that an error lists."""
_SHARED_UP_TO = 1024
"""Largest constant, in bytes, that is shared with equal ones as one initialiser."""
_PACKED_TYPES = {
    ir.DataType.INT4: ml_dtypes.int4,
    ir.DataType.UINT4: ml_dtypes.uint4,
    ir.DataType.INT2: ml_dtypes.int2,
}
_WHAT_RULES_TRIP_OVER = (
    ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, TypeError, ValueError,
)  # fmt: skip


class Program:
    """One ONNX graph being built from a file: its names, initialisers and number of operators translated so far."""

    def __init__(self, model: Model, name: str, reserved: Sequence[str], integers: Integers = "exact") -> None:
        self.model, self.integers = model, integers
        self.graph = ir.Graph(
            [], [], nodes=[], name=name, opset_imports={"": OPSET, build.DOMAIN: build.DOMAIN_VERSION}
        )
        self.graph.meta[quantization.ARITHMETIC] = integers
        self._taken, self._made, self._numbers = set(reserved), set[str](), itertools.count(1)
        self._shared: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}
        self._operators = 0
        self.states = States(model, self.graph, self.name)

    def name(self, hint: str) -> str:
        """`hint` itself if the name is still free, and not so long that a bundle cannot hold it."""
        if hint and len(hint) <= build.LONGEST and hint not in self._taken:
            self._taken.add(hint)
            return hint
        return self.fresh(hint)

    def fresh(self, hint: str) -> str:
        """An unused name that ends in a number."""
        hint = hint[: build.LONGEST] or "value"
        name = next(name for name in (f"{hint}~{number}" for number in self._numbers) if name not in self._taken)
        self._taken.add(name)
        self._made.add(name)
        return name

    def rename(self, value: ir.Value, name: str) -> None:
        """Give a value the tensor's own name if it still has a generated one."""
        if value.name in self._made and name not in self._taken:
            self._made.discard(value.name)
            value.name = self.name(name)

    def initializer(self, array: np.ndarray, hint: str, dtype: ir.DataType | None = None) -> ir.Value:
        """A constant of the graph. `dtype`: the ONNX type where numpy has no own (4-bit values in 8-bit arrays)."""
        if dtype in _PACKED_TYPES:
            array = array.astype(_PACKED_TYPES[dtype])
        key = (str(array.dtype), array.shape, array.tobytes()) if array.nbytes <= _SHARED_UP_TO else None
        if key is not None and array.dtype != object and key in self._shared:
            return self._shared[key]
        tensor = ir.StringTensor(array) if array.dtype == object else ir.tensor(np.asarray(array, order="C"))
        tensor.name = self.name(hint)
        shape = ir.Shape(array.shape)
        value = ir.Value(name=tensor.name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
        self.graph.register_initializer(value)
        if key is not None and array.dtype != object:
            self._shared[key] = value
        return value

    def count(self, where: str) -> None:
        """Count one operator. Raises ConvertError if subgraphs that call each other produce too many."""
        self._operators += 1
        if self._operators > _OPERATORS_LIMIT:
            raise ConvertError(f"{where}: more than {_OPERATORS_LIMIT} operators once calls are inlined")


class Scope:
    """A subgraph while its operators are translated into `graph`."""

    def __init__(
        self, program: Program, subgraph: Subgraph, graph: ir.Graph, calls: tuple[int, ...], outer: Scope | None = None
    ) -> None:
        self._program, self._subgraph, self._graph, self._calls = program, subgraph, graph, calls
        self._raw: dict[int, ir.Value] = dict(outer._raw) if outer else {}
        self._real: dict[int, ir.Value] = dict(outer._real) if outer else {}
        self._folded: dict[int, Tensor] = dict(outer._folded) if outer else {}

    # translating

    def bind(self, tensor: int, value: ir.Value) -> None:
        """`value` is what tensor `tensor` stores."""
        self._raw[tensor] = value

    def run(self) -> None:
        """Translate all operators in order. Raises one ConvertError that lists all that cannot be translated.

        What such an operator gives is replaced by a value of the declared type and shape. An operator that reads it and
        fails, too, may fail because of that, and is not listed.
        """
        failures, replaced = list[ConvertError](), set[int]()
        for operator in self._subgraph.operators:
            self._program.count(self.where(operator))
            try:
                self._translate(operator)
            except ConvertError as error:
                if replaced.isdisjoint(operator.inputs):
                    failures.append(error)
                for index in operator.outputs:
                    if index >= 0 and self.tensor(index).dtype is not None:
                        self._raw.setdefault(index, _declared(self.tensor(index), ""))
                        replaced.add(index)
        if len(failures) == 1:
            raise failures[0]
        if failures:
            more = f"\n  and {len(failures) - _SHOWN} more" if len(failures) > _SHOWN else ""
            listed = "\n  ".join(map(str, failures[:_SHOWN]))
            raise ConvertError(f"{len(failures)} operators cannot be translated:\n  {listed}{more}")

    def _translate(self, operator: Operator) -> None:
        if operator.name in _UNFOLDING and len(operator.inputs) == len(operator.outputs) == 1:
            source = self._constant(operator.inputs[0]) if operator.inputs[0] >= 0 else None
            if source is not None and operator.outputs[0] >= 0:
                self._folded[operator.outputs[0]] = source
                return
        try:
            result = self._result(Op(self, operator))
        except _WHAT_RULES_TRIP_OVER as error:
            raise ConvertError(
                f"{self.where(operator)}: its operands or options do not fit ({type(error).__name__}: {error}); if "
                "LiteRT runs the model, report this as a bug of msedge"
            ) from error
        values = [result] if isinstance(result, ir.Value) else list(result)
        if len(values) < len(operator.outputs):
            values += [None] * (len(operator.outputs) - len(values))
        for index, value in zip(operator.outputs, values, strict=False):
            if index >= 0 and value is not None:
                self._take(operator, index, value)

    def _result(self, op: Op) -> Result:
        """By the rule for LiteRT's integers if they are wanted and it applies, else by the rule on real numbers."""
        tensors = (self.tensor(i) for i in (*op.operator.inputs, *op.operator.outputs) if i >= 0)
        rule = INTEGERS.get(op.name) if self.litert and any(t.quantized for t in tensors) else None
        found = rule(op) if rule is not None else None
        return rule_of(op.operator)(op) if found is None else found

    def _take(self, operator: Operator, index: int, value: ir.Value) -> None:
        """`value` is the operator's result for tensor `index`: stored or real, by its type."""
        tensor = self.tensor(index)
        if index in self._raw or index in self._real:
            raise ConvertError(
                f"{self.where(operator)}: tensor {tensor.name!r} has a value already; the file is damaged"
            )
        if tensor.quant is not None and value.dtype != tensor.dtype and _dequantizes(value.dtype):
            self._describe(value, tensor)
            value = self._quantize(operator, tensor, value)
        self._describe(value, tensor)
        self._raw[index] = value
        self._program.rename(value, tensor.name or f"tensor {index}")

    def _describe(self, value: ir.Value, tensor: Tensor) -> None:
        """Use the file's declared type and shape where inference found none."""
        if value.type is None and tensor.dtype is not None:
            value.type = ir.TensorType(tensor.dtype)
        declared = [None if d < 0 else d for d in tensor.shape_signature]
        known = build.dims(value)
        if known is None:
            value.shape = ir.Shape(declared) if tensor.has_rank else None
        elif len(known) == len(declared) and value.const_value is None:
            value.shape = ir.Shape([d if k is None else k for k, d in zip(known, declared, strict=True)])

    def output(self, index: int, name: str) -> ir.Value:
        """Tensor `index` as a graph output called `name`."""
        value = self.raw(index)
        if value.producer() is None or value.graph is not self._graph or value in self._graph.outputs:
            value = self._plain("Identity", [value], {}, name)
        value.name = name
        return value

    def where(self, operator: Operator) -> str:
        """Which operator, for error texts."""
        name = next((self._subgraph.tensors[i].name for i in operator.outputs if i >= 0), "")
        inside = f"subgraph {self._subgraph.index}, " if len(self._program.model.subgraphs) > 1 else ""
        return f"{inside}operator {operator.index} {operator.name} ({name!r})"

    @property
    def states(self) -> States:
        """The variables of the whole graph."""
        return self._program.states

    @property
    def litert(self) -> bool:
        """`Op.litert`."""
        return self._program.integers == "litert"

    # tensors

    @property
    def index(self) -> int:
        """The subgraph's number in the file."""
        return self._subgraph.index

    def tensor(self, index: int) -> Tensor:
        """Tensor `index` of the subgraph."""
        return self._subgraph.tensors[index]

    def _constant(self, index: int) -> Tensor | None:
        """The constant that tensor `index` is, as the file stores it (before DEQUANTIZE or DENSIFY)."""
        tensor = self._folded.get(index, self._subgraph.tensors[index])
        return tensor if tensor.const else None

    def const(self, index: int) -> np.ndarray | None:
        """The contents of a constant, as tensor `index` stores them."""
        tensor = self._constant(index)
        if tensor is None:
            return None
        return tensor.array if tensor.dtype == self.tensor(index).dtype else _real_array(tensor)

    def real_const(self, index: int) -> np.ndarray | None:
        """The contents of a constant as real numbers."""
        tensor = self._constant(index)
        return None if tensor is None else _real_array(tensor)

    def raw(self, index: int) -> ir.Value:
        """The tensor as stored."""
        if index not in self._raw:
            self._raw[index] = self._stored(index)
        return self._raw[index]

    def _stored(self, index: int) -> ir.Value:
        tensor, constant = self.tensor(index), self._constant(index)
        if constant is not None:
            return self._initializer(constant) if constant.dtype == tensor.dtype else self.real(index)
        if tensor.is_variable and tensor.dtype is not None:
            zero = 0 if tensor.quant is None else tensor.quant.zero_point.reshape(-1)[0]
            if prod(tensor.shape) > LARGEST:
                raise ConvertError(f"tensor {tensor.name!r}: a variable of shape {list(tensor.shape)} is too large")
            return self._program.initializer(np.full(tensor.shape, zero, tensor.dtype.numpy()), tensor.name)
        raise ConvertError(
            f"subgraph {self._subgraph.index}: tensor {tensor.name!r} is read before any operator computes it; "
            "expected operators in execution order"
        )

    def real(self, index: int) -> ir.Value:
        """The tensor as real numbers."""
        if index not in self._real:
            constant = self._constant(index)
            if constant is None:
                tensor, raw = self.tensor(index), self.raw(index)
                self._real[index] = raw if tensor.quant is None else self._dequantize(tensor, tensor.quant, raw)
            else:
                self._real[index] = self._real_constant(constant, _array(constant))
        return self._real[index]

    def _initializer(self, tensor: Tensor) -> ir.Value:
        return self._program.initializer(_array(tensor), tensor.name or f"tensor {tensor.index}", tensor.dtype)

    def _real_constant(self, tensor: Tensor, array: np.ndarray, quant: Quant | None = None) -> ir.Value:
        """A constant's values, laid out as in `array`, as real numbers; narrow types stay narrow in the file."""
        quant = quant or tensor.quant
        name = tensor.name or f"tensor {tensor.index}"
        if quant is not None and tensor.dtype == ir.DataType.INT64:
            return self._program.initializer(_dequantized(array, quant), name)
        stored = self._program.initializer(array, name, tensor.dtype)
        if quant is not None:
            return self._dequantize(tensor, quant, stored)
        if tensor.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
            return self._plain("Cast", [stored], {"to": int(ir.DataType.FLOAT)}, name)
        return stored

    # quantisation

    def _dequantize(self, tensor: Tensor, quant: Quant, stored: ir.Value) -> ir.Value:
        if tensor.dtype == ir.DataType.INT64:
            raise ConvertError(f"tensor {tensor.name!r}: expected quantised values of at most 32 bits, got 64")
        inputs, attrs = self._quant_operands(tensor, quant)
        if tensor.dtype == ir.DataType.INT32:
            inputs = inputs[:1]  # ONNX: int32 has no zero point
        return self._plain("DequantizeLinear", [stored, *inputs], attrs, tensor.name)

    def _quantize(self, operator: Operator, tensor: Tensor, value: ir.Value) -> ir.Value:
        if tensor.quant is None:
            raise ConvertError(
                f"{self.where(operator)}: expected a quantised result, got {tensor.type_name} without scale; "
                "check the file with `msedge inspect`"
            )
        if (tensor.quant.scale <= 0).any():
            raise ConvertError(f"{self.where(operator)}: expected a scale above 0, got {tensor.quant.scale.min()}")
        if tensor.dtype in (ir.DataType.INT32, ir.DataType.INT64):
            return self._quantize_wide(operator, tensor, tensor.quant, value)
        inputs, attrs = self._quant_operands(tensor, tensor.quant)
        return self.emit(operator, "QuantizeLinear", [value, *inputs], attrs, 1, "")[0]

    def _quantize_wide(self, operator: Operator, tensor: Tensor, quant: Quant, value: ir.Value) -> ir.Value:
        """QuantizeLinear has no form for 32-bit results: divided and rounded in float64."""
        if tensor.dtype != ir.DataType.INT32 or not quant.per_tensor:
            kind = f"{tensor.type_name}{'' if quant.per_tensor else ' with a scale for each channel'}"
            raise ConvertError(
                f"{self.where(operator)}: expected a result of 4, 8, 16 or 32 bits with one scale, got {kind}"
            )

        def emit(op: str, *inputs: ir.Value, **attrs: Any) -> ir.Value:
            return self.emit(operator, op, inputs, attrs, 1, "")[0]

        def number(x: Any) -> ir.Value:
            return self.constant(np.asarray(x, np.float64), None, "")

        steps = emit("Div", emit("Cast", value, to=int(ir.DataType.DOUBLE)), number(quant.scale))
        whole = emit("Add", emit("Round", steps), number(quant.zero_point))
        limits = np.iinfo(np.int32)
        return emit("Cast", emit("Clip", whole, number(limits.min), number(limits.max)), to=int(tensor.dtype))

    def _quant_operands(self, tensor: Tensor, quant: Quant) -> tuple[list[ir.Value], dict[str, Any]]:
        name = tensor.name or f"tensor {tensor.index}"
        if tensor.dtype is None:
            raise ConvertError(f"tensor {name!r}: expected quantised numbers, got {tensor.type_name}")
        kept = np.dtype(np.int8 if tensor.type_name.startswith("INT") else np.uint8)
        kept = kept if tensor.type_name in PACKED else tensor.dtype.numpy()
        scale = self._program.initializer(quant.scale, name + " scale")
        zero = self._program.initializer(quant.zero_point.astype(kept), name + " zero point", tensor.dtype)
        if quant.block:
            return [scale, zero], {"axis": quant.axis, "block_size": quant.block}
        return [scale, zero], {} if quant.per_tensor else {"axis": quant.axis}

    def permuted(self, op: Op, index: int, perm: tuple[int, ...], shape: Sequence[int] | None) -> ir.Value:
        """`Op.permuted`."""
        tensor = self._constant(index)
        if tensor is None or tensor.array is None:
            value = self.real(index)
            if shape is not None:
                value = op.emit("Reshape", [value, op.constant(list(shape), np.int64)])
            return op.emit("Transpose", [value], {"perm": perm})
        array, quant = tensor.array, tensor.quant
        if shape is not None:
            array, quant = array.reshape(tuple(shape)), _reshaped(op, tensor, tuple(shape))
        if array.ndim != len(perm):
            op.fail(f"expected {tensor.name!r} with {len(perm)} axes, got shape {list(array.shape)}")
        array = np.asarray(array.transpose(perm), order="C")
        if quant is not None and not quant.per_tensor:
            quant = replace(quant, axis=perm.index(quant.axis))
            if quant.block:
                quant = replace(quant, scale=quant.scale.transpose(perm), zero_point=quant.zero_point.transpose(perm))
        return self._real_constant(tensor, array, quant)

    # nodes

    def emit(
        self,
        operator: Operator,
        op: str,
        inputs: Sequence[ir.Value | None],
        attrs: Mapping[str, Any],
        outputs: int,
        domain: str,
    ) -> tuple[ir.Value, ...]:
        """`Op.emit`."""
        hint = next((self._subgraph.tensors[i].name for i in operator.outputs if i >= 0), operator.name)
        if domain not in ("", build.DOMAIN):
            self._program.graph.opset_imports.setdefault(domain, 1)
        made = self._node(op, inputs, attrs, outputs, domain, hint)
        node = made[0].producer()
        if node is None:
            raise ConvertError(f"{self.where(operator)}: expected a node for its result, got none")
        node.metadata_props["source_location"] = f"subgraph {self._subgraph.index}, operator {operator.index}"
        return made

    def _plain(self, op: str, inputs: Sequence[ir.Value | None], attrs: Mapping[str, Any], hint: str) -> ir.Value:
        return self._node(op, inputs, attrs, 1, "", hint)[0]

    def _node(
        self, op: str, inputs: Sequence[ir.Value | None], attrs: Mapping[str, Any], outputs: int, domain: str, hint: str
    ) -> tuple[ir.Value, ...]:
        results = [ir.Value(name=self._program.fresh(hint)) for _ in range(outputs)]
        node = ir.Node(domain, op, inputs, outputs=results, name=self._program.fresh(hint))
        build.set_attrs(node, **attrs)
        self._graph.append(node)
        infer(node)
        return tuple(results)

    def constant(self, values: Any, dtype: Any, hint: str) -> ir.Value:
        """`Op.constant`."""
        array = np.asarray(values, dtype)
        if dtype is None and not isinstance(values, np.ndarray | np.generic):
            array = array.astype({"i": np.int64, "f": np.float32}.get(array.dtype.kind, array.dtype))
        return self._program.initializer(array, hint or "constant")

    def activation(self, op: Op, value: ir.Value) -> ir.Value:
        """`Op.activation`."""
        number = op.option("fused_activation_function", 0)
        if not 0 <= number < len(schema.ACTIVATIONS):
            op.fail(f"expected a fused activation of 0 to {len(schema.ACTIVATIONS) - 1}, got {number}")
        name = schema.ACTIVATIONS[number]
        if name == "NONE":
            return value
        if name in _CLIPS:
            dtype = np.dtype(np.float32 if value.dtype is None else value.dtype.numpy())
            least = 0.0 if dtype.kind == "u" else -math.inf
            low, high = (self.constant(max(bound, least), dtype, "bound") for bound in _CLIPS[name])
            return op.emit("Clip", [value, low, high])
        if name not in _FUNCTIONS:
            op.fail(f"fused activation {name} is not defined for real numbers; use RELU, RELU6, RELU_N1_TO_1 or TANH")
        return op.emit(_FUNCTIONS[name], [value])

    # other subgraphs

    def call(self, op: Op, index: int, arguments: Sequence[ir.Value]) -> list[ir.Value]:
        """`Op.call`."""
        subgraph = self._callee(op, index)
        if len(arguments) != len(subgraph.inputs):
            op.fail(f"passes {len(arguments)} values to subgraph {index}, which has {len(subgraph.inputs)} inputs")
        scope = Scope(self._program, subgraph, self._graph, (*self._calls, index))
        for tensor, value in zip(subgraph.inputs, arguments, strict=True):
            scope.bind(tensor, value)
        scope.run()
        return [scope.raw(i) for i in subgraph.outputs]

    def _callee(self, op: Op, index: int) -> Subgraph:
        subgraphs = self._program.model.subgraphs
        if not 0 <= index < len(subgraphs):
            op.fail(f"calls subgraph {index}, but the model has {len(subgraphs)}")
        if index in self._calls:
            op.fail(f"subgraph {index} calls itself (through {' -> '.join(map(str, self._calls))}); refused")
        return subgraphs[index]

    def patterns(self, op: Op, index: int) -> list[ir.Value]:
        """Values with the types and shapes of subgraph `index`'s inputs."""
        subgraph = self._callee(op, index)
        return [_declared(subgraph.tensors[i], "") for i in subgraph.inputs]

    def nested(
        self, op: Op, make: Callable[[Op, list[ir.Value]], Sequence[ir.Value]], inputs: Sequence[ir.Value]
    ) -> ir.Graph:
        """`Op.graph`."""
        hint = f"{op.name.lower()} graph"
        fresh = [ir.Value(name=self._program.fresh(v.name or hint), type=v.type, shape=v.shape) for v in inputs]
        graph = ir.Graph(fresh, [], nodes=[], name=self._program.fresh(hint), opset_imports={"": OPSET})
        inner = Scope(self._program, self._subgraph, graph, self._calls, self)
        outputs = list(make(Op(inner, op.operator), fresh))
        seen: set[ir.Value] = set()
        for i, value in enumerate(outputs):
            if value in seen or value.producer() is None or value.graph is not graph:
                outputs[i] = inner._plain("Identity", [value], {}, value.name or hint)
            seen.add(outputs[i])
        graph.outputs.extend(outputs)
        return graph


_CLIPS = {"RELU6": (0.0, 6.0), "RELU_N1_TO_1": (-1.0, 1.0)}
_FUNCTIONS = {"RELU": "Relu", "TANH": "Tanh"}


def _dequantizes(dtype: ir.DataType | None) -> bool:
    return dtype is None or dtype.is_floating_point()


def _declared(tensor: Tensor, name: str) -> ir.Value:
    """A value with the tensor's type and shape."""
    if tensor.dtype is None:
        raise ConvertError(f"tensor {tensor.name!r}: a {tensor.type_name} cannot be an input; only plain tensors can")
    shape = ir.Shape([None if d < 0 else d for d in tensor.shape_signature]) if tensor.has_rank else None
    return ir.Value(name=name or tensor.name, type=ir.TensorType(tensor.dtype), shape=shape)


def _array(tensor: Tensor) -> np.ndarray:
    """A constant's contents. Raises ConvertError where the file holds none."""
    if tensor.array is None:
        raise ConvertError(f"tensor {tensor.name or tensor.index!r}: expected a constant, got no contents in the file")
    return tensor.array


def _real_array(tensor: Tensor) -> np.ndarray:
    array = _array(tensor)
    if tensor.quant is not None:
        return _dequantized(array, tensor.quant)
    return array.astype(np.float32) if tensor.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) else array


def _dequantized(array: np.ndarray, quant: Quant) -> np.ndarray:
    """float32 (q - zero_point) * scale."""
    scale, zero = quant.scale, quant.zero_point
    if quant.block:
        scale, zero = (np.repeat(part, quant.block, quant.axis) for part in (scale, zero))
    elif not quant.per_tensor:
        lined_up = [-1 if d == quant.axis else 1 for d in range(array.ndim)]
        scale, zero = scale.reshape(lined_up), zero.reshape(lined_up)
    return np.asarray((array.astype(np.int64) - zero).astype(np.float32) * scale, np.float32)


def _reshaped(op: Op, tensor: Tensor, shape: tuple[int, ...]) -> Quant | None:
    """The tensor's quantisation after a reshape that leaves the quantised axis whole."""
    quant = tensor.quant
    if quant is None or quant.per_tensor:
        return quant
    before = int(np.prod(tensor.shape[: quant.axis]))
    for axis, size in enumerate(shape):
        if size == tensor.shape[quant.axis] and int(np.prod(shape[:axis])) == before and not quant.block:
            return replace(quant, axis=axis)
    op.fail(
        f"{tensor.name!r} of shape {list(tensor.shape)} is quantised along dimension {quant.axis}, lost in {shape}"
    )
