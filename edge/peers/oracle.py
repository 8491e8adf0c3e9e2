"""ONNX Runtime as the reference with which the device runtime is compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from lite_runtime.custom import registered
from lite_runtime.errors import InputError, MsedgeError
from lite_runtime.graph import Array, Value
from lite_runtime.operators.record import CUSTOM

if TYPE_CHECKING:
    import onnx

__all__ = ["Oracle", "OracleError", "is_ort"]

_DTYPES = {"float": "float32", "double": "float64"}


class OracleError(MsedgeError):
    """ONNX Runtime cannot load or run the source model."""


class Oracle:
    """One source model in ONNX Runtime, on CPU. `taps`: names of intermediate values that are returned as well.

    Integer products are exact on every processor, see `edge.peers.exact`. `exact=False`: the model as it is, with
    ONNX Runtime's default settings, for measuring speed. A file in ORT format is run as it is, unless exact products or
    `taps` need another model. `optimised=False`: operator by operator, as the model has them. Raises InputError and
    OracleError.
    """

    def __init__(
        self,
        source: Path | onnx.ModelProto,
        *,
        threads: int = 1,
        taps: Sequence[str] = (),
        exact: bool = True,
        optimised: bool = True,
    ) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        if not optimised:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        self.model = _read(source)
        """The source as given."""
        model = _read(self.model)
        _drop_initializer_inputs(model)
        _tap(model, taps)
        made = _made_exact(model, options) if exact else model
        data = source.read_bytes() if made is model and not taps and is_ort(source) else made.SerializeToString()
        self._ort_errors = _errors()
        try:
            self._session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except self._ort_errors as error:
            own = {n.domain for n in model.graph.node} & {name.split(CUSTOM)[0] for name in registered()}
            fix = "; it has operators of your own, so compare two bundles instead" if own else ""
            raise OracleError(f"onnxruntime cannot load the source model: {error}{fix}") from None
        self.inputs = tuple(
            Value(i.name, _dtype(i.type), tuple(d if isinstance(d, int | str) else None for d in i.shape))
            for i in self._session.get_inputs()
        )
        self.outputs = tuple(o.name for o in self._session.get_outputs())

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Any]:
        """Outputs by name. A list of dictionaries (from ZipMap) is returned unchanged."""
        try:
            return dict(zip(self.outputs, self._session.run(None, dict(inputs)), strict=True))
        except self._ort_errors as error:
            raise OracleError(f"onnxruntime cannot run the source model: {error}") from None


def is_ort(path: object) -> TypeGuard[Path]:
    """Whether it is the path of a file in ORT format, by the identifier at the position that FlatBuffers defines."""
    if not isinstance(path, Path) or not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(8)[4:] == b"ORTM"


def _read(source: Path | onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the source with its external data loaded."""
    import onnx
    from google.protobuf.message import DecodeError

    if isinstance(source, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(source)
        return copy
    if is_ort(source):
        from converter.frontends import ort

        return ort.read(source.read_bytes())
    try:
        return onnx.load(source)
    except DecodeError:
        raise InputError(f"{source}: expected the ONNX model that was converted, got a file that is not ONNX") from None


def _made_exact(model: onnx.ModelProto, options: Any) -> onnx.ModelProto:
    import onnx

    from edge.peers.exact import SETTINGS, exact

    for key, value in SETTINGS.items():
        options.add_session_config_entry(key, value)
    try:
        return exact(model)
    except onnx.shape_inference.InferenceError as error:
        raise OracleError(f"onnx cannot infer the types of the source model: {error}") from None


def _drop_initializer_inputs(model: onnx.ModelProto) -> None:
    """Remove weights from the graph's inputs: listed there, they could be overridden, so ONNX Runtime would not fold
    them.

    Models of IR version 3 had to list them; overriding them is never intended.
    """
    weights = {t.name for t in model.graph.initializer} | {t.values.name for t in model.graph.sparse_initializer}
    kept = [i for i in model.graph.input if i.name not in weights]
    if len(kept) != len(model.graph.input):
        del model.graph.input[:]
        model.graph.input.extend(kept)
    model.ir_version = max(model.ir_version, 4)


def _tap(model: onnx.ModelProto, names: Sequence[str]) -> None:
    import onnx

    there = {o.name for o in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in there)


def _errors() -> tuple[type[Exception], ...]:
    """ONNX Runtime's exceptions: they have no common base class, but are all in one module."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    found = (e for e in vars(state).values() if isinstance(e, type) and issubclass(e, Exception))
    return (*found, ValueError)


def _dtype(text: str) -> str:
    """`tensor(float)` -> `float32`."""
    name = text.removeprefix("tensor(").removesuffix(")")
    return _DTYPES.get(name, name)


def as_array(value: Any) -> Array:
    """An output as one array. ZipMap's list of {class: score} becomes an array (rows, classes), classes sorted."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        classes = sorted(value[0])
        return np.array([[row[c] for c in classes] for row in value], np.float32)
    return np.asarray(value)
