"""A small builder of networks as ONNX IR: operators with shapes, layers with seeded initial weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from cloud.errors import EngineError
from lite_runtime.graph import OPSET

__all__ = ["BATCH", "Builder", "dims", "parameter_count"]

BATCH = "batch"
"""The name of the symbolic batch size."""

_IR_VERSION = 10


class Builder:
    """Builds one graph node by node. Layers are channels first; weights are He-initialised from `seed` in call
    order."""

    def __init__(self, name: str, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self._graph = ir.Graph([], [], nodes=[], opset_imports={"": OPSET}, name=name)
        self._used: dict[str, int] = {}

    def input(self, name: str, shape: Sequence[int | str], dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
        """A graph input."""
        value = ir.val(name, dtype, shape)
        self._graph.inputs.append(value)
        return value

    def weight(self, name: str, array: npt.NDArray[Any]) -> ir.Value:
        """An initialiser holding `array`."""
        tensor = ir.Tensor(np.array(array, order="C"), name=name)
        value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor)
        self._graph.register_initializer(value)
        return value

    def op(
        self, op_type: str, *inputs: ir.Value | None, name: str = "", shape: Sequence[int | str] | None = None,
        dtype: ir.DataType = ir.DataType.FLOAT, **attributes: Any,
    ) -> ir.Value:  # fmt: skip
        """Append a node with one output of `shape`; by default that of the first input."""
        name = name or self._fresh(op_type)
        node = ir.node(op_type, list(inputs), attributes, name=name)
        output = node.outputs[0]
        output.name, output.type = name, ir.TensorType(dtype)
        output.shape = ir.Shape(shape) if shape is not None else inputs[0].shape if inputs and inputs[0] else None
        self._graph.append(node)
        return output

    def _fresh(self, op_type: str) -> str:
        self._used[op_type] = number = self._used.get(op_type, -1) + 1
        return f"{op_type.lower()}_{number}"

    def _he(self, shape: Sequence[int], fan_in: int) -> npt.NDArray[np.float32]:
        return np.asarray(self._random.standard_normal(shape) * np.sqrt(2 / fan_in), np.float32)

    def conv(
        self, x: ir.Value, filters: int, kernel: int | tuple[int, int], *, name: str, stride: int | tuple[int, int] = 1,
        group: int = 1, bias: bool = False, dilation: int | tuple[int, int] = 1,
        pads: Sequence[int] | int | None = None,
    ) -> ir.Value:  # fmt: skip
        """2-D convolution. `pads`: zeros at top, left, bottom and right, or as many on each side; None: as TensorFlow's
        SAME, with ceil(size / stride) output positions."""
        batch, channels, *sizes = dims(x)
        extents, strides, apart = _pair(kernel), _pair(stride), _pair(dilation)
        shape = (filters, _size(channels) // group, *extents)
        operands = [x, self.weight(f"{name}.weight", self._he(shape, int(np.prod(shape[1:]))))]
        if bias:
            operands.append(self.weight(f"{name}.bias", np.zeros(filters, np.float32)))
        spans = [(k - 1) * d + 1 for k, d in zip(extents, apart, strict=True)]
        pads = _pads(pads, [_size(n) for n in sizes], spans, strides)
        outs = [(_size(n) + pads[i] + pads[i + 2] - spans[i]) // strides[i] + 1 for i, n in enumerate(sizes)]
        more: dict[str, Any] = {} if apart == (1, 1) else {"dilations": list(apart)}
        return self.op(
            "Conv", *operands, name=name, shape=(batch, filters, *outs), kernel_shape=list(extents),
            strides=list(strides), pads=pads, group=group, **more,
        )  # fmt: skip

    def depthwise(self, x: ir.Value, kernel: int, *, name: str, stride: int = 1) -> ir.Value:
        """A depthwise convolution: each channel by itself."""
        channels = _size(dims(x)[1])
        return self.conv(x, channels, kernel, name=name, stride=stride, group=channels)

    def batch_norm(self, x: ir.Value, *, name: str, momentum: float = 0.9, epsilon: float = 1e-3) -> ir.Value:
        """Batch norm in inference form with initial running statistics (mean 0, variance 1); training uses the
        batch's."""
        channels = _size(dims(x)[1])
        values = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}
        weights = [self.weight(f"{name}.{key}", np.full(channels, v, np.float32)) for key, v in values.items()]
        return self.op("BatchNormalization", x, *weights, name=name, momentum=momentum, epsilon=epsilon)

    def relu(self, x: ir.Value, *, name: str = "") -> ir.Value:
        """max(x, 0)."""
        return self.op("Relu", x, name=name)

    def relu6(self, x: ir.Value, *, name: str = "") -> ir.Value:
        """min(max(x, 0), 6)."""
        name = name or self._fresh("Clip")
        ends = (self.weight(f"{name}.{end}", np.array(v, np.float32)) for end, v in (("low", 0.0), ("high", 6.0)))
        return self.op("Clip", x, *ends, name=name)

    def add(self, a: ir.Value, b: ir.Value, *, name: str = "") -> ir.Value:
        """a + b, of the same shape."""
        return self.op("Add", a, b, name=name)

    def conv_bn_relu(
        self, x: ir.Value, filters: int, kernel: int | tuple[int, int], *, name: str, **more: Any
    ) -> ir.Value:
        """Convolution without bias, batch norm, ReLU."""
        y = self.conv(x, filters, kernel, name=f"{name}.conv", **more)
        return self.relu(self.batch_norm(y, name=f"{name}.bn"), name=f"{name}.relu")

    def dropout(self, x: ir.Value, rate: float, *, name: str) -> ir.Value:
        """Dropout, active in training only; rate 0 adds no node."""
        if rate == 0:
            return x
        return self.op("Dropout", x, self.weight(f"{name}.ratio", np.array(rate, np.float32)), name=name)

    def pool(
        self, x: ir.Value, kernel: int, *, stride: int = 0, pads: int = 0, op: str = "MaxPool", name: str = ""
    ) -> ir.Value:
        """MaxPool or AveragePool over squares of `kernel`; by default they do not overlap."""
        batch, channels, *sizes = dims(x)
        stride = stride or kernel
        outs = [(_size(n) + 2 * pads - kernel) // stride + 1 for n in sizes]
        return self.op(
            op, x, name=name, shape=(batch, channels, *outs), kernel_shape=[kernel, kernel],
            strides=[stride, stride], pads=[pads] * 4,
        )  # fmt: skip

    def flatten(self, x: ir.Value, *, name: str = "") -> ir.Value:
        """[N, d...] -> [N, product of d]."""
        batch, *sizes = dims(x)
        return self.op("Flatten", x, name=name, shape=(batch, int(np.prod([_size(n) for n in sizes]))), axis=1)

    def reshape(self, x: ir.Value, shape: Sequence[int], *, name: str = "") -> ir.Value:
        """[N, d...] -> [N, *shape], of equally many elements."""
        name = name or self._fresh("Reshape")
        target = self.weight(f"{name}.shape", np.array([0, *shape], np.int64))
        return self.op("Reshape", x, target, name=name, shape=(dims(x)[0], *shape))

    def transpose(self, x: ir.Value, perm: Sequence[int], *, name: str = "") -> ir.Value:
        """The axes in another order."""
        sizes = dims(x)
        return self.op("Transpose", x, name=name, shape=[sizes[i] for i in perm], perm=list(perm))

    def concat(self, *values: ir.Value, axis: int, name: str = "") -> ir.Value:
        """Values one after another along an axis of known sizes."""
        shape = dims(values[0])
        shape[axis] = sum(_size(dims(each)[axis]) for each in values)
        return self.op("Concat", *values, name=name, shape=shape, axis=axis)

    def constant(self, name: str, values: npt.ArrayLike) -> ir.Value:
        """Integers that operators take as their settings; not trained."""
        return self.weight(name, np.asarray(values, np.int64))

    def fixed(self, name: str, values: npt.ArrayLike) -> ir.Value:
        """A float32 constant that is never trained."""
        tensor = ir.Tensor(np.asarray(values, np.float32, order="C"), name=f"{name}.value")
        return self.op("Constant", name=name, shape=tensor.shape.numpy(), value=tensor)

    def global_average_pool(self, x: ir.Value, *, name: str = "pool") -> ir.Value:
        """[N, C, d...] -> [N, C]."""
        batch, channels, *sizes = dims(x)
        pooled = self.op("GlobalAveragePool", x, name=name, shape=(batch, channels, *(1 for _ in sizes)))
        return self.op("Flatten", pooled, name=f"{name}.flat", shape=(batch, channels), axis=1)

    def dense(self, x: ir.Value, units: int, *, name: str) -> ir.Value:
        """[N, C] -> [N, units], with bias."""
        batch, features = dims(x)
        weight = self.weight(f"{name}.weight", self._he((units, _size(features)), _size(features)))
        bias = self.weight(f"{name}.bias", np.zeros(units, np.float32))
        return self.op("Gemm", x, weight, bias, name=name, shape=(batch, units), transB=1)

    def normal(self, name: str, shape: Sequence[int], deviation: float) -> ir.Value:
        """A weight drawn from a normal distribution with mean 0."""
        return self.weight(name, np.asarray(self._random.standard_normal(shape) * deviation, np.float32))

    def layer_norm(self, x: ir.Value, *, name: str, epsilon: float = 1e-5) -> ir.Value:
        """Layer norm over the last axis, with scale and bias."""
        features = _size(dims(x)[-1])
        scale = self.weight(f"{name}.weight", np.ones(features, np.float32))
        bias = self.weight(f"{name}.bias", np.zeros(features, np.float32))
        return self.op("LayerNormalization", x, scale, bias, name=name, axis=-1, epsilon=epsilon)

    def linear(self, x: ir.Value, units: int, *, name: str, deviation: float, bias: bool = True) -> ir.Value:
        """[..., C] -> [..., units]; weights [C, units] drawn from a normal distribution."""
        *leading, features = dims(x)
        weight = self.normal(f"{name}.weight", (_size(features), units), deviation)
        shape = (*leading, units)
        y = self.op("MatMul", x, weight, name=f"{name}.product" if bias else name, shape=shape)
        if not bias:
            return y
        return self.op("Add", y, self.weight(f"{name}.bias", np.zeros(units, np.float32)), name=name, shape=shape)

    def model(self, **outputs: ir.Value) -> ir.Model:
        """The finished model with the given output names, validated by ONNX's checker. Raises EngineError if that
        refuses it."""
        for name, value in outputs.items():
            value.name = name
            self._graph.outputs.append(value)
        model = ir.Model(self._graph, ir_version=_IR_VERSION, producer_name="msedge")
        try:
            onnx.checker.check_model(ir.to_proto(model), full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
            raise EngineError(f"the model built is not valid ONNX: {error}") from error
        return model


def parameter_count(model: ir.Model) -> int:
    """The number of trained values of a model of the zoo: floats of rank 1 or more, without running statistics."""
    return sum(
        value.const_value.size
        for name, value in model.graph.initializers.items()
        if value.const_value is not None and value.const_value.dtype == ir.DataType.FLOAT and value.const_value.shape
        and not name.endswith((".running_mean", ".running_var"))
    )  # fmt: skip


def _pads(given: Sequence[int] | int | None, sizes: list[int], spans: list[int], strides: tuple[int, int]) -> list[int]:
    """Zeros at the beginnings and ends of both axes."""
    if given is not None:
        return [given] * 4 if isinstance(given, int) else list(given)
    outs = [-(-n // s) for n, s in zip(sizes, strides, strict=True)]
    totals = [max((o - 1) * s + k - n, 0) for o, s, k, n in zip(outs, strides, spans, sizes, strict=True)]
    return [t // 2 for t in totals] + [t - t // 2 for t in totals]


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


def dims(x: ir.Value) -> list[int | str]:
    """The sizes of a value; the batch by its name. Raises EngineError if they are not known."""
    if x.shape is None:
        raise EngineError(f"the shape of {x.name!r} is not known; give op(..., shape=...)")
    return [d if isinstance(d, int) else str(d.value) for d in x.shape]


def _size(dim: int | str) -> int:
    if isinstance(dim, str):
        raise EngineError(f"expected a known size, got the symbolic {dim!r}; only the batch may be symbolic")
    return dim
