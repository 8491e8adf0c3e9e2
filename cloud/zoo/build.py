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

__all__ = ["BATCH", "Builder"]

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
        group: int = 1, bias: bool = False,
    ) -> ir.Value:  # fmt: skip
        """2-D convolution with ceil(size / stride) output positions, padded as TensorFlow's SAME."""
        batch, channels, *sizes = _shape(x)
        extents, strides = _pair(kernel), _pair(stride)
        shape = (filters, _size(channels) // group, *extents)
        operands = [x, self.weight(f"{name}.weight", self._he(shape, int(np.prod(shape[1:]))))]
        if bias:
            operands.append(self.weight(f"{name}.bias", np.zeros(filters, np.float32)))
        outs = [-(-_size(n) // s) for n, s in zip(sizes, strides, strict=True)]
        totals = [max((o - 1) * s + k - _size(n), 0) for o, s, k, n in zip(outs, strides, extents, sizes, strict=True)]
        pads = [t // 2 for t in totals] + [t - t // 2 for t in totals]
        return self.op(
            "Conv", *operands, name=name, shape=(batch, filters, *outs), kernel_shape=list(extents),
            strides=list(strides), pads=pads, group=group,
        )  # fmt: skip

    def depthwise(self, x: ir.Value, kernel: int, *, name: str, stride: int = 1) -> ir.Value:
        """A depthwise convolution: each channel by itself."""
        channels = _size(_shape(x)[1])
        return self.conv(x, channels, kernel, name=name, stride=stride, group=channels)

    def batch_norm(self, x: ir.Value, *, name: str, momentum: float = 0.9, epsilon: float = 1e-3) -> ir.Value:
        """Batch norm in inference form with initial running statistics (mean 0, variance 1); training uses the
        batch's."""
        channels = _size(_shape(x)[1])
        values = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}
        weights = [self.weight(f"{name}.{key}", np.full(channels, v, np.float32)) for key, v in values.items()]
        return self.op("BatchNormalization", x, *weights, name=name, momentum=momentum, epsilon=epsilon)

    def relu(self, x: ir.Value, *, name: str = "") -> ir.Value:
        """max(x, 0)."""
        return self.op("Relu", x, name=name)

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

    def global_average_pool(self, x: ir.Value, *, name: str = "pool") -> ir.Value:
        """[N, C, d...] -> [N, C]."""
        batch, channels, *sizes = _shape(x)
        pooled = self.op("GlobalAveragePool", x, name=name, shape=(batch, channels, *(1 for _ in sizes)))
        return self.op("Flatten", pooled, name=f"{name}.flat", shape=(batch, channels), axis=1)

    def dense(self, x: ir.Value, units: int, *, name: str) -> ir.Value:
        """[N, C] -> [N, units], with bias."""
        batch, features = _shape(x)
        weight = self.weight(f"{name}.weight", self._he((units, _size(features)), _size(features)))
        bias = self.weight(f"{name}.bias", np.zeros(units, np.float32))
        return self.op("Gemm", x, weight, bias, name=name, shape=(batch, units), transB=1)

    def normal(self, name: str, shape: Sequence[int], deviation: float) -> ir.Value:
        """A weight drawn from a normal distribution with mean 0."""
        return self.weight(name, np.asarray(self._random.standard_normal(shape) * deviation, np.float32))

    def layer_norm(self, x: ir.Value, *, name: str, epsilon: float = 1e-5) -> ir.Value:
        """Layer norm over the last axis, with scale and bias."""
        features = _size(_shape(x)[-1])
        scale = self.weight(f"{name}.weight", np.ones(features, np.float32))
        bias = self.weight(f"{name}.bias", np.zeros(features, np.float32))
        return self.op("LayerNormalization", x, scale, bias, name=name, axis=-1, epsilon=epsilon)

    def linear(self, x: ir.Value, units: int, *, name: str, deviation: float) -> ir.Value:
        """[..., C] -> [..., units], with bias; weights [C, units] drawn from a normal distribution."""
        *leading, features = _shape(x)
        weight = self.normal(f"{name}.weight", (_size(features), units), deviation)
        y = self.op("MatMul", x, weight, name=f"{name}.product", shape=(*leading, units))
        return self.op("Add", y, self.weight(f"{name}.bias", np.zeros(units, np.float32)), name=name)

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


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


def _shape(x: ir.Value) -> list[int | str]:
    if x.shape is None:
        raise EngineError(f"the shape of {x.name!r} is not known; give op(..., shape=...)")
    return [d if isinstance(d, int) else str(d.value) for d in x.shape]


def _size(dim: int | str) -> int:
    if isinstance(dim, str):
        raise EngineError(f"expected a known size, got the symbolic {dim!r}; only the batch may be symbolic")
    return dim
