"""Estimated cost of steps: operations and bytes as functions of types, and from these durations and worker counts.

No time is measured when a model runs. The rates below were fitted to the native profiles of the project's benchmark
models (one core with AVX-512 and VNNI); they are used for decisions where a factor of two does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log2, prod
from typing import Any

from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Node, Spec
from lite_runtime.operators import OPERATORS, Trait
from lite_runtime.operators.language import PAGE
from lite_runtime.steps.declaration import Step
from lite_runtime.steps.operand import Operand

__all__ = ["operations", "seconds", "shared", "touched"]

Specs = Sequence[Spec | None]


class _Counted(NamedTuple):
    """A node with the types of its operands and results."""

    node: Node
    operands: Specs
    results: Specs

    def spec(self, i: int) -> Spec:
        """The type of operand `i`; a type without elements if it is left out."""
        return (self.operands[i] if i < len(self.operands) else None) or _NOTHING

    def attr(self, name: str, default: Any) -> Any:
        """The attribute's value, or `default`."""
        return self.node.attrs.get(name, default)

    @property
    def made(self) -> Spec:
        """The type of the first wanted result."""
        return next((spec for spec in self.results if spec is not None), _NOTHING)


_NOTHING = Spec("float32", (0,))
_Count = Callable[[_Counted], int]


def operations(node: Node, operands: Specs, results: Specs) -> int:
    """Arithmetic operations of a node on these types; a multiply-add counts as two, moving data as none.

    None represents an operand or result that is left out. Bias and activation of a product are not counted; an
    elementwise operator counts as one per element, whatever it computes.
    """
    count = _COUNTS.get(node.op)
    if count is None:
        traits = OPERATORS[node.op].traits if node.op in OPERATORS else ()
        count = next((count for trait, count in _TRAITS if trait in traits), _elements)
    return count(_Counted(node, operands, results))


def _elements(n: _Counted) -> int:
    return n.made.size


def _each(count: int) -> _Count:
    """`count` operations for each element of operand 0."""
    return lambda n: count * n.spec(0).size


def _none(n: _Counted) -> int:
    return 0


def _convolution(weights: int) -> _Count:
    """Weights (out, in / groups, *kernel) are operand `weights`: each result sums over all axes but the first."""
    return lambda n: 2 * n.made.size * prod(n.spec(weights).shape[1:])


def _transposed_convolution(weights: int) -> _Count:
    """Weights (in, out / groups, *kernel): each element of operand 0 is multiplied by all weights of its channel."""
    return lambda n: 2 * n.spec(0).size * prod(n.spec(weights).shape[1:])


def _weight_gradient(n: _Counted) -> int:
    """Each result element is multiplied by all weights of its filter: operand 1 is dY, the result dW (out, in / groups,
    *kernel)."""
    return 2 * n.spec(1).size * prod(n.made.shape[1:])


def _recurrent_gradient(n: _Counted) -> int:
    """The gates again, then their gradient to the values they were computed from, and to the weights."""
    return 3 * _recurrent(n)


def _product(n: _Counted) -> int:
    shape = n.spec(0).shape or (1,)
    return 2 * n.made.size * (shape[-2] if n.attr("transA", 0) and len(shape) > 1 else shape[-1])


def _adapter(n: _Counted) -> int:
    """Rows times A (K, rank), then times B (rank, N)."""
    return 2 * int(n.attr("rank", 0)) * (n.spec(0).size + n.made.size)


def _einsum(n: _Counted) -> int:
    """Every combination of the labels, multiplied and added; broadcast axes ("...") are those of the result."""
    terms = str(n.attr("equation", "")).replace(" ", "").replace("...", "").split("->")[0].split(",")
    sizes = {a: d for i, term in enumerate(terms) for a, d in zip(term[::-1], n.spec(i).shape[::-1], strict=False)}
    return max(len(terms), 1) * max(prod(sizes.values()), n.made.size)


def _recurrent(n: _Counted) -> int:
    """X (length, batch, width) or batch first; W (directions, gates, width), R (directions, gates, hidden)."""
    x, w, r = (n.spec(i) for i in range(3))
    return 2 * (x.size // max(x.shape[-1], 1)) * (w.size + r.size) if x.shape else 0


def _attention(n: _Counted) -> int:
    """Queries with every key, weights with every value: K (..., length, width)."""
    keys = n.spec(1).shape
    return 2 * (keys[-2] if len(keys) > 1 else 1) * (n.spec(0).size + n.made.size)


def _paged_attention(n: _Counted) -> int:
    """As many keys for each row as a sequence's pages hold, since how many there are is data."""
    table = n.spec(7).shape
    return 2 * PAGE * (table[-1] if table else 0) * (n.spec(0).size + n.made.size)


def _window(n: _Counted) -> int:
    return n.made.size * int(prod(n.attr("kernel_shape", ())))


def _interpolation(n: _Counted) -> int:
    """Linear: two taps per axis that changes; cubic: four; nearest: none."""
    taps = {"nearest": 0, "linear": 2, "cubic": 4}.get(str(n.attr("mode", "nearest")), 2)
    return 2 * taps * n.made.size


def _trees(n: _Counted) -> int:
    """One comparison per level of each tree, assuming balanced trees."""
    roots = len(n.attr("tree_roots", ())) or len(set(n.attr("nodes_treeids", ()))) or 1
    nodes = max(len(n.attr("nodes_splits", n.attr("nodes_values", ()))), roots)
    return n.spec(0).shape[0] * roots * max(round(log2(nodes / roots + 1)), 1) if n.spec(0).shape else 0


_FAMILIES: tuple[tuple[str, _Count], ...] = (
    ("Conv ConvInteger", _convolution(1)),
    ("DeformConv", _convolution(1)),
    ("QLinearConv", _convolution(3)),
    ("ConvTranspose", _transposed_convolution(1)),
    ("QLinearConvTranspose", _transposed_convolution(3)),
    ("MatMul MatMulInteger Gemm GroupedMatMul MatMulNBits NarrowMatMul QLinearMatMul", _product),
    ("LoraMatMul", _adapter),
    ("Einsum", _einsum),
    ("ConvWeightGrad", _weight_gradient),
    ("LSTMGrad GRUGrad", _recurrent_gradient),
    ("Attention", _attention),
    ("PagedAttention", _paged_attention),
    ("MaxPool AveragePool LpPool QLinearAveragePool MaxRoiPool", _window),
    ("MaxPoolGrad AveragePoolGrad", lambda n: 2 * n.spec(1).size * int(prod(n.attr("kernel_shape", ())))),
    ("BatchNormalizationGrad LayerNormalizationGrad", lambda n: 9 * n.spec(1).size),
    ("GlobalAveragePool GlobalMaxPool GlobalLpPool QLinearGlobalAveragePool QLinearReduceMean", _each(1)),
    ("ArgMax ArgMin CumSum CumProd TopK", _each(1)),
    ("ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare", _each(2)),
    ("QuantizeLinear DequantizeLinear BatchNormalization", _each(2)),
    ("DynamicQuantizeLinear LogSoftmax Softmax QLinearSoftmax RMSNormalization LpNormalization", _each(4)),
    ("LRN", lambda n: n.spec(0).size * (2 * int(n.attr("size", 1)) + 3)),
    ("Resize QLinearResize GridSample RoiAlign", _interpolation),
    ("TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor", _trees),
)
_COUNTS: Mapping[str, _Count] = {op: count for ops, count in _FAMILIES for op in ops.split()}
_TRAITS: tuple[tuple[Trait, _Count], ...] = (
    ("idle", _none),
    ("recurrent", _recurrent),
    ("reduction", _each(1)),
    ("normalizes", _each(7)),
)
"""Those of all other operators: the first trait that the operator has decides."""


# -- from work to time ------------------------------------------------------------------------------------------------


class _Rate(NamedTuple):
    """Billions of operations and of bytes that one worker processes per second, with vectors of 16 float32."""

    operations: float
    bytes: float


_RATES: Mapping[str, _Rate] = {
    "attention": _Rate(200, 60),
    "batchnorm": _Rate(40, 60),
    "blocked": _Rate(700, 40),
    "blocked.i4_float": _Rate(150, 40),
    "blocked.i8_float": _Rate(150, 40),
    "blocked.quantize": _Rate(60, 40),
    "blockgrad": _Rate(500, 40),
    "blockgrad.i4_float": _Rate(150, 40),
    "blockgrad.i8_float": _Rate(150, 40),
    "copy": _Rate(100, 100),
    "depthwise": _Rate(140, 80),
    "elementwise": _Rate(40, 60),
    "elementwise.i64_chain": _Rate(5, 10),
    "gemm": _Rate(190, 90),
    "gemm.f32_pack": _Rate(100, 60),
    "gemm.f32_pad": _Rate(100, 80),
    "grouped": _Rate(30, 60),  # a single row is limited by loading its matrix
    "layernorm": _Rate(40, 40),
    "lookup": _Rate(100, 28),
    "lora": _Rate(60, 40),
    "normalize": _Rate(50, 60),
    "outer": _Rate(200, 90),
    "outer.f32_depthwise": _Rate(50, 90),
    "outer.f32_unpack": _Rate(100, 4),
    "packing": _Rate(100, 3),
    "packing.f32_winograd": _Rate(100, 10),
    "paged": _Rate(100, 20),
    "pool": _Rate(15, 50),
    "poolgrad": _Rate(5, 20),
    "qdepthwise": _Rate(120, 40),
    "qelementwise": _Rate(100, 28),
    "qgemm": _Rate(850, 100),
    "qgemm.x8_gemm_shifted": _Rate(550, 100),
    "qgemm.x8_pack": _Rate(100, 37),
    "qgemm.x8_pad": _Rate(100, 100),
    "qpool": _Rate(20, 40),
    "qsoftmax": _Rate(6, 10),
    "quantize": _Rate(23, 30),
    "recurrent": _Rate(140, 400),  # the same weights at every step, from the nearest cache
    "qreduce": _Rate(50, 60),
    "recurrent.f32_project": _Rate(20, 60),
    "recurrentgrad": _Rate(60, 40),
    "reduce": _Rate(35, 100),
    "resize": _Rate(50, 100),
    "rotary": _Rate(20, 60),
    "transposed": _Rate(20, 12),
    "trees": _Rate(1, 10),
    "user": _Rate(1, 5),  # loops over numbers, with several operations for each
    "wgemm": _Rate(150, 50),
    "winograd": _Rate(350, 40),  # counted as the convolution it replaces
}
"""By kernel, or else by family."""
_OTHER = _Rate(10, 20)
"""For families that are not listed."""
STEP = 0.03e-6
"""Overhead of any step, in seconds."""
SHARED = 0.8e-6
"""Seconds that a step must take before it is shared: on an idle machine 0.6 and 1.0 work equally well; 1.5 loses a
tenth on models of 30 µs."""


def seconds(kernel: str, count: int, nbytes: int, lanes: int = 16) -> float:
    """Estimated seconds of a step for one worker. kernel: "family.name"; lanes: float32 in a vector of the target."""
    rate = _RATES.get(kernel) or _RATES.get(kernel.partition(".")[0], _OTHER)
    return STEP + max(count / rate.operations * 16 / lanes, nbytes / rate.bytes) * 1e-9


def touched(step: Step) -> int:
    """Bytes that a step accesses: those of all its operands, counted once if two are the same; for an operand of which
    it reads only a part (`Step.picks`), at most the size given there."""
    sizes = {(o.slot, o.offset): o.spec.nbytes for o in step.operands if o is not None}
    if step.picks is not None:
        table: Operand = getattr(step, step.picks.operand)
        like: Operand | None = getattr(step, step.picks.like) if step.picks.like else None
        sizes[table.slot, table.offset] = 0 if like is None else min(table.spec.nbytes, like.spec.nbytes)
    return sum(sizes.values())


def shared(took: float) -> bool:
    """Whether a step of this duration in seconds gains from more than one worker."""
    return took >= SHARED
