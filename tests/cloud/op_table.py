"""One table: every operator the engine lowers, with operands and attributes for a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, parser

__all__ = ["ROWS", "Const", "Row"]


@dataclass(frozen=True)
class Const:
    """An operand that is an initialiser of the model."""

    value: np.ndarray


@dataclass(frozen=True)
class Row:
    """One node. `check`: "value" compares results with another runtime, "shape" only their shapes and dtypes.

    `oracle`: "onnxruntime", or "reference" (ONNX's own) where onnxruntime departs from the standard.
    """

    op: str
    operands: Sequence[Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: Sequence[str] = ("y",)
    check: str = "value"
    opset: int = 0
    oracle: str = "onnxruntime"

    @property
    def name(self) -> str:
        """How pytest shows the row."""
        shapes = "x".join("_".join(map(str, np.shape(getattr(o, "value", o)))) for o in self.operands if o is not None)
        marks = ",".join(
            f"{k}={v}" for k, v in self.attributes.items() if not isinstance(v, onnx.GraphProto | onnx.TensorProto)
        )
        return f"{self.op}-{shapes}-{marks}"[:90].replace(" ", "")


_random = np.random.default_rng(7)


def f(*shape: int, low: float = -1.5, high: float = 1.5, dtype: Any = np.float32) -> np.ndarray:
    """Uniform floats."""
    return _random.uniform(low, high, shape).astype(dtype)


def i(*shape: int, low: int = 0, high: int = 4, dtype: Any = np.int64) -> np.ndarray:
    """Uniform integers, `high` excluded."""
    return _random.integers(low, high, shape).astype(dtype)


def b(*shape: int) -> np.ndarray:
    """Uniform booleans."""
    return _random.random(shape) < 0.5


def c(*values: int) -> Const:
    """A constant vector of integers."""
    return Const(np.array(values, np.int64))


def s(value: float, dtype: Any = np.float32) -> Const:
    """A constant scalar."""
    return Const(np.array(value, dtype))


def _graph(text: str) -> onnx.GraphProto:
    return parser.parse_graph(text)


X = f(2, 3, 4)
IMAGE = f(2, 4, 6, 5)
SPECIAL = np.array([0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan], np.float32)

_UNARY_ANY = (
    "Abs", "Atan", "Asinh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor", "Identity", "Neg", "Round", "Sign", "Sin",
    "Sinh", "Tan", "Tanh",
)  # fmt: skip
_ACTIVATIONS: list[tuple[str, dict[str, Any]]] = [
    ("Relu", {}), ("LeakyRelu", {"alpha": 0.2}), ("ThresholdedRelu", {"alpha": 0.5}), ("Elu", {"alpha": 0.7}),
    ("Celu", {"alpha": 0.7}), ("Selu", {}), ("Gelu", {}), ("Gelu", {"approximate": "tanh"}), ("Sigmoid", {}),
    ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}), ("HardSwish", {}), ("Swish", {"alpha": 1.3}), ("Mish", {}),
    ("Softplus", {}), ("Softsign", {}), ("Shrink", {"lambd": 0.4, "bias": 0.1}),
]  # fmt: skip
_REDUCES = ["L1", "L2", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]

ROWS: list[Row] = [
    *(Row(op, [X]) for op in _UNARY_ANY),
    *(Row(op, [f(5, low=-0.9, high=0.9)]) for op in ("Acos", "Asin", "Atanh")),
    *(Row(op, [f(5, low=1.1, high=3.0)]) for op in ("Acosh", "Log", "Sqrt", "Reciprocal")),
    Row("Round", [np.array([0.5, 1.5, 2.5, -0.5, -1.5], np.float32)]),
    Row("Sign", [np.array([-3, 0, 5], np.int64)]),
    Row("IsNaN", [SPECIAL]),
    Row("IsInf", [SPECIAL]),
    Row("IsInf", [SPECIAL], {"detect_negative": 0}),
    Row("IsInf", [SPECIAL], {"detect_positive": 0}),
    Row("Not", [b(4)]),
    Row("BitwiseNot", [i(4, low=-8, high=8, dtype=np.int32)]),
    *(Row(op, [f(2, 1, 4), f(3, 1)]) for op in ("Add", "Sub", "Mul", "Div")),
    *(Row(op, [i(6, low=-9, high=9, dtype=np.int32), i(6, low=1, high=4, dtype=np.int32)]) for op in ("Div", "Mod")),
    Row("Div", [np.array([-7, 7, -7, 7], np.int32), np.array([2, 2, -2, -2], np.int32)]),
    Row("Mod", [f(6), f(6, low=0.5)], {"fmod": 1}),
    Row("Mod", [np.array([-7, 7], np.int32), np.array([3, -3], np.int32)], {"fmod": 1}),
    Row("Pow", [f(3, low=0.1), f(3)]),
    Row("Pow", [f(3), s(2.0)]),
    Row("Pow", [f(3), Const(np.array(3, np.int64))]),
    Row("Pow", [i(3, dtype=np.int32), s(2.0)]),
    *(Row(op, [X, f(3, 4), f(1)]) for op in ("Max", "Min", "Sum", "Mean")),
    *(Row(op, [b(2, 1), b(3)]) for op in ("And", "Or", "Xor")),
    *(
        Row(op, [i(4, high=16, dtype=np.int32), i(4, high=16, dtype=np.int32)])
        for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
    ),
    *(
        Row("BitShift", [i(4, high=9, dtype=np.uint32), i(4, dtype=np.uint32)], {"direction": way})
        for way in ("LEFT", "RIGHT")
    ),
    *(
        Row(op, [i(2, 3, dtype=np.int32), i(3, dtype=np.int32)])
        for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    ),
    Row("Where", [b(2, 1), f(3), f(2, 3)]),
    Row("Clip", [X, s(-0.5), s(0.7)]),
    Row("Clip", [X, None, s(0.2)]),
    Row("Cast", [f(4, low=-3, high=3)], {"to": TensorProto.INT32}),
    Row("Cast", [f(4)], {"to": TensorProto.FLOAT16}),
    Row("Cast", [i(4)], {"to": TensorProto.BOOL}),
    Row("CastLike", [i(4), s(1.0)]),
    *(Row(op, [X], attributes) for op, attributes in _ACTIVATIONS),
    Row("PRelu", [X, f(3, 1)]),
    *(Row(op, [X], {"axis": axis}) for op in ("Softmax", "LogSoftmax", "Hardmax") for axis in (1, -1)),
    Row("MatMul", [f(2, 3, 4), f(4, 5)]),
    Row("MatMul", [f(4), f(2, 4, 3)]),
    Row("Gemm", [f(3, 2), f(3, 4), f(4)], {"transA": 1, "alpha": 0.5, "beta": 0.3}),
    Row("Gemm", [f(2, 3), f(4, 3)], {"transB": 1}),
    Row("Einsum", [f(2, 3, 4), f(2, 4, 5)], {"equation": "bij, bjk -> bik"}),
    Row("Einsum", [f(3, 3)], {"equation": "ii->i"}),
    Row("Det", [f(2, 3, 3)]),
    # convolutions
    Row("Conv", [f(1, 3, 8), f(4, 3, 3), f(4)], {"pads": [1, 0], "strides": [2]}),
    Row("Conv", [IMAGE, f(6, 2, 3, 2)], {"group": 2, "dilations": [2, 1], "pads": [0, 1, 2, 0]}),
    Row("Conv", [IMAGE, f(4, 1, 3, 3), f(4)], {"group": 4, "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    Row("Conv", [IMAGE, f(3, 4, 2, 2)], {"auto_pad": "SAME_LOWER"}),
    Row("Conv", [IMAGE, f(3, 4, 2, 2)], {"auto_pad": "VALID"}),
    Row("Conv", [f(1, 2, 4, 4, 3), f(3, 2, 2, 2, 2), f(3)], {"pads": [1, 0, 1, 0, 0, 1]}),
    Row("ConvTranspose", [f(1, 3, 5), f(3, 2, 3), f(2)], {"strides": [2], "output_padding": [1], "pads": [1, 0]}),
    Row("ConvTranspose", [f(1, 4, 3, 4), f(4, 3, 3, 2)], {"group": 2, "strides": [2, 3], "dilations": [2, 1]}),
    Row("ConvTranspose", [f(1, 2, 3, 3), f(2, 2, 3, 3)], {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    Row("ConvTranspose", [f(1, 2, 3, 3), f(2, 2, 3, 3)], {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    Row("ConvTranspose", [f(1, 2, 3, 3), f(2, 1, 3, 3)], {"strides": [3, 2], "output_shape": [9, 6]}),
    Row("ConvTranspose", [f(1, 2, 2, 2, 2), f(2, 1, 2, 2, 2)], {"strides": [2, 1, 2]}),
    # pools
    Row("MaxPool", [f(1, 2, 7)], {"kernel_shape": [3], "strides": [2], "pads": [1, 0]}),
    Row("MaxPool", [IMAGE], {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1}),
    Row("MaxPool", [IMAGE], {"kernel_shape": [2, 2], "dilations": [2, 1], "pads": [1, 0, 0, 1]}),
    Row("MaxPool", [IMAGE], {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 0, 1]}, outputs=("y", "at")),
    Row("MaxPool", [IMAGE], {"kernel_shape": [2, 3], "storage_order": 1}, outputs=("y", "at")),
    Row("MaxPool", [np.zeros((1, 2, 5), np.float32)], {"kernel_shape": [2]}, outputs=("y", "at")),
    Row("MaxUnpool", [f(1, 1, 2, 2), np.array([[[[5, 7], [13, 15]]]])], {"kernel_shape": [2, 2], "strides": [2, 2]}),
    Row("MaxUnpool", [f(2, 1, 2), np.array([[[1, 3]], [[4, 6]]]), Const(np.array([2, 1, 4]))],
        {"kernel_shape": [2], "strides": [2]}),
    Row("Col2Im", [f(2, 12, 9), Const(np.array([4, 5])), Const(np.array([2, 3]))]),
    Row("Col2Im", [f(1, 8, 6), Const(np.array([4, 5])), Const(np.array([2, 2]))],
        {"strides": [2, 2], "pads": [1, 1, 1, 0], "dilations": [1, 2]}),
    Row("Col2Im", [f(1, 6, 4), Const(np.array([5])), Const(np.array([2]))]),
    Row("MatMulInteger", [i(3, 4, high=250, dtype=np.uint8), i(4, 2, low=-100, high=100, dtype=np.int8)]),
    Row("MatMulInteger", [i(3, 4, high=250, dtype=np.uint8), i(4, 2, high=250, dtype=np.uint8),
                          np.array(3, np.uint8), np.array([7, 8], np.uint8)]),
    Row("MatMulInteger", [i(2, 3, 4, high=250, dtype=np.uint8), i(4, 2, high=250, dtype=np.uint8),
                          np.array(3, np.uint8), np.array(7, np.uint8)]),
    Row("ConvInteger", [i(1, 2, 5, 5, high=250, dtype=np.uint8), i(3, 2, 3, 3, high=250, dtype=np.uint8),
                        np.array(9, np.uint8)], {"pads": [1, 1, 1, 1], "strides": [2, 1]}),
    Row("DFT", [f(2, 6, 1)]), Row("DFT", [f(2, 6, 2), Const(np.array(8))], {"inverse": 1}),
    Row("DFT", [f(2, 6, 3, 1), None, Const(np.array(1))], {"onesided": 1}),
    Row("DFT", [f(6, 3, 1), Const(np.array(4)), Const(np.array(-3))], {"onesided": 1}),
    Row("DFT", [f(2, 5, 2)], {"inverse": 1, "onesided": 1}, oracle="reference"),
    Row("DFT", [f(2, 4, 6, 1)], {"axis": 2}, opset=18),
    Row("STFT", [f(2, 16, 1), Const(np.array(3)), f(8)]),
    Row("STFT", [f(2, 16), Const(np.array(3)), f(8)]),
    Row("STFT", [f(2, 16, 1), Const(np.array(4)), None, Const(np.array(5))], {"onesided": 0}),
    *(Row(f"{name}Window", [Const(np.array(9))], {"periodic": periodic})
      for name in ("Blackman", "Hamming", "Hann") for periodic in (0, 1)),
    Row("MelWeightMatrix", [*(Const(np.array(v)) for v in (6, 32, 8000)),
                            *(Const(np.array(v, np.float32)) for v in (100, 3900))]),
    Row("BitCast", [f(2, 3)], {"to": int(TensorProto.INT32)}, opset=26),
    Row("SwiGLU", [f(2, 3), f(2, 3)], {"alpha": 1.5}, opset=28),
    Row("MaxPool", [f(1, 1, 4, 4, 4)], {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2]}),
    Row("AveragePool", [IMAGE], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    Row("AveragePool", [IMAGE], {"kernel_shape": [3, 3], "pads": [1, 0, 1, 1], "count_include_pad": 1}),
    Row("AveragePool", [IMAGE], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    Row("AveragePool", [f(1, 2, 7)], {"kernel_shape": [2], "auto_pad": "SAME_LOWER", "strides": [2]}),
    Row("LpPool", [IMAGE], {"kernel_shape": [2, 2], "p": 3, "strides": [2, 1]}),
    Row("GlobalAveragePool", [IMAGE]),
    Row("GlobalMaxPool", [f(1, 2, 5)]),
    Row("GlobalLpPool", [IMAGE], {"p": 2}, opset=18),
    # reductions
    *(Row(f"Reduce{name}", [X, c(0, -1)], {"keepdims": keep}) for name in _REDUCES for keep in (0, 1)),
    Row("ReduceLogSum", [f(2, 3, low=0.1), c(1)]),
    Row("ReduceSum", [X]),
    Row("ReduceSum", [X, c()], {"noop_with_empty_axes": 1}),
    Row("ReduceMax", [i(2, 3, dtype=np.int32), c(1)]),
    *(Row(op, [f(2, 0, 3), c(1)], oracle="reference") for op in ("ReduceMax", "ReduceMin")),
    Row("ReduceMin", [np.zeros((2, 0), np.int32), c(1)], oracle="reference"),
    *(Row(op, [i(3, 4, dtype=np.int32)], {"axis": 1, "keepdims": 0}) for op in ("ArgMax", "ArgMin")),
    *(Row(op, [i(3, 4, dtype=np.int32)], {"axis": -1, "select_last_index": 1}) for op in ("ArgMax", "ArgMin")),
    Row("CumSum", [X, s(1, np.int64)]),
    Row("CumSum", [X, s(-1, np.int64)], {"exclusive": 1, "reverse": 1}),
    Row("CumProd", [X, s(1, np.int64)], {"reverse": 1}),
    Row("TopK", [f(3, 6), c(2)], outputs=("values", "indices")),
    Row("TopK", [f(6, 3), c(3)], {"axis": 0, "largest": 0}, outputs=("values", "indices")),
    Row("TopK", [i(8, low=-3, high=3, dtype=np.int32), c(3)], {"largest": 0}, outputs=("values", "indices")),
    # normalisation
    Row("BatchNormalization", [IMAGE, f(4), f(4), f(4), f(4, low=0.5)], {"epsilon": 1e-3}),
    Row("LayerNormalization", [X, f(4), f(4)], {"epsilon": 1e-3}),
    Row("LayerNormalization", [X, f(3, 4)], {"axis": 1}, outputs=("y", "mean", "deviation")),
    Row("RMSNormalization", [X, f(4)], {"epsilon": 1e-3}),
    Row("GroupNormalization", [IMAGE, f(4), f(4)], {"num_groups": 2}),
    Row("GroupNormalization", [IMAGE, f(2), f(2)], {"num_groups": 2}, opset=18),
    Row("InstanceNormalization", [IMAGE, f(4), f(4)]),
    Row("LRN", [f(1, 6, 2, 2)], {"size": 3, "alpha": 0.5, "bias": 1.5}),
    Row("LpNormalization", [X], {"axis": 1, "p": 1}),
    Row("LpNormalization", [X]),
    Row("MeanVarianceNormalization", [IMAGE]),
    # movement
    Row("Constant", [], {"value": helper.make_tensor("v", TensorProto.FLOAT, [2], [1.0, 2.0])}),
    Row("Constant", [], {"value_ints": [1, 2, 3]}),
    Row("ConstantOfShape", [c(2, 3)], {"value": helper.make_tensor("v", TensorProto.INT32, [1], [5])}),
    Row("Shape", [X]),
    Row("Shape", [X], {"start": 1, "end": -1}),
    Row("Size", [X]),
    Row("Range", [s(1, np.int64), s(10, np.int64), s(3, np.int64)]),
    Row("Range", [s(1.0), s(-1.0), s(-0.5)]),
    Row("Reshape", [X, c(0, -1)]),
    Row("Reshape", [f(0, 3), c(3, 0)], {"allowzero": 1}),
    Row("Flatten", [X], {"axis": 2}),
    Row("Flatten", [X], {"axis": -1}),
    Row("Squeeze", [f(1, 3, 1), c(-1)]),
    Row("Squeeze", [f(1, 3, 1)]),
    Row("Unsqueeze", [f(3), c(0, -1)]),
    Row("Transpose", [X], {"perm": [2, 0, 1]}),
    Row("Transpose", [X]),
    Row("Concat", [f(2, 1), f(2, 3)], {"axis": -1}),
    Row("Split", [f(2, 6), c(1, 2, 3)], {"axis": 1}, outputs=("a", "b", "d")),
    Row("Split", [f(5, 2)], {"num_outputs": 2}, outputs=("a", "b")),
    Row("Slice", [X, c(1, 0), c(3, 9223372036854775807), c(1, 2)]),
    Row("Slice", [X, c(-1), c(-9223372036854775807), c(2), c(-2)]),
    Row("Pad", [X, c(0, 1, 2, 1, 0, 0), s(0.5)]),
    Row("Pad", [X, c(1, -1), None, c(2)]),
    *(Row("Pad", [X, c(2, 1), None, c(2)], {"mode": mode}) for mode in ("reflect", "edge", "wrap")),
    Row("Tile", [f(2, 3), c(2, 1)]),
    Row("Expand", [f(3, 1), c(2, 1, 4)]),
    *(Row("DepthToSpace", [f(1, 8, 2, 3)], {"blocksize": 2, "mode": mode}) for mode in ("DCR", "CRD")),
    Row("SpaceToDepth", [f(1, 2, 4, 6)], {"blocksize": 2}),
    Row("Trilu", [f(3, 4)]),
    Row("Trilu", [f(3, 4), s(1, np.int64)], {"upper": 0}),
    Row("EyeLike", [f(3, 4)], {"k": 1}),
    Row("CenterCropPad", [f(5, 4), c(3, 7)]),
    # indexing
    Row("Gather", [X, i(2, 2, low=-3, high=3)], {"axis": 1}),
    Row("GatherElements", [X, i(2, 2, 4, low=-3, high=3)], {"axis": 1}),
    Row("GatherND", [X, i(2, 2, high=2)]),
    Row("GatherND", [X, i(2, 3, 1, high=3)], {"batch_dims": 1}),
    Row("ScatterElements", [X, Const(np.array([[[2, 0, 1, 1]]])), f(1, 1, 4)], {"axis": 1}),
    *(
        Row("ScatterElements", [f(3, 3), Const(np.array([[0, -1], [0, 0]])), f(2, 2)], {"axis": 0, "reduction": how})
        for how in ("add", "mul", "max", "min")
    ),
    Row("ScatterND", [f(4, 2), Const(np.array([[2], [0]])), f(2, 2)]),
    Row("ScatterND", [f(4, 2), Const(np.array([[2], [2]])), f(2, 2)], {"reduction": "add"}),
    Row("OneHot", [i(2, 3, low=-4, high=5), s(4, np.int64), Const(np.array([0.5, 2.0], np.float32))], {"axis": 1}),
    Row("OneHot", [i(3), s(4, np.int64), Const(np.array([0, 1], np.int64))]),
    Row("NonZero", [Const(np.array([[1, 0], [0, 3]]))]),
    Row("Compress", [X, Const(np.array([True, False, True]))], {"axis": 1}),
    Row("ReverseSequence", [f(4, 3, 2), i(3, low=1, high=5)]),
    Row("TensorScatter", [f(2, 1, 4, 3), f(2, 1, 2, 3), i(2, high=3)]),
    Row("TensorScatter", [f(2, 1, 4, 3), f(2, 1, 2, 3), Const(np.array([3, 1]))], {"mode": "circular"}),
    # resize and sampling
    *(
        Row("Resize", [IMAGE, None, Const(np.array([1, 1, 1.7, 0.6], np.float32))],
            {"mode": "nearest", "coordinate_transformation_mode": way, "nearest_mode": near})
        for way, near in (
            ("half_pixel", "round_prefer_floor"), ("asymmetric", "floor"), ("align_corners", "round_prefer_ceil"),
            ("asymmetric", "ceil"),
        )
    ),
    *(
        Row("Resize", [IMAGE, None, None, c(2, 4, 9, 3)], {"mode": mode, "coordinate_transformation_mode": way})
        for mode in ("linear", "cubic")
        for way in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    ),
    Row("Resize", [IMAGE, None, None, c(3, 3)], {"mode": "linear", "antialias": 1, "axes": [2, 3]}),
    Row("Resize", [IMAGE, None, None, c(3, 3)], {"mode": "cubic", "antialias": 1, "axes": [2, 3]}),
    Row("Resize", [IMAGE, None, None, c(9, 8)], {"mode": "cubic", "exclude_outside": 1, "axes": [2, 3]}),
    Row("Resize", [IMAGE, None, None, c(9, 9)],
        {"mode": "linear", "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"}),
    Row("Resize", [IMAGE, Const(np.array([0, 0, 0.2, -0.1, 1, 1, 0.7, 1.3], np.float32)), None, c(2, 4, 4, 7)],
        {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize",
         "extrapolation_value": 7.0}),
    *(Row("AffineGrid", [f(2, 2, 3), c(2, 3, 4, 5)], {"align_corners": way}) for way in (0, 1)),
    Row("AffineGrid", [f(1, 3, 4), c(1, 1, 2, 3, 2)]),
    *(
        Row("GridSample", [f(2, 3, 4, 5), f(2, 3, 2, 2, low=-1.2, high=1.2)],
            {"mode": mode, "padding_mode": padding, "align_corners": way})
        for mode in ("linear", "nearest") for padding in ("zeros", "border") for way in (0, 1)
    ),
    # recurrent: [steps, batch, features] = [4, 2, 3], hidden 5
    *(
        Row(op, [f(4, 2, 3), f(1, gates * 5, 3), f(1, gates * 5, 5), f(1, 2 * gates * 5)],
            {"hidden_size": 5, **({"linear_before_reset": way} if op == "GRU" else {})}, outputs=("y", "h"))
        for op, gates, way in (("RNN", 1, 0), ("GRU", 3, 0), ("GRU", 3, 1), ("LSTM", 4, 0))
    ),
    *(
        Row(op, [f(4, 2, 3), f(2, gates * 5, 3), f(2, gates * 5, 5), None, Const(np.array([4, 2], np.int32)),
            f(2, 2, 5)], {"hidden_size": 5, "direction": "bidirectional"}, outputs=("y", "h"))
        for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4))
    ),
    Row("LSTM", [f(4, 2, 3), f(1, 20, 3), f(1, 20, 5), f(1, 40), None, f(1, 2, 5), f(1, 2, 5), f(1, 15)],
        {"hidden_size": 5, "direction": "reverse", "clip": 0.8}, outputs=("y", "h", "c")),
    Row("LSTM", [f(4, 2, 3), f(1, 20, 3), f(1, 20, 5)],
        {"hidden_size": 5, "activations": ["HardSigmoid", "LeakyRelu", "Softsign"], "activation_alpha": [0.3, 0.1],
         "activation_beta": [0.4]}, outputs=("y",)),
    Row("GRU", [f(2, 4, 3), f(1, 15, 3), f(1, 15, 5)], {"hidden_size": 5, "layout": 1}, outputs=("y", "h")),
    # attention
    Row("Attention", [f(2, 2, 3, 4), f(2, 2, 5, 4), f(2, 2, 5, 4)]),
    Row("Attention", [f(2, 3, 8), f(2, 5, 4), f(2, 5, 4)],
        {"q_num_heads": 4, "kv_num_heads": 2, "is_causal": 1, "softcap": 2.0, "scale": 0.3}),
    Row("Attention", [f(2, 2, 3, 4), f(2, 2, 3, 4), f(2, 2, 3, 4), np.tril(np.ones((3, 3), bool))]),
    Row("Attention", [f(1, 2, 3, 4), f(1, 2, 3, 4), f(1, 2, 3, 4), f(3, 5), f(1, 2, 2, 4), f(1, 2, 2, 4)],
        {"qk_matmul_output_mode": 3}, outputs=("y", "k", "v", "scores")),
    *(
        Row("Attention", [f(1, 2, 3, 4), f(1, 2, 3, 4), f(1, 2, 3, 4), f(3, 3)],
            {"qk_matmul_output_mode": mode, "softcap": 1.5}, outputs=("y", "", "", "scores"), oracle="reference")
        for mode in (1, 2)
    ),
    Row("Resize", [f(1, 1, 2, 4), None, Const(np.array([1, 1, 0.6, 0.6], np.float32))],
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"}, oracle="reference"),
    Row("RotaryEmbedding", [f(2, 3, 4, 6), f(10, 3), f(10, 3), i(2, 4, high=10)]),
    Row("RotaryEmbedding", [f(2, 4, 12), f(2, 4, 2), f(2, 4, 2)],
        {"num_heads": 2, "rotary_embedding_dim": 4, "interleaved": 1}),
    # losses
    *(
        Row("SoftmaxCrossEntropyLoss", [f(3, 4, 2), i(3, 2), *extra], {"reduction": how, **more}, outputs=("y", "log"))
        for how in ("mean", "sum", "none") for extra, more in (([], {}), ([f(4, low=0.1)], {"ignore_index": 1}))
    ),
    Row("NegativeLogLikelihoodLoss", [f(3, 4), i(3), f(4, low=0.1)]),
    Row("NegativeLogLikelihoodLoss", [f(3, 4, 2), i(3, 2)], {"ignore_index": 2, "reduction": "sum"}),
    # random
    Row("Dropout", [X, s(0.4)]),
    Row("RandomNormal", [], {"shape": [2, 3], "mean": 1.0}, check="shape"),
    Row("RandomNormalLike", [X], check="shape"),
    Row("RandomUniform", [], {"shape": [2, 3]}, check="shape"),
    Row("RandomUniformLike", [X], {"dtype": TensorProto.DOUBLE}, check="shape"),
    Row("Bernoulli", [f(2, 3, low=0, high=1)], check="shape"),
    Row("Multinomial", [f(2, 3)], {"sample_size": 4}, check="shape", opset=18),
    # quantisation
    Row("QuantizeLinear", [f(3, 5, low=-9, high=9), s(0.05), s(3, np.int8)]),
    Row("QuantizeLinear", [f(3, 5, low=-9, high=9), Const(f(5, low=0.01, high=0.1)), Const(i(5, dtype=np.uint8))]),
    Row("QuantizeLinear", [f(3, 5, 2), Const(f(3, low=0.01, high=0.1))],
        {"axis": 0, "output_dtype": TensorProto.INT16}),
    Row("QuantizeLinear", [f(2, 7), Const(f(2, 3, low=0.01, high=0.1)), Const(i(2, 3, dtype=np.int8))],
        {"axis": 1, "block_size": 3}, oracle="reference"),
    Row("DequantizeLinear", [i(3, 5, low=-128, high=128, dtype=np.int8), s(0.05), s(3, np.int8)]),
    Row("DequantizeLinear", [i(3, 5, dtype=np.uint8), Const(f(3)), Const(i(3, dtype=np.uint8))], {"axis": 0}),
    Row("DequantizeLinear", [i(4, low=-(2**30), high=2**30, dtype=np.int32), Const(f(4))], {"axis": 0}),
    Row("DequantizeLinear", [i(2, 7, dtype=np.int8), Const(f(2, 3)), Const(i(2, 3, dtype=np.int8))],
        {"axis": 1, "block_size": 3}, oracle="reference"),
    Row("DequantizeLinear", [Const(i(6, dtype=np.int8)), s(0.05)]),
    *(Row("DynamicQuantizeLinear", [x], outputs=("y", "scale", "zero"))
      for x in (f(3, 4), f(3, 4, low=0.5), f(3, 4, low=-2, high=-1), np.zeros((2, 2), np.float32))),
    # control: subgraphs may use the outer names in0, in1, ...
    *(
        Row("If", [condition, f(3)], {
            "then_branch": _graph("g () => (float[3] t) { t = Mul(in1, in1) }"),
            "else_branch": _graph("g () => (float[3] e) { e = Neg(in1) }"),
        })
        for condition in (Const(np.array(True)), Const(np.array(False)), np.array(True), np.array(False))
    ),
    Row("Loop", [s(4, np.int64), Const(np.array(True)), f(3), f(3)], {
        "body": _graph(
            "g (int64 i, bool go, float[3] s, float[3] t) => (bool more, float[3] u, float[3] w, float[3] y)"
            "{ more = Identity(go) u = Add(s, t) w = Mul(t, in3) y = Sin(u) }"
        )
    }, outputs=("s", "t", "scanned")),
    Row("Loop", [s(9, np.int64), None, f(3, low=1.0)], {
        "body": _graph(
            "g (int64 i, bool go, float[3] s) => (bool more, float[3] u)"
            "<float ten = {10}> { u = Add(s, s) m = ReduceMax<keepdims = 0>(u) more = Less(m, ten) }"
        )
    }),
    Row("Scan", [f(3), f(5, 3)], {
        "num_scan_inputs": 1,
        "body": _graph("g (float[3] s, float[3] x) => (float[3] u, float[3] y) { u = Add(s, x) y = Mul(u, x) }"),
    }, outputs=("s", "y")),
    Row("Scan", [f(3), f(3, 5)], {
        "num_scan_inputs": 1, "scan_input_axes": [1], "scan_input_directions": [1], "scan_output_axes": [1],
        "body": _graph("g (float[3] s, float[3] x) => (float[3] u, float[3] y) { u = Add(s, x) y = Mul(u, x) }"),
    }, outputs=("s", "y")),
]  # fmt: skip
