"""A bundle's declared processing, checked against the model's ports: what clients see, what runs before and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from edge.gateway.errors import GatewayError
from edge.gateway.ports import DATATYPES, Port, Ports
from edge.gateway.processing.boxes import Nms
from edge.gateway.processing.images import Crop, Image, Resize
from edge.gateway.processing.scores import Argmax, Sigmoid, Softmax, Threshold, TopK
from edge.gateway.processing.sound import Audio, Frames, Length
from edge.gateway.processing.spectra import Dct, Log, Mel, Spectrogram
from edge.gateway.processing.steps import Kind, Payload, Source, Step, need
from edge.gateway.processing.tensors import (
    Cast,
    ChannelsFirst,
    Dequantize,
    Expand,
    Normalize,
    Quantize,
    Tensor,
    Transpose,
)
from lite_runtime.bundle.processing import KEY, ProcessingError, check, check_names
from lite_runtime.graph import Array, Dim, dtype_name, numpy_dtype

__all__ = ["LIMIT", "ROWS", "SOURCE_OF", "STEP_OF", "Processing"]

LIMIT = 1 << 28
"""Most bytes that a request's rows may take once decoded: 256 MiB."""
ROWS = 1024
"""Most rows of a request: each file costs some work, however small it is."""

SOURCE_OF: Mapping[str, type[Source]] = {"image": Image, "audio": Audio, "tensor": Tensor}
STEP_OF: Mapping[str, type[Step]] = {
    "argmax": Argmax,
    "cast": Cast,
    "channels_first": ChannelsFirst,
    "crop": Crop,
    "dct": Dct,
    "dequantize": Dequantize,
    "expand": Expand,
    "frames": Frames,
    "length": Length,
    "log": Log,
    "mel": Mel,
    "nms": Nms,
    "normalize": Normalize,
    "quantize": Quantize,
    "resize": Resize,
    "sigmoid": Sigmoid,
    "softmax": Softmax,
    "spectrogram": Spectrogram,
    "threshold": Threshold,
    "top_k": TopK,
    "transpose": Transpose,
}
"""What the declaration's words mean; their options are the constructors'."""


class _Input(NamedTuple):
    name: str
    port: Port
    """The model's."""
    source: Source
    steps: tuple[Step, ...]
    stacked: bool
    """Whether rows stand along the model's axis 0; else the model takes one row, without such an axis."""


class _Output(NamedTuple):
    names: tuple[str, ...]
    of: tuple[str, ...]
    steps: tuple[Step, ...]
    types: tuple[np.dtype, ...]


class Processing:
    """The processing before and after a signature. Immutable: any thread may call `before` and `after`."""

    def __init__(self, document: Any, ports: Ports) -> None:
        """Raises ProcessingError where `document` is no declaration, or does not fit a model of these ports."""
        doc = check(document)
        check_names(doc, ports.inputs, ports.outputs)
        self._inputs = tuple(_input(entry, ports) for entry in doc["inputs"])
        made = [_output(entry, ports) for entry in doc["outputs"]]
        self._outputs = tuple(output for output, _ in made)
        self._model = ports
        fed = {i.port.name for i in self._inputs}
        taken = {name for o in self._outputs for name in o.of}
        inputs = {i.name: _outer(i) for i in self._inputs} | {n: p for n, p in ports.inputs.items() if n not in fed}
        outputs = {p.name: p for _, outer in made for p in outer}
        self.ports = Ports(inputs, outputs | {n: p for n, p in ports.outputs.items() if n not in taken}, ports.batched)
        """What clients see in place of the model's ports."""

    @classmethod
    def of(cls, metadata: Mapping[str, Any], ports: Ports) -> Processing | None:
        """The processing that a bundle declares, ready to run; None if it declares none.

        Raises GatewayError (400) for a declaration that is wrong, MissingExtraError for libraries it needs that are
        not there.
        """
        if KEY not in metadata:
            return None
        try:
            made = cls(metadata[KEY], ports)
        except ProcessingError as error:
            raise GatewayError(400, f"the bundle's {error}") from error
        for entry in made._inputs:
            entry.source.prepare()
        return made

    def before(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The model's inputs, out of those of `ports`. Raises GatewayError: 400 for files that cannot be read or do
        not suit, 413 for those that are too large; the model's own rules for sizes named alike are left to it."""
        with _unmoved():
            fed = {i.port.name: _feed(i, inputs[i.name]) for i in self._inputs}
        return {name: fed[name] if name in fed else inputs[name] for name in self._model.inputs}

    def after(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs of `ports`, out of the model's."""
        made: dict[str, Array] = {}
        for output in self._outputs:
            arrays = tuple(outputs[name] for name in output.of)
            with _unmoved():
                for step in output.steps:
                    arrays = step.run(*arrays)
            for name, array, dtype in zip(output.names, arrays, output.types, strict=True):
                made[name] = np.ascontiguousarray(array, dtype)
        return {name: made[name] if name in made else outputs[name] for name in self.ports.outputs}


def _unmoved() -> np.errstate:
    """Infinities and NaN, whoever sends or computes them, are followed through without a word of NumPy's."""
    return np.errstate(all="ignore")


# declarations to steps, and their types


def _input(entry: Mapping[str, Any], ports: Ports) -> _Input:
    port, where = ports.inputs[entry["feeds"]], f"processing of input {entry['name']!r}"
    first, *rest = entry["steps"]
    source = _built(SOURCE_OF, first)
    steps = tuple(_built(STEP_OF, step) for step in rest)
    (kind,) = _typed(steps, (source.kind(),), where)
    shape = port.shape
    need(shape is not None, f"{where}: the model's input {port.name!r} has no known rank")
    stacked = len(shape or ()) == len(kind.shape) + 1
    wanted = Kind(dtype_name(port.dtype), tuple(_size(d) for d in (shape or ())[stacked:]))
    fits = len(wanted.shape) == len(kind.shape) and all(
        None in (want, have) or want == have for want, have in zip(wanted.shape, kind.shape, strict=True)
    )
    need(fits and kind.dtype == wanted.dtype, f"{where}: expected its steps to make {wanted} for the model's input"
         f" {port.name!r}, got {kind}")  # fmt: skip
    need(stacked or not ports.batched, f"{where}: expected rows without a batch axis, got {kind}")
    return _Input(entry["name"], port, source, steps, stacked)


def _output(entry: Mapping[str, Any], ports: Ports) -> tuple[_Output, tuple[Port, ...]]:
    names, of = tuple(entry["names"]), tuple(entry["of"])
    where = f"processing of output {names[0]!r}"
    taken = [ports.outputs[name] for name in of]
    for port in taken:
        need(bool(port.shape), f"{where}: the model's output {port.name!r} has no axis of rows")
    steps = tuple(_built(STEP_OF, step) for step in entry["steps"])
    kinds = tuple(Kind(dtype_name(p.dtype), tuple(_size(d) for d in (p.shape or ())[1:])) for p in taken)
    kinds = _typed(steps, kinds, where)
    need(len(kinds) == len(names), f"{where}: expected {len(kinds)} names for what its steps make, got {len(names)}")
    rows = (taken[0].shape or ())[0]
    made = tuple(_port(name, kind, rows) for name, kind in zip(names, kinds, strict=True))
    return _Output(names, of, steps, tuple(port.dtype for port in made)), made


def _built(classes: Mapping[str, Any], step: Mapping[str, Any]) -> Any:
    return classes[step["step"]](**{name: value for name, value in step.items() if name != "step"})


def _typed(steps: tuple[Step, ...], kinds: tuple[Kind, ...], where: str) -> tuple[Kind, ...]:
    for step in steps:
        try:
            kinds = step.typed(*kinds)
        except ProcessingError as error:
            raise ProcessingError(f"{where}: {error}") from None
    return kinds


def _outer(entry: _Input) -> Port:
    return _port(entry.name, entry.source.outer(), (entry.port.shape or ())[0] if entry.stacked else 1)


_DATATYPE_OF = {ours: theirs for theirs, ours in DATATYPES.items()}


def _port(name: str, kind: Kind, rows: Dim) -> Port:
    dtype = numpy_dtype(kind.dtype)
    itemsize = 0 if dtype.hasobject else dtype.itemsize
    return Port(name, _DATATYPE_OF[kind.dtype], dtype, itemsize, (rows, *kind.shape))


def _size(dim: Dim) -> int | None:
    return dim if isinstance(dim, int) else None


# the way in


def _feed(entry: _Input, items: Array) -> Array:
    """The model's input, of a client's rows. All headers are read before anything is decoded."""
    most = ROWS if entry.stacked else 1
    if not 1 <= len(items) <= most:
        status = 413 if len(items) else 400
        raise GatewayError(status, f"input {entry.name!r}: expected 1..{most} rows, got {len(items)}")
    opened = [_open(entry, item, i) for i, item in enumerate(items)]
    weight = sum(payload.weight for payload in opened)
    if weight > entry.source.limit:
        raise GatewayError(
            413, f"input {entry.name!r}: expected at most {entry.source.limit:.15g} {entry.source.unit} in a request,"
            f" got {weight:.15g}; send less at a time"
        )  # fmt: skip
    rows: Array | None = None
    for i, payload in enumerate(opened):
        row = _row(entry, payload, i)
        if not entry.stacked:
            return np.ascontiguousarray(row, entry.port.dtype)
        if rows is None:
            rows = _room(entry, len(opened), row)
        if row.shape != rows.shape[1:]:
            raise GatewayError(
                400, f"input {entry.name!r}: expected rows of one shape, got {list(row.shape)} for row {i} and"
                f" {list(rows.shape[1:])} for row 0; send them in separate requests"
            )  # fmt: skip
        rows[i] = row
    assert rows is not None
    return rows


def _open(entry: _Input, item: Any, i: int) -> Payload:
    try:
        return entry.source.open(item)
    except GatewayError as error:
        raise _at(entry, i, error) from error


def _at(entry: _Input, i: int, error: GatewayError) -> GatewayError:
    return GatewayError(error.status, f"input {entry.name!r}, row {i}: {error}")


def _room(entry: _Input, count: int, row: Array) -> Array:
    if count * row.nbytes > LIMIT:
        raise GatewayError(
            413, f"input {entry.name!r}: {count} rows of {row.nbytes} bytes are more than {LIMIT}; send fewer at a time"
        )
    return np.empty((count, *row.shape), entry.port.dtype)


def _row(entry: _Input, payload: Payload, i: int) -> Array:
    try:
        arrays = (entry.source.decode(payload),)
        if not arrays[0].size:
            raise GatewayError(400, f"expected a non-empty array, got shape {list(arrays[0].shape)}")
        for step in entry.steps:
            arrays = step.run(*arrays)  # type: ignore[assignment]
    except GatewayError as error:
        raise _at(entry, i, error) from error
    (row,) = arrays
    shape = (entry.port.shape or ())[entry.stacked :]
    if any(isinstance(want, int) and want != have for want, have in zip(shape, row.shape, strict=True)):
        raise GatewayError(
            400, f"input {entry.name!r}, row {i}: expected shape {list(shape)} for the model, got"
            f" {list(row.shape)}; send data of the size that the model needs"
        )  # fmt: skip
    return row
