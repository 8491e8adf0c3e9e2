"""Small .tflite models for tests, and LiteRT's own interpreter as the oracle.

    model = Builder()
    x = model.input("x", (1, 4, 4, 2))
    w = model.const(weights, quant=Quant(scales, axis=3))
    y = model.op("CONV_2D", [x, w, None], (1, 4, 4, 8), padding="SAME", stride_w=1, stride_h=1)
    model.output(y)
    litert(model.build(), [array])

Option names are the schema's in snake case; enumerations are given by their names. `model.subgraph("body")` starts a
further subgraph with the same methods.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ai_edge_litert.schema_py_generated as schema
import flatbuffers
import ml_dtypes
import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

__all__ = ["Builder", "Quant", "Subgraph", "Tensor", "litert"]

_TYPES = {
    name: getattr(schema.TensorType, name.upper())
    for name in (
        "float32 float16 float64 bfloat16 complex64 bool int4 int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
        "resource string"
    ).split()
}

_OPTIONS = {
    "RandomOptions": "RANDOM_UNIFORM RANDOM_STANDARD_NORMAL MULTINOMIAL",
    "Conv3DOptions": "CONV_3D CONV_3D_TRANSPOSE",
    "BatchToSpaceNDOptions": "BATCH_TO_SPACE_ND",
    "SpaceToBatchNDOptions": "SPACE_TO_BATCH_ND",
    "Pool2DOptions": "AVERAGE_POOL_2D MAX_POOL_2D L2_POOL_2D",
    "Conv2DOptions": "CONV_2D",
    "DepthwiseConv2DOptions": "DEPTHWISE_CONV_2D",
    "LSTMOptions": "LSTM",
    "UnidirectionalSequenceLSTMOptions": "UNIDIRECTIONAL_SEQUENCE_LSTM",
    "BidirectionalSequenceLSTMOptions": "BIDIRECTIONAL_SEQUENCE_LSTM",
    "BidirectionalSequenceRNNOptions": "BIDIRECTIONAL_SEQUENCE_RNN",
    "SequenceRNNOptions": "UNIDIRECTIONAL_SEQUENCE_RNN",
    "RNNOptions": "RNN",
    "SVDFOptions": "SVDF",
    "ATan2Options": "ATAN2",
    "MaximumMinimumOptions": "MAXIMUM MINIMUM",
    "ReducerOptions": "SUM MEAN REDUCE_PROD REDUCE_MAX REDUCE_MIN REDUCE_ANY REDUCE_ALL",
    "BatchMatMulOptions": "BATCH_MATMUL",
    "StableHLOCompositeOptions": "STABLEHLO_COMPOSITE",
    "L2NormOptions": "L2_NORMALIZATION",
    "TopKV2Options": "TOPK_V2",
    "PadV2Options": "PADV2",
}
_OPTIONS_OF = {op: options for options, ops in _OPTIONS.items() for op in ops.split()}

_ENUMS = {
    "fusedActivationFunction": schema.ActivationFunctionType,
    "padding": schema.Padding,
    "mode": schema.MirrorPadMode,
    "weightsFormat": schema.FullyConnectedOptionsWeightsFormat,
    "kernelType": schema.LSTMKernelType,
    **dict.fromkeys(("inDataType", "outDataType", "outType", "outputType", "idxOutType"), schema.TensorType),
    **dict.fromkeys(("quantizedBiasType", "comparisonType"), schema.TensorType),
}


class Quant(NamedTuple):
    """(stored - zero_point) * scale; several scales stand along `axis`."""

    scale: float | Sequence[float] | np.ndarray
    zero_point: int | Sequence[int] | np.ndarray = 0
    axis: int = 0
    details: Any = None
    """A `BlockwiseQuantizationT` or the like."""

    def store(self, real: np.ndarray, dtype: Any) -> np.ndarray:
        """`real` as stored integers of `dtype`, rounded and saturated."""
        along = [1] * np.ndim(real)
        if np.ndim(self.scale):
            along[self.axis] = -1
        scale, zero = np.reshape(self.scale, along), np.reshape(self.zero_point, along)
        limits = np.iinfo(dtype)
        return np.clip(np.rint(real / scale) + zero, limits.min, limits.max).astype(dtype)

    def real(self, stored: np.ndarray) -> np.ndarray:
        """What stored integers mean, in float32; scalar scales only."""
        return ((stored.astype(np.float64) - self.zero_point) * self.scale).astype(np.float32)

    def table(self) -> Any:
        """The schema's record."""
        found = schema.QuantizationParametersT()
        found.scale = np.atleast_1d(self.scale).astype(np.float32)
        zero = np.broadcast_to(np.asarray(self.zero_point, np.int64), found.scale.shape)
        found.zeroPoint = np.ascontiguousarray(zero)
        found.quantizedDimension = self.axis
        if self.details is not None:
            found.details = self.details
            found.detailsType = getattr(schema.QuantizationDetails, type(self.details).__name__[:-1])
        return found


class Tensor(NamedTuple):
    """A tensor of one subgraph: its index there and what it holds."""

    index: int
    name: str
    shape: tuple[int | None, ...]
    dtype: str
    quant: Quant | None


Shape = Sequence[int | None]


class Subgraph:
    """One subgraph under construction."""

    def __init__(self, builder: Builder, name: str, index: int) -> None:
        self.builder, self.index = builder, index
        self.table = schema.SubGraphT()
        self.table.name = name.encode()
        self.table.tensors, self.table.operators = [], []
        self.table.inputs, self.table.outputs = [], []

    def tensor(
        self,
        name: str = "",
        shape: Shape | None = (),
        dtype: Any = "float32",
        *,
        quant: Quant | None = None,
        data: np.ndarray | bytes | None = None,
        variable: bool = False,
        sparsity: Any = None,
    ) -> Tensor:
        """A tensor; `data` makes it constant. Shape None: unknown rank; None in a shape: unknown size."""
        found = schema.TensorT()
        index = len(self.table.tensors)
        name = name or f"t{self.index}_{index}"
        dtype = dtype if isinstance(dtype, str) else np.dtype(dtype).name
        found.name, found.type = name.encode(), _TYPES[dtype]
        found.shape = np.asarray([1 if d is None else d for d in shape or ()], np.int32)
        found.hasRank = shape is not None
        if shape is not None and None in shape:
            found.shapeSignature = np.asarray([-1 if d is None else d for d in shape], np.int32)
        found.quantization = quant.table() if quant else None
        found.isVariable, found.sparsity = variable, sparsity
        found.buffer = 0 if data is None else self.builder.buffer(_stored(data, dtype))
        self.table.tensors.append(found)
        return Tensor(index, name, tuple(shape or ()), dtype, quant)

    def input(self, name: str, shape: Shape | None, dtype: Any = "float32", *, quant: Quant | None = None) -> Tensor:
        found = self.tensor(name, shape, dtype, quant=quant)
        self.table.inputs.append(found.index)
        return found

    def const(
        self, values: Any, dtype: Any = None, *, name: str = "", quant: Quant | None = None, sparsity: Any = None
    ) -> Tensor:
        """A constant holding `values` as stored (int4: int8 values, packed here)."""
        kind = dtype if dtype is None or isinstance(dtype, str) else np.dtype(dtype).name
        array = np.asarray(values, np.int8 if kind == "int4" else kind)
        return self.tensor(name, array.shape, kind or array.dtype.name, quant=quant, data=array, sparsity=sparsity)

    def variable(self, name: str, shape: Shape, dtype: Any = "float32", *, quant: Quant | None = None) -> Tensor:
        """A tensor that keeps its contents between runs."""
        return self.tensor(name, shape, dtype, quant=quant, variable=True)

    def op(
        self,
        name: str,
        inputs: Sequence[Tensor | None],
        /,
        shape: Shape | None = (),
        dtype: Any = None,
        *,
        quant: Quant | None = None,
        version: int = 1,
        custom: bytes | None = None,
        intermediates: Sequence[Tensor] = (),
        **options: Any,
    ) -> Tensor:
        """An operator of one result; it has the first input's type unless `dtype` is given."""
        kind = dtype or next((t.dtype for t in inputs if t is not None), "float32")
        out = self.tensor("", shape, kind, quant=quant)
        self.node(name, inputs, [out], version=version, custom=custom, intermediates=intermediates, **options)
        return out

    def node(
        self,
        name: str,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor],
        /,
        *,
        version: int = 1,
        custom: bytes | None = None,
        intermediates: Sequence[Tensor] = (),
        **options: Any,
    ) -> None:
        """An operator with given results. A name the schema does not have is a custom operator's."""
        found = schema.OperatorT()
        found.opcodeIndex = self.builder.opcode(name, version)
        found.inputs = np.asarray([-1 if t is None else t.index for t in inputs], np.int32)
        found.outputs = np.asarray([t.index for t in outputs], np.int32)
        if intermediates:
            found.intermediates = np.asarray([t.index for t in intermediates], np.int32)
        if custom is not None:
            found.customOptions = np.frombuffer(custom, np.uint8)
        _set_options(found, name, options)
        self.table.operators.append(found)

    def output(self, *tensors: Tensor) -> None:
        self.table.outputs.extend(t.index for t in tensors)


class Builder(Subgraph):
    """A model; its methods build the main subgraph."""

    def __init__(self, name: str = "main") -> None:
        self.model = schema.ModelT()
        self.model.version = 3
        self.model.description = b"test"
        self.model.buffers = [schema.BufferT()]
        self.model.operatorCodes, self.model.subgraphs = [], []
        self.model.signatureDefs, self.model.metadata = [], []
        self._codes: dict[tuple[str, int], int] = {}
        super().__init__(self, name, 0)
        self.model.subgraphs.append(self.table)

    def subgraph(self, name: str) -> Subgraph:
        found = Subgraph(self, name, len(self.model.subgraphs))
        self.model.subgraphs.append(found.table)
        return found

    def buffer(self, data: bytes) -> int:
        found = schema.BufferT()
        found.data = np.frombuffer(data, np.uint8)
        self.model.buffers.append(found)
        return len(self.model.buffers) - 1

    def opcode(self, name: str, version: int) -> int:
        if (name, version) not in self._codes:
            found = schema.OperatorCodeT()
            code = getattr(schema.BuiltinOperator, name, schema.BuiltinOperator.CUSTOM)
            found.builtinCode, found.deprecatedBuiltinCode, found.version = code, min(code, 127), version
            if code == schema.BuiltinOperator.CUSTOM:
                found.customCode = name.encode()
            self._codes[name, version] = len(self.model.operatorCodes)
            self.model.operatorCodes.append(found)
        return self._codes[name, version]

    def signature(
        self, key: str, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor], subgraph: Subgraph | None = None
    ) -> None:
        found = schema.SignatureDefT()
        found.signatureKey = key.encode()
        found.subgraphIndex = (subgraph or self).index
        found.inputs, found.outputs = _tensor_map(inputs), _tensor_map(outputs)
        self.model.signatureDefs.append(found)

    def metadata(self, name: str, data: bytes) -> None:
        found = schema.MetadataT()
        found.name, found.buffer = name.encode(), self.buffer(data)
        self.model.metadata.append(found)

    def build(self) -> bytes:
        """The model as a file's bytes."""
        packer = flatbuffers.Builder(1024)
        packer.Finish(self.model.Pack(packer), b"TFL3")
        return bytes(packer.Output())


def _tensor_map(tensors: Mapping[str, Tensor]) -> list[Any]:
    made = []
    for name, tensor in tensors.items():
        found = schema.TensorMapT()
        found.name, found.tensorIndex = name.encode(), tensor.index
        made.append(found)
    return made


def _stored(data: np.ndarray | bytes, dtype: str) -> bytes:
    if isinstance(data, bytes):
        return data
    if dtype == "int4":
        nibbles = np.append(data.ravel(), [0] * (data.size % 2)).astype(np.uint8) & 15
        return (nibbles[0::2] | nibbles[1::2] << 4).astype(np.uint8).tobytes()
    if dtype == "bfloat16":
        return data.astype(ml_dtypes.bfloat16).tobytes()
    return np.ascontiguousarray(data, dtype).tobytes()


def _camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda m: m.group(1).upper(), name)


def _options_class(op: str) -> str:
    return _OPTIONS_OF.get(op) or "".join(part.capitalize() for part in op.split("_")) + "Options"


def _set_options(operator: Any, op: str, options: Mapping[str, Any]) -> None:
    name = _options_class(op)
    made = getattr(schema, name + "T", None)
    if made is None:
        assert not options, f"{op} has no options in the schema"
        return
    record = made()
    for key, value in options.items():
        field = _camel(key)
        assert hasattr(record, field), f"{name} has no {field}; it has {', '.join(vars(record))}"
        if isinstance(value, str) and field in _ENUMS:
            value = getattr(_ENUMS[field], value.upper())
        elif isinstance(value, str):
            value = value.encode()
        setattr(record, field, np.asarray(value, np.int32) if isinstance(value, list | tuple) else value)
    if hasattr(schema.BuiltinOptions, name):
        operator.builtinOptions, operator.builtinOptionsType = record, getattr(schema.BuiltinOptions, name)
    else:
        operator.builtinOptions2, operator.builtinOptions2Type = record, getattr(schema.BuiltinOptions2, name)


_RESOLVERS = {
    "xnnpack": OpResolverType.AUTO,
    "builtin": OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    "reference": OpResolverType.BUILTIN_REF,
}


def litert(
    model: bytes,
    inputs: Sequence[np.ndarray],
    *,
    kernels: str = "builtin",
    runs: int = 1,
) -> list[np.ndarray]:
    """The main subgraph's outputs, in order, after `runs` runs on the same inputs.

    `kernels`: "xnnpack" (LiteRT's default), "builtin" (its own fast kernels) or "reference". Inputs of other sizes
    than the model declares resize it.
    """
    runner = Interpreter(model_content=model, experimental_op_resolver_type=_RESOLVERS[kernels], num_threads=1)
    details = runner.get_input_details()
    for detail, array in zip(details, inputs, strict=True):
        if tuple(detail["shape"]) != array.shape:
            runner.resize_tensor_input(detail["index"], array.shape)
    runner.allocate_tensors()
    for _ in range(runs):
        for detail, array in zip(details, inputs, strict=True):
            runner.set_tensor(detail["index"], array)
        runner.invoke()
    return [runner.get_tensor(detail["index"]) for detail in runner.get_output_details()]
