"""The interface of rules that translate TensorFlow Lite operators (`Op`), and the table of all rules (`translate`).

A rule reads operands, emits standard ONNX nodes, and returns one value for each output of the operator:

    @translate("ADD")
    def add(op: Op) -> ir.Value:
        return op.activation(op.emit("Add", [op.real(0), op.real(1)]))

Rules work with real numbers. `op.real(i)` of a quantised tensor is its DequantizeLinear; a rule's float result for a
quantised output tensor gets the QuantizeLinear of that tensor. A rule that only moves data reads `op.raw(i)` and
returns a value of the output's stored type, which is then used unchanged. Integer models therefore become QDQ graphs.

Where the result must be LiteRT's integers and rounding real numbers gives others, a rule registered with
`@integers("ADD")` is asked first. It returns the stored result, or None for the rule on real numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, TypeAlias, TypeVar, overload

import numpy as np
import onnx_ir as ir

from converter.errors import ConvertError
from converter.frontends.tflite.model import Custom, Operator, Tensor
from converter.ir import build
from lite_runtime.operators import require

if TYPE_CHECKING:
    from converter.frontends.tflite.state import States

__all__ = ["INTEGERS", "RULES", "IntegerRule", "Op", "Result", "Rule", "Surroundings", "integers", "named", "translate"]

Result: TypeAlias = ir.Value | Sequence[ir.Value | None]
Rule: TypeAlias = Callable[["Op"], Result]
RULES: dict[str, Rule] = {}
"""Rule by operator name: the schema's BuiltinOperator names, or the name of a custom operator."""
IntegerRule: TypeAlias = Callable[["Op"], Result | None]
INTEGERS: dict[str, IntegerRule] = {}
"""Rules that compute LiteRT's integers, by operator name. None: the operator's rule in `RULES` gives them as well."""


def named(table: Mapping[str, str]) -> Mapping[str, str]:
    """A table of TensorFlow Lite's names for operators of ours, LookupError for one without a record."""
    require(table.values(), "rules for TensorFlow Lite")
    return table


def translate(*names: str) -> Callable[[Rule], Rule]:
    """Register the decorated function as the rule of these operators. A name has one rule."""
    return lambda rule: _registered(RULES, names, rule)


def integers(*names: str) -> Callable[[IntegerRule], IntegerRule]:
    """Register the decorated function as the rule for LiteRT's integers of these operators. A name has one."""
    return lambda rule: _registered(INTEGERS, names, rule)


_Any = TypeVar("_Any", Rule, IntegerRule)


def _registered(table: dict[str, _Any], names: Sequence[str], rule: _Any) -> _Any:
    for name in names:
        if name in table:
            raise ValueError(f"expected one rule for {name}, got two")
        table[name] = rule
    return rule


Make: TypeAlias = Callable[["Op", list[ir.Value]], Sequence[ir.Value]]
"""Fills a nested graph: an Op that emits into it and the graph's inputs -> its outputs."""


class Surroundings(Protocol):
    """The graph under construction, as an operator sees it; tensors by their index in the subgraph."""

    @property
    def states(self) -> States:
        """The variables of the whole graph."""

    def where(self, operator: Operator) -> str:
        """Which operator, for error texts."""

    @property
    def litert(self) -> bool:
        """`Op.litert`."""

    @property
    def index(self) -> int:
        """The subgraph's number in the file."""

    def tensor(self, index: int) -> Tensor:
        """The tensor as the file describes it."""

    def real(self, index: int) -> ir.Value:
        """The tensor as real numbers."""

    def raw(self, index: int) -> ir.Value:
        """The tensor as stored."""

    def const(self, index: int) -> np.ndarray | None:
        """The stored contents of a constant."""

    def real_const(self, index: int) -> np.ndarray | None:
        """The contents of a constant as real numbers."""

    def permuted(self, op: Op, index: int, perm: tuple[int, ...], shape: Sequence[int] | None) -> ir.Value:
        """`Op.permuted`."""

    def emit(
        self,
        operator: Operator,
        op: str,
        inputs: Sequence[ir.Value | None],
        attrs: Mapping[str, Any],
        outputs: int,
        domain: str,
    ) -> tuple[ir.Value, ...]:
        """`Op.emit`; always a tuple."""

    def constant(self, values: Any, dtype: Any, hint: str) -> ir.Value:
        """`Op.constant`."""

    def activation(self, op: Op, value: ir.Value) -> ir.Value:
        """`Op.activation`."""

    def call(self, op: Op, index: int, arguments: Sequence[ir.Value]) -> list[ir.Value]:
        """`Op.call`."""

    def patterns(self, op: Op, index: int) -> list[ir.Value]:
        """Values with the types and shapes of a subgraph's inputs."""

    def nested(self, op: Op, make: Make, inputs: Sequence[ir.Value]) -> ir.Graph:
        """`Op.graph`."""


class Op:
    """One operator of a subgraph while it is translated: its operands, its options, and the nodes to emit for it."""

    def __init__(self, scope: Surroundings, operator: Operator) -> None:
        self._scope, self._operator = scope, operator

    # what it is

    @property
    def operator(self) -> Operator:
        """The operator as the file describes it."""
        return self._operator

    @property
    def name(self) -> str:
        """The builtin's name in the schema ("CONV_2D"), or the custom operator's own name."""
        return self._operator.name

    @property
    def version(self) -> int:
        """The operator's version in the file, at least 1."""
        return self._operator.version

    @property
    def litert(self) -> bool:
        """Whether quantised operators compute LiteRT's integers, where those differ from exact arithmetic."""
        return self._scope.litert

    @property
    def subgraph_index(self) -> int:
        """The number of its subgraph in the file."""
        return self._scope.index

    @property
    def where(self) -> str:
        """Subgraph, index, name and first output tensor, for error texts."""
        return self._scope.where(self._operator)

    @property
    def custom(self) -> Custom | None:
        """A custom operator's name, option bytes and decoded options; None for a builtin."""
        return self._operator.custom

    def option(self, name: str, default: Any = None) -> Any:
        """A builtin option by the schema's field name. Enums are ints (`enums.py` names them), vectors are tuples.

        A field that the file leaves out has the schema's default; `default` answers when the operator has no options
        at all, or none of that name.
        """
        return self._operator.options.get(name, default)

    def fail(self, what: str) -> NoReturn:
        """Raise a ConvertError: `what` (expected, got, fix) at this operator."""
        raise ConvertError(f"{self.where}: {what}")

    # operands

    @property
    def count_inputs(self) -> int:
        """The number of input slots, absent optional ones included."""
        return len(self._operator.inputs)

    @property
    def count_outputs(self) -> int:
        """The number of outputs."""
        return len(self._operator.outputs)

    def has(self, i: int) -> bool:
        """Whether input `i` is given (optional inputs may be left out)."""
        return i < len(self._operator.inputs) and self._operator.inputs[i] >= 0

    def tensor(self, i: int) -> Tensor:
        """Input `i` as the file describes it. Fails when it is absent."""
        return self._scope.tensor(self._input(i))

    def output(self, i: int = 0) -> Tensor:
        """Output `i` as the file describes it."""
        if i >= len(self._operator.outputs) or self._operator.outputs[i] < 0:
            self.fail(f"expected an output {i}, got {len(self._operator.outputs)} outputs")
        return self._scope.tensor(self._operator.outputs[i])

    def _input(self, i: int) -> int:
        if not self.has(i):
            self.fail(f"expected an input {i}, got {len(self._operator.inputs)} inputs, or this one omitted")
        return self._operator.inputs[i]

    def intermediate(self, i: int) -> Tensor | None:
        """Intermediate `i`, whose quantisation is that of a value inside the operator; None when it is not given."""
        found = self._operator.intermediates
        return self._scope.tensor(found[i]) if i < len(found) and found[i] >= 0 else None

    def real(self, i: int) -> ir.Value:
        """Input `i` as real numbers: dequantised when it is quantised, else as stored (float, int, bool, string)."""
        return self._scope.real(self._input(i))

    def raw(self, i: int) -> ir.Value:
        """Input `i` as stored (int8, uint8, int16 … for quantised tensors). A variable nothing wrote is zero."""
        return self._scope.raw(self._input(i))

    def const(self, i: int) -> np.ndarray | None:
        """The stored contents when input `i` is constant (4-bit values widened to 8 bits), else None."""
        return self._scope.const(self._input(i))

    def real_const(self, i: int) -> np.ndarray | None:
        """The contents as real numbers (float32 when quantised) when input `i` is constant, else None."""
        return self._scope.real_const(self._input(i))

    def ints(self, i: int) -> tuple[int, ...] | None:
        """The contents of a constant integer input, flat, else None. For axes, sizes, paddings."""
        found = self.const(i)
        if found is not None and found.dtype.kind not in "iub":
            self.fail(f"expected whole numbers in {self.tensor(i).name!r}, got {self.tensor(i).type_name}")
        return None if found is None else tuple(int(v) for v in found.reshape(-1))

    def permuted(self, i: int, perm: Sequence[int], shape: Sequence[int] | None = None) -> ir.Value:
        """`real(i)` reshaped to `shape` (when given), then transposed by `perm`.

        A constant is stored that way, its quantisation axis following; for anything else nodes are emitted. A reshape
        of a constant quantised per channel must keep the channel axis's place or its size.
        """
        return self._scope.permuted(self, self._input(i), tuple(perm), shape)

    @property
    def states(self) -> States:
        """The variables of the graph under construction, to read and to write."""
        return self._scope.states

    # making nodes

    @overload
    def emit(  # type: ignore[overload-overlap]  # 1 is an int, too
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        attrs: Mapping[str, Any] | None = None,
        outputs: Literal[1] = 1,
        domain: str = "",
    ) -> ir.Value: ...

    @overload
    def emit(
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        attrs: Mapping[str, Any] | None = None,
        *,
        outputs: int,
        domain: str = "",
    ) -> tuple[ir.Value, ...]: ...

    def emit(
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        attrs: Mapping[str, Any] | None = None,
        outputs: int = 1,
        domain: str = "",
    ) -> ir.Value | tuple[ir.Value, ...]:
        """Append an ONNX node of the pinned opset; its result, or a tuple of them when `outputs` is not 1.

        Attributes that are None are left out. Result types and shapes are inferred where ONNX can. Names follow the
        operator's output tensor; metadata "source_location" says which operator of the file the node comes from.
        """
        made = self._scope.emit(self._operator, op, inputs, attrs or {}, outputs, domain)
        return made[0] if outputs == 1 else made

    def constant(self, values: Any, dtype: Any = None, hint: str = "") -> ir.Value:
        """An initialiser. `values`: what numpy takes (`dtype` a numpy type; Python ints become int64, floats float32);
        equal small constants are shared."""
        return self._scope.constant(values, dtype, hint)

    def nchw(self, value: ir.Value) -> ir.Value:
        """Channels last to channels first, rank 3 to 5. What `nhwc` turned is turned back without a node."""
        n = self._rank(value)
        node = value.producer()
        source = node.inputs[0] if node is not None and build.is_op(node, "Transpose") else None
        if node is not None and source is not None and tuple(build.attr(node, "perm", ())) == (0, *range(2, n), 1):
            return source
        return self.emit("Transpose", [value], {"perm": (0, n - 1, *range(1, n - 1))})

    def nhwc(self, value: ir.Value) -> ir.Value:
        """Channels first to channels last, rank 3 to 5."""
        n = self._rank(value)
        return self.emit("Transpose", [value], {"perm": (0, *range(2, n), 1)})

    def _rank(self, value: ir.Value) -> int:
        if value.shape is None or not 3 <= len(value.shape) <= 5:
            got = "a tensor of unknown rank" if value.shape is None else f"shape {value.shape}"
            self.fail(f"expected a batch of images (rank 3 to 5), got {got}")
        return len(value.shape)

    def activation(self, value: ir.Value) -> ir.Value:
        """`value` after the operator's fused_activation_function."""
        return self._scope.activation(self, value)

    # other subgraphs

    def call(self, subgraph: int, arguments: Sequence[ir.Value]) -> list[ir.Value]:
        """Translate subgraph `subgraph` right here, its inputs bound to `arguments` (as stored); its raw outputs."""
        return self._scope.call(self, subgraph, arguments)

    def graph(
        self, make: Callable[[Op, list[ir.Value]], Sequence[ir.Value]], inputs: Sequence[ir.Value] = ()
    ) -> ir.Graph:
        """A nested graph, for If and Loop: one fresh input for each of `inputs` (same type and shape); `make` gets an
        Op that emits into the nested graph and those inputs, and returns its outputs. Outer values may be used inside.
        """
        return self._scope.nested(self, make, inputs)

    def subgraph(self, i: int, capture: Sequence[ir.Value] | None = None) -> ir.Graph:
        """Subgraph `i` of the file as a nested graph: with its own inputs, or with none when `capture` gives the outer
        values (as stored) that stand for them, as an If's branches need."""
        if capture is not None:
            return self.graph(lambda inner, _: inner.call(i, capture))
        return self.graph(lambda inner, values: inner.call(i, values), self._scope.patterns(self, i))
